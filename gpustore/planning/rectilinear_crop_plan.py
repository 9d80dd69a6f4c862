"""Crops of one shape at many places of an array whose chunks differ in shape.

:func:`plan_shaped_crops` does what :func:`gpustore.planning.crop_plan.plan_crops` does, in columns
over all crops, and sorts the regions by the shape of their chunk first: each chunk shape has a
:class:`~gpustore.planning.copy_plan.CopyPlan` of its own. See docs/design/006-rectilinear.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpustore.index_space import IndexTransform
from gpustore.metadata.chunk_edges import ChunkEdges
from gpustore.planning.connected_set import StridedMap
from gpustore.planning.copy_plan import (
    Block,
    CellColumn,
    CopyColumns,
    CopyPlan,
    Integers,
    numbered,
    plan_copies,
)
from gpustore.planning.crop_plan import check_regions, rows_of, run_columns
from gpustore.planning.rectilinear_plan import ShapedGrid


@dataclass(frozen=True, slots=True)
class _Located:
    """Of each run, along one output dimension: cell, position in the chunk, and size of the chunk
    with a key.
    """

    cell: Integers
    inside: Integers
    size: Integers


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of all crops along one input dimension; see :class:`.crop_plan.CropRuns`."""

    dimension: int
    first: Integers
    offset: Integers
    count: Integers
    located: dict[int, _Located]


def _changes(
    edges: ChunkEdges, start: Integers, size: int, a: int, b: int, most: int
) -> tuple[Integers, Integers]:
    """Crop and offset of each index at which the cell of ``a + b * index`` changes."""
    low, high = a + b * start, a + b * (start + (size - 1))
    first, last = edges.locate(low)[0], edges.locate(high)[0]
    met = np.abs(last - first) + 1
    # Where more chunks are crossed than there are indices, each index is looked at.
    runs = np.minimum(met, size)
    check_regions(int(runs.sum()), most)
    crop = np.repeat(np.arange(len(start)), runs)
    offset = np.arange(len(crop)) - np.repeat(np.cumsum(runs) - runs, runs)
    by_edge = (met[crop] <= size) & (offset > 0)
    step = offset[by_edge]
    cell = first[crop[by_edge]] + (step if b > 0 else 1 - step)
    # ceil((edge - a) / b), written with the floor division Python has; falling, a cell begins at
    # its last element.
    edge = edges.starts(cell) - (0 if b > 0 else 1)
    offset[by_edge] = -((a - edge) // b) - start[crop[by_edge]]
    found = edges.locate(a + b * (start[crop] + offset))[0]
    changed = np.ones(len(crop), np.bool_)
    changed[1:] = (crop[1:] != crop[:-1]) | (found[1:] != found[:-1])
    return crop[changed], offset[changed]


def _runs(
    grid: ShapedGrid, d: int, start: Integers, size: int, maps: Sequence[StridedMap], most: int
) -> _Runs:
    """The runs of the intervals ``[start, start + size)``."""
    changes = [_changes(grid.inner_edges(o), start, size, a, b, most) for o, a, b in maps]
    first, crop, offset, count = run_columns(changes, len(start), size)
    located = {}
    for o, a, b in maps:
        cell, inside, of_chunk, _ = grid.located(o, a + b * (start[crop] + offset))
        located[o] = _Located(cell, inside, of_chunk)
    return _Runs(d, first, offset, count, located)


@dataclass(frozen=True, slots=True)
class _Regions:
    """Some regions of all crops: those of chunks of one shape.

    Attributes
    ----------
    runs : tuple of _Runs
    first : int64 array
        Where the regions of each crop begin, of all shapes.
    numbers : int64 array
        Those of these regions among all.
    constant : dict of int to _Located
        By output dimension that has one index.
    stride : tuple of int
        Bytes between neighbours in a block.
    """

    runs: tuple[_Runs, ...]
    first: Integers
    numbers: Integers
    constant: dict[int, _Located]
    stride: tuple[int, ...]
    extent: tuple[int, ...]
    crop_stride: int
    src_stride: tuple[tuple[int, ...]]
    dst_stride: tuple[tuple[int, ...]]

    def columns(self, regions: Integers) -> CopyColumns:
        """Write down the regions of these numbers."""
        wanted = self.numbers[regions]
        crop = np.searchsorted(self.first, wanted, "right") - 1
        dst = crop * self.crop_stride
        src = np.zeros(len(wanted), np.int64)
        count = np.empty((len(self.extent), len(wanted)), np.int64)
        count[:] = np.array(self.extent, np.int64)[:, None]
        cells: dict[int, Integers] = {}
        for o, one in self.constant.items():
            src += self.stride[o] * one.inside
            cells[o] = np.full(len(wanted), one.cell[0], np.int64)
        left = wanted - self.first[crop]
        for runs, rows in zip(self.runs, rows_of([r.first for r in self.runs], crop, left)):
            dst += self.dst_stride[0][runs.dimension] * runs.offset[rows]
            count[runs.dimension] = runs.count[rows]
            for o, one in runs.located.items():
                src += self.stride[o] * one.inside[rows]
                cells[o] = one.cell[rows]
        return CopyColumns([cells[o] for o in sorted(cells)], src, dst, count)


def plan_shaped_crops(
    transform: IndexTransform,
    starts: Integers,
    extent: tuple[int, ...],
    *,
    grid: ShapedGrid,
    block: Callable[[tuple[int, ...]], Block],
    dst_stride: Sequence[int],
    max_chunks: int,
) -> list[tuple[tuple[int, ...], CopyPlan]]:
    """Plan which regions of which chunks make up the crops, one plan a chunk shape.

    Parameters
    ----------
    grid : ShapedGrid
    block : callable
        The single chunks of a shape; of shards, of the chunks with keys.
    transform, starts, extent, dst_stride, max_chunks
        As for :func:`gpustore.planning.crop_plan.plan_crops`.

    Raises
    ------
    LimitError
        If there are more than `max_chunks` regions.
    """
    if 0 in extent or not len(starts):
        return []
    used_by: dict[int, list[StridedMap]] = {}
    constant: dict[int, _Located] = {}
    for o, map_ in enumerate(transform.output):
        if map_.input_dimension is None or not map_.stride:
            constant[o] = _Located(*grid.located(o, np.array([map_.offset]))[:3])
        else:
            used_by.setdefault(map_.input_dimension, []).append((o, map_.offset, map_.stride))
    count = np.ones(len(starts))
    runs = tuple(
        _runs(grid, d, starts[:, d], extent[d], maps, max_chunks) for d, maps in used_by.items()
    )
    for one in runs:
        count *= np.diff(one.first)  # As floats: 32 dimensions could overflow integers.
    check_regions(int(count.sum()), max_chunks)
    first = np.concatenate([[0], np.cumsum(count.astype(np.int64))])
    regions = int(first[-1])
    crop = np.repeat(np.arange(len(starts)), np.diff(first))
    every = rows_of([one.first for one in runs], crop, np.arange(regions) - first[crop])
    located = dict(constant)
    rows_by_output: dict[int, Integers] = {}
    for one, rows in zip(runs, every):
        located.update(one.located)
        rows_by_output.update(dict.fromkeys(one.located, rows))
    sizes: list[CellColumn] = [(located[o].size, rows) for o, rows in rows_by_output.items()]
    groups, _ = numbered(sizes, regions)
    _, groups = np.unique(groups, return_inverse=True)
    ends = np.cumsum(np.bincount(groups))
    plans = []
    for numbers in np.split(np.argsort(groups, kind="stable"), ends[:-1]):
        at = {o: rows[numbers[0]] for o, rows in rows_by_output.items()}
        chunk_shape = tuple(int(located[o].size[at.get(o, 0)]) for o in range(len(located)))
        chunks = block(chunk_shape)
        strides = [0] * len(extent)
        for d, maps in used_by.items():
            strides[d] = sum(chunks.stride[o] * stride for o, _, stride in maps)
        source = _Regions(
            runs,
            first,
            numbers,
            constant,
            chunks.stride,
            extent,
            dst_stride[0],
            (tuple(strides),),
            (tuple(dst_stride[1:]),),
        )
        cells: list[CellColumn] = []
        for o in range(len(located)):
            rows_ = rows_by_output.get(o)
            cells.append((located[o].cell, None if rows_ is None else rows_[numbers]))
        plans.append((chunk_shape, plan_copies(chunks, source, len(numbers), cells)))
    return plans
