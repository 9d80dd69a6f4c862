"""Crops of one shape at many places, planned together.

:func:`plan_crops` finds the regions of all crops without a Python object for any of them:

1. Along each input dimension of the view, interval arithmetic gives the runs of each crop during
   which no cell index changes, as columns over all crops.
2. The regions of a crop are the product of its runs. They are numbered crop by crop, and only
   their numbers are kept.
3. Where chunks differ in size the numbers are grouped by the shape of their chunk.
4. :func:`gpustore.planning.copy_plan.plan_copies` sorts the numbers by chunk; a window turns
   some of them back into columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.errors import LimitError, MismatchError, OutOfBoundsError, UnsupportedError
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.planning.block import Block
from gpustore.planning.chunk_grid import ChunkGrid, Integers
from gpustore.planning.chunk_plan import check_bounds
from gpustore.planning.connected_set import maps_by_input
from gpustore.planning.copy_plan import (
    CellColumn,
    CopyColumns,
    CopyPlan,
    numbered,
    plan_copies,
)

REGION_NS = 5000
"""Nanoseconds a region takes apart from its bytes: Python, short rows, threads that meet."""

COPY_NS = 0.1
"""Nanoseconds it takes to copy a byte from a decoded chunk to its block."""

SHORT = 0.25
"""Blocks do not grow along dimensions where crops are less than this part of them."""


def crop_shape(shape: Any, rank: int) -> tuple[int, ...]:
    """Check the shape of a crop.

    Raises
    ------
    TypeError, MismatchError
        If it is not `rank` integers, none of them negative.
    """
    try:
        extent = tuple(size.__index__() for size in shape)
    except (TypeError, AttributeError):
        raise TypeError(
            f"read_many: expected shape to be {rank} integers, but received: {shape!r:.200}"
        ) from None
    if len(extent) != rank or any(size < 0 for size in extent):
        raise MismatchError(
            f"read_many: expected shape to be {rank} sizes of at least 0, one a dimension of the "
            f"store, but received: {list(extent)}"
        )
    return extent


def check_starts(
    transform: IndexTransform, starts: Any, extent: Sequence[int], shape: Sequence[int]
) -> Integers:
    """Check the first index of each crop against all bounds.

    Parameters
    ----------
    transform : IndexTransform
        Maps the domain of the starts to the array.
    starts : array-like of integers, shape (crops, input_rank)
    extent : sequence of int, length input_rank
        Shape of a crop.
    shape : sequence of int, length output_rank
        Shape of the array, in elements.

    Returns
    -------
    int64 array of shape (crops, input_rank)

    Raises
    ------
    OutOfBoundsError
        If a crop leaves the domain or the array; names the row.
    TypeError, MismatchError
        If `starts` are not integers, or not of that shape.
    UnsupportedError
        If the transform has index arrays.
    """
    domain = transform.domain
    for o, map_ in enumerate(transform.output):
        if map_.index_array is not None:
            raise UnsupportedError(
                f"read_many: output dimension {o} of the store is selected by an index array; call "
                f"read_many on the store before it was indexed so, or index what it reads"
            )
    found = np.asarray(starts)
    if found.size == 0 and found.ndim == 1:
        found = np.empty((0, domain.rank), np.int64)
    if found.dtype.kind not in "iu":
        raise TypeError(
            f"read_many: expected starts to be integers of at most 64 bits, but received an array "
            f"of {found.dtype}"
        )
    if found.ndim != 2 or found.shape[1] != domain.rank:
        raise MismatchError(
            f"read_many: expected starts of shape (n, {domain.rank}), one row a crop and one "
            f"column a dimension of the store, but received shape {found.shape}"
        )
    for d, (low, high) in enumerate(_valid(transform, shape, empty=0 in extent or not len(found))):
        column, size = found[:, d], extent[d]
        # `high - size` may be below any 64-bit integer's range, never above.
        wrong = column < low
        wrong |= (column > high - size) if high - size >= low else True
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            start = int(column[row])
            raise OutOfBoundsError(
                f"read_many: Slice interval [{start}, {start + size}) of dimension {d}, from row "
                f"{row} of starts, is not contained within domain [{low}, {high})"
            )
    return found.astype(np.int64)


def _valid(
    transform: IndexTransform, shape: Sequence[int], *, empty: bool
) -> list[tuple[int, int]]:
    """Return the range of each input dimension that is inside the domain and inside the array."""
    domain = transform.domain
    bounds = [
        (-(1 << 62) if soft_low else low, 1 << 62 if soft_high else high)
        for low, high, soft_low, soft_high in zip(
            domain.inclusive_min,
            domain.exclusive_max,
            domain.implicit_lower_bounds,
            domain.implicit_upper_bounds,
        )
    ]
    for o, size in enumerate(shape):
        map_ = transform.output[o]
        d, stride = map_.input_dimension, map_.stride
        if d is None or not stride:
            if not empty:
                check_bounds(_constant(transform, o), [size])
            continue
        # 0 <= offset + stride * i < size, solved for i.
        ends = (-map_.offset, size - 1 - map_.offset)
        low, high = ends if stride > 0 else ends[::-1]
        first, last = -(-low // stride), high // stride
        bounds[d] = max(bounds[d][0], first), min(bounds[d][1], last + 1)
    return bounds


def _constant(transform: IndexTransform, o: int) -> IndexTransform:
    """Make the transform of rank 0 to the one index of output dimension `o`."""
    return IndexTransform(IndexDomain(shape=()), [transform.output[o]])


@dataclass(frozen=True, slots=True)
class _Crops:
    """Regions of all crops, by number: crop by crop, each the product of its runs.

    Attributes
    ----------
    runs : dict of int to (first, offset, count)
        By input dimension the runs of all crops as int64 columns: where those of each crop begin
        and the last end, their first indices from the start of their crop, and their elements.
    located : dict of int to (cell, inside, size)
        By output dimension what :meth:`ChunkGrid.locate` finds of the beginnings of the runs of
        its input dimension, or of its one index.
    dimension : list of int or None
        Input dimension of each output dimension.
    first : int64 array, length crops + 1
        Where the regions of each crop begin.
    """

    runs: dict[int, tuple[Integers, Integers, Integers]]
    located: dict[int, tuple[Integers, Integers, Any]]
    dimension: list[int | None]
    first: Integers

    def __len__(self) -> int:
        """Number of regions."""
        return int(self.first[-1])

    def rows(self, crop: Integers, left: Integers) -> dict[int | None, Integers]:
        """Return the run of the region `left` of each `crop`, by input dimension."""
        found: dict[int | None, Integers] = {}
        for d, (first, _, _) in reversed(self.runs.items()):
            left, along = np.divmod(left, first[crop + 1] - first[crop])
            found[d] = first[crop] + along
        return found

    def columns(self) -> tuple[list[CellColumn], list[CellColumn]]:
        """Return cells and chunk sizes of all regions along each array dimension."""
        crop = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        rows = self.rows(crop, np.arange(len(self)) - self.first[crop])
        cells: list[CellColumn] = []
        sizes: list[CellColumn] = []
        for o, d in enumerate(self.dimension):
            cell, _, size = self.located[o]
            cells.append((cell, rows.get(d)))
            fixed = isinstance(size, int)
            sizes.append((np.array([size]), None) if fixed else (size, rows.get(d)))
        return cells, sizes


def _crops(
    transform: IndexTransform,
    starts: Integers,
    extent: Sequence[int],
    grid: ChunkGrid,
    max_chunks: int,
) -> _Crops:
    """Find the regions of crops that are not empty."""

    def check(regions: int) -> None:
        check_regions(regions, max_chunks)

    used_by, constant = maps_by_input(transform)
    # Refused before it is built: the runs of one dimension alone could fill the memory.
    fewest = [grid.fewest_runs(extent[d], maps) for d, maps in used_by.items()]
    check(len(starts) * math.prod(fewest))
    dimension: list[int | None] = [None] * len(transform.output)
    located = {o: grid.locate(o, np.array([map_.offset])) for o, map_ in constant}
    runs = {}
    regions: NDArray[Any] = np.ones(len(starts))
    for d, maps in used_by.items():
        first, crop, offset, count = grid.runs(starts[:, d], extent[d], maps, check)
        runs[d] = first, offset, count
        index = starts[crop, d] + offset
        for o, a, b in maps:
            located[o] = grid.locate(o, a + b * index)
            dimension[o] = d
        regions *= np.diff(first)  # As floats: 32 dimensions could overflow integers.
    check(int(regions.sum()))
    ends = np.cumsum(regions.astype(np.int64))
    return _Crops(runs, located, dimension, np.concatenate([[0], ends]))


class _Regions:
    """Source of the regions of crops that are copied from blocks of one shape.

    Parameters
    ----------
    crops : _Crops
    numbers : int64 array, or None
        Numbers of these regions among all; None for all.
    stride : tuple of int, one an array dimension
        Bytes between neighbours in a block.
    transform, extent, dst_stride
        Parameters of :func:`plan_crops`.
    targets : int or None
        Number of arrays, if each crop has one.
    """

    def __init__(
        self,
        crops: _Crops,
        numbers: Integers | None,
        stride: Sequence[int],
        transform: IndexTransform,
        extent: Sequence[int],
        dst_stride: Sequence[int],
        targets: int | None,
    ) -> None:
        self._crops = crops
        self._numbers = numbers
        self._extent = np.array(extent, np.int64)[:, None]
        self._crop_stride = dst_stride[0]
        self._separate = targets is not None
        self._src_start: dict[int | None, Integers] = {}
        strides = [0] * len(extent)
        for o, (_, inside, _) in crops.located.items():
            d = crops.dimension[o]
            self._src_start[d] = self._src_start.get(d, 0) + stride[o] * inside
            if d is not None:
                strides[d] += stride[o] * (transform.output[o].stride or 0)
        self.src_stride = (tuple(strides),) * (targets or 1)
        self.dst_stride = (tuple(dst_stride[1:]),) * (targets or 1)

    def columns(self, regions: Integers) -> CopyColumns:
        """Write down the regions of these numbers."""
        crops = self._crops
        numbers = regions if self._numbers is None else self._numbers[regions]
        crop = np.searchsorted(crops.first, numbers, "right") - 1
        rows = crops.rows(crop, numbers - crops.first[crop])
        rows[None] = np.zeros(len(numbers), np.int64)
        src = np.zeros(len(numbers), np.int64)
        for d, column in self._src_start.items():
            src += column[rows[d]]
        dst = crop * self._crop_stride
        count = np.empty((len(self._extent), len(numbers)), np.int64)
        count[:] = self._extent
        for d, (_, offset, elements) in crops.runs.items():
            dst += self.dst_stride[0][d] * offset[rows[d]]
            count[d] = elements[rows[d]]
        cells = [crops.located[o][0][rows[d]] for o, d in enumerate(crops.dimension)]
        return CopyColumns(cells, src, dst, count, crop if self._separate else None)


def plan_crops(
    transform: IndexTransform,
    starts: Integers,
    extent: tuple[int, ...],
    *,
    grid: ChunkGrid,
    block_of: Callable[[tuple[int, ...]], Block],
    dst_stride: Sequence[int],
    max_chunks: int,
    block_nbytes: int,
    separate: bool = False,
) -> list[tuple[tuple[int, ...], CopyPlan]]:
    """Plan which regions of which chunks make up the crops, one plan a chunk shape.

    Parameters
    ----------
    transform : IndexTransform
        Maps the domain of `starts` to the chunked array; without index arrays.
    starts : int64 array of shape (crops, input_rank)
        First index of each crop, as :func:`check_starts` returns it.
    extent : tuple of int, length input_rank
        Shape of a crop.
    grid : ChunkGrid
        Edges of the chunks of the chunked array.
    block_of : callable
        Returns the block of one chunk, from the shape of chunks with keys; larger blocks are made
        of it if they are cheaper.
    dst_stride : sequence of int, length 1 + input_rank
        Bytes between neighbours in the array of all crops; first between crops, 0 if each has an
        array.
    max_chunks : int
        Limit ``chunks_per_request``.
    block_nbytes : int
        The most bytes a block of several chunks may have.
    separate : bool
        Whether each crop goes to an array of its own, its number being that of the crop.

    Returns
    -------
    list of (tuple of int, CopyPlan)
        Plans with the shapes of their chunks with keys; empty if the crops are.

    Raises
    ------
    LimitError
        If there are more than `max_chunks` regions.
    """
    if 0 in extent or not len(starts):
        return []
    targets = len(starts) if separate else None
    crops = _crops(transform, starts, extent, grid, max_chunks)
    cells, sizes = crops.columns()

    def source(of: _Crops, numbers: Integers | None, block: Block) -> _Regions:
        return _Regions(of, numbers, block.stride, transform, extent, dst_stride, targets)

    if all(isinstance(edges, int) for edges in grid.edges):
        groups: list[Integers | None] = [None]
    else:
        _, group = np.unique(numbered(sizes, len(crops))[0], return_inverse=True)
        ends = np.cumsum(np.bincount(group))
        groups = list(np.split(np.argsort(group, kind="stable"), ends[:-1]))
    plans = []
    for numbers in groups:
        at = 0 if numbers is None else numbers[0]
        shape = tuple([int(size[0 if rows is None else rows[at]]) for size, rows in sizes])
        block = larger = block_of(shape)
        if block.shape is not None and block.buffered:
            larger = _larger(block, transform, extent, len(starts), len(crops), block_nbytes)
        if larger is not block:
            blocks = ChunkGrid(grid.shape, larger.block_shape)
            few = _crops(transform, starts, extent, blocks, max_chunks)
            copied = source(few, None, larger)
            plan = plan_copies(larger, copied, len(few), few.columns()[0], (len(crops), cells))
        elif numbers is None:
            plan = plan_copies(block, source(crops, None, block), len(crops), cells)
        else:
            own = [(cell, rows if rows is None else rows[numbers]) for cell, rows in cells]
            plan = plan_copies(block, source(crops, numbers, block), len(numbers), own)
        plans.append((shape, plan))
    return plans


def _larger(
    block: Block,
    transform: IndexTransform,
    extent: Sequence[int],
    crops: int,
    regions: int,
    most_nbytes: int,
) -> Block:
    """Choose the block that makes copies cheapest: fewer, longer regions for one more copy.

    It grows along the dimension in which crops are longest, measured in blocks.
    """
    assert block.shape is not None
    chunk_nbytes = math.prod(block.chunk_shape) * block.itemsize
    chunks = math.prod(-(-n // size) for n, size in zip(block.shape, block.chunk_shape))
    reach = [
        1
        if map_.input_dimension is None
        else (extent[map_.input_dimension] - 1) * abs(map_.stride or 0) + 1
        for map_ in transform.output
    ]
    # Every region is in a chunk, so this is at most the number of chunks that are copied.
    copied_ns = min(chunks, regions) * chunk_nbytes * COPY_NS
    best, best_ns = block, float(regions * REGION_NS)
    grown = block
    while True:
        lengths = [(n - 1) / size for n, size in zip(reach, grown.block_shape)]
        o = max(range(len(lengths)), key=lambda o: (lengths[o], o), default=0)
        if not lengths or lengths[o] < SHORT:
            return best
        factor = list(grown.factor)
        factor[o] = _next_factor(factor[o], block.format.key_ratio[o])
        if math.prod(factor) * chunk_nbytes > most_nbytes:
            return best
        grown = replace(block, factor=tuple(factor))
        shape = grown.block_shape
        cost = crops * math.prod(1 + (n - 1) / size for n, size in zip(reach, shape)) * REGION_NS
        if cost + copied_ns < best_ns:
            best, best_ns = grown, cost + copied_ns


def _next_factor(factor: int, ratio: int) -> int:
    """Return the next larger factor that divides the chunks of a key, or is a multiple of them."""
    if factor >= ratio:
        return 2 * factor
    return next(f for f in range(factor + 1, ratio + 1) if ratio % f == 0)


def check_regions(regions: int, most: int) -> None:
    """Raise LimitError if there are more regions of chunks than ``chunks_per_request``."""
    if regions > most:
        raise LimitError(
            f"A read of {regions} regions of chunks exceeds the limit chunks_per_request of "
            f"{most}; read fewer crops at a time, or raise it with "
            f"Context({{'limits': {{'chunks_per_request': {regions}}}}})"
        )
