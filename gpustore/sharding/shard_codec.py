"""Shards as a whole: packed from encoded inner chunks, and as a stage of a chunk's codecs.

:func:`pack` and :func:`unpack` turn a whole shard into its encoded inner chunks and back.
:class:`ShardStage` does that for shards which later codecs encode as a whole. No inner chunk can be
read by itself then, so the shard is a chunk to everybody else.

Source: Zarr v3 specification, "Sharding codec".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.base import BytesCodec, deliver
from gpustore.codec_chain.chain import CodecChain
from gpustore.errors import CorruptChunkError, UnsupportedError
from gpustore.runtime.buffer import Buffer
from gpustore.sharding.shard_index import ShardIndex, ShardIndexFormat


def unpack(shard: Buffer, form: ShardIndexFormat, inner_bound: int) -> list[Buffer | None]:
    """Return the encoded inner chunks of a whole shard in C order, None for missing ones.

    Chunks may overlap. A chunk longer than `inner_bound`, in bytes, is an error, because
    overlapping chunks could grow far beyond the shard when they are written again.

    Raises
    ------
    CorruptChunkError
        If its index is damaged.
    """
    view = memoryview(shard)
    low, high = form.byte_range
    index = form.decode(view[low:high], total=len(view))
    longest = int(index.nbytes.max(initial=0))
    if longest > inner_bound:
        raise CorruptChunkError(
            f"Invalid shard index entry: an inner chunk has {longest} bytes, no legal encoding of "
            f"it has more than {inner_bound}",
            codec="sharding_indexed",
        )
    return [
        None if offset < 0 else view[offset : offset + nbytes]
        for offset, nbytes in zip(index.offset.tolist(), index.nbytes.tolist())
    ]


def pack(chunks: Sequence[Buffer | None], form: ShardIndexFormat) -> Buffer | None:
    """Return a shard of encoded inner chunks in C order without gaps; None if there are none."""
    if all(chunk is None for chunk in chunks):
        return None
    lengths = np.array([-1 if chunk is None else len(chunk) for chunk in chunks], np.int64)
    ends = np.cumsum(np.maximum(lengths, 0)) + (0 if form.at_end else form.nbytes)
    offsets = np.where(lengths < 0, -1, ends - lengths)
    index = form.encode(ShardIndex(offsets, lengths))
    body = [chunk for chunk in chunks if chunk is not None]
    return b"".join([*body, index] if form.at_end else [index, *body])


@dataclass(frozen=True, slots=True)
class ShardStage(BytesCodec):
    """The codec ``sharding_indexed`` as a stage, from the elements of a shard to its stored bytes.

    Elements are contiguous. Their dimensions stand in the order in which inner chunks have them.

    Attributes
    ----------
    form : ShardIndexFormat
    inner : CodecChain
        Codecs of the inner chunks.
    missing : bytes
        Bytes of a stored element of a missing inner chunk.
    """

    name = "sharding_indexed"
    decode_ns = 2.0

    form: ShardIndexFormat
    inner: CodecChain
    missing: bytes

    @classmethod
    def of(
        cls, form: ShardIndexFormat, inner: CodecChain, missing: Callable[[np.dtype[Any]], bytes]
    ) -> ShardStage:
        """Make the stage; missing inner chunks read as `missing`, given the stored data type."""
        if inner.objects is not None:
            raise UnsupportedError(
                "Shards of elements of any length that are encoded as a whole are not supported"
            )
        return cls(form, inner, missing(inner.layout.dtype))

    @property
    def _rank(self) -> int:
        return len(self.form.chunks_per_shard)

    @property
    def _inner_shape(self) -> tuple[int, ...]:
        """Extents of an inner chunk, in the order of its codecs."""
        return self.inner.layout.shape[: self._rank]

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Extents of a shard, slowest dimension first."""
        counts, extents = self.form.chunks_per_shard, self._inner_shape
        return tuple(counts[d] * extents[d] for d in self.inner.inner_order[: self._rank])

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return twice the length that inner chunks need, which leaves room for gaps."""
        del decoded_nbytes
        return 2 * self.form.count * self.inner.encoded_bound + self.form.nbytes

    def encode(self, decoded: Buffer) -> Buffer:
        """Encode every inner chunk and pack the shard."""
        chunks = []
        for part in self._parts(np.frombuffer(decoded, np.uint8)):
            whole = np.empty(self.inner.layout.nbytes, np.uint8)
            self._inner(whole.data)[...] = part
            chunks.append(self.inner.encode(whole.data))
        packed = pack(chunks, self.form)
        assert packed is not None  # There is at least one.
        return packed

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode every inner chunk, with the fill value for missing ones."""
        del exact  # A shard has one size.
        low, _ = self.form.byte_range
        if len(encoded) < self.form.nbytes:
            raise CorruptChunkError(
                f"{len(encoded)} bytes, expected a shard with an index of {self.form.nbytes} bytes "
                f"at the {'end' if low < 0 else 'start'}",
                codec=self.name,
            )
        nbytes = self.inner.layout.nbytes * self.form.count
        whole = np.empty(nbytes, np.uint8) if out is None else np.frombuffer(out, np.uint8)[:nbytes]
        chunks = unpack(encoded, self.form, self.inner.encoded_bound)
        for position, (part, chunk) in enumerate(zip(self._parts(whole), chunks, strict=True)):
            if chunk is None:
                part[...] = np.frombuffer(self.missing, part.dtype)
                continue
            try:
                part[...] = self._inner(self.inner.decode(chunk))
            except CorruptChunkError as error:
                cell = np.unravel_index(position, self.form.chunks_per_shard)
                where = ", ".join(map(str, cell))
                raise error.prefixed(f"inner chunk {{{where}}} of the shard") from error
        return deliver(whole.data, decoded_max, exact=True, out=None)

    def _inner(self, decoded: Buffer) -> NDArray[Any]:
        """A decoded inner chunk as an array of whole stored elements."""
        strides = self.inner.layout.strides[: self._rank]
        return np.ndarray(self._inner_shape, self._element, decoded, 0, strides)

    @property
    def _element(self) -> np.dtype[Any]:
        return np.dtype(f"V{self.inner.layout.nbytes // math.prod(self._inner_shape)}")

    def _parts(self, whole: NDArray[np.uint8]) -> Iterator[NDArray[Any]]:
        """Yield the slices of the inner chunks in the elements of a shard, in C order of
        the index.
        """
        order = self.inner.inner_order[: self._rank]
        elements = whole.view(self._element).reshape(self.stored_shape)
        elements = elements.transpose([order.index(d) for d in range(self._rank)])
        for cell in np.ndindex(*self.form.chunks_per_shard):
            yield elements[
                tuple(slice(i * n, (i + 1) * n) for i, n in zip(cell, self._inner_shape))
            ]
