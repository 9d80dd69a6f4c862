"""Progress of work that several threads do, told to a function of the user."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Progress:
    """Bytes that are done, and their total. Thread-safe.

    Parameters
    ----------
    tell : callable, optional
        ``tell(done, total)``, by one thread at a time; `done` never falls.
    """

    def __init__(self, tell: Callable[[int, int], object] | None = None) -> None:
        self._tell = tell
        self._lock = threading.RLock()  # The function may do anything, also begin such work.
        self._done = self._total = 0

    def begin(self, nbytes: int) -> None:
        """Note that `nbytes` more bytes are to be done."""
        self._add(0, nbytes)

    def add(self, nbytes: int) -> None:
        """Note that `nbytes` more bytes are done."""
        self._add(nbytes, 0)

    def _add(self, done: int, total: int) -> None:
        if self._tell is None:
            return
        with self._lock:
            self._done += done
            self._total += total
            self._tell(self._done, self._total)
