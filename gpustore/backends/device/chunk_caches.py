"""Caches of one device, one for each pool; see :mod:`gpustore.backends.device.chunk_cache`."""

from __future__ import annotations

import threading
import weakref
from collections import deque

from gpustore.backends.device.chunk_cache import ChunkCache
from gpustore.device.protocol import Device, PinnedMemoryError
from gpustore.resources.device_cache_pool import DeviceCachePool


class ChunkCaches:
    """Caches of a device by pool; a cache goes with its pool. Thread-safe.

    Parameters
    ----------
    device : Device
    """

    __slots__ = ("_caches", "_device", "_lock", "_orphans")

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._caches: weakref.WeakSet[ChunkCache] = weakref.WeakSet()
        # Pools are collected in any thread at any time: the memory is freed by the next call.
        self._orphans: deque[ChunkCache] = deque()

    def of(self, pool: DeviceCachePool) -> ChunkCache | None:
        """Return the cache of a pool, made at its first use; None if its limit is 0."""
        self.free_orphans()
        if not pool.total_bytes_limit:
            return None
        with self._lock:
            cache = pool.caches.get(self._device)
            if not isinstance(cache, ChunkCache):
                cache = ChunkCache(
                    self._device,
                    pool.total_bytes_limit,
                    keeps_encoded=pool.content == "encoded",
                    is_pinned=pool.memory == "pinned",
                )
                pool.caches[self._device] = cache
                self._caches.add(cache)
                weakref.finalize(pool, self._orphans.append, cache).atexit = False
        return cache

    def free_orphans(self) -> None:
        """Free the memory of caches whose pools are gone."""
        while self._orphans:
            self._orphans.popleft().clear()

    def give_back(
        self, nbytes: int | None = None, *, lacking: type[MemoryError] = MemoryError
    ) -> int:
        """Free memory that nobody uses; return its bytes, 0 if there is none left.

        About `nbytes` bytes are freed as far as they are there, by default half. They are of the
        kind for lack of which an error of the type `lacking` is raised.
        """
        self.free_orphans()
        is_pinned = lacking is PinnedMemoryError
        freed = 0
        for cache in [one for one in list(self._caches) if one.is_pinned == is_pinned]:
            if nbytes is None:
                freed += cache.give_back()
            elif freed < nbytes:
                freed += cache.give_back(nbytes - freed)
        return freed

    def clear(self) -> None:
        """Drop all chunks that nobody uses."""
        self.free_orphans()
        for cache in list(self._caches):
            cache.clear()
