"""Selection of dimensions of a domain by index, label, slice, or a sequence of these."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from gpustore.errors import MetadataError
from gpustore.index_space.interval import (
    INT64_MAX,
    INT64_MIN,
    MAX_RANK,
    check_rank,
    index_argument,
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpustore.index_space.bounds import Box
    from gpustore.index_space.output_map import OutputIndexMaps


DimTerm: TypeAlias = int | str | slice
"""Selected dimension or range of dimensions; the start, stop and step of a slice are int or None,
and the step is not None."""


class Expression:
    """Selected dimensions and the operations on them, as domains and transforms see them.

    Base class of :class:`gpustore.DimExpression`, whose module is imported by programs that use it.
    """

    __slots__ = ()

    def _has_operations(self) -> bool:
        """Whether it is more than a selection of dimensions."""
        raise NotImplementedError

    def _selection(self) -> tuple[DimTerm, ...]:
        """Return the selected dimensions; TypeError if there are operations on them."""
        raise NotImplementedError

    def _applied(
        self, box: Box, labels: tuple[str, ...], maps: OutputIndexMaps
    ) -> tuple[Box, tuple[str, ...], OutputIndexMaps]:
        """Return bounds and labels of the domain, and output maps, after the operations.

        Raises
        ------
        IndexError
            If the expression does not fit the domain, or is out of bounds.
        """
        raise NotImplementedError


def dimension_terms(selection: Any) -> tuple[DimTerm, ...]:
    """Return the terms of a selection, nested ones in their place; TypeError if it is none."""
    if isinstance(selection, str):
        return (selection,)
    if isinstance(selection, Expression):
        return selection._selection()
    if hasattr(selection, "__index__"):
        return (index_argument(selection, "dimension"),)
    if isinstance(selection, slice):
        step = 1 if selection.step is None else _clamped(selection.step)
        return (slice(_clamped(selection.start), _clamped(selection.stop), step),)
    if isinstance(selection, Iterable):
        return tuple([term for item in selection for term in dimension_terms(item)])
    raise TypeError(f"expected a dimension index, label or slice, got {selection!r}")


def _clamped(bound: Any) -> int | None:
    return None if bound is None else min(max(operator.index(bound), INT64_MIN), INT64_MAX)


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


def dimension_range(term: slice, rank: int) -> range:
    """Return the dimensions in a range; MetadataError if a bound is none of a domain's."""
    step = term.step
    if step == 0:
        raise MetadataError("step must not be 0")
    start, stop = (0, rank) if step > 0 else (rank - 1, -1)
    if term.start is not None:
        start = dimension_by_index(term.start, rank)
    if term.stop is not None:
        stop = _stop(term.stop, rank)
        if (stop - start) * step < 0:
            raise MetadataError(f"{format_range(term)} is not a valid range")
    return range(start, stop, step)


def format_range(term: slice) -> str:
    """Format a range of dimensions as TensorStore does.

    >>> format_range(slice(None, -1, 2))
    ':-1:2'
    """
    start, stop = ("" if bound is None else bound for bound in (term.start, term.stop))
    return f"{start}:{stop}" if term.step == 1 else f"{start}:{stop}:{term.step}"


def _all_dimensions(terms: Iterable[DimTerm], labels: Sequence[str]) -> list[int]:
    rank = len(labels)
    dims: list[int] = []
    for term in terms:
        if isinstance(term, slice):
            dims.extend(dimension_range(term, rank))
        elif isinstance(term, str):
            dims.append(dimension_by_label(term, labels))
        else:
            dims.append(dimension_by_index(term, rank))
    return dims


def selected_dimensions(terms: Iterable[DimTerm], labels: Sequence[str]) -> tuple[int, ...]:
    """Return the selected dimensions in the order given; MetadataError if one occurs twice."""
    dims = _all_dimensions(terms, labels)
    if len(dims) > len(labels):
        raise MetadataError(
            f"Number of dimensions ({len(dims)}) exceeds input rank ({len(labels)})."
        )
    if len(set(dims)) != len(dims):
        twice = [str(dim) for i, dim in enumerate(dims) for before in dims[:i] if before == dim]
        raise MetadataError(f"Input dimensions {{{', '.join(twice)}}} specified more than once")
    return tuple(dims)


def new_dimensions(terms: Sequence[DimTerm], rank: int) -> tuple[int, ...]:
    """Return where each new dimension is after all are inserted into a domain of that rank."""
    rank += sum(_new_count(term) if isinstance(term, slice) else 1 for term in terms)
    labels = ("",) * min(rank, MAX_RANK)
    for i, term in enumerate(terms):
        if isinstance(term, str):
            if rank == len(labels):
                _all_dimensions(terms[:i], labels)
            raise MetadataError("New dimensions cannot be specified by label")
    check_rank(rank)
    return selected_dimensions(terms, labels)


def _new_count(term: slice) -> int:
    """Return the size of a range of new dimensions, which does not depend on the rank."""
    start, stop, step = term.start, term.stop, term.step
    if step == 0:
        raise MetadataError("step must not be 0")
    # A missing bound is the end that the indices of the other one count from.
    if start is None and stop is not None and (step > 0) == (stop >= 0):
        start = 0 if step > 0 else -1
    elif stop is None and start is not None and (step > 0) == (start < 0):
        stop = 0 if step > 0 else -1
    elif start is None or stop is None or (start < 0) != (stop < 0) or (stop - start) * step < 0:
        raise MetadataError(
            f"`{format_range(term)}` is not a valid specification for new dimensions"
        )
    return int(-((start - stop) // step))


def permutation(axes: Any, labels: Sequence[str]) -> tuple[int, ...]:
    """Return the order of dimensions that ``transpose(axes)`` asks for; None reverses them."""
    rank = len(labels)
    if axes is None:
        return tuple(range(rank))[::-1]
    dims = _all_dimensions(dimension_terms(axes), labels)
    if sorted(dims) != list(range(rank)):
        found = ", ".join(map(str, dims))
        raise MetadataError(
            f"Source dimension list {{{found}}} is not a valid dimension permutation for "
            f"rank {rank}"
        )
    return tuple(dims)
