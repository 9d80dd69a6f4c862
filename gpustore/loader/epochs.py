"""Epochs of a loader and of its copies in the worker processes of a DataLoader.

Workers begin each epoch with a copy of the loader, of which the loader itself hears nothing. So the
number of the epoch that comes next lies in memory that they share. A worker goes on in the epoch
that it has begun, whatever the others do; when the last of them ends it, the next epoch comes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from multiprocessing.context import get_spawning_popen
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.loader.ranks import Ranks

_MOST_WORKERS: Final = 1024
"""Most workers of a DataLoader."""


class Epochs:
    """Number of the epoch that comes next, and the one that this process is in.

    Parameters
    ----------
    now : int
        Epoch to begin with.
    """

    def __init__(self, now: int = 0) -> None:
        self._process = os.getpid()
        self._own: int | None = None
        """Epoch of this process, if it is not the one that made the loader."""
        self._is_loaded = False
        # Memory is shared before a fork or never, and only workers of PyTorch use it.
        self._memory = _shared_memory() if "torch" in sys.modules else None
        self._words = _words(self._memory)
        """Next epoch; then, for each worker, 1 + the last epoch that it has ended."""
        self._words[0] = now

    @property
    def now(self) -> int:
        """Epoch that comes next, or that this worker is in."""
        if self._own is None and self._process != os.getpid():
            self._own = self.shared
        return self.shared if self._own is None else self._own

    @property
    def shared(self) -> int:
        """Epoch that comes next in the process that made the loader."""
        return int(self._words[0])

    def choose(self, epoch: int) -> None:
        """Let an epoch be the next one; in a process that was forked, only there."""
        if self._process != os.getpid():
            self._own = epoch
            return
        self._words[1:] = 0
        self._words[0] = epoch

    def load(self, epoch: int, place: Ranks) -> None:
        """Let a worker go on in an epoch; others do so, too."""
        self._words[1 + place[0]] = 0
        self._words[0] = self._own = epoch
        self._is_loaded = True

    def begin(self, place: Ranks) -> int:
        """Begin the next epoch in a worker, or the one that was loaded; return its number."""
        self._words[1 + place[0]] = 0
        if not self._is_loaded:
            self._own = self.shared
        self._is_loaded = False
        return self.now

    def end(self, place: Ranks) -> None:
        """End the epoch of a worker, which has made its last batch."""
        worker, workers = place
        words, behind = self._words, self.now + 1
        words[1 + worker] = behind
        if words[0] == behind - 1 and (words[1 : 1 + workers] == behind).all():
            words[0] = behind

    def __getstate__(self) -> dict[str, Any]:
        """Share the memory with a process that is being started; others get the number."""
        is_starting = get_spawning_popen() is not None
        return {"now": self.now, "memory": self._memory if is_starting else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Epochs.__init__(self, state["now"])
        if state["memory"] is not None:
            self._process, self._memory = 0, state["memory"]
            self._words = _words(self._memory)


def _shared_memory() -> Any:
    from multiprocessing.sharedctypes import RawArray  # Most programs have no use for it.

    try:
        return RawArray(ctypes.c_int64, 1 + _MOST_WORKERS)
    except OSError:  # There is no place for shared memory, and so for workers.
        return None


def _words(memory: Any) -> NDArray[np.int64]:
    if memory is None:
        return np.zeros(1 + _MOST_WORKERS, np.int64)
    return np.frombuffer(memory, np.int64)
