"""The ``zarr3`` driver: Zarr v3 arrays.

JSON example::

    {"driver": "zarr3", "kvstore": "file:///data/x.zarr/", "metadata": {"data_type": "uint16"}}

Source: Zarr v3 core specification; TensorStore's zarr3 driver page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.chain_spec import parse_chain, parse_v3, passed_over
from gpustore.codec_chain.merge import (
    complete_v3,
    inner_order_v3,
    merge_v3,
    read_chunk_shape_v3,
    shard_v3,
)
from gpustore.data_types.dtype import MORE_NUMBERS
from gpustore.data_types.unit import Unit
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
from gpustore.errors import MetadataError, prefixing
from gpustore.index_space import IndexDomain
from gpustore.metadata.chunk_edges import ChunkEdges
from gpustore.metadata.chunk_key_encoding import ChunkKeyEncoding
from gpustore.metadata.component import Component, is_opaque
from gpustore.metadata.data_type import V3DataType, data_type_to_json, native_dtype
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.metadata.object_type import empty_object, object_type
from gpustore.metadata.zarr3 import Zarr3Constraints, Zarr3Metadata, validate
from gpustore.metadata.zarr3_member import STORAGE_TRANSFORMERS
from gpustore.pipelines.rectilinear_grid import RectilinearGrid
from gpustore.runtime.limits import Limits
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.chunk_shape import choose_read_write_chunk_shapes, choose_single_chunk_shape
from gpustore.schema.codec_spec import CodecSpec
from gpustore.sharding.shard import resolve_codecs
from gpustore.sharding.shard_codec import ShardStage
from gpustore.strict_json.parsing import JsonValue, Members, expect_list, in_member


@dataclass(frozen=True, slots=True)
class Zarr3Format(MetadataMember):
    """Translates between ``zarr.json`` documents and array descriptions.

    Attributes
    ----------
    selection : Selection
        Part of each stored element to open.
    """

    selection: Selection = NO_SELECTION

    id = "zarr3"
    zarr_format = 3
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
    metadata_class = Zarr3Metadata
    metadata_key = "zarr.json"
    attributes_place = AttributesPlace(member="attributes", field="attributes")
    has_components = True
    no_constraints = Zarr3Constraints()

    def selecting(self, selection: Selection) -> Zarr3Format:
        """Return the format for another part of each stored element."""
        return self if selection == self.selection else Zarr3Format(selection)

    def component(self, metadata: Zarr3Metadata) -> Component:
        """Return the opened part of each stored element."""
        return self._element(metadata)[1]

    def _element(self, metadata: Zarr3Metadata) -> tuple[np.dtype[Any], Component]:
        """Return the type of stored elements, and the opened part of each."""
        found: tuple[np.dtype[Any], Component] | None = metadata.derived.get(self)
        if found is None:
            stored = _stored(metadata.data_type, metadata.codecs)
            found = metadata.derived[self] = stored, self.selection.of(stored)
        return found

    def constraints(self, value: JsonValue) -> Zarr3Constraints:
        """Parse the ``metadata`` member of a spec."""
        constraints = Zarr3Constraints.from_json(value)
        if constraints.codecs is None:
            return constraints
        # With names of codecs inside shards written out.
        return replace(constraints, codecs=parse_v3(constraints.codecs, stored=False))

    def constraints_of(self, metadata: Zarr3Metadata) -> Zarr3Constraints:
        """Return constraints that only these metadata fulfil, options with defaults included.

        Names that are no labels are left out: no array could be created with them.
        """
        members = metadata.to_json()
        members["codecs"] = [codec.to_json() for codec in parse_v3(metadata.codecs, stored=True)]
        members.pop(STORAGE_TRANSFORMERS, None)  # No array could be created with them either.
        if not metadata.has_labels:
            members.pop("dimension_names", None)
        return Zarr3Constraints.from_json(members)

    def describe(self, metadata: Zarr3Metadata, *, limits: Limits) -> ArrayDescription:
        """Return the array that `metadata` describe."""
        rank, encoding = metadata.rank, metadata.chunk_key_encoding
        stored, component = self._element(metadata)
        check_rank(rank + component.rank)

        def missing(dtype: np.dtype[Any]) -> bytes:
            element = dtype if is_shown(component, stored) else stored
            return bytes(stored_element(metadata.fill_value, element).tobytes())

        resolve = partial(
            resolve_codecs, metadata.codecs, component, limits=limits, missing=missing
        )
        codecs = resolve(metadata.chunk_shape)
        grid = None
        if metadata.chunk_edges is not None:
            inner_edges = tuple(map(ChunkEdges.regular, component.shape))
            grid = RectilinearGrid(metadata.chunk_edges + inner_edges, resolve, component.rank)
            if codecs.levels:
                divisor = codecs.levels[0].divisor
                grid.check_inner([n * size for n, size in zip(divisor, codecs.chunk_shape)])
            elif not parse_chain(metadata.codecs, stored=True).keeps_shape:
                grid.check_codecs()
        fill, blank = _fill_of(metadata, component, stored, codecs.chain)
        return ArrayDescription(
            shape=metadata.shape + component.shape,
            chunk_shape=metadata.chunk_shape + component.shape,
            dtype=component.dtype,
            fill_value=fill,
            read_shape=codecs.chunk_shape + component.shape,
            levels=codecs.levels,
            chain=codecs.chain,
            inner_order=codecs.chain.inner_order,
            key_prefix=encoding.prefix if rank else encoding.scalar_key,
            key_separator=encoding.separator,
            labels=metadata.labels + ("",) * component.rank,
            units=_units_of(metadata, component),
            codec_json={"driver": self.json_id, **codecs.chain.to_json()},
            inner_rank=component.rank,
            blank=blank,
            grid=grid,
            passed_over=passed_over(metadata.codecs) + _transformers(metadata),
        )

    def redescribe(
        self, metadata: Zarr3Metadata, first: ArrayDescription, *, limits: Limits
    ) -> ArrayDescription:
        """Return the array that `metadata` describe; codecs are those of `first`."""
        if any(isinstance(stage, ShardStage) for stage in first.chain.stages):
            return self.describe(metadata, limits=limits)  # They know the fill value.
        stored, component = self._element(metadata)
        fill, blank = _fill_of(metadata, component, stored, first.chain)
        return first.with_members(
            shape=metadata.shape + component.shape,
            fill_value=fill,
            blank=blank,
            units=_units_of(metadata, component),
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
        """Return the metadata unchanged: the document is complete."""
        del constraints
        return metadata

    def constrained(self, constraints: Zarr3Constraints, schema: Schema) -> Schema:
        """Merge `constraints` into `schema`."""
        merged = schema.copy()
        inner: tuple[int, ...] = ()
        fill: Any = constraints.fill_value
        if constraints.data_type is not None:
            stored = _stored(constraints.data_type, constraints.codecs or ())
            component = self.selection.of(stored)
            inner = component.shape
            merged.set_dtype(component.dtype)
            if fill is not None:
                fill, _ = fill_of_component(component, stored, fill)
        elif merged.dtype is not None and merged.dtype.name not in OPAQUE:
            check_dtype(merged.dtype, more=MORE_NUMBERS)
        if constraints.data_type is not None or self.selection == NO_SELECTION:
            # A data type may add dimensions: without one not even the rank is known.
            _constrain_shape(constraints, merged, inner)
        if fill is not None:
            merged.update(fill_value=fill)
        if constraints.codecs is None:
            merge_codec(merged, _ANY_CODEC)
        else:
            merge_codec(merged, _codec_spec(constraints.codecs))
        with prefixing(self.words.domain, status=self.words.status):
            return with_zarr_domain(merged, self.words, len(inner))

    def create(
        self, constraints: Zarr3Constraints, merged: Schema, *, limits: Limits
    ) -> Zarr3Metadata:
        """Return new metadata that fulfil both constraints."""
        data_type = constraints.data_type
        self.selection.check_dtype(data_type)
        dtype = merged.dtype
        if dtype is None:
            raise MetadataError("dtype must be specified")
        if data_type is None:
            check_dtype(dtype, more=MORE_NUMBERS)
            data_type = dtype
        element = native_dtype(data_type)
        component = self.selection.of(element)
        domain = created_domain(merged)
        rank = domain.rank - component.rank
        layout = merged.chunk_layout
        check_codec_chunk(layout)
        read, write = _chunk_shapes(constraints, layout, domain)
        codec = merged.codec or _ANY_CODEC
        if codec.driver != self.json_id:
            codec = _ANY_CODEC.merged(codec)  # Raises MetadataError.
        codecs = shard_v3(_codecs_of(codec.to_json()), read[:rank], write[:rank])
        inner_order = layout.inner_order or layout.inner_order_soft_constraint
        if inner_order is not None:
            if inner_order[rank:] != tuple(range(rank, domain.rank)):
                axes = ", ".join(map(str, inner_order))
                raise MetadataError(f'Invalid "inner_order" constraint: {{{axes}}}')
            inner_order = inner_order[:rank]
        fill = constraints.fill_value
        if fill is None and merged.fill_value is not None:
            with prefixing("Invalid fill_value"):
                json = data_type_to_json(data_type)
                fill = fill_to_element(merged.fill_value, element, component, json)
        metadata = Zarr3Metadata(
            shape=tuple(domain.shape[:rank]),
            data_type=data_type,
            chunk_shape=write[:rank],
            # Default: all bits zero, as not every type has a number zero.
            fill_value=_native_fill_value(fill, element),
            codecs=complete_v3(codecs, data_type, rank, inner_order=inner_order),
            chunk_key_encoding=constraints.chunk_key_encoding or ChunkKeyEncoding(),
            attributes={**constraints.attributes, **_units_attribute(merged, rank)},
            dimension_names=_dimension_names(constraints, domain, rank),
            extensions=dict(constraints.extensions),
            chunk_edges=constraints.chunk_edges,
        )
        metadata.check(limits)
        if constraints.chunk_edges is not None:
            self.describe(metadata, limits=limits).check(merged, self.words)
        read_shape = read_chunk_shape_v3(metadata.codecs, rank)
        if read_shape is not None:
            # The shape of shards is only known from the codecs.
            merged.merged(chunk_layout=ChunkLayout(read_chunk_shape=read_shape + component.shape))
        if constraints.codecs is not None:
            # Raises if the inner order needs a transpose that the given codecs do not have.
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


def _fill_of(
    metadata: Zarr3Metadata, component: Component, stored: np.dtype[Any], chain: CodecChain
) -> tuple[Any, Any]:
    """Return the result of :func:`fill_of_component`; MetadataError if the codecs refuse it."""
    fill, blank = fill_of_component(component, stored, metadata.fill_value)
    if fill is not None and component.is_element:
        with in_member("codecs"):
            chain.check_fill(fill)
    return fill, blank


def _units_of(metadata: Zarr3Metadata, component: Component) -> tuple[Unit | None, ...]:
    return metadata.dimension_units + (None,) * component.rank


def _stored(data_type: V3DataType, codecs: Sequence[NamedConfiguration]) -> np.dtype[Any]:
    """Return the type of stored elements; in native byte order if the codecs do not say which."""
    native = native_dtype(data_type)
    for codec in codecs:
        if codec.name == "bytes":
            endian = codec.configuration.get("endian")
            # A value that is no text may be unhashable; parsing the codec rejects it.
            if isinstance(endian, str):
                return native.newbyteorder(_ORDERS.get(endian, "="))
            return native
        if codec.name == "sharding_indexed":
            inner = codec.configuration.get("codecs") or []
            return _stored(data_type, NamedConfiguration.list_from_json(inner))
    return native


_ORDERS: dict[Any, Literal["<", ">"]] = {"little": "<", "big": ">"}


def _native_fill_value(fill: Any, element: np.dtype[Any]) -> Any:
    if element.hasobject:
        return empty_object(object_type(element)) if fill is None else fill
    if fill is None:
        return np.zeros((), element)
    if is_opaque(element) or element.subdtype is not None:
        return np.frombuffer(fill.tobytes(), element.base).reshape(element.shape)
    return fill


def _constrain_shape(constraints: Zarr3Constraints, schema: Schema, inner: tuple[int, ...]) -> None:
    """Merge in what the metadata say about dimensions, chunks and order; `inner` comes last."""
    if constraints.rank is not None:
        schema.update(rank=check_rank(constraints.rank + len(inner)))
    labels = _labels(constraints)
    if labels is not None:
        labels += ("",) * len(inner)
    if constraints.shape is not None:
        schema.update(domain=zarr_domain(constraints.shape, inner, labels))
    elif labels is not None:
        schema.update(domain=IndexDomain(inclusive_min=[0] * len(labels), labels=labels))
    if schema.rank == 0:
        schema.update(domain=IndexDomain(rank=0))
    units = constraints.attributes.get("dimension_units")
    if units is not None:
        schema.update(dimension_units=[*units, *(None for _ in inner)])
    rank = constrain_rank(schema, len(inner))
    if rank is not None and inner:
        sizes = (*(None for _ in range(rank - len(inner))), *inner)
        schema.update(chunk_layout=ChunkLayout(chunk_shape=sizes))
    codecs = constraints.codecs
    if constraints.chunk_shape is not None and constraints.chunk_edges is None:
        sizes = constraints.chunk_shape + inner
        schema.update(chunk_layout=ChunkLayout(write_chunk_shape=sizes))
        # Without codecs it may still turn out to be sharded, with smaller read chunks.
        if codecs is not None and not _is_sharded(codecs):
            schema.update(chunk_layout=ChunkLayout(read_chunk_shape=sizes))
    if codecs is None or rank is None:
        return
    outer = rank - len(inner)
    read_shape = read_chunk_shape_v3(codecs, outer)
    if read_shape is not None:
        schema.update(chunk_layout=ChunkLayout(read_chunk_shape=(*read_shape, *inner)))
    order = inner_order_v3(codecs, outer)
    if order is not None:
        order = (*order, *range(outer, rank))
        schema.update(chunk_layout=ChunkLayout(inner_order=order))


def _chunk_shapes(
    constraints: Zarr3Constraints, layout: ChunkLayout, domain: IndexDomain
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the innermost and of the outermost chunks of a new array."""
    if constraints.chunk_edges is not None:
        return _rectilinear_shapes(constraints)
    if constraints.codecs is None or _is_sharded(constraints.codecs):
        return choose_read_write_chunk_shapes(layout.read_chunk, layout.write_chunk, domain)
    # The codecs leave no room for shards.
    shape = choose_single_chunk_shape(layout.read_write_chunk(first="write"), domain)
    return shape, shape


def _units_attribute(schema: Schema, rank: int) -> dict[str, JsonValue]:
    """Return the attribute that says the units of the first `rank` dimensions, if any has one."""
    units = schema.dimension_units
    if units is None or all(unit is None for unit in units):
        return {}
    if any(unit is not None for unit in units[rank:]):
        raise MetadataError("Inner dimensions of a data type have no units in Zarr v3")
    return {"dimension_units": [None if unit is None else str(unit) for unit in units[:rank]]}


def _dimension_names(
    constraints: Zarr3Constraints, domain: IndexDomain, rank: int
) -> tuple[str | None, ...] | None:
    """Names of the first `rank` dimensions; None if none has one."""
    names = constraints.dimension_names
    if names is None:
        if any(domain.labels[rank:]):
            raise MetadataError("Inner dimensions of a data type have no names in Zarr v3")
        names = tuple(label or None for label in domain.labels[:rank])
    return None if all(name is None for name in names) else names


def _rectilinear_shapes(constraints: Zarr3Constraints) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the innermost and of the (largest) outermost chunks of a rectilinear grid.

    Raises
    ------
    MetadataError
        If there are shards whose inner chunks are left to be chosen: they must divide all edges.
    """
    assert constraints.chunk_shape is not None
    if not _is_sharded(constraints.codecs):
        return constraints.chunk_shape, constraints.chunk_shape
    read = read_chunk_shape_v3(constraints.codecs or (), len(constraints.chunk_shape))
    if read is None:
        raise MetadataError(
            'With a rectilinear chunk grid "chunk_shape" and "codecs" of sharding_indexed must be '
            "specified"
        )
    return read, constraints.chunk_shape


def _transformers(metadata: Zarr3Metadata) -> tuple[str, ...]:
    """Names of the storage transformers that are passed over."""
    stored = metadata.extensions.get(STORAGE_TRANSFORMERS, [])
    return tuple(named.name for named in NamedConfiguration.list_from_json(stored))


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
