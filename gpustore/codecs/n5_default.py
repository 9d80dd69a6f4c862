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

An array -> bytes codec: a header, then the elements, the first dimension innermost, big endian,
behind at most one bytes -> bytes codec (:mod:`gpustore.codec_chain.n5_block`). A block may be
smaller than the chunk, as writers cut them off at the edges of the array: the rest of the chunk is
0. It may also reach beyond the chunk. Blocks are written whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpustore.codec_chain.base import BytesCodec
from gpustore.codec_chain.chain_spec import ArrayChoice, ChainSpec, parse_codecs
from gpustore.codec_chain.n5_block import N5Block
from gpustore.codec_chain.registered import ABSENT, ArrayCodec, Codec, Option, Options
from gpustore.codec_chain.value import Elements, Types, ValueVariant
from gpustore.errors import MetadataError
from gpustore.metadata.n5 import DATA_TYPES
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import REQUIRED, JsonValue, expect_list, text

_LARGE: Final = 64 << 20
"""Bytes that the elements of a block may have, even if the chunk has fewer."""


@dataclass(frozen=True, slots=True)
class _N5Default(BytesCodec):
    """Codec of a chunk, in C order and native byte order, as one block of N5.

    Attributes
    ----------
    dtype : numpy.dtype
        Data type of the elements, in native byte order.
    block : N5Block
    """

    name = "n5_default"
    decode_ns = 2.0

    dtype: np.dtype[Any]
    block: N5Block

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the length of the longest block that is read, in bytes."""
        return self.block.encoded_bound(decoded_nbytes)

    def encode(self, decoded: Buffer) -> Buffer:
        """Encode a block with the shape of the chunk."""
        chunk = np.frombuffer(decoded, self.dtype).reshape(self.block.shape)
        return self.block.encode(chunk.T.astype(self.dtype.newbyteorder(">"), order="C").tobytes())

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode the elements of the block that lie in the chunk; zeros elsewhere."""
        del exact  # Nothing else than a chunk is encoded so.
        elements = self.block.decode(encoded, decoded_max, exact=True)
        whole = memoryview(bytearray(decoded_max)) if out is None else out[:decoded_max]
        chunk = np.frombuffer(whole, self.dtype).reshape(self.block.shape)
        stored = np.frombuffer(elements, self.dtype.newbyteorder(">"))
        chunk[...] = stored.reshape(self.block.shape[::-1]).T
        return whole


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
    if dtype.name not in DATA_TYPES:
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
    stage = inner[0] if inner else None
    block = N5Block(decoded.shape, dtype.itemsize, stage, _LARGE, "n5_default")
    return _N5Default(dtype, block)


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
