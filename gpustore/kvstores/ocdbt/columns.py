"""Columns of numbers and bytes, the elements of every structure of an OCDBT database.

A structure with n entries is a column of n numbers for each of its members, one after the other:
varints (7 bits a byte, the low ones first, the highest bit set if more follow), single bytes, or
little-endian words. Large columns are decoded and encoded by NumPy, small ones in Python.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from gpustore.errors import CorruptChunkError

UINT64_MAX: Final = 2**64 - 1

_MAX_VARINT_NBYTES: Final = 10
# Up to here a loop is faster than NumPy (2 cores, 2026-11).
_SMALL: Final = 16

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]


class Reader:
    """Reads one decoded structure from beginning to end.

    Parameters
    ----------
    data : bytes
    position : int, optional
        First byte to read.
    stop : int, optional
        End of the structure.

    Raises
    ------
    CorruptChunkError
        From all methods, if the bytes to read are missing or invalid.
    """

    __slots__ = ("_array", "data", "position", "stop")

    def __init__(self, data: bytes, position: int = 0, stop: int | None = None) -> None:
        self.data = data
        self.position = position
        self.stop = len(data) if stop is None else stop
        self._array = np.frombuffer(data, np.uint8)

    @property
    def remaining(self) -> int:
        """Number of bytes that are not read."""
        return self.stop - self.position

    def error(self, reason: str) -> CorruptChunkError:
        """Return the error for a damaged structure, with the reason and the position."""
        return CorruptChunkError(f"{reason}; at byte {self.position}", status="DATA_LOSS")

    def finish(self) -> None:
        """Raise CorruptChunkError unless all bytes are read."""
        if self.remaining:
            raise self.error(f"End of data expected; remaining length: {self.remaining}")

    def take(self, nbytes: int) -> bytes:
        """Return the next bytes."""
        self._check_remaining(nbytes)
        start = self.position
        self.position += nbytes
        return self.data[start : self.position]

    def byte(self) -> int:
        """Return the next byte as a number."""
        self._check_remaining(1)
        self.position += 1
        return self.data[self.position - 1]

    def varint(self, maximum: int = UINT64_MAX) -> int:
        """Return a number of at most `maximum`."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift == 7 * _MAX_VARINT_NBYTES:
                raise self.error("Invalid varint: more than 10 bytes")
        if value > maximum:
            raise self.error(f"Invalid varint: {value} is more than {maximum}")
        return value

    def varints(self, count: int, maximum: int) -> Int64s:
        """Return a column of `count` numbers of at most `maximum`, which is less than 2**63."""
        return self._varints(count, maximum).view(np.int64)

    def varints64(self, count: int) -> UInt64s:
        """Return a column of `count` numbers of 64 bits."""
        return self._varints(count, UINT64_MAX)

    def _varints(self, count: int, maximum: int) -> UInt64s:
        self._check_remaining(count)  # A number takes a byte at least.
        if count <= _SMALL:
            return np.array([self.varint(maximum) for _ in range(count)], np.uint64)
        start = self.position
        head = self._array[start : start + count]
        if int(head.max()) < 0x80:
            values = head.astype(np.uint64)
            self.position += count
        else:
            values = self._long_varints(count)
        if maximum < UINT64_MAX and int(values.max()) > maximum:
            raise self.error(f"Invalid varint: {int(values.max())} is more than {maximum}")
        return values

    def _long_varints(self, count: int) -> UInt64s:
        start = self.position
        window = self._array[start : min(self.stop, start + count * _MAX_VARINT_NBYTES)]
        last = np.flatnonzero(window < 0x80)[:count]
        if len(last) < count:
            raise self.error("Unexpected end of data in varints")
        first = np.empty_like(last)
        first[0] = 0
        first[1:] = last[:-1] + 1
        nbytes = last - first + 1
        longest = int(nbytes.max())
        values = window[first].astype(np.uint64) & np.uint64(0x7F)
        for i in range(1, min(longest, _MAX_VARINT_NBYTES)):
            rows = np.flatnonzero(nbytes > i)
            more = window[first[rows] + i].astype(np.uint64) & np.uint64(0x7F)
            values[rows] |= more << np.uint64(7 * i)
        if longest >= _MAX_VARINT_NBYTES:
            rows = np.flatnonzero(nbytes >= _MAX_VARINT_NBYTES)
            top = window[first[rows] + _MAX_VARINT_NBYTES - 1]
            if longest > _MAX_VARINT_NBYTES or int(top.max()) > 1:
                raise self.error("Invalid varint: more than 64 bits")
        self.position = start + int(last[-1]) + 1
        return values

    def fixed(self, count: int, dtype: str) -> npt.NDArray[np.unsignedinteger]:
        """Return a column of `count` numbers of a little-endian type."""
        width = np.dtype(dtype)
        self._check_remaining(count * width.itemsize)
        column: npt.NDArray[np.unsignedinteger] = np.frombuffer(
            self.data, width, count, self.position
        )
        self.position += count * width.itemsize
        return column

    def _check_remaining(self, nbytes: int) -> None:
        if nbytes > self.remaining:
            raise self.error(f"Unexpected end of data: {nbytes} bytes, {self.remaining} remain")


_SHORT: Final = [bytes([value]) for value in range(0x80)]  # most numbers


def encode_varint(value: int) -> bytes:
    """Encode one number.

    >>> encode_varint(300).hex()
    'ac02'
    """
    if value < 0x80:
        return _SHORT[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_varints(values: npt.NDArray[np.integer]) -> bytes:
    """Encode a column of non-negative numbers.

    >>> encode_varints(np.array([1, 300])).hex()
    '01ac02'
    """
    if len(values) <= _SMALL:
        return b"".join(map(encode_varint, values.tolist()))
    values = values.astype(np.uint64)
    largest = int(values.max())
    if largest < 0x80:
        return values.astype(np.uint8).tobytes()
    nbytes = np.ones(len(values), np.int64)
    for i in range(1, -(-largest.bit_length() // 7)):
        nbytes += values >= np.uint64(1 << (7 * i))
    first = np.cumsum(nbytes) - nbytes
    encoded = np.empty(int(nbytes.sum()), np.uint8)
    for i in range(int(nbytes.max())):
        rows = np.flatnonzero(nbytes > i)
        bits = (values[rows] >> np.uint64(7 * i)).astype(np.uint8) & np.uint8(0x7F)
        encoded[first[rows] + i] = bits | ((nbytes[rows] > i + 1).astype(np.uint8) << 7)
    return encoded.tobytes()


def ragged_indices(start: Int64s, nbytes: Int64s) -> Int64s:
    """Return the indices of the bytes of pieces with these starts and lengths, in order.

    >>> ragged_indices(np.array([4, 1]), np.array([2, 3])).tolist()
    [4, 5, 1, 2, 3]
    """
    stop = np.cumsum(nbytes)
    total = int(stop[-1]) if len(stop) else 0
    indices: Int64s = np.repeat(start - (stop - nbytes), nbytes) + np.arange(total)
    return indices


def ragged(data: bytes, start: Int64s, nbytes: Int64s) -> bytes:
    """Return pieces of `data` with these starts and lengths, joined.

    >>> ragged(b"abcdef", np.array([4, 1]), np.array([2, 3]))
    b'efbcd'
    """
    if not len(start):
        return b""
    # Mostly one piece begins where the one before ends: few changes leave few runs.
    stop = start + nbytes
    breaks = np.flatnonzero(start[1:] != stop[:-1])
    if len(breaks) * 8 < len(start):
        first = start[np.concatenate(([0], breaks + 1))].tolist()
        last = stop[np.concatenate((breaks, [len(stop) - 1]))].tolist()
        return b"".join([data[a:b] for a, b in zip(first, last, strict=True)])
    return np.frombuffer(data, np.uint8)[ragged_indices(start, nbytes)].tobytes()
