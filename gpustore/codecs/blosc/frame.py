"""Blosc 1 frames: the header, conversion of streams to another code, selection of blocks.

A frame is a header of 16 bytes, the offsets of its blocks, and the blocks, which may lie in any
order. A block was shuffled and then cut into streams, each behind its length in four bytes; a
stream as long as its share of the block is stored as it is.

:func:`recode` changes only the streams, so that the library's shuffles serve codes that it cannot
compress or decompress. :func:`take_blocks` makes a frame of some of the blocks, so that the others
need not be decompressed.

Source: c-blosc 1.21, ``README_CHUNK_FORMAT.rst`` and ``blosc.c``. Offsets count from the start of
the frame, against what the former says.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gpustore.errors import CorruptChunkError, UnsupportedError
from gpustore.runtime.buffer import Buffer

CODES: Final = ("blosclz", "lz4", "snappy", "zlib", "zstd")

_HEADER: Final = struct.Struct("<BBBBiii")
_INT32: Final = struct.Struct("<i")
VERSION: Final = 2
MEMCPYED: Final = 0x02
BYTE_SHUFFLE: Final = 0x01
BIT_SHUFFLE: Final = 0x04
# Byte and bit shuffle at once marks an extended header of Blosc 2; 0x08 is reserved.
SHUFFLES: Final = BYTE_SHUFFLE | BIT_SHUFFLE
RESERVED: Final = 0x08
NOT_SPLIT: Final = 0x10
MAX_SPLITS: Final = 16
MIN_STREAM_NBYTES: Final = 128
_MAX_CBYTES: Final = 2**31 - 1

HEADER_NBYTES: Final = _HEADER.size
MIN_NBYTES: Final = 128
"""Fewer bytes are stored without compression and shuffle."""


@dataclass(frozen=True, slots=True)
class BloscHeader:
    """The first 16 bytes of a frame, consistent with its length.

    Attributes
    ----------
    flags : int
        Bits: 0 byte shuffle, 1 stored as it is, 2 bit shuffle, 4 not split, 5-7 compressor.
    typesize, nbytes, blocksize, cbytes : int
        Bytes of an element, of the decoded chunk, of a decoded block, of the whole frame.
    """

    flags: int
    typesize: int
    nbytes: int
    blocksize: int
    cbytes: int

    @property
    def is_stored(self) -> bool:
        """Whether the bytes follow the header without compression and shuffle."""
        return bool(self.flags & MEMCPYED)


def read_header(encoded: Buffer) -> BloscHeader:
    """Read and check the header of a frame.

    Raises
    ------
    CorruptChunkError
        ``Invalid blosc-compressed data: ...`` if the header is not that of a Blosc 1 frame of
        exactly ``len(encoded)`` bytes.
    """
    found = len(encoded)
    if found < _HEADER.size:
        raise invalid(f"{found} bytes, expected a header of {_HEADER.size}")
    version, _, flags, typesize, nbytes, blocksize, cbytes = _HEADER.unpack_from(encoded)
    header = BloscHeader(flags, typesize, nbytes, blocksize, cbytes)
    if version != VERSION:
        raise invalid(f"format version {version}, expected {VERSION}")
    if flags & RESERVED or flags & SHUFFLES == SHUFFLES or flags >> 5 >= len(CODES):
        raise invalid(f"flags 0x{flags:02x}")
    if cbytes != found:
        raise invalid(f"{found} bytes, but the header says {cbytes}")
    if typesize == 0 or nbytes < 0:
        raise invalid(f"typesize {typesize}, nbytes {nbytes}")
    if nbytes == 0:
        return header
    if not 0 < blocksize <= nbytes:
        raise invalid(f"blocksize {blocksize} of {nbytes} bytes")
    if header.is_stored:
        if cbytes != nbytes + _HEADER.size:
            raise invalid(f"{cbytes} bytes hold {nbytes} uncompressed ones")
    elif -(-nbytes // blocksize) > (cbytes - _HEADER.size) // 4:
        raise invalid(f"blocks of {blocksize} bytes leave no room for {nbytes} bytes")
    return header


def invalid(reason: str) -> CorruptChunkError:
    """Return the error for an invalid frame."""
    return CorruptChunkError(f"Invalid blosc-compressed data: {reason}", codec="blosc")


def with_code(frame: Buffer, code: int) -> bytearray:
    """Return a copy of a frame whose header names another compressor."""
    changed = bytearray(frame)
    changed[2] = changed[2] & 0x1F | code << 5
    return changed


def recode(
    frame: memoryview,
    header: BloscHeader,
    code: int,
    convert: Callable[[memoryview, int, bool], Buffer],
) -> bytearray:
    """Return the same frame with other streams.

    Parameters
    ----------
    frame : memoryview
        A frame that is not stored as it is.
    header : BloscHeader
        Header of the frame.
    code : int
        Position in :data:`CODES` of the compressor that the new frame names.
    convert : callable
        ``convert(stream, nbytes, is_stored)`` returns the new form of a stream that decodes to
        `nbytes` bytes; a result of `nbytes` bytes is a stored stream.

    Raises
    ------
    CorruptChunkError
        If streams do not lie within the frame.
    UnsupportedError
        If the new frame would be longer than a frame can be.
    """
    blocks = -(-header.nbytes // header.blocksize)
    recoded = bytearray(_HEADER.size + 4 * blocks)
    for block in range(blocks):
        _INT32.pack_into(recoded, _HEADER.size + 4 * block, len(recoded))
        for position, length, nbytes in _streams(frame, header, block):
            stream = convert(frame[position : position + length], nbytes, length == nbytes)
            recoded += _INT32.pack(len(stream))
            recoded += stream
        if len(recoded) > _MAX_CBYTES:
            raise UnsupportedError(
                f"blosc: a chunk of {header.nbytes} bytes is too long for this compressor"
            )
    flags = header.flags & 0x1F | code << 5
    _HEADER.pack_into(
        recoded,
        0,
        *(VERSION, 1, flags, header.typesize),
        *(header.nbytes, header.blocksize, len(recoded)),
    )
    return recoded


def take_blocks(
    frame: memoryview, header: BloscHeader, start: int, stop: int
) -> tuple[Buffer, int]:
    """Return a frame of the blocks that hold a range of the decoded bytes.

    Parameters
    ----------
    frame : memoryview
        A frame that is not stored as it is.
    header : BloscHeader
        Header of the frame.
    start, stop : int
        Range of decoded bytes, not empty.

    Returns
    -------
    bytes-like, int
        The frame, and the position of its first byte in the decoded bytes of the whole.

    Raises
    ------
    CorruptChunkError
        If streams of these blocks do not lie within the frame, or lie in each other.
    """
    blocks = -(-header.nbytes // header.blocksize)
    first, last = start // header.blocksize, -(-stop // header.blocksize)
    if last == blocks and header.nbytes % header.blocksize:
        # The short last block alone would make a frame shorter than its blocks.
        first = min(first, max(0, blocks - 2))
    if (first, last) == (0, blocks):
        return frame, 0
    taken = bytearray(_HEADER.size + 4 * (last - first))
    for i, block in enumerate(range(first, last)):
        _INT32.pack_into(taken, _HEADER.size + 4 * i, len(taken))
        for position, length, _ in _streams(frame, header, block):
            taken += frame[position - 4 : position + length]
        if len(taken) > header.cbytes:
            # A few bytes that all blocks share would become many times as many.
            raise invalid(f"block {block} lies in another one")
    begin = first * header.blocksize
    nbytes = min(last * header.blocksize, header.nbytes) - begin
    _HEADER.pack_into(
        taken,
        0,
        *(VERSION, 1, header.flags, header.typesize),
        *(nbytes, header.blocksize, len(taken)),
    )
    return taken, begin


def _streams(frame: memoryview, header: BloscHeader, block: int) -> Iterator[tuple[int, int, int]]:
    """Yield the beginning of each stream of a block, its length, and its decoded length."""
    (position,) = _INT32.unpack_from(frame, _HEADER.size + 4 * block)
    nbytes = min(header.blocksize, header.nbytes - block * header.blocksize)
    splits = splits_of(header, nbytes)
    for _ in range(splits):
        if not _HEADER.size <= position <= header.cbytes - 4:
            raise invalid(f"a stream of block {block} at byte {position}")
        (length,) = _INT32.unpack_from(frame, position)
        position += 4
        if not 0 < length <= header.cbytes - position:
            raise invalid(f"a stream of block {block} of {length} bytes at byte {position}")
        yield position, length, nbytes // splits
        position += length


def splits_of(header: BloscHeader, nbytes: int) -> int:
    """Return the number of streams of a block of `nbytes` bytes."""
    typesize = header.typesize
    if header.flags & NOT_SPLIT or typesize > MAX_SPLITS or nbytes != header.blocksize:
        return 1
    return typesize if nbytes // typesize >= MIN_STREAM_NBYTES else 1
