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

from gpustore.drivers._precomputed_codecs import (
    ORDER,
    codec_json,
    codec_members,
    codec_of,
    codec_spec,
    resolve_codecs,
)
from gpustore.drivers._precomputed_layout import (
    INF,
    choose_block_size,
    choose_chunk_size,
    choose_sharding,
    constrain_layout,
    edges_of,
    layout_of,
)
from gpustore.drivers._precomputed_steps import PrecomputedSteps
from gpustore.drivers.base import DriverSpec
from gpustore.drivers.chunked_spec import ChunkedKind, ChunkedSpec
from gpustore.drivers.format import ArrayDescription, AttributesPlace, SchemaWords, merge_codec
from gpustore.drivers.selection import WholeElements
from gpustore.errors import (
    AlreadyExistsError,
    MetadataError,
    MismatchError,
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
)
from gpustore.metadata.zarr2_member import Unset
from gpustore.pipelines.rectilinear_grid import RectilinearGrid
from gpustore.runtime.limits import Limits
from gpustore.schema import Schema
from gpustore.schema.domain_merge import units_text
from gpustore.strict_json.parsing import JsonValue, Members, quote, text


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

    def members(
        self, constraints: PrecomputedConstraints, *, include_defaults: bool
    ) -> dict[str, JsonValue]:
        """Return the members of a spec that constrain the metadata, all of which were given."""
        del include_defaults
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
        resolve = partial(resolve_codecs, metadata, limits)
        grid = None
        if any(size % n for n, size in zip(cut, scale.size)):
            edges = [edges_of(n, size) for n, size in zip(cut, scale.size)]
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
            inner_order=ORDER,
            key_prefix=f"{scale.key}/" if scale.key else "",
            key_separator="",
            labels=LABELS,
            units=metadata.dimension_units,
            codec_json=codec_of(scale),
            inner_rank=1,
            grid=grid,
            names=names,
            origin=(*scale.voxel_offset, 0),
            layout=layout_of(metadata),
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
        merged.set_rank(4, "rank")
        if constraints.dtype is not None:
            merged.set_dtype(constraints.dtype)
        if merged.dtype is not None:
            check_data_type(merged.dtype)
        scale = constraints.scale
        with prefixing(
            'Error applying domain constraints from "multiscale_metadata" and "scale_metadata"'
        ):
            merged.update(domain=_domain_of(constraints))
        constrain_layout(merged, scale)
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
        merge_codec(merged, codec_spec(codec))
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
                inclusive_min=[-INF] * 3 + [0],
                exclusive_max=[INF + 1] * 3 + [existing.channels],
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
        codec = merged.codec or codec_spec({})
        if codec.driver != self.json_id:
            codec = codec_spec({}).merged(codec)  # Raises MetadataError.
        given = codec_members(codec.to_json())
        encoding = given["encoding"] or "raw"
        channels_ = int(domain.shape[3])
        check_encoding(encoding, dtype, channels_)
        units = merged.dimension_units or (None,) * 4
        resolution = tuple(1.0 if unit is None else unit.multiplier for unit in units[:3])
        layout = merged.chunk_layout
        chunk = choose_chunk_size(layout, domain)
        block = constraints.scale.block_size
        if encoding == "compressed_segmentation" and block is None:
            block = choose_block_size(layout, chunk)
        sharding, shard_data = constraints.scale.sharding, given["shard_data_encoding"]
        if isinstance(sharding, Unset):
            is_image = encoding in ("jpeg", "png")
            data_encoding = shard_data or ("raw" if is_image else "gzip")
            chosen = choose_sharding(layout, domain.shape[:3], chunk, data_encoding)
            # Without constraints each shard would have one chunk.
            has_shards = chosen.preshift_bits or shard_data is not None
            sharding = chosen if has_shards else None
        elif sharding is None and shard_data is not None:
            raise MetadataError("shard_data_encoding requires sharded format")
        quality = given["jpeg_quality"]
        key = constraints.scale.key
        if key is None:
            key = "_".join(f"{n:g}" for n in resolution)
        scale = Scale(
            key=key,
            resolution=resolution,  # type: ignore[arg-type]
            size=tuple(domain.shape[:3]),  # type: ignore[arg-type]
            voxel_offset=tuple(domain.origin[:3]),  # type: ignore[arg-type]
            chunk_sizes=(chunk,),
            encoding=encoding,
            jpeg_quality=75 if encoding == "jpeg" and quality is None else quality,
            png_level=given["png_level"],
            block_size=block,
            sharding=sharding,
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
        first, second = codec_members(a), codec_members(b)
        for name, value in second.items():
            if value is None:
                continue
            if first[name] not in (None, value):
                raise MetadataError(f'"{name}" mismatch')
            first[name] = value
        return codec_json(first)


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


def _domain_of(constraints: PrecomputedConstraints) -> IndexDomain:
    scale, channels = constraints.scale, constraints.channels
    low, high, open_ = [-INF] * 3, [INF + 1] * 3, True
    if scale.size is not None:
        low, open_ = list(scale.voxel_offset), False
        high = [o + n for o, n in zip(scale.voxel_offset, scale.size)]
    return IndexDomain(
        inclusive_min=[*low, 0],
        exclusive_max=[*high, INF + 1 if channels is None else channels],
        implicit_lower_bounds=[open_] * 3 + [False],
        implicit_upper_bounds=[open_] * 3 + [channels is None],
        labels=LABELS,
    )


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

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return the members of the driver; with defaults, the data type stands in two places."""
        members = super().to_json(include_defaults=include_defaults)
        if include_defaults and "dtype" in members:
            given: Any = members.get("multiscale_metadata", {})
            members["multiscale_metadata"] = {**given, "data_type": members["dtype"]}
        return members

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
