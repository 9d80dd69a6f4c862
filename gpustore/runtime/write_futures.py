"""What a write returns: :class:`WriteFutures`; and writes that wait for a read."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from gpustore.runtime.future import Future, Promise
from gpustore.runtime.statistics import CURRENT, Statistics, attributed


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


def write_after(read: Future[Any], write: Callable[[Any], WriteFutures]) -> WriteFutures:
    """Write what a read brings, once it is there: a part of the operation that is running now.

    Parameters
    ----------
    read : Future
    write : callable
        From the result to the futures of its write; its errors are those of the write returned.
    """
    copied: Promise[None]
    committed: Promise[None]
    (copied, copy), (committed, commit) = Promise.new(), Promise.new()
    statistics = CURRENT.operation

    def begin(read: Future[Any]) -> None:
        try:
            elements = read.result()
            futures = attributed(statistics, lambda: write(elements))
        except BaseException as error:
            copied.set_exception(error)
            committed.set_exception(error)
        else:
            copied.follow(futures.copy)
            committed.follow(futures.commit)

    read.add_done_callback(begin)
    return WriteFutures(copy, commit)
