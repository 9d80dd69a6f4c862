"""A read, one way, from an index transform to elements in memory.

1. Plan: which part of which chunk goes where (:mod:`gpustore.chunk_plan`); no I/O.
2. Split the plan among the threads; each task works through its part window by window.
3. Refine the window (:mod:`gpustore.pipelines.fetch`): stages that can read parts of a chunk narrow
   its rows.
4. Fetch its values batch by batch, on condition that they are still the ones that were probed; if
   one changed in between, refine the rest again, at most ``ATTEMPTS`` times in a row.
5. Decode and scatter (:class:`gpustore.backends.base.Backend`). A missing chunk is the fill value.
6. When the last task is done the Future resolves with the array.

A small local read skips the pool: it runs on whoever asks for the result, because handing it over
and back costs 35 to 64 us. A thread that begins one read after the other before it asks for any
wants them at the same time: all but the first go to the pool, unless they are tiny.
"""

from __future__ import annotations

import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from gpustore.backends.base import Memory
from gpustore.chunk_plan import ChunkPlan
from gpustore.errors import ConflictError, GpustoreError, NotFoundError
from gpustore.executor import CancelToken
from gpustore.future import Future
from gpustore.index_space import IndexTransform
from gpustore.kvstores.base import Arena, Buffer
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.fetch import Changed, fetch, refine
from gpustore.plan_window import PlanWindow
from gpustore.statistics import STATISTICS

__all__ = ["ATTEMPTS", "batches", "check_rows", "contiguous", "read"]

ATTEMPTS = 5
"""How often a window is refined anew because a writer replaced its values meanwhile."""

SMALL_ROWS = 32
SMALL_S = 300e-6
"""A local read of at most this many chunks and this much decoding runs on whoever asks for it."""

TINY_ROWS = 3
TINY_S = 60e-6
"""One so small does so even while an earlier one still waits to be asked for."""

BATCH_NBYTES = 1 << 20
"""Decoded bytes fetched at once by one task, so that they are still in cache when decoded."""

PLANNED_ROWS = 4096
"""Rows written down at once by one task: keys and columns of this many stay small."""


def read(
    array: ChunkedArray,
    transform: IndexTransform,
    *,
    out: Any = None,
    order: str = "C",
) -> Future[Any]:
    """Read the domain of `transform` from `array`.

    Parameters
    ----------
    array : ChunkedArray
    transform : IndexTransform
        From the domain wanted to the array; affine.
    out : array, optional
        Filled and returned; memory of the array's backend, same shape and data type.
    order : {"C", "F"}
        Layout of a new array.

    Returns
    -------
    Future of array
        Native byte order, in the backend's memory space. The Future is ready when no task touches
        the array any more, also if it failed.

    Raises
    ------
    OutOfBoundsError, LimitError, MismatchError, TypeError
        Before any I/O.
    CorruptChunkError, NotFoundError, StoreIOError
        Through the Future; they name the key.
    """
    shape = tuple(transform.domain.shape)
    if out is None:
        # Bounds and limits are checked by the plan, before the memory is taken.
        plan = array.plan(transform, contiguous(shape, array.dtype.itemsize, order))
        memory = array.backend.empty(shape, array.dtype, order)
    else:
        memory = array.backend.destination(out, shape, array.dtype)
        plan = array.plan(transform, memory.strides)
    rows = len(plan)
    STATISTICS.add(reads=1, chunks_planned=rows)
    result = memory.array if out is None else out

    def run(part: int, parts: int) -> None:
        _read_part(array, plan, memory, part, parts)

    if array.store.is_local and rows <= SMALL_ROWS:
        seconds = _seconds(array, plan)
        tiny = rows <= TINY_ROWS and seconds <= TINY_S
        if tiny or (seconds <= SMALL_S and not _LAST.waits()):

            def read_now() -> Any:
                run(0, 1)
                return result

            future = Future.deferred(read_now, array.executor)
            if not tiny:
                _LAST.read = weakref.ref(future)
            return future
    parts = array.parts(plan)
    tasks = [partial(run, part, parts) for part in range(parts)]
    return array.executor.run_all(tasks, lambda: result)


class _LastRead(threading.local):
    """The last read of this thread that was left to whoever asks for it."""

    read: Callable[[], Future[Any] | None] = staticmethod(lambda: None)

    def waits(self) -> bool:
        """Whether nobody has asked for it yet."""
        read = self.read()
        return read is not None and read.is_deferred


_LAST = _LastRead()


def _seconds(array: ChunkedArray, plan: ChunkPlan) -> float:
    """About how long decoding takes: of raw chunks, only the span that is wanted."""
    seconds = len(plan) * array.chain.decode_s
    nbytes = array.chain.layout.nbytes
    if not array.chain.is_raw or not nbytes:
        return seconds
    return seconds * min(1.0, plan.span(array.chain.layout.dtype.itemsize) / nbytes)


def contiguous(shape: tuple[int, ...], itemsize: int, order: str) -> tuple[int, ...]:
    """Byte strides of a new array."""
    extents = shape[:-1] if order == "F" else shape[:0:-1]
    strides = list(itertools.accumulate((itemsize, *extents), operator.mul))[: len(shape)]
    return tuple(strides if order == "F" else reversed(strides))


_ARENA = threading.local()


def _arena() -> Arena:
    """The arena of the calling thread; pieces are valid until its next batch."""
    try:
        arena: Arena = _ARENA.value
    except AttributeError:
        arena = _ARENA.value = Arena()
    return arena


def _read_part(array: ChunkedArray, plan: ChunkPlan, out: Memory, part: int, parts: int) -> None:
    """Fetch, decode and scatter one of `parts` parts of the plan."""
    for planned in plan.windows(part, parts, PLANNED_ROWS):
        for _, rows, values in batches(array, planned):
            errors = array.backend.scatter(rows, values, array.chain, array.fill_value, out)
            check_rows(array, rows, values, errors)


def batches(
    array: ChunkedArray, planned: PlanWindow
) -> Iterator[tuple[int, PlanWindow, list[Buffer | None]]]:
    """Refine a window once, then fetch it batch by batch.

    Yields
    ------
    int, PlanWindow, list of buffer or None
        The first of some rows of `planned`, those rows refined, and their values, which are valid
        until the next batch.
    """
    arena = _arena()
    batch = max(1, BATCH_NBYTES // max(1, array.chain.layout.nbytes))
    wanted = CancelToken.current()
    done = attempts = 0
    while done < len(planned):
        arena.reset()
        try:
            rows, generations = refine(array, planned.part(done, len(planned)), arena)
            for first in range(0, len(rows), batch):
                wanted.check()  # After Ctrl-C the threads stop here.
                arena.reset()
                some = rows.part(first, first + batch)
                values = fetch(array, some, generations, arena)
                if not array.fill_missing:
                    _refuse_missing(array, some, values)
                yield done, some, values
                done += len(some)
                attempts = 0
        except Changed as change:
            attempts += 1
            STATISTICS.add(retries=1)
            if attempts == ATTEMPTS:
                raise ConflictError(
                    f"Error reading {array.store.describe(change.key)}: it was replaced {ATTEMPTS} "
                    f"times while being read; retry when its writer is done",
                    key=change.key,
                ) from None
    arena.reset()


def check_rows(
    array: ChunkedArray,
    rows: PlanWindow,
    values: list[Buffer | None],
    errors: Mapping[int, GpustoreError],
) -> None:
    """Raise the first error of a scatter, naming its key; count the rows if there is none."""
    for row, error in sorted(errors.items()):
        key = rows.keys[row]
        raise error.prefixed(f"Error reading {array.store.describe(key)}", key=key) from error
    STATISTICS.add(
        chunks_missing=values.count(None),
        bytes_fetched=sum(len(value) for value in values if value is not None),
    )


def _refuse_missing(array: ChunkedArray, rows: PlanWindow, values: list[Buffer | None]) -> None:
    for row, value in enumerate(values):
        if value is None:
            cell = ", ".join(str(column[row]) for column in rows.cells)
            key = rows.keys[row]
            raise NotFoundError(
                f"chunk {{{cell}}} stored at {array.store.describe(key)} is missing; pass "
                f"fill_missing_data_reads=True to read it as the fill value",
                key=key,
            )
