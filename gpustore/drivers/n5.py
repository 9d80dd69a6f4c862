"""The ``n5`` driver: N5 arrays.

JSON example::

    {"driver": "n5", "kvstore": "file:///data/x.n5/", "metadata": {"dataType": "uint16"}}

Blocks have no fill value: a missing block is zeros, and so is the rest of one that a writer has cut
off at the edge of the array.

Source: https://github.com/saalfeldlab/n5; TensorStore's n5 driver page and ``driver/n5``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpustore.codec_chain.n5_block import resolve_n5
from gpustore.data_types.unit import Unit
from gpustore.drivers._metadata_member import MetadataMember
from gpustore.drivers.chunked_spec import ChunkedKind
from gpustore.drivers.format import (
    ArrayDescription,
    AttributesPlace,
    SchemaWords,
    check_codec_chunk,
    check_rank,
    constrain_rank,
    created_domain,
    merge_codec,
    with_zarr_domain,
    zarr_domain,
)
from gpustore.drivers.selection import WholeElements
from gpustore.errors import MetadataError, prefixing
from gpustore.index_space import IndexDomain
from gpustore.metadata.n5 import (
    MEMBERS,
    N5Constraints,
    N5Metadata,
    check_data_type,
    units_of,
    validate,
)
from gpustore.metadata.n5_compression import (
    Compression,
    default_compression,
    merge_compressions,
    parse_compression,
)
from gpustore.runtime.limits import Limits
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.chunk_shape import choose_single_chunk_shape
from gpustore.schema.codec_spec import CodecSpec
from gpustore.schema.domain_merge import units_text
from gpustore.strict_json.parsing import JsonValue, Members, text


@dataclass(frozen=True, slots=True)
class N5Format(MetadataMember, WholeElements):
    """Translates between ``attributes.json`` documents and array descriptions."""

    id = "n5"
    zarr_format = 0
    json_id = "n5"
    words = SchemaWords(
        dtype="dtype",
        rank="Rank specified by schema ({schema}) does not match rank specified by metadata "
        "({stored})",
        domain="Mismatch between metadata and schema",
        status="",
        stored_first=False,
        has_units=True,
        name="N5",
        has_fill_value=False,
        units_are_complete=True,
    )
    metadata_class = N5Metadata
    metadata_key = "attributes.json"
    attributes_place = AttributesPlace(field="extra", reserved=MEMBERS)
    no_constraints = N5Constraints()

    def constraints(self, value: JsonValue) -> N5Constraints:
        """Parse the ``metadata`` member of a spec."""
        return N5Constraints.from_json(value)

    def constraints_of(self, metadata: N5Metadata) -> N5Constraints:
        """Return constraints that only these metadata fulfil."""
        return N5Constraints.from_json(metadata.to_json())

    def describe(self, metadata: N5Metadata, *, limits: Limits) -> ArrayDescription:
        """Return the array that `metadata` describe."""
        rank = check_rank(metadata.rank)
        chain = resolve_n5(
            metadata.compression, metadata.dtype.array_dtype, metadata.chunk_shape, limits=limits
        )
        return ArrayDescription(
            shape=metadata.shape,
            chunk_shape=metadata.chunk_shape,
            dtype=metadata.dtype,
            fill_value=None,
            stores_zeros=False,
            read_shape=metadata.chunk_shape,
            levels=(),
            chain=chain,
            inner_order=chain.inner_order,
            key_prefix="" if rank else "0",
            key_separator="/",
            labels=metadata.axes,
            units=metadata.dimension_units,
            codec_json={"driver": self.json_id, "compression": dict(metadata.compression)},
        )

    def redescribe(
        self, metadata: N5Metadata, first: ArrayDescription, *, limits: Limits
    ) -> ArrayDescription:
        """Return the array that `metadata` describe; only its shape and attributes may differ."""
        del limits
        return first.with_members(shape=metadata.shape)

    def validate(self, constraints: N5Constraints, metadata: N5Metadata) -> None:
        """Compare stored metadata with the caller's constraints."""
        validate(constraints, metadata)

    def completed(self, constraints: N5Constraints, metadata: N5Metadata) -> N5Metadata:
        """Return the metadata unchanged: the document is complete."""
        del constraints
        return metadata

    def constrained(self, constraints: N5Constraints, schema: Schema) -> Schema:
        """Merge `constraints` into `schema`."""
        merged = schema.copy()
        if constraints.dtype is not None:
            merged.set_dtype(constraints.dtype)
        if merged.dtype is not None:
            check_data_type(merged.dtype)
        if constraints.rank is not None:
            merged.set_rank(check_rank(constraints.rank), "rank")
        with prefixing(self.words.domain):
            if constraints.shape is not None:
                merged.update(domain=zarr_domain(constraints.shape, (), constraints.axes))
            elif constraints.axes is not None:
                zeros = [0] * len(constraints.axes)
                merged.update(domain=IndexDomain(inclusive_min=zeros, labels=constraints.axes))
            elif merged.rank == 0:
                merged.update(domain=IndexDomain(rank=0))
        rank = constrain_rank(merged, 0)
        if rank is not None:
            order = tuple(reversed(range(rank)))
            merged.update(chunk_layout=ChunkLayout(inner_order=order))
            if constraints.chunk_shape is not None:
                sizes = ChunkLayout(chunk_shape=constraints.chunk_shape)
                merged.update(chunk_layout=sizes)
        self._constrain_units(constraints, merged)
        merge_codec(merged, _codec_spec(constraints.compression))
        with prefixing(self.words.domain):
            return with_zarr_domain(merged, self.words)

    def _constrain_units(self, constraints: N5Constraints, merged: Schema) -> None:
        """Merge in the units; MetadataError if those of the schema contradict the resolution."""
        units, resolution = constraints.units, constraints.resolution
        if units is not None:
            merged.update(dimension_units=units_of(len(units), units, resolution))
        elif resolution is not None:
            given = merged.dimension_units or ()
            if any(unit and unit.multiplier != size for unit, size in zip(given, resolution)):
                raise MetadataError(
                    f'"resolution" from metadata {text(list(resolution))} does not match dimension '
                    f"units from schema {units_text(given)}"
                )

    def create(self, constraints: N5Constraints, merged: Schema, *, limits: Limits) -> N5Metadata:
        """Return new metadata that fulfil both constraints."""
        domain = created_domain(merged)
        dtype = merged.dtype
        if dtype is None:
            raise MetadataError("dtype must be specified")
        layout = merged.chunk_layout
        check_codec_chunk(layout)
        if merged.fill_value is not None:
            raise MetadataError(self.words.fill_value_refused)
        codec = merged.codec or _codec_spec(None)
        if codec.driver != self.json_id:
            codec = _codec_spec(None).merged(codec)  # Raises MetadataError.
        compression = _compression_of(codec.to_json())
        units, resolution = _stored_units(constraints, merged.dimension_units)
        metadata = N5Metadata(
            shape=tuple(domain.shape),
            chunk_shape=choose_single_chunk_shape(layout.read_write_chunk(), domain),
            dtype=dtype,
            compression=compression or default_compression(dtype.itemsize),
            axes=tuple(domain.labels),
            units=units,
            resolution=resolution,
            extra=dict(constraints.extra),
        )
        metadata.check(limits)
        return metadata

    def merge_codec(self, a: JsonValue, b: JsonValue) -> JsonValue:
        """Merge the JSON of two codec specs of this driver."""
        return _codec_json(merge_compressions(_compression_of(a), _compression_of(b)))


def _stored_units(
    constraints: N5Constraints, units: tuple[Unit | None, ...] | None
) -> tuple[tuple[str, ...] | None, tuple[float, ...] | None]:
    """Return ``units`` and ``resolution`` of a new array."""
    if units is None or not any(unit is not None for unit in units):
        return constraints.units, constraints.resolution
    bases = constraints.units or ("",) * len(units)
    sizes = constraints.resolution or (1.0,) * len(units)
    return (
        tuple(base if unit is None else unit.base_unit for unit, base in zip(units, bases)),
        tuple(size if unit is None else unit.multiplier for unit, size in zip(units, sizes)),
    )


def _codec_json(compression: Compression | None) -> dict[str, JsonValue]:
    value: dict[str, JsonValue] = {"driver": "n5"}
    if compression is not None:
        value["compression"] = dict(compression)
    return value


def _codec_spec(compression: Compression | None) -> CodecSpec:
    return CodecSpec(_codec_json(compression))


def _compression_of(value: JsonValue) -> Compression | None:
    """Return the compression of a codec spec, None where it says nothing."""
    members = Members(value)
    members.take("driver")
    compression = members.take_with("compression", parse_compression, None)
    members.finish()
    return compression


DRIVER = ChunkedKind(N5Format())
