"""A read, one way, from an index transform to elements in memory.

1. Plan: which part of which chunk goes where (:mod:`gpustore.chunk_plan`); no I/O.
2. Split the plan's rows among the threads; each task works through its rows window by window.
3. Refine: while a stage of the chain can narrow the window, fetch the byte ranges it must see
   (its *probe*) and let it rewrite the rows. Stages never do I/O; this module owns the loop.
4. Fetch the window's values, on condition that they are still the ones that were probed; if one
   changed in between, drop what was learnt and refine again, at most ``ATTEMPTS`` times.
5. Decode and scatter (:class:`gpustore.backends.base.Backend`). A missing chunk is the fill value.
6. When the last task is done the Future resolves with the array.

A small local read skips the pool: it runs on whoever asks for the result, because handing it over
and back costs more (35 to 64 us) than the read.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpustore.backends.base import Memory
from gpustore.chunk_plan import WINDOW_ROWS, ChunkPlan, PlanWindow
from gpustore.errors import (
    ConflictError,
    CorruptChunkError,
    GpustoreError,
    LimitError,
    NotFoundError,
)
from gpustore.future import Future
from gpustore.index_space import IndexTransform
from gpustore.kvstores.base import Arena, Buffer, ReadColumns, ReadRequest, ReadState
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.statistics import STATISTICS

__all__ = ["ATTEMPTS", "fetch_whole", "read"]

ATTEMPTS = 5
"""How often a window is refined anew because a writer replaced its values meanwhile."""

SMALL_ROWS = 3
SMALL_NBYTES = 256 << 10
"""A local read of at most this many chunks and bytes runs on whoever asks for it."""

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
        plan = array.plan(transform, _contiguous(shape, array.dtype.itemsize, order))
        memory = array.backend.empty(shape, array.dtype, order)
    else:
        memory = array.backend.destination(out, shape, array.dtype)
        plan = array.plan(transform, memory.strides)
    rows = len(plan)
    STATISTICS.add(reads=1, chunks_planned=rows)
    result = memory.array if out is None else out

    def run(lo: int, hi: int) -> None:
        _read_rows(array, plan, memory, lo, hi)

    if array.store.is_local and rows <= SMALL_ROWS and _nbytes(array, plan) <= SMALL_NBYTES:

        def read_now() -> Any:
            run(0, rows)
            return result

        return Future.deferred(read_now, array.executor)
    tasks = [partial(run, lo, hi) for lo, hi in array.tasks(rows)]
    return array.executor.run_all(tasks, lambda: result)


def _nbytes(array: ChunkedArray, plan: ChunkPlan) -> int:
    """About how many decoded bytes a read takes: of raw chunks, only the span that is wanted."""
    layout = array.chain.layout
    span = plan.span(layout.dtype.itemsize) if array.chain.is_raw else layout.nbytes
    return len(plan) * min(span, layout.nbytes)


def _contiguous(shape: tuple[int, ...], itemsize: int, order: str) -> tuple[int, ...]:
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


def _read_rows(array: ChunkedArray, plan: ChunkPlan, out: Memory, lo: int, hi: int) -> None:
    """Fetch, decode and scatter rows `lo` to `hi` of the plan."""
    batch = max(1, min(WINDOW_ROWS, BATCH_NBYTES // max(1, array.chain.layout.nbytes)))
    for at in range(lo, hi, max(batch, PLANNED_ROWS)):
        planned = plan.window(at, min(at + max(batch, PLANNED_ROWS), hi))
        for first in range(0, len(planned), batch):
            _read_window(array, planned.part(first, first + batch), out)


def _read_window(array: ChunkedArray, planned: PlanWindow, out: Memory) -> None:
    arena = _arena()
    rows, columns = _fetch_refined(array, planned, arena)
    values = columns.value
    if not array.fill_missing:
        _refuse_missing(array, rows, columns)
    errors = array.backend.scatter(rows, values, array.chain, array.fill_value, out)
    for row, error in sorted(errors.items()):
        key = rows.keys[row]
        raise error.prefixed(f"Error reading {array.store.describe(key)}", key=key) from error
    STATISTICS.add(
        chunks_missing=columns.state.count(ReadState.MISSING),
        bytes_fetched=sum(len(value) for value in values if value is not None),
    )
    arena.reset()


@dataclass(slots=True)
class _Changed(Exception):
    """A value was replaced between its probe and its fetch."""

    key: str


def _fetch_refined(
    array: ChunkedArray, planned: PlanWindow, arena: Arena
) -> tuple[PlanWindow, ReadColumns]:
    """Refine the window and fetch what is left of it; the values of one row are one version."""
    changed = ""
    for _ in range(ATTEMPTS):
        arena.reset()
        try:
            rows, generations = _refine(array, planned, arena)
            columns = _fetch(array, rows, arena, rows.byte_start, rows.byte_stop, generations)
        except _Changed as change:
            changed = change.key
            STATISTICS.add(retries=1)
            continue
        return rows, columns
    raise ConflictError(
        f"Error reading {array.store.describe(changed)}: it was replaced {ATTEMPTS} times while "
        f"being read; retry when its writer is done",
        key=changed,
    )


def _refine(
    array: ChunkedArray, rows: PlanWindow, arena: Arena
) -> tuple[PlanWindow, Sequence[bytes] | None]:
    """Let each stage narrow the window; returns it with the generations the probes saw."""
    generations: Sequence[bytes] | None = None
    for refiner in array.refiners:
        probe = refiner.probe(rows)
        heads: Sequence[Buffer | None] = ()
        if probe is not None:
            columns = _fetch(array, rows, arena, probe.start, probe.stop, generations)
            heads, generations = columns.value, columns.generation
        rows = refiner.refine(rows, heads)
    return rows, generations


def _fetch(
    array: ChunkedArray,
    rows: PlanWindow,
    arena: Arena,
    start: Sequence[int] | None,
    stop: Sequence[int | None] | None,
    if_equal: Sequence[bytes] | None,
) -> ReadColumns:
    columns = array.store.read_many(
        ReadRequest(
            keys=rows.keys,
            start=start,
            stop=stop,
            if_equal=if_equal,
            max_nbytes=array.chain.encoded_bound,
            into=arena,
        )
    )
    for row, error in sorted(columns.error.items()):
        raise _explained(array, rows.keys[row], error) from error
    if if_equal is not None:
        for row, state in enumerate(columns.state):
            if state is ReadState.UNSPECIFIED:
                raise _Changed(rows.keys[row])
    if start is not None:
        _check_totals(array, rows, columns)
    return columns


def _explained(array: ChunkedArray, key: str, error: GpustoreError) -> GpustoreError:
    """The error of one key, seen as what it means for a chunk."""
    where = f"Error reading {array.store.describe(key)}"
    nbytes = array.chain.layout.nbytes
    if isinstance(error, LimitError):
        return CorruptChunkError(
            f"{error.text}; no legal encoding of a chunk of {nbytes} bytes is that long",
            key=key,
        )
    if error.status == "OUT_OF_RANGE":
        return CorruptChunkError(
            f"{where}: {error.text}; expected an uncompressed chunk of {nbytes} bytes", key=key
        )
    return error.prefixed(where, key=key) if error.key is None else error


def _check_totals(array: ChunkedArray, rows: PlanWindow, columns: ReadColumns) -> None:
    """A part of a raw chunk is only right if the whole has the right length."""
    if not array.chain.is_raw:
        return
    nbytes = array.chain.layout.nbytes
    for row, total in enumerate(columns.total):
        if total not in (-1, nbytes) and columns.state[row] is ReadState.VALUE:
            key = rows.keys[row]
            raise CorruptChunkError(
                f"Error reading {array.store.describe(key)}: Uncompressed chunk is {total} bytes, "
                f"but should be {nbytes} bytes",
                key=key,
            )


def _refuse_missing(array: ChunkedArray, rows: PlanWindow, columns: ReadColumns) -> None:
    for row, state in enumerate(columns.state):
        if state is ReadState.MISSING:
            cell = ", ".join(str(column[row]) for column in rows.cells)
            key = rows.keys[row]
            raise NotFoundError(
                f"chunk {{{cell}}} stored at {array.store.describe(key)} is missing; pass "
                f"fill_missing_data_reads=True to read it as the fill value",
                key=key,
            )


def fetch_whole(array: ChunkedArray, keys: Sequence[str]) -> ReadColumns:
    """Fetch whole values, in buffers of their own, for a read-modify-write."""
    columns = array.store.read_many(ReadRequest(keys=keys, max_nbytes=array.chain.encoded_bound))
    for row, error in sorted(columns.error.items()):
        raise _explained(array, keys[row], error) from error
    return columns
