"""Device memory of the allocator ``"default"``: a pool of our own, and CuPy's for new arrays."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import cupy

OUT_OF_MEMORY = 2

_KEPT_SHARE = 16
"""Divisor of the device's memory: most bytes of freed memory that the pool keeps."""


@dataclass(frozen=True, slots=True)
class PoolAllocation:
    """Memory of the pool."""

    address: int
    nbytes: int


class OwnPool:
    """See the module. Implements :class:`gpustore.device.protocol.DeviceAllocator`.

    The device is the current one of the thread in every call.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._lock = threading.Lock()
        self._made: int | None = None

    def _pool(self) -> int:
        """Return the pool of this device, made at its first use.

        CUDA's default pool, which other libraries use too, is left as it is. A synchronization
        gives free memory beyond the threshold back to the device; by default all of it.
        """
        with self._lock:
            if self._made is None:
                runtime = cupy.cuda.runtime
                properties = runtime.MemPoolProps(
                    runtime.cudaMemAllocationTypePinned,
                    runtime.cudaMemHandleTypeNone,
                    runtime.cudaMemLocationTypeDevice,
                    self._ordinal,
                )
                pool = runtime.memPoolCreate(properties)
                kept = runtime.memGetInfo()[1] // _KEPT_SHARE
                runtime.memPoolSetAttribute(pool, runtime.cudaMemPoolAttrReleaseThreshold, kept)
                self._made = pool
            return self._made

    def kept_nbytes(self) -> int:
        """Return the bytes kept for reuse, also those of CuPy's default pool."""
        runtime, pool = cupy.cuda.runtime, self._pool()
        reserved = runtime.memPoolGetAttribute(pool, runtime.cudaMemPoolAttrReservedMemCurrent)
        used = runtime.memPoolGetAttribute(pool, runtime.cudaMemPoolAttrUsedMemCurrent)
        kept: int = reserved - used + cupy.get_default_memory_pool().free_bytes()
        return kept

    def allocate(self, nbytes: int, stream: Any) -> PoolAllocation:
        """Allocate memory of the pool; CuPy's default pool gives back what it keeps if need be."""
        runtime = cupy.cuda.runtime
        try:
            address = runtime.mallocFromPoolAsync(nbytes, self._pool(), stream.ptr)
        except runtime.CUDARuntimeError as error:
            if error.status != OUT_OF_MEMORY:
                raise
            cupy.get_default_memory_pool().free_all_blocks()
            address = runtime.mallocFromPoolAsync(nbytes, self._pool(), stream.ptr)
        return PoolAllocation(address, nbytes)

    def free(self, allocation: PoolAllocation, stream: Any) -> None:
        """Free memory in the order of `stream`."""
        cupy.cuda.runtime.freeAsync(allocation.address, stream.ptr)

    def array_memory(self, nbytes: int) -> Any:
        """Allocate memory for an array of the user by CuPy's current allocator."""
        try:
            return cupy.cuda.alloc(nbytes)
        except MemoryError:
            self.trim()
            return cupy.cuda.alloc(nbytes)

    def trim(self) -> None:
        """Give what the pool keeps back to the device, once all streams have freed it."""
        cupy.cuda.runtime.deviceSynchronize()
        cupy.cuda.runtime.memPoolTrimTo(self._pool(), 0)
