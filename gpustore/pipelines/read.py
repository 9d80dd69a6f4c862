"""Reads: from an index transform to elements in memory.

1. Plan the parts of chunks and their places (:mod:`gpustore.planning.chunk_plan`); no I/O.
2. Split the plan among the threads; each task works through its part window by window.
3. Refine the window (:mod:`gpustore.pipelines.fetch`): stages that can read parts of a chunk narrow
   its rows.
   With a cache, steps 3 and 4 are for what is not in it (:mod:`gpustore.pipelines.cached`).
4. Fetch its values batch by batch, on condition that they are still the ones that were probed; if
   one changed in between, refine the rest again, at most ``ATTEMPTS`` times in a row.
5. Decode and scatter (:mod:`gpustore.backends.base`). A missing chunk is the fill value.
6. When the last task is done the Future resolves with the array.

Reads that the native core plans wait in a queue (:mod:`gpustore.pipelines.strided_reads`). Of the
others, a small local one skips the pool: it runs in the thread that asks for the result, because a
handover to the pool and back costs 35 to 64 us. If a thread begins several before it asks for a
result, all but the first go to the pool, so that they run at the same time, unless they are tiny.
A thread that waits for a larger read by the native core does the tasks that no worker has begun,
unless a chunk is so long that it would not hear Ctrl-C.
"""

from __future__ import annotations

import itertools
import math
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from gpustore.backends.base import NEW, Chunks, Memory, Output, Sink
from gpustore.backends.host.memory import new_array
from gpustore.backends.native.request import MOST_ROWS, strided_maps
from gpustore.errors import GpustoreError
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import SPLIT_S, ChunkedArray, with_decoder
from gpustore.pipelines.native_fill import fill_tasks
from gpustore.pipelines.native_read import NativeRead
from gpustore.pipelines.resident import ResidentTable, batches, place_all, resident_tables
from gpustore.pipelines.strided_plan import plans_of
from gpustore.pipelines.strided_reads import (
    NATIVE_ROW_S,
    SMALL_ROWS,
    SMALL_S,
    TINY_ROWS,
    TINY_S,
    StridedRead,
)
from gpustore.planning.chunk_plan import ChunkPlan
from gpustore.planning.copy_plan import CopyPlan
from gpustore.planning.row_table import RowTable
from gpustore.planning.window import PlanWindow
from gpustore.runtime.future import Future
from gpustore.runtime.statistics import STATISTICS
from gpustore.strict_json.parsing import text

NAMED_KEYS = 10
"""Most keys that one error names."""

PLANNED_ROWS = 4096
"""Most rows of a window of one task: keys and columns of this many stay small."""

PROBED_NBYTES = 16 << 20
"""Bytes of shard indices that one task reads together; 64 small shards halved the time."""


Wait = Callable[[ChunkedArray, IndexTransform, Memory, Callable[[], Future[Any]]], Future[Any]]


def read(
    array: ChunkedArray,
    transform: IndexTransform,
    output: Output = NEW,
    wait: Wait | None = None,
) -> Future[Any]:
    """Read the domain of `transform` from `array`.

    Parameters
    ----------
    array : ChunkedArray
    transform : IndexTransform
        Maps the domain wanted to the array; affine.
    output : Output, optional
        Array to fill, in memory of the array's backend, of the same shape and data type; a new one
        by default.
    wait : callable, optional
        Begins a read into a new array that needs a thread of the pool, at once or together with
        others: called with `array`, `transform`, the memory, and a function that begins it.

    Returns
    -------
    Future of array
        Array in native byte order, in the backend's memory space. The Future is ready when no task
        touches the array any more, also if it failed.

    Raises
    ------
    OutOfBoundsError, LimitError, MismatchError, TypeError
        Before any I/O.
    CorruptChunkError, NotFoundError, StoreIOError
        Through the Future; they name the key.
    """
    strided = StridedReads.of(array)
    one = None if strided is None else strided.one(transform, output)
    return planned_read(array, transform, output, wait) if one is None else one.ask()


def planned_read(
    array: ChunkedArray, transform: IndexTransform, output: Output, wait: Wait | None
) -> Future[Any]:
    """Do a :func:`read` with a plan in Python."""
    shape = tuple(transform.domain.shape)
    backend = array.backend
    if output.array is None:
        # Bounds and limits are checked by the plan, before the memory is taken.
        plans = plans_of(array, transform, contiguous(shape, array.dtype.itemsize, output.order))
        memory = backend.empty(shape, array.dtype, output.order, output.stream)
        result = memory.array
    else:
        memory = backend.destination(output.array, shape, array.dtype, output.stream)
        plans = plans_of(array, transform, memory.strides)
        result = output.array
    rows = sum([plan.rows for _, plan in plans])
    STATISTICS.add(reads=1, chunks_planned=rows)
    plans = with_decoder(plans)
    resident = resident_tables(plans, transform)

    def tasks(sink: Sink, threads: int | None = None) -> list[Callable[[], None]]:
        if resident is not None:
            return [partial(place_all, resident, sink)]
        return [task for one, plan in plans for task in _tasks(one, plan, memory, sink, threads)]

    if output.stream is None and array.store.is_local and rows <= SMALL_ROWS:
        seconds = sum([_seconds(one, plan) for one, plan in plans])
        tiny = rows <= TINY_ROWS and seconds <= TINY_S
        if tiny or (seconds <= SMALL_S and not LAST.waits()):
            sink = sink_of(array, plans, [memory], resident)
            future = sink.defer(array.executor, lambda: tasks(sink, 1), lambda: result)
            if not tiny:
                LAST.read = weakref.ref(future)
            return future

    def begin() -> Future[Any]:
        sink = sink_of(array, plans, [memory], resident)
        some = tasks(sink)
        helped = array.is_helped and len(some) <= array.executor.limit
        return sink.run(array.executor, some, lambda: result, helped=helped)

    if wait is None or output.array is not None or resident is not None:
        return begin()
    return wait(array, transform, memory, begin)


class StridedReads:
    """Makes the reads of one array that the native core plans.

    Small reads are many: what is the same for all of them is looked up once.
    """

    __slots__ = ("_array", "_byte_s", "_chunk_s", "_chunk_shape", "_dtype", "_most_rows", "_shape")

    def __init__(self, array: ChunkedArray) -> None:
        chain = array.chain
        self._array = array
        self._shape, self._chunk_shape, self._dtype = array.shape, array.chunk_shape, array.dtype
        self._most_rows = min(MOST_ROWS, array.limits.chunks_per_request)
        self._byte_s = chain.byte_s if chain.is_raw else 0.0
        self._chunk_s = 0.0 if chain.is_raw else chain.decode_s

    @staticmethod
    def of(array: ChunkedArray) -> StridedReads | None:
        """Return the reads of an array; None if the core plans none of them."""
        planned = array.native is not None and array.grid is None and array.seen is None
        return StridedReads(array) if planned else None

    def one(self, transform: IndexTransform, output: Output) -> StridedRead | None:
        """Return the read of the domain of `transform`; None if it has to be planned in Python."""
        maps = strided_maps(transform, self._shape, self._chunk_shape)
        if maps is None:
            return None
        rows, words = maps
        if rows > self._most_rows:
            return None
        one = _new(_Read)
        one.array, one.transform, one.rows, one.words = self._array, transform, rows, words
        shape = transform._shape or transform.input_shape
        if output is NEW:  # Most are.
            one.out = None
            one.result = filled = new_array(shape, self._dtype)
        else:
            one.out = output.memory(self._array.backend, shape, self._dtype)
            one.result, filled = output.filled(one.out), one.out.array
        if rows > TINY_ROWS and self._byte_s:
            one.seconds = self._byte_s * rows * self._span(transform, words)
        else:  # Of few raw chunks the bytes that are wanted count: that is known at once.
            one.seconds = self._byte_s * filled.nbytes + self._chunk_s * rows
        return one

    def _span(self, transform: IndexTransform, words: Sequence[int] | None) -> int:
        """Return the most bytes of a raw chunk from the first element wanted to the last."""
        extents = transform.input_shape
        found = self._dtype.itemsize
        for d, (chunk, stride) in enumerate(
            zip(self._chunk_shape, self._array.chain.layout.strides)
        ):
            at, _, step = (d, 0, 1) if words is None else words[3 * d : 3 * d + 3]
            reach = 0 if at < 0 else abs(step) * (extents[at] - 1)
            found += stride * min(reach, chunk - 1)
        return found


_new = object.__new__


class _Read(StridedRead):
    """A read that is repeated with a plan in Python."""

    __slots__ = ()

    def again(self) -> Future[Any]:
        """Begin the read anew."""
        array, memory, result = self.array, self.memory, self.result
        plans = array.plans(self.transform, memory.strides)
        sink = sink_of(array, plans, [memory])
        tasks = [task for one, plan in plans for task in _tasks(one, plan, memory, sink)]
        return sink.run(array.executor, tasks, lambda: result)


def _tasks(
    array: ChunkedArray, plan: ChunkPlan, memory: Any, sink: Sink, threads: int | None = None
) -> list[Callable[[], None]]:
    """Make the tasks that read a plan, for up to `threads` threads."""
    if array.native is not None:
        if threads is None:
            seconds = plan.rows * (array.chain.decode_s + NATIVE_ROW_S)
            threads = max(1, min(array.executor.limit, plan.rows, int(seconds / SPLIT_S)))
        tables = plan.tables(2 * threads if threads > 1 else 1, array.unit_rows)
        strides = [plan.src_stride], [plan.dst_stride]
        left = partial(_read_left, array, plan, memory)
        directory = array.key_directory
        reading = NativeRead(array.native, tables, strides, [memory], directory, threads, left)
        return [reading.work] * threads
    filled = fill_tasks(array, plan, sink)
    if filled is not None:
        return filled
    parts = threads or array.fewer_parts(array.parts(plan), len(plan))
    return [partial(_read_part, array, plan, sink, part, parts) for part in range(parts)]


def _read_left(
    array: ChunkedArray, plan: ChunkPlan, memory: Memory, table: RowTable, rows: Sequence[int]
) -> None:
    """Read the rows of a table that the native core has left alone."""
    pieces = [rows[at : at + PLANNED_ROWS] for at in range(0, len(rows), PLANNED_ROWS)]
    read_windows(array, (plan.rows_of(table, some) for some in pieces), memory, len(rows))


class _LastRead(threading.local):
    """Last read of this thread that runs in the thread that asks for its result."""

    read: Callable[[], Future[Any] | None] = staticmethod(lambda: None)

    def waits(self) -> bool:
        """Whether the result was not asked for yet."""
        read = self.read()
        return read is not None and read.is_deferred


LAST = _LastRead()


def _seconds(array: ChunkedArray, plan: ChunkPlan) -> float:
    """Estimate the seconds that decoding takes; of raw chunks only the span wanted counts.

    What one thread fetches for a device that decodes it is as small as a read may be.
    """
    if array.backend.part_nbytes() is not None and not array.is_for_host:
        return SMALL_S if array.device_parts(2, plan.rows) == 1 else math.inf
    seconds = plan.rows * array.chain.decode_s
    nbytes = array.chain.layout.nbytes
    if array.stored is not None or not array.chain.is_raw or not nbytes:
        return seconds
    return seconds * min(1.0, plan.span(array.chain.layout.dtype.itemsize) / nbytes)


def contiguous(shape: tuple[int, ...], itemsize: int, order: str) -> tuple[int, ...]:
    """Return the byte strides of a contiguous array in memory order `order`."""
    extents = shape[:-1] if order == "F" else shape[:0:-1]
    strides = list(itertools.accumulate((itemsize, *extents), operator.mul))[: len(shape)]
    return tuple(strides if order == "F" else reversed(strides))


def _read_part(array: ChunkedArray, plan: ChunkPlan, sink: Sink, part: int, parts: int) -> None:
    """Fetch, decode and scatter one of `parts` parts of the plan."""
    windows = plan.windows(part, parts, PLANNED_ROWS, most_keys=most_keys(array))
    _read_windows(array, windows, sink, plan.rows // parts + 1)


def read_windows(
    array: ChunkedArray, windows: Iterable[PlanWindow], out: Memory, rows: int
) -> None:
    """Fetch, decode and scatter windows that have about `rows` rows together, for the host."""
    chunks = [Chunks(array.chain, rows, rows)]
    check = partial(check_rows, array)
    sink = array.backend.sink(chunks, array.fill_value, (out,), array.limits, check)
    _read_windows(array, windows, sink, rows)


def _read_windows(
    array: ChunkedArray, windows: Iterable[PlanWindow], sink: Sink, rows: int
) -> None:
    with sink.part(array.chain, rows=rows, native=array.native_values) as part:
        for planned in windows:
            for _, some, values, chunks in batches(array, planned, part.arena, sink.nbytes):
                part.scatter(some, values, chunks)


def sink_of(
    array: ChunkedArray,
    plans: Sequence[tuple[ChunkedArray, ChunkPlan | CopyPlan]],
    out: Sequence[Memory],
    resident: Sequence[ResidentTable] | None = None,
) -> Sink:
    """Make the sink of a read of `plans`, each of chunks of one shape, which may be `resident`."""
    chunks = chunks_of(plans) if resident is None else [one.sort for one in resident]
    return array.backend.sink(
        chunks,
        array.fill_value,
        out,
        array.limits,
        partial(check_rows, array),
    )


def chunks_of(plans: Sequence[tuple[ChunkedArray, ChunkPlan | CopyPlan]]) -> list[Chunks]:
    """Describe the chunks of a read for its sink."""
    return [
        Chunks(one.chain, len(plan), len(plan) if isinstance(plan, ChunkPlan) else len(plan.order))
        for one, plan in plans
    ]


def most_keys(array: ChunkedArray) -> int | None:
    """Return the number of shards whose indices one task reads together; None for no bound."""
    if not array.levels:
        return None
    return max(1, PROBED_NBYTES // array.levels[0].index.nbytes)


def check_rows(
    array: ChunkedArray, keys: Sequence[str], missing: int, errors: Mapping[int, GpustoreError]
) -> None:
    """Raise the first error of a scatter, naming its key; count missing rows if there is none.

    If values of other keys failed with it, the text ends with up to ``NAMED_KEYS`` of them all.
    """
    if errors:
        if array.stored is not None:
            # Encoded values are kept before they are decoded.
            array.forget([keys[row] for row in errors])
        first = min(errors)
        key, error = keys[first], errors[first]
        wrong = list(dict.fromkeys(keys[row] for row in sorted(errors)))
        if len(wrong) > 1:
            names = [text(one) for one in wrong[:NAMED_KEYS]]
            names += [f"and {len(wrong) - NAMED_KEYS} more"] if len(wrong) > NAMED_KEYS else []
            error = error.suffixed(f"; {len(wrong)} chunks are wrong: {', '.join(names)}")
        if error.key == key:
            raise error from errors[first].__cause__  # It says where.
        where = f"Error reading {array.store.describe(key)}"
        raise error.prefixed(where, key=key) from errors[first]
    if missing:
        STATISTICS.add(chunks_missing=missing)
