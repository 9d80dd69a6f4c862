"""Domains of downsampled arrays.

A cell of the downsampled array stands for a block of the base: along each dimension, `factor`
elements from the cell's index times `factor` on, as far as the base has them.

Source: TensorStore's ``downsample`` driver.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpustore.errors import OutOfBoundsError
from gpustore.index_space.dim import Dim
from gpustore.index_space.domain import IndexDomain
from gpustore.index_space.interval import INF, INF_STOP
from gpustore.index_space.output_map import OutputIndexMap
from gpustore.index_space.transform import IndexTransform


def downsampled(domain: IndexDomain, factors: Sequence[int], *, strided: bool) -> IndexDomain:
    """Return the domain of cells.

    Parameters
    ----------
    domain : IndexDomain
        Domain of the base.
    factors : sequence of int
        Elements of a block along each dimension.
    strided : bool
        Whether a cell is the first element of its block, which the base must have.

    Examples
    --------
    >>> print(downsampled(IndexDomain(inclusive_min=[-4], exclusive_max=[6]), [3], strided=False))
    { [-2, 2) }
    """
    cells = [_cells(dim, factor, strided) for dim, factor in zip(domain, factors, strict=True)]
    return IndexDomain(cells)


def _cells(dim: Dim, factor: int, strided: bool) -> Dim:
    low, high = dim.inclusive_min, dim.exclusive_max
    if low != -INF:
        low = -(-low // factor) if strided else low // factor
    if high != INF_STOP:
        # No element is in no block.
        high = low if dim.inclusive_min == high else -(-high // factor)
    return Dim(
        inclusive_min=low,
        exclusive_max=max(low, high),
        implicit_lower=dim.implicit_lower,
        implicit_upper=dim.implicit_upper,
        label=dim.label,
    )


def elements_below(
    transform: IndexTransform, base: IndexDomain, factors: Sequence[int]
) -> IndexTransform:
    """Return the transform to the elements of the base of which cells are made.

    A dimension that is a range of cells is one of the elements of their blocks, as far as the base
    has them. Where cells are not a range, a new last dimension runs over a block.

    Parameters
    ----------
    transform : IndexTransform
        To cells.
    base : IndexDomain
        Domain of the base.
    factors : sequence of int
        Elements of a block along each dimension.

    Examples
    --------
    >>> cells = IndexTransform(IndexDomain(shape=[5, 5]))[2:4, 1]
    >>> print(elements_below(cells, IndexDomain(shape=[10, 20]), [2, 4]).domain)
    { [4, 8), [0, 4) }
    """
    given = transform.domain
    uses = [map_.input_dimension for map_ in transform.output]
    dims = [Dim(d.inclusive_min, d.exclusive_max, label=d.label) for d in given]
    is_range = [
        map_.input_dimension is not None
        and map_.stride == 1
        and uses.count(map_.input_dimension) == 1
        for map_ in transform.output
    ]
    rank = given.rank + sum(f > 1 and not one for one, f in zip(is_range, factors, strict=True))
    maps = []
    for n, (map_, along, factor) in enumerate(zip(transform.output, base, factors, strict=True)):
        d, first = map_.input_dimension, map_.offset * factor
        if factor == 1:
            maps.append(map_)
        elif d is not None and is_range[n]:
            low, high = given[d].inclusive_min, given[d].exclusive_max
            dims[d] = Dim(*_elements(low, high, factor, along, first), label=given[d].label)
            maps.append(OutputIndexMap(d, offset=first))
        elif map_.stride is None:
            low, high = _elements(map_.offset, map_.offset + 1, factor, along, 0)
            maps.append(OutputIndexMap(len(dims), offset=low))
            dims.append(Dim(0, high - low))
        else:
            cells = _cells_along(map_, given)
            cells = cells.reshape(*cells.shape, *[1] * (rank - given.rank))
            block = np.arange(factor).reshape(
                [-1 if one == len(dims) else 1 for one in range(rank)]
            )
            _check(cells, along, factor, n)
            # What a block lacks at the edge of the base is its first or last element again.
            elements = np.clip(cells * factor + block, along.inclusive_min, along.exclusive_max - 1)
            maps.append(OutputIndexMap(elements))
            dims.append(Dim(0, factor))
    return IndexTransform(IndexDomain(dims), maps)


def _check(cells: NDArray[np.int64], base: Dim, factor: int, dimension: int) -> None:
    """Raise OutOfBoundsError unless all cells are those of the base along a dimension."""
    within = _cells(base, factor, strided=False)
    outside = (cells < within.inclusive_min) | (cells >= within.exclusive_max)
    if outside.any():
        raise OutOfBoundsError(
            f"Propagating downsampling factor {factor} through output dimension {dimension}: "
            f"Index {cells[outside][0]} is outside valid range "
            f"[{within.inclusive_min}, {within.exclusive_max})"
        )


def _elements(low: int, high: int, factor: int, base: Dim, offset: int) -> tuple[int, int]:
    """Return the range of elements of a range of cells, less `offset`, as far as the base has
    them.
    """
    is_empty = low == high
    low, high = (one if one in (-INF, INF_STOP) else one * factor for one in (low, high))
    if not is_empty and base.inclusive_min != -INF:
        low = max(low, base.inclusive_min - offset)
    if not is_empty and base.exclusive_max != INF_STOP:
        high = min(high, base.exclusive_max - offset)
    return low, high


def _cells_along(map_: OutputIndexMap, domain: IndexDomain) -> NDArray[np.int64]:
    """Return the cells of a map that is not constant, of the rank of the domain."""
    indices = map_.index_array
    if indices is None:
        d = map_.input_dimension
        assert d is not None
        indices = np.arange(domain[d].inclusive_min, domain[d].exclusive_max)
        indices = indices.reshape([-1 if one == d else 1 for one in range(domain.rank)])
    return map_.offset + (map_.stride or 0) * indices
