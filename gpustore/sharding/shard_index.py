"""The index of a shard: where its inner chunks lie.

The index is a uint64 array of shape ``chunks_per_shard + (2,)`` in C order: for each inner chunk
its offset from the start of the shard and its length, both ``2**64 - 1`` if it is missing. It
stands at the end or the start of the shard, encoded by codecs of a fixed size.

Gaps between inner chunks, overlaps and any order are legal. An entry that is not inside the shard,
that overlaps the index, or that has no bytes is not.

Source: Zarr v3 specification, "Sharding codec", section "Binary shard format".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.chain import CodecChain
from gpustore.errors import CorruptChunkError
from gpustore.runtime.buffer import Buffer

_MISSING = 2**64 - 1


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """A decoded index: the place of each inner chunk in a shard.

    Attributes
    ----------
    offset, nbytes : ndarray of int64, length n
        For each inner chunk in C order: its first byte, from the start of the shard, and its
        length; both -1 if it is missing.
    """

    offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    @classmethod
    def empty(cls, count: int) -> ShardIndex:
        """Return the index of a shard without inner chunks."""
        return cls(np.full(count, -1, np.int64), np.full(count, -1, np.int64))


@dataclass(frozen=True, slots=True)
class ShardIndexFormat:
    """Stored form of the indices of an array's shards.

    Attributes
    ----------
    chunks_per_shard : tuple of int
        Number of inner chunks along each dimension.
    chain : CodecChain
        Codecs of the uint64 array of shape ``chunks_per_shard + (2,)``; the stages have a fixed
        encoded size.
    at_end : bool
        Whether the index is at the end of the shard instead of the start.
    """

    chunks_per_shard: tuple[int, ...]
    chain: CodecChain
    at_end: bool

    @property
    def count(self) -> int:
        """Number of inner chunks of a shard."""
        return math.prod(self.chunks_per_shard)

    @property
    def nbytes(self) -> int:
        """Length of the encoded index, in bytes."""
        return self.chain.encoded_bound

    @property
    def byte_range(self) -> tuple[int, int | None]:
        """Byte range of the index in a shard: first byte (negative: from the end), and end."""
        return (-self.nbytes, None) if self.at_end else (0, self.nbytes)

    def decode(self, encoded: Buffer, *, total: int) -> ShardIndex:
        """Decode and check an index.

        Parameters
        ----------
        encoded : buffer
            The bytes of :attr:`byte_range`.
        total : int
            Size of the shard in bytes, -1 if unknown.

        Raises
        ------
        CorruptChunkError
            If it does not decode, or an entry is impossible; names the first such entry.
        """
        layout = self.chain.layout
        decoded = self.chain.decode(encoded)
        table: NDArray[Any] = np.ndarray(layout.shape, layout.dtype, decoded, 0, layout.strides)
        entries = table.astype(np.uint64).reshape(self.count, 2)
        missing = (entries == np.uint64(_MISSING)).all(axis=1)
        low = 0 if self.at_end else self.nbytes
        high = 2**63 - 1 if total < 0 else total - (self.nbytes if self.at_end else 0)
        # Compared as uint64 without adding, so that nothing can overflow.
        offset, nbytes = entries[:, 0], entries[:, 1]
        limit = np.uint64(max(high, 0))
        bad = (offset < low) | (offset > limit) | (nbytes == 0)
        bad |= nbytes > limit - np.minimum(offset, limit)
        bad &= ~missing
        if bad.any():
            row = int(np.argmax(bad))
            cell = ", ".join(map(str, np.unravel_index(row, self.chunks_per_shard)))
            raise CorruptChunkError(
                f"Invalid shard index entry for inner chunk {{{cell}}}: offset {offset[row]}, "
                f"{nbytes[row]} bytes, expected a range inside [{low}, {max(high, 0)})",
                codec="sharding_indexed",
            )
        index = entries.astype(np.int64)
        index[missing] = -1
        return ShardIndex(index[:, 0], index[:, 1])

    def encode(self, index: ShardIndex) -> Buffer:
        """Return the encoded bytes of an index."""
        layout = self.chain.layout
        chunk = np.empty(layout.nbytes, np.uint8)
        table: NDArray[Any] = np.ndarray(layout.shape, layout.dtype, chunk, 0, layout.strides)
        # -1 becomes 2**64 - 1.
        entries = np.stack([index.offset, index.nbytes], axis=1).astype(np.int64)
        table[...] = entries.view(np.uint64).reshape(layout.shape)
        return self.chain.encode(chunk.data)
