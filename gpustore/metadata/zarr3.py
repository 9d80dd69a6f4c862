"""Zarr v3 array metadata: the document ``zarr.json``, and constraints on it in a spec.

:class:`Zarr3Metadata` is the content of a ``zarr.json``; reading and writing it back keeps
attributes and extension members. :class:`Zarr3Constraints` is the ``metadata`` of a spec, in which
every member is optional. Codecs are names and options here, which the codecs interpret.

Source: Zarr v3 core specification; TensorStore's zarr3 driver page. More forms of extensions are
read than TensorStore reads, see :mod:`gpustore.metadata.zarr3_member`; none are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self, TypeAlias

from gpustore.data_types.dtype import dtype as DataType
from gpustore.data_types.unit import Unit
from gpustore.errors import MetadataError, MismatchError
from gpustore.metadata.chunk_edges import ChunkEdges
from gpustore.metadata.chunk_key_encoding import ChunkKeyEncoding
from gpustore.metadata.data_type import V3DataType, data_type_to_json
from gpustore.metadata.document import (
    ZarrMetadata,
    check_chunk_nbytes,
    check_length,
    expect_equal,
    expect_subset,
    merge_mappings,
    merge_values,
)
from gpustore.metadata.fill_value import (
    FillValue,
    fill_value_array,
    parse_v3_fill_value,
    v3_fill_value_to_json,
)
from gpustore.metadata.named_configuration import NamedConfiguration, json_equal
from gpustore.metadata.zarr3_member import (
    parse_attributes,
    parse_dimension_units,
    parse_members,
)
from gpustore.runtime.limits import DEFAULT_LIMITS, Limits
from gpustore.strict_json.parsing import JsonValue, in_member

Codecs: TypeAlias = tuple[NamedConfiguration, ...]
DimensionNames: TypeAlias = tuple[str | None, ...]
DimensionUnits: TypeAlias = tuple[Unit | None, ...]
MergeCodecs: TypeAlias = Callable[[Codecs, Codecs], Codecs]

# A shard is not decoded as a whole; its codec checks the sizes of the inner chunks.
_SHARDING: Final = "sharding_indexed"


@dataclass(frozen=True, eq=False, kw_only=True)
class Zarr3Metadata(ZarrMetadata):
    """Content of a ``zarr.json`` of an array.

    Parameters
    ----------
    shape : tuple of int, length rank
        Extents in elements.
    data_type : dtype, or numpy.dtype of records and raw bits
        Type of the stored elements, in native byte order.
    chunk_shape : tuple of int, length rank
        Extents of a chunk (with sharding: of a shard) in elements; in a rectilinear grid the
        largest along each dimension.
    chunk_key_encoding : ChunkKeyEncoding
        Encoding of grid positions as keys of chunks.
    fill_value : numpy.ndarray of rank 0
        Value of elements never written, bit for bit.
    codecs : tuple of NamedConfiguration
        Codecs of chunks, in the order of encoding.
    attributes : mapping of str to JsonValue
        User attributes of the array, kept as they are. Not to be changed.
    dimension_names : tuple of (str or None), length rank, or None
        Names as stored; see :attr:`labels`.
    extensions : mapping of str to JsonValue
        Members that a reader need not understand, kept as they are. Not to be changed.
    chunk_edges : tuple of ChunkEdges, length rank, or None
        Chunk sizes along each dimension of a rectilinear grid; None if it is regular.

    Raises
    ------
    MetadataError
        If the lengths differ, or edges do not reach as far as the array.
    """

    document_name: ClassVar[str] = "zarr.json"
    invalid_json_status: ClassVar[str] = "DATA_LOSS"
    free_member: ClassVar[str] = "attributes"

    data_type: V3DataType
    chunk_shape: tuple[int, ...]
    fill_value: FillValue
    codecs: Codecs
    chunk_key_encoding: ChunkKeyEncoding = field(default_factory=ChunkKeyEncoding)
    attributes: Mapping[str, JsonValue] = field(default_factory=dict)
    dimension_names: DimensionNames | None = None
    extensions: Mapping[str, JsonValue] = field(default_factory=dict)
    chunk_edges: tuple[ChunkEdges, ...] | None = None

    def check_shape(self) -> None:
        """Raise MetadataError if the other members do not fit the shape."""
        rank = len(self.shape)
        names = self.dimension_names
        if len(self.chunk_shape) != rank or names is not None or self.attributes:
            _check_lengths(self, rank)
        for d, (edges, extent) in enumerate(zip(self.chunk_edges or (), self.shape)):
            if edges.total < extent:
                raise MetadataError(
                    f"Chunk edges of dimension {d} add up to {edges.total}, less than its extent "
                    f"of {extent}; edges of a rectilinear grid do not change, and only one that is "
                    f"a single integer has no end"
                )

    def __post_init__(self) -> None:
        self.check_shape()
        object.__setattr__(self, "fill_value", self._normal(self.fill_value))

    def _normal(self, fill_value: FillValue) -> FillValue:
        """Return a fill value in the form in which it is kept."""
        if isinstance(self.data_type, DataType):
            return fill_value_array(fill_value, self.data_type)
        return fill_value

    @classmethod
    def from_json(cls, value: JsonValue, *, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Validate parsed JSON.

        Raises
        ------
        MetadataError
            If it is not the metadata of an array.
        UnsupportedError
            If it uses an extension that is not supported.
        LimitError
            If the rank, the number of codecs or a chunk's size is beyond `limits`.
        """
        parsed = parse_members(value, limits=limits, is_stored=True)
        del parsed["zarr_format"], parsed["node_type"]
        metadata = cls(**parsed)
        metadata.check(limits)
        return metadata

    def check(self, limits: Limits) -> None:
        """Raise MetadataError or LimitError if a chunk is too large."""
        is_sharded = any(codec.name == _SHARDING for codec in self.codecs)
        with in_member("chunk_grid"), in_member("configuration"), in_member("chunk_shape"):
            itemsize = self.data_type.itemsize
            check_chunk_nbytes(self.chunk_shape, itemsize, limits, is_sharded=is_sharded)

    @classmethod
    def take_free(cls, document: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return {"attributes": document.pop("attributes")} if "attributes" in document else {}

    def parse_fill_value(self, value: JsonValue) -> FillValue:
        return parse_v3_fill_value(value, self.data_type)

    def parse_free(self, members: dict[str, JsonValue], limits: Limits) -> Mapping[str, JsonValue]:
        value = members.get("attributes", {})
        return parse_attributes(value, self.rank, limits, is_stored=True)

    @property
    def labels(self) -> tuple[str, ...]:
        """Dimension labels: all empty if the stored names are not distinct."""
        if self.dimension_names is None or not self.has_labels:
            return ("",) * self.rank
        return tuple(name or "" for name in self.dimension_names)

    @property
    def has_labels(self) -> bool:
        """Whether the stored names, if any, can be labels: no two are the same."""
        named = [name for name in self.dimension_names or () if name]
        return len(set(named)) == len(named)

    @property
    def dimension_units(self) -> DimensionUnits:
        """Unit of each dimension, None for a dimension without one."""
        units = parse_dimension_units(self.attributes)
        return (None,) * self.rank if units is None else units

    def to_json(self) -> dict[str, JsonValue]:
        """Return the document."""
        value: dict[str, JsonValue] = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": data_type_to_json(self.data_type),
            "chunk_grid": _chunk_grid(self.chunk_shape, self.chunk_edges),
            "chunk_key_encoding": self.chunk_key_encoding.to_json(),
            "fill_value": v3_fill_value_to_json(self.fill_value, self.data_type),
            "codecs": [codec.to_json() for codec in self.codecs],
        }
        if self.attributes:
            value["attributes"] = dict(self.attributes)
        if self.dimension_names is not None:
            value["dimension_names"] = list(self.dimension_names)
        return value | dict(self.extensions)

    def __hash__(self) -> int:
        return hash((self.shape, self.chunk_shape, self.data_type))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, kw_only=True)
class Zarr3Constraints:
    """Constraints in the ``metadata`` of a zarr3 spec: :class:`Zarr3Metadata`, or None members.

    `attributes` and `extensions` are constraints on the members they have, not on others.
    `codecs` may leave options, and the array -> bytes codec, to be chosen.
    """

    zarr_format: int | None = None
    node_type: str | None = None
    shape: tuple[int, ...] | None = None
    data_type: V3DataType | None = None
    chunk_shape: tuple[int, ...] | None = None
    chunk_key_encoding: ChunkKeyEncoding | None = None
    fill_value: FillValue | None = None
    codecs: Codecs | None = None
    attributes: Mapping[str, JsonValue] = field(default_factory=dict)
    dimension_names: DimensionNames | None = None
    extensions: Mapping[str, JsonValue] = field(default_factory=dict)
    chunk_edges: tuple[ChunkEdges, ...] | None = None

    def __post_init__(self) -> None:
        _check_lengths(self, self.rank)

    @classmethod
    def from_json(cls, value: JsonValue, pointer: str = "") -> Self:
        """Validate the ``metadata`` of a spec.

        Parameters
        ----------
        value : JsonValue
            The member.
        pointer : str
            JSON pointer of the member in the spec, ``"/metadata"``, for messages.

        Raises
        ------
        MetadataError
            If a member of it is unknown or not as expected.
        """
        return cls(**parse_members(value, limits=DEFAULT_LIMITS, is_stored=False, pointer=pointer))

    @property
    def rank(self) -> int | None:
        """Number of dimensions, None if no member tells it."""
        units = parse_dimension_units(self.attributes)
        for value in (self.shape, self.chunk_shape, self.dimension_names, units):
            if value is not None:
                return len(value)
        return None

    @property
    def dimension_units(self) -> DimensionUnits | None:
        """Unit of each dimension, None without a constraint on them."""
        return parse_dimension_units(self.attributes)

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        """Return the ``metadata`` of a spec, with ``node_type`` unless there is nothing else.

        `include_defaults` adds what a reader of the document assumes.
        """
        value: dict[str, JsonValue] = {}
        if self.zarr_format is not None:
            value["zarr_format"] = self.zarr_format
        if self.shape is not None:
            value["shape"] = list(self.shape)
        if self.data_type is not None:
            value["data_type"] = data_type_to_json(self.data_type)
            if self.fill_value is not None:
                value["fill_value"] = v3_fill_value_to_json(self.fill_value, self.data_type)
        if self.chunk_shape is not None:
            value["chunk_grid"] = _chunk_grid(self.chunk_shape, self.chunk_edges)
        if self.chunk_key_encoding is not None:
            value["chunk_key_encoding"] = self.chunk_key_encoding.to_json(
                include_defaults=include_defaults
            )
        if self.codecs is not None:
            value["codecs"] = [codec.to_json() for codec in self.codecs]
        if self.attributes:
            value["attributes"] = dict(self.attributes)
        if self.dimension_names is not None and any(n is not None for n in self.dimension_names):
            value["dimension_names"] = list(self.dimension_names)
        value |= self.extensions
        if value or include_defaults:
            value["node_type"] = "array"
        return value

    def merge(self, other: Zarr3Constraints, *, merge_codecs: MergeCodecs | None = None) -> Self:
        """Return the constraints of both specs.

        Parameters
        ----------
        other : Zarr3Constraints
            Constraints of the other spec.
        merge_codecs : callable, optional
            ``merge_codecs(a, b)`` merges two partial chains of codecs; without it they must be
            equal.

        Raises
        ------
        MismatchError
            If the constraints contradict each other.
        """

        def either(name: str, to_json: Callable[[Any], JsonValue]) -> Any:
            a, b = getattr(self, name), getattr(other, name)
            return merge_values(name, a, b, to_json, unset=None)

        data_type = either("data_type", data_type_to_json)
        return type(self)(
            zarr_format=either("zarr_format", int),
            node_type=either("node_type", str),
            shape=either("shape", list),
            data_type=data_type,
            chunk_shape=either("chunk_shape", list),
            chunk_key_encoding=either("chunk_key_encoding", ChunkKeyEncoding.to_json),
            fill_value=either("fill_value", lambda f: v3_fill_value_to_json(f, data_type)),
            codecs=_merge_codecs(self.codecs, other.codecs, merge_codecs),
            attributes=merge_mappings(self.attributes, other.attributes),
            dimension_names=either("dimension_names", list),
            extensions=merge_mappings(self.extensions, other.extensions),
            chunk_edges=either("chunk_edges", _edges_to_json),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Zarr3Constraints):
            return NotImplemented
        return json_equal(self.to_json(), other.to_json())

    def __hash__(self) -> int:
        return hash((self.shape, self.chunk_shape, self.data_type))


def validate(
    constraints: Zarr3Constraints,
    metadata: Zarr3Metadata,
    *,
    merge_codecs: MergeCodecs | None = None,
) -> None:
    """Raise MismatchError unless stored `metadata` satisfies `constraints`.

    Parameters
    ----------
    constraints : Zarr3Constraints
        Constraints of the spec.
    metadata : Zarr3Metadata
        Stored metadata.
    merge_codecs : callable, optional
        ``merge_codecs(stored, asked)`` raises if the codecs do not match. Without it codecs are not
        compared.

    Examples
    --------
    >>> stored = Zarr3Metadata.decode(
    ...     b'{"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "int8", '
    ...     b'"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}, '
    ...     b'"chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": ["bytes"]}'
    ... )
    >>> validate(Zarr3Constraints(shape=(5,)), stored)
    Traceback (most recent call last):
        ...
    gpustore.errors.MismatchError: FAILED_PRECONDITION: Expected "shape" of [5] but received: [4]
    """
    asked, stored = constraints.to_json(), metadata.to_json()
    for name in ("data_type", "fill_value", "shape"):
        if name in asked:
            expect_equal(name, asked[name], stored[name])
    if constraints.chunk_edges is not None or metadata.chunk_edges is not None:
        if "chunk_grid" in asked:
            expect_equal("chunk_grid", asked["chunk_grid"], stored["chunk_grid"])
    elif constraints.chunk_shape is not None:
        expect_equal("chunk_shape", list(constraints.chunk_shape), list(metadata.chunk_shape))
    if "chunk_key_encoding" in asked:
        expect_equal(
            "chunk_key_encoding", asked["chunk_key_encoding"], stored["chunk_key_encoding"]
        )
    if constraints.codecs is not None and merge_codecs is not None:
        try:
            merge_codecs(metadata.codecs, constraints.codecs)
        except (MetadataError, MismatchError) as error:
            raise MismatchError(f'Mismatch in "codecs": {error.text}') from error
    _validate_attributes(constraints, metadata)
    if constraints.dimension_names is not None:
        names = metadata.dimension_names or (None,) * metadata.rank
        expect_equal("dimension_names", list(constraints.dimension_names), list(names))
    expect_subset(constraints.extensions, metadata.extensions)


def _validate_attributes(constraints: Zarr3Constraints, metadata: Zarr3Metadata) -> None:
    units = constraints.dimension_units
    if units is not None:
        stored = metadata.dimension_units
        # Null in a spec is no constraint.
        same = len(units) == len(stored) and all(
            a is None or a == b for a, b in zip(units, stored, strict=True)
        )
        if not same:
            expect_equal("dimension_units", _units_to_json(units), _units_to_json(stored))
    others = {n: v for n, v in constraints.attributes.items() if n != "dimension_units"}
    try:
        expect_subset(others, metadata.attributes)
    except MismatchError as error:
        raise error.prefixed('Mismatch in "attributes"') from None


def _units_to_json(units: DimensionUnits) -> JsonValue:
    return [unit if unit is None else str(unit) for unit in units]


def _edges_to_json(edges: tuple[ChunkEdges, ...]) -> JsonValue:
    return [one.to_json() for one in edges]


def _chunk_grid(
    chunk_shape: tuple[int, ...], edges: tuple[ChunkEdges, ...] | None
) -> dict[str, JsonValue]:
    if edges is not None:
        inline = {"kind": "inline", "chunk_shapes": _edges_to_json(edges)}
        return {"name": "rectilinear", "configuration": inline}
    return {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}}


def _merge_codecs(
    a: Codecs | None, b: Codecs | None, merge_codecs: MergeCodecs | None
) -> Codecs | None:
    if merge_codecs is not None and a is not None and b is not None:
        return merge_codecs(a, b)
    return merge_values("codecs", a, b, lambda c: [codec.to_json() for codec in c], unset=None)


def _check_lengths(value: Zarr3Metadata | Zarr3Constraints, rank: int | None) -> None:
    units = parse_dimension_units(value.attributes)
    for name, entries in (
        ("shape", value.shape),
        ("chunk_shape", value.chunk_shape),
        ("dimension_names", value.dimension_names),
        ("dimension_units", units),
    ):
        if entries is not None and len(entries) != rank:
            with in_member(name):
                check_length(entries, rank)
