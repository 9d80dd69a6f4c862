"""Memory that sub-batches pass through on their way to a device, kept from one to the next.

A :class:`Slot` is a slab of pinned host memory, device memory of the same size, and a stream. Who
holds a slot may write its slab; it gives the slot back when an event behind all copies of it has
passed. :class:`Slots` keeps them, because pinned memory is slow to get.

The slab is filled from its start, and uploaded as far as it is. What is read from files straight
into device memory lies at the end: a view of the slab stands for it, whose bytes only the device
has. Checksums that a kvstore knows of such pieces are kept for whoever uses them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from gpustore.backends.device.direct_read import Files, Handle
from gpustore.device.protocol import Allocation, Device, FileRead, Pinned, Stream
from gpustore.errors import DeviceError, GpustoreError
from gpustore.kvstores.arena import Arena
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.statistics import STATISTICS

_PART_ALIGNMENT = 16
_SMALLEST_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Expected:
    """The checksum of a piece of the slab whose bytes are on the device only.

    Attributes
    ----------
    start, nbytes : int
        The piece, in bytes of the slab.
    crc32 : int
        What its CRC-32 must be.
    error : callable
        Makes the error, from what it is instead.
    """

    start: int
    nbytes: int
    crc32: int
    error: Callable[[int], GpustoreError]


class _Slab(Arena):
    """Hands out the slab of a slot, and ordinary memory once that is full."""

    __slots__ = ("_slot",)

    def __init__(self, slot: Slot) -> None:
        super().__init__()
        self._slot = slot

    def take(self, nbytes: int) -> memoryview:
        start = self._slot.reserve(nbytes)
        return super().take(nbytes) if start is None else self._slot.view(start, nbytes)

    def reset(self) -> None:
        super().reset()
        self._slot.forget()

    def begin_read(
        self, row: int, fd: int, status: os.stat_result, start: int, nbytes: int
    ) -> memoryview | None:
        return self._slot.begin_read(row, fd, status, start, nbytes)

    def end_reads(self) -> list[int]:
        return self._slot.end_reads()

    def has_bytes(self, piece: memoryview) -> bool:
        return not self._slot.is_direct(piece)

    def expect(self, piece: memoryview, crc32: int, error: Callable[[int], GpustoreError]) -> None:
        self._slot.expect(piece, crc32, error)


class _Read:
    """A read of a file into device memory that must bring at least `wanted` bytes."""

    __slots__ = ("_files", "_handle", "_read", "_wanted", "is_done", "nbytes", "row", "succeeded")

    def __init__(
        self, files: Files, handle: Handle, read: FileRead, wanted: int, row: int, nbytes: int
    ) -> None:
        self.row = row
        self.nbytes = nbytes
        self.is_done = self.succeeded = False
        self._files = files
        self._handle = handle
        self._read = read
        self._wanted = wanted

    def wait(self) -> None:
        """Wait for its end, and give its handle back."""
        if self.is_done:
            return
        self.is_done = failed = True
        try:
            with suppress(OSError):  # The host reads it again, and says what is wrong.
                enough = self._read.result() >= self._wanted
                failed = False
                self.succeeded = enough and self._handle.is_unchanged()
        finally:
            self._files.put(self._handle, failed=failed)


class Slot:
    """A slab, as much device memory, and a stream; one thread's at a time.

    Attributes
    ----------
    stream : Stream
    nbytes : int
        Bytes of the slab.
    used : int
        Bytes of the slab that are taken.
    arena : Arena
        Hands out the slab to those who fetch values.
    expected : list of Expected
        Pieces that have not been compared with their checksums.
    files : Files or None
        What values may be read from straight into device memory; None if the host must see them.
    """

    __slots__ = (
        "_allocation",
        "_device",
        "_is_settled",
        "_origin",
        "_pinned",
        "_reads",
        "_top",
        "arena",
        "expected",
        "files",
        "nbytes",
        "stream",
        "used",
    )

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pinned: Pinned | None = None
        self._allocation: Allocation | None = None
        self.nbytes = self._origin = self._top = 0
        self._is_settled = False
        self._reads: list[_Read] = []
        self.expected: list[Expected] = []
        self.files: Files | None = None
        self.stream: Stream = device.stream()
        self.used = 0
        self.arena: Arena = _Slab(self)

    @property
    def pinned(self) -> Pinned:
        assert self._pinned is not None
        return self._pinned

    def address(self, start: int) -> int:
        """Where byte `start` of the slab is in device memory once it is uploaded."""
        assert self._allocation is not None
        return self._allocation.address + start

    def view(self, start: int, nbytes: int) -> memoryview:
        """Bytes of the slab."""
        return self.pinned.view[start : start + nbytes]

    def reserve(self, nbytes: int) -> int | None:
        """Take bytes of the slab: the first of them, None if there are not so many."""
        start = -(-self.used // _PART_ALIGNMENT) * _PART_ALIGNMENT
        if start + nbytes > self._top:
            return None
        self.used = start + nbytes
        return start

    def resize(self, nbytes: int) -> None:
        """Have at least `nbytes` bytes; what was in the slab is lost if it has fewer.

        Raises
        ------
        MemoryError
            If they cannot be had. The slot has no memory then.
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
        self.nbytes = self._top = nbytes
        self._is_settled = False
        self._origin = np.frombuffer(self._pinned.view, np.uint8).ctypes.data

    def lacks(self, values: Sequence[Buffer], room: int) -> int:
        """Bytes the slab must grow to, to :meth:`hold` `values` and `room` more; 0 if it need not.

        It loses what is in it when it grows.
        """
        padding = _PART_ALIGNMENT
        outside = sum(len(value) + padding for value in values if self._start(value) is None)
        if self.used + outside + room + 4 * padding <= self._top:
            return 0
        return sum(len(value) + padding for value in values) + room + 4 * padding

    def hold(self, values: Sequence[Buffer]) -> list[int]:
        """Bring `values` into the slab, unless they are there: where each begins."""
        found: list[int] = []
        for value in values:
            start = self._start(value)
            if start is None:
                start = self.reserve(len(value))
                assert start is not None  # See `lacks`.
                self.view(start, len(value))[:] = memoryview(value).cast("B")
            found.append(start)
        return found

    def _start(self, value: Buffer) -> int | None:
        """Where a value begins in the slab; None if it lies elsewhere."""
        if not self.nbytes or not len(value):
            return None
        start: int = np.frombuffer(value, np.uint8).ctypes.data - self._origin
        return start if 0 <= start < self.nbytes else None

    # ----------------------------------------------------------------- files

    @property
    def has_direct(self) -> bool:
        """Whether bytes at the end of the slab are on the device only."""
        return self._top < self.nbytes

    def is_direct(self, piece: memoryview) -> bool:
        """Whether the bytes of a piece are on the device only."""
        start = self._start(piece)
        return start is not None and start >= self._top

    def expect(self, piece: memoryview, crc32: int, error: Callable[[int], GpustoreError]) -> None:
        """Have a piece of the slab compared with its checksum; see :class:`Arena`."""
        start = self._start(piece)
        if start is not None:  # All are there that a device has read.
            self.expected.append(Expected(start, len(piece), crc32, error))

    def begin_read(
        self, row: int, fd: int, status: os.stat_result, start: int, nbytes: int
    ) -> memoryview | None:
        """Begin to read a part of a file into the device memory; see :class:`Arena`."""
        files = self.files
        if files is None or not self.nbytes:
            return None
        handle = files.take(fd, status, nbytes, self._wait)
        if handle is None:
            return None
        page = handle.file.alignment
        low = start // page * page
        length = -(-(start + nbytes - low) // page) * page
        place = (self.address(self._top) - length) // page * page - self.address(0)
        if place < self.used:
            files.put(handle)
            STATISTICS.add(direct_fallbacks=1)
            return None
        try:
            self._settle()
            read = self._device.read_file(handle.file, low, length, self.address(place))
        except BaseException:
            files.put(handle)
            raise
        self._top = place
        self._reads.append(_Read(files, handle, read, start - low + nbytes, row, nbytes))
        return self.view(place + start - low, nbytes)

    def end_reads(self) -> list[int]:
        """Wait for all reads of files: the rows of those that failed."""
        self._wait()
        reads, self._reads = self._reads, []
        failed = [one.row for one in reads if not one.succeeded]
        if reads:
            STATISTICS.add(
                direct_reads=len(reads) - len(failed),
                direct_fallbacks=len(failed),
                bytes_direct=sum(one.nbytes for one in reads if one.succeeded),
            )
        return failed

    def _wait(self) -> None:
        """Wait for all reads that have begun."""
        lost: DeviceError | None = None
        for one in self._reads:
            try:
                one.wait()
            except DeviceError as error:
                lost = error  # All of them must have ended before the slot is used again.
        if lost is not None:
            self._reads.clear()
            raise lost

    def _settle(self) -> None:
        """Wait until the device memory is there: no stream orders reads of files behind that."""
        if not self._is_settled:
            self._device.synchronize(self._device.record(self.stream))
            STATISTICS.add(waits=1)
            self._is_settled = True

    def fetch_direct(self) -> list[tuple[Expected, int]]:
        """Bring the bytes that only the device has into the slab.

        Returns
        -------
        list of (Expected, int)
            Pieces whose checksum is wrong, and what it is.
        """
        if not self.has_direct:
            return []
        nbytes = self.nbytes - self._top
        self._device.download(self.address(self._top), self.pinned, self._top, nbytes, self.stream)
        self._device.synchronize(self._device.record(self.stream))
        STATISTICS.add(copies=1, waits=1, bytes_to_host=nbytes)
        found = [(one, crc32(self.view(one.start, one.nbytes))) for one in self.expected]
        self.expected.clear()
        return [(one, crc) for one, crc in found if crc != one.crc32]

    def is_within(self, value: Buffer, piece: Expected) -> bool:
        """Whether a value is a part of a piece."""
        start = self._start(value)
        return start is not None and 0 <= start - piece.start < piece.nbytes

    def forget(self) -> None:
        """Take the whole slab back."""
        self.end_reads()
        self.expected.clear()
        self.used, self._top = 0, self.nbytes

    def free(self) -> None:
        """Give its memory back; nothing of it may be in use."""
        pinned, self._pinned = self._pinned, None
        allocation, self._allocation = self._allocation, None
        self.nbytes = self.used = self._top = 0
        if pinned is not None:
            self._device.free_pinned(pinned)
        if allocation is not None:
            self._device.free(allocation, self.stream)


class Slots:
    """The slots of a device.

    Parameters
    ----------
    device : Device
    count : int
        How many there are at most.
    """

    def __init__(self, device: Device, count: int) -> None:
        self._device = device
        self._left = count
        self._idle: list[Slot] = []
        self._changed = threading.Condition()

    def take(self, *, wait: bool) -> Slot | None:
        """A slot, which the caller puts back. None if all are taken, unless it shall wait.

        Only a thread that holds no slot may wait: those who hold one never wait for another.
        """
        with self._changed:
            while not self._idle:
                if self._left:
                    self._idle.append(Slot(self._device))
                    self._left -= 1
                elif not wait:
                    return None
                else:
                    self._changed.wait()
            slot = self._idle.pop()
        slot.arena.reset()
        return slot

    def put(self, slot: Slot) -> None:
        """Give a slot back. All that was asked of its stream has run."""
        with suppress(DeviceError):  # Whoever asks a lost device for anything is told.
            slot.forget()
        with self._changed:
            self._idle.append(slot)
            self._changed.notify()

    def free(self) -> None:
        """Give back the memory of all slots that nobody holds."""
        with self._changed:
            for slot in self._idle:
                slot.free()
