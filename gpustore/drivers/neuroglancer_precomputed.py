"""The ``neuroglancer_precomputed`` driver: one scale of a Neuroglancer precomputed volume.

JSON example::

    {"driver": "neuroglancer_precomputed", "kvstore": "gs://bucket/volume/", "scale_index": 1}

Dimensions are x, y, z and channel, with the origin of the scale; bounds are fixed. Chunks at the
upper bounds are stored cut off, so that the grid is rectilinear. Creating an array adds a scale to
the document ``info`` of the volume, or makes both.

Source: https://github.com/google/neuroglancer, ``src/datasource/precomputed``; TensorStore's driver
page and ``driver/neuroglancer_precomputed``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gpustore import registry
from gpustore.codec_chain.base import BytesCodec, ChunkBytes
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.compressed_segmentation import CompressedSegmentation
from gpustore.codec_chain.image_chunk import ImageChunk
from gpustore.drivers._precomputed_steps import PrecomputedSteps
from gpustore.drivers.base import DriverSpec
from gpustore.drivers.chunked_spec import ChunkedKind, ChunkedSpec
from gpustore.drivers.format import ArrayDescription, AttributesPlace, SchemaWords, merge_codec
from gpustore.drivers.selection import WholeElements
from gpustore.errors import (
    AlreadyExistsError,
    MetadataError,
    MismatchError,
    UnsupportedError,
    prefixing,
)
from gpustore.index_space import IndexDomain
from gpustore.kvstores.kvstore import KvStore
from gpustore.metadata.chunk_edges import ChunkEdges
from gpustore.metadata.document import check_chunk_nbytes
from gpustore.metadata.precomputed import (
    LABELS,
    MEMBERS,
    PrecomputedConstraints,
    PrecomputedMetadata,
    check_data_type,
    validate,
    validate_volume,
)
from gpustore.metadata.precomputed_keys import BoxNames, ZIndexNames
from gpustore.metadata.precomputed_scale import (
    Scale,
    ScaleConstraints,
    Sharding,
    check_encoding,
    encoding_members,
)
from gpustore.metadata.zarr2_member import Unset
from gpustore.pipelines.rectilinear_grid import RectilinearGrid
from gpustore.runtime.limits import Limits
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.chunk_shape import choose_chunk_shape
from gpustore.schema.codec_spec import CodecSpec
from gpustore.schema.domain_merge import units_text
from gpustore.sharding.shard import ResolvedCodecs
from gpustore.strict_json.parsing import JsonValue, Members, quote, text

_ORDER = (3, 2, 1, 0)
_INF = 2**62 - 1


@dataclass(frozen=True, slots=True)
class PrecomputedFormat(WholeElements):
    """Translates between scales of ``info`` documents and array descriptions."""

    id = "neuroglancer-precomputed"
    zarr_format = 0
    json_id = "neuroglancer_precomputed"
    words = SchemaWords(
        dtype="data_type",
        rank="Rank specified by schema ({schema}) does not match rank specified by metadata "
        "({stored})",
        domain="domain from metadata does not match domain in schema",
        status="",
        stored_first=True,
        has_units=True,
        name="neuroglancer_precomputed",
        has_fill_value=False,
        units_are_complete=True,
    )
    metadata_class = PrecomputedMetadata
    metadata_key = "info"
    attributes_place = AttributesPlace(field="extra", reserved=MEMBERS)
    no_constraints = PrecomputedConstraints()

    def constraints(self, value: JsonValue) -> PrecomputedConstraints:
        """Parse the members of a spec."""
        return PrecomputedConstraints.take(Members(value))

    def constraints_of(self, metadata: PrecomputedMetadata) -> PrecomputedConstraints:
        """Return constraints that only this scale fulfils."""
        scale = metadata.scale
        return PrecomputedConstraints(
            scale_index=metadata.index,
            type=metadata.type,
            channels=metadata.channels,
            scale=ScaleConstraints(
                key=scale.key,
                resolution=scale.resolution,
                size=scale.size,
                voxel_offset=scale.voxel_offset,
                chunk_size=metadata.chunk_size,
                encoding=scale.encoding,
                jpeg_quality=scale.jpeg_quality,
                png_level=scale.png_level,
                block_size=scale.block_size,
                sharding=scale.sharding,
            ),
        )

    def take_constraints(self, members: Members) -> PrecomputedConstraints:
        """Take ``scale_index``, ``multiscale_metadata`` and ``scale_metadata``."""
        found = PrecomputedConstraints.take(members)
        return self.no_constraints if found == self.no_constraints else found

    def members(self, constraints: PrecomputedConstraints) -> dict[str, JsonValue]:
        """Return the members of a spec that constrain the metadata."""
        return constraints.to_json()

    def take_options(self, members: Members) -> dict[str, JsonValue]:
        """Return no options: the format has none."""
        del members
        return {}

    def describe(self, metadata: PrecomputedMetadata, *, limits: Limits) -> ArrayDescription:
        """Return the array of the selected scale."""
        scale, chunk = metadata.scale, metadata.chunk_size
        shape = (*scale.size, metadata.channels)
        cut = [min(n, size) or n for n, size in zip(chunk, scale.size)]
        check_chunk_nbytes(
            (*cut, metadata.channels), metadata.dtype.itemsize, limits, is_sharded=False
        )
        resolve = partial(_resolve, metadata, limits)
        grid = None
        if any(size % n for n, size in zip(cut, scale.size)):
            edges = [_edges(n, size) for n, size in zip(cut, scale.size)]
            grid = RectilinearGrid((*edges, ChunkEdges.regular(metadata.channels)), resolve, 1)
        chain = resolve(tuple(cut)).chain
        names: Any = BoxNames(scale.voxel_offset, scale.size, chunk)
        if scale.sharding is not None:
            names = ZIndexNames.of(scale.size, chunk)
        chunk_shape = (*cut, metadata.channels)
        return ArrayDescription(
            shape=shape,
            chunk_shape=chunk_shape,
            dtype=metadata.dtype,
            fill_value=None,
            stores_zeros=False,
            read_shape=chunk_shape,
            levels=(),
            chain=chain,
            inner_order=_ORDER,
            key_prefix=f"{scale.key}/" if scale.key else "",
            key_separator="",
            labels=LABELS,
            units=metadata.dimension_units,
            codec_json=_codec_of(scale),
            inner_rank=1,
            grid=grid,
            names=names,
            origin=(*scale.voxel_offset, 0),
            layout=_layout_of(metadata),
        )

    def redescribe(
        self, metadata: PrecomputedMetadata, first: ArrayDescription, *, limits: Limits
    ) -> ArrayDescription:
        """Return the array of the selected scale."""
        del first
        return self.describe(metadata, limits=limits)

    def validate(self, constraints: PrecomputedConstraints, metadata: PrecomputedMetadata) -> None:
        """Compare a stored scale with the caller's constraints."""
        validate_volume(constraints, metadata)
        validate(constraints, metadata)

    def completed(
        self, constraints: PrecomputedConstraints, metadata: PrecomputedMetadata
    ) -> PrecomputedMetadata:
        """Return the metadata unchanged: a scale is selected when the array is opened."""
        del constraints
        return metadata

    def constrained(self, constraints: PrecomputedConstraints, schema: Schema) -> Schema:
        """Merge `constraints` into `schema`."""
        merged = schema.copy()
        merged.update(rank=4)
        if constraints.dtype is not None:
            merged.set_dtype(constraints.dtype)
        if merged.dtype is not None:
            check_data_type(merged.dtype)
        scale = constraints.scale
        with prefixing(
            'Error applying domain constraints from "multiscale_metadata" and "scale_metadata"'
        ):
            merged.update(domain=_domain_of(constraints))
        _constrain_layout(merged, scale)
        _check_units(merged, scale)
        if scale.resolution is not None:
            merged.update(dimension_units=[*((n, "nm") for n in scale.resolution), None])
        sharding = scale.sharding
        codec = {
            "encoding": scale.encoding,
            "jpeg_quality": scale.jpeg_quality,
            "png_level": scale.png_level,
            "shard_data_encoding": (
                sharding.data_encoding if isinstance(sharding, Sharding) else None
            ),
        }
        merge_codec(merged, _codec_spec(codec))
        return merged

    def create(
        self, constraints: PrecomputedConstraints, merged: Schema, *, limits: Limits
    ) -> PrecomputedMetadata:
        """Return the metadata of a new volume of one scale."""
        return self.extended(None, constraints, merged, limits)

    def extended(
        self,
        existing: PrecomputedMetadata | None,
        constraints: PrecomputedConstraints,
        merged: Schema,
        limits: Limits,
    ) -> PrecomputedMetadata:
        """Return the metadata of a volume with a new scale, which is selected.

        Raises
        ------
        MetadataError, MismatchError, AlreadyExistsError
            If it contradicts the constraints or the volume, or there is such a scale.
        """
        if existing is not None:
            validate_volume(constraints, existing)
            merged = merged.merged(dtype=existing.dtype)
            channels = IndexDomain(
                inclusive_min=[-_INF] * 3 + [0],
                exclusive_max=[_INF + 1] * 3 + [existing.channels],
                implicit_lower_bounds=[True] * 3 + [False],
                implicit_upper_bounds=[True] * 3 + [False],
            )
            merged.update(domain=channels)
        domain, dtype = merged.domain, merged.dtype
        if domain is None or not all(dim.finite for dim in domain):
            raise MetadataError("domain must be specified")
        if dtype is None:
            raise MetadataError("dtype must be specified")
        if merged.fill_value is not None:
            raise MetadataError(self.words.fill_value_refused)
        codec = merged.codec or _codec_spec({})
        if codec.driver != self.json_id:
            codec = codec.merged(_codec_spec({}))  # Raises MetadataError.
        given = _codec_members(codec.to_json())
        encoding = given["encoding"] or "raw"
        channels_ = int(domain.shape[3])
        check_encoding(encoding, dtype, channels_)
        units = merged.dimension_units or (None,) * 4
        resolution = tuple(1.0 if unit is None else unit.multiplier for unit in units[:3])
        layout = merged.chunk_layout
        chunk = _chunk_size(layout, domain)
        block = constraints.scale.block_size
        if encoding == "compressed_segmentation" and block is None:
            block = _block_size(layout, chunk)
        sharding = constraints.scale.sharding
        if isinstance(sharding, Unset):
            if given["shard_data_encoding"] is not None:
                raise UnsupportedError(
                    "shards of a new scale are to be given by scale_metadata.sharding"
                )
            sharding = None
        quality = given["jpeg_quality"]
        key = constraints.scale.key
        if key is None:
            key = "_".join(f"{n:g}" for n in resolution)
        scale = Scale(
            key=key,
            resolution=resolution,  # type: ignore[arg-type]
            size=tuple(domain.shape[:3]),  # type: ignore[arg-type]
            voxel_offset=tuple(domain.origin[:3]),  # type: ignore[arg-type]
            chunk_sizes=(chunk,),  # type: ignore[arg-type]
            encoding=encoding,
            jpeg_quality=75 if encoding == "jpeg" and quality is None else quality,
            png_level=given["png_level"],
            block_size=block,
            sharding=sharding,
            extra=dict(constraints.scale.extra),
        )
        scale.check()
        if existing is None:
            is_labels = dtype.name in ("uint32", "uint64")
            existing = PrecomputedMetadata(
                shape=(),
                type=constraints.type or ("segmentation" if is_labels else "image"),
                dtype=dtype,
                channels=channels_,
                scales=(),
                extra=dict(constraints.extra),
            )
        check_new(existing, scale, constraints)
        metadata = existing.with_scale(scale)
        self.describe(metadata, limits=limits).check(merged, self.words)
        return metadata

    def merge_codec(self, a: JsonValue, b: JsonValue) -> JsonValue:
        """Merge the JSON of two codec specs of this driver."""
        first, second = _codec_members(a), _codec_members(b)
        for name, value in second.items():
            if value is None:
                continue
            if first[name] not in (None, value):
                raise MetadataError(f'"{name}" mismatch')
            first[name] = value
        return _codec_json(first)


def check_new(
    existing: PrecomputedMetadata, scale: Scale, constraints: PrecomputedConstraints
) -> None:
    """Raise AlreadyExistsError or MismatchError unless a volume may have one more scale."""
    count, index = len(existing.scales), constraints.scale_index
    if index is not None:
        if index < count:
            raise AlreadyExistsError(f"Scale index {index} already exists")
        if index != count:
            raise MismatchError(
                f"Scale index to create ({index}) must equal the existing number of scales "
                f"({count})"
                if count
                else f"Cannot create scale {index} in new multiscale volume"
            )
        return
    if any(one.key == scale.key for one in existing.scales):
        raise AlreadyExistsError(f"Scale with key {quote(scale.key)} already exists")
    if constraints.scale.key is None and any(
        one.resolution == scale.resolution for one in existing.scales
    ):
        raise AlreadyExistsError(
            f"Scale with resolution {text(list(scale.resolution))} already exists"
        )


def _resolve(
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
    chain = CodecChain(layout, stages, _codec_of(scale), inner_order=_ORDER)
    return ResolvedCodecs(chain, chunk, ())


def _edges(chunk: int, size: int) -> ChunkEdges:
    """Return the edges of chunks along a dimension, of which the last one may be cut off."""
    whole, rest = divmod(size, chunk)
    runs = [(chunk, whole)] * bool(whole) + [(rest, 1)] * bool(rest)
    return ChunkEdges(tuple(runs)) if rest else ChunkEdges.regular(chunk)


def _layout_of(metadata: PrecomputedMetadata) -> ChunkLayout:
    """Return the chunk layout of the selected scale; that of shards is their whole region."""
    scale, chunk = metadata.scale, metadata.chunk_size
    write = chunk
    if scale.sharding is not None:
        shard = shard_shape(scale.sharding, scale.size, chunk)
        write = tuple(  # type: ignore[assignment]
            -(-(size if one is None else min(one * n, size)) // n) * n
            for n, size, one in zip(chunk, scale.size, shard or (None,) * 3)
        )
    block = scale.block_size
    return ChunkLayout(
        rank=4,
        grid_origin=(*scale.voxel_offset, 0),
        inner_order=_ORDER,
        read_chunk=ChunkLayout.Grid(shape=(*chunk, metadata.channels)),
        write_chunk=ChunkLayout.Grid(shape=(*write, metadata.channels)),
        codec_chunk=ChunkLayout.Grid(shape=None if block is None else (*block, 1)),
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


# --------------------------------------------------------------------------- constraints


def _domain_of(constraints: PrecomputedConstraints) -> IndexDomain:
    scale, channels = constraints.scale, constraints.channels
    low, high, open_ = [-_INF] * 3, [_INF + 1] * 3, True
    if scale.size is not None:
        low, open_ = list(scale.voxel_offset), False
        high = [o + n for o, n in zip(scale.voxel_offset, scale.size)]
    return IndexDomain(
        inclusive_min=[*low, 0],
        exclusive_max=[*high, _INF + 1 if channels is None else channels],
        implicit_lower_bounds=[open_] * 3 + [False],
        implicit_upper_bounds=[open_] * 3 + [channels is None],
        labels=LABELS,
    )


def _constrain_layout(merged: Schema, scale: ScaleConstraints) -> None:
    domain = merged.domain
    assert domain is not None
    origin = [None if dim.inclusive_min == -_INF else dim.inclusive_min for dim in domain]
    with prefixing("Chunk grid origin must match domain origin"):
        merged.update(chunk_layout=ChunkLayout(grid_origin=origin))
    with prefixing("Only lexicographic {channel, z, y, x} inner order is supported"):
        merged.update(chunk_layout=ChunkLayout(inner_order=_ORDER))
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
    if scale.encoding == "compressed_segmentation":
        block = ChunkLayout.Grid(shape=[*(scale.block_size or (None,) * 3), 1])
        merged.update(chunk_layout=ChunkLayout(codec_chunk=block))


def _check_units(merged: Schema, scale: ScaleConstraints) -> None:
    """Raise MetadataError for units that the format lacks, or that contradict the resolution."""
    units = merged.dimension_units
    if units is None or not any(units):
        return
    if units[3] is not None:
        raise MetadataError(
            f"Invalid dimension units {units_text(units)}: neuroglancer_precomputed format does "
            "not allow units to be specified for channel dimension"
        )
    if any(unit is not None and unit.base_unit != "nm" for unit in units):
        raise MetadataError(
            f"Invalid dimension units {units_text(units)}: neuroglancer_precomputed format "
            'requires a base unit of "nm" for the "x", "y", and "z" dimensions'
        )
    if scale.resolution is not None and any(
        unit is not None and unit.multiplier != size for unit, size in zip(units, scale.resolution)
    ):
        raise MetadataError(
            f'Dimension units {units_text(units)} do not match "resolution" in metadata: '
            f"{text(list(scale.resolution))}"
        )


def _chunk_size(layout: ChunkLayout, domain: IndexDomain) -> tuple[int, ...]:
    """Choose the extents of a chunk along x, y and z."""
    grid = layout.read_chunk
    return choose_chunk_shape(
        grid.shape or grid.shape_soft_constraint,
        grid.aspect_ratio or grid.aspect_ratio_soft_constraint,
        grid.elements or grid.elements_soft_constraint,
        domain.origin,
        domain.shape,
    )[:3]


def _block_size(layout: ChunkLayout, chunk: tuple[int, ...]) -> Any:
    """Choose the extents of a block of compressed segmentation."""
    grid = layout.codec_chunk
    shape = grid.shape or grid.shape_soft_constraint or (None,) * 4
    return choose_chunk_shape(
        (*shape[:3], 1), grid.aspect_ratio, grid.elements or 512, (0,) * 4, (*chunk, 1)
    )[:3]


# --------------------------------------------------------------------------- codec specs


def _codec_members(value: JsonValue) -> dict[str, Any]:
    members = Members(value, integral_floats=True)
    members.take("driver")
    found = encoding_members(members, None)
    found["shard_data_encoding"] = members.take_str(
        "shard_data_encoding", None, choices=("raw", "gzip")
    )
    members.finish()
    return found


def _codec_json(given: dict[str, Any]) -> dict[str, JsonValue]:
    known = {name: value for name, value in given.items() if value is not None}
    return {"driver": "neuroglancer_precomputed", **known}


def _codec_spec(given: dict[str, Any]) -> CodecSpec:
    return CodecSpec(_codec_json(given))


def _codec_of(scale: Scale) -> dict[str, JsonValue]:
    sharding = scale.sharding
    return _codec_json(
        {
            "encoding": scale.encoding,
            "jpeg_quality": scale.jpeg_quality,
            "png_level": scale.png_level,
            "shard_data_encoding": None if sharding is None else sharding.data_encoding,
        }
    )


@dataclass(frozen=True)
class PrecomputedSpec(ChunkedSpec):
    """A scale of a volume to be opened or created."""

    steps = PrecomputedSteps

    @property
    def url(self) -> str:
        if self.metadata.scale_index:
            raise MetadataError(
                f"{self.format.id} URL syntax not supported with non-zero scale_index"
            )
        return super().url

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """Return the spec with more constraints; a minimal one keeps the number of the scale."""
        index = PrecomputedConstraints(scale_index=self.metadata.scale_index)
        spec: Any = super().updated(schema=schema, kvstore=kvstore, **options)
        if options.get("minimal") and self.metadata.scale_index is not None:
            spec = replace(spec, metadata=index)
        found: DriverSpec = spec
        return found


class _PrecomputedKind(ChunkedKind):
    spec = PrecomputedSpec

    def from_url(self, base: KvStore.Spec, path: str) -> ChunkedSpec:
        """``<kvstore>|neuroglancer-precomputed:``."""
        if path:
            raise MetadataError(
                f'Invalid TensorStore URL component "{self.format.id}:{path}": Path not supported'
            )
        return super().from_url(base, path)


DRIVER = _PrecomputedKind(PrecomputedFormat())
