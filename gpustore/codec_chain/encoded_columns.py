"""The encoded bytes of many values as one array, so that NumPy looks at all of them at once.

What is read on the host before a device decodes (headers, lengths, offsets) is a few bytes of
each stream, and there may be thousands of streams. Values that lie in one buffer of pinned memory
are not copied.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.runtime.buffer import Buffer

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class EncodedColumns:
    """Bytes of n values in host memory.

    Parameters
    ----------
    values : sequence of bytes-like, length n

    Attributes
    ----------
    start, nbytes : ndarray of int64, shape (n,)
        Where each value begins for :meth:`uint`, and its length.
    """

    __slots__ = ("_data", "nbytes", "start")

    def __init__(self, values: Sequence[Buffer]) -> None:
        arrays = [np.frombuffer(value, np.uint8) for value in values]
        self.nbytes: Integers = np.array([len(array) for array in arrays], np.int64)
        shared = _shared_memory(values)
        if shared is None:
            ends = np.cumsum(self.nbytes)
            self.start: Integers = ends - self.nbytes
            self._data = np.concatenate(arrays) if arrays else np.zeros(0, np.uint8)
        else:
            origin = shared.__array_interface__["data"][0]
            addresses = [array.__array_interface__["data"][0] for array in arrays]
            self.start = np.array(addresses, np.int64) - origin
            self._data = shared

    def take(self, left_out: Collection[int]) -> EncodedColumns:
        """The same without some of the values."""
        taken = copy(self)
        taken.start = np.delete(self.start, list(left_out))
        taken.nbytes = np.delete(self.nbytes, list(left_out))
        return taken

    def uint(self, position: Integers, nbytes: int, ok: Mask) -> Integers:
        """Little endian integers of `nbytes` bytes, at most 7; 0 where `ok` is false.

        `position` counts as :attr:`start` does, and must lie in a value where `ok` is true.
        """
        place = position[ok]
        found = np.zeros(len(place), np.int64)
        for k in range(nbytes):
            found |= self._data[place + k].astype(np.int64) << (8 * k)
        column = np.zeros(len(position), np.int64)
        column[ok] = found
        return column

    def uint_before(self, end: Integers, position: Integers, nbytes: int) -> Integers:
        """The same, where bytes from `end` on count as 0; `end` lies in the value."""
        column = np.zeros(len(position), np.int64)
        for k in range(nbytes):
            column |= self.uint(position + k, 1, position + k < end) << (8 * k)
        return column


def _shared_memory(values: Sequence[Buffer]) -> NDArray[np.uint8] | None:
    """The memory that all values are views of, None if there is no such."""
    first = values[0] if values else None
    if not isinstance(first, memoryview):
        return None
    owner: Any = first.obj
    if not all(isinstance(value, memoryview) and value.obj is owner for value in values):
        return None
    try:
        shared: NDArray[np.uint8] = np.frombuffer(owner, np.uint8)
    except (TypeError, ValueError, BufferError):
        return None
    return shared
