"""Plans of arrays whose chunks differ in shape: one plan of regular chunks a chunk shape.

:func:`plan_shapes` finds the runs of each connected set of dimensions, as
:func:`gpustore.planning.chunk_plan.plan_chunks` does, and groups them by the sizes of their chunks.
Each combination of groups is a :class:`~gpustore.planning.chunk_plan.ChunkPlan` over chunks of one
shape. See docs/design/006-rectilinear.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.index_space import IndexTransform
from gpustore.metadata.chunk_edges import ChunkEdges
from gpustore.planning.chunk_plan import ChunkPlan, check_row_count
from gpustore.planning.connected_set import (
    SCALAR_ROWS,
    ConnectedSet,
    StridedMap,
    constant_index,
    maps_by_input,
    pointed_sets,
)

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ShapeLayout:
    """How the chunks of one shape are stored.

    Attributes
    ----------
    src_stride : tuple of int, one an array dimension
        Bytes between neighbours in a decoded chunk; of shards, in a decoded innermost chunk.
    key_ratio : tuple of int, one an array dimension
        Innermost chunks along each dimension that share a key.
    """

    src_stride: tuple[int, ...]
    key_ratio: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShapedGrid:
    """Chunks that differ in shape, and where positions lie in them.

    Attributes
    ----------
    shape : sequence of int
        Of the array.
    edges : sequence of ChunkEdges, one an array dimension
        Of the chunks with keys.
    inner : sequence of int, or None
        Shape of the innermost chunks in elements, if the chunks with keys are shards.
    """

    shape: Sequence[int]
    edges: Sequence[ChunkEdges]
    inner: Sequence[int] | None

    def inner_edges(self, o: int) -> ChunkEdges:
        """The edges of the innermost chunks."""
        return self.edges[o] if self.inner is None else self.edges[o].divided(self.inner[o])

    def located(self, o: int, position: Any) -> tuple[Integers, Integers, Integers, Integers]:
        """Cell, position in the innermost chunk, size of the chunk with a key, and extent."""
        cell, inside, size = self.edges[o].locate(position)
        extent = size
        if self.inner is not None:
            extent = np.full_like(size, self.inner[o])
            along, inside = np.divmod(inside, extent)
            # Numbered so that a key and a place in it are the quotient and the rest.
            cell = cell * (size // extent) + along
        return cell, inside, size, np.minimum(extent, self.shape[o] - (position - inside))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The runs of one connected set, or the elements that index arrays select, by cell.

    Attributes
    ----------
    dimension : int or None
        As in :class:`~gpustore.planning.connected_set.ConnectedSet`.
    outputs : tuple of int
    cells, sizes : list of int64 arrays, one an output dimension
        Of each row: index of the innermost chunk, and the size of the chunk with a key.
    inside : list of int64 arrays, one an output dimension
        Position in the innermost chunk: of each row, or of each point.
    dst_start, count, whole : arrays
        Of each row; with points, `dst_start` is that of each point.
    first : int64 array or None
        Where the points of each row begin, and where the last ones end.
    """

    dimension: int | None
    outputs: tuple[int, ...]
    cells: list[Integers]
    sizes: list[Integers]
    inside: list[Integers]
    dst_start: Integers
    count: Integers
    whole: NDArray[np.bool_]
    first: Integers | None = None

    def groups(self) -> list[tuple[tuple[int, ...], Integers]]:
        """Sizes, and the rows that have them."""
        found, group = np.unique(np.stack(self.sizes), axis=1, return_inverse=True)
        order = np.argsort(group.ravel(), kind="stable")
        ends = np.cumsum(np.bincount(group.ravel(), minlength=found.shape[1]))
        return list(zip(map(tuple, found.T.tolist()), np.split(order, ends[:-1])))

    def table(self, rows: Integers, src_stride: Sequence[int]) -> ConnectedSet:
        """Some of the rows, for chunks with these strides."""
        n = len(rows)
        strides = [src_stride[o] for o in self.outputs]

        def taken(column: NDArray[Any]) -> Any:
            return column.tolist() if n <= SCALAR_ROWS else column  # As in other short plans.

        cells = tuple(taken(cell[rows]) for cell in self.cells)
        if self.first is None:
            src = np.zeros(n, np.int64)
            for stride, inside in zip(strides, self.inside):
                src += stride * inside[rows]
            return ConnectedSet(
                self.dimension,
                self.outputs,
                cells,
                taken(src),
                taken(self.dst_start[rows]),
                taken(self.count[rows]),
                taken(self.whole[rows]),
            )
        points = []
        for row in rows.tolist():
            cut = slice(int(self.first[row]), int(self.first[row + 1]))
            at = np.zeros(cut.stop - cut.start, np.int64)
            for stride, inside in zip(strides, self.inside):
                at += stride * inside[cut]
            points.append((at, self.dst_start[cut]))
        zeros = [0] * n
        return ConnectedSet(
            None, self.outputs, cells, zeros, zeros, [1] * n, [False] * n, tuple(points)
        )


@dataclass(frozen=True, slots=True)
class _Planner:
    """What rows are made from; see :func:`plan_shapes`."""

    transform: IndexTransform
    grid: ShapedGrid
    dst_stride: Sequence[int]
    max_chunks: int

    def constant(self, o: int, position: int) -> _Rows:
        """One row: the one index of an output dimension."""
        cell, inside, size, extent = self.grid.located(o, np.array([position]))
        zero = np.zeros(1, np.int64)
        return _Rows(None, (o,), [cell], [size], [inside], zero, zero + 1, extent == 1)

    def strided(self, d: int, maps: list[StridedMap]) -> _Rows:
        """The runs of an input dimension."""
        low, n = self.transform.domain.inclusive_min[d], self.transform.domain.shape[d]
        starts = np.array([low], np.int64)
        for o, offset, stride in maps:
            edges = self.grid.inner_edges(o)
            ends = sorted((offset + stride * low, offset + stride * (low + n - 1)))
            crossed = edges.crossed(*ends)
            check_row_count(min(crossed, n), self.max_chunks)
            if crossed >= n:
                # Not all chunks in between are met: those are found by looking at each index.
                every = low + np.arange(n, dtype=np.int64)
                cell = edges.locate(offset + stride * every)[0]
                found = every[1:][cell[1:] != cell[:-1]]
            else:
                begin = edges.beginnings(*ends)
                # ceil((edge - offset) / stride), written with the floor division Python has.
                edge = begin if stride > 0 else begin - 1
                found = -((offset - edge) // stride)
            starts = np.union1d(starts, found)
        count = np.diff(starts, append=low + n)
        extent = np.ones(len(starts), np.int64)
        columns = []
        for o, offset, stride in maps:
            columns.append(self.grid.located(o, offset + stride * starts))
            extent *= columns[-1][3]
        cells, inside, sizes, _ = (list(column) for column in zip(*columns))
        outputs = tuple(o for o, _, _ in maps)
        dst = self.dst_stride[d] * (starts - low)
        return _Rows(d, outputs, cells, sizes, inside, dst, count, count == extent)

    def pointed(self, dims: list[int], outputs: list[int]) -> _Rows:
        """The elements of a set that holds an index array, sorted by cell."""
        domain = self.transform.domain
        extent = [domain.shape[d] for d in dims]
        axes = {}
        dst = np.zeros(extent, np.int64)
        for i, d in enumerate(dims):
            along = [1] * len(dims)
            along[i] = -1
            axes[d] = np.arange(domain.shape[d]).reshape(along)
            dst += self.dst_stride[d] * axes[d]
        columns = []
        for o in outputs:
            map_ = self.transform.output[o]
            index: Any
            if map_.index_array is not None:
                # One axis for each dimension of the set: the array has size 1 along all others.
                index = map_.index_array.reshape([map_.index_array.shape[d] for d in dims])
            else:
                assert map_.input_dimension is not None
                d = map_.input_dimension
                index = domain.inclusive_min[d] + axes[d]
            position = map_.offset + (1 if map_.stride is None else map_.stride) * index
            columns.append(self.grid.located(o, np.broadcast_to(position, extent).ravel()))
        # Innermost chunks of shards of different size may have the same number.
        keys = [key for cell, _, size, _ in columns for key in (cell, size)]
        # Stable, so that the elements of a cell stay in the order of the request.
        order = np.lexsort(keys[::-1])
        changes = np.zeros(len(order), np.bool_)
        changes[:1] = True
        for key in keys:
            changes[1:] |= key[order[1:]] != key[order[:-1]]
        first = np.flatnonzero(changes)
        return _Rows(
            None,
            tuple(outputs),
            [cell[order[first]] for cell, _, _, _ in columns],
            [size[order[first]] for _, _, size, _ in columns],
            [inside[order] for _, inside, _, _ in columns],
            dst.ravel()[order],
            np.ones(len(first), np.int64),
            np.zeros(len(first), np.bool_),
            np.append(first, len(order)),
        )


def plan_shapes(
    transform: IndexTransform,
    *,
    grid: ShapedGrid,
    layout: Callable[[tuple[int, ...]], ShapeLayout],
    dst_stride: Sequence[int],
    key_prefix: str,
    key_separator: str,
    key_rank: int,
    max_chunks: int,
    dense: bool,
) -> list[tuple[tuple[int, ...], ChunkPlan]]:
    """Plan which chunks `transform` touches, one plan a chunk shape.

    Parameters
    ----------
    grid : ShapedGrid
    layout : callable
        How chunks with keys of a shape are stored.
    transform, dst_stride, key_prefix, key_separator, key_rank, max_chunks, dense
        As for :func:`gpustore.planning.chunk_plan.plan_chunks`.

    Returns
    -------
    list of (tuple of int, ChunkPlan)
        Each chunk appears in at most one row of one plan. Its cells count innermost chunks; of
        shards, ``shard * ratio + number in the shard``.

    Raises
    ------
    LimitError
        If more than `max_chunks` chunks are touched.
    """
    input_shape = tuple(transform.domain.shape)
    if 0 in input_shape:
        return []
    planner = _Planner(transform, grid, dst_stride, max_chunks)
    sets = pointed_sets(transform)
    used_by, constant = maps_by_input(transform, {o for _, outputs in sets for o in outputs})
    every = [planner.constant(o, constant_index(map_)) for o, map_ in constant]
    every += [planner.pointed(dims, outputs) for dims, outputs in sets]
    every += [planner.strided(d, maps) for d, maps in used_by.items()]
    every.sort(key=lambda rows: rows.outputs[0])
    check_row_count(math.prod(len(rows.count) for rows in every), max_chunks)
    plans = []
    for combination in itertools.product(*(rows.groups() for rows in every)):
        chunk_shape = [0] * len(grid.shape)
        for rows, (sizes, _) in zip(every, combination):
            for o, size in zip(rows.outputs, sizes):
                chunk_shape[o] = size
        stored = layout(tuple(chunk_shape))
        strides = [0] * len(input_shape)
        for d, maps in used_by.items():
            strides[d] = sum(stored.src_stride[o] * stride for o, _, stride in maps)
        tables = [
            rows.table(some, stored.src_stride) for rows, (_, some) in zip(every, combination)
        ]
        plan = ChunkPlan(
            tuple(tables),
            tuple(strides),
            tuple(dst_stride),
            input_shape,
            key_prefix,
            key_separator,
            stored.key_ratio,
            key_rank,
            dense,
            frozenset(d for dims, _ in sets for d in dims),
        )
        plans.append((tuple(chunk_shape), plan))
    return plans
