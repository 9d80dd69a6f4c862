"""Thread pool of the process, and executors with threads of their own.

:class:`Executor` promises more than :mod:`concurrent.futures`:

* Its threads are daemons, started when there is work for them. The interpreter never waits for
  reads at exit; writes under way get at most five seconds (``drain=True``).
* A task never waits for another. :meth:`Executor.run_all` fans out without a waiting task: the
  worker that finishes last goes on. If user code on a worker waits nevertheless (a callback, a
  user's chunk function), a spare thread takes its place, so the pool cannot deadlock.
* Cancelling skips what has not begun, and running tasks may ask ``CancelToken.current()``
  (``cancel_token.py``).
* After a fork the child has fresh locks and an empty pool, and can use it at once.
* Between tasks workers hold no reference to the last one.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from array import array as numbers
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from gpustore.runtime.cancel_token import RUNNING, CancelToken, is_cancelled
from gpustore.runtime.cores import cores
from gpustore.runtime.epoch import epoch
from gpustore.runtime.frames import without_locals
from gpustore.runtime.future import Future, new
from gpustore.runtime.promise import Promise
from gpustore.runtime.statistics import CURRENT, operation_of
from gpustore.runtime.thread_state import thread_state
from gpustore.runtime.uncaught import report

T = TypeVar("T")

# Time after which a fan-out gives way to other queued work, in seconds.
_SLICE_S = 0.005

# Longest wait of the interpreter at exit for writes under way, in seconds.
_DRAIN_S = 5.0


class Executor:
    """Executor that runs callables on daemon threads of its own.

    Parameters
    ----------
    limit : int
        Most threads that work at the same time, at least 1.

    Examples
    --------
    >>> executor = Executor(2)
    >>> executor.submit(sum, [1, 2, 3]).result()
    6
    """

    __slots__ = ("__weakref__", "_crew", "limit")

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"Executor: expected a limit of at least 1, but received: {limit}")
        self.limit = limit
        self._crew = _Crew(limit)
        # Threads refer to the crew only, so that an executor without references is collected.
        weakref.finalize(self, self._crew.dismiss).atexit = False

    def execute(self, task: Callable[[], object], /) -> None:
        """Call `task` on a worker; `task` must handle its errors itself."""
        self._crew.put(task)

    def begin(self, future: Future[Any], fn: Callable[[], Any], /) -> None:
        """Call `fn` on a worker and finish `future` with its result."""
        self._crew.put(partial(future._run, fn))

    def submit(
        self, fn: Callable[..., T | Future[T]], /, *args: object, drain: bool = False
    ) -> Future[T]:
        """Call ``fn(*args)`` on a worker.

        Parameters
        ----------
        fn : callable
            If it returns a Future, the result is that of this Future; no thread waits for it.
        drain : bool
            Whether the interpreter waits at exit for `fn`, at most five seconds: for writes.

        Returns
        -------
        Future
            Cancelling it skips `fn` if it has not begun.
        """
        future: Future[T] = new(epoch())
        if drain:
            wait_at_exit(future)
        self._crew.put(partial(future._run, partial(fn, *args) if args else fn))
        return future

    def run_all(
        self,
        tasks: Sequence[Callable[[], object]],
        then: Callable[[], T | Future[T]],
        *,
        parent: Promise[T] | None = None,
        drain: bool = False,
        helped: bool = False,
        asked: bool = False,
        ended: Callable[[], object] | None = None,
    ) -> Future[T]:
        """Call all `tasks`, then `then`; no thread waits for a task.

        Parameters
        ----------
        tasks : sequence of callables
            Begun in order, by up to `limit` workers; may be lazy, each index is read once. The
            error of a lambda keeps alive what its closure holds, that of a `functools.partial`
            does not.
        then : callable
            Called by the worker that finishes last, if no task failed. The result is the value it
            returns, or that of a Future it returns.
        parent : Promise, optional
            Finished with the outcome, instead of a new Future; its cancellation stops the tasks.
        drain : bool
            Whether the interpreter waits at exit for the tasks, as in :meth:`submit`; the Future
            of a `parent` is left to the caller (:func:`wait_at_exit`).
        helped : bool
            Whether a thread that waits for the Future without a time limit takes tasks as well.
        asked : bool
            Whether this thread is about to wait: one worker fewer is called if it helps.
        ended : callable, optional
            Called when no task runs any more, whatever their outcome: behind `then`, and before the
            Future fails. It must not raise.

        Returns
        -------
        Future
            Fails with the error of the first task, in their order, that fails: tasks behind one
            that failed are skipped or told to stop, those before it go on to their end. The Future
            is done only when all that had begun have ended, as they may still use its buffers.
        """
        group = _Group(self, tasks, then, parent, ended)
        if drain:
            if parent is None:
                wait_at_exit(group.future)
            _unfinished.add(group)
        if not len(tasks):
            self._crew.put(group.end)
        future = group.future
        if helped:
            future._help = group
        takes_part = helped and asked and thread_state.crew is None
        for _ in range(max(1, min(len(tasks) - takes_part, self.limit))):
            self._crew.put(group)
        return future


class _Crew:
    """Threads of an executor and the tasks queued for them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._dismissed = False
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Reset threads and queue: the parent's threads do not exist in the child."""
        # Re-entrant, since the garbage collector may call `dismiss` while it is held.
        self._lock = threading.RLock()
        self._queue: deque[Callable[[], object]] = deque()
        self._sleepers: list[threading.Lock] = []  # the last one to fall asleep is woken first
        self._threads = 0
        self._spare = 0  # number of threads that wait for other tasks

    def busy(self) -> bool:
        """Whether tasks are queued that no thread has taken."""
        return bool(self._queue)

    def put(self, task: Callable[[], object]) -> None:
        """Queue `task`, wake a thread or start one."""
        if sys.is_finalizing():  # The threads are gone, and no other can be started.
            task()
            return
        with self._lock:
            self._queue.append(task)
            missing = self._call_thread()
        if missing:
            self._start()

    def begin_wait(self) -> None:
        """Let a spare thread stand in for one of ours that is about to wait."""
        with self._lock:
            self._spare += 1
            missing = bool(self._queue) and self._call_thread()
        if missing:
            self._start()

    def end_wait(self) -> None:
        """Withdraw the spare thread of :meth:`begin_wait`."""
        with self._lock:
            self._spare -= 1

    def dismiss(self) -> None:
        """End all threads once the queue is empty."""
        with self._lock:
            self._dismissed = True
            sleepers, self._sleepers = self._sleepers, []
        for bell in sleepers:
            bell.release()

    def _call_thread(self) -> bool:
        """Wake a thread; return whether one has to be started. Called under the lock."""
        if self._sleepers:
            self._sleepers.pop().release()
            return False
        if self._threads >= self.limit + self._spare:
            return False
        self._threads += 1
        return True

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name="gpustore", daemon=True).start()
        except RuntimeError:
            # The system has no more threads. Those that run take the task; without any it would
            # wait for ever, so the caller gets the error.
            with self._lock:
                self._threads -= 1
                alone = self._threads == 0
            if alone:
                raise

    def _work(self) -> None:
        """Run tasks until dismissed; the body of each thread."""
        thread_state.crew = self
        bell = threading.Lock()
        bell.acquire()
        woken = True
        while True:
            with self._lock:
                surplus = self._threads > self.limit + self._spare
                # A thread that was woken for a task takes it. One that has ended a task and is
                # surplus, because the thread it stood in for is back, leaves the next to others.
                if self._queue and (woken or not surplus):
                    task = self._queue.popleft()
                elif surplus or (self._dismissed and not self._queue):
                    self._threads -= 1
                    return
                else:
                    task = None
                    self._sleepers.append(bell)
            woken = task is None
            if task is None:
                bell.acquire()
                continue
            try:
                task()
            except BaseException as error:
                # Tasks handle their own errors; one that escapes must not end the thread.
                report(error, f"the task {task!r}")
            # A sleeping thread must not keep the arrays of its last task alive.
            del task


class _Group(Generic[T]):
    """Tasks of one fan-out; each worker that calls it takes tasks until none is left."""

    __slots__ = (
        "_begun",
        "_crew",
        "_ended",
        "_error",
        "_failed",
        "_left",
        "_lock",
        "_owner",
        "_rank",
        "_tasks",
        "_then",
        "_words",
        "future",
    )

    def __init__(
        self,
        owner: Executor,
        tasks: Sequence[Callable[[], object]],
        then: Callable[[], T | Future[T]],
        parent: Promise[T] | None,
        ended: Callable[[], object] | None,
    ) -> None:
        self.future: Future[T] = parent.hand_over() if parent else new()
        self.future._epoch = epoch()
        self._owner = owner  # keeps the threads until the fan-out is done
        self._crew = owner._crew
        self._tasks: Sequence[Callable[[], object]] | None = tasks
        self._then: Callable[[], T | Future[T]] | None = then
        self._ended = ended
        self._lock = threading.Lock()
        self._begun = 0
        self._left = len(tasks)
        self._error: BaseException | None = None
        self._rank = True, len(tasks)  # of the error: whether it is a cancellation, and its task
        self._failed = len(tasks)  # first task that has failed
        # Of each task that runs, a byte by which native code hears that it is to stop.
        self._words: dict[int, numbers[int]] = {}
        self.future.add_done_callback(partial(_tell, self._words))

    def __call__(self) -> None:
        until = time.perf_counter() + _SLICE_S
        while True:
            with self._lock:
                tasks, index = self._tasks, self._begun
                if tasks is None or index == len(tasks):
                    return
                # Once cancelled, one turn skips all tasks that are left.
                wanted = not self._cancelled()
                taken = 1 if wanted else len(tasks) - index
                self._begun += taken
            interrupt = self._run(tasks, index) if wanted else None
            del tasks
            with self._lock:
                self._left -= taken
                last = self._left == 0
            if last:
                self.end()
            if interrupt is not None:
                raise interrupt
            if last:
                return
            # Behind the tasks that are queued, so that a long fan-out does not delay a short one.
            if self._crew.busy() and time.perf_counter() > until:
                self._crew.put(self)
                return

    def _cancelled(self) -> bool:
        return self._error is not None or self.future.cancelled()

    def _stops(self, index: int) -> bool:
        """Whether a task is to stop: a task before it has failed, or nobody wants the result."""
        return self._failed < index or self.future.cancelled()

    def _begin(self, index: int) -> CancelToken:
        """Return the token of a task that begins."""
        word = numbers("b", b"\0")
        with self._lock:
            self._words[index] = word
        if self._stops(index):
            word[0] = 1
        # Made anew: a token that the group kept would make a cycle with it, and keep the result.
        return CancelToken(partial(self._stops, index), word)

    def _fail(self, index: int, error: BaseException) -> None:
        """Note the error of a task, and tell those behind it to stop."""
        without_locals(error)
        # A task that was told to stop says nothing about the reason.
        rank = is_cancelled(error), index
        with self._lock:
            if rank < self._rank:
                self._error, self._rank = error, rank
            self._failed = min(self._failed, index)
            for other, word in self._words.items():
                if other > index:
                    word[0] = 1

    def _run(
        self, tasks: Sequence[Callable[[], object]] | None, index: int
    ) -> BaseException | None:
        """Call a task; return what stops a thread that helps, for instance Ctrl-C."""
        assert tasks is not None
        error: BaseException | None = None
        outer, RUNNING.token = RUNNING.token, self._begin(index)
        operation, CURRENT.operation = CURRENT.operation, operation_of(self.future)
        try:
            tasks[index]()
        except BaseException as raised:
            error = raised
        finally:
            # The traceback of an error keeps this frame, which must not keep the tasks.
            tasks = None
            RUNNING.token, CURRENT.operation = outer, operation
        with self._lock:
            del self._words[index]
        if error is not None:
            self._fail(index, error)
            stops = not isinstance(error, Exception) and not is_cancelled(error)
            if thread_state.crew is None and stops:
                self.future.cancel()
                return error
            error = None
        return None

    def end(self) -> None:
        """Call `then` or fail, and finish the Future; called once, when no task is left."""
        _unfinished.discard(self)
        self._tasks = None
        then, self._then = self._then, None
        ended, self._ended = self._ended, None
        error, self._error = self._error, None
        try:
            if error is None:
                self.future._run(then)
        finally:  # Ctrl-C may end `then` on a thread that helps.
            if ended is not None:
                ended()
        if error is None:
            return
        if is_cancelled(error):
            self.future.cancel()
        else:
            self.future._finish(None, error)


def _tell(words: dict[int, numbers[int]], future: Future[Any]) -> None:
    """Tell native code, which looks at `words`, that a fan-out was cancelled."""
    if future.cancelled():
        for word in list(words.values()):
            word[0] = 1


def shared() -> Executor:
    """Return the pool of this process, with one thread per core, at least 4."""
    return _SHARED


class _Resettable(Protocol):
    def after_fork(self) -> None: ...


_resettables: weakref.WeakSet[_Resettable] = weakref.WeakSet()
_writes: set[Future[Any]] = set()
_unfinished: set[_Group[Any]] = set()
"""Fan-outs of writes that have a step running, cancelled ones too."""


def reset_after_fork(owner: _Resettable) -> None:
    """Call ``owner.after_fork()`` in the child of each fork, which makes new locks.

    A lock that another thread holds at the moment of the fork would be held for ever in the child.
    `owner` is referenced weakly.
    """
    _resettables.add(owner)


def _after_fork() -> None:
    _writes.clear()  # the parent process does them
    _unfinished.clear()
    for owner in list(_resettables):
        owner.after_fork()


def wait_at_exit(write: Future[Any]) -> None:
    """Add `write` to the writes that the interpreter waits for at exit, until it is done."""
    _writes.add(write)
    write.add_done_callback(_writes.discard)


def _drain() -> None:
    """Wait at exit for writes that are not done, for at most five seconds."""
    deadline = time.time() + _DRAIN_S
    for write in list(_writes):
        if write.cancelled():
            continue
        try:
            error = write.exception(deadline=deadline)
        except BaseException as raised:
            if isinstance(raised, TimeoutError) or is_cancelled(raised):
                continue
            raise
        if error is not None:
            print(f"gpustore: a write nobody waited for failed: {error}", file=sys.stderr)
    # A step of a cancelled write that had begun: cut short it would leave a temporary file.
    while _unfinished and time.time() < deadline:
        time.sleep(0.001)
    if _writes:
        print(
            f"gpustore: gave up {len(_writes)} writes that nobody waited for and that were not "
            f"done {_DRAIN_S:g} s after the end of the program",
            file=sys.stderr,
        )


_SHARED = Executor(max(4, cores()))

os.register_at_fork(after_in_child=_after_fork)
atexit.register(_drain)
