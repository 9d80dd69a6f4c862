"""Crops of one shape at many places, planned together.

:func:`plan_crops` finds the regions of all crops without a Python object for any of them:

1. Along each input dimension of the view, interval arithmetic gives the runs of each crop during
   which no cell index changes, as columns over all crops (:class:`CropRuns`).
2. The regions of a crop are the product of its runs. They are numbered crop by crop, and only
   their numbers are kept.
3. :func:`gpustore.planning.copy_plan.plan_copies` sorts the numbers by chunk; a window turns
   some of them back into columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.errors import LimitError, MismatchError, OutOfBoundsError, UnsupportedError
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.planning.chunk_plan import check_bounds
from gpustore.planning.connected_set import StridedMap, fewest_runs
from gpustore.planning.copy_plan import (
    Block,
    CellColumn,
    CopyColumns,
    CopyPlan,
    Integers,
    plan_copies,
)

REGION_NS = 5000
"""Nanoseconds a region takes apart from its bytes: Python, short rows, threads that meet."""

COPY_NS = 0.1
"""Nanoseconds it takes to copy a byte from a decoded chunk to its block."""

SHORT = 0.25
"""Blocks do not grow along dimensions where crops are less than this part of them."""


def crop_shape(shape: Any, rank: int) -> tuple[int, ...]:
    """The shape of a crop, checked.

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
    """The first index of each crop, checked against all bounds.

    Parameters
    ----------
    transform : IndexTransform
        From the domain the starts are of to the array.
    starts : array-like of integers, shape (crops, input_rank)
    extent : sequence of int, length input_rank
        Shape of a crop.
    shape : sequence of int, length output_rank
        Of the array.

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
                f"read_many on the store before it was indexed so, or read the store and cut it"
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
    """The indices of each input dimension that are inside the domain and inside the array."""
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
    """The transform of rank 0 to the one index of output dimension `o`."""
    return IndexTransform(IndexDomain(shape=()), [transform.output[o]])


@dataclass(frozen=True, slots=True)
class CropRuns:
    """The runs of all crops along one input dimension.

    Attributes
    ----------
    dimension : int
        The input dimension.
    first : int64 array, length crops + 1
        Where the runs of each crop begin in the columns below.
    offset, count : int64 array
        First index of a run, counted from the start of its crop, and its elements.
    cells : dict of int to int64 array
        By output dimension, the grid index during the run.
    src_start : int64 array
        Bytes it adds to the start in the decoded chunk.
    """

    dimension: int
    first: Integers
    offset: Integers
    count: Integers
    cells: dict[int, Integers]
    src_start: Integers


def _crop_runs(
    d: int,
    start: Integers,
    size: int,
    maps: Sequence[StridedMap],
    chunk_shape: Sequence[int],
    src_stride: Sequence[int],
) -> CropRuns:
    """The runs of the intervals ``[start, start + size)``."""
    changes = [_run_offsets(start, size, a, b, chunk_shape[o]) for o, a, b in maps]
    first, crop, offset, count = run_columns(changes, len(start), size)
    src = np.zeros(len(crop), np.int64)
    cells = {}
    for o, a, b in maps:
        position = a + b * (start[crop] + offset)
        cells[o], inside = np.divmod(position, chunk_shape[o])
        src += src_stride[o] * inside
    return CropRuns(d, first, offset, count, cells, src)


def run_columns(
    changes: Sequence[tuple[Integers, Integers]], crops: int, size: int
) -> tuple[Integers, Integers, Integers, Integers]:
    """The runs of crops along one dimension, none of which crosses a change of cell.

    Parameters
    ----------
    changes : sequence of two int64 arrays
        For each output dimension that depends on it, crop and offset of each change, the beginning
        of each crop included.
    crops, size : int
        How many crops there are, and their extent.

    Returns
    -------
    first : int64 array, length crops + 1
        Where the runs of each crop begin in the columns below.
    crop, offset, count : int64 array
        Crop of a run, its first index from the start of that, and its elements.
    """
    crop, offset = changes[0]
    if len(changes) > 1:
        # A diagonal: a run ends where any of the outputs changes its cell.
        codes = np.unique(np.concatenate([crop * size + offset for crop, offset in changes]))
        crop, offset = np.divmod(codes, size)
    first = np.searchsorted(crop, np.arange(crops + 1))
    end = np.append(offset[1:], size)
    end[first[1:] - 1] = size
    return first, crop, offset, end - offset


def _run_offsets(
    start: Integers, size: int, a: int, b: int, chunk: int
) -> tuple[Integers, Integers]:
    """Crop and offset of each index at which the cell of ``a + b * index`` changes."""
    n = len(start)
    if abs(b) >= chunk:
        return np.repeat(np.arange(n), size), np.tile(np.arange(size), n)
    first = (a + b * start) // chunk
    last = (a + b * (start + (size - 1))) // chunk
    counts = np.abs(last - first) + 1
    crop = np.repeat(np.arange(n), counts)
    step = np.arange(len(crop)) - np.repeat(np.cumsum(counts) - counts, counts)
    # Cell c begins at the first index whose position reaches (rising) or falls to (falling) its
    # edge: ceil((edge - a) / b), written with the floor division Python has.
    edge = (first[crop] + (step if b > 0 else -step)) * chunk + (0 if b > 0 else chunk - 1)
    offset = -((a - edge) // b) - start[crop]
    offset[step == 0] = 0
    return crop, offset


def rows_of(firsts: Sequence[Integers], crop: Integers, left: Integers) -> list[Integers]:
    """The runs that make up regions, along each dimension.

    Parameters
    ----------
    firsts : sequence of int64 arrays
        Of each dimension, where the runs of each crop begin.
    crop, left : int64 array
        The crop of each region, and its number among the regions of that.
    """
    found = []
    for runs in reversed(firsts):
        first = runs[crop]
        left, along = np.divmod(left, runs[crop + 1] - first)
        found.append(first + along)
    return found[::-1]


@dataclass(frozen=True, slots=True)
class _Crops:
    """The regions of all crops, by number: crop by crop, each the product of its runs."""

    runs: tuple[CropRuns, ...]
    first: Integers
    constant_cells: dict[int, int]
    constant_src: int
    extent: tuple[int, ...]
    crop_stride: int
    src_stride: tuple[tuple[int, ...], ...]
    dst_stride: tuple[tuple[int, ...], ...]

    def rows(self, crop: Integers, left: Integers) -> list[Integers]:
        """For each dimension with runs, the run of the region `left` of `crop`."""
        return rows_of([runs.first for runs in self.runs], crop, left)

    def columns(self, regions: Integers) -> CopyColumns:
        """Write down the regions of these numbers."""
        crop = np.searchsorted(self.first, regions, "right") - 1
        src = np.full(len(regions), self.constant_src, np.int64)
        dst = crop * self.crop_stride
        count = np.empty((len(self.extent), len(regions)), np.int64)
        count[:] = np.array(self.extent, np.int64)[:, None]
        cells: dict[int, Integers] = {
            o: np.full(len(regions), cell, np.int64) for o, cell in self.constant_cells.items()
        }
        for runs, rows in zip(self.runs, self.rows(crop, regions - self.first[crop])):
            src += runs.src_start[rows]
            dst += self.dst_stride[0][runs.dimension] * runs.offset[rows]
            count[runs.dimension] = runs.count[rows]
            for o, column in runs.cells.items():
                cells[o] = column[rows]
        target = crop if len(self.src_stride) > 1 else None
        return CopyColumns([cells[o] for o in sorted(cells)], src, dst, count, target)

    def cells(self) -> list[CellColumn]:
        """Grid indices of all regions."""
        crop = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        cells: dict[int, CellColumn] = {
            o: (np.array([cell]), None) for o, cell in self.constant_cells.items()
        }
        rows = self.rows(crop, np.arange(self.regions) - self.first[crop])
        for table, of_region in zip(self.runs, rows):
            cells.update({o: (column, of_region) for o, column in table.cells.items()})
        return [cells[o] for o in sorted(cells)]

    @property
    def regions(self) -> int:
        return int(self.first[-1])


def plan_crops(
    transform: IndexTransform,
    starts: Integers,
    extent: tuple[int, ...],
    *,
    block: Block,
    dst_stride: Sequence[int],
    max_chunks: int,
    block_nbytes: int,
    separate: bool = False,
) -> CopyPlan:
    """Plan which regions of which chunks make up the crops.

    Parameters
    ----------
    transform : IndexTransform
        From the domain `starts` are of to the chunked array; without index arrays.
    starts : int64 array of shape (crops, input_rank)
        First index of each crop, as :func:`check_starts` returns it.
    extent : tuple of int, length input_rank
        Shape of a crop.
    block : Block
        Of single chunks; larger ones are made of it if they pay.
    dst_stride : sequence of int, length 1 + input_rank
        Bytes between neighbours in the array of all crops; first between crops, 0 if each has an
        array.
    max_chunks : int
        Limit ``chunks_per_request``.
    block_nbytes : int
        The most bytes a block of several chunks may have.
    separate : bool
        Whether each crop goes to an array of its own, its number being that of the crop.

    Raises
    ------
    LimitError
        If there are more than `max_chunks` regions.
    """
    crops = _crops(transform, starts, extent, block, dst_stride, max_chunks, separate=separate)
    chunks = crops.cells() if crops.regions else []
    larger = block
    if not block.direct:
        larger = _larger(block, transform, extent, len(starts), crops.regions, block_nbytes)
    if larger.single:
        return plan_copies(block, crops, crops.regions, chunks)
    cut = _crops(transform, starts, extent, larger, dst_stride, max_chunks, separate=separate)
    return plan_copies(larger, cut, cut.regions, cut.cells(), (crops.regions, chunks))


def _crops(
    transform: IndexTransform,
    starts: Integers,
    extent: tuple[int, ...],
    block: Block,
    dst_stride: Sequence[int],
    max_chunks: int,
    *,
    separate: bool,
) -> _Crops:
    used_by: dict[int, list[StridedMap]] = {}
    constant_cells, constant_src = {}, 0
    shape, stride = block.block_shape, block.stride
    strides = [0] * len(extent)
    for o, map_ in enumerate(transform.output):
        d = map_.input_dimension
        if d is None or not map_.stride:
            constant_cells[o], inside = divmod(map_.offset, shape[o])
            constant_src += stride[o] * inside
        else:
            used_by.setdefault(d, []).append((o, map_.offset, map_.stride))
            strides[d] += stride[o] * map_.stride
    crops = 0 if 0 in extent else len(starts)
    # Refused before it is built: the runs of one dimension alone could fill the memory.
    fewest = [fewest_runs(extent[d], maps, shape) for d, maps in used_by.items()]
    check_regions(crops * math.prod(fewest), max_chunks)
    runs: tuple[CropRuns, ...] = ()
    count: NDArray[Any] = np.ones(crops)
    if crops:
        runs = tuple(
            _crop_runs(d, starts[:, d], extent[d], maps, shape, stride)
            for d, maps in used_by.items()
        )
        for table in runs:
            count *= np.diff(table.first)  # As floats: 32 dimensions could overflow integers.
        check_regions(int(count.sum()), max_chunks)
    targets = len(starts) if separate else 1
    return _Crops(
        runs,
        np.concatenate([[0], np.cumsum(count.astype(np.int64))]),
        constant_cells,
        constant_src,
        extent,
        dst_stride[0],
        (tuple(strides),) * targets,
        (tuple(dst_stride[1:]),) * targets,
    )


def _larger(
    block: Block,
    transform: IndexTransform,
    extent: Sequence[int],
    crops: int,
    regions: int,
    most_nbytes: int,
) -> Block:
    """The block that makes copies cheapest: fewer, longer regions against one more copy.

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
        factor[o] = _next_factor(factor[o], block.key_ratio[o])
        if math.prod(factor) * chunk_nbytes > most_nbytes:
            return best
        grown = replace(block, factor=tuple(factor))
        shape = grown.block_shape
        cost = crops * math.prod(1 + (n - 1) / size for n, size in zip(reach, shape)) * REGION_NS
        if cost + copied_ns < best_ns:
            best, best_ns = grown, cost + copied_ns


def _next_factor(factor: int, ratio: int) -> int:
    """The next larger factor that divides the ratio of chunks to a key, or is a multiple of it."""
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
