"""Type of the context resources that limit the requests under way at a time."""

from __future__ import annotations

import queue

from gpustore.resources._concurrency import LimitType
from gpustore.runtime.executor import reset_after_fork

_SHARED_LIMIT = 32
"""Requests under way at a time if the JSON does not say: TensorStore's default."""

_MOST = 4096
"""Largest limit accepted: more connections than a process may have open."""


class Permits:
    """Permits for requests under way at the same time; any number of threads may take them.

    Parameters
    ----------
    limit : int
        Number of permits, at least 1.
    """

    def __init__(self, limit: int) -> None:
        self.limit = min(limit, _MOST)
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Return all permits: the requests of the parent process are not under way in the child."""
        # A queue of C costs a tenth of a semaphore.
        self._permits: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(self.limit):
            self._permits.put(None)

    def take(self, timeout_s: float = 0.0) -> bool:
        """Take one permit, waiting for at most `timeout_s` seconds; False if there was none."""
        try:
            self._permits.get(timeout_s > 0, timeout_s)
        except queue.Empty:
            return False
        return True

    def give_back(self) -> None:
        """Return one permit."""
        self._permits.put(None)


class RequestConcurrencyType(LimitType[Permits]):
    """Resource of requests: ``{"limit": "shared"}`` is one limit for the process, ``4`` its own.

    The value is a :class:`Permits`.
    """

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._shared = Permits(_SHARED_LIMIT)

    def make(self, config: int | None) -> Permits:
        return self._shared if config is None else Permits(config)
