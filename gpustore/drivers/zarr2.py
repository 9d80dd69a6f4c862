"""The ``zarr2`` driver (also ``zarr``): Zarr v2 arrays.

JSON example::

    {"driver": "zarr2", "kvstore": "file:///data/x.zarr/", "metadata": {"dtype": "<u2"}}

Source: Zarr v2 specification; TensorStore's zarr2 driver page.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpustore.codec_chain.compressor import complete_v2, merge_v2, parse_v2
from gpustore.codec_chain.filter import merge_filters, parse_filters
from gpustore.codec_chain.resolve import resolve_v2, v2_inner_order
from gpustore.drivers._metadata_member import MetadataMember
from gpustore.drivers.chunked_spec import ChunkedKind
from gpustore.drivers.format import (
    OPAQUE,
    ArrayDescription,
    AttributesPlace,
    SchemaWords,
    check_codec_chunk,
    check_dtype,
    check_rank,
    constrain_rank,
    created_domain,
    merge_codec,
    with_zarr_domain,
    zarr_domain,
)
from gpustore.drivers.selection import (
    NO_SELECTION,
    Selection,
    fill_of_component,
    fill_to_element,
    is_shown,
    stored_element,
)
from gpustore.errors import MetadataError, MismatchError, prefixing
from gpustore.metadata.component import Component
from gpustore.metadata.data_type import v2_dtype_to_json
from gpustore.metadata.object_type import OBJECT_CODECS, is_object, object_dtype
from gpustore.metadata.zarr2 import Zarr2Constraints, Zarr2Metadata, validate
from gpustore.metadata.zarr2_member import UNSET, Unset
from gpustore.runtime.limits import Limits
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.chunk_shape import choose_single_chunk_shape
from gpustore.schema.codec_spec import CodecSpec
from gpustore.strict_json.parsing import JsonValue, Members


@dataclass(frozen=True, slots=True)
class Zarr2Format(MetadataMember):
    """Translates between ``.zarray`` documents and array descriptions.

    Attributes
    ----------
    selection : Selection
        Part of each stored element to open.
    """

    selection: Selection = NO_SELECTION

    id = "zarr2"
    zarr_format = 2
    json_id = "zarr"
    words = SchemaWords(
        dtype="dtype",
        rank="Rank is {stored}, but schema specifies rank of {schema}",
        domain="domain from metadata does not match domain in schema",
        status="",
        stored_first=True,
        has_units=False,
    )
    metadata_class = Zarr2Metadata
    metadata_key = ".zarray"
    attributes_place = AttributesPlace(key=".zattrs")
    has_components = True
    no_constraints = Zarr2Constraints()

    def selecting(self, selection: Selection) -> Zarr2Format:
        """Return the format for another part of each stored element."""
        return self if selection == self.selection else Zarr2Format(selection)

    def component(self, metadata: Zarr2Metadata) -> Component:
        """Return the opened part of each stored element."""
        found: Component | None = metadata.derived.get(self)
        if found is None:
            found = metadata.derived[self] = self.selection.of(metadata.dtype)
        return found

    def constraints(self, value: JsonValue) -> Zarr2Constraints:
        """Parse the ``metadata`` member of a spec."""
        constraints = Zarr2Constraints.from_json(value)
        if not isinstance(constraints.compressor, Unset):
            # Its options that are left out have their defaults, as in the arrays that it allows.
            compressor = parse_v2(constraints.compressor, stored=False)  # Raises MetadataError.
            constraints = dataclasses.replace(constraints, compressor=compressor)
        if not isinstance(constraints.filters, Unset):
            parse_filters(constraints.filters, stored=False)  # Raises MetadataError.
        return constraints

    def constraints_of(self, metadata: Zarr2Metadata) -> Zarr2Constraints:
        """Return constraints that only these metadata fulfil; unknown members are left out."""
        compressor = parse_v2(metadata.compressor, stored=True)  # Its options in a spec.
        filters = tuple(parse_filters(metadata.filters, stored=True)) or None
        known = dataclasses.replace(metadata, compressor=compressor, filters=filters, extra={})
        return self.constraints(known.to_json())

    def take_constraints(self, members: Members) -> Zarr2Constraints:
        """Take ``metadata``, and ``key_encoding``, an older name of its ``dimension_separator``."""
        # Without arguments super() does not find the class: slots made it anew.
        constraints: Zarr2Constraints = MetadataMember.take_constraints(self, members)
        separator = members.take_str("key_encoding", None, choices=(".", "/"))
        if separator is not None:
            constraints = constraints.merge(self.constraints({"dimension_separator": separator}))
        return constraints

    def take_options(self, members: Members) -> dict[str, JsonValue]:
        """Take ``metadata_key``."""
        key = members.take_str("metadata_key", default=self.metadata_key)
        return {} if key == self.metadata_key else {"metadata_key": key}

    def describe(self, metadata: Zarr2Metadata, *, limits: Limits) -> ArrayDescription:
        """Return the array that `metadata` describe."""
        rank, encoding = metadata.rank, metadata.chunk_key_encoding
        component = self.component(metadata)
        check_rank(rank + component.rank)
        chain = resolve_v2(
            metadata.compressor,
            metadata.filters,
            component,
            metadata.chunks,
            metadata.order,
            limits=limits,
        )
        chunk_shape = metadata.chunks + component.shape
        fill, blank = fill_of_component(component, metadata.dtype, metadata.fill_value)
        return ArrayDescription(
            shape=metadata.shape + component.shape,
            chunk_shape=chunk_shape,
            dtype=component.dtype,
            fill_value=fill,
            read_shape=chunk_shape,
            levels=(),
            chain=chain,
            inner_order=chain.inner_order,
            key_prefix=encoding.prefix if rank else encoding.scalar_key,
            key_separator=encoding.separator,
            labels=("",) * len(chunk_shape),
            units=(None,) * len(chunk_shape),
            codec_json={"driver": self.json_id, **chain.to_json()},
            inner_rank=component.rank,
            blank=blank,
        )

    def redescribe(
        self, metadata: Zarr2Metadata, first: ArrayDescription, *, limits: Limits
    ) -> ArrayDescription:
        """Return the array that `metadata` describe; codecs are those of `first`."""
        del limits
        component = self.component(metadata)
        fill, blank = fill_of_component(component, metadata.dtype, metadata.fill_value)
        shape = metadata.shape + component.shape
        return first.with_members(shape=shape, fill_value=fill, blank=blank)

    def validate(self, constraints: Zarr2Constraints, metadata: Zarr2Metadata) -> None:
        """Compare stored metadata with the caller's constraints."""
        validate(
            constraints,
            metadata,
            complete_compressor=lambda value: parse_v2(value, stored=True) or {},
            complete_filters=lambda value: parse_filters(value, stored=True),
        )

    def completed(self, constraints: Zarr2Constraints, metadata: Zarr2Metadata) -> Zarr2Metadata:
        """Return the metadata with the ``dimension_separator`` of the spec if the document has
        none, as in TensorStore.
        """
        if metadata.dimension_separator is None and constraints.dimension_separator == "/":
            return dataclasses.replace(metadata, dimension_separator="/")
        return metadata

    def constrained(self, constraints: Zarr2Constraints, schema: Schema) -> Schema:
        """Merge `constraints` into `schema`."""
        merged = schema.copy()
        stored = constraints.dtype
        inner: tuple[int, ...] = ()
        fill: Any = constraints.fill_value
        if not isinstance(stored, Unset):
            component = self.selection.of(stored)
            inner = component.shape
            merged.set_dtype(component.dtype)
            if isinstance(fill, np.ndarray) and not is_shown(component, stored):
                fill = component.of(stored_element(fill, stored))
            _constrain_shape(constraints, merged, inner)
        elif (
            merged.dtype is not None
            and self.selection == NO_SELECTION
            and merged.dtype.name not in OPAQUE
        ):
            check_dtype(merged.dtype)
            _constrain_shape(constraints, merged, inner)
        else:
            # The data type may add dimensions: the metadata do not tell the rank.
            constrain_rank(merged, 0)
        if not isinstance(fill, Unset) and fill is not None:
            merged.update(fill_value=fill)
        # Null is no constraint in a codec spec; here it is one, but not one that TensorStore shows.
        filters = UNSET if constraints.filters is None else constraints.filters
        merge_codec(merged, _codec_spec(constraints.compressor, filters))
        return with_zarr_domain(merged, self.words, len(inner))

    def create(
        self, constraints: Zarr2Constraints, merged: Schema, *, limits: Limits
    ) -> Zarr2Metadata:
        """Return new metadata that fulfil both constraints."""
        stored = constraints.dtype
        self.selection.check_dtype(None if isinstance(stored, Unset) else stored)
        dtype = merged.dtype
        if dtype is None:
            raise MetadataError('"dtype" must be specified')
        if isinstance(stored, Unset):
            if dtype.name in OPAQUE:
                raise MetadataError(f"Data type not supported: {dtype.name}")
            stored = object_dtype(dtype) if is_object(dtype) else dtype.array_dtype
        component = self.selection.of(stored)
        domain = created_domain(merged)
        rank = domain.rank - component.rank
        if merged.dimension_units is not None and any(merged.dimension_units):
            raise MetadataError("Dimension units not supported by zarr driver")
        layout = merged.chunk_layout
        check_codec_chunk(layout)
        chunks = choose_single_chunk_shape(layout.read_write_chunk(), domain)
        order = constraints.order
        if isinstance(order, Unset):
            c_order, f_order = (v2_inner_order(rank, component.rank, o) for o in "CF")
            inner = layout.inner_order or layout.inner_order_soft_constraint
            order = "F" if inner == f_order and rank > 1 else "C"
            if layout.inner_order is not None and inner not in (c_order, f_order):
                axes = ", ".join(map(str, layout.inner_order))
                raise MetadataError(f'Invalid "inner_order" constraint: {{{axes}}}')
        fill = constraints.fill_value
        if isinstance(fill, Unset):
            fill = merged.fill_value
            if fill is not None:
                with prefixing("Invalid fill_value"):
                    fill = fill_to_element(fill, stored, component, v2_dtype_to_json(stored))
        elif fill is None and merged.fill_value is not None:
            raise MismatchError(
                f"Invalid fill_value: schema requires fill value of {merged.fill_value}, but "
                f"metadata specifies no fill value",
                status="",
            )
        separator = constraints.dimension_separator
        compressor, filters = _completed(merged.codec)
        if is_object(dtype) and filters is None and isinstance(constraints.filters, Unset):
            filters = ({"id": OBJECT_CODECS[dtype.name]},)
        if filters is not None and constraints.filters is None:
            raise MismatchError(f'"filters" does not match: null vs {merged.codec}', status="")
        metadata = Zarr2Metadata(
            shape=tuple(domain.shape[:rank]),
            chunks=chunks[:rank],
            dtype=stored,
            compressor=compressor,
            fill_value=fill,
            order=order,
            filters=filters,
            dimension_separator="." if isinstance(separator, Unset) else separator,
        )
        metadata.check(limits)
        return metadata

    def merge_codec(self, a: JsonValue, b: JsonValue) -> JsonValue:
        """Merge the JSON of two codec specs of this driver."""
        (compressor, filters), (other, more) = _codecs_of(a), _codecs_of(b)
        return _codec_json(merge_v2(compressor, other), merge_filters(filters, more))


def _constrain_shape(constraints: Zarr2Constraints, schema: Schema, inner: tuple[int, ...]) -> None:
    """Merge in what the metadata say about rank, domain, chunks and order; `inner` comes last."""
    if constraints.rank is not None:
        schema.update(rank=check_rank(constraints.rank + len(inner)))
    if not isinstance(constraints.shape, Unset):
        schema.update(domain=zarr_domain(constraints.shape, inner))
    rank = constrain_rank(schema, len(inner))
    chunks: tuple[int | None, ...] | None = None
    if not isinstance(constraints.chunks, Unset):
        chunks = constraints.chunks
    elif inner and rank is not None:
        chunks = (None,) * (rank - len(inner))
    if chunks is not None:
        schema.update(chunk_layout=ChunkLayout(chunk_shape=(*chunks, *inner)))
    if not isinstance(constraints.order, Unset) and rank is not None:
        order = v2_inner_order(rank - len(inner), len(inner), constraints.order)
        schema.update(chunk_layout=ChunkLayout(inner_order=order))


def _codec_json(compressor: Any, filters: Any) -> dict[str, JsonValue]:
    """Return the JSON of a codec spec; null among TensorStore's filters is no constraint."""
    value: dict[str, JsonValue] = {"driver": "zarr", "filters": None}
    if not isinstance(filters, Unset):
        value["filters"] = [dict(one) for one in filters]
    if not isinstance(compressor, Unset):
        value["compressor"] = None if compressor is None else dict(compressor)
    return value


def _codec_spec(compressor: Any, filters: Any) -> CodecSpec:
    return CodecSpec(_codec_json(compressor, filters))


def _codecs_of(value: JsonValue) -> tuple[Any, Any]:
    """Compressor and filters of a codec spec, UNSET where it says nothing."""
    members = Members(value)
    members.take("driver")
    compressor = members.take("compressor", UNSET)
    filters = members.take("filters", None)
    members.finish()
    constraints = {} if compressor is UNSET else {"compressor": compressor}
    parsed = Zarr2Constraints.from_json({**constraints, "filters": filters})
    return parsed.compressor, UNSET if filters is None else parsed.filters or ()


def _completed(codec: CodecSpec | None) -> tuple[Any, Any]:
    """Compressor and filters of a new array."""
    any_codec = CodecSpec({"driver": "zarr"})
    merged = any_codec if codec is None else any_codec.merged(codec)
    compressor, filters = _codecs_of(merged.to_json())
    return complete_v2(compressor), None if filters is UNSET else tuple(filters) or None


DRIVER = ChunkedKind(Zarr2Format())
