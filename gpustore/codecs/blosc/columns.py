"""Blosc 1 frames of a whole batch, read as columns: one row for each stream of each block.

The checks are those of :mod:`gpustore.codecs.blosc.frame` for one frame, in a number of NumPy calls
that is independent of the number of frames. They are stricter: overlapping streams, which no
encoder writes, are rejected.

Source: c-blosc 1.21, ``README_CHUNK_FORMAT.rst`` and ``blosc.c``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from gpustore.codecs.blosc.frame import (
    BIT_SHUFFLE,
    BYTE_SHUFFLE,
    CODES,
    HEADER_NBYTES,
    MAX_SPLITS,
    MEMCPYED,
    MIN_STREAM_NBYTES,
    NOT_SPLIT,
    RESERVED,
    SHUFFLES,
)
from gpustore.device.encoded_columns import EncodedColumns, Integers, Mask, Rejections
from gpustore.device.headers import take_parts

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
        return BloscStreams(*(column[chosen] for column in _columns(self).values()))


@dataclass(frozen=True, slots=True)
class BloscColumns:
    """Frames of a batch, with their blocks and streams.

    Attributes
    ----------
    decoded_nbytes, typesize, code : ndarray of int64, shape (n,)
        Decoded bytes of each frame, bytes of an element, number of the compressor.
    is_stored, is_byte_shuffled, is_bit_shuffled : ndarray of bool, shape (n,)
        Whether the decoded bytes follow the header, unshuffled; which shuffle blocks have.
    blocks : BloscBlocks
    streams : BloscStreams
        Stored frames have neither blocks nor streams.
    """

    decoded_nbytes: Integers
    typesize: Integers
    code: Integers
    is_stored: Mask
    is_byte_shuffled: Mask
    is_bit_shuffled: Mask
    blocks: BloscBlocks
    streams: BloscStreams

    @property
    def codes(self) -> list[int]:
        """Numbers of the compressors of all frames, also of stored ones."""
        found: list[int] = np.bincount(self.code).nonzero()[0].tolist()
        return found

    def compressed(self) -> list[tuple[int, Integers | slice]]:
        """Return the number of each compressor with those of its streams, but for stored ones."""
        codes, is_stored = self.codes, self.streams.is_stored
        if len(codes) == 1:
            if not is_stored.any():
                return [(codes[0], slice(None))]
            found = [(codes[0], (~is_stored).nonzero()[0])]
        else:
            of_stream = np.where(is_stored, -1, self.code[self.streams.frame])
            found = [(code, (of_stream == code).nonzero()[0]) for code in codes]
        return [(code, some) for code, some in found if len(some)]

    def take(self, values: Mask | Integers) -> BloscColumns:
        """Return some of the frames, numbered anew."""
        count = len(self.decoded_nbytes)
        frame, number = take_parts(self.blocks.frame, count, values)
        blocks = BloscBlocks(frame, self.blocks.offset[number], self.blocks.nbytes[number])
        frame, number = take_parts(self.streams.frame, count, values)
        streams = replace(self.streams.take(number), frame=frame)
        heads = {name: column[values] for name, column in self._heads.items()}
        return BloscColumns(**heads, blocks=blocks, streams=streams)

    def joined(self, others: Sequence[BloscColumns]) -> BloscColumns:
        """Return these frames and those of `others`."""
        every = (self, *others)
        before = np.cumsum([0, *[len(one.decoded_nbytes) for one in every]])
        blocks = [replace(one.blocks, frame=one.blocks.frame + n) for one, n in zip(every, before)]
        streams = [
            replace(one.streams, frame=one.streams.frame + n) for one, n in zip(every, before)
        ]
        return BloscColumns(
            **_joined([one._heads for one in every]),
            blocks=BloscBlocks(**_joined([_columns(one) for one in blocks])),
            streams=BloscStreams(**_joined([_columns(one) for one in streams])),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of host memory of all columns."""
        every = (self._heads, _columns(self.blocks), _columns(self.streams))
        return sum([column.nbytes for columns in every for column in columns.values()])

    @property
    def _heads(self) -> dict[str, Any]:
        """Columns of the frames."""
        columns = _columns(self)
        return {name: columns[name] for name in columns if name not in ("blocks", "streams")}


def _columns(one: Any) -> dict[str, Any]:
    """Return the columns of a dataclass by name."""
    return {name: getattr(one, name) for name in one.__slots__}


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


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
    if found is None:
        if encoded.reader is None:
            return _read(encoded, decoded_max, exact=exact)
        found = encoded.reader.blosc_frames(
            encoded.data, encoded.start, encoded.nbytes, decoded_max, exact=exact
        )
    decoded_nbytes, typesize, code, *flags = found.heads
    is_stored, is_byte_shuffled, is_bit_shuffled = [flag != 0 for flag in flags]
    frame, src, src_nbytes, dst, dst_nbytes = found.streams
    adler32 = np.zeros(len(frame), np.int64)
    columns = BloscColumns(
        *(decoded_nbytes, typesize, code, is_stored, is_byte_shuffled, is_bit_shuffled),
        blocks=BloscBlocks(*found.blocks),
        streams=BloscStreams(frame, src, src_nbytes, dst, dst_nbytes, adler32),
    )
    wrong = (decoded_nbytes != decoded_max) if exact else (decoded_nbytes > decoded_max)
    (left,) = (wrong | (decoded_nbytes == 0)).nonzero()
    if not len(left):
        return columns, {}
    others, reasons = _read(encoded.take(left), decoded_max, exact=exact)
    order = np.arange(len(encoded))
    order[left] = len(encoded) + np.arange(len(left))
    columns = columns.joined([others]).take(order)
    return columns, {int(left[number]): reason for number, reason in reasons.items()}


def _read(
    encoded: EncodedColumns, decoded_max: int, *, exact: bool
) -> tuple[BloscColumns, dict[int, str]]:
    """Read frames by NumPy alone; parameters and result are those of :func:`read_columns`."""
    count = len(encoded.start)
    found = Rejections(count, "blosc")
    found.reject(encoded.nbytes < HEADER_NBYTES, "shorter than a header")

    def field(offset: int, nbytes: int) -> Integers:
        return encoded.uint(encoded.start + offset, nbytes, found.ok)

    version, code_version, flags, typesize = (field(at, 1) for at in range(4))
    nbytes, blocksize, cbytes = field(4, 4), field(8, 4), field(12, 4)
    code = flags >> 5
    found.reject(version != 2, "not format version 2")
    found.reject(
        ((flags & RESERVED) != 0) | ((flags & SHUFFLES) == SHUFFLES) | (code >= len(CODES)),
        "unknown flags",
    )
    found.reject(cbytes != encoded.nbytes, "another length than the header says")
    found.reject(typesize == 0, "elements of no bytes")
    found.reject(nbytes == 0, "no bytes")
    wrong_size = (nbytes != decoded_max) if exact else (nbytes > decoded_max)
    found.reject(wrong_size, f"does not decode to {decoded_max} bytes")
    found.reject((blocksize == 0) | (blocksize > nbytes), "impossible block size")
    is_stored = (flags & MEMCPYED) != 0
    found.reject(is_stored & (cbytes != nbytes + HEADER_NBYTES), "another length than stored bytes")
    found.reject(~is_stored & (code_version != 1), "an unknown version of its compressor")
    count_of = -(-nbytes // np.maximum(blocksize, 1))
    found.reject(
        ~is_stored & (count_of * _MIN_BLOCK_NBYTES > cbytes - HEADER_NBYTES),
        "no room for its blocks",
    )

    count_of = np.where(found.ok & ~is_stored, count_of, 0)
    frame, number = _numbered(count_of)
    block_nbytes = np.minimum(blocksize[frame], nbytes[frame] - number * blocksize[frame])
    blocks = BloscBlocks(frame, number * blocksize[frame], block_nbytes)
    every = np.ones(len(frame), np.bool_)
    start = encoded.uint(encoded.start[frame] + HEADER_NBYTES + 4 * number, 4, every)
    elements = block_nbytes // typesize[frame]
    is_split = ((flags[frame] & NOT_SPLIT) == 0) & (typesize[frame] <= MAX_SPLITS)
    is_split &= (block_nbytes == blocksize[frame]) & (elements >= MIN_STREAM_NBYTES)
    splits = np.where(is_split, typesize[frame], 1)
    found.reject_of(frame, block_nbytes % splits != 0, "blocks of parts of elements")
    streams = _read_streams(encoded, found, blocks, start, splits, cbytes, count_of)
    columns = BloscColumns(
        nbytes,
        typesize,
        code,
        is_stored,
        ((flags & BYTE_SHUFFLE) != 0) & (typesize > 1),
        (flags & BIT_SHUFFLE) != 0,
        blocks,
        streams,
    )
    return columns, found.reasons


def _read_streams(
    encoded: EncodedColumns,
    found: Rejections,
    blocks: BloscBlocks,
    position: Integers,
    splits: Integers,
    cbytes: Integers,
    count_of: Integers,
) -> BloscStreams:
    """Walk the lengths of all blocks at once, stream by stream."""
    frame = blocks.frame
    first = np.cumsum(splits) - splits
    total = int(splits.sum())
    streams = BloscStreams(*(np.zeros(total, np.int64) for _ in range(6)))
    begin = HEADER_NBYTES + 4 * count_of[frame]
    share = blocks.nbytes // splits
    for k in range(int(splits.max(initial=0))):
        walks = (splits > k) & found.ok[frame]
        inside = (position >= begin) & (position <= cbytes[frame] - 4)
        found.reject_of(frame, walks & ~inside, "a stream outside of its frame")
        walks &= inside
        length = encoded.uint(encoded.start[frame] + position, 4, walks)
        position = position + 4
        fits = (length > 0) & (length <= cbytes[frame] - position)
        found.reject_of(frame, walks & ~fits, "a stream that ends outside of its frame")
        walks &= fits
        at = first[walks] + k
        streams.frame[at] = frame[walks]
        streams.src[at] = position[walks]
        streams.src_nbytes[at] = length[walks]
        streams.dst[at] = (blocks.offset + k * share)[walks]
        streams.dst_nbytes[at] = share[walks]
        position = position + length
    streams.frame[:] = np.repeat(frame, splits)
    streams = streams.take(found.ok[streams.frame])
    order = np.argsort((streams.frame << 32) + streams.src)
    same = streams.frame[order][1:] == streams.frame[order][:-1]
    ends = (streams.src + streams.src_nbytes)[order][:-1]
    overlaps = same & (ends + 4 > streams.src[order][1:])
    found.reject_of(streams.frame[order][1:], overlaps, "streams that lie in each other")
    return streams


def _numbered(count_of: Integers) -> tuple[Integers, Integers]:
    """Return the owner of each item, and its number among those of its owner."""
    owner = np.repeat(np.arange(len(count_of)), count_of)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(count_of) - count_of, count_of)
    return owner, number
