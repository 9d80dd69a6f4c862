"""Many crops of one shape, read together: each chunk is fetched and decoded once.

1. Check the starts against all bounds.
2. Plan: the regions of all crops, sorted by key and chunk (:mod:`gpustore.planning.crop_plan`); no
I/O.
3. Split the plan among the threads, so that no key belongs to two tasks.
4. Refine and fetch the chunks window by window, as a read does (:mod:`gpustore.pipelines.read`).
5. Decode chunks and copy their regions (:meth:`gpustore.backends.base.SinkPart.copy_regions`). The
   host decodes each chunk into its block, which is one chunk or, where crops are dense, a few
   neighbours; when all of a block are there, its regions are copied. A device copies from decoded
   chunks.
6. When the last task is done the Future resolves with the array of all crops.

Crops of a few elements are not copied one by one: their elements are gathered together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpustore.backends.base import NEW, Memory, Output, Sink
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import SPLIT_S, ChunkedArray, with_decoder
from gpustore.pipelines.fetch import BATCH_NBYTES
from gpustore.pipelines.native_fill import fill_tasks
from gpustore.pipelines.native_read import NativeRead
from gpustore.pipelines.read import (
    contiguous,
    most_keys,
    read_windows,
    sink_of,
)
from gpustore.pipelines.resident import batches, place_all, resident_tables
from gpustore.pipelines.strided_reads import NATIVE_ROW_S, SMALL_ROWS, SMALL_S
from gpustore.planning.block import Block
from gpustore.planning.chunk_grid import Integers
from gpustore.planning.chunk_plan import ChunkPlan, check_row_count
from gpustore.planning.copy_plan import CopyPlan, merge_plans
from gpustore.planning.crop_plan import check_starts, plan_crops
from gpustore.planning.row_table import RowTable
from gpustore.runtime.future import Future
from gpustore.runtime.statistics import STATISTICS

BLOCK_NBYTES = 4 << 20
"""Largest block of several chunks, so that it stays in cache while regions are copied from it."""

REGION_S = 2e-6
BYTE_S = 0.25e-9
"""Seconds that a region takes to copy, and each of its bytes."""

QUICK_S = 40e-6
"""Seconds; chunks that decode and copy faster stay on one thread, as Python dominates."""

ELEMENTWISE = 32
"""Crops of at most this many elements are gathered element by element."""


def read_many(
    array: ChunkedArray,
    transform: IndexTransform,
    starts: Any,
    extent: tuple[int, ...],
    output: Output = NEW,
) -> Future[Any]:
    """Read crops of the domain of `transform`.

    Parameters
    ----------
    array : ChunkedArray
    transform : IndexTransform
        Maps the domain that the crops lie in to the array; without index arrays.
    starts : array-like of integers, shape (crops, input_rank)
        First index of each crop.
    extent : tuple of int, length input_rank
        Shape of a crop.
    output : Output, optional
        Array to fill, in memory of the array's backend, of shape ``(crops, *extent)``; a new one by
        default.

    Returns
    -------
    Future of array
        Array of shape ``(crops, *extent)``, in native byte order and the backend's memory space.
        The Future is ready when no task touches the array any more, also if it failed.

    Raises
    ------
    OutOfBoundsError, LimitError, MismatchError, TypeError, UnsupportedError
        Before any I/O.
    CorruptChunkError, NotFoundError, StoreIOError
        Through the Future; they name the key.
    """
    checked = check_starts(transform, starts, extent, array.shape)
    shape = (len(checked), *extent)
    strides = contiguous(shape, array.dtype.itemsize, output.order)
    if output.array is not None:
        memory = output.memory(array.backend, shape, array.dtype)
        strides = memory.strides
    plans = plan_many(array, transform, checked, extent, strides)
    if output.array is None:
        memory = output.memory(array.backend, shape, array.dtype)
    itemsize = array.dtype.itemsize
    aligned = all(stride % itemsize == 0 for stride in memory.strides)
    by_element = math.prod(extent) <= ELEMENTWISE and aligned
    STATISTICS.add(reads=1, chunks_planned=sum([len(plan) for _, plan in plans]))
    return read_regions(array, plans, [memory], output.filled(memory), by_element=by_element)


def plan_many(
    array: ChunkedArray,
    transform: IndexTransform,
    starts: Integers,
    extent: tuple[int, ...],
    strides: tuple[int, ...],
    *,
    separate: bool = False,
    max_chunks: int | None = None,
) -> list[tuple[ChunkedArray, CopyPlan]]:
    """Plan crops with checked `starts`, one plan a chunk shape.

    Parameters
    ----------
    strides : tuple of int, length 1 + input_rank
        Byte strides of the array of all crops; with `separate` each crop has an array, and the
        first is 0.
    max_chunks : int, optional
        Most regions; by default the limit of the array.

    Raises
    ------
    LimitError
        If there are more regions.
    """
    arrays: dict[tuple[int, ...], ChunkedArray] = {}

    def block_of(chunk_shape: tuple[int, ...]) -> Block:
        one = arrays[chunk_shape] = array.of_chunks(chunk_shape)
        return single_chunks(one, [transform])

    plans = plan_crops(
        transform,
        starts,
        extent,
        grid=array.chunk_grid,
        block_of=block_of,
        dst_stride=strides,
        max_chunks=array.limits.chunks_per_request if max_chunks is None else max_chunks,
        block_nbytes=BLOCK_NBYTES,
        separate=separate,
    )
    return [(arrays[chunk_shape], plan) for chunk_shape, plan in plans]


def merge_reads(
    array: ChunkedArray,
    transforms: Sequence[IndexTransform],
    strides: Sequence[tuple[int, ...]],
    max_chunks: int,
) -> list[tuple[ChunkedArray, CopyPlan]]:
    """Merge the plans of several reads, one merged plan a chunk shape.

    Parameters
    ----------
    transforms, strides : sequence
        Transform of each read, without index arrays, and the byte strides of its array.
    max_chunks : int
        Most regions.

    Raises
    ------
    LimitError
        If there are more regions.
    """
    found: dict[tuple[int, ...], tuple[ChunkedArray, list[ChunkPlan], list[int]]] = {}
    rows = 0
    for number, (transform, stride) in enumerate(zip(transforms, strides)):
        planned = array.plans(
            transform, stride, src_stride=lambda one: single_chunks(one, transforms).stride
        )
        for one, plan in planned:
            rows += len(plan)
            check_row_count(rows, max_chunks)
            _, plans, numbers = found.setdefault(_form(one), (one, [], []))
            plans.append(plan)
            numbers.append(number)
    return [
        (one, merge_plans(plans, single_chunks(one, transforms), numbers))
        for one, plans, numbers in found.values()
    ]


def _form(array: ChunkedArray) -> tuple[int, ...]:
    """Return the key that groups chunks of one shape of an array."""
    return array.chunk_shape + array.key_ratio


def single_chunks(array: ChunkedArray, views: Sequence[IndexTransform]) -> Block:
    """Make blocks of single chunks, from which regions of `views` are copied."""
    reads_parts = array.chain.is_raw or array.chain.decodes_parts
    return Block(
        array.shape if array.grid is None else None,
        array.chunk_shape,
        (1,) * len(array.shape),
        array.format(),
        array.dtype.itemsize,
        reads_parts and not any(map(_is_crossed, views)),
        buffered=array.backend.buffers_blocks and array.native is None,
    )


def _is_crossed(view: IndexTransform) -> bool:
    """Whether `view` has a diagonal that falls along one dimension and rises along another.

    The first and the last byte of a region are then not corners of the box that holds it.
    """
    rises: dict[int, bool] = {}
    for map_ in view.output:
        d, stride = map_.input_dimension, map_.stride
        if d is not None and stride and rises.setdefault(d, stride > 0) != (stride > 0):
            return True
    return False


def read_regions(
    array: ChunkedArray,
    plans: Sequence[tuple[ChunkedArray, CopyPlan]],
    out: Sequence[Memory],
    result: Any,
    *,
    by_element: bool = False,
) -> Future[Any]:
    """Read the regions of plans, each of the chunks of one shape, into their arrays.

    Returns
    -------
    Future
        Resolves with `result` when no task touches the arrays any more, also if it failed.
    """
    plans = with_decoder(plans)
    elements = sum(math.prod(memory.array.shape) for memory in out)
    parts = _copy_parts(array, plans, elements)
    resident = resident_tables(plans)
    sink = sink_of(array, plans, out, resident)

    def tasks() -> list[Callable[[], None]]:
        if resident is not None:
            return [partial(place_all, resident, sink, by_element=by_element)]
        return [
            task
            for (one, plan), count in zip(plans, parts or [1] * len(plans))
            for task in _tasks(one, plan, out, sink, count, by_element=by_element)
        ]

    if parts is None:
        return sink.defer(array.executor, tasks, lambda: result)
    return sink.run(array.executor, tasks(), lambda: result)


def _tasks(
    array: ChunkedArray,
    plan: CopyPlan,
    out: Sequence[Any],
    sink: Sink,
    parts: int,
    *,
    by_element: bool,
) -> list[Callable[[], None]]:
    """Make the tasks that read the regions of a plan, for `parts` threads."""
    filled = fill_tasks(array, plan, sink, by_element=by_element)
    if filled is not None:
        return filled
    if array.native is None:
        read_part = partial(_read_copy_part, array, plan, sink, by_element=by_element)
        return [partial(read_part, part, parts) for part in range(parts)]
    strides = plan.source.src_stride, plan.source.dst_stride
    tables = plan.tables(2 * parts if parts > 1 else 1, array.unit_rows)
    left = partial(_read_left, array, plan, out)
    reading = NativeRead(array.native, tables, strides, out, array.key_directory, parts, left)
    return [reading.work] * parts


def _read_left(
    array: ChunkedArray, plan: CopyPlan, out: Sequence[Any], table: RowTable, rows: Sequence[int]
) -> None:
    """Read the regions of chunks that the native core has left alone."""
    for target, window in plan.rows_of(table, rows):
        read_windows(array, [window], out[target], len(window))


def _copy_parts(
    array: ChunkedArray, plans: Sequence[tuple[ChunkedArray, CopyPlan]], elements: int
) -> list[int] | None:
    """Choose the number of parts of each plan; None to read in the thread that asks.

    Parameters
    ----------
    elements : int
        Number of elements of all arrays that are filled.
    """
    chunks = sum([len(plan) for _, plan in plans])
    copied = elements * array.dtype.itemsize * BYTE_S / max(1, chunks)

    def seconds_of(one: ChunkedArray, plan: CopyPlan) -> float:
        if one.native is not None:
            return len(plan) * (one.chain.decode_s + NATIVE_ROW_S + copied)
        decoding: float = len(plan) * one.chain.decode_s
        copying: float = len(plan.order) * REGION_S + copied * len(plan)
        return decoding + copying

    seconds = sum([seconds_of(one, plan) for one, plan in plans])
    small = chunks <= SMALL_ROWS and seconds <= SMALL_S
    if small and array.store.is_local and array.backend.part_nbytes() is None:
        return None
    found = []
    for one, plan in plans:
        if one.native is not None:
            wanted = int(seconds_of(one, plan) / SPLIT_S)
            found.append(max(1, min(len(plan), array.executor.limit, wanted)))
            continue
        parts = _parts(plan, seconds_of(one, plan), array.executor.limit) if len(plan) else 1
        found.append(one.fewer_parts(parts, len(plan)))
    return found


def _parts(plan: CopyPlan, seconds: float, threads: int) -> int:
    """Choose the number of parts of a plan: one a thread, more if they are long enough."""
    if seconds < len(plan) * QUICK_S:
        return 1
    wanted = min(plan.units, int(seconds / SPLIT_S))
    return max(1, min(wanted, threads), min(wanted // 8, 4 * threads))


def _read_copy_part(
    array: ChunkedArray, plan: CopyPlan, sink: Sink, part: int, parts: int, *, by_element: bool
) -> None:
    """Fetch, decode and copy one of `parts` parts of the plan."""
    block = plan.block
    blocks = max(1, BATCH_NBYTES // max(1, block.nbytes)) if block.buffered else 1
    with sink.part(
        array.chain,
        rows=len(plan) // parts + 1,
        blocks=(blocks, *block.block_shape),
        native=array.native_values,
    ) as copying:
        for planned in plan.windows(part, parts, blocks, most_units=most_keys(array)):
            window = planned.by_element() if by_element else planned
            taken = batches(array, window.chunks, copying.arena, sink.nbytes)
            for first, rows, values, chunks in taken:
                copying.copy_regions(window, first, rows, values, chunks)
