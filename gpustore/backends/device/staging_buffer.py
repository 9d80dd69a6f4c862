"""Staging buffers: memory that submissions to a device pass through, kept for the next ones.

A :class:`StagingBuffer` is pinned host memory, device memory of the same size, and a stream. Any
number of threads may fill it; who holds it gives it back when an event behind all copies of it has
passed. :class:`StagingBuffers` keeps a few large and some small ones, because pinned memory is slow
to get. Nobody waits there: a read that finds no idle buffer is begun by whoever puts one back.

A buffer is filled from its start: values, then tables and results. It is uploaded as far as it is
filled. Values that files are read into straight on the device
(:mod:`gpustore.backends.device.direct_read`) lie at its end.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.native.fetched_files import SharedMemory
from gpustore.device.protocol import Allocation, Device, Pinned, Stream
from gpustore.kvstores.arena import Arena
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.statistics import STATISTICS

LARGE, SMALL = 3, 8
"""Most buffers of each kind: one is filled while others run."""

SMALL_NBYTES = 16 << 20
"""Most bytes of a small buffer while it is idle."""

PART_ALIGNMENT = 16
"""Multiple of bytes at which values, tables and results begin."""

_SMALLEST_NBYTES = 1 << 20


class StagingArena(Arena):
    """Arena in the pinned memory of a staging buffer, and in ordinary memory once that is full."""

    __slots__ = ("_buffer",)

    def __init__(self, buffer: StagingBuffer) -> None:
        super().__init__()
        self._buffer = buffer

    def take(self, nbytes: int) -> memoryview:
        start = self._buffer.reserve(nbytes)
        return super().take(nbytes) if start is None else self._buffer.view(start, nbytes)


class StagingBuffer:
    """Pinned host memory, device memory of the same size, and a stream.

    Parameters
    ----------
    device : Device
    is_small : bool
        Whether it is for reads of at most ``SMALL_NBYTES``.

    Attributes
    ----------
    nbytes : int
        Size of the pinned memory, and of the device memory, in bytes.
    memory : SharedMemory
        The pinned memory, which threads and the native core fill.
    room : int
        Bytes that values leave free, for tables and results.
    owner : weakref.ref or None
        Whoever has the buffer; None while it is idle.
    """

    __slots__ = (
        "_allocation",
        "_device",
        "_end",
        "_fills",
        "_is_settled",
        "_lock",
        "_origin",
        "_pinned",
        "_stream",
        "is_small",
        "memory",
        "nbytes",
        "owner",
        "room",
    )

    def __init__(self, device: Device, *, is_small: bool = False) -> None:
        self.is_small = is_small
        self.owner: weakref.ref[Any] | None = None
        self.memory = SharedMemory(np.zeros(0, np.uint8), PART_ALIGNMENT)
        self.nbytes = self.room = self._origin = self._end = self._fills = 0
        self._device = device
        self._lock = threading.Lock()
        self._pinned: Pinned | None = None
        self._allocation: Allocation | None = None
        self._stream: Stream | None = None
        self._is_settled = False

    @property
    def stream(self) -> Stream:
        """Stream of all copies and steps."""
        if self._stream is None:
            self._stream = self._device.stream()
        return self._stream

    @property
    def pinned(self) -> Pinned:
        assert self._pinned is not None
        return self._pinned

    def address(self, start: int) -> int:
        """Return the device address of byte `start` of the buffer."""
        return start + (0 if self._allocation is None else self._allocation.address)

    def view(self, start: int, nbytes: int) -> memoryview:
        """Return a view of bytes of the pinned memory."""
        return self.pinned.view[start : start + nbytes]

    @property
    def data(self) -> NDArray[np.uint8]:
        """All bytes of the pinned memory."""
        return self.memory.data

    @property
    def used(self) -> int:
        """Number of bytes taken from the start; set only while nobody fills the buffer."""
        return self.memory.used

    @used.setter
    def used(self, nbytes: int) -> None:
        self.memory.used = nbytes

    @property
    def limit(self) -> int:
        """Number of bytes that values may take, from the start."""
        return self._end - self.room

    def reserve(self, nbytes: int) -> int | None:
        """Take bytes for a value and return their start; None if there are not enough."""
        with self._lock:  # Others may take bytes at the end.
            return self.memory.take(nbytes, self.limit)

    def begin_fill(self) -> int:
        """Return :attr:`limit` for the native core; it stays until :meth:`end_fill`."""
        with self._lock:
            self._fills += 1
            return self.limit

    def end_fill(self) -> None:
        with self._lock:
            self._fills -= 1

    def reserve_table(self, nbytes: int) -> int | None:
        """Take bytes behind all values, of the room for tables too."""
        return self.memory.take(nbytes, self._end)

    @property
    def table_room(self) -> NDArray[np.uint8]:
        """Memory in which :meth:`reserve_table` takes bytes next."""
        return self.data[self.used : self._end]

    @property
    def left(self) -> int:
        """Bytes left for values."""
        return self.limit - self.used

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
        self._hold(*self._allocated(nbytes), nbytes)

    def grow(self, nbytes: int) -> None:
        """Make room for `nbytes` bytes behind what is used of the pinned memory, which stays.

        Addresses on the device change; all work of the stream is waited for. Values at the end come
        to the host.

        Raises
        ------
        MemoryError
            If there is not enough memory; the buffer is as it was.
        """
        if self.has_end:
            self.download_end()
            self.used, self._end = self.nbytes, self.nbytes
        nbytes += aligned(self.used)
        pinned, allocation = self._allocated(nbytes)
        self._device.synchronize(self._device.record(self.stream))
        used, room = self.used, self.room
        pinned.view[:used] = self.data[:used].data
        self.free()
        self._hold(pinned, allocation, nbytes)
        self.used, self.room = used, room

    def _allocated(self, nbytes: int) -> tuple[Pinned, Allocation]:
        pinned = self._device.allocate_pinned(nbytes)
        try:
            return pinned, self._device.allocate(nbytes, self.stream)
        except BaseException:
            self._device.free_pinned(pinned)
            raise

    def _hold(self, pinned: Pinned, allocation: Allocation, nbytes: int) -> None:
        self._pinned, self._allocation = pinned, allocation
        self.nbytes = self._end = nbytes
        self.memory = SharedMemory(np.frombuffer(pinned.view, np.uint8), PART_ALIGNMENT)
        self._origin = self.data.ctypes.data
        self._is_settled = False

    def start_of(self, value: Buffer) -> int | None:
        """Return where a value begins in the buffer, None if it lies elsewhere."""
        if not self.nbytes or not len(value):
            return None
        array: NDArray[np.uint8] = np.frombuffer(value, np.uint8)
        start: int = array.__array_interface__["data"][0] - self._origin
        return start if 0 <= start < self.nbytes else None

    def clear(self) -> None:
        """Empty the buffer."""
        self.used, self._end, self.room = 0, self.nbytes, 0

    def free(self) -> None:
        """Free the memory of the buffer, none of which may be in use."""
        pinned, self._pinned = self._pinned, None
        allocation, self._allocation = self._allocation, None
        self.nbytes = self._end = self.room = 0
        self.memory = SharedMemory(np.zeros(0, np.uint8), PART_ALIGNMENT)
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
        """Take aligned bytes at the end and return their start.

        None if there are not enough, or the native core fills the buffer.
        """
        with self._lock:
            address = (self.address(self._end) - nbytes) // alignment * alignment
            start = address - self.address(0)
            if self._fills or start < self.used + self.room:
                return None
            self._end = start
            return start

    def settle(self) -> None:
        """Wait for the allocation of the device memory, which reads of files do not wait for."""
        with self._lock:
            if not self._is_settled:
                self._device.synchronize(self._device.record(self.stream))
                STATISTICS.add(waits=1)
                self._is_settled = True

    def downloaded(self, address: int, nbytes: int) -> bytes:
        """Copy bytes of any device memory to the host, through the pinned memory, which is lost."""
        self.resize(nbytes)
        self._device.download(address, self.pinned, 0, nbytes, self.stream)
        self._device.synchronize(self._device.record(self.stream))
        return bytes(self.view(0, nbytes))

    def upload_bytes(self, content: memoryview, address: int) -> None:
        """Copy bytes to any device memory, through the pinned memory, which is lost."""
        for start in range(0, len(content), self.nbytes):
            part = content[start : start + self.nbytes]
            self.view(0, len(part))[:] = part
            self._device.upload(self.pinned, 0, address + start, len(part), self.stream)
            self._device.synchronize(self._device.record(self.stream))
            STATISTICS.add(copies=1, waits=1, bytes_to_device=len(part))

    def download_end(self) -> None:
        """Copy the end from the device to the pinned memory, and wait for that."""
        nbytes = self.nbytes - self._end
        self._device.download(self.address(self._end), self.pinned, self._end, nbytes, self.stream)
        self._device.synchronize(self._device.record(self.stream))
        STATISTICS.add(copies=1, waits=1, bytes_to_host=nbytes)


class StagingBuffers:
    """Pool of the staging buffers of a device. Thread-safe; nobody ever waits in it.

    A buffer whose owner is gone is taken like an idle one, when its stream has been waited for:
    Ctrl-C may end a read, on the thread that asked for it, before it puts its buffers back.

    Parameters
    ----------
    device : Device
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.RLock()  # The garbage collector may begin reads while it is held.
        self._kinds = {True: _Kind(SMALL), False: _Kind(LARGE)}

    def take(
        self,
        owner: object,
        *,
        is_small: bool,
        later: Callable[[StagingBuffer], object] | None = None,
    ) -> StagingBuffer | None:
        """Take a buffer for `owner`, which puts it back; None if none is idle.

        `later` is then called with a buffer by whoever puts one back, in the order of the calls.
        """
        reference = weakref.ref(owner)
        with self._lock:
            kind = self._kinds[is_small]
            for buffer in kind.buffers:
                former = buffer.owner
                is_idle = former is None or former() is None
                # That call may let another read begin, which has taken it.
                if is_idle and buffer.owner is former:
                    buffer.owner = reference
                    break
            else:
                if len(kind.buffers) >= kind.most:
                    if later is not None:
                        kind.waiting.append((reference, later))
                    return None
                former, buffer = None, StagingBuffer(self._device, is_small=is_small)
                buffer.owner = reference
                kind.buffers.append(buffer)
        if former is not None:
            self._device.synchronize(self._device.record(buffer.stream))
            buffer.clear()
        return buffer

    def put(self, buffer: StagingBuffer) -> None:
        """Give a buffer back; all work of its stream has ended.

        The memory of a small one that has grown beyond that for tables, or for values of a cache,
        is freed.
        """
        if buffer.is_small and buffer.nbytes > SMALL_NBYTES:
            buffer.free()
        buffer.clear()
        with self._lock:
            kind = self._kinds[buffer.is_small]
            buffer.owner, later = kind.waiting.popleft() if kind.waiting else (None, None)
        if later is not None:
            later(buffer)

    def is_wanted(self, *, is_small: bool) -> bool:
        """Whether reads wait for a buffer."""
        return bool(self._kinds[is_small].waiting)

    @property
    def taken(self) -> int:
        """Number of buffers that somebody has."""
        buffers = [buffer for kind in self._kinds.values() for buffer in kind.buffers]
        return sum(buffer.owner is not None and buffer.owner() is not None for buffer in buffers)

    def free(self) -> None:
        """Free the memory of all idle buffers."""
        with self._lock:
            for kind in self._kinds.values():
                for buffer in kind.buffers:
                    if buffer.owner is None:
                        buffer.free()


class _Kind:
    """Large or small buffers."""

    __slots__ = ("buffers", "most", "waiting")

    def __init__(self, most: int) -> None:
        self.most = most
        self.buffers: list[StagingBuffer] = []
        self.waiting: deque[tuple[weakref.ref[Any], Callable[[StagingBuffer], object]]] = deque()


def aligned(offset: int) -> int:
    """Return the first multiple of ``PART_ALIGNMENT`` that is not before `offset`."""
    return -(-offset // PART_ALIGNMENT) * PART_ALIGNMENT
