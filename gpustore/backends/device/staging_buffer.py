"""Staging buffers: memory that submissions to a device pass through, kept for the next ones.

A :class:`StagingBuffer` is pinned host memory, device memory of the same size, and a stream. Who
holds one may write its pinned memory; it gives the buffer back when an event behind all copies of
it has passed. :class:`StagingBuffers` keeps them, because pinned memory is slow to get.

A buffer is filled from its start, and uploaded as far as it is. Values that files are read into
straight on the device (:mod:`gpustore.backends.device.direct_read`) lie at its end.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from gpustore.device.protocol import Allocation, Device, Pinned, Stream
from gpustore.errors import DeviceError
from gpustore.kvstores.arena import Arena
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.statistics import STATISTICS

_PART_ALIGNMENT = 16
_SMALLEST_NBYTES = 1 << 20


class _StagingArena(Arena):
    """Arena in the pinned memory of a staging buffer, and in ordinary memory once that is full."""

    __slots__ = ("_buffer",)

    def __init__(self, buffer: StagingBuffer) -> None:
        super().__init__()
        self._buffer = buffer

    def take(self, nbytes: int) -> memoryview:
        start = self._buffer.reserve(nbytes)
        return super().take(nbytes) if start is None else self._buffer.view(start, nbytes)


class StagingBuffer:
    """Pinned host memory, device memory of the same size, and a stream; for one thread at a time.

    Parameters
    ----------
    device : Device

    Attributes
    ----------
    stream : Stream
    nbytes : int
        Size of the pinned memory, and of the device memory, in bytes.
    used : int
        Number of bytes taken from the start.
    arena : Arena
        Arena in the pinned memory, for fetched values.
    """

    __slots__ = (
        "_allocation",
        "_device",
        "_end",
        "_is_settled",
        "_origin",
        "_pinned",
        "arena",
        "nbytes",
        "stream",
        "used",
    )

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pinned: Pinned | None = None
        self._allocation: Allocation | None = None
        self.nbytes = self.used = self._origin = self._end = 0
        self._is_settled = False
        self.stream: Stream = device.stream()
        self.arena: Arena = _StagingArena(self)

    @property
    def pinned(self) -> Pinned:
        assert self._pinned is not None
        return self._pinned

    def address(self, start: int) -> int:
        """Return the device address of byte `start` of the buffer."""
        assert self._allocation is not None
        return self._allocation.address + start

    def view(self, start: int, nbytes: int) -> memoryview:
        """Return a view of bytes of the pinned memory."""
        return self.pinned.view[start : start + nbytes]

    def reserve(self, nbytes: int) -> int | None:
        """Take bytes of the buffer and return their start; None if there are not enough."""
        start = -(-self.used // _PART_ALIGNMENT) * _PART_ALIGNMENT
        if start + nbytes > self._end:
            return None
        self.used = start + nbytes
        return start

    def resize(self, nbytes: int) -> None:
        """Grow to at least `nbytes` bytes; growing loses the contents.

        Raises
        ------
        MemoryError
            If there is not enough memory; the buffer has none then.
        """
        if nbytes <= self.nbytes:
            return
        self.free()
        nbytes = max(nbytes, _SMALLEST_NBYTES)
        self._pinned = self._device.allocate_pinned(nbytes)
        try:
            self._allocation = self._device.allocate(nbytes, self.stream)
        except MemoryError:
            self.free()
            raise
        self.nbytes = self._end = nbytes
        self._is_settled = False
        self._origin = np.frombuffer(self._pinned.view, np.uint8).ctypes.data

    def lacks(self, values: Sequence[Buffer], room: int) -> int:
        """Return the size needed to :meth:`hold` `values` and `room` more bytes; 0 if it suffices.

        Growing to that size loses the contents.
        """
        padding = _PART_ALIGNMENT
        outside = sum(len(value) + padding for value in values if self.start_of(value) is None)
        if self.used + outside + room + 4 * padding <= self._end:
            return 0
        return sum(len(value) + padding for value in values) + room + 4 * padding

    def hold(self, values: Sequence[Buffer]) -> list[int]:
        """Copy values outside the buffer into it; return the start of each value."""
        found: list[int] = []
        for value in values:
            start = self.start_of(value)
            if start is None:
                start = self.reserve(len(value))
                assert start is not None  # See `lacks`.
                self.view(start, len(value))[:] = memoryview(value).cast("B")
            found.append(start)
        return found

    def start_of(self, value: Buffer) -> int | None:
        """Return where a value begins in the buffer, None if it lies elsewhere."""
        if not self.nbytes or not len(value):
            return None
        start: int = np.frombuffer(value, np.uint8).ctypes.data - self._origin
        return start if 0 <= start < self.nbytes else None

    def clear(self) -> None:
        """Empty the buffer and its arena, after waiting for reads into its end.

        Raises
        ------
        DeviceError
            If the device was lost; the buffer is emptied all the same.
        """
        direct, self.arena.direct = self.arena.direct, None
        self.arena.reset()
        self.used, self._end = 0, self.nbytes
        if direct is not None:
            direct.end()

    def free(self) -> None:
        """Free the memory of the buffer, none of which may be in use."""
        pinned, self._pinned = self._pinned, None
        allocation, self._allocation = self._allocation, None
        self.nbytes = self.used = self._end = 0
        if pinned is not None:
            self._device.free_pinned(pinned)
        if allocation is not None:
            self._device.free(allocation, self.stream)

    # ----------------------------------------------------------------- the end

    @property
    def has_end(self) -> bool:
        """Whether values at the end are on the device only."""
        return self._end < self.nbytes

    def is_at_end(self, value: Buffer) -> bool:
        """Return whether the bytes of a value are on the device only."""
        start = self.start_of(value)
        return start is not None and start >= self._end

    def reserve_end(self, nbytes: int, alignment: int) -> int | None:
        """Take aligned bytes at the end and return their start; None if there are not enough."""
        address = (self.address(self._end) - nbytes) // alignment * alignment
        start = address - self.address(0)
        if start < self.used:
            return None
        self._end = start
        return start

    def settle(self) -> None:
        """Wait for the allocation of the device memory, which reads of files do not wait for."""
        if not self._is_settled:
            self._device.synchronize(self._device.record(self.stream))
            STATISTICS.add(waits=1)
            self._is_settled = True

    def download_end(self) -> int:
        """Copy the end from the device to the pinned memory; return its size in bytes."""
        nbytes = self.nbytes - self._end
        self._device.download(self.address(self._end), self.pinned, self._end, nbytes, self.stream)
        self._device.synchronize(self._device.record(self.stream))
        return nbytes


class StagingBuffers:
    """Pool of the staging buffers of a device. Thread-safe.

    Parameters
    ----------
    device : Device
    count : int
        Largest number of buffers.
    """

    def __init__(self, device: Device, count: int) -> None:
        self._device = device
        self._left = count
        self._idle: list[StagingBuffer] = []
        self._changed = threading.Condition()

    def take(self, *, wait: bool) -> StagingBuffer | None:
        """Take a buffer, which the caller puts back; None if none is idle and `wait` is false.

        Only a thread that holds no buffer may wait, so that no two threads wait for each other.
        """
        with self._changed:
            while not self._idle:
                if self._left:
                    self._idle.append(StagingBuffer(self._device))
                    self._left -= 1
                elif not wait:
                    return None
                else:
                    self._changed.wait()
            buffer = self._idle.pop()
        buffer.clear()
        return buffer

    def put(self, buffer: StagingBuffer) -> None:
        """Give a buffer back; all work of its stream has ended."""
        with suppress(DeviceError):  # Any later use of a lost device raises.
            buffer.clear()
        with self._changed:
            self._idle.append(buffer)
            self._changed.notify()

    def free(self) -> None:
        """Free the memory of all idle buffers."""
        with self._changed:
            for buffer in self._idle:
                buffer.free()
