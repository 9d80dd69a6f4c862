"""State of the current thread: the pool that it belongs to."""

from __future__ import annotations

import threading
from typing import Protocol


class Crew(Protocol):
    """Thread pool that replaces a thread which waits, as a Future needs it."""

    def begin_wait(self) -> None:
        """Let a spare thread stand in for one that is about to wait."""

    def end_wait(self) -> None:
        """Withdraw the spare thread of :meth:`begin_wait`."""


class _ThreadState(threading.local):
    """State of the current thread."""

    crew: Crew | None = None  # pool of the thread


thread_state = _ThreadState()
