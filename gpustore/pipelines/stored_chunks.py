"""Count of the chunks of a domain that are stored, of which none is read.

Inner chunks of a shard are looked up in its index; of other chunks the kvstore is asked whether
their keys are there.
"""

from __future__ import annotations

from functools import partial

from gpustore.errors import ConflictError
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.fetch import ATTEMPTS, Changed, refine
from gpustore.pipelines.read import PLANNED_ROWS, contiguous
from gpustore.planning.chunk_plan import ChunkPlan
from gpustore.planning.stored_chunks import StoredChunks
from gpustore.planning.window import PlanWindow
from gpustore.runtime.future import Future


def stored_chunks(array: ChunkedArray, transform: IndexTransform) -> Future[StoredChunks]:
    """Look up which chunks with elements of the domain of `transform` are stored.

    Returns
    -------
    Future of StoredChunks

    Raises
    ------
    OutOfBoundsError, LimitError
        Before any I/O.
    CorruptChunkError, StoreIOError, ConflictError
        Through the Future, naming the key.
    """
    array = array.stored or array
    shape = tuple(transform.domain.shape)
    plans = array.plans(transform, contiguous(shape, array.dtype.itemsize, "C"))
    found: list[StoredChunks] = []

    def look_up(one: ChunkedArray, plan: ChunkPlan, number: int, count: int) -> None:
        for window in plan.windows(number, count, PLANNED_ROWS):
            stored = _stored(one, window)
            found.append(StoredChunks(not any(stored), all(stored)))

    tasks = [
        partial(look_up, one, plan, number, count)
        for one, plan in plans
        for count in [one.fewer_parts(one.parts(plan), len(plan))]
        for number in range(count)
    ]
    return array.executor.run_all(
        tasks,
        lambda: StoredChunks(all(one.none for one in found), all(one.every for one in found)),
    )


def _stored(array: ChunkedArray, window: PlanWindow) -> list[bool]:
    """Return of each row whether its chunk is stored."""
    if not array.levels:
        return [nbytes >= 0 for nbytes in array.store.nbytes_many(window.keys)]
    for _ in range(ATTEMPTS):
        try:
            absent = refine(array, window)[0].absent
        except Changed as change:
            key = change.key
            continue
        assert absent is not None  # A level of sharding has set it.
        return [not gone for gone in absent]
    raise ConflictError(
        f"Error reading {array.store.describe(key)}: it was replaced {ATTEMPTS} times while being "
        f"read; retry when its writer is done",
        key=key,
    )
