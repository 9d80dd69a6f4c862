"""Chunks and shards of Neuroglancer precomputed volumes: their extents in chunk layouts.

Source: https://github.com/google/neuroglancer, ``src/datasource/precomputed/sharded.md``;
TensorStore's ``driver/neuroglancer_precomputed``, for the choice of what a spec leaves open.
"""

from __future__ import annotations

import math
from typing import Any, Final

from gpustore.drivers._precomputed_codecs import ORDER
from gpustore.errors import MetadataError, prefixing
from gpustore.index_space import IndexDomain
from gpustore.metadata.chunk_edges import ChunkEdges
from gpustore.metadata.precomputed import PrecomputedMetadata
from gpustore.metadata.precomputed_keys import ZIndexNames
from gpustore.metadata.precomputed_scale import ScaleConstraints, Sharding, Sizes, z_index_bits
from gpustore.schema import Schema
from gpustore.schema.chunk_constraint import shape_vector
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.chunk_shape import choose_single_chunk_shape

INF: Final = 2**62 - 1

_MOST_PRESHIFT_BITS: Final = 9
"""Most bits of chunks that follow one another in a minishard; the others number minishards."""


def edges_of(chunk: int, size: int) -> ChunkEdges:
    """Return the edges of chunks along a dimension, of which the last one may be cut off."""
    whole, rest = divmod(size, chunk)
    runs = [(chunk, whole)] * bool(whole) + [(rest, 1)] * bool(rest)
    return ChunkEdges(tuple(runs)) if rest else ChunkEdges.regular(chunk)


def layout_of(metadata: PrecomputedMetadata) -> ChunkLayout:
    """Return the chunk layout of the selected scale; that of shards is their whole region."""
    scale, chunk = metadata.scale, metadata.chunk_size
    write = chunk
    if scale.sharding is not None:
        shard = shard_shape(scale.sharding, scale.size, chunk)
        write = _whole_chunks(shard or (None,) * 3, scale.size, chunk)  # type: ignore[assignment]
    block = scale.block_size
    return ChunkLayout(
        rank=4,
        grid_origin=(*scale.voxel_offset, 0),
        inner_order=ORDER,
        read_chunk=ChunkLayout.Grid(shape=(*chunk, metadata.channels)),
        write_chunk=ChunkLayout.Grid(shape=(*write, metadata.channels)),
        codec_chunk=ChunkLayout.Grid(shape=None if block is None else (*block, 1)),
    )


def _whole_chunks(
    shard: tuple[int | None, ...], size: tuple[int, ...], chunk: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the extents of a shard in elements of whole chunks; None stands for the volume's."""
    return tuple(
        -(-(most if one is None else min(one * n, most)) // n) * n
        for n, most, one in zip(chunk, size, shard)
    )


def shard_shape(
    sharding: Sharding, size: tuple[int, ...], chunk: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the extents of a shard in chunks; None if shards are no boxes."""
    bits = ZIndexNames.of(size, chunk).bits  # type: ignore[arg-type]
    within = sharding.preshift_bits + sharding.minishard_bits
    if sharding.hash != "identity" or sum(bits) > within + sharding.shard_bits:
        return None
    counts = [-(-n // c) for n, c in zip(size, chunk)]
    inside = [0, 0, 0]
    for d, _ in ZIndexNames(bits)._places()[:within]:
        inside[d] += 1
    return tuple(min(count, 1 << n) for count, n in zip(counts, inside))


def constrain_layout(merged: Schema, scale: ScaleConstraints) -> None:
    """Merge into `merged` what all scales have, and what the constraints of a spec say."""
    domain = merged.domain
    assert domain is not None
    origin = [None if dim.inclusive_min == -INF else dim.inclusive_min for dim in domain]
    with prefixing("Chunk grid origin must match domain origin"):
        merged.update(chunk_layout=ChunkLayout(grid_origin=origin))
    with prefixing("Only lexicographic {channel, z, y, x} inner order is supported"):
        merged.update(chunk_layout=ChunkLayout(inner_order=ORDER))
    if domain[3].finite:
        with prefixing("Chunking of channel dimension is not supported"):
            size = ChunkLayout(chunk_shape=[None, None, None, domain[3].size])
            merged.update(chunk_layout=size)
    if scale.chunk_size is not None:
        size = ChunkLayout(read_chunk_shape=[*scale.chunk_size, None])
        merged.update(chunk_layout=size)
    if scale.sharding is None:
        read = merged.chunk_layout.read_chunk.shape
        if read is not None:
            merged.update(chunk_layout=ChunkLayout(write_chunk_shape=read))
    elif isinstance(scale.sharding, Sharding):
        _constrain_shards(merged, scale.sharding)
    if scale.encoding == "compressed_segmentation":
        block = ChunkLayout.Grid(shape=[*(scale.block_size or (None,) * 3), 1])
        merged.update(chunk_layout=ChunkLayout(codec_chunk=block))


def _constrain_shards(merged: Schema, sharding: Sharding) -> None:
    """Merge the extents of shards into `merged` where the volume and its chunks say them."""
    domain, read = merged.domain, merged.chunk_layout.read_chunk.shape
    assert domain is not None
    if read is None or not all(read[:3]) or not all(dim.finite for dim in domain[:3]):
        return
    size, chunk = tuple(dim.size for dim in domain[:3]), tuple(int(n or 0) for n in read[:3])
    shard = shard_shape(sharding, size, chunk)
    if shard is None:
        return
    # Of whole chunks as in the layout of the open volume, also where TensorStore cuts them off.
    write = _whole_chunks(shard, size, chunk)
    merged.update(chunk_layout=ChunkLayout(write_chunk_shape=[*write, None]))


def choose_chunk_size(layout: ChunkLayout, domain: IndexDomain) -> Sizes:
    """Choose the extents of a chunk along x, y and z."""
    x, y, z, _ = choose_single_chunk_shape(layout.read_chunk, domain)
    return x, y, z


def choose_block_size(layout: ChunkLayout, chunk: tuple[int, ...]) -> Any:
    """Choose the extents of a block of compressed segmentation."""
    grid = layout.codec_chunk
    grid.merge_elements(512, hard=False)
    grid.merge_shape(shape_vector([None, None, None, 1]))
    return choose_single_chunk_shape(grid, IndexDomain(shape=(*chunk, 1)))[:3]


def choose_sharding(
    layout: ChunkLayout, size: tuple[int, ...], chunk: Sizes, data_encoding: str
) -> Sharding:
    """Choose the shards of a new scale, with TensorStore's search.

    The bits of shards alternate between x, y and z. Of all numbers of bits that fit, the one
    counts whose shards come closest to the extents of write chunks in `layout`, then the one with
    the most chunks up to the wanted number of elements.

    Raises
    ------
    MetadataError
        If no shard has the extents that write chunks must have.
    """
    x, y, z = size
    bits = z_index_bits((x, y, z), chunk)
    target = _target_bits(layout, math.prod(chunk), sum(bits))
    inside, dimensions = [0, 0, 0], list[int]()
    while inside != list(bits):
        for d in range(3):
            if inside[d] < bits[d]:
                inside[d] += 1
                dimensions.append(d)
    inside = [0, 0, 0]
    best, lowest = 0, _cost(layout, chunk, bits, inside)
    for total, d in enumerate(dimensions, 1):
        inside[d] += 1
        cost = _cost(layout, chunk, bits, inside)
        if cost < lowest or (cost == lowest and total <= target):
            best, lowest = total, cost
    if lowest == math.inf:
        raise MetadataError("Cannot satisfy write chunk shape constraint")
    preshift = min(best, _MOST_PRESHIFT_BITS)
    return Sharding(preshift, best - preshift, sum(bits) - best, "identity", data_encoding, "gzip")


def _target_bits(layout: ChunkLayout, chunk_elements: int, most: int) -> int:
    """Return the bits of a shard whose number of elements is closest to that of a write chunk."""
    grid = layout.write_chunk
    wanted = grid.elements or grid.elements_soft_constraint or 0
    chunks, bits = (wanted + chunk_elements // 2) // chunk_elements, 0
    while bits < most and 1 << bits < chunks:
        bits += 1
    return bits - (bits > 0 and (1 << bits) - chunks > chunks - (1 << bits - 1))


def _cost(layout: ChunkLayout, chunk: Sizes, bits: Sizes, inside: list[int]) -> float:
    """Return how far a shard is from the extents of write chunks; infinity if it must not be."""
    hard, soft = layout.write_chunk.shape, layout.write_chunk.shape_soft_constraint
    cost = 0.0
    for d, n in enumerate(chunk):
        must = None if hard is None else hard[d]
        wanted = must or (None if soft is None else soft[d])
        if wanted:
            extent = n << bits[d] if wanted == -1 else wanted
            if must and n << inside[d] != extent:
                return math.inf
            cost += abs((n << inside[d]) - extent) / extent
    return cost
