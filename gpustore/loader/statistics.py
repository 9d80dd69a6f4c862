"""Statistics of a loader: what was read and made, where the time went, and which stage limits.

Batches go through stages that work at the same time: windows are read, patches are cut out of them
and converted, and the program uses the batches. The stage that was busy longest limits.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import gpustore
from gpustore.loader.fetched_window import FetchedArray, FetchedWindow
from gpustore.loader.touched_chunks import TouchedChunks

_NUMBERS: Final = (
    *("batches", "patches", "patches_replaced", "windows", "bytes_read", "bytes_decoded"),
    *("chunks_decoded", "chunks_missing", "chunks_cached"),
)
_SECONDS: Final = (
    *("waited_s", "used_s", "read_s", "stalled_s", "stalled_cpu_s"),
    *("plan_s", "plan_cpu_s", "cut_s", "convert_s"),
)

_CPU_SHARE: Final = 0.3
"""CPU time of a second of waiting for a window from which on decoding limits, not storage."""


class LoaderStatistics:
    """Counters and seconds of a loader, which several threads add to.

    A forked process begins with its own, which are 0.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._process = os.getpid()
        # A thread may take it twice: the collector ends iterations, which count, where it likes.
        self._lock = threading.RLock()
        self._amounts: dict[str, float] = {}
        self._touched: dict[tuple[int, str], TouchedChunks] = {}
        self._under_way = 0
        self._since = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out all: another process counts what it does."""
        return {}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._clear()

    def begin(self) -> None:
        """Begin an iteration, for which each chunk may be read once."""
        with self._locked():
            self.add(chunks_different=sum(one.different for one in self._touched.values()))
            self._touched = {}

    def _locked(self) -> threading.RLock:
        """Return the lock, of a forked process its own."""
        if self._process != os.getpid():
            self._clear()
        return self._lock

    def add(self, **amounts: float) -> None:
        """Add to the named amounts, all at once."""
        with self._locked():
            for name, amount in amounts.items():
                self._amounts[name] = self._amounts.get(name, 0) + amount

    @contextmanager
    def spending(self, name: str) -> Iterator[None]:
        """Add the seconds that the block takes to an amount."""
        begin = time.perf_counter()
        yield
        self.add(**{name: time.perf_counter() - begin})

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Add the seconds, and the CPU time of this thread, in which a window is begun."""
        cpu = time.thread_time()
        with self.spending("plan_s"):
            yield
        self.add(plan_cpu_s=time.thread_time() - cpu)

    @contextmanager
    def stalling(self) -> Iterator[None]:
        """Add the seconds, and the CPU time, in which a window is waited for."""
        begin, cpu = time.perf_counter(), time.process_time()
        yield
        self.add(stalled_s=time.perf_counter() - begin, stalled_cpu_s=time.process_time() - cpu)

    def begin_reads(self, futures: Iterable[gpustore.Future[Any]]) -> None:
        """Count the time until reads are done, which begin if they are deferred."""
        for future in futures:
            with self._locked():
                if not self._under_way:
                    self._since = time.perf_counter()
                self._under_way += 1
            future.add_done_callback(self._end_read)

    def _end_read(self, future: gpustore.Future[Any]) -> None:
        with self._locked():
            self._under_way -= 1
            if not self._under_way:
                self._amounts["read_s"] = self._amounts.get("read_s", 0) + self._reading()

    def _reading(self) -> float:
        """Return the seconds since a first read began."""
        return time.perf_counter() - self._since

    def end_window(self, window: FetchedWindow) -> None:
        """Count what a window has read."""
        for one in window.arrays:
            self.add(**_counted(one))
            key = window.volume, one.array.name
            if key not in self._touched:
                self._touched[key] = TouchedChunks(one.array)
            self._touched[key].add(one)
        self.add(windows=1)

    def snapshot(self) -> dict[str, Any]:
        """Return what :meth:`gpustore.loader.PatchLoader.stats` describes, as of one moment."""
        with self._locked():
            amounts = dict(self._amounts)
            if self._under_way:
                amounts["read_s"] = amounts.get("read_s", 0) + self._reading()
            different = sum(one.different for one in list(self._touched.values()))
        different += int(amounts.get("chunks_different", 0))
        found: dict[str, Any] = {name: amounts.get(name, 0) for name in _NUMBERS}
        found["decodes_per_chunk"] = amounts.get("chunks_planned", 0) / max(1, different)
        found |= {name: amounts.get(name, 0.0) for name in _SECONDS}
        return found | {"limited_by": limiting_stage(found, _available())}


def _counted(fetched: FetchedArray) -> dict[str, int]:
    """Return what the read of an array has counted, by the names that are used here."""
    found = fetched.statistics()
    planned, missing = found.get("chunks_planned", 0), found.get("chunks_missing", 0)
    cached = found.get("cache_hits", 0) + found.get("device_cache_hits", 0)
    decoded = planned - missing
    if cached:  # Missing ones are cached too. Chunks that are cached are decoded whole.
        nbytes = math.prod(fetched.array.store.chunks or ()) * fetched.array.dtype.itemsize
        decoded = min(decoded, found.get("bytes_decoded", 0) // max(1, nbytes))
    return {
        "bytes_read": found.get("bytes_fetched", 0),
        "bytes_decoded": found.get("bytes_decoded", 0),
        "chunks_planned": planned,
        "chunks_decoded": decoded,
        "chunks_missing": missing,
        "chunks_cached": cached,
    }


def _available() -> float:
    """Return the share of a processor that a thread gets beside those of all processes."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return min(1.0, (os.cpu_count() or 1) / max(load, 1.0))


def limiting_stage(found: Mapping[str, Any], available: float = 1.0) -> str | None:
    """Return the stage that was busy longest.

    Reading is ``"storage"`` if the CPU was idle while a window was waited for, or if there is
    nothing to decompress; and ``"decode"`` otherwise. CPU time is that of the whole process, so
    that other threads which work meanwhile may make slow storage look like decoding.

    Parameters
    ----------
    found : mapping
        Seconds and bytes of :meth:`LoaderStatistics.snapshot`.
    available : float
        Share of a processor that a thread which works gets.

    >>> found = {"read_s": 9.0, "plan_s": 0.2, "plan_cpu_s": 0.1, "cut_s": 2.0, "convert_s": 1.0}
    >>> found |= {"used_s": 4.0, "stalled_s": 5.0, "stalled_cpu_s": 0.2}
    >>> found |= {"bytes_read": 1000, "bytes_decoded": 4000}
    >>> limiting_stage(found)
    'storage'
    """
    busy = {
        # What is no work of planning waits for metadata that may have changed.
        "read": found["read_s"] + found["plan_s"] - found["plan_cpu_s"],
        "cut": found["plan_cpu_s"] + found["cut_s"] + found["convert_s"],
        "consumer": found["used_s"],
    }
    stage = max(busy, key=busy.__getitem__)
    if busy[stage] <= 0:
        return None
    if stage != "read":
        return stage
    is_compressed = found["bytes_decoded"] > found["bytes_read"]
    has_worked = found["stalled_cpu_s"] >= _CPU_SHARE * available * found["stalled_s"]
    return "decode" if is_compressed and has_worked else "storage"
