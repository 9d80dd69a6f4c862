"""Selection of dimensions of a domain by index, label, slice, or a sequence of these."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gpustore.errors import MetadataError
from gpustore.index_space.interval import quote

if TYPE_CHECKING:
    from collections.abc import Sequence


def dimension_by_index(index: int, rank: int) -> int:
    """Return the dimension of a Python index, -1 the last; MetadataError if there is none."""
    if not -rank <= index < rank:
        raise MetadataError(f"Dimension index {index} is outside valid range [-{rank}, {rank})")
    return index + rank if index < 0 else index


def dimension_by_label(label: str, labels: Sequence[str]) -> int:
    """Return the dimension with that label; MetadataError if there is none."""
    if not label:
        raise MetadataError("Dimension cannot be specified by empty label")
    try:
        return tuple(labels).index(label)
    except ValueError:
        choices = ", ".join(map(quote, labels))
        raise MetadataError(f"Label {quote(label)} does not match one of {{{choices}}}") from None


def _stop(index: int, rank: int) -> int:
    if not -rank - 1 <= index <= rank:
        raise MetadataError(
            f"Dimension exclusive stop index {index} is outside valid range [-{rank + 1}, {rank}]"
        )
    return index + rank if index < 0 else index


def _range(term: slice, rank: int) -> range:
    step = 1 if term.step is None else operator.index(term.step)
    if step == 0:
        raise MetadataError("step must not be 0")
    start, stop = (0, rank) if step > 0 else (rank - 1, -1)
    if term.start is not None:
        start = dimension_by_index(operator.index(term.start), rank)
    if term.stop is not None:
        stop = _stop(operator.index(term.stop), rank)
        if (stop - start) * step < 0:
            raise MetadataError(f"{_show(term)} is not a valid range")
    return range(start, stop, step)


def _show(term: slice) -> str:
    text = f"{'' if term.start is None else term.start}:{term.stop}"
    return text if term.step in (None, 1) else f"{text}:{term.step}"


def _select(selection: Any, labels: Sequence[str]) -> list[int]:
    rank = len(labels)
    if isinstance(selection, str):
        return [dimension_by_label(selection, labels)]
    if isinstance(selection, slice):
        return list(_range(selection, rank))
    if hasattr(selection, "__index__"):
        return [dimension_by_index(operator.index(selection), rank)]
    raise TypeError(f"expected a dimension index, label or slice, got {selection!r}")


def select_dimensions(selection: Any, labels: Sequence[str]) -> tuple[int, ...]:
    """Return the selected dimensions in the order given; MetadataError if one occurs twice."""
    terms = [selection]
    if isinstance(selection, Iterable) and not isinstance(selection, str):
        terms = list(selection)
    dims = [dim for term in terms for dim in _select(term, labels)]
    if len(dims) > len(labels):
        raise MetadataError(
            f"Number of dimensions ({len(dims)}) exceeds input rank ({len(labels)})."
        )
    if len(set(dims)) != len(dims):
        twice = sorted({dim for dim in dims if dims.count(dim) > 1})
        found = ", ".join(map(str, twice))
        raise MetadataError(f"Input dimensions {{{found}}} specified more than once")
    return tuple(dims)


def permutation(axes: Any, labels: Sequence[str]) -> tuple[int, ...]:
    """Return the order of dimensions that ``transpose(axes)`` asks for; None reverses them."""
    rank = len(labels)
    if axes is None:
        return tuple(range(rank))[::-1]
    terms = [axes]
    if isinstance(axes, Iterable) and not isinstance(axes, str):
        terms = list(axes)
    dims = tuple(dim for term in terms for dim in _select(term, labels))
    if sorted(dims) != list(range(rank)):
        found = ", ".join(map(str, dims))
        raise MetadataError(
            f"Source dimension list {{{found}}} is not a valid dimension permutation for "
            f"rank {rank}"
        )
    return dims
