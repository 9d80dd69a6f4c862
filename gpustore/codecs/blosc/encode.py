"""Commands that encode chunks as Blosc 1 frames on a device.

1. One launch for each kernel instance shuffles the blocks of all chunks.
2. One call compresses the streams of all blocks, whose number and sizes are those of c-blosc.
3. Once the sizes are known a frame is put together: header, offsets of the blocks, and each stream
   behind its length. A stream that compression does not shorten is stored, and so is the chunk if
   its frame would not be shorter.

Source: c-blosc 1.21, ``README_CHUNK_FORMAT.rst`` and ``blosc.c``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.device_segments import Segments, big_endian
from gpustore.codec_chain.device_streams import aligned, destinations
from gpustore.codecs._deflate_columns import ZLIB_CHECKSUM_NBYTES, ZLIB_HEADER
from gpustore.codecs.blosc.block import blocksize_of, is_split
from gpustore.codecs.blosc.device import DEVICE_CODECS
from gpustore.codecs.blosc.frame import (
    BIT_SHUFFLE,
    BYTE_SHUFFLE,
    CODES,
    HEADER_NBYTES,
    MEMCPYED,
    MIN_NBYTES,
    NOT_SPLIT,
    VERSION,
)
from gpustore.device.encoding_list import ALIGNMENT, Compressed, Digests, EncodingList, Integers
from gpustore.device.kernels.block import (
    bit_shuffle_launches,
    shuffle_launches,
    stream_launches,
)
from gpustore.device.protocol import Spans

_LENGTH_NBYTES: Final = 4


class BloscFrames:
    """Frames of the values of a list, one each.

    Parameters
    ----------
    commands : EncodingList
        Chunks of one size, at least one byte.
    cname, clevel, shuffle, typesize, blocksize
        Options of the codec; `shuffle` is 0 none, 1 bytes, 2 bits.
    """

    def __init__(
        self,
        commands: EncodingList,
        cname: str,
        clevel: int,
        shuffle: int,
        typesize: int,
        blocksize: int,
    ) -> None:
        self._chunks = commands.values
        self._count = len(commands)
        nbytes = self._nbytes = int(commands.values.nbytes[0])
        self._typesize = typesize
        code = CODES.index(cname)
        size = self._blocksize = blocksize_of(cname, clevel, typesize, nbytes, blocksize)
        splits = is_split(cname, typesize, size)
        self._flags = (0, BYTE_SHUFFLE, BIT_SHUFFLE)[shuffle] | code << 5
        self._flags |= 0 if splits else NOT_SPLIT
        begin = np.arange(0, nbytes, size)
        self._blocks: Integers = np.minimum(size, nbytes - begin)
        # The last block is one stream if it is shorter than the others.
        self._splits = np.where((self._blocks == size) & splits, typesize, 1)
        self._sizes = np.repeat(self._blocks // self._splits, self._splits)
        self._streams: Compressed | None = None
        self._sums: Digests | None = None
        if clevel and nbytes >= MIN_NBYTES:
            self._record(commands, DEVICE_CODECS[cname], shuffle)

    def _record(self, commands: EncodingList, codec: str, shuffle: int) -> None:
        chunks = self._chunks.address.astype(np.int64)
        if (shuffle == 1 and self._typesize > 1) or shuffle == 2:
            nbytes = np.full(self._count, self._nbytes)
            shuffled = destinations(commands, nbytes).address.astype(np.int64)
            begin = np.cumsum(self._blocks) - self._blocks
            launches = (shuffle_launches if shuffle == 1 else bit_shuffle_launches)(
                (chunks[:, None] + begin).reshape(-1),
                (shuffled[:, None] + begin).reshape(-1),
                np.tile(self._blocks, self._count),
                self._typesize,
            )
            commands.launch_tables(launches)
            chunks = shuffled
        begin = np.cumsum(self._sizes) - self._sizes
        self._plain = Spans(
            (chunks[:, None] + begin).reshape(-1).astype(np.uint64),
            np.tile(self._sizes, self._count).astype(np.uint64),
        )
        src, (out_of, into) = aligned(commands, self._plain, ALIGNMENT)
        commands.launch_tables(stream_launches(out_of.address, into.address, out_of.nbytes))
        rows = np.repeat(commands.rows, len(self._sizes))
        self._streams = commands.compress(codec, src, rows)
        if codec == "deflate":
            self._sums = commands.digest("adler32", src)

    def segments(self) -> Segments:
        """Return the segments of all frames: header and offsets, then those of each stream."""
        streams = self._streams
        if streams is None:
            return self._stored()
        n, per_frame, blocks = self._count, len(self._sizes), len(self._blocks)
        before = ZLIB_HEADER if self._sums is not None else b""
        behind = ZLIB_CHECKSUM_NBYTES if self._sums is not None else 0
        packed = streams.nbytes.reshape(n, per_frame)
        is_stored = packed + len(before) + behind >= self._sizes
        length = np.where(is_stored, self._sizes, packed + len(before) + behind)

        # What the host writes: header and offsets, then of each stream what is around it.
        head = HEADER_NBYTES + 4 * blocks
        around = _LENGTH_NBYTES + len(before) + behind
        written = np.zeros((n, head + per_frame * around), np.uint8)
        nbytes = head + (_LENGTH_NBYTES + length).sum(axis=1)
        written[:, :HEADER_NBYTES] = self._header(self._flags, nbytes)
        first_stream = np.cumsum(self._splits) - self._splits
        ends = np.cumsum(_LENGTH_NBYTES + length, axis=1)
        offsets = head + np.concatenate([np.zeros((n, 1), np.int64), ends], axis=1)[:, first_stream]
        written[:, HEADER_NBYTES:head] = _int32s(offsets).reshape(n, -1)
        texts = written[:, head:].reshape(n, per_frame, around)
        texts[:, :, :_LENGTH_NBYTES] = _int32s(length).reshape(n, per_frame, -1)
        if self._sums is not None:
            texts[:, :, _LENGTH_NBYTES : around - behind] = np.frombuffer(before, np.uint8)
            sums = big_endian(self._sums.values)
            texts[:, :, around - behind :] = sums.reshape(n, per_frame, behind)

        text = np.arange(n)[:, None] * written.shape[1] + head + np.arange(per_frame) * around
        plain = self._plain.address.astype(np.int64).reshape(n, per_frame)
        made = streams.dst.address.astype(np.int64).reshape(n, per_frame)
        sizes = np.zeros((n, 1 + 3 * per_frame), np.int64)
        source = np.zeros_like(sizes)
        sizes[:, 0], source[:, 0] = head, np.arange(n) * written.shape[1]
        sizes[:, 1::3] = np.where(is_stored, _LENGTH_NBYTES, around - behind)
        source[:, 1::3] = text
        sizes[:, 2::3] = np.where(is_stored, self._sizes, packed)
        source[:, 2::3] = np.where(is_stored, plain, made)
        sizes[:, 3::3] = np.where(is_stored, 0, behind)
        source[:, 3::3] = text + around - behind
        is_written = np.ones(sizes.shape[1], np.bool_)
        is_written[2::3] = False

        # Frames that would not be shorter than the chunk: a header, then the chunk.
        longer = nbytes >= self._nbytes + HEADER_NBYTES
        written[longer, :HEADER_NBYTES] = self._header(
            self._flags | MEMCPYED, np.array([self._nbytes + HEADER_NBYTES])
        )
        sizes[longer] = 0
        sizes[longer, 0] = HEADER_NBYTES
        sizes[longer, 2] = self._nbytes
        source[longer, 2] = self._chunks.address.astype(np.int64)[longer]
        return Segments(sizes, source, is_written, written.reshape(-1))

    def _stored(self) -> Segments:
        """Return frames whose bytes are stored without compression and shuffle."""
        n, nbytes = self._count, self._nbytes + HEADER_NBYTES
        header = self._header(self._flags | MEMCPYED, np.full(n, nbytes))
        return Segments(
            np.tile(np.array([HEADER_NBYTES, self._nbytes]), (n, 1)),
            np.stack([np.arange(n) * HEADER_NBYTES, self._chunks.address.astype(np.int64)], axis=1),
            np.array([True, False]),
            header.reshape(-1),
        )

    def _header(self, flags: int, nbytes: Integers) -> NDArray[np.uint8]:
        """Return the headers of frames of `nbytes` bytes, shape (n, 16)."""
        header = np.zeros((len(nbytes), HEADER_NBYTES), np.uint8)
        header[:, :4] = VERSION, 1, flags, self._typesize
        sizes = np.stack(
            [np.full_like(nbytes, self._nbytes), np.full_like(nbytes, self._blocksize), nbytes],
            axis=1,
        )
        header[:, 4:] = _int32s(sizes)
        return header


def _int32s(values: Integers) -> NDArray[np.uint8]:
    """Return the bytes of 32-bit numbers; the last dimension becomes four times as long."""
    return np.ascontiguousarray(values, "<i4").view(np.uint8)
