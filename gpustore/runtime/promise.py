"""Producer's end of a Future: :class:`Promise`."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import gpustore.runtime.future as futures
from gpustore.runtime.future import Future, new

T = TypeVar("T")


class Promise(Generic[T]):
    """Producer's end of a Future; made by :meth:`new`.

    The Future of a promise that is dropped without an outcome fails with ``ValueError: UNKNOWN``.
    """

    __slots__ = ("_future", "_handed_over")

    _future: Future[T]
    _handed_over: bool

    __class_getitem__ = classmethod(types.GenericAlias)  # type: ignore[var-annotated]

    def __init__(self) -> None:
        raise TypeError("a Promise is made by Promise.new()")

    @staticmethod
    def new() -> tuple[Promise[T], Future[T]]:
        """Return a promise and its Future.

        >>> promise, future = Promise.new()
        >>> promise.set_result(5)
        >>> future.result()
        5
        """
        promise: Promise[T] = object.__new__(Promise)
        promise._future = new()
        promise._handed_over = False
        return promise, promise._future

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle 'gpustore.Promise' object")

    def set_result(self, result: T) -> None:
        """Finish with `result`; does nothing if the Future is done, for instance cancelled."""
        self._future._finish(result, None)

    def set_exception(self, exception: BaseException) -> None:
        """Finish with an error; does nothing if the Future is done."""
        if not isinstance(exception, BaseException):
            raise TypeError(f"set_exception: expected an exception, but received: {exception!r}")
        self._future._finish(None, exception)

    def offer(self, early: Callable[[], tuple[T] | None]) -> None:
        """Have :meth:`Future.on_stream` call `early`; it awaits the result if that returns None."""
        self._future._early = early

    def follow(self, future: Future[T]) -> None:
        """Finish as `future` does; cancelling this promise's Future cancels `future`."""
        self.hand_over()._follow(future)

    def hand_over(self) -> Future[T]:
        """Return the Future to code that will finish it; the promise may be dropped from now on."""
        self._handed_over = True
        return self._future

    def __del__(self) -> None:
        if getattr(self, "_handed_over", True) or self._future._done:
            return
        future = self._future
        error = ValueError("UNKNOWN: the promise was dropped before it was given a result")
        # The garbage collector may call this on a thread that holds any of our locks, in the middle
        # of a change of this very Future. So: no waiting for a lock and no callbacks here; a new
        # thread does what cannot be done at once.
        lock: Any = futures._lock
        if not future._callbacks and not lock._is_owned() and lock.acquire(blocking=False):
            dropped = not future._done
            if dropped:
                future._error, future._done = error, True
            lock.release()
            if dropped:
                future._announce()
        else:
            threading.Thread(target=future._finish, args=(None, error), daemon=True).start()
