"""NumPy-style indexing of selected dimensions, in the order in which they were selected.

Steps:

1. Count dimensions with the new ones of the index ("intermediate" dimensions), and find those that
   the terms are for.
2. Index the domain with the selected dimensions in front, as indexing without a selection does.
3. Bring the dimensions that come of it to the places of those they come from.

Source: TensorStore ``index_space/internal/numpy_indexing_spec.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from gpustore.errors import MetadataError
from gpustore.index_space.bounds import Box, propagate
from gpustore.index_space.composition import compose_maps
from gpustore.index_space.dimension_operation import Selected, reordered
from gpustore.index_space.domain import make_domain
from gpustore.index_space.interval import check_rank
from gpustore.index_space.numpy_index import Arrays, NumpyIndex, Term
from gpustore.index_space.numpy_indexing import Builder
from gpustore.index_space.output_map import OutputIndexMaps
from gpustore.index_space.selection import (
    DimTerm,
    dimension_by_index,
    dimension_by_label,
    dimension_range,
    new_dimensions,
)


def index_selected(to: Selected, index: NumpyIndex) -> Selected:
    """Return the transform after indexing its selected dimensions; the index adds none.

    Raises
    ------
    MetadataError, OutOfBoundsError
        If the index does not fit the dimensions, or is out of bounds.
    """
    terms, extra = _terms_for(index, len(to.dims))
    return _indexed(to, index, terms, extra, to.dims, range(len(to.labels)))


def index_new_selection(to: Selected, index: NumpyIndex, selection: Sequence[DimTerm]) -> Selected:
    """Return the transform after indexing dimensions that are counted with those the index adds.

    Raises
    ------
    MetadataError, OutOfBoundsError
        If the selection or the index does not fit the domain, or is out of bounds.
    """
    rank = len(to.labels)
    if index.is_scalar and index.terms[0] is None:
        selected = list(new_dimensions(selection, rank))
        rank += len(selected)
    else:
        rank += index.terms.count(None)
        check_rank(rank)
        selected = _partly_counted(selection, rank, to.labels)
    _check_unique([dim for dim in selected if dim >= 0])
    terms, extra = _terms_for(index, len(selected))
    new = set()
    at = 0
    for term in terms:
        if term is None:
            if selected[at] < 0:
                raise MetadataError("Dimensions specified by label cannot be used with newaxis")
            new.add(selected[at])
        at += _consumed(term, extra)
    old = [dim for dim in range(rank) if dim not in new]
    selected = [dim if dim >= 0 else old[~dim] for dim in selected]
    _check_unique(selected)
    numbers: list[int | None] = [None] * rank
    for number, dim in enumerate(old):
        numbers[dim] = number
    return _indexed(to, index, terms, extra, selected, numbers)


def _partly_counted(selection: Sequence[DimTerm], rank: int, labels: Sequence[str]) -> list[int]:
    """Return selected dimensions, ``~dim`` for a label: new dimensions may come before those."""
    dims: list[int] = []
    for term in selection:
        if isinstance(term, str):
            dims.append(~dimension_by_label(term, labels))
        elif isinstance(term, slice):
            dims.extend(dimension_range(term, rank))
        else:
            dims.append(dimension_by_index(term, rank))
    return dims


def _check_unique(dims: Sequence[int]) -> None:
    for i, dim in enumerate(dims):
        if dim in dims[:i]:
            raise MetadataError(f"Dimension {dim} specified more than once")


def _terms_for(index: NumpyIndex, count: int) -> tuple[Sequence[Term], int]:
    """Return the terms for `count` dimensions, and how many the ellipsis stands for."""
    terms = index.terms * count if index.is_scalar else index.terms
    required = sum(_consumed(term, 0) for term in terms)
    extra = count - required
    if extra < 0 or (extra and Ellipsis not in terms):
        raise MetadataError(
            f"Indexing expression requires {required} dimensions but selection has {count} "
            "dimensions"
        )
    return terms, extra


def _consumed(term: Term, extra: int) -> int:
    if isinstance(term, Arrays):
        return len(term.arrays)
    return extra if term is Ellipsis else 1


def _made(index: NumpyIndex, terms: Sequence[Term], extra: int) -> list[int]:
    """Return how many dimensions come in place of each selected one."""
    joint = index.joint
    waiting = joint is not None and not joint.is_first
    counts: list[int] = []
    for term in terms:
        if not isinstance(term, Arrays):
            counts += [0 if type(term) is int else 1] * _consumed(term, extra)
            continue
        made = len(term.shape) if joint is None else len(joint.shape) if waiting else 0
        waiting = False
        if term.arrays:
            counts += [made] + [0] * (len(term.arrays) - 1)
    return counts


def _indexed(
    to: Selected,
    index: NumpyIndex,
    terms: Sequence[Term],
    extra: int,
    selected: Sequence[int],
    numbers: Sequence[int | None],
) -> Selected:
    """Return the indexed transform.

    Parameters
    ----------
    selected : sequence of int
        Intermediate dimensions that the terms are for.
    numbers : sequence of int or None
        Dimension of the transform that each intermediate one is; None if it is new.
    """
    others = [dim for dim in range(len(numbers)) if dim not in selected]
    made = [*_made(index, terms, extra), *[1] * len(others)]
    in_front = len(index.joint.shape) if index.joint and index.joint.is_first else 0
    check_rank(in_front + sum(made))
    sources = (*selected, *others)
    ordered = [dim for source in sources if (dim := numbers[source]) is not None]
    domain = make_domain(to.box, to.labels)
    builder = Builder(domain._take(ordered), ordered)
    builder.add_terms(terms, index.joint, extra)
    # Dimensions that come in place of each intermediate one, as the builder numbers them.
    starts = accumulate(made, initial=in_front)
    spans = {dim: range(at, at + count) for dim, at, count in zip(sources, starts, made)}
    order = [*range(in_front), *(i for dim in range(len(numbers)) for i in spans[dim])]
    built = Selected(builder.box(), tuple(builder.labels), OutputIndexMaps(builder.maps), ())
    built = reordered(built, order)
    inner = dict(zip(ordered, built.maps))
    maps = [inner[dim] for dim in range(len(ordered))]
    box: Box = propagate(to.box, built.box, maps)
    position = {old: new for new, old in enumerate(order)}
    return Selected(
        box,
        built.labels,
        compose_maps(to.maps, to.box, maps, box),
        tuple([position[i] for i in range(len(order) - len(others))]),
    )
