"""Results of operations under way: :class:`Future`.

A Future has TensorStore's interface and semantics: ``result``, ``exception``, ``done``,
``cancel``, callbacks, and ``await`` in any running :mod:`asyncio` loop. It is in one of three
states, and only ever moves down this list::

    deferred   a small task that has not been asked for    ``Future.deferred(fn, executor)``
    pending    an operation under way
    done       a value, an error, or cancelled

A deferred task runs exactly once: on the thread that calls ``result()``, or on the executor if it
is awaited, forced, polled with ``done()``, given a callback, or asked for with a timeout. This
saves small reads a round trip through the thread pool, which costs more than they do
(35-64 us, 2 cores).

Waiting is interruptible: Ctrl-C in ``result()`` cancels the work that has not begun and raises
KeyboardInterrupt. A finished Future lets go of everything its task used.

Source: ``python/tensorstore/future.cc`` of TensorStore for the semantics.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gpustore.errors import ForkError
from gpustore.runtime.cancel_token import RUNNING, CancelToken, cancelled_error, is_cancelled
from gpustore.runtime.deferred import Deferred, Runner, Task
from gpustore.runtime.epoch import epoch
from gpustore.runtime.frames import without_locals
from gpustore.runtime.statistics import CURRENT, Statistics, current, operation_of
from gpustore.runtime.thread_state import thread_state
from gpustore.runtime.uncaught import report

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures

    from gpustore.runtime.statistics import Division, Operation

T = TypeVar("T")

_CANCELLED: Final = BaseException()  # marks the state; each caller gets a CancelledError of its own

_SIGNAL_S: Final = 0.1

_CALL_RESULT: Final = "call .result() first, or await it"

# One for all: a pass over many Futures takes it once, and nobody waits or calls others meanwhile.
# A thread may take it twice: the collector runs finalizers, which may finish other Futures.
_lock = threading.RLock()


def _enter_child() -> None:
    global _lock
    _lock = threading.RLock()  # The other may be held by a thread of the parent process.


os.register_at_fork(after_in_child=_enter_child)


class NotAwaitedError(TypeError, AttributeError):
    """A Future was asked for an attribute of its result."""


class Future(Generic[T]):
    """Handle for the result of an operation.

    Parameters
    ----------
    future : Future, coroutine or any other value
        A Future is returned unchanged. A coroutine is run in `loop`. Any other value gives a
        Future that is done.
    loop : asyncio.AbstractEventLoop, optional
        Event loop in which a coroutine runs; by default the running loop.

    Raises
    ------
    ValueError
        If `future` is a coroutine, no `loop` is given and none is running.

    Examples
    --------
    >>> Future(3).result()
    3
    """

    __slots__ = (
        "__weakref__", "_callbacks", "_counted", "_deferred", "_done", "_early", "_epoch", "_error",
        "_help", "_value", "_waiters",
    )  # fmt: skip

    _done: bool
    _value: T
    _error: BaseException | None
    _callbacks: list[Callable[[Future[T]], object]] | None  # None as well if there are none
    _waiters: list[threading.Lock] | None
    _deferred: Deferred | None
    _early: Callable[[], tuple[T] | None] | None  # the result for a stream, if it may wait for it
    _help: Callable[[], None] | None  # does a part of the work, if any is left that has not begun
    _epoch: int | None  # epoch of the process whose threads do the work; None if any thread may
    _counted: Operation | type[Operation] | Division | None  # see `operation_of`

    __class_getitem__ = classmethod(types.GenericAlias)  # type: ignore[var-annotated]

    def __new__(
        cls,
        future: T | Future[T] | Coroutine[Any, Any, T],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Future[T]:
        if isinstance(future, Future):
            return future
        if isinstance(future, Coroutine):
            return _run_coroutine(future, loop)
        return ready(future)

    @staticmethod
    def deferred(
        fn: Callable[[], T | Future[T]],
        executor: Runner,
        early: Callable[[], tuple[T] | None] | None = None,
        *,
        begins_when_polled: bool = True,
    ) -> Future[T]:
        """Return a Future for a small task that runs when its result is asked for.

        Parameters
        ----------
        fn : callable
            Called at most once, when the result is asked for. It may return another Future, whose
            result is then this one's.
        executor : Runner
            Runs `fn` unless a caller of ``result()`` runs it.
        early : callable, optional
            Called by :meth:`on_stream` once the task has begun; see :meth:`Promise.offer`.
        begins_when_polled : bool
            Whether :meth:`done` starts the task.
        """
        self: Future[T] = new()
        self._deferred = Task(fn, executor, begins_when_polled)
        self._early = early
        return self

    def done(self) -> bool:
        """Return whether the operation has a result or an error, or was cancelled.

        A deferred task is started, so that a loop which polls ends; but no commit of a transaction.
        """
        task = self._deferred
        if task is not None and task.begins_when_polled and not self._done:
            self.force()
        return self._done

    @property
    def is_deferred(self) -> bool:
        """Whether this is a task of :meth:`deferred` that has not begun; does not start it."""
        return self._deferred is not None

    @property
    def statistics(self) -> Statistics:
        """Counters of the work that a read, write or opening has done; complete once it is done.

        Chunks that a Batch or ``read_many`` fetches and decodes once for several reads count once:
        reads that a Batch joins share one Statistics object. What other reads or writes under way
        share is divided between them when it is done. Empty for other operations.
        """
        return operation_of(self) or Statistics()

    def cancelled(self) -> bool:
        """Return whether the operation was cancelled."""
        return self._done and self._error is _CANCELLED

    def cancel(self) -> bool:
        """Ask the operation to stop; steps that have not begun are skipped.

        Returns
        -------
        bool
            False if the operation was done already. If True, ``result()`` raises CancelledError
            from now on, although a step that had begun may still be running.
        """
        return self._finish(None, _CANCELLED)

    def force(self) -> None:
        """Start the operation if it is deferred."""
        try:
            task = self._claim()
            if task is not None:
                self._epoch = epoch()
                task.begin(self)
        except KeyboardInterrupt:  # Nobody else begins a task that was claimed.
            self.cancel()
            raise

    def result(self, timeout: float | None = None, deadline: float | None = None) -> T:
        """Wait for the operation and return its result.

        Parameters
        ----------
        timeout : float, optional
            Longest time to wait, in seconds.
        deadline : float, optional
            Time at which to stop waiting, in seconds since the Unix epoch.

        Raises
        ------
        TimeoutError
            Neither result nor error arrived in time; the operation goes on.
        asyncio.CancelledError
            The operation was cancelled.
        KeyboardInterrupt
            Ctrl-C was pressed (main thread only); the operation was cancelled. A chunk at hand is
            finished in the background, also in an array that the caller gave.
        Exception
            Whatever the operation failed with.
        """
        if not self._done:
            self._wait(timeout, deadline)
        error = self._error
        if error is not None:
            try:
                raise cancelled_error() if error is _CANCELLED else error
            finally:
                # The traceback refers to this frame: without this, error and Future make a cycle.
                self = error = None  # type: ignore[assignment]
        return self._value

    def on_stream(self) -> T:
        """Return the array of a read for the stream of the read, without a wait for the device.

        Returns as soon as all work is queued; what the stream is given from now on runs behind it.
        Whether the array has the right elements is known later: :meth:`result` raises the error.
        Reads into host memory, and those that begin later (in a Batch), return their result.
        """
        early = self._early
        if early is not None:
            self.force()
            self._check_threads()
            try:
                found = early()
            except KeyboardInterrupt:
                self.cancel()
                raise
            if found is not None:
                return found[0]
        return self.result()

    def exception(
        self, timeout: float | None = None, deadline: float | None = None
    ) -> BaseException | None:
        """Wait for the operation and return its error, None if it has a result.

        Parameters and the errors TimeoutError, CancelledError and KeyboardInterrupt are those of
        :meth:`result`.
        """
        if not self._done:
            self._wait(timeout, deadline)
        if self._error is _CANCELLED:
            raise cancelled_error()
        return self._error

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Call ``callback(self)`` once the operation is done, on the thread that finished it.

        If the operation is done already, the callback runs at once, on this thread.
        """
        added = [callback]
        with _lock:
            waiting = not self._done
            if waiting:
                self._callbacks = _joined(self._callbacks, added)
        if waiting:
            self.force()
        else:
            callback(self)

    def remove_done_callback(self, callback: Callable[[Future[T]], object]) -> int:
        """Remove `callback` and return how often it had been added."""
        with _lock:
            before = self._callbacks or []
            self._callbacks = [c for c in before if c != callback]
            return len(before) - len(self._callbacks)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done:
            import asyncio  # Its loop is running: it is imported already.

            loop = asyncio.get_running_loop()
            waiter = loop.create_future()

            def wake(_: Future[T]) -> None:
                try:
                    loop.call_soon_threadsafe(_set_once, waiter)
                except RuntimeError:  # the loop was closed meanwhile: nothing awaits the result
                    pass

            self.add_done_callback(wake)
            self._check_threads()
            try:
                yield from waiter
            except asyncio.CancelledError:
                self.remove_done_callback(wake)
                self.cancel()
                raise
        return self.result()

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle 'gpustore.{type(self).__name__}' object")

    # ---- what people do to a Future that they take for its result

    def __repr__(self) -> str:
        """Show the state, and the result or the kind of operation."""
        if not self._done:
            operation = operation_of(self)
            kind = "operation" if operation is None else operation.kind
            state = "not begun" if self._deferred is not None else "under way"
            article = "an" if kind[0] in "aeiou" else "a"
            return f"<gpustore.Future of {article} {kind}, {state}: call .result()>"
        if self._error is _CANCELLED:
            return "<gpustore.Future, cancelled>"
        if self._error is not None:
            text = " ".join(str(self._error).split())
            return f"<gpustore.Future, failed: {type(self._error).__name__}: {text}>"
        value = self._value
        described = type(value).__name__
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            described += f" of shape {tuple(value.shape)} and type {value.dtype}"
        return f"<gpustore.Future, done: {described}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise NotAwaitedError(f"a Future has no {name!r}, but its result may: {_CALL_RESULT}")

    def __getitem__(self, index: object) -> Any:
        raise TypeError(f"a Future cannot be indexed, but its result may: {_CALL_RESULT}")

    def __setitem__(self, index: object, value: object) -> None:
        raise TypeError(f"a Future cannot be written to, but its result may: {_CALL_RESULT}")

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        raise TypeError(f"a Future is not an array, but its result may be: {_CALL_RESULT}")

    def _claim(self) -> Deferred | None:
        """Return the deferred task to the first caller, None to all others."""
        # Without the lock, which most waits need not take: a claimed task never comes back.
        if self._deferred is None:
            return None
        with _lock:
            claimed, self._deferred = self._deferred, None
        return claimed

    def _run(self, fn: Callable[[], T | Future[T]] | None) -> None:
        """Call `fn` and finish with what it returns or raises."""
        if self._done or fn is None:
            return
        outer, RUNNING.token = RUNNING.token, CancelToken(self.cancelled)
        operation, CURRENT.operation = CURRENT.operation, operation_of(self)
        error: BaseException | None = None
        try:
            value = fn()
        except BaseException as raised:
            error = _CANCELLED if is_cancelled(raised) else raised
        # A traceback keeps this frame, and the closure of `fn` may hold arrays.
        fn = None
        RUNNING.token, CURRENT.operation = outer, operation
        if error is None:
            self._follow(value) if isinstance(value, Future) else self._finish(value, None)
        elif error is _CANCELLED:
            self._finish(None, _CANCELLED)
        elif isinstance(error, Exception) or thread_state.crew is not None:
            self._finish(None, without_locals(error))
        else:
            self.cancel()
            raise error  # Ctrl-C while the task ran on the thread that asked for the result

    def _follow(self, inner: Future[T]) -> None:
        """Finish as `inner` does; cancelling this cancels `inner`."""

        def copy(done: Future[T]) -> None:
            self._finish(done._value, done._error)

        def cancel(done: Future[T]) -> None:
            if done.cancelled():
                inner.cancel()

        added: list[Callable[[Future[T]], object]] = [cancel]
        with _lock:
            if not self._done:
                self._callbacks = _joined(self._callbacks, added)
                self._help = inner._help
        inner.add_done_callback(copy)
        # A cancellation before `cancel` was added has not called it.
        if self.cancelled():
            inner.cancel()

    def _finish(self, value: Any, error: BaseException | None) -> bool:
        """Set the outcome and return True; False if the Future was done already."""
        with _lock:
            if self._done:
                return False
            # The outcome first: other threads read `_done` without the lock, and then the outcome.
            self._value, self._error = value, error
            self._done = True
        self._announce()
        return True

    def _announce(self) -> None:
        """Wake waiting threads and call the callbacks; called once, by the thread that finished."""
        self._deferred = self._help = self._early = None
        if self._waiters:
            waiters, self._waiters = self._waiters, None
            for waiter in waiters:
                waiter.release()
        if not self._callbacks:
            return
        callbacks, self._callbacks = self._callbacks, None
        # Operations that callbacks begin are no part of the one that this thread works for.
        operation, CURRENT.operation = CURRENT.operation, None
        for callback in callbacks:
            try:
                callback(self)
            except BaseException as error:
                if not isinstance(error, Exception) and not is_cancelled(error):
                    raise
                # An error of a callback must not end the thread that finished the Future.
                report(error, f"the callback {callback!r}")
        CURRENT.operation = operation

    def _wait(self, timeout: float | None, deadline: float | None) -> None:
        """Return when done; if there is no time limit, a deferred task runs here, or a part."""
        crew = None
        try:
            if timeout is None and deadline is None:
                task = self._claim()
                if task is not None:
                    self._run(task.now)
                    del task
                    if self._done:
                        return
                seconds = -1.0
            else:
                self.force()
                seconds = _seconds(timeout, deadline)
            self._check_threads()
            crew = thread_state.crew
            if crew is not None:
                crew.begin_wait()
            help_ = self._help if seconds < 0 and crew is None else None
            if help_ is not None:
                help_()
            if not self._done and not self._block(seconds) and not self._done:
                raise TimeoutError
        except KeyboardInterrupt:
            self.cancel()
            raise
        finally:
            if crew is not None:
                crew.end_wait()

    def _check_threads(self) -> None:
        """Raise an error if the threads that worked on this exist no more."""
        if self._epoch is None or self._done:
            return
        if sys.is_finalizing():
            raise RuntimeError("the interpreter is exiting, and its threads do no more work")
        if self._epoch != epoch():
            raise ForkError(
                "this operation began before the process forked, and the threads that worked on "
                "it exist only in the parent: start it again in the child"
            )

    def _block(self, seconds: float) -> bool:
        """Sleep until done, or for `seconds` (-1: no limit). Signal handlers run meanwhile.

        A signal that arrives just before the wait for the lock does not end it, and its handler
        runs only afterwards: so each wait lasts at most _SIGNAL_S.
        """
        waiter = threading.Lock()
        waiter.acquire()
        added = [waiter]
        with _lock:
            if self._done:
                return True
            self._waiters = _joined(self._waiters, added)
        woken = False
        end = math.inf if seconds < 0 else time.monotonic() + seconds
        try:
            while not woken and not self._done and (left := end - time.monotonic()) > 0:
                woken = waiter.acquire(timeout=min(left, _SIGNAL_S))
        finally:
            if not woken:
                with _lock:
                    if self._waiters and waiter in self._waiters:
                        self._waiters.remove(waiter)
        return woken


def new(epoch: int | None = None) -> Future[Any]:
    """Return a pending Future, which the executor finishes.

    `epoch` is that of the process whose threads do the work, None if any thread may do it.
    """
    self: Future[Any] = object.__new__(Future)
    self._done = False
    self._value = self._error = self._deferred = self._help = self._early = None
    self._callbacks = self._waiters = None
    self._epoch = epoch
    counted = CURRENT.operation
    if type(counted) is type:
        CURRENT.operation = self  # What counts from now on, counts for ours.
    elif counted is not None:
        counted = current()
    self._counted = counted
    return self


def ready(value: T) -> Future[T]:
    """Return a Future that is done with `value`.

    >>> ready(1).done()
    True
    """
    self: Future[T] = new()
    self._value = value
    self._done = True
    return self


def failed(error: BaseException) -> Future[Any]:
    """Return a Future that is done with `error`."""
    self = new()
    self._error = error
    self._done = True
    return self


def _joined(present: list[T] | None, added: list[T]) -> list[T]:
    """Return both lists as one, and make no object: a finalizer could want the caller's lock."""
    if present is None:
        return added
    present += added
    return present


def _seconds(timeout: float | None, deadline: float | None) -> float:
    """Combine the two time limits into seconds from now, within what a lock accepts."""
    seconds = threading.TIMEOUT_MAX
    if timeout is not None:
        seconds = min(seconds, float(timeout))
    if deadline is not None:
        seconds = min(seconds, float(deadline) - time.time())
    return max(seconds, 0.0)


def _set_once(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _run_coroutine(
    coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None
) -> Future[T]:
    """Run `coroutine` in `loop`, which may belong to another thread; None is the running one."""
    import asyncio

    try:
        loop = loop or asyncio.get_running_loop()
    except RuntimeError:
        coroutine.close()  # It will not be awaited, and Python would warn of that.
        raise ValueError(
            "no event loop specified and thread does not have a default event loop"
        ) from None
    self: Future[T] = new()
    running = asyncio.run_coroutine_threadsafe(coroutine, loop)

    def copy(done: concurrent.futures.Future[T]) -> None:
        if done.cancelled():
            self._finish(None, _CANCELLED)
        elif (error := done.exception()) is not None:
            self._finish(None, error)
        else:
            self._finish(done.result(), None)

    running.add_done_callback(copy)
    self._callbacks = [lambda done: done.cancelled() and running.cancel()]
    return self
