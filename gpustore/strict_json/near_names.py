"""Names like a wrong one, for messages: :func:`near_names`."""

from __future__ import annotations

from collections.abc import Iterable

from gpustore.strict_json.parsing import quote

_MOST_COMPARED = 1_000
"""Most names that are compared, 0.1 ms each."""


def near_names(name: str, others: Iterable[str]) -> str:
    """Return the end of a message that suggests the others most like `name`; empty if none is.

    >>> near_names("imag", ["label", "image"])
    '; did you mean "image"?'
    """
    import difflib  # Only where something went wrong.

    compared = [
        other for other, _ in zip(others, range(_MOST_COMPARED), strict=False) if other != name
    ]
    near = difflib.get_close_matches(name, compared, n=3)
    return f"; did you mean {' or '.join(map(quote, near))}?" if near else ""
