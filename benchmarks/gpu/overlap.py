"""TensorStore overlapped with copies: the best that can be done with a reader that knows no device.

The box is cut along the first dimension into slabs of whole chunks. TensorStore decodes slabs into
pinned memory with all processors, several at a time; each is copied to its place on the device
while the next ones are decoded. Written against :class:`gpustore.device.protocol.Device`, so that
its order of copies and waits is tested on the emulated device.
"""

import itertools
import math

import numpy as np
import tensorstore

DEPTH = 3
"""Slabs of pinned memory: one is copied while two are decoded."""

SLAB_NBYTES = 64 << 20
"""About as much is in one."""


def slabs(box, depth, plane_nbytes):
    """Cut the first slice of a box at multiples of `depth` planes, or of several times that."""
    whole = max(1, SLAB_NBYTES // (depth * plane_nbytes)) * depth
    first, last = box[0].start, box[0].stop
    cuts = [first, *range((first // whole + 1) * whole, last, whole), last]
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


class Overlap:
    """Reads boxes of TensorStore's arrays to a device.

    Parameters
    ----------
    device : gpustore.device.protocol.Device
    """

    def __init__(self, device):
        self._device = device
        self._stream = device.stream()
        self._pinned = []
        self._nbytes = 0

    def _reserve(self, nbytes):
        if nbytes > self._nbytes:
            self.close()
            self._pinned = [self._device.allocate_pinned(nbytes) for _ in range(DEPTH)]
            self._nbytes = nbytes

    def close(self):
        for pinned in self._pinned:
            self._device.free_pinned(pinned)
        self._pinned, self._nbytes = [], 0

    def read(self, store, box, depth):
        """Read a box into a new array on the device; done when this returns.

        `depth` is of the chunks, along the first dimension.
        """
        device, dtype = self._device, store.dtype.numpy_dtype
        shape = tuple(part.stop - part.start for part in box)
        plane = math.prod(shape[1:]) * dtype.itemsize
        pieces = slabs(box, depth, plane)
        self._reserve(plane * max(piece.stop - piece.start for piece in pieces))
        caller = device.caller_stream()
        view = device.empty(shape, dtype, "C", caller)
        device.wait(self._stream, device.record(caller))
        copied = [None] * DEPTH
        running = []

        def copy_oldest():
            number, reading = running.pop(0)
            reading.result()
            piece, slot = pieces[number], number % DEPTH
            at = (piece.start - box[0].start) * plane
            nbytes = (piece.stop - piece.start) * plane
            device.upload(self._pinned[slot], 0, view.address + at, nbytes, self._stream)
            copied[slot] = device.record(self._stream)

        for number, piece in enumerate(pieces):
            if len(running) == DEPTH - 1:
                copy_oldest()
            slot = number % DEPTH
            if copied[slot] is not None:
                device.synchronize(copied[slot])
            size = (piece.stop - piece.start, *shape[1:])
            memory = np.frombuffer(self._pinned[slot].view, dtype, math.prod(size))
            # A write to an array that holds this memory: TensorStore decodes right into it.
            target = tensorstore.array(memory.reshape(size))
            running.append((number, target.write(store[(piece, *box[1:])])))
        while running:
            copy_oldest()
        device.synchronize(device.record(self._stream))
        return view.array
