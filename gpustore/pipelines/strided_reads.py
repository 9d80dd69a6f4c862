"""Reads of few chunks through strided maps, which the native core plans: alone, or together.

A read waits in the queue of its array until somebody asks for its result. Whoever asks first takes
all that wait there and reads them in one pass: the core plans them together and decodes each chunk
once. A read that waits alone runs in the thread that asks, because a handover to the pool costs
more than a small read. A worker is called to take the queue if a read is large, if a second one is
not tiny, if many wait, or if a Future of one is polled, awaited or given a callback.

Work that reads share is divided between their statistics. A read that was cancelled, or whose
Future nobody holds, is left out. If a pass fails, or the core leaves chunks alone, the reads
concerned are repeated by themselves with a plan in Python, so that each has its own error.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from operator import call, not_
from typing import Any

from gpustore.backends.host.memory import HostMemory, memory_of
from gpustore.backends.native.job import NO_COUNTS, Counts
from gpustore.backends.native.request import MOST_ROWS, Request
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import SPLIT_S, ChunkedArray
from gpustore.pipelines.native_read import count
from gpustore.runtime.cancel_token import Cancelled, CancelToken
from gpustore.runtime.claimed import claim_all, finish_all
from gpustore.runtime.epoch import epoch
from gpustore.runtime.future import Future, new
from gpustore.runtime.statistics import (
    STATISTICS,
    Division,
    Operation,
    attributed,
    begin_amount,
    operation_of,
)

SMALL_ROWS = 32
SMALL_S = 300e-6
"""Most chunks and seconds of decoding of a local read that runs in the thread that asks for it."""

TINY_ROWS = 3
TINY_S = 60e-6
"""Most chunks and seconds of a read that does so even while an earlier one is not asked for."""

NATIVE_ROW_S = 4e-6
"""Seconds that the native core takes to open, read and close a file."""

MANY = 64
"""Number of tiny reads that do not wait until they are asked for."""

MOST_TOGETHER = 1 << 20
"""Most chunks of reads in one pass, counted as often as they are wanted."""

LONG_S = 5e-3
"""Seconds of decoding above which reads that share no chunk are begun by themselves."""

GATHERINGS = 10
"""Most times that a worker gives way to threads that go on asking, 5 ms each."""


class StridedRead:
    """A read of one array, a task for its Future (:class:`gpustore.runtime.deferred.Deferred`).

    Attributes
    ----------
    array : ChunkedArray
        Array with native constants.
    rows : int
        Number of chunks that the read touches.
    seconds : float
        Estimate of the time that decoding them takes.
    transform, words, out
        See :class:`gpustore.backends.native.request.StridedItem`.
    result : object
        Result of the read: the array that is filled, or the object of the caller.
    """

    __slots__ = ("array", "out", "result", "rows", "seconds", "transform", "words")

    array: ChunkedArray
    transform: IndexTransform
    rows: int
    seconds: float
    words: Sequence[int] | None
    out: HostMemory | None
    result: Any

    begins_when_polled = True

    @property
    def memory(self) -> HostMemory:
        """Memory of the array that is filled."""
        return memory_of(self.result) if self.out is None else self.out

    def again(self) -> Future[Any]:
        """Begin the read anew, with a plan in Python."""
        raise NotImplementedError

    def ask(self) -> Future[Any]:
        """Return the Future of the read, which waits in the queue of its array."""
        array = self.array
        future: Future[Any] = new()
        future._deferred = self
        waiting = array.waiting.reads
        waiting.append(weakref.ref(future))
        if self.rows <= TINY_ROWS and self.seconds <= TINY_S:
            if not len(waiting) % MANY:
                _call_worker(array)
        elif len(waiting) > 1 or self.rows > SMALL_ROWS or self.seconds > SMALL_S:
            _call_worker(array)
        return future

    def begin(self, future: Future[Any], /) -> None:
        """Let a worker do the read, whose Future nobody else may claim now."""
        self.array.waiting.forced.append((self, future))
        _call_worker(self.array)

    def now(self) -> Any:
        """Read on this thread, together with all that wait; return the result or its Future."""
        together = _begin_waiting(self.array, self)
        if together is not None:
            return together
        if self.rows > SMALL_ROWS or self.seconds > SMALL_S:
            return self._begin_alone(asked=True)
        array = self.array
        native = array.native
        assert native is not None
        counts = Request(native, [self], array.key_directory()).read_now()
        if counts is None or counts.left:
            STATISTICS.add(reads=1, chunks_planned=self.rows)
            return self.again()
        count(counts, reads=1, chunks_planned=self.rows)
        return self.result

    def _begin_alone(self, *, asked: bool = False) -> Future[Any]:
        """Begin the read on the pool, and on this thread if it is `asked` for and helps."""
        array = self.array
        STATISTICS.add(reads=1, chunks_planned=self.rows)
        planned = _plan(array, [self], self.rows, self.seconds, MOST_ROWS)
        if planned is None:
            return self.again()
        request, threads, _ = planned
        end = begin_amount("bytes_decoded", request.decoded)

        def finish() -> Any:
            counts, _ = request.end()
            end(partial(count, NO_COUNTS if counts.left else counts))
            return self.again() if counts.left else self.result

        work = partial(_work, request, ())
        tasks, helped = [work] * threads, array.is_helped
        return array.executor.run_all(tasks, finish, helped=helped, asked=asked)

    def alone(self, future: Future[Any]) -> None:
        """Begin the read by itself; `future` becomes its Future."""
        _follow(future, self._begin_alone)


Asked = tuple[StridedRead, Future[Any]]
"""A read that was taken from the queue, and the Future that is to be finished."""


def begin_batch(reads: Sequence[Asked]) -> None:
    """Begin the reads of a batch of one array; they count in one Statistics object."""
    array = reads[0][0].array
    if len(reads) > 1 and _begin_together(array, reads, of_batch=True):
        return
    for one, future in reads:
        one.alone(future)


def _begin_together(
    array: ChunkedArray, reads: Sequence[Asked], *, of_batch: bool = False, asked: bool = False
) -> bool:
    """Begin reads of one array in one pass, in which each chunk is decoded once.

    Parameters
    ----------
    of_batch : bool
        Whether the reads count in one Statistics object, also the chunks that are planned.
        Otherwise the work is divided between them, and long reads that share no chunk are not
        begun.
    asked : bool
        Whether this thread is about to wait for one of them.

    Returns
    -------
    bool
        Whether the reads are begun; otherwise they are to be begun one by one.
    """
    items, futures = zip(*reads)
    touched = [one.rows for one in items]
    rows, seconds = sum(touched), sum([one.seconds for one in items])
    most = min(MOST_TOGETHER, len(reads) * array.limits.chunks_per_request)
    planned = _plan(array, items, rows, seconds, most)
    if planned is None:
        return False
    request, threads, chunks = planned
    seconds = min(chunks * array.chain.decode_s, seconds)
    is_long = seconds + chunks * NATIVE_ROW_S > LONG_S
    if is_long and not of_batch and chunks == rows:
        return False
    shared = Operation()
    if of_batch:
        shared.add(reads=len(reads), chunks_planned=chunks)
        for future in futures:
            future._counted = shared
    division = Division(0) if of_batch else Division.of_reads(futures, touched)

    rest = deque(reads)
    end: Callable[[Callable[[], object]], object] = call
    if is_long:  # Of others nobody sees a part.
        operations = [shared] if of_batch else [operation_of(future) for future in futures]
        share = partial(_share, request, len(operations))
        end = begin_amount("bytes_decoded", share, operations)

    def add(counts: Counts) -> None:
        count(counts)
        division.amounts = shared.snapshot()

    def finish() -> None:
        nonlocal rest
        counts, left = request.end()
        end(partial(add, counts))
        finish_all(compress(reads, map(not_, left)) if counts.left else reads)
        rest = deque(compress(reads, left))
        while rest:
            one, future = rest[0]
            try:
                rest.popleft()
                _follow(future, one.again)
            except BaseException:  # Ctrl-C: the read may have begun anew, it must not do so twice.
                future.cancel()
                raise

    def repeat() -> None:
        """Begin the reads that the pass did not finish; nothing fills their arrays any more."""
        try:
            for one, future in rest:
                _follow(future, one.again)
        except BaseException:  # Ctrl-C: nobody else would finish them.
            _cancel(rest)
            raise

    work = partial(_work, request, futures)
    tasks, helped, run_all = [work] * threads, array.is_helped, array.executor.run_all
    begin = partial(run_all, tasks, finish, helped=helped, asked=asked, ended=repeat)
    group = attributed(shared, begin)
    # A thread that asks for one of them does a part of the work, if it helps.
    for future in futures:
        future._help = group._help
    return True


def _plan(
    array: ChunkedArray, items: Sequence[StridedRead], rows: int, seconds: float, most_rows: int
) -> tuple[Request, int, int] | None:
    """Let the core plan reads; return the request, its threads and chunks; None if it does not."""
    native = array.native
    assert native is not None
    seconds += rows * NATIVE_ROW_S
    threads = max(1, min(array.executor.limit, rows, int(seconds / SPLIT_S)))
    request = Request(native, items, array.key_directory(), most_rows, threads)
    chunks = request.plan()
    return (request, threads, chunks) if chunks else None


def _work(request: Request, futures: Sequence[Future[Any]]) -> None:
    """Read planned chunks until all are taken, or all `futures` are cancelled."""
    wanted = CancelToken.current()
    while request.read(wanted):
        wanted.check()
        if futures and all(future.cancelled() for future in futures):
            raise Cancelled


def _share(request: Request, reads: int) -> int:
    return request.decoded() // reads


def _follow(future: Future[Any], begin: Callable[[], Future[Any]]) -> None:
    """Begin the operation that `future` is the Future of, unless it is done or cancelled."""
    if future._done:
        return
    try:
        begun = attributed(operation_of(future), begin)
    except Exception as error:
        future._finish(None, error)
    else:
        future._follow(begun)


def _begin_waiting(array: ChunkedArray, asked: StridedRead | None = None) -> Future[Any] | None:
    """Take all reads that wait and begin them, together if that is faster.

    Parameters
    ----------
    asked : StridedRead, optional
        Read that is begun with them, if any wait.

    Returns
    -------
    Future or None
        Future of `asked`, if it is begun. The Futures of the others get any error.
    """
    mine = None
    reads: list[Asked] = []
    try:
        _take(array, reads)
        if not reads:
            return None
        if asked is not None:
            mine = new(epoch())
            reads.insert(0, (asked, mine))
        if len(reads) > 1 and _begin_together(array, reads, asked=asked is not None):
            return mine
        for one, future in reads:
            one.alone(future)
    except Exception as error:
        for _, future in reads:
            future._finish(None, error)
    except BaseException:  # Ctrl-C: nobody else would finish them.
        _cancel(reads)
        raise
    return mine


def _take(array: ChunkedArray, reads: list[Asked]) -> None:
    """Take all reads that wait and are still wanted.

    The list belongs to the caller: whenever Ctrl-C comes, it has all that were taken.
    """
    waiting = array.waiting
    found: list[weakref.ref[Future[Any]]] = []
    # One call of C each, so that no signal handler runs between the queue and the list.
    with suppress(IndexError):  # The queue is empty; other threads take reads as well.
        reads.extend(iter(waiting.forced.popleft, None))
    with suppress(IndexError):
        found.extend(iter(waiting.reads.popleft, None))
    claim_all(found, reads)


def _cancel(reads: Iterable[Asked]) -> None:
    for _, future in reads:
        future.cancel()


def _call_worker(array: ChunkedArray) -> None:
    """Let a worker take what waits, unless one was called that has not come yet."""
    waiting = array.waiting
    if waiting.called != epoch():
        waiting.called = epoch()
        try:
            array.executor.execute(partial(_gather, array))
        except RuntimeError:  # No thread can be started.
            waiting.called = None
            raise


def _gather(array: ChunkedArray) -> None:
    """Take and begin all that waits; runs on a worker."""
    waiting = array.waiting
    # The interpreter lets the asking thread go on for 5 ms, unless it waits for something.
    for _ in range(GATHERINGS):
        count = len(waiting.reads) + len(waiting.forced)
        time.sleep(0)
        if len(waiting.reads) + len(waiting.forced) == count:
            break
    waiting.called = None
    _begin_waiting(array)
