"""Writes: from an array in memory to stored chunks.

1. Plan as for a read; the array written takes the part of the plan's destination.
2. Split the plan among the threads; each task works through its part batch by batch. All inner
   chunks of one shard go to one task, so that the shard is written once.
3. A chunk that is covered whole (as far as it lies inside the array) is laid out anew; its cells
   beyond the array's edge hold the fill value. Any other is read, changed and written back; inner
   chunks of a shard that are not touched are copied as they are encoded.
4. Gather and encode (:class:`gpustore.backends.base.Backend`). A chunk that equals the fill value
   bit for bit is deleted instead, unless told otherwise.
5. Write, and drop its entries of the cache. A chunk that was read first is written on condition
   that it still has the generation that was read; if another writer was faster, steps 3 to 5 are
   repeated for it.

``copy`` is ready when the source may be reused, ``commit`` when everything is stored.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from gpustore.backends.base import Memory
from gpustore.errors import ConflictError, CorruptChunkError
from gpustore.index_space import IndexTransform
from gpustore.kvstores.columns import WriteColumns, WriteRequest
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.fetch import BATCH_NBYTES, fetch_whole
from gpustore.pipelines.read import PLANNED_ROWS
from gpustore.planning.chunk_plan import ChunkPlan
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.executor import CancelToken
from gpustore.runtime.future import Future, Promise
from gpustore.runtime.statistics import STATISTICS
from gpustore.runtime.write_futures import WriteFutures
from gpustore.sharding.shard_codec import pack, unpack

ATTEMPTS = 1000
"""Most attempts of a partial write of a chunk that other writers change."""

FIRST_DELAY_S = 0.0002
LONGEST_DELAY_S = 0.05
"""Bounds of the random pause between two attempts, in seconds."""


def write(array: ChunkedArray, transform: IndexTransform, source: Any) -> WriteFutures:
    """Write `source` to the domain of `transform`.

    Parameters
    ----------
    array : ChunkedArray
    transform : IndexTransform
        Maps the domain written to the array; affine.
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
    plans = array.plans(transform, memory.strides)
    STATISTICS.add(writes=1, chunks_planned=sum([len(plan) for _, plan in plans]))
    work = [
        partial(_write_part, one, plan, memory, part, parts)
        for one, plan in plans
        for parts in [_parts(one, plan)]
        for part in range(parts)
    ]
    copied: Promise[None]
    copied, copy = Promise.new()
    left = _Countdown(len(work), copied)

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        finally:
            left.step()

    tasks = [partial(run, task) for task in work]
    commit: Future[None] = array.executor.run_all(tasks, lambda: None, drain=True)
    # Tasks that are never begun must not leave `copy` waiting.
    commit.add_done_callback(lambda _: left.finish())
    return WriteFutures(copy, commit)


def _parts(array: ChunkedArray, plan: ChunkPlan) -> int:
    parts = array.parts(plan)
    return max(1, min(parts, plan.objects)) if array.levels else parts  # One task a shard.


def _write_part(
    array: ChunkedArray, plan: ChunkPlan, memory: Memory, part: int, parts: int
) -> None:
    """Gather, encode and store one of `parts` parts of the plan."""
    most_keys = 1 if array.levels else None
    for rows in plan.windows(part, parts, PLANNED_ROWS, most_keys=most_keys):
        (_write_shard if array.levels else _write_chunks)(array, rows, memory)


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


def _write_chunks(array: ChunkedArray, planned: PlanWindow, source: Memory) -> None:
    """Gather, encode and store the chunks of a window."""
    together = array.store.write_nbytes
    nbytes = together or array.store.batch_nbytes or BATCH_NBYTES
    batch = max(1, nbytes // max(1, array.chain.batch_nbytes))
    wanted = CancelToken.current()
    for first in range(0, len(planned), batch):
        wanted.check()  # After Ctrl-C no further file is begun.
        rows = planned.part(first, first + batch)
        if all(rows.whole):
            _write_whole(array, rows, source)
        elif together:
            _write_together(array, rows, source)
        else:
            for i in range(len(rows)):
                row = rows.part(i, i + 1)
                (_write_whole if rows.whole[i] else _write_partial)(array, row, source)


def _write_shard(array: ChunkedArray, rows: PlanWindow, source: Memory) -> None:
    """Gather, encode and store the inner chunks of one shard."""
    CancelToken.current().check()
    if all(rows.whole) and len(rows) == _inner_chunks(array, rows):
        value = _encoded(array, rows, None, source)
        columns = _store(array, WriteRequest(keys=rows.keys[:1], values=[value]))
        _raise_first(array, rows, columns)
    else:
        _write_partial(array, rows, source)


def _inner_chunks(array: ChunkedArray, rows: PlanWindow) -> int:
    """Count the innermost chunks of the shard of these rows that lie inside the array."""
    count = 1
    for d, (column, ratio, size, chunk) in enumerate(
        zip(rows.cells, array.key_ratio, array.shape, array.chunk_shape)
    ):
        count *= min(ratio, -(-(size - array.first_of_key(d, int(column[0]))) // chunk))
    return count


def _write_whole(array: ChunkedArray, rows: PlanWindow, source: Memory) -> None:
    nothing: list[Buffer | None] = [None] * len(rows)
    values = _gather(array, rows, nothing, source)
    columns = _store(array, WriteRequest(keys=rows.keys, values=values))
    _raise_first(array, rows, columns)


def _write_together(array: ChunkedArray, rows: PlanWindow, source: Memory) -> None:
    """Read, change and write back chunks in one batch; repeat for those others changed."""
    delay = FIRST_DELAY_S
    for _ in range(ATTEMPTS):
        present: list[Buffer | None] = [None] * len(rows)
        generation = [b""] * len(rows)
        partial_rows = [row for row in range(len(rows)) if not rows.whole[row]]
        columns = fetch_whole(array, [rows.keys[row] for row in partial_rows])
        for row, value, seen in zip(partial_rows, columns.value, columns.generation):
            present[row], generation[row] = value, seen
        values = _gather(array, rows, present, source)
        stored = _store(array, WriteRequest(rows.keys, values, generation))
        _raise_first(array, rows, stored)
        left = [row for row in range(len(rows)) if not stored.generation[row]]
        if not left:
            return
        rows = rows.take(left)
        STATISTICS.add(retries=1)
        time.sleep(random.uniform(0, delay))
        delay = min(2 * delay, LONGEST_DELAY_S)
    raise _always_slower(array, rows.keys[0])


def _write_partial(array: ChunkedArray, rows: PlanWindow, source: Memory) -> None:
    """Read, change and write back one value, repeated while other writers change it.

    All rows have the same key: one row, or inner chunks of one shard.
    """
    key = rows.keys[0]
    delay = FIRST_DELAY_S
    for _ in range(ATTEMPTS):
        present = fetch_whole(array, [key])
        value = _encoded(array, rows, present.value[0], source)
        columns = _store(array, WriteRequest([key], [value], present.generation))
        _raise_first(array, rows, columns)
        if columns.generation[0]:
            return
        STATISTICS.add(retries=1)
        time.sleep(random.uniform(0, delay))
        delay = min(2 * delay, LONGEST_DELAY_S)
    raise _always_slower(array, key)


def _always_slower(array: ChunkedArray, key: str) -> ConflictError:
    return ConflictError(
        f"Error writing {array.store.describe(key)}: another writer was faster {ATTEMPTS} times",
        key=key,
    )


def _encoded(
    array: ChunkedArray,
    rows: PlanWindow,
    present: Buffer | None,
    source: Memory,
    depth: int = 0,
) -> Buffer | None:
    """Encode the value of a key: a chunk, or a shard that keeps other inner chunks as encoded."""
    if depth == len(array.levels):
        return _gather(array, rows, [present], source)[0]
    level = array.levels[depth]
    chunks: list[Buffer | None] = [None] * level.index.count
    if present is not None:
        try:
            chunks = unpack(present, level.index, array.inner_bound(depth + 1))
        except CorruptChunkError as error:
            key = rows.keys[0]
            where = f"Error reading {array.store.describe(key)}: shard index"
            raise error.prefixed(where, key=key) from error
    cells = list(zip(*(list(column) for column in rows.cells))) or [()]
    positions = [level.position(cell) for cell in cells]
    if depth + 1 == len(array.levels):
        stored = [None if rows.whole[i] else chunks[at] for i, at in enumerate(positions)]
        for at, encoded in zip(positions, _gather(array, rows, stored, source)):
            chunks[at] = encoded
    else:
        members: dict[int, list[int]] = {}
        for i, at in enumerate(positions):
            members.setdefault(at, []).append(i)
        for at, some in members.items():
            chunks[at] = _encoded(array, rows.take(some), chunks[at], source, depth + 1)
    return pack(chunks, level.index)


def _store(array: ChunkedArray, request: WriteRequest) -> WriteColumns:
    try:
        columns = array.store.write_many(request)
    finally:
        if array.cache is not None:
            array.cache.forget(request.keys)
    # Where a condition failed or an error occurred there is no generation.
    stored = zip(request.values, columns.generation)
    nbytes = sum([len(value) for value, generation in stored if generation and value is not None])
    STATISTICS.add(bytes_stored=nbytes)
    return columns


def _raise_first(array: ChunkedArray, rows: PlanWindow, columns: WriteColumns) -> None:
    """Raise the first error; one about a directory names the chunk as well."""
    for row, error in sorted(columns.error.items()):
        key = rows.keys[row]
        if error.key == key:
            raise error
        located = error.prefixed(f"Error writing {array.store.describe(key)}")
        located.key = key
        raise located from error


def _gather(
    array: ChunkedArray, rows: PlanWindow, present: list[Buffer | None], source: Memory
) -> list[Buffer | None]:
    return array.backend.gather(
        rows, present, array.chain, array.blank, source, keep_fill=array.keep_fill
    )
