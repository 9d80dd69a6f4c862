"""Batches made ahead of the program that consumes them, by one thread."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Final

import gpustore

_END: Final = object()

Batch = dict[str, Any]


class BatchesAhead(Iterator[Batch]):
    """Iterator over batches that a thread makes, at most `ahead` of them before they are wanted.

    The thread ends with the iterator: when it is exhausted, closed or dropped, or an error is
    raised.

    Parameters
    ----------
    batches : iterator
        Makes the batches. Used by the thread alone, and closed by it.
    ahead : int
        Most batches that wait, at least 1.
    """

    def __init__(self, batches: Iterator[Batch], ahead: int) -> None:
        self._process = os.getpid()
        self._ready: queue.Queue[Any] = queue.Queue(ahead)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=_make, args=(batches, self._ready, self._stopped), name="gpustore-loader"
        )
        self._thread.daemon = True
        self._end = weakref.finalize(self, _stop_here, self._process, self._ready, self._stopped)
        self._thread.start()

    def __next__(self) -> Batch:
        if self._process != os.getpid():
            raise gpustore.ForkError(
                "the iteration was begun before a fork: begin one in this process"
            )
        if self._stopped.is_set():
            raise StopIteration
        found = self._ready.get()
        if isinstance(found, BaseException):
            self.close()
            raise found
        if found is _END:
            self.close()
            raise StopIteration
        batch: Batch = found
        return batch

    def close(self) -> None:
        """End the thread, and drop the batches that wait."""
        if self._process != os.getpid():  # It has no such thread, and its locks may be held.
            self._end.detach()
            return
        self._end()
        self._thread.join()
        # A thread of the program may wait for the batch that was dropped here.
        with contextlib.suppress(queue.Full):
            self._ready.put_nowait(_END)


def _make(batches: Iterator[Batch], ready: queue.Queue[Any], stopped: threading.Event) -> None:
    try:
        for batch in batches:
            ready.put(batch)
            del batch
            if stopped.is_set():
                return
        ready.put(_END)
    except BaseException as error:
        ready.put(error)
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def _stop_here(process: int, ready: queue.Queue[Any], stopped: threading.Event) -> None:
    if process == os.getpid():
        _stop(ready, stopped)


def _stop(ready: queue.Queue[Any], stopped: threading.Event) -> None:
    stopped.set()
    while True:  # The thread may wait to put one more.
        try:
            ready.get_nowait()
        except queue.Empty:
            return
