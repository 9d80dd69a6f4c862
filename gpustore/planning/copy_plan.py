"""Copy plans: which chunks are decoded into which block, and which regions copied from it.

A :class:`~gpustore.planning.chunk_plan.ChunkPlan` meets each chunk once. Reads that overlap - many
crops, or the reads of a batch - meet a chunk often. Here chunks are decoded into a *block*, a
buffer for some neighbouring chunks of the grid (often just one), and *regions*, each one part of
one block for one read, are copied from it:

1. :func:`plan_copies` sorts all regions by block, and the chunks they touch alike. Blocks are
   sorted by *unit*, the larger of a block and of what is stored under one key, so that nobody else
   needs a key once a unit is done.
2. :meth:`CopyPlan.windows` writes down some units at a time: a
   :class:`~gpustore.planning.window.PlanWindow` of their chunks, and their regions.

A plan holds 8 bytes a region: its number. A :class:`CopySource` turns numbers into columns: for
crops see :mod:`gpustore.planning.crop_plan`, for a batch of reads :func:`merge_plans`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpustore.planning.block import Block
from gpustore.planning.chunk_grid import Integers
from gpustore.planning.chunk_plan import WINDOW_ROWS, ChunkPlan
from gpustore.planning.row_table import RowTable, split_units
from gpustore.planning.window import PlanWindow

WINDOW_CHUNKS = 4096
WINDOW_REGIONS = 65_536
"""Most chunks and regions in a window, unless one unit alone has more."""

CellColumn = tuple[Integers, Integers | None]
"""Grid indices ``values[rows[i]]``, or ``values[i]`` without rows; one value alone is for all."""


@dataclass(slots=True)
class CopyColumns:
    """Columns of some regions.

    Attributes
    ----------
    cells : list of int64 arrays, one an array dimension
        Grid index of the block.
    src_start, dst_start : int64 array
        First byte of the region in the block, and in the array it goes to.
    count : int64 array of shape (rank, regions)
        Elements of the region along each input dimension.
    target : int64 array or None
        Number of the array each region goes to; None if there is only one.
    """

    cells: list[Integers]
    src_start: Integers
    dst_start: Integers
    count: Integers
    target: Integers | None = None


class CopySource(Protocol):
    """Source of the columns of regions.

    Attributes
    ----------
    src_stride, dst_stride : sequence of tuple of int
        For each target, the bytes between neighbours in a block and in the array; for each input
        dimension.
    """

    @property
    def src_stride(self) -> Sequence[tuple[int, ...]]: ...

    @property
    def dst_stride(self) -> Sequence[tuple[int, ...]]: ...

    def columns(self, regions: Integers) -> CopyColumns:
        """Write down the regions of these numbers."""


@dataclass(slots=True)
class CopyWindow:
    """Columns of some blocks of a plan, all their chunks and all their regions, for one task.

    Attributes
    ----------
    chunks : PlanWindow
        One row a chunk; their destination is the block.
    first_chunk, first : list of int
        Where the chunks and the regions of each group of blocks begin, and where the last one ends.
    src_start, dst_start, count, target
        Columns of the regions; see :class:`CopyColumns`.
    src_stride, dst_stride : sequence of tuple of int
        Bytes between neighbours, for each target; see :class:`CopySource`.
    of_elements : bool
        Whether each region is one element, and so has no dimensions.
    """

    chunks: PlanWindow
    first_chunk: list[int]
    first: list[int]
    src_start: Integers
    dst_start: Integers
    count: Integers
    target: Integers | None
    src_stride: Sequence[tuple[int, ...]]
    dst_stride: Sequence[tuple[int, ...]]
    of_elements: bool = False

    def by_element(self) -> CopyWindow:
        """Make each element a region of its own; for a single target."""
        (src_stride,), (dst_stride,) = self.src_stride, self.dst_stride
        edges = np.array(self.first, np.int64)
        columns = self.src_start, self.dst_start, self.count
        first, src, dst = elements(edges, *columns, src_stride, dst_stride)
        count: Integers = np.empty((0, len(src)), np.int64)
        none: tuple[tuple[int, ...]] = ((),)
        return CopyWindow(
            self.chunks,
            self.first_chunk,
            first.tolist(),
            src,
            dst,
            count,
            None,
            src_stride=none,
            dst_stride=none,
            of_elements=True,
        )


def elements(
    first: Integers,
    src: Integers,
    dst: Integers,
    count: Integers,
    src_stride: Sequence[int],
    dst_stride: Sequence[int],
) -> tuple[Integers, Integers, Integers]:
    """Return the elements of regions one by one.

    Parameters
    ----------
    first : int64 array
        Where the regions of each group begin, and where the last one ends.
    src, dst : int64 array of shape (regions,)
        First byte of each region in its block and in its array.
    count : int64 array of shape (rank, regions)
    src_stride, dst_stride : sequence of int, one a dimension
        Bytes between neighbours.

    Returns
    -------
    first, src, dst
        The same columns of the elements.
    """
    size = np.prod(count, axis=0, dtype=np.int64)
    ends = np.cumsum(size)
    region = np.repeat(np.arange(len(size)), size)
    left = np.arange(len(region)) - np.repeat(ends - size, size)
    src, dst = src[region], dst[region]
    for d in reversed(range(len(src_stride))):
        left, along = np.divmod(left, count[d, region])
        src += src_stride[d] * along
        dst += dst_stride[d] * along
    return np.concatenate([[0], ends])[first], src, dst


@dataclass(frozen=True)
class CopyPlan:
    """Chunks and regions, sorted by unit and, of one unit, by block.

    Attributes
    ----------
    block : Block
    source : CopySource
    order : int64 array
        Numbers of the regions, sorted.
    first : int64 array, length blocks + 1
        Where the regions of each block begin in `order`.
    first_block : int64 array, length units + 1
        Where the blocks of each unit begin in `first`.
    cells : list of int64 arrays, or None
        Grid index of each chunk, sorted; None if each block is one chunk.
    first_chunk : int64 array, length blocks + 1
        Where the chunks of each block begin.
    """

    block: Block
    source: CopySource
    order: Integers
    first: Integers
    first_block: Integers
    cells: list[Integers] | None
    first_chunk: Integers

    def __len__(self) -> int:
        """Number of chunks; each is in exactly one place."""
        return int(self.first_chunk[-1])

    @property
    def shares(self) -> bool:
        """Whether several regions are copied from one chunk, or blocks are of several chunks."""
        return self.cells is not None or len(self) < len(self.order)

    @property
    def units(self) -> int:
        """Number of units, the parts that can be read independently."""
        return len(self.first_block) - 1

    @property
    def objects(self) -> int:
        """Number of keys."""
        ratio, factor = self.block.format.key_ratio, self.block.factor
        if self.cells is None or all(f <= r for f, r in zip(factor, ratio)):
            return self.units  # A unit is all that is stored under one key.
        keys = [cell // r for cell, r in zip(self.cells, ratio)]
        return len(np.unique(np.stack(keys), axis=1).T)

    def spans(self, itemsize: int) -> Counter[tuple[int, bool]]:
        """Count chunks by the span of what is wanted of them, and by whether that is all."""
        found: Counter[tuple[int, bool]] = Counter()
        for window in self.windows(0, 1, 1):
            chunks = window.chunks
            for shape, whole in zip(chunks.rows()[2], chunks.whole):
                low, high = chunks.span(0, shape, itemsize)
                found[high - low, bool(whole)] += 1
        return found

    def region_spans(self, itemsize: int) -> Counter[tuple[int, bool]]:
        """Count chunks by the bytes from the first element of their regions to the last."""
        found: Counter[tuple[int, bool]] = Counter()
        for lo, hi in self._unit_windows(0, self.units, self.units):
            taken, first = self._taken(lo, hi)
            low, high = self._reach(taken)
            span = np.maximum.reduceat(high, first[:-1]) - np.minimum.reduceat(low, first[:-1])
            found.update((int(one) + itemsize, False) for one in span)
        return found

    def tables(self, parts: int, unit_rows: int) -> Iterator[RowTable]:
        """Write down all chunks and regions as row tables; blocks are single chunks.

        Parameters
        ----------
        parts : int
            Number of threads that will share a table; rows of one key are several units if there
            are fewer keys.
        unit_rows : int
            Most rows of a unit, during which nobody asks whether they are still wanted.
        """
        for lo, hi in self._unit_windows(0, self.units, self.units):
            taken, first = self._taken(lo, hi)
            begin, end = np.searchsorted(self.first_block, (lo, hi))
            keys = (self.first_block[begin : end + 1] - lo).tolist()
            edges = split_units(keys, parts, unit_rows)
            columns = [np.array(edges), *[cell[first[:-1]] for cell in taken.cells], first]
            columns += [taken.src_start, taken.dst_start, taken.count.ravel()]
            columns += [] if taken.target is None else [taken.target]
            yield RowTable(
                np.concatenate(columns),
                units=len(edges) - 1,
                rows=hi - lo,
                regions=len(taken.src_start),
                rank=len(taken.cells),
                input_rank=len(taken.count),
                index=(lo,),
                has_first=True,
                has_target=taken.target is not None,
            )

    def rows_of(self, table: RowTable, rows: Sequence[int]) -> Iterator[tuple[int, PlanWindow]]:
        """Write down the regions of some rows of a table, with the number of their array."""
        for row in rows:
            lo = table.index[0] + row
            taken, first = self._taken(lo, lo + 1)
            n = int(first[-1])
            target = np.zeros(n, np.int64) if taken.target is None else taken.target
            key = self.block.format.keys([cell[:1] for cell in taken.cells], 1)
            for number in np.unique(target).tolist():
                some = np.flatnonzero(target == number)
                yield (
                    number,
                    PlanWindow(
                        cells=tuple([cell[some].tolist() for cell in taken.cells]),
                        src_start=taken.src_start[some].tolist(),
                        dst_start=taken.dst_start[some].tolist(),
                        count=tuple(taken.count[:, some].tolist()),
                        whole=[False] * len(some),
                        src_stride=self.source.src_stride[number],
                        dst_stride=self.source.dst_stride[number],
                        keys=key * len(some),
                    ),
                )

    def _unit_windows(
        self, lo: int, hi: int, most_units: int, most_chunks: int = WINDOW_ROWS
    ) -> Iterator[tuple[int, int]]:
        """Split units `lo` to `hi` into windows; yield the blocks of each."""
        first_chunk = self.first_chunk[self.first_block]
        first_region = self.first[self.first_block]
        while lo < hi:
            most = min(
                int(np.searchsorted(first_chunk, first_chunk[lo] + most_chunks, "right")),
                int(np.searchsorted(first_region, first_region[lo] + WINDOW_REGIONS, "right")),
            )
            end = min(max(most - 1, lo + 1), hi, lo + most_units)
            yield int(self.first_block[lo]), int(self.first_block[end])
            lo = end

    def _taken(self, lo: int, hi: int) -> tuple[CopyColumns, Integers]:
        """Write down the regions of blocks `lo` to `hi`, and where those of each block begin."""
        regions = self.order[self.first[lo] : self.first[hi]]
        return self.source.columns(regions), self.first[lo : hi + 1] - self.first[lo]

    def windows(
        self, part: int, parts: int, slots: int, *, most_units: int | None = None
    ) -> Iterator[CopyWindow]:
        """Write down one of `parts` parts of the plan; no key is in two windows.

        `slots` blocks lie one after the other in memory, and are decoded and copied from together.
        A window has at most `most_units` units.
        """
        lo, hi = (self.units * i // parts for i in (part, part + 1))
        for begin, end in self._unit_windows(lo, hi, most_units or self.units, WINDOW_CHUNKS):
            yield self._window(begin, end, slots)

    def _window(self, lo: int, hi: int, slots: int) -> CopyWindow:
        """Write down blocks `lo` to `hi`."""
        source = self.source
        taken, first = self._taken(lo, hi)
        first_chunk = self.first_chunk[lo : hi + 1] - self.first_chunk[lo]
        rows = slice(self.first_chunk[lo], self.first_chunk[hi])
        chunks = self._chunks(taken, first[:-1], rows)
        if slots > 1:
            slot = np.arange(hi - lo) % slots * self.block.nbytes
            taken.src_start += np.repeat(slot, np.diff(first))
            moved = np.array(chunks.dst_start) + np.repeat(slot, np.diff(first_chunk))
            chunks.dst_start = moved.tolist()
        ends = np.append(np.arange(0, hi - lo, slots), hi - lo)
        return CopyWindow(
            chunks,
            first_chunk[ends].tolist(),
            first[ends].tolist(),
            taken.src_start,
            taken.dst_start,
            taken.count,
            taken.target,
            source.src_stride,
            source.dst_stride,
        )

    def _chunks(self, taken: CopyColumns, first: Integers, rows: slice) -> PlanWindow:
        """Write down the chunks `rows`; of single chunks only what their regions need."""
        block = self.block
        if self.cells is None:
            cells = [column[first] for column in taken.cells]
            if block.partial:
                return block.chunks(cells, *self._box(taken, first))
        else:
            cells = [column[rows] for column in self.cells]
        low = [np.zeros_like(cell) for cell in cells]
        high = [block.inside(o, cell) for o, cell in enumerate(cells)]
        return block.chunks(cells, low, high)

    def _box(self, taken: CopyColumns, first: Integers) -> tuple[list[Integers], list[Integers]]:
        """Find the smallest box of each single chunk that holds all its regions."""
        # Strides are those of some order: the first byte of a region is that of the lowest corner.
        low, high = self._reach(taken)
        stride, shape = self.block.stride, self.block.block_shape
        lows, highs = [first] * len(stride), [first] * len(stride)
        for o in sorted(range(len(stride)), key=lambda o: (stride[o], shape[o]), reverse=True):
            at, low = np.divmod(low, stride[o])
            end, high = np.divmod(high, stride[o])
            lows[o] = np.minimum.reduceat(at, first)
            highs[o] = np.maximum.reduceat(end, first) + 1
        return lows, highs

    def _reach(self, taken: CopyColumns) -> tuple[Integers, Integers]:
        """Return the first byte of each region in its block, and that of its last element."""
        strides = np.array(self.source.src_stride, np.int64)
        reach = strides[[0] if taken.target is None else taken.target].T * (taken.count - 1)
        low: Integers = taken.src_start + np.minimum(reach, 0).sum(axis=0)
        high: Integers = taken.src_start + np.maximum(reach, 0).sum(axis=0)
        return low, high


def plan_copies(
    block: Block,
    source: CopySource,
    regions: int,
    cells: Sequence[CellColumn],
    touched: tuple[int, Sequence[CellColumn]] | None = None,
) -> CopyPlan:
    """Sort regions by block.

    Parameters
    ----------
    block : Block
    source : CopySource
    regions : int
        Number of regions.
    cells : sequence of CellColumn, one an array dimension
        Grid index of the block of each region.
    touched : number, sequence of CellColumn, optional
        Grid indices of all chunks needed, with repetitions; only if blocks are not single chunks.
    """
    # Blocks or keys along each dimension in one unit, whichever is larger.
    in_unit = [max(1, ratio // f) for ratio, f in zip(block.format.key_ratio, block.factor)]
    unit, unit_extent = numbered(_coarser(cells, in_unit), regions)
    ids, extent = unit, unit_extent
    several = any(ratio != 1 for ratio in in_unit)
    if several:
        inner, _ = numbered(cells, regions)
        ids, extent = numbered([(unit, None), (inner, None)], regions)
    order = _argsort(ids, extent)
    first = _edges(ids[order])
    first_block = _edges(unit[order[first[:-1]]]) if several else np.arange(len(first))
    if touched is None:
        return CopyPlan(block, source, order, first, first_block, None, np.arange(len(first)))
    count, columns = touched
    blocks = _coarser(columns, block.factor)
    chunk_unit, _ = numbered(_coarser(blocks, in_unit), count)
    chunk_block, _ = numbered(blocks, count)
    chunk_cell, _ = numbered(columns, count)
    by_block, _ = numbered([(chunk_unit, None), (chunk_block, None)], count)
    by_chunk, extent = numbered([(by_block, None), (chunk_cell, None)], count)
    sorted_ = _argsort(by_chunk, extent)
    once = sorted_[_edges(by_chunk[sorted_])[:-1]]
    written = [
        np.broadcast_to(values, count)[once] if rows is None else values[rows[once]]
        for values, rows in columns
    ]
    first_chunk = _edges(by_block[once])
    return CopyPlan(block, source, order, first, first_block, written, first_chunk)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Source of the rows of several plans."""

    rows: CopyColumns
    src_stride: list[tuple[int, ...]]
    dst_stride: list[tuple[int, ...]]

    def columns(self, regions: Integers) -> CopyColumns:
        """Write down the rows of these numbers."""
        rows = self.rows
        return CopyColumns(
            [cell[regions] for cell in rows.cells],
            rows.src_start[regions],
            rows.dst_start[regions],
            rows.count[:, regions],
            None if rows.target is None else rows.target[regions],
        )


def merge_plans(plans: Sequence[ChunkPlan], block: Block, targets: Sequence[int]) -> CopyPlan:
    """Merge plans of several reads, so that each chunk is met once.

    Parameters
    ----------
    plans : sequence of ChunkPlan
        Plans without index arrays; strides of their chunks are those of `block`.
    block : Block
        Block of a single chunk each.
    targets : sequence of int
        Number of the array that each plan fills.
    """
    rank = max(len(plan.input_shape) for plan in plans)
    windows = [
        plan.window(lo, min(lo + WINDOW_ROWS, len(plan)))
        for plan in plans
        for lo in range(0, len(plan), WINDOW_ROWS)
    ]

    def column(parts: Iterable[Any]) -> Integers:
        return np.concatenate([np.asarray(part, np.int64) for part in parts])

    # Shapes and strides are padded to the largest rank.
    count = [
        column(one.count[d] if d < len(one.count) else [1] * len(one) for one in windows)
        for d in range(rank)
    ]
    target = np.repeat(np.array(targets, np.int64), [len(plan) for plan in plans])
    rows = CopyColumns(
        [column(one.cells[o] for one in windows) for o in range(len(block.chunk_shape))],
        column(one.src_start for one in windows),
        column(one.dst_start for one in windows),
        np.array(count, np.int64).reshape(rank, len(target)),
        target,
    )
    # Arrays that no plan fills have no regions either.
    of_target = [plans[0]] * (max(targets) + 1)
    for number, plan in zip(targets, plans):
        of_target[number] = plan
    source = _Rows(
        rows,
        [_padded(plan.src_stride, rank) for plan in of_target],
        [_padded(plan.dst_stride, rank) for plan in of_target],
    )
    return plan_copies(block, source, len(target), [(cells, None) for cells in rows.cells])


def _padded(strides: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return strides + (0,) * (rank - len(strides))


def _coarser(columns: Sequence[CellColumn], ratios: Sequence[int]) -> list[CellColumn]:
    return [(values // ratio, rows) for (values, rows), ratio in zip(columns, ratios)]


def _argsort(ids: Integers, extent: int) -> Integers:
    # NumPy sorts 16-bit integers by radix, several times faster.
    return np.argsort(ids.astype(np.uint16) if extent <= 1 << 16 else ids, kind="stable")


def _edges(ordered: Integers) -> Integers:
    """Return where each run of equal values begins, and the end."""
    changes = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    ends = [len(ordered)] if len(ordered) else []
    return np.concatenate([np.zeros(1, np.int64), changes, np.array(ends, np.int64)])


def numbered(columns: Sequence[CellColumn], count: int) -> tuple[Integers, int]:
    """Number `count` rows in their order; also return how many numbers there may be."""
    numbers = np.zeros(count, np.int64)
    size = 1
    for values, rows in columns if count else ():
        low = int(values.min())
        extent = int(values.max()) - low + 1
        ranks = values - low
        if size * extent >= 1 << 62:
            # A grid of astronomic size: only the cells that occur are counted.
            found, numbers = np.unique(numbers, return_inverse=True)
            size = len(found)
            found, ranks = np.unique(values, return_inverse=True)
            extent = len(found)
        numbers *= extent
        numbers += ranks if rows is None else ranks[rows]
        size *= extent
    return numbers, size
