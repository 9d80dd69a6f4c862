"""The ``zarr3`` driver: Zarr v3 arrays.

JSON example::

    {"driver": "zarr3", "kvstore": "file:///data/x.zarr/", "metadata": {"data_type": "uint16"}}

Source: Zarr v3 core specification; TensorStore's zarr3 driver page.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpustore._json import JsonValue, Members, expect_list
from gpustore.codecs.merge import (
    complete_v3,
    inner_order_v3,
    merge_v3,
    parse_v3,
    read_chunk_shape_v3,
    shard_v3,
)
from gpustore.drivers.chunked_spec import ChunkedKind
from gpustore.drivers.format import (
    ArrayDescription,
    SchemaWords,
    check_codec_chunk,
    check_dtype,
    created_domain,
    merge_codec,
    take_selection,
    with_zarr_domain,
)
from gpustore.errors import MetadataError, UnsupportedError, prefixing
from gpustore.index_space import IndexDomain
from gpustore.limits import Limits
from gpustore.metadata.chunk_key_encoding import ChunkKeyEncoding
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.metadata.zarr3 import Zarr3Constraints, Zarr3Metadata, validate
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.chunk_shape import choose_read_write_chunk_shapes
from gpustore.schema.codec_spec import CodecSpec
from gpustore.shard import resolve_codecs

__all__ = ["DRIVER", "Zarr3Format"]


class Zarr3Format:
    """Translates ``zarr.json``."""

    id = "zarr3"
    json_id = "zarr3"
    words = SchemaWords(
        dtype="data_type",
        rank="Rank specified by schema ({schema}) does not match rank specified by metadata "
        "({stored})",
        domain="Mismatch between metadata and schema",
        status="FAILED_PRECONDITION",
        stored_first=False,
        has_units=True,
    )
    metadata_key = "zarr.json"
    no_constraints = Zarr3Constraints()

    def selecting(self, members: Members) -> Zarr3Format:
        """``field`` and ``open_as_void``."""
        if any(take_selection(members)):
            raise UnsupportedError("field")
        return self

    @property
    def selection(self) -> dict[str, JsonValue]:
        """``field`` or ``open_as_void``, if given."""
        return {}

    def naming_field(self, metadata: Zarr3Metadata) -> Zarr3Format:
        return self

    def constraints(self, value: JsonValue) -> Zarr3Constraints:
        """Parse the ``metadata`` member of a spec."""
        constraints = Zarr3Constraints.from_json(value)
        if constraints.codecs is not None:
            parse_v3(constraints.codecs, stored=False)  # Raises.
        return constraints

    def constraints_of(self, metadata: Zarr3Metadata) -> Zarr3Constraints:
        """Constraints that only these metadata fulfil; options left to their default are named."""
        codecs = [codec.to_json() for codec in parse_v3(metadata.codecs, stored=True)]
        return Zarr3Constraints.from_json({**metadata.to_json(), "codecs": codecs})

    @staticmethod
    def decode(data: Any, *, where: str, limits: Limits) -> Zarr3Metadata:
        """Parse a stored ``zarr.json``."""
        return Zarr3Metadata.decode(data, where=where, limits=limits)

    def take_constraints(self, members: Members) -> Zarr3Constraints:
        """``metadata``."""
        return members.take_with("metadata", self.constraints, self.no_constraints)

    def take_options(self, members: Members) -> dict[str, JsonValue]:
        """There are none."""
        del members
        return {}

    def describe(self, metadata: Zarr3Metadata, *, limits: Limits) -> ArrayDescription:
        """The array that `metadata` describe."""
        rank, encoding = metadata.rank, metadata.chunk_key_encoding
        codecs = resolve_codecs(
            metadata.codecs, metadata.dtype, metadata.chunk_shape, limits=limits
        )
        return ArrayDescription(
            shape=metadata.shape,
            chunk_shape=metadata.chunk_shape,
            dtype=metadata.dtype,
            fill_value=metadata.fill_value,
            read_shape=codecs.chunk_shape,
            levels=codecs.levels,
            chain=codecs.chain,
            inner_order=codecs.chain.inner_order,
            key_prefix=encoding.prefix if rank else encoding.scalar_key,
            key_separator=encoding.separator,
            labels=metadata.labels,
            units=metadata.dimension_units,
            codec_json={"driver": self.json_id, **codecs.chain.to_json()},
        )

    def validate(self, constraints: Zarr3Constraints, metadata: Zarr3Metadata) -> None:
        """Compare stored metadata with the caller's constraints."""
        # A stored option that is missing means its default; in a constraint it means anything.
        validate(
            constraints,
            metadata,
            merge_codecs=lambda stored, asked: (
                merge_v3(parse_v3(stored, stored=True), asked, strict=True) or asked
            ),
        )

    def completed(self, constraints: Zarr3Constraints, metadata: Zarr3Metadata) -> Zarr3Metadata:
        """The document says everything."""
        del constraints
        return metadata

    def constrained(self, constraints: Zarr3Constraints, schema: Schema) -> Schema:
        """`schema` with what `constraints` say merged in."""
        merged = schema.copy()
        if constraints.data_type is not None:
            merged.set_dtype(constraints.data_type)
        if merged.dtype is not None:
            check_dtype(merged.dtype)
        if constraints.rank is not None:
            merged.update(rank=constraints.rank)
        labels = _labels(constraints)
        if constraints.shape is not None:
            merged.update(domain=_domain(constraints.shape, labels))
        elif labels is not None:
            merged.update(domain=IndexDomain(inclusive_min=[0] * len(labels), labels=labels))
        if merged.rank == 0:
            merged.update(domain=IndexDomain(rank=0))
        units = constraints.attributes.get("dimension_units")
        if units is not None:
            merged.update(dimension_units=units)
        rank = merged.rank
        if rank is not None:
            merged.update(chunk_layout=ChunkLayout(grid_origin=[0] * rank))
        if constraints.chunk_shape is not None:
            merged.update(chunk_layout=ChunkLayout(write_chunk_shape=constraints.chunk_shape))
            # Without codecs it may still turn out to be sharded, with smaller read chunks.
            if constraints.codecs is not None and not _is_sharded(constraints.codecs):
                merged.update(chunk_layout=ChunkLayout(read_chunk_shape=constraints.chunk_shape))
        if constraints.codecs is not None and rank is not None:
            read_shape = read_chunk_shape_v3(constraints.codecs, rank)
            if read_shape is not None:
                merged.update(chunk_layout=ChunkLayout(read_chunk_shape=read_shape))
        if constraints.fill_value is not None:
            merged.update(fill_value=constraints.fill_value)
        if constraints.codecs is not None:
            inner_order = None if rank is None else inner_order_v3(constraints.codecs, rank)
            if inner_order is not None:
                merged.update(chunk_layout=ChunkLayout(inner_order=inner_order))
            merge_codec(merged, _codec_spec(constraints.codecs))
        else:
            merge_codec(merged, _ANY_CODEC)
        with prefixing(self.words.domain, status=self.words.status):
            return with_zarr_domain(merged, self.words)

    def create(
        self, constraints: Zarr3Constraints, schema: Schema, *, limits: Limits
    ) -> Zarr3Metadata:
        """New metadata that fulfil both."""
        merged = self.constrained(constraints, schema)
        dtype = merged.dtype
        if dtype is None:
            raise MetadataError("dtype must be specified")
        domain = created_domain(merged)
        rank = domain.rank
        layout = merged.chunk_layout
        check_codec_chunk(layout)
        read, write = choose_read_write_chunk_shapes(layout.read_chunk, layout.write_chunk, domain)
        codec = merged.codec or _ANY_CODEC
        if codec.driver != self.json_id:
            codec = codec.merged(_ANY_CODEC)  # Raises.
        codecs = shard_v3(_codecs_of(codec.to_json()), read, write)
        attributes = dict(constraints.attributes)
        units = merged.dimension_units
        if units is not None and any(unit is not None for unit in units):
            attributes["dimension_units"] = [None if unit is None else str(unit) for unit in units]
        names = constraints.dimension_names
        if names is None and any(domain.labels):
            names = tuple(label or None for label in domain.labels)
        if names is not None and all(name is None for name in names):
            names = None
        fill = merged.fill_value
        metadata = Zarr3Metadata(
            shape=tuple(domain.shape),
            data_type=dtype,
            chunk_shape=write,
            # Of bits zero: not every type has a number zero.
            fill_value=np.zeros((), dtype.array_dtype) if fill is None else fill,
            codecs=complete_v3(
                codecs,
                dtype,
                rank,
                inner_order=layout.inner_order or layout.inner_order_soft_constraint,
            ),
            chunk_key_encoding=constraints.chunk_key_encoding or ChunkKeyEncoding(),
            attributes=attributes,
            dimension_names=names,
            extensions=dict(constraints.extensions),
        )
        metadata.check(limits)
        if constraints.codecs is not None:
            # A transpose that the inner order needs is one that these do not have.
            self.validate(Zarr3Constraints(codecs=constraints.codecs), metadata)
        return metadata

    def merge_codec(self, a: JsonValue, b: JsonValue) -> JsonValue:
        """Merge the JSON of two codec specs of this driver."""
        first, second = _codecs_of(a), _codecs_of(b)
        codecs = (
            merge_v3(first, second)
            if first is not None and second is not None
            else (second if first is None else first)
        )
        return _codec_json(codecs)


def _domain(shape: tuple[int, ...], labels: tuple[str, ...] | None) -> IndexDomain:
    return IndexDomain(shape=shape, labels=labels, implicit_upper_bounds=[True] * len(shape))


def _labels(constraints: Zarr3Constraints) -> tuple[str, ...] | None:
    names = constraints.dimension_names
    return None if names is None else tuple(name or "" for name in names)


def _is_sharded(codecs: tuple[NamedConfiguration, ...] | None) -> bool:
    return any(codec.name == "sharding_indexed" for codec in codecs or ())


def _codec_json(codecs: tuple[NamedConfiguration, ...] | None) -> dict[str, JsonValue]:
    value: dict[str, JsonValue] = {"driver": "zarr3"}
    if codecs is not None:
        value["codecs"] = [codec.to_json() for codec in codecs]
    return value


def _codec_spec(codecs: tuple[NamedConfiguration, ...] | None) -> CodecSpec:
    return CodecSpec(_codec_json(codecs))


def _codecs_of(value: JsonValue) -> tuple[NamedConfiguration, ...] | None:
    members = Members(value)
    members.take("driver")
    codecs = members.take("codecs", None)
    members.finish()
    if codecs is None:
        return None
    return Zarr3Constraints.from_json({"codecs": expect_list(codecs)}).codecs


DRIVER = ChunkedKind(Zarr3Format())

_ANY_CODEC = CodecSpec({"driver": "zarr3"})
