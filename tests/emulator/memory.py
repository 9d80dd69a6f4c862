"""Device memory that shows every wrong use of it.

Each allocation is memory of its own between two guards. It is poisoned when it is allocated, in
stream order, and again when it is freed; freed memory is kept for a while and never used again, so
that whoever still reads it gets poison, and whoever writes it is found.

Where kernels are compiled for the address sanitizer it is told of guards and of freed memory, and
stops the process when a kernel reads or writes a byte of them.
"""

import bisect
import ctypes
from collections import deque

import numpy as np

from gpustore.device.protocol import ALIGNMENT
from tests.emulator import host_build
from tests.emulator.queue import Breach

GUARD_NBYTES = 256
GUARD = 0xA7
FRESH = 0xDB
FREED = 0xDD
PINNED = 0xD1

_GUARDS = np.full(2 * GUARD_NBYTES + ALIGNMENT, GUARD, np.uint8)

_KEPT_NBYTES = 256 << 20
_KEPT = 1000
"""Freed allocations that are kept, so that their addresses are not used again."""


class _Sanitizer:
    """Which memory kernels may use, as the address sanitizer knows it; nothing without one."""

    def __init__(self):
        self.is_there = host_build.SANITIZER == "address"

    def allow(self, array, start, stop):
        self._call("__asan_unpoison_memory_region", array, start, stop)

    def forbid(self, array, start, stop):
        self._call("__asan_poison_memory_region", array, start, stop)

    def _call(self, function, array, start, stop):
        if self.is_there:
            address = ctypes.c_void_p(array.ctypes.data + start)
            getattr(ctypes.CDLL(None), function)(address, ctypes.c_size_t(stop - start))


_SANITIZER = _Sanitizer()


class EmulatedAllocation:
    """A piece of device memory. The host sees where it lies, never what is in it."""

    def __init__(self, nbytes):
        self._memory = np.full(nbytes + 2 * GUARD_NBYTES + ALIGNMENT, GUARD, np.uint8)
        base = self._memory.ctypes.data + GUARD_NBYTES
        self.address = -(-base // ALIGNMENT) * ALIGNMENT
        self._start = self.address - self._memory.ctypes.data
        self.nbytes = nbytes
        behind = self._memory[self._start + nbytes :]
        self._before = self._memory[: self._start], _GUARDS[: self._start]
        self._behind = behind, _GUARDS[: len(behind)]
        self.is_ready = False
        self.is_given_back = False
        self.is_freed = False
        self.poison(FRESH)
        _SANITIZER.forbid(self._memory, 0, self._start)
        _SANITIZER.forbid(self._memory, self._start + nbytes, len(self._memory))

    def __del__(self):
        # NumPy keeps small pieces of memory for other arrays.
        _SANITIZER.allow(self._memory, 0, len(self._memory))

    def __repr__(self):
        return f"allocation of {self.nbytes} bytes at {self.address:#x}"

    def poison(self, value):
        self._memory[self._start : self._start + self.nbytes] = value

    def check(self):
        """Breach if a guard was written, or the memory after it was freed."""
        start, stop = self._start, self._start + self.nbytes
        for guard, expected, low in ((*self._before, 0), (*self._behind, stop)):
            # Not a copy of the memory itself, which the sanitizer would look at.
            if b"\1" in (guard != expected).tobytes():
                at = low + int(np.flatnonzero(guard != expected)[0]) - start
                guard[:] = GUARD
                raise Breach(f"byte {at} was written, {'behind' if low else 'before'} an {self!r}")
        if self.is_freed and (self._memory[start:stop] != FREED).any():
            self.poison(FREED)
            raise Breach(f"written after it was freed: {self!r}")


class Memory:
    """All allocations of a device."""

    def __init__(self, total_nbytes):
        self.total_nbytes = total_nbytes
        self.live_nbytes = 0
        self._allocations = {}
        self._freed = deque()
        self._freed_nbytes = 0
        self._starts = []

    def allocate(self, nbytes):
        if self.live_nbytes + nbytes > self.total_nbytes:
            raise MemoryError(
                f"{nbytes} bytes of device memory: {self.total_nbytes - self.live_nbytes} are free"
            )
        allocation = EmulatedAllocation(nbytes)
        self.live_nbytes += nbytes
        self._allocations[allocation.address] = allocation
        bisect.insort(self._starts, allocation.address)
        return allocation

    def give_back(self, allocation):
        """The host has asked for it to be freed."""
        if allocation.is_given_back:
            raise Breach(f"freed twice: {allocation!r}")
        allocation.is_given_back = True
        self.live_nbytes -= allocation.nbytes

    def freed(self, allocation):
        """Its stream has come to the point where it is free."""
        allocation.check()
        allocation.is_freed = True
        allocation.poison(FREED)
        _SANITIZER.forbid(allocation._memory, 0, len(allocation._memory))
        self._freed.append(allocation)
        self._freed_nbytes += allocation.nbytes
        while self._freed_nbytes > _KEPT_NBYTES or len(self._freed) > _KEPT:
            oldest = self._freed.popleft()
            oldest.check()
            self._freed_nbytes -= oldest.nbytes
            del self._allocations[oldest.address]
            self._starts.remove(oldest.address)

    def live(self):
        return [found for found in self._allocations.values() if not found.is_given_back]

    def check(self):
        for allocation in self._allocations.values():
            allocation.check()

    def check_guards(self):
        """The same for memory that is not freed: cheap enough behind each launch."""
        for allocation in self._allocations.values():
            if not allocation.is_freed:
                allocation.check()

    def find(self, address):
        """The allocation an address lies in, or None."""
        place = bisect.bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        found = self._allocations[self._starts[place]]
        return found if address <= found.address + found.nbytes else None

    def require(self, spans, what, *, running):
        """Breach unless each span lies in one allocation that may be used now.

        `running`: now is when the task runs; else it is when the host asks for it.
        """
        for address, nbytes in zip(spans.address.tolist(), spans.nbytes.tolist(), strict=True):
            found = self.find(address)
            where = f"{what}: bytes [{address:#x}, {address + nbytes:#x})"
            if found is None or address + nbytes > found.address + found.nbytes:
                raise Breach(f"{where} are not in device memory, next to {found!r}")
            if found.is_freed or (found.is_given_back and not running):
                raise Breach(f"{where} were used after they were freed: {found!r}")
            if running and not found.is_ready:
                raise Breach(f"{where} were used before their allocation had run: {found!r}")
