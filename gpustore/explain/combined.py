"""Estimates of what views read and write: those of their bases and layers, added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

from gpustore.explain.explanation import Bounds, Explanation, member_names
from gpustore.explain.write_explanation import WriteExplanation

E = TypeVar("E", Explanation, WriteExplanation)


def combined(parts: Sequence[E], *, others: int = 0, **members: Any) -> E:
    """Return the explanation of operations that are parts of one.

    Chunks that several parts have count for each of them; the lower bounds of counters hold where
    they are read once.

    Parameters
    ----------
    parts : sequence of Explanation, or of WriteExplanation
        One at least.
    others : int
        Number of parts without an explanation: those in memory.
    members
        Attributes of the whole operation, such as its shape.
    """
    first = max(parts, key=lambda one: one.chunk_nbytes)
    found = {name: [getattr(one, name) for one in parts] for name in member_names(first)}
    attributes = {name: _HOW[name](found[name]) for name in found if name in _HOW}
    counts = _counts(found["counts"], others)
    return replace(first, **attributes, counts=counts, **members)


def _each(values: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(one for value in values for one in value))


def _any(values: Sequence[str | None]) -> str | None:
    return next((value for value in values if value is not None), None)


def _all(values: Sequence[str | None]) -> str | None:
    return None if None in values else values[0]


def _counts(values: Sequence[Mapping[str, Bounds]], others: int) -> Mapping[str, Bounds]:
    found = {}
    touched = [value["chunks_planned"] for value in values if "chunks_planned" in value]
    for name in dict.fromkeys(name for value in values for name in value):
        bounds = [value.get(name, Bounds(0, 0)) for value in values]
        most = [one.most for one in bounds if one.most is not None]
        # Parts without chunks may not be read at all; others may share what is read.
        least = max(one.least for one in bounds) if any(one.most for one in touched) else 0
        total = sum(most) + others * (name in ("reads", "writes"))
        found[name] = Bounds(least, total if len(most) == len(bounds) else None)
    return MappingProxyType(found)


_HOW: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("chunks", "values", "read_chunks", "read_values", "bytes_encoded"), sum),
    **dict.fromkeys(("refined_by", "codecs", "decoders", "gpu", "gpu_missing"), _each),
    **dict.fromkeys(("library", "shortcoming", "device_reason"), _any),
    # A reason for all that is decoded or encoded, unless another part has none.
    **dict.fromkeys(("host_reason", "direct_reason", "decoder_reason", "gpu_reason"), _all),
}
"""Functions that add up the attributes; of others the one of the largest chunks counts."""

EXPLAIN = combined
