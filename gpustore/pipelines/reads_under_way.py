"""Reads of an array that are asked for while others of it are under way wait for a thread together.

The first read begins at once. Those that follow before it is done are queued for their array; the
next worker that is free takes all that are queued, and reads chunks that several of them want once
(:mod:`gpustore.pipelines.merged_reads`). It fetches only then, so each read finds every write that
was done before it was asked for. If no chunk is wanted twice, each read is begun by itself.

Work that reads share is divided between their statistics. A read that was cancelled while it waited
is left out.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from gpustore.backends.base import Memory
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.merged_reads import (
    PendingRead,
    is_mergeable,
    plan_together,
    read_together,
)
from gpustore.runtime.epoch import epoch
from gpustore.runtime.future import Future, new
from gpustore.runtime.promise import Promise
from gpustore.runtime.statistics import Operation, operation_of

GATHERINGS = 10
"""Most times that a worker gives way to threads that go on asking, 5 ms each."""


class _Reads:
    """Reads of one array under way.

    Attributes
    ----------
    count : int
        Number of reads that are not done.
    waiting : list of PendingRead
        Those that no thread has taken.
    """

    __slots__ = ("array", "count", "waiting")

    def __init__(self, array: ChunkedArray) -> None:
        self.array = array  # Its address is not used again meanwhile.
        self.count = 0
        self.waiting: list[PendingRead] = []

    def done(self, _: Future[Any]) -> None:
        """Count a read that is done."""
        with _lock:
            self.count -= 1
            if not self.count and _arrays.get(id(self.array)) is self:
                del _arrays[id(self.array)]

    def take(self) -> None:
        """Read all that waits; called by a worker."""
        # The interpreter lets the asking thread go on for 5 ms, unless it waits for something.
        for _ in range(GATHERINGS):
            count = len(self.waiting)
            time.sleep(0)
            if len(self.waiting) == count:
                break
        with _lock:
            reads, self.waiting = self.waiting, []
        try:
            _begin(reads)
        except Exception as error:
            for one in reads:
                one.promise.set_exception(error)


_arrays: dict[int, _Reads] = {}
_lock = threading.RLock()  # Re-entrant: the garbage collector may submit a Batch while it is held.


def _after_fork() -> None:
    """Forget the reads of the parent process, whose threads do them."""
    global _lock
    _lock = threading.RLock()
    _arrays.clear()


os.register_at_fork(after_in_child=_after_fork)


def wait_with_others(
    array: ChunkedArray,
    transform: IndexTransform,
    memory: Memory,
    begin: Callable[[], Future[Any]],
) -> Future[Any]:
    """Begin a read, or queue it if others of its array are under way.

    Parameters
    ----------
    array : ChunkedArray
    transform : IndexTransform
        Maps the domain wanted to the array.
    memory : Memory
        New array of the read.
    begin : callable
        Begins the read by itself; returns the Future of its result.
    """
    if not is_mergeable(transform):
        return begin()
    with _lock:
        reads = _arrays.setdefault(id(array), _Reads(array))
        reads.count += 1
        alone = reads.count == 1
    try:
        future = begin() if alone else _queue(reads, transform, memory, begin)
    except BaseException:
        reads.done(new())
        raise
    future.add_done_callback(reads.done)
    return future


def _queue(
    reads: _Reads, transform: IndexTransform, memory: Memory, begin: Callable[[], Future[Any]]
) -> Future[Any]:
    promise: Promise[Any]
    promise, future = Promise.new()
    promise.hand_over()  # In a forked child nobody finishes it.
    future._epoch = epoch()
    array = reads.array
    one = PendingRead(array, transform, memory, memory.array, promise, future, begin)
    with _lock:
        reads.waiting.append(one)
        first = len(reads.waiting) == 1
    if first:
        array.executor.execute(reads.take)
    return future


def _begin(reads: list[PendingRead]) -> None:
    """Begin reads, together if they share chunks."""
    reads = [one for one in reads if not one.future.cancelled()]
    plans = plan_together(reads) if len(reads) > 1 else None
    if plans is None or not any(plan.shares for _, plan in plans):
        for one in reads:
            one.alone()
        return
    shared = Operation()
    operations = [operation_of(one.future) for one in reads]
    read_together(reads, plans, shared, before=lambda: shared.divide(operations))
