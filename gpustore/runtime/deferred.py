"""Tasks that have not begun, as Futures keep them: :class:`Deferred`.

Futures are parameters of unnamed type here, because their module imports this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Runner(Protocol):
    """Executor of deferred tasks, as a Future needs it."""

    def begin(self, future: Any, fn: Callable[[], Any], /) -> None:
        """Finish `future` with the result of `fn` soon, on another thread."""


class Deferred(Protocol):
    """A task that has not begun, as its Future needs it."""

    @property
    def begins_when_polled(self) -> bool:
        """Whether it begins when somebody asks if it is done."""

    @property
    def now(self) -> Callable[[], Any]:
        """Does the task on this thread; returns its result, or a Future of it."""

    def begin(self, future: Any, /) -> None:
        """Finish `future` with the result soon, on another thread."""


class Task:
    """A deferred call of a function."""

    __slots__ = ("_executor", "begins_when_polled", "now")

    def __init__(self, now: Callable[[], Any], executor: Runner, begins_when_polled: bool) -> None:
        self.now = now
        self._executor = executor
        self.begins_when_polled = begins_when_polled

    def begin(self, future: Any, /) -> None:
        """Let the executor finish `future`."""
        self._executor.begin(future, self.now)
