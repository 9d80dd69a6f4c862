"""Writes: from an array in memory to stored chunks.

1. Plan as for a read; the array written takes the part of the plan's destination.
2. Begin, unless an earlier write of the array that is under way touches one of the same chunks:
   such a write waits until that has ended (:mod:`gpustore.pipelines.writes_under_way`).
3. Split the plan among the threads; each task works through its part batch by batch. All inner
   chunks of one shard go to one task, so that the shard is written once. Of writes that waited
   and touch the same chunks, all that they lay over one chunk goes to one task, which reads,
   changes and stores it once.
4. Gather, encode and store (:mod:`gpustore.pipelines.value_change`).

``copy`` is ready when the source may be reused, ``commit`` when everything is stored.
"""

from __future__ import annotations

from typing import Any

from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.writes_under_way import PendingWrite, begin_in_order
from gpustore.runtime.statistics import STATISTICS
from gpustore.runtime.write_futures import WriteFutures


def write(array: ChunkedArray, transform: IndexTransform, source: Any) -> WriteFutures:
    """Write `source` to the domain of `transform`.

    Writes of one `array` take effect in the order in which they are asked for.

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
    one = PendingWrite(array, plans, memory)
    begin_in_order(one)
    return WriteFutures(one.copy, one.commit)
