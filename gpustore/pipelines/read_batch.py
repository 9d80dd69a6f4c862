"""Reads of one array in a batch: they share the fetching and decoding of their chunks.

1. Each read is planned when it is asked for, so that bounds and limits are errors at once.
2. When the batch is submitted, the plans are joined (:mod:`gpustore.joined_plan`) and read in one
   pass (:func:`gpustore.pipelines.read_many.read_pieces`): a chunk is fetched and decoded once, and
   cut into the pieces of all reads that want it.
3. If the pass fails, each read is repeated by itself, so that each has its own result or error.

Reads through index arrays, of very many chunks, or alone in their batch are ordinary reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpustore.backends.base import Memory
from gpustore.batch import Batch
from gpustore.chunk_plan import ChunkPlan
from gpustore.future import Future, Promise
from gpustore.index_space import IndexTransform
from gpustore.joined_plan import join_plans
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.read import contiguous, read
from gpustore.pipelines.read_many import read_pieces, single_chunks
from gpustore.statistics import STATISTICS

__all__ = ["read_in_batch"]

MOST_ROWS = 1 << 20
"""Reads of more chunks are not joined: the columns of a joined plan are written down at once."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A read that waits for its batch."""

    array: ChunkedArray
    transform: IndexTransform
    plan: ChunkPlan
    memory: Memory
    result: Any
    promise: Promise[Any]
    future: Future[Any]

    @property
    def joins(self) -> bool:
        return not self.plan.pointed and 0 < len(self.plan) <= MOST_ROWS

    def alone(self) -> None:
        """Read by itself."""
        try:
            future = read(self.array, self.transform, out=self.result)
        except Exception as error:
            self.promise.set_exception(error)
        else:
            self.promise.follow(future)


def read_in_batch(
    array: ChunkedArray,
    transform: IndexTransform,
    batch: Batch,
    *,
    out: Any = None,
    order: str = "C",
) -> Future[Any]:
    """Read the domain of `transform` when `batch` is submitted.

    Parameters and errors are those of :func:`gpustore.pipelines.read.read`.
    """
    shape = tuple(transform.domain.shape)
    strides = contiguous(shape, array.dtype.itemsize, order)
    if out is not None:
        memory = array.backend.destination(out, shape, array.dtype)
        strides = memory.strides
    plan = array.plan(transform, strides, src_stride=single_chunks(array).stride)
    if out is None:
        memory = array.backend.empty(shape, array.dtype, order)
    promise: Promise[Any]
    promise, future = Promise.new()
    result = memory.array if out is None else out
    item = _Read(array, transform, plan, memory, result, promise, future)
    batch._join(("array", id(array)), _start, item, promise)
    return future


def _start(reads: list[_Read]) -> None:
    reads = [one for one in reads if not one.future.cancelled()]
    joined = []
    rows = 0
    for one in reads:
        rows += len(one.plan)
        if one.joins and rows <= MOST_ROWS:
            joined.append(one)
        else:
            one.alone()
    if len(joined) < 2:
        for one in joined:
            one.alone()
        return
    array = joined[0].array
    plan = join_plans([one.plan for one in joined], single_chunks(array))
    STATISTICS.add(reads=len(joined), chunks_planned=len(plan))

    def finish(done: Future[None]) -> None:
        failed = done.cancelled() or done.exception() is not None
        for one in joined:
            if failed:
                one.alone()
            else:
                one.promise.set_result(one.result)

    shared = read_pieces(array, plan, [one.memory for one in joined], None)
    shared.add_done_callback(finish)
