"""Encoded bytes of many values as one array, whose headers NumPy reads all at once.

Headers, lengths and offsets, which the host reads before a device decodes, are a few bytes of each
stream, and there may be thousands of streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpustore.device.headers import FrameColumns
from gpustore.runtime.buffer import Buffer

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class HeaderReader(Protocol):
    """Reader of headers that are plainly right; codecs read the others themselves.

    Parameters are the memory that holds all frames, the first byte of each there, and their
    lengths, int64 arrays of shape (n,).
    """

    def zstd_frames(self, data: NDArray[np.uint8], start: Integers, nbytes: Integers) -> Integers:
        """Return the content size of each Zstandard frame in bytes, 0 for those that are left."""

    def blosc_frames(
        self,
        data: NDArray[np.uint8],
        start: Integers,
        nbytes: Integers,
        decoded_max: int,
        *,
        exact: bool,
    ) -> FrameColumns:
        """Return columns of Blosc frames that decode to at most, or to exactly, `decoded_max`."""

    def frame_tables(
        self, frames: FrameColumns, address: NDArray[np.uint64], rows: Integers
    ) -> FrameTables | None:
        """Count what the tables have by which a device decodes n Blosc frames that are alike.

        Parameters
        ----------
        address : ndarray of uint64, shape (n,)
            Device address of each frame.
        rows : ndarray of int64, shape (n,)
            Row of each frame.

        Returns
        -------
        FrameTables or None
            None for frames that differ in size, compressor, elements or shuffle, are stored, or
            have blocks that do not lie where kernels need them.
        """


class FrameTables(Protocol):
    """Tables by which a device decodes Blosc frames that are alike.

    Attributes
    ----------
    nbytes, code, typesize : int
        Decoded bytes of a frame, number of the compressor, and bytes of an element.
    shuffle : int
        Whether blocks are not shuffled (0), their bytes (1) or their bits (2).
    blocks, compressed, stored : int
        Number of blocks, of compressed streams, and of stored ones.
    src_bits : int
        Bits that are set in the device address of any compressed stream.
    most_nbytes, total_nbytes : int
        Decoded bytes of the longest compressed stream, and of all of them.
    copy_blocks, shuffle_blocks : int
        Thread blocks of the launches for stored streams, and for shuffled blocks.
    """

    nbytes: int
    code: int
    typesize: int
    shuffle: int
    blocks: int
    compressed: int
    stored: int
    src_bits: int
    most_nbytes: int
    total_nbytes: int
    copy_blocks: int
    shuffle_blocks: int

    def write(self, decoded: int, joined: int, pitch: int, memory: NDArray[np.uint8]) -> Integers:
        """Write the tables.

        Parameters
        ----------
        decoded, joined : int
            Device addresses, multiples of 16, of what the first frame decodes to, and of its
            shuffled bytes.
        pitch : int
            Bytes from the output of one frame to that of the next, a multiple of 16.
        memory : ndarray of uint8
            Memory, 32 bytes for each, for the descriptors of stored streams, the table of a
            :class:`~gpustore.device.protocol.CodecBatch` of the compressed ones, and the
            descriptors of shuffled blocks, one behind the other.

        Returns
        -------
        ndarray of int64, shape (2, compressed)
            Row of each compressed stream, and its decoded bytes.
        """


class EncodedColumns:
    """Encoded bytes of n values in one piece of host memory.

    Parameters
    ----------
    data : ndarray of uint8
        Memory that holds all values.
    start, nbytes : ndarray of int64, shape (n,)
        First byte of each value in `data`, and its length.
    reader : HeaderReader, optional
        Reads headers faster than NumPy does.
    known : KnownHeaders, optional
        Headers that were read before. Of Zstandard frames one column, the decoded bytes of each
        value, 0 for those that are left; of Blosc frames
        :class:`~gpustore.device.headers.FrameColumns`.
    """

    __slots__ = ("data", "known", "nbytes", "reader", "start")

    def __init__(
        self,
        data: NDArray[np.uint8],
        start: Integers,
        nbytes: Integers,
        reader: HeaderReader | None = None,
        known: Any = None,
    ) -> None:
        self.data = data
        self.start = start
        self.nbytes = nbytes
        self.reader = reader
        self.known = known

    @classmethod
    def joined(cls, values: Sequence[Buffer]) -> EncodedColumns:
        """Copy values from anywhere in host memory, one behind the other.

        >>> EncodedColumns.joined([b"ab", b"c"]).start.tolist()
        [0, 2]
        """
        nbytes = np.array([len(value) for value in values], np.int64)
        data = np.frombuffer(b"".join(values), np.uint8)
        return cls(data, np.cumsum(nbytes) - nbytes, nbytes)

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, i: int) -> memoryview:
        """Bytes of value `i`."""
        start = int(self.start[i])
        return self.data[start : start + int(self.nbytes[i])].data

    def take(self, values: NDArray[np.generic]) -> EncodedColumns:
        """Return the values of these indices, or those where a mask is true."""
        known = None if self.known is None else self.known.take(values)
        start, nbytes = self.start[values], self.nbytes[values]
        return EncodedColumns(self.data, start, nbytes, self.reader, known)

    def inside(self, before: int, behind: int) -> EncodedColumns:
        """Return the values without their first `before` and last `behind` bytes."""
        nbytes = self.nbytes - (before + behind)
        known = None if before else self.known
        return EncodedColumns(self.data, self.start + before, nbytes, self.reader, known)

    def uint(self, position: Integers, nbytes: int, ok: Mask) -> Integers:
        """Read little endian integers of `nbytes` bytes, at most 7; 0 where `ok` is false.

        `position` is relative to the same origin as :attr:`start`; the integer must lie in a value
        where `ok` is true.
        """
        place = position[ok]
        found = np.zeros(len(place), np.int64)
        for k in range(nbytes):
            found |= self.data[place + k].astype(np.int64) << (8 * k)
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
