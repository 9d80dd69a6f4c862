"""Compressed segmentation: labels as indices into tables, block by block.

A chunk begins with the offset of each channel, in words of 4 bytes. A channel begins with a header
of two words for each block, x fastest: the offset of its table (24 bits), the bits of an index (8),
the offset of its indices (24 bits). Indices of a block are packed into words, x fastest; blocks at
the edge are encoded as whole ones. Blocks with the same labels share a table.

Source: https://github.com/google/neuroglancer, ``src/sliceview/compressed_segmentation/README.md``;
TensorStore ``internal/compression/neuroglancer_compressed_segmentation.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.base import BytesCodec
from gpustore.errors import CorruptChunkError
from gpustore.runtime.buffer import Buffer

_OFFSET: Final = 0xFFFFFF
Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class CompressedSegmentation(BytesCodec):
    """Codec of labels of 4 or 8 bytes.

    Attributes
    ----------
    shape : tuple of int
        Extents of a chunk: channel, z, y, x.
    block : tuple of int
        Extents of a block: z, y, x.
    itemsize : int
        Bytes of a label.
    """

    name = "compressed_segmentation"
    decode_ns = 4.0

    shape: tuple[int, int, int, int]
    block: tuple[int, int, int]
    itemsize: int

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(f"<u{self.itemsize}")

    @property
    def _grid(self) -> tuple[int, ...]:
        return tuple(-(-n // b) for n, b in zip(self.shape[1:], self.block, strict=True))

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the length of a chunk in which each label is in a table of its own block."""
        del decoded_nbytes
        blocks = self.shape[0] * math.prod(self._grid)
        return 4 * self.shape[0] + blocks * (8 + math.prod(self.block) * (4 + self.itemsize) + 4)

    def encode(self, decoded: Buffer) -> Buffer:
        """Encode all channels, with the bytes that TensorStore writes."""
        chunk = np.frombuffer(decoded, self._dtype).reshape(self.shape)
        channels = [self._encode_channel(channel) for channel in chunk]
        at, offsets = len(channels), []
        for channel in channels:
            offsets.append(at)
            at += len(channel) // 4
        return b"".join([np.array(offsets, "<u4").tobytes(), *channels])

    def _encode_channel(self, channel: NDArray[Any]) -> bytes:
        headers: list[int] = []
        tables: dict[bytes, int] = {}
        parts: list[bytes] = []
        at = 2 * math.prod(self._grid)
        for where in self._blocks():
            labels, index = np.unique(channel[where], return_inverse=True)
            bits = 0
            if len(labels) > 1:
                bits = 1 << ((len(labels) - 1).bit_length() - 1).bit_length()
            packed = self._packed(index.reshape(channel[where].shape), bits)
            table = labels.tobytes()
            begin, at = at, at + len(packed) // 4
            parts.append(packed)
            if table not in tables:
                tables[table] = at
                parts.append(table)
                at += len(table) // 4
            headers += [tables[table] | bits << 24, begin]
        return b"".join([np.array(headers, "<u4").tobytes(), *parts])

    def _packed(self, index: NDArray[Any], bits: int) -> bytes:
        if not bits:
            return b""
        whole = np.zeros(self.block, np.uint32)
        whole[tuple(map(slice, index.shape))] = index
        each = 32 // bits
        padded = np.zeros(-(-whole.size // each) * each, np.uint32)
        padded[: whole.size] = whole.reshape(-1)
        shifts = np.arange(each, dtype=np.uint32) * np.uint32(bits)
        words: Words = np.bitwise_or.reduce(padded.reshape(-1, each) << shifts, axis=1)
        return words.astype("<u4").tobytes()

    def _blocks(self) -> Iterator[tuple[slice, ...]]:
        """Yield the place of each block in a channel, x fastest."""
        for cell in np.ndindex(*self._grid):
            sizes = zip(cell, self.block, self.shape[1:], strict=True)
            yield tuple(slice(i * b, min((i + 1) * b, n)) for i, b, n in sizes)

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode all channels.

        Raises
        ------
        CorruptChunkError
            If an offset or an index points behind the end.
        """
        del exact  # Nothing else than a chunk is encoded so.
        whole = memoryview(bytearray(decoded_max)) if out is None else out[:decoded_max]
        chunk = np.frombuffer(whole, self._dtype).reshape(self.shape)
        if len(encoded) % 4:
            raise self._damaged("its length is no multiple of 4 bytes")
        words = np.frombuffer(encoded, "<u4")
        if len(words) < self.shape[0]:
            raise self._damaged("it ends in the offsets of channels")
        for channel, offset in zip(chunk, words[: self.shape[0]].tolist(), strict=True):
            if offset > len(words):
                raise self._damaged("a channel begins behind the end")
            self._decode_channel(words[offset:], channel)
        return whole

    def _decode_channel(self, words: Words, channel: NDArray[Any]) -> None:
        count = math.prod(self._grid)
        if len(words) < 2 * count:
            raise self._damaged("it ends in the headers of blocks")
        headers = words[: 2 * count].reshape(-1, 2)
        tables, bits = (headers[:, 0] & _OFFSET).tolist(), (headers[:, 0] >> 24).tolist()
        begins = (headers[:, 1] & _OFFSET).tolist()
        for where, table, size, begin in zip(self._blocks(), tables, bits, begins, strict=True):
            if size not in (0, 1, 2, 4, 8, 16, 32):
                raise self._damaged(f"indices of {size} bits")
            if table > len(words) or begin > len(words):
                raise self._damaged("a block begins behind the end")
            nbytes = 4 * (len(words) - table) // self.itemsize * self.itemsize
            labels = words[table:].view(np.uint8)[:nbytes].view(self._dtype)
            index = self._unpacked(words[begin:], size, channel[where].shape)
            if not len(labels) or (size and int(index.max(initial=0)) >= len(labels)):
                raise self._damaged("a label lies behind the end")
            channel[where] = labels[index] if size else labels[0]

    def _unpacked(self, words: Words, bits: int, shape: tuple[int, ...]) -> Words:
        if not bits:
            return np.zeros(0, np.uint32)
        volume, each = math.prod(self.block), 32 // bits
        used = -(-volume * bits // 32)
        if used > len(words):
            raise self._damaged("the indices of a block are cut off")
        shifts = np.arange(each, dtype=np.uint32) * np.uint32(bits)
        mask = np.uint32((1 << bits) - 1)
        found: Words = (words[:used, None] >> shifts) & mask
        whole = found.reshape(-1)[:volume].reshape(self.block)
        return whole[tuple(map(slice, shape))]

    def _damaged(self, what: str) -> CorruptChunkError:
        return CorruptChunkError(
            f"Corrupted Neuroglancer compressed segmentation: {what}", codec=self.name
        )
