"""The ``n5_default`` codec.

============  ======================================================================
content       Chunks as blocks of N5, so that one array is both
specification https://github.com/zarr-developers/zarr-extensions/tree/main/codecs/n5_default
v3 name       ``n5_default``
v2 id         none
============  ======================================================================

Zarr v3::

    {"name": "n5_default", "configuration": {"codecs": [
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        {"name": "bytes", "configuration": {"endian": "big"}},
        {"name": "gzip", "configuration": {"level": 5}}
    ]}}

An array -> bytes codec: a header (mode 0, rank, shape), then the elements, the first dimension
innermost, big endian, behind at most one bytes -> bytes codec. A block may be smaller than the
chunk, as writers cut them off at the edges of the array: the rest of the chunk is 0. Blocks are
written whole.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpustore.codec_chain.base import (
    ABSENT,
    ArrayCodec,
    BytesCodec,
    Codec,
    Option,
    Options,
    too_long,
    too_short,
)
from gpustore.codec_chain.chain_spec import ArrayChoice, ChainSpec, parse_codecs
from gpustore.codec_chain.value import Elements, Types, ValueVariant
from gpustore.errors import CorruptChunkError, MetadataError
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import REQUIRED, JsonValue, expect_list, text

_START: Final = struct.Struct(">HH")
"""Mode and rank in the header of a block; the extents follow, 4 bytes each."""

_TYPES: Final = frozenset(
    {f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)} | {"float32", "float64"}
)

_LARGE: Final = 64 << 20
"""Bytes that the elements of a block may have, even if the chunk has fewer."""


@dataclass(frozen=True, slots=True)
class _N5Default(BytesCodec):
    """Codec of a chunk as one block of N5.

    Attributes
    ----------
    dtype : numpy.dtype
        Data type of the elements, in native byte order.
    shape : tuple of int
        Shape of a chunk.
    inner : BytesCodec or None
        Codec of the elements of a block, None without compression.
    """

    name = "n5_default"
    decode_ns = 2.0

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    inner: BytesCodec | None

    @property
    def _nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def _header_nbytes(self) -> int:
        return _START.size + 4 * len(self.shape)

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the length of the largest block that is read, in bytes."""
        most = max(decoded_nbytes, _LARGE)
        return self._header_nbytes + (self.inner.encoded_bound(most) if self.inner else most)

    def encode(self, decoded: Buffer) -> Buffer:
        """Encode a block with the shape of the chunk."""
        chunk = np.frombuffer(decoded, self.dtype).reshape(self.shape)
        elements = chunk.T.astype(self.dtype.newbyteorder(">"), order="C").tobytes()
        start = _START.pack(0, len(self.shape)) + np.array(self.shape, ">u4").tobytes()
        return start + bytes(self.inner.encode(elements) if self.inner else elements)

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode the elements of the block that lie in the chunk; zeros elsewhere."""
        del decoded_max, exact  # Nothing else than a chunk is encoded so.
        shape = self._block_shape(encoded)
        nbytes = math.prod(shape) * self.dtype.itemsize
        if nbytes > max(self._nbytes, _LARGE):
            raise CorruptChunkError(
                f"A block of shape {list(shape)} for a chunk of {list(self.shape)}", codec=self.name
            )
        elements: Buffer = memoryview(encoded)[self._header_nbytes :]
        if self.inner is not None:
            elements = self.inner.decode(elements, nbytes, exact=True)
        if len(elements) < nbytes:
            raise too_short(nbytes, len(elements), codec=self.name)
        if len(elements) > nbytes:
            raise too_long(nbytes, len(elements), codec=self.name)
        block = np.frombuffer(elements, self.dtype.newbyteorder(">")).reshape(shape[::-1]).T
        whole = memoryview(bytearray(self._nbytes)) if out is None else out[: self._nbytes]
        chunk = np.frombuffer(whole, self.dtype).reshape(self.shape)
        if shape != self.shape:
            chunk[...] = 0
        part = tuple(slice(min(sizes)) for sizes in zip(shape, self.shape, strict=True))
        chunk[part] = block[part]
        return whole

    def _block_shape(self, encoded: Buffer) -> tuple[int, ...]:
        if len(encoded) < self._header_nbytes:
            raise too_short(self._header_nbytes, len(encoded), codec=self.name)
        mode, rank = _START.unpack_from(encoded)
        if mode != 0:
            raise CorruptChunkError(f"Expected mode 0, but received: {mode}", codec=self.name)
        if rank != len(self.shape):
            raise CorruptChunkError(
                f"Expected rank {len(self.shape)}, but received: {rank}", codec=self.name
            )
        return struct.unpack_from(f">{rank}I", encoded, _START.size)


def _chain(value: JsonValue) -> ChainSpec:
    return parse_codecs(NamedConfiguration.list_from_json(expect_list(value)), stored=True)


def _codecs(value: JsonValue) -> JsonValue:
    chain = _chain(value)
    arrays = [one for one in chain.arrays if isinstance(one, ArrayChoice)]
    if len(arrays) != len(chain.arrays) or len(arrays) != 1:
        raise MetadataError(f'Expected one "transpose" to begin with, but received: {text(value)}')
    assert chain.layout is not None  # Stored chains have one.
    if chain.layout.named.name != "bytes" or chain.layout.options.get("endian", "big") != "big":
        raise MetadataError(f"Expected big endian bytes, but received: {chain.layout.named}")
    if len(chain.stages) > 1:
        raise MetadataError(f"Expected at most one bytes -> bytes codec, but received: {value}")
    return [one.to_json() for one in chain.named]


def _types(options: Options, dtype: np.dtype[Any]) -> Types:
    del options
    return dtype, np.dtype(np.uint8)


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> _N5Default:
    del encoded
    dtype, rank = decoded.dtype, len(decoded.shape)
    if dtype.name not in _TYPES:
        raise MetadataError(f"Elements of type {dtype.name} are not in N5")
    chain = _chain(options["codecs"])
    assert chain.layout is not None
    for one in chain.arrays:
        assert isinstance(one.codec, ArrayCodec)
        order = one.codec.order(one.options, rank)
        if order != tuple(reversed(range(rank))):
            raise MetadataError(f"Expected all dimensions reversed, but received: {list(order)}")
    if dtype.itemsize > 1 and "endian" not in chain.layout.options:
        raise MetadataError(f'Elements of type {dtype.name} need "endian" of "big"')
    inner = [one.variant.prepare(one.options, dtype.itemsize) for one in chain.stages]
    return _N5Default(dtype, decoded.shape, inner[0] if inner else None)


CODEC = Codec(
    name="n5_default",
    v3=ValueVariant(
        kind="array -> bytes",
        options=(
            Option(name="codecs", convert=_codecs, default=ABSENT, constraint_default=REQUIRED),
        ),
        prepare=_prepare,
        types=_types,
        is_elementwise=False,
        has_fixed_size=False,
    ),
)
