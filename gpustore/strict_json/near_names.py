"""Names like a wrong one, for messages: :func:`near_names`, :func:`near_or_known`."""

from __future__ import annotations

from collections.abc import Iterable

from gpustore.strict_json.parsing import quote

_MOST_COMPARED = 1_000
"""Most names that are compared, 0.1 ms each."""

_SHORT = 3


def near_names(name: str, others: Iterable[str]) -> str:
    """Return the end of a message that suggests the others most like `name`; empty if none is.

    >>> near_names("imag", ["label", "image"])
    '; did you mean "image"?'
    >>> near_names("ct", ["CT", "mask", "cd"])
    '; did you mean "CT" or "cd"?'
    """
    import difflib  # Only where something went wrong.

    compared = {
        other.casefold(): other
        for other, _ in zip(others, range(_MOST_COMPARED), strict=False)
        if other != name
    }
    # One letter of two is half of a name.
    cutoff = 0.6 if len(name) > _SHORT else 0.5
    near = difflib.get_close_matches(name.casefold(), compared, n=3, cutoff=cutoff)
    found = [quote(compared[one]) for one in near]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def near_or_known(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that suggests the known names most like `name`, or lists all.

    >>> near_or_known("gzpi", ["gzip", "zstd"]), near_or_known("x", ["gzip", "zstd"])
    ('; did you mean "gzip"?', '; known: gzip, zstd')
    """
    known = tuple(known)
    return near_names(name, known) or f"; known: {', '.join(known)}"
