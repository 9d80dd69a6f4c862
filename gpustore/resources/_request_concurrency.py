"""What the resources that limit requests under way have in common."""

from __future__ import annotations

import queue

from gpustore.resources._concurrency import limit_json, parse_limit
from gpustore.runtime.context import ResourceType
from gpustore.runtime.executor import reset_after_fork
from gpustore.strict_json.parsing import JsonValue

_SHARED_LIMIT = 32
"""As many as TensorStore."""

_MOST = 4096
"""More connections than a process may have open."""


class Permits:
    """Permission for so many requests at the same time, asked for by any thread.

    Parameters
    ----------
    limit : int
        At least 1.
    """

    def __init__(self, limit: int) -> None:
        self.limit = min(limit, _MOST)
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Start anew: requests of the parent process are its own business."""
        # A queue of C costs a tenth of a semaphore.
        self._permits: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(self.limit):
            self._permits.put(None)

    def take(self, timeout_s: float = 0.0) -> bool:
        """Take one permit, waiting for at most so long; whether there was one."""
        try:
            self._permits.get(timeout_s > 0, timeout_s)
        except queue.Empty:
            return False
        return True

    def give_back(self) -> None:
        """Return one permit."""
        self._permits.put(None)


class RequestConcurrencyType(ResourceType[int | None, Permits]):
    """``{"limit": "shared"}`` is one limit for the process, ``{"limit": 4}`` one of its own."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._shared = Permits(_SHARED_LIMIT)

    def parse(self, json: JsonValue) -> int | None:
        return parse_limit(json)

    def default(self) -> int | None:
        return None

    def to_json(self, config: int | None, *, include_defaults: bool) -> JsonValue:
        return limit_json(config, include_defaults=include_defaults)

    def make(self, config: int | None) -> Permits:
        return self._shared if config is None else Permits(config)
