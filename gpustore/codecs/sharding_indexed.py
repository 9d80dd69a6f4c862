"""The ``sharding_indexed`` codec.

============  ====================================================================
content       A chunk stored as many inner chunks behind an index
specification https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html
v3 name       ``sharding_indexed``
v2 id         none
============  ====================================================================

Zarr v3::

    {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [32, 32],
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "index_codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ],
            "index_location": "end",
        },
    }

This module parses the options. :mod:`gpustore.sharding.shard` finds, reads and writes inner chunks
one by one. Codecs behind this one encode the shard as a whole
(:mod:`gpustore.sharding.shard_codec`): such arrays are opened, read and written, but not created,
because TensorStore refuses them.
"""

from __future__ import annotations

from typing import Final

from gpustore.codec_chain.chain_spec import parse_codecs
from gpustore.codec_chain.merge import complete_v3, merge_v3
from gpustore.codec_chain.registered import ABSENT, Option, Options, ShardCodec, choice
from gpustore.data_types.dtype import uint64
from gpustore.metadata.data_type import V3DataType
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.strict_json.parsing import JsonValue, at_position, expect_int, expect_list

_INDEX_CODECS: Final = (
    NamedConfiguration("bytes", {"endian": "little"}),
    NamedConfiguration("crc32c"),
)


def _chunk_shape(value: JsonValue) -> list[int]:
    shape = []
    for index, size in enumerate(expect_list(value)):
        with at_position(index):
            shape.append(expect_int(size, 1, 2**63 - 1, integral_floats=True))
    return shape


def _codecs(value: JsonValue, *, stored: bool = False) -> list[JsonValue]:
    spec = parse_codecs(NamedConfiguration.list_from_json(value), stored=stored)
    return [codec.to_json() for codec in spec.named]


def _stored_codecs(value: JsonValue) -> list[JsonValue]:
    return _codecs(value, stored=True)


def _merge_codecs(a: JsonValue, b: JsonValue) -> JsonValue:
    merged = merge_v3(NamedConfiguration.list_from_json(a), NamedConfiguration.list_from_json(b))
    return [codec.to_json() for codec in merged or ()]


def _complete(
    options: Options, dtype: V3DataType, rank: int, inner_order: tuple[int, ...] | None
) -> dict[str, JsonValue]:
    codecs = NamedConfiguration.list_from_json(options.get("codecs", []))
    index = options.get("index_codecs")
    index_codecs = _INDEX_CODECS if index is None else NamedConfiguration.list_from_json(index)
    completed = {
        **options,
        "codecs": [
            codec.to_json() for codec in complete_v3(codecs, dtype, rank, inner_order=inner_order)
        ],
        "index_codecs": [codec.to_json() for codec in complete_v3(index_codecs, uint64, rank + 1)],
    }
    if completed.get("index_location") == "end":
        del completed["index_location"]  # Not stored, as in TensorStore.
    return completed


CODEC = ShardCodec(
    name="sharding_indexed",
    options=(
        Option(name="chunk_shape", convert=_chunk_shape, default=ABSENT),
        Option(
            name="codecs",
            convert=_codecs,
            default=ABSENT,
            convert_stored=_stored_codecs,
            merge=_merge_codecs,
        ),
        Option(
            name="index_codecs",
            convert=_codecs,
            default=ABSENT,
            convert_stored=_stored_codecs,
            merge=_merge_codecs,
        ),
        Option(
            name="index_location",
            convert=choice("start", "end"),
            default="end",
            stored_default="end",
        ),
    ),
    complete=_complete,
)
