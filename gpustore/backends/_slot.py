"""Memory that sub-batches pass through on their way to a device, kept from one to the next.

A :class:`Slot` is a slab of pinned host memory, device memory of the same size, and a stream. Who
holds a slot may write its slab; it gives the slot back when an event behind all copies of it has
passed. :class:`Slots` keeps them, because pinned memory is slow to get.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from gpustore.device import Allocation, Device, Pinned, Stream
from gpustore.kvstores.base import Arena, Buffer

__all__ = ["Slot", "Slots"]

_PART_ALIGNMENT = 16
_SMALLEST_NBYTES = 1 << 20


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
        self._slot.used = 0


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
    """

    __slots__ = (
        "_allocation",
        "_device",
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
        self.nbytes = self._origin = 0
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
        if start + nbytes > self.nbytes:
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
        self.nbytes = nbytes
        self._origin = np.frombuffer(self._pinned.view, np.uint8).ctypes.data

    def lacks(self, values: Sequence[Buffer], room: int) -> int:
        """Bytes the slab must grow to, to :meth:`hold` `values` and `room` more; 0 if it need not.

        It loses what is in it when it grows.
        """
        padding = _PART_ALIGNMENT
        outside = sum(len(value) + padding for value in values if self._start(value) is None)
        if self.used + outside + room + 4 * padding <= self.nbytes:
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

    def free(self) -> None:
        """Give its memory back; nothing of it may be in use."""
        pinned, self._pinned = self._pinned, None
        allocation, self._allocation = self._allocation, None
        self.nbytes = self.used = 0
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
                    self._left -= 1
                    self._idle.append(Slot(self._device))
                elif not wait:
                    return None
                else:
                    self._changed.wait()
            slot = self._idle.pop()
        slot.arena.reset()
        return slot

    def put(self, slot: Slot) -> None:
        """Give a slot back. All that was asked of its stream has run."""
        with self._changed:
            self._idle.append(slot)
            self._changed.notify()

    def free(self) -> None:
        """Give back the memory of all slots that nobody holds."""
        with self._changed:
            for slot in self._idle:
                slot.free()
