"""Blosc 1 frames of a whole batch, read as columns: one row for each stream of each block.

The native core reads them, mostly while it fetches them; Python reads those that it leaves, and
says what is wrong with them. The checks are those of :mod:`gpustore.codecs.blosc.frame`, but
stricter: overlapping streams, which no encoder writes, are rejected.

Source: c-blosc 1.21, ``README_CHUNK_FORMAT.rst`` and ``blosc.c``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from gpustore.codecs.blosc.frame import (
    BIT_SHUFFLE,
    BYTE_SHUFFLE,
    CODES,
    HEADER_NBYTES,
    MEMCPYED,
    RESERVED,
    SHUFFLES,
    VERSION,
    BloscHeader,
    splits_of,
)
from gpustore.device.encoded_columns import EncodedColumns, HeaderReader, Integers, Mask
from gpustore.device.headers import FRAME_HEADS, FrameColumns, FramePart, take_parts

_HEADER: Final = struct.Struct("<BBBBIII")
_UINT32: Final = struct.Struct("<I")

# Of a block: its offset, the length of its stream, a byte of it.
_MIN_BLOCK_NBYTES: Final = 9


@dataclass(frozen=True, slots=True)
class BloscBlocks:
    """Blocks of all frames, in the order of their decoded bytes.

    Attributes
    ----------
    frame : ndarray of int64
        Number of the frame.
    offset, nbytes : ndarray of int64
        Decoded bytes of the block, within those of the frame.
    """

    frame: Integers
    offset: Integers
    nbytes: Integers


@dataclass(frozen=True, slots=True)
class BloscStreams:
    """Streams of all blocks.

    Attributes
    ----------
    frame : ndarray of int64
        Number of the frame.
    src, src_nbytes : ndarray of int64
        Bytes of the stream, within the frame.
    dst, dst_nbytes : ndarray of int64
        Range of the decoded stream, within the shuffled bytes of the frame.
    adler32 : ndarray of int64
        Checksum of the decoded stream, if its compressor is zlib.
    """

    frame: Integers
    src: Integers
    src_nbytes: Integers
    dst: Integers
    dst_nbytes: Integers
    adler32: Integers

    @property
    def is_stored(self) -> Mask:
        """Whether each stream is stored without compression, a bool array."""
        stored: Mask = self.src_nbytes == self.dst_nbytes
        return stored

    def take(self, chosen: Mask | Integers | slice) -> BloscStreams:
        """Return some of the streams."""
        if not isinstance(chosen, slice) and chosen.dtype == np.bool_:
            (chosen,) = chosen.nonzero()
        return BloscStreams(*(getattr(self, name)[chosen] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class BloscColumns:
    """Frames of a batch, with their blocks and streams.

    Attributes
    ----------
    frames : FrameColumns
        Frames as they were read. Stored frames have neither blocks nor streams.
    adler32 : ndarray of int64, optional
        Checksum of each decoded stream whose compressor is zlib; None if there are none.
    reader : HeaderReader, optional
        Makes tables of the frames faster than NumPy does.
    """

    frames: FrameColumns
    adler32: Integers | None = None
    reader: HeaderReader | None = None

    @property
    def decoded_nbytes(self) -> Integers:
        """Decoded bytes of each frame."""
        return self.frames.head(0)

    @property
    def typesize(self) -> Integers:
        """Bytes of an element of each frame."""
        return self.frames.head(1)

    @property
    def code(self) -> Integers:
        """Number of the compressor of each frame."""
        return self.frames.head(2)

    @property
    def is_stored(self) -> Mask:
        """Whether the decoded bytes of each frame follow its header, unshuffled."""
        stored: Mask = self.frames.head(3) != 0
        return stored

    @property
    def is_byte_shuffled(self) -> Mask:
        """Whether the bytes of the blocks of each frame are shuffled."""
        shuffled: Mask = self.frames.head(4) != 0
        return shuffled

    @property
    def is_bit_shuffled(self) -> Mask:
        """Whether the bits of the blocks of each frame are shuffled."""
        shuffled: Mask = self.frames.head(5) != 0
        return shuffled

    @property
    def blocks(self) -> BloscBlocks:
        """Blocks of all frames."""
        return BloscBlocks(*self.frames.whole.blocks)

    @property
    def streams(self) -> BloscStreams:
        """Streams of all blocks."""
        frame, src, src_nbytes, dst, dst_nbytes = self.frames.whole.streams
        adler32 = np.zeros(len(frame), np.int64) if self.adler32 is None else self.adler32
        return BloscStreams(frame, src, src_nbytes, dst, dst_nbytes, adler32)

    @property
    def codes(self) -> list[int]:
        """Numbers of the compressors of all frames, also of stored ones."""
        every = self.code
        if len(every) and not len((every != every[0]).nonzero()[0]):  # As most are.
            return [int(every[0])]
        found: list[int] = np.bincount(every).nonzero()[0].tolist()
        return found

    def compressed(self, streams: BloscStreams) -> list[tuple[int, Integers | slice]]:
        """Return the number of each compressor with those of its streams, but for stored ones."""
        codes, is_stored = self.codes, streams.is_stored
        if len(codes) == 1:
            if not is_stored.any():
                return [(codes[0], slice(None))]
            found = [(codes[0], (~is_stored).nonzero()[0])]
        else:
            of_stream = np.where(is_stored, -1, self.code[streams.frame])
            found = [(code, (of_stream == code).nonzero()[0]) for code in codes]
        return [(code, some) for code, some in found if len(some)]

    def take(self, values: Mask | Integers) -> BloscColumns:
        """Return some of the frames, numbered anew."""
        adler32 = self.adler32
        if adler32 is not None:
            count = len(self.decoded_nbytes)
            adler32 = adler32[take_parts(self.frames.whole.streams[0], count, values)[1]]
        return BloscColumns(self.frames.take(values), adler32, self.reader)

    def joined(self, others: Sequence[BloscColumns]) -> BloscColumns:
        """Return these frames and those of `others`."""
        every = (self, *others)
        adler32 = None
        if any([one.adler32 is not None for one in every]):
            adler32 = np.concatenate([one.streams.adler32 for one in every])
        frames = self.frames.joined([one.frames for one in others])
        return BloscColumns(frames, adler32, self.reader)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory of all columns."""
        return self.frames.nbytes + (0 if self.adler32 is None else self.adler32.nbytes)


def read_columns(
    encoded: EncodedColumns, decoded_max: int, *, exact: bool
) -> tuple[BloscColumns, dict[int, str]]:
    """Read and check frames.

    Parameters
    ----------
    encoded : EncodedColumns
    decoded_max : int
        Longest decoded frame, in bytes.
    exact : bool
        Whether each frame must decode to exactly that length.

    Returns
    -------
    BloscColumns
        All streams lie in their frame, decode to disjoint ranges that cover it, and do not overlap.
        The columns of rejected frames are undefined.
    dict of int to str
        Reasons against rejected frames, by number.
    """
    found = encoded.known
    reasons: dict[int, str] = {}
    if found is None and encoded.reader is not None:
        found = encoded.reader.blosc_frames(
            encoded.data, encoded.start, encoded.nbytes, decoded_max, exact=exact
        )
    if found is None:
        found, reasons = _read(encoded, decoded_max, exact=exact)
        return BloscColumns(found, reader=encoded.reader), reasons
    decoded_nbytes = found.head(0)
    if exact and decoded_max:
        wrong = decoded_nbytes != decoded_max
    else:
        wrong = (decoded_nbytes > decoded_max) | (decoded_nbytes == 0)
    (left,) = wrong.nonzero()
    if len(left):
        others, reasons = _read(encoded.take(left), decoded_max, exact=exact)
        order = np.arange(len(encoded))
        order[left] = len(encoded) + np.arange(len(left))
        found = found.joined([others]).take(order)
        reasons = {int(left[number]): reason for number, reason in reasons.items()}
    return BloscColumns(found, reader=encoded.reader), reasons


def _read(
    encoded: EncodedColumns, decoded_max: int, *, exact: bool
) -> tuple[FrameColumns, dict[int, str]]:
    """Read frames one by one, without the native core or where that leaves them.

    Parameters and reasons are those of :func:`read_columns`.
    """
    heads, blocks, streams = np.zeros((FRAME_HEADS, len(encoded)), np.int64), [], []
    reasons: dict[int, str] = {}
    for frame in range(len(encoded)):
        try:
            head, some_blocks, some_streams = _read_frame(encoded[frame], decoded_max, exact=exact)
        except ValueError as error:
            reasons[frame] = f"blosc: {error}"
            continue
        heads[:, frame] = *head, len(some_blocks), len(some_streams)
        blocks += [(frame, *one) for one in some_blocks]
        streams += [(frame, *one) for one in some_streams]
    columns = [
        np.array(rows, np.int64).reshape(-1, width).T for rows, width in ((blocks, 3), (streams, 5))
    ]
    return FrameColumns([FramePart.of(heads, *columns)]), reasons


_Numbers = tuple[int, ...]


def _read_frame(
    value: memoryview, decoded_max: int, *, exact: bool
) -> tuple[_Numbers, list[_Numbers], list[_Numbers]]:
    """Return head, blocks and streams of a frame, as in FrameColumns but for its number.

    Raises
    ------
    ValueError
        With the reason against the frame.
    """
    if len(value) < HEADER_NBYTES:
        raise ValueError("shorter than a header")
    version, code_version, flags, typesize, nbytes, blocksize, cbytes = _HEADER.unpack_from(value)
    is_stored = bool(flags & MEMCPYED)
    count = -(-nbytes // max(1, blocksize))
    header = BloscHeader(flags, max(1, typesize), nbytes, blocksize, cbytes)
    for wrong, reason in (
        (version != VERSION, "not format version 2"),
        (
            flags & RESERVED or flags & SHUFFLES == SHUFFLES or flags >> 5 >= len(CODES),
            "unknown flags",
        ),
        (cbytes != len(value), "another length than the header says"),
        (typesize == 0, "elements of no bytes"),
        (nbytes == 0, "no bytes"),
        (
            (nbytes != decoded_max) if exact else (nbytes > decoded_max),
            f"does not decode to {decoded_max} bytes",
        ),
        (not 0 < blocksize <= nbytes, "impossible block size"),
        (is_stored and cbytes != nbytes + HEADER_NBYTES, "another length than stored bytes"),
        (not is_stored and code_version != 1, "an unknown version of its compressor"),
        (
            not is_stored and count * _MIN_BLOCK_NBYTES > cbytes - HEADER_NBYTES,
            "no room for its blocks",
        ),
        (
            not is_stored and blocksize % splits_of(header, blocksize),
            "blocks of parts of elements",
        ),
    ):
        if wrong:
            raise ValueError(reason)
    shuffles = flags & BYTE_SHUFFLE and typesize > 1, bool(flags & BIT_SHUFFLE)
    blocks: list[_Numbers] = []
    streams: list[_Numbers] = []
    begin = HEADER_NBYTES + 4 * count
    for at in () if is_stored else range(HEADER_NBYTES, begin, 4):
        offset = len(blocks) * blocksize
        block_nbytes = min(blocksize, nbytes - offset)
        blocks.append((offset, block_nbytes))
        share = block_nbytes // splits_of(header, block_nbytes)
        (position,) = _UINT32.unpack_from(value, at)
        for dst in range(offset, offset + block_nbytes, share):
            if not begin <= position <= cbytes - 4:
                raise ValueError("a stream outside of its frame")
            (length,) = _UINT32.unpack_from(value, position)
            position += 4
            if not 0 < length <= cbytes - position:
                raise ValueError("a stream that ends outside of its frame")
            streams.append((position, length, dst, share))
            position += length
    for one, other in pairwise(sorted(streams)):
        if one[0] + one[1] + 4 > other[0]:
            raise ValueError("streams that lie in each other")
    return (nbytes, typesize, flags >> 5, is_stored, *map(bool, shuffles)), blocks, streams
