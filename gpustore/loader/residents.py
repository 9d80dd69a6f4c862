"""Arrays that lie in host memory whole while an epoch lasts, so that each chunk is read once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpustore
from gpustore import registry
from gpustore.display.chunk_grid import axes_of
from gpustore.loader.volume import PairedArray, Volume
from gpustore.loader.window_memory import WindowMemory

Integers = NDArray[np.int64]

Box = tuple[Integers, Integers]
"""First elements of a region along each dimension of a patch, and those behind its last ones."""


class Resident:
    """Memory of one array, and which of its chunks windows have claimed.

    Parameters
    ----------
    array : PairedArray
    """

    def __init__(self, array: PairedArray) -> None:
        self._array = array
        axes = axes_of(array.store)[len(array.leading) :]
        self._edges = [np.array([0, *axis.chunks, axis.extent], np.int64) for axis in axes]
        self._left = np.ones([len(edges) - 1 for edges in self._edges], np.bool_)
        self._elements: NDArray[Any] | None = None
        self._reads: list[gpustore.Future[Any]] = []
        self._failed: list[tuple[Box, gpustore.Future[Any]]] = []

    def missing(self, low: Integers, high: Integers) -> list[Box]:
        """Claim chunks of a region that nobody has claimed before; return them as few boxes."""
        first = [int(np.searchsorted(e, lo, "right")) - 1 for e, lo in zip(self._edges, low)]
        last = [int(np.searchsorted(e, hi, "left")) for e, hi in zip(self._edges, high)]
        left = self._left[tuple(map(slice, first, last))]
        found = []
        for some in _boxes(left):
            ends = [
                (edges[at + one.start], edges[at + one.stop])
                for edges, at, one in zip(self._edges, first, some, strict=True)
            ]
            found.append((np.array([lo for lo, _ in ends]), np.array([hi for _, hi in ends])))
        return found

    def elements(self, memory: WindowMemory) -> NDArray[Any]:
        """Return the memory of all elements; those that nobody has read are undefined."""
        if self._elements is None:
            shape, dtype = tuple(self._array.store.shape), self._array.dtype
            found = memory.take(shape, dtype)
            if found is None:
                found = registry.public("backends.host.memory", "empty")(shape, dtype).array
            self._elements = found
        return self._elements

    def note(self, read: gpustore.Future[Any]) -> None:
        """Note a read into the memory that has begun."""
        self._reads.append(read)

    def note_end(self, box: Box, read: gpustore.Future[Any]) -> None:
        """Wait for a read, and note whether it has failed."""
        if read.exception() is not None:
            self._failed.append((box, read))

    def check(self, low: Integers, high: Integers) -> None:
        """Raise the error of a read that has failed and shares elements with a region."""
        for (begin, end), read in self._failed:
            if (begin < high).all() and (end > low).all():
                read.result()

    def give(self, memory: WindowMemory) -> None:
        """Give the memory back if nothing is read into it any more."""
        if self._elements is not None and all(one.done() for one in self._reads):
            memory.give(self._elements)


class Residents:
    """Arrays of volumes of which windows keep all that they read.

    Parameters
    ----------
    arrays : iterable of (int, PairedArray)
        Each with the number of its volume.

    Attributes
    ----------
    nbytes : int
        Bytes of these arrays.
    """

    def __init__(self, arrays: Iterable[tuple[int, PairedArray]]) -> None:
        self._arrays = {(volume, one.name): one for volume, one in arrays}
        self.nbytes = sum(map(_nbytes, self._arrays.values()))
        self._found: dict[tuple[int, str], Resident] = {}

    @classmethod
    def of(cls, volumes: Sequence[Volume], room: int) -> Residents:
        """Return the arrays that are stored if they take at most half of some room, else none.

        The other half is for patches that are read alone and for arrays that are in memory anyway.
        """
        found = cls(
            (number, one)
            for number, volume in enumerate(volumes)
            for one in volume.arrays
            if one.store.kvstore is not None and not one.dtype.hasobject
        )
        return found if volumes[0].device == "cpu" and 2 * found.nbytes <= room else cls(())

    def get(self, volume: int, array: PairedArray) -> Resident | None:
        """Return the memory of an array; None if it does not stay."""
        key = volume, array.name
        if key in self._arrays and key not in self._found:
            self._found[key] = Resident(array)
        return self._found.get(key)

    def give(self, memory: WindowMemory) -> None:
        """Give all memory back into which nothing is read any more."""
        for one in self._found.values():
            one.give(memory)


def _nbytes(array: PairedArray) -> int:
    return math.prod(array.store.shape) * array.dtype.itemsize


def _boxes(left: NDArray[np.bool_]) -> Iterator[tuple[slice, ...]]:
    """Yield boxes that together have the true elements, each once, and make these false."""
    while left.any():
        box = [slice(int(i), int(i) + 1) for i in np.unravel_index(left.argmax(), left.shape)]
        for d in reversed(range(left.ndim)):
            # Whether all elements are left of each layer behind the box.
            at: Any = (slice(box[d].stop, None), *box[:d], *box[d + 1 :])
            layers = np.moveaxis(left, d, 0)[at]
            are_left = layers.all(axis=tuple(range(1, layers.ndim)))
            count = int(np.argmin([*are_left.tolist(), False]))
            box[d] = slice(box[d].start, box[d].stop + count)
        left[tuple(box)] = False
        yield tuple(box)
