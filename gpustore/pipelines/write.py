"""A write, the mirror of a read.

1. Plan, as for a read: the array written is the destination of the plan's rows.
2. Split the rows among the threads; each task works through its rows batch by batch.
3. A chunk that is covered whole (as far as it lies inside the array) is laid out anew; its cells
   beyond the array's edge hold the fill value. Any other is read, changed and written back.
4. Gather and encode (:class:`gpustore.backends.base.Backend`). A chunk that equals the fill value
   bit for bit is deleted instead, unless told otherwise.
5. Write. A chunk that was read first is written on condition that it still has the generation
   that was read; if another writer was faster, steps 3 to 5 are repeated for it.

``copy`` is ready when the source may be reused, ``commit`` when everything is stored.
"""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import Any

from gpustore.backends.base import Memory
from gpustore.chunk_plan import ChunkPlan, PlanWindow
from gpustore.errors import ConflictError
from gpustore.future import Future, Promise, WriteFutures
from gpustore.index_space import IndexTransform
from gpustore.kvstores.base import Buffer, WriteRequest
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.read import BATCH_NBYTES, PLANNED_ROWS, fetch_whole
from gpustore.statistics import STATISTICS

__all__ = ["ATTEMPTS", "write"]

ATTEMPTS = 1000
"""How often a partial write of a chunk is repeated because another writer was faster."""

FIRST_DELAY_S = 0.0002
LONGEST_DELAY_S = 0.05
"""Bounds of the random pause between two attempts, in seconds."""


def write(array: ChunkedArray, transform: IndexTransform, source: Any) -> WriteFutures:
    """Write `source` to the domain of `transform`.

    Parameters
    ----------
    array : ChunkedArray
    transform : IndexTransform
        From the domain written to the array; affine.
    source : array-like
        Broadcast to the shape of the domain and cast under NumPy's rule "safe"; must not change
        before ``copy`` is ready.

    Raises
    ------
    OutOfBoundsError, LimitError, MismatchError, TypeError
        Before any I/O.
    CorruptChunkError, ConflictError, StoreIOError
        Through the futures; they name the key. Chunks are replaced one by one and each of them
        whole: after a failure every chunk holds its old or its new contents.
    """
    memory = array.backend.source(source, transform.domain, array.dtype)
    plan = array.plan(transform, memory.strides)
    tasks = array.tasks(len(plan))
    STATISTICS.add(writes=1, chunks_planned=len(plan))
    copied: Promise[None]
    copied, copy = Promise.new()
    left = _Countdown(len(tasks), copied)

    def run(lo: int, hi: int) -> None:
        try:
            _write_rows(array, plan, memory, lo, hi)
        finally:
            left.step()

    work = [partial(run, lo, hi) for lo, hi in tasks]
    commit: Future[None] = array.executor.run_all(work, lambda: None, drain=True)
    # Tasks that are never begun must not leave `copy` waiting.
    commit.add_done_callback(lambda _: left.finish())
    return WriteFutures(copy, commit)


class _Countdown:
    """Resolves a promise when the last task no longer needs the source."""

    def __init__(self, count: int, promise: Promise[None]) -> None:
        self._lock = threading.Lock()
        self._count = count
        self._promise: Promise[None] | None = promise

    def step(self) -> None:
        with self._lock:
            self._count -= 1
            last = self._count <= 0
        if last:
            self.finish()

    def finish(self) -> None:
        with self._lock:
            promise, self._promise = self._promise, None
        if promise is not None:
            promise.set_result(None)


def _write_rows(array: ChunkedArray, plan: ChunkPlan, source: Memory, lo: int, hi: int) -> None:
    """Gather, encode and store rows `lo` to `hi` of the plan."""
    batch = max(1, BATCH_NBYTES // max(1, array.chain.layout.nbytes))
    batch = min(batch, PLANNED_ROWS)
    for at in range(lo, hi, PLANNED_ROWS):
        planned = plan.window(at, min(at + PLANNED_ROWS, hi))
        for first in range(0, len(planned), batch):
            rows = planned.part(first, first + batch)
            if all(rows.whole):
                _write_whole(array, rows, source)
            else:
                for i in range(len(rows)):
                    row = rows.part(i, i + 1)
                    (_write_whole if rows.whole[i] else _write_partial)(array, row, source)


def _write_whole(array: ChunkedArray, rows: PlanWindow, source: Memory) -> None:
    nothing: list[Buffer | None] = [None] * len(rows)
    values = _gather(array, rows, nothing, source)
    columns = array.store.write_many(WriteRequest(keys=rows.keys, values=values))
    columns.raise_first()
    STATISTICS.add(bytes_stored=sum(len(value) for value in values if value is not None))


def _write_partial(array: ChunkedArray, row: PlanWindow, source: Memory) -> None:
    """Read, change and write back one chunk, until nobody else changed it in between."""
    delay = FIRST_DELAY_S
    for _ in range(ATTEMPTS):
        present = fetch_whole(array, row.keys)
        value = _gather(array, row, present.value, source)
        columns = array.store.write_many(
            WriteRequest(keys=row.keys, values=value, if_equal=present.generation)
        )
        columns.raise_first()
        if columns.generation[0]:
            STATISTICS.add(bytes_stored=len(value[0]) if value[0] is not None else 0)
            return
        STATISTICS.add(retries=1)
        time.sleep(random.uniform(0, delay))
        delay = min(2 * delay, LONGEST_DELAY_S)
    key = row.keys[0]
    raise ConflictError(
        f"Error writing {array.store.describe(key)}: another writer was faster {ATTEMPTS} times",
        key=key,
    )


def _gather(
    array: ChunkedArray, rows: PlanWindow, present: list[Buffer | None], source: Memory
) -> list[Buffer | None]:
    return array.backend.gather(
        rows, present, array.chain, array.fill_value, source, keep_fill=array.keep_fill
    )
