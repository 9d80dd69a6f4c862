"""Counters of what happened: keys read, bytes fetched, chunks decoded where, launches, copies.

A :class:`Statistics` belongs to one operation or to the process, and hands on what it counts to its
parent. Nothing falls back silently: every fallback is counted in one.

Whoever does something counts it in :data:`STATISTICS`. Each read and write of an array is begun by
:class:`Operation`; its Future, and every Future made meanwhile, knows to which operation it
belongs, and threads that work for one of them count for that operation too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final, TypeVar

__all__ = ["COUNTERS", "CURRENT", "STATISTICS", "Operation", "Statistics", "attributed"]

T = TypeVar("T")

COUNTERS: Final = MappingProxyType(
    {
        "reads": "reads of an array",
        "writes": "writes of an array",
        "chunks_planned": "chunks that reads and writes touch",
        "chunks_missing": "chunks that are not stored and are read as the fill value",
        "chunks_decoded_device": "chunks decoded by the device",
        "host_fallbacks": "chunks decoded by the host because the device cannot, then copied",
        "retries": "attempts repeated because another writer changed a chunk or the device failed",
        "key_reads": "keys (or byte ranges of keys) of chunks and shards asked of a kvstore",
        "bytes_fetched": "encoded bytes of chunks and shards that came from a kvstore",
        "bytes_stored": "encoded bytes of chunks and shards that went to a kvstore",
        "bytes_to_device": "bytes copied from host to device memory",
        "bytes_to_host": "bytes copied from device to host memory",
        "bytes_direct": "encoded bytes read from files straight into device memory",
        "direct_reads": "reads of files straight into device memory",
        "direct_fallbacks": "such reads that failed or could not begin, and went through the host",
        "direct_unavailable": "such reads that went through the host because this system has none",
        "copies": "copies between host and device memory",
        "launches": "kernel launches and calls of device libraries",
        "waits": "times a thread waited for the device",
        "cache_hits": "chunks found in the cache",
    }
)
"""What each counter counts; a test holds the package to these names."""


# One lock for all: it is held for a few dictionary updates a batch, never while anything waits.
_lock = threading.Lock()


def _after_fork() -> None:
    """Make a lock that no thread of the parent process holds."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Statistics:
    """A set of named counters, see :data:`COUNTERS`, that many threads may add to.

    Parameters
    ----------
    parent : Statistics, optional
        What is added here is added there as well.

    Examples
    --------
    >>> process = Statistics()
    >>> read = Statistics(process)
    >>> read.add(key_reads=3, bytes_fetched=4096)
    >>> process["key_reads"], process["launches"]
    (3, 0)
    >>> read.snapshot()
    {'bytes_fetched': 4096, 'key_reads': 3}
    """

    __slots__ = ("_counts", "_parent")

    def __init__(self, parent: Statistics | None = None) -> None:
        self._parent = parent
        self._counts: dict[str, int] = {}

    def add(self, **amounts: int) -> None:
        """Add to the named counters, all at once."""
        here: Statistics | None = self
        with _lock:
            while here is not None:
                counts = here._counts
                for name, amount in amounts.items():
                    counts[name] = counts.get(name, 0) + amount
                here = here._parent

    def __getitem__(self, name: str) -> int:
        return self._counts.get(name, 0)

    def snapshot(self) -> dict[str, int]:
        """Return the counters that are not 0, by name, as of one moment."""
        with _lock:
            counts = dict(self._counts)
        return {name: counts[name] for name in sorted(counts) if counts[name]}

    def reset(self) -> dict[str, int]:
        """Set all counters to 0 and return what they were; the parent's stay."""
        with _lock:
            counts, self._counts = self._counts, {}
        return {name: counts[name] for name in sorted(counts) if counts[name]}

    def __repr__(self) -> str:
        return f"Statistics({self.snapshot()})"


class _ProcessStatistics(Statistics):
    """What is added here counts for the operation that the calling thread works for, too."""

    __slots__ = ()

    def add(self, **amounts: int) -> None:
        here: Statistics | None = CURRENT.operation
        with _lock:
            counts = self._counts
            for name, amount in amounts.items():
                counts[name] = counts.get(name, 0) + amount
            if here is not None and not here._counts:
                here._counts = amounts  # Nobody else has it. Small reads are many, and count twice.
                here = here._parent
            while here is not None and here is not self:
                counts = here._counts
                for name, amount in amounts.items():
                    counts[name] = counts.get(name, 0) + amount
                here = here._parent


class _Current(threading.local):
    """The operation that a thread works for: its ancestors end at the process."""

    operation: Statistics | None = None


CURRENT: Final = _Current()

STATISTICS: Final[Statistics] = _ProcessStatistics()
"""Counts everything that happens in this process."""


class Operation(Statistics):
    """Statistics of one operation; what is begun within ``with`` is a part of it.

    Within another operation it counts for that one as well.
    """

    __slots__ = ("_outer",)

    def __init__(self) -> None:
        self._outer = CURRENT.operation
        self._parent = self._outer or STATISTICS
        self._counts = {}

    def __enter__(self) -> None:
        CURRENT.operation = self

    def __exit__(self, *error: object) -> None:
        CURRENT.operation = self._outer


def attributed(statistics: Statistics | None, begin: Callable[..., T], /, *args: Any) -> T:
    """Call `begin` as a part of the operation that `statistics` belongs to."""
    outer, CURRENT.operation = CURRENT.operation, statistics
    try:
        return begin(*args)
    finally:
        CURRENT.operation = outer
