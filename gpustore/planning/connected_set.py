"""The rows that one connected set of dimensions adds to a plan.

A set is one input dimension and the output dimensions that use it, a constant output dimension, or
all that an index array ties together. Below ``SCALAR_ROWS`` rows a table's columns are made by a
scalar loop, above by NumPy; both hold the same numbers.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.index_space import IndexTransform
from gpustore.index_space.output_map import OutputIndexMap
from gpustore.planning.window import Column, Points

SCALAR_ROWS = 500
"""Largest number of rows whose columns are made by the scalar loop."""

StridedMap = tuple[int, int, int]
"""Output dimension, offset and stride of a strided output index map."""


@dataclass(frozen=True, slots=True)
class ConnectedSet:
    """The runs of one connected set: one input dimension (or none) and the outputs that use it.

    Attributes
    ----------
    input_dimension : int or None
        None for a constant output dimension.
    output_dimensions : tuple of int
        Array dimensions whose cell index the rows of this table determine.
    cells : tuple of columns, one an output dimension
        Index of the chunk in the grid.
    src_start, dst_start : column
        Bytes this table adds to the start in the decoded chunk and in the array.
    count : column
        Elements of the run.
    whole : list of bool
        Whether the run covers all of the chunk that lies inside the array, as far as the
        dimensions of this table go.
    points : tuple of Points, optional
        For a set that holds an index array: the elements of each row, one by one.
    """

    input_dimension: int | None
    output_dimensions: tuple[int, ...]
    cells: tuple[Column, ...]
    src_start: Column
    dst_start: Column
    count: Column
    whole: Sequence[bool] | NDArray[np.bool_]
    points: tuple[Points, ...] | None = None

    def __len__(self) -> int:
        return len(self.count)


def maps_by_input(
    transform: IndexTransform, listed: Container[int]
) -> tuple[dict[int, list[StridedMap]], list[tuple[int, OutputIndexMap]]]:
    """Strided maps by the input dimension that they follow, and outputs that follow none.

    Those in `listed`, which lists of points tell, are left out.
    """
    used_by: dict[int, list[StridedMap]] = {}
    constant: list[tuple[int, OutputIndexMap]] = []
    for o, map_ in enumerate(transform.output):
        if o in listed:
            continue
        if map_.input_dimension is not None and map_.stride is not None:
            used_by.setdefault(map_.input_dimension, []).append((o, map_.offset, map_.stride))
        else:
            constant.append((o, map_))
    return used_by, constant


def constant_index(map_: OutputIndexMap) -> int:
    """The index that a map leads to which follows no dimension; the domain is not empty."""
    if map_.index_array is None or map_.stride is None:
        return map_.offset
    return map_.offset + map_.stride * int(map_.index_array.item(0))  # The same everywhere.


def constant_table(
    o: int, offset: int, shape: Sequence[int], chunk_shape: Sequence[int], stride: Sequence[int]
) -> ConnectedSet:
    """One row: the cell that holds the one index of an output dimension."""
    cell, position = divmod(offset, chunk_shape[o])
    extent = min(chunk_shape[o], shape[o] - cell * chunk_shape[o])
    return ConnectedSet(None, (o,), ([cell],), [position * stride[o]], [0], [1], [extent == 1])


def fewest_runs(n: int, maps: list[StridedMap], chunk_shape: Sequence[int]) -> int:
    """Lower bound of the runs of an interval of `n` indices, without building them."""
    return min(n, max(1 + (n - 1) * abs(stride) // chunk_shape[o] for o, _, stride in maps))


def _most_runs(n: int, maps: list[StridedMap], chunk_shape: Sequence[int]) -> int:
    """Upper bound of the runs."""
    return min(n, sum(2 + (n - 1) * abs(stride) // chunk_shape[o] for o, _, stride in maps))


def _run_starts(
    i: int, n: int, offset: int, stride: int, chunk: int, *, scalar: bool
) -> list[int] | NDArray[np.int64]:
    """Indices in [i, i+n) at which the cell of ``offset + stride * index`` changes, and `i`."""
    if abs(stride) >= chunk:
        return list(range(i, i + n)) if scalar else np.arange(i, i + n)
    first = (offset + stride * i) // chunk
    last = (offset + stride * (i + n - 1)) // chunk
    # Cell c begins at the first index whose position reaches (rising) or falls to (falling)
    # its edge: ceil((edge - offset) / stride), written with the floor division Python has.
    if stride > 0:
        cells, edge = (first + 1, last + 1, 1), 0
    else:
        cells, edge = (first - 1, last - 1, -1), chunk - 1
    if scalar:
        return [i, *(-((offset - c * chunk - edge) // stride) for c in range(*cells))]
    positions = np.arange(*cells, dtype=np.int64) * chunk + edge
    return np.concatenate([np.array([i]), -((offset - positions) // stride)])


def strided_table(
    d: int,
    low: int,
    n: int,
    maps: list[StridedMap],
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    src_stride: Sequence[int],
    dst_stride: int,
) -> ConnectedSet:
    """The runs of an input interval during which the cells of its outputs stay the same."""
    scalar = _most_runs(n, maps, chunk_shape) <= SCALAR_ROWS
    starts: Any
    if len(maps) == 1:
        o, offset, stride = maps[0]
        starts = _run_starts(low, n, offset, stride, chunk_shape[o], scalar=scalar)
    else:
        # A diagonal: a run ends where any of the outputs changes its cell.
        every = [_run_starts(low, n, a, b, chunk_shape[o], scalar=scalar) for o, a, b in maps]
        starts = sorted(set().union(*every)) if scalar else np.unique(np.concatenate(every))
    if scalar:
        return _scalar_table(
            d, low, n, list(starts), maps, shape, chunk_shape, src_stride, dst_stride
        )
    count = np.diff(starts, append=low + n)
    extent = np.ones(len(starts), np.int64)
    src = np.zeros(len(starts), np.int64)
    cells = []
    for o, offset, stride in maps:
        position = offset + stride * starts
        cell = position // chunk_shape[o]
        src += src_stride[o] * (position - cell * chunk_shape[o])
        extent *= np.minimum(chunk_shape[o], shape[o] - cell * chunk_shape[o])
        cells.append(cell)
    return ConnectedSet(
        d,
        tuple(o for o, _, _ in maps),
        tuple(cells),
        src,
        dst_stride * (starts - low),
        count,
        count == extent,
    )


def _scalar_table(
    d: int,
    low: int,
    n: int,
    starts: list[int],
    maps: list[StridedMap],
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    src_stride: Sequence[int],
    dst_stride: int,
) -> ConnectedSet:
    count = [b - a for a, b in zip(starts, [*starts[1:], low + n])]
    extent = [1] * len(starts)
    src = [0] * len(starts)
    cells = []
    for o, offset, stride in maps:
        chunk, size, byte_stride = chunk_shape[o], shape[o], src_stride[o]
        column = []
        for row, start in enumerate(starts):
            cell, position = divmod(offset + stride * start, chunk)
            src[row] += byte_stride * position
            extent[row] *= min(chunk, size - cell * chunk)
            column.append(cell)
        cells.append(column)
    return ConnectedSet(
        d,
        tuple(o for o, _, _ in maps),
        tuple(cells),
        src,
        [dst_stride * (start - low) for start in starts],
        count,
        [c == e for c, e in zip(count, extent)],
    )


def pointed_sets(transform: IndexTransform) -> list[tuple[list[int], list[int]]]:
    """Connected sets that hold an index array: their input and their output dimensions."""
    extent = transform.domain.shape
    # Input dimensions that one array depends on belong together; so do sets that share one.
    groups: list[tuple[set[int], list[int]]] = []
    for o, map_ in enumerate(transform.output):
        if map_.index_array is None:
            continue
        dims = {d for d, size in enumerate(map_.index_array.shape) if size != 1 and extent[d] != 1}
        outputs = [o]
        if not dims:
            continue  # The same index everywhere: a constant.
        for group in [group for group in groups if group[0] & dims]:
            groups.remove(group)
            dims |= group[0]
            outputs += group[1]
        groups.append((dims, outputs))
    for dims, outputs in groups:
        outputs += [o for o, map_ in enumerate(transform.output) if map_.input_dimension in dims]
    return [(sorted(dims), sorted(outputs)) for dims, outputs in groups]


def points_table(
    transform: IndexTransform,
    dims: list[int],
    outputs: list[int],
    chunk_shape: Sequence[int],
    src_stride: Sequence[int],
    dst_stride: Sequence[int],
) -> ConnectedSet:
    """The elements of a set that holds an index array, sorted by cell."""
    domain = transform.domain
    extent = [domain.shape[d] for d in dims]
    src = np.zeros(extent, np.int64)
    dst = np.zeros(extent, np.int64)
    axes = {d: np.arange(domain.shape[d]).reshape(_along(i, len(dims))) for i, d in enumerate(dims)}
    cells = []
    for o in outputs:
        map_ = transform.output[o]
        stride = 1 if map_.stride is None else map_.stride
        d = map_.input_dimension
        if map_.index_array is not None:
            # One axis for each dimension of the set: the array has size 1 along all others.
            index = map_.index_array.reshape([map_.index_array.shape[d] for d in dims])
        else:
            assert d is not None
            index = domain.inclusive_min[d] + axes[d]
        position = map_.offset + stride * index
        cell = position // chunk_shape[o]
        src += src_stride[o] * (position - cell * chunk_shape[o])
        cells.append(np.broadcast_to(cell, extent).ravel())
    for d in dims:
        dst += dst_stride[d] * axes[d]
    # Stable, so that the elements of a cell stay in the order of the request.
    order = np.lexsort(cells[::-1])
    ordered = [cell[order] for cell in cells]
    changes = np.zeros(len(order), np.bool_)
    changes[:1] = True
    for cell in ordered:
        changes[1:] |= cell[1:] != cell[:-1]
    first = np.flatnonzero(changes)
    src_points = np.split(src.ravel()[order], first[1:])
    dst_points = np.split(dst.ravel()[order], first[1:])
    rows = len(first)
    return ConnectedSet(
        None,
        tuple(outputs),
        tuple(cell[first].tolist() for cell in ordered),
        [0] * rows,
        [0] * rows,
        [1] * rows,
        [False] * rows,
        tuple(zip(src_points, dst_points)),
    )


def _along(axis: int, rank: int) -> tuple[int, ...]:
    """The shape that stretches one axis."""
    return tuple(-1 if i == axis else 1 for i in range(rank))
