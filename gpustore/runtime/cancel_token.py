"""Tells work under way whether somebody still wants it: :class:`CancelToken`."""

from __future__ import annotations

import sys
import threading
from array import array as numbers
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Cancelled(BaseException):
    """Ends a task whose work is no longer wanted; callers get :func:`cancelled_error` for it.

    :mod:`asyncio` is not imported for it: most programs need neither, and a program that Ctrl-C
    ends, and which then imports modules, has an exit status that does not tell of the signal.
    """


def cancelled_error() -> asyncio.CancelledError:
    """Return TensorStore's error for cancelled work; `except Exception` lets it pass."""
    import asyncio

    return asyncio.CancelledError()


def is_cancelled(error: BaseException) -> bool:
    """Return whether `error` says that work was cancelled, in anybody's words.

    Without the modules of asyncio and of threads there is no such error of theirs.
    """
    return isinstance(error, Cancelled) or any(
        isinstance(error, getattr(sys.modules.get(module), "CancelledError", ()))
        for module in ("asyncio", "concurrent.futures")
    )


class CancelToken:
    """Tells whether the work of a thread is still wanted; got from :meth:`current`.

    Parameters
    ----------
    cancelled : callable, optional
        Whether it is no longer wanted; by default it always is.
    word : array of int8, optional
        One number, which is not 0 from then on: for native code, which cannot call anything.
    """

    __slots__ = ("_cancelled", "_word")

    def __init__(
        self, cancelled: Callable[[], bool] | None = None, word: numbers[int] | None = None
    ) -> None:
        self._cancelled = cancelled
        self._word = word

    @staticmethod
    def current() -> CancelToken:
        """Return the token of the task this thread runs; outside tasks, one never cancelled.

        Ask for it on the thread that begins the work; it may be checked on others.
        """
        return RUNNING.token

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled, or a task before it in the same fan-out failed."""
        return self._cancelled is not None and self._cancelled()

    @property
    def address(self) -> int:
        """Address of a byte that is not 0 once the task is cancelled; 0 if there is none.

        It is valid as long as the token lives.
        """
        return 0 if self._word is None else self._word.buffer_info()[0]

    def during(self, task: Callable[[], T]) -> T:
        """Call `task`, whose current token this is."""
        outer, RUNNING.token = RUNNING.token, self
        try:
            return task()
        finally:
            RUNNING.token = outer

    def check(self) -> None:
        """Raise Cancelled if the work is no longer wanted, for instance before a rename."""
        if self.cancelled:
            raise Cancelled


class _Running(threading.local):
    """Token of the task that the current thread runs."""

    token = CancelToken()


RUNNING = _Running()
