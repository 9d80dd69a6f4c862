"""What a write returns: :class:`WriteFutures`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from gpustore.future import Future
from gpustore.statistics import Statistics

__all__ = ["WriteFutures"]


class WriteFutures:
    """Handle for a write; it also behaves as its :attr:`commit` Future.

    Parameters
    ----------
    copy : Future
        Done when the source is no longer read and may be changed.
    commit : Future
        Done when the data are durable, as far as the kvstore can tell.
    """

    __slots__ = ("commit", "copy")

    def __init__(self, copy: Future[None], commit: Future[None]) -> None:
        self.copy = copy
        self.commit = commit

    def result(self, timeout: float | None = None, deadline: float | None = None) -> None:
        """Wait for the commit, see :meth:`gpustore.Future.result`."""
        self.commit.result(timeout, deadline)

    def exception(
        self, timeout: float | None = None, deadline: float | None = None
    ) -> BaseException | None:
        """Wait for the commit and return its error, see :meth:`gpustore.Future.exception`."""
        return self.commit.exception(timeout, deadline)

    @property
    def statistics(self) -> Statistics:
        """What the write has done so far, see :attr:`gpustore.Future.statistics`.

        Reading a TensorStore that is its source is part of it, unless a Batch does that.
        """
        return self.commit.statistics

    def done(self) -> bool:
        """Return whether the commit is done."""
        return self.commit.done()

    def cancel(self) -> bool:
        """Ask the write to stop; chunks written already stay."""
        return self.commit.cancel()

    def cancelled(self) -> bool:
        """Return whether the write was cancelled."""
        return self.commit.cancelled()

    def force(self) -> None:
        """Make sure that the write has begun."""
        self.commit.force()

    def add_done_callback(self, callback: Callable[[Future[None]], object]) -> None:
        """Call ``callback(self.commit)`` once the commit is done."""
        self.commit.add_done_callback(callback)

    def remove_done_callback(self, callback: Callable[[Future[None]], object]) -> int:
        """Forget `callback`; returns how often it had been added."""
        return self.commit.remove_done_callback(callback)

    def __await__(self) -> Generator[Any, None, None]:
        return self.commit.__await__()
