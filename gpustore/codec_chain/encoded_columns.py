"""Encoded bytes of many values as one array, whose headers NumPy reads all at once.

Headers, lengths and offsets, which the host reads before a device decodes, are a few bytes of each
stream, and there may be thousands of streams. Values in one staging buffer are not copied.
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
    """Encoded bytes of n values in host memory.

    Parameters
    ----------
    values : sequence of bytes-like, length n

    Attributes
    ----------
    start, nbytes : ndarray of int64, shape (n,)
        Position of each value for :meth:`uint`, and its length.
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
        """Return the columns without the values of the indices `left_out`."""
        taken = copy(self)
        taken.start = np.delete(self.start, list(left_out))
        taken.nbytes = np.delete(self.nbytes, list(left_out))
        return taken

    def uint(self, position: Integers, nbytes: int, ok: Mask) -> Integers:
        """Read little endian integers of `nbytes` bytes, at most 7; 0 where `ok` is false.

        `position` is relative to the same origin as :attr:`start`; the integer must lie in a value
        where `ok` is true.
        """
        place = position[ok]
        found = np.zeros(len(place), np.int64)
        for k in range(nbytes):
            found |= self._data[place + k].astype(np.int64) << (8 * k)
        column = np.zeros(len(position), np.int64)
        column[ok] = found
        return column

    def uint_before(self, end: Integers, position: Integers, nbytes: int) -> Integers:
        """Read integers as :meth:`uint` does; bytes from `end` on, in the value, count as 0."""
        column = np.zeros(len(position), np.int64)
        for k in range(nbytes):
            column |= self.uint(position + k, 1, position + k < end) << (8 * k)
        return column


class Rejections:
    """Values that a check of headers rejects, with the first reason against each.

    Parameters
    ----------
    count : int
        Number n of values.
    codec : str
        Name before each reason.

    Attributes
    ----------
    ok : ndarray of bool, shape (n,)
        Whether each value was not rejected so far; changed in place.
    reasons : dict of int to str
        Reasons by index of the value.

    >>> found = Rejections(3, "zstd")
    >>> found.reject(np.array([False, True, False]), "truncated")
    >>> found.ok.tolist(), found.reasons
    ([True, False, True], {1: 'zstd: truncated'})
    """

    __slots__ = ("_codec", "ok", "reasons")

    def __init__(self, count: int, codec: str) -> None:
        self.ok: Mask = np.ones(count, np.bool_)
        self.reasons: dict[int, str] = {}
        self._codec = codec

    def reject(self, wrong: Mask, reason: str) -> None:
        """Reject values where `wrong`, of shape (n,), is true."""
        wrong = wrong & self.ok
        if wrong.any():
            reason = f"{self._codec}: {reason}"
            self.reasons.update(dict.fromkeys(np.flatnonzero(wrong).tolist(), reason))
            self.ok[wrong] = False

    def reject_of(self, value: Integers, wrong: Mask, reason: str) -> None:
        """Reject the values of parts; part i is of the value of index `value[i]`."""
        whole = np.zeros(len(self.ok), np.bool_)
        whole[value[wrong]] = True
        self.reject(whole, reason)


def _shared_memory(values: Sequence[Buffer]) -> NDArray[np.uint8] | None:
    """Return the memory that all values are views of, None if they share none."""
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
