"""Result of a write, :class:`WriteFutures`, and writes of elements that a read delivers.

Source: ``WriteFutures`` of TensorStore (``python/tensorstore/write_futures.cc``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from gpustore.runtime.future import Future
from gpustore.runtime.promise import Promise
from gpustore.runtime.statistics import Statistics, attributed, current


class WriteFutures:
    """Handle for a write; its methods are those of its Future ``commit``.

    Parameters
    ----------
    copy : Future
        Done when the source array has been read and may be changed.
    commit : Future
        Done when the data are durable, as far as the kvstore can tell.
    """

    __slots__ = ("commit", "copy")

    def __init__(self, copy: Future[None], commit: Future[None]) -> None:
        self.copy = copy
        self.commit = commit

    def result(self, timeout: float | None = None, deadline: float | None = None) -> None:
        """Wait for the commit; times and errors as in :meth:`gpustore.Future.result`."""
        self.commit.result(timeout, deadline)

    def exception(
        self, timeout: float | None = None, deadline: float | None = None
    ) -> BaseException | None:
        """Wait for the commit and return its error, None if it succeeded."""
        return self.commit.exception(timeout, deadline)

    @property
    def statistics(self) -> Statistics:
        """Counters of the work that the write has done so far.

        If the source is a TensorStore, reading it counts too, unless a Batch reads it.
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
        """Start the write if it has not begun."""
        self.commit.force()

    def add_done_callback(self, callback: Callable[[Future[None]], object]) -> None:
        """Call ``callback(self.commit)`` once the commit is done."""
        self.commit.add_done_callback(callback)

    def remove_done_callback(self, callback: Callable[[Future[None]], object]) -> int:
        """Remove `callback` and return how often it had been added."""
        return self.commit.remove_done_callback(callback)

    def __await__(self) -> Generator[Any, None, None]:
        return self.commit.__await__()

    def __repr__(self) -> str:
        """Show the states of both Futures."""
        return f"<gpustore.WriteFutures, copy: {self.copy!r}, commit: {self.commit!r}>"


def write_after(read: Future[Any], write: Callable[[Any], WriteFutures]) -> WriteFutures:
    """Write the result of `read` once it is done, as a part of the operation running now.

    Parameters
    ----------
    read : Future
    write : callable
        ``write(result)`` begins the write; errors it raises are those of the write returned here.
    """
    copied: Promise[None]
    committed: Promise[None]
    (copied, copy), (committed, commit) = Promise.new(), Promise.new()
    statistics = current()

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
