"""Codecs of Neuroglancer precomputed volumes: of chunks, and the codec specs of schemas.

Source: https://github.com/google/neuroglancer, ``src/datasource/precomputed/volume.md``.
"""

from __future__ import annotations

from typing import Any, Final

from gpustore import registry
from gpustore.codec_chain.base import BytesCodec
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.compressed_segmentation import CompressedSegmentation
from gpustore.codec_chain.image_chunk import ImageChunk
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.metadata.precomputed import PrecomputedMetadata
from gpustore.metadata.precomputed_scale import Scale, encoding_members
from gpustore.runtime.limits import Limits
from gpustore.schema.codec_spec import CodecSpec
from gpustore.sharding.shard import ResolvedCodecs
from gpustore.strict_json.parsing import JsonValue, Members

ORDER: Final = (3, 2, 1, 0)
"""Order of the dimensions of a chunk, the fastest last."""


def resolve_codecs(
    metadata: PrecomputedMetadata, limits: Limits, chunk: tuple[int, ...]
) -> ResolvedCodecs:
    """Return the codecs of chunks of these extents along x, y and z."""
    scale, dtype, channels = metadata.scale, metadata.dtype, metadata.channels
    layout = ChunkBytes.contiguous(
        dtype.array_dtype.newbyteorder("<"), (*chunk, channels), order="F"
    )
    limits.check("chunk_nbytes", layout.nbytes, "Decoded chunk")
    x, y, z = chunk
    shape, stages = (channels, z, y, x), list[BytesCodec]()
    if scale.encoding in ("jpeg", "png"):
        level = scale.jpeg_quality if scale.encoding == "jpeg" else scale.png_level
        stages.append(ImageChunk(scale.encoding, shape, dtype.itemsize, level))
    elif scale.encoding == "compressed_segmentation":
        bx, by, bz = scale.block_size or (8, 8, 8)
        stages.append(CompressedSegmentation(shape, (bz, by, bx), dtype.itemsize))
    if scale.sharding is not None and scale.sharding.data_encoding == "gzip":
        gzip = registry.find("codecs", "gzip").v2
        stages.append(gzip.prepare({"level": 6}, dtype.itemsize))
    chain = CodecChain(layout, stages, codec_of(scale), inner_order=ORDER)
    return ResolvedCodecs(chain, chunk, ())


def codec_members(value: JsonValue) -> dict[str, Any]:
    """Validate the JSON of a codec spec; members that are not given are None."""
    members = Members(value, integral_floats=True)
    members.take("driver")
    found = encoding_members(members, None)
    found["shard_data_encoding"] = members.take_str(
        "shard_data_encoding", None, choices=("raw", "gzip")
    )
    members.finish()
    return found


def codec_json(given: dict[str, Any]) -> dict[str, JsonValue]:
    """Return the JSON of a codec spec, without members that are None."""
    known = {name: value for name, value in given.items() if value is not None}
    return {"driver": "neuroglancer_precomputed", **known}


def codec_spec(given: dict[str, Any]) -> CodecSpec:
    """Return the codec spec of these members."""
    return CodecSpec(codec_json(given))


def codec_of(scale: Scale) -> dict[str, JsonValue]:
    """Return the JSON of the codec spec of a scale."""
    sharding = scale.sharding
    return codec_json(
        {
            "encoding": scale.encoding,
            "jpeg_quality": scale.jpeg_quality,
            "png_level": scale.png_level,
            "shard_data_encoding": None if sharding is None else sharding.data_encoding,
        }
    )
