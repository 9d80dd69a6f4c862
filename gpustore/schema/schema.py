"""Schemas: constraints on all properties of an array but its storage.

A schema collects constraints from keywords, from specs and from metadata; merging is the
intersection of them, or an error. Indexing a schema gives the constraints on the indexed array.

Source: ``Schema`` of TensorStore (``tensorstore/schema.cc``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, cast

from gpustore.data_types.dtype import dtype as DataType
from gpustore.data_types.dtype import from_json as dtype_from_json
from gpustore.data_types.json_array import shape_text
from gpustore.data_types.unit import Unit, UnitLike
from gpustore.errors import MetadataError, prefixing
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.accessor import IndexAccessors
from gpustore.runtime.keyword_argument import as_int, expect_type, set_keywords, when_known
from gpustore.schema.chunk_constraint import MAX_RANK
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.codec_spec import CodecSpec
from gpustore.schema.domain_merge import merge_domains, merge_units
from gpustore.schema.fill_value import FillValue, check_broadcast
from gpustore.schema.schema_transform import SchemaParts, parts_to_input, parts_to_output
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    Members,
    at_position,
    expect_int,
    expect_list,
    from_python,
)
from gpustore.strict_json.repr import pretty

if TYPE_CHECKING:
    import numpy as np

    from gpustore.data_types.dtype import DTypeLike


# Layouts of schemas are replaced, never changed, so that copies share them.
_NO_LAYOUT: Final = ChunkLayout()


class SchemaKeywords(TypedDict, total=False):
    """Keywords of :class:`Schema`."""

    rank: int | None
    dtype: DTypeLike | None
    domain: IndexDomain | None
    shape: Iterable[int] | None
    chunk_layout: ChunkLayout | None
    codec: CodecSpec | None
    fill_value: Any
    dimension_units: Iterable[UnitLike | None] | None
    schema: Schema | None


class Schema(IndexAccessors):
    """Constraints on the properties of an array.

    Parameters
    ----------
    json : object, optional
        The JSON form. Excludes the keywords.
    rank : int, optional
        Number of dimensions.
    dtype : dtype, str, numpy.dtype or type, optional
        Data type of the elements.
    domain : IndexDomain, optional
        Bounds and labels; merged as TensorStore merges them.
    shape : iterable of int, length rank, optional
        Shape of a domain with origin 0, in elements.
    chunk_layout : ChunkLayout, optional
        Constraints on the chunks.
    codec : CodecSpec, optional
        Constraints on the encoding.
    fill_value : array_like, optional
        Value of elements never written; broadcast to the domain from the right.
    dimension_units : iterable of Unit, str, number, (number, str) or None, optional
        Physical unit of one step along each dimension.
    schema : Schema, optional
        More constraints to merge in.

    Raises
    ------
    MetadataError
        For constraints that are out of range or contradict each other.
    TypeError
        For values of the wrong type.

    Examples
    --------
    >>> Schema(dtype="uint8", shape=[100, 200])
    Schema({
      'domain': {'exclusive_max': [100, 200], 'inclusive_min': [0, 0]},
      'dtype': 'uint8',
      'rank': 2,
    })
    >>> Schema(rank=2)[5].rank
    1
    """

    __slots__ = (
        "__weakref__",
        "_chunk_layout",
        "_codec",
        "_domain",
        "_dtype",
        "_fill_value",
        "_rank",
        "_units",
    )
    __hash__ = None  # type: ignore[assignment]

    _rank: int | None
    _dtype: DataType | None
    _domain: IndexDomain | None
    _chunk_layout: ChunkLayout
    _codec: CodecSpec | None
    _fill_value: FillValue | None
    _units: tuple[Unit | None, ...] | None

    def __init__(self, json: Any = REQUIRED, **keywords: Unpack[SchemaKeywords]) -> None:
        given = cast("dict[str, Any]", keywords)
        self._rank = self._dtype = self._domain = self._codec = None
        self._fill_value = self._units = None
        self._chunk_layout = _NO_LAYOUT
        if json is not REQUIRED:
            if given:
                raise TypeError("Schema() takes either json or keywords, not both")
            self._load(from_python(json))
        elif given:
            self._update(given)

    def copy(self) -> Schema:
        """Return an independent copy."""
        other = Schema.__new__(Schema)
        other._assign(self)
        return other

    __copy__ = copy

    def _assign(self, other: Schema) -> None:
        self._rank = other._rank
        self._dtype = other._dtype
        self._domain = other._domain
        self._chunk_layout = other._chunk_layout
        self._codec = other._codec
        self._fill_value = other._fill_value
        self._units = other._units

    def update(self, **keywords: Unpack[SchemaKeywords]) -> None:
        """Merge in more constraints; the keywords are those of the constructor.

        If a keyword raises, no constraint is changed.
        """
        new = self.copy()
        new._update(cast("dict[str, Any]", keywords))
        self._assign(new)

    def merged(self, **keywords: Unpack[SchemaKeywords]) -> Schema:
        """Return a copy with more constraints; the keywords are those of the constructor."""
        new = self.copy()
        new._update(cast("dict[str, Any]", keywords))
        return new

    def _update(self, given: dict[str, Any]) -> None:
        set_keywords(self, _SETTERS, given, converters=_CONVERTERS)

    def without_elements(self) -> Schema:
        """Return a copy without data type and fill value."""
        new = self.copy()
        new._dtype = new._fill_value = None
        return new

    def without_fill_value(self) -> Schema:
        """Return a copy without fill value."""
        new = self.copy()
        new._fill_value = None
        return new

    def with_domain(self, domain: IndexDomain) -> Schema:
        """Return a copy with `domain`, of the same rank, in place of its own.

        The fill value is converted to the data type, and the units of all dimensions are known.

        Raises
        ------
        MetadataError
            If the fill value does not fit the domain or the data type.
        """
        new = self.copy()
        fill = self._fill_value
        if fill is not None and self._dtype is not None and fill.dtype is not self._dtype:
            new._fill_value = FillValue.from_array(fill.array, self._dtype)
        new._units = self.dimension_units
        new._domain = None
        new._update({"domain": domain})
        return new

    @property
    def is_empty(self) -> bool:
        """Whether the schema has no constraint."""
        return (
            self._rank is None
            and self._dtype is None
            and self._domain is None
            and self._codec is None
            and self._fill_value is None
            and self._units is None
            and (self._chunk_layout is _NO_LAYOUT or not self._chunk_layout.has_constraints)
        )

    # ---- merging, one constraint each

    def set_rank(self, rank: int, source: str) -> None:
        """Fix the number of dimensions; `source` names the argument that tells it, for messages."""
        if not 0 <= rank <= MAX_RANK:
            raise MetadataError(f"Rank {rank} is outside valid range [0, {MAX_RANK}]")
        if self._rank not in (None, rank):
            raise MetadataError(
                f"Rank specified by {source} ({rank}) does not match existing rank specified by "
                f"schema ({self._rank})"
            )
        if self._fill_value is not None and self._fill_value.rank > rank:
            raise MetadataError(
                f"Rank specified by {source} ({rank}) is incompatible with existing fill_value of "
                f"shape {shape_text(self._fill_value.shape)}"
            )
        self._rank = rank

    def set_dtype(self, dtype: DataType) -> None:
        """Fix the data type."""
        if self._dtype is not None and self._dtype is not dtype:
            raise MetadataError(
                f"Specified dtype ({dtype.name}) does not match existing value ({self._dtype.name})"
            )
        self._dtype = dtype

    def merge_domain(self, domain: IndexDomain) -> None:
        """Merge in bounds and labels."""
        self.set_rank(domain.rank, "domain")
        merged = merge_domains(self._domain, domain)
        if self._fill_value is not None:
            with prefixing("domain is incompatible with fill_value"):
                check_broadcast(self._fill_value.shape, merged.shape)
        self._domain = merged

    def _set_shape(self, values: Any) -> None:
        shape = [as_int(size) for size in values]
        self.set_rank(len(shape), "shape")
        self.merge_domain(IndexDomain(shape=shape))

    def merge_chunk_layout(self, layout: ChunkLayout) -> None:
        """Merge in constraints on the chunks."""
        if layout is _NO_LAYOUT:
            return
        merged = self._chunk_layout.merged(layout)
        if merged.rank != -1:
            self.set_rank(merged.rank, "chunk_layout")
        self._chunk_layout = merged

    def merge_codec(self, codec: CodecSpec) -> None:
        """Merge in constraints on the encoding."""
        self._codec = codec if self._codec is None else self._codec.merged(codec)

    def merge_fill_value(self, value: FillValue) -> None:
        """Fix the fill value."""
        if self._domain is not None:
            with prefixing("fill_value is incompatible with domain"):
                check_broadcast(value.shape, self._domain.shape)
        if self._rank is not None and self._rank < value.rank:
            raise MetadataError(f"Invalid fill_value for rank {self._rank}: {value}")
        if self._fill_value is None:
            self._fill_value = value
        elif not self._fill_value.same_as(value):
            raise MetadataError(
                f"Specified fill_value ({value}) does not match existing value in schema "
                f"({self._fill_value})"
            )

    def merge_units(self, units: tuple[Unit | None, ...]) -> None:
        """Merge in units; an empty sequence is no constraint."""
        if units:
            self.set_rank(len(units), "dimension_units")
            self._units = merge_units(self._units, units)

    def merge(self, other: Schema) -> None:
        """Merge in all constraints of `other`.

        Raises
        ------
        MetadataError, MismatchError
            If constraints contradict each other. This schema may then hold some of them; use
            :meth:`merged` to keep it whole.
        """
        if other._rank is not None:
            self.set_rank(other._rank, "rank")
        if other._dtype is not None:
            self.set_dtype(other._dtype)
        if other._domain is not None:
            self.merge_domain(other._domain)
        self.merge_chunk_layout(other._chunk_layout)
        if other._fill_value is not None:
            self.merge_fill_value(other._fill_value)
        if other._codec is not None:
            self.merge_codec(other._codec)
        if other._units is not None:
            self.merge_units(other._units)

    # ---- JSON

    def _load(self, json: JsonValue) -> None:
        members = Members(json, integral_floats=True)
        members.take_with("rank", self._load_rank, None)
        members.take_with("dtype", lambda v: self.set_dtype(dtype_from_json(v)), None)
        members.take_with("domain", self._load_domain, None)
        members.take_with("chunk_layout", self._load_chunk_layout, None)
        members.take_with("codec", lambda v: self.merge_codec(CodecSpec(v)), None)
        members.take_with("fill_value", self._load_fill_value, None)
        members.take_with("dimension_units", self._load_units, None)
        members.finish()

    def _load_rank(self, json: JsonValue) -> None:
        self.set_rank(expect_int(json, 0, MAX_RANK, integral_floats=True), "rank")

    def _load_domain(self, json: JsonValue) -> None:
        self.merge_domain(IndexDomain(json=json))

    def _load_chunk_layout(self, json: JsonValue) -> None:
        self.merge_chunk_layout(ChunkLayout(json))

    def _load_fill_value(self, json: JsonValue) -> None:
        self.merge_fill_value(FillValue.from_json(json, self._dtype))

    def _load_units(self, json: JsonValue) -> None:
        units: list[Unit | None] = []
        for i, unit in enumerate(expect_list(json)):
            with at_position(i):
                units.append(None if unit is None else Unit(json=unit))
        self.merge_units(tuple(units))

    def to_json(self, include_defaults: bool = False) -> JsonValue:
        """Return the JSON of the constraints, with defaults that of the layout's rank too."""
        json: dict[str, JsonValue] = {}
        if self._rank is not None:
            json["rank"] = self._rank
        if self._dtype is not None:
            json["dtype"] = self._dtype.to_json()
        if self._domain is not None:
            json["domain"] = self._domain.to_json()
        layout = self._chunk_layout.to_json()
        if not include_defaults:
            layout.pop("rank", None)  # The schema's own.
        if layout:
            json["chunk_layout"] = layout
        if self._codec is not None:
            json["codec"] = self._codec.to_json()
        if self._fill_value is not None:
            json["fill_value"] = self._fill_value.to_json()
        if self._units is not None and any(unit is not None for unit in self._units):
            json["dimension_units"] = [None if u is None else u.to_json() for u in self._units]
        return dict(sorted(json.items()))

    # ---- reading

    @property
    def rank(self) -> int | None:
        """Number of dimensions, None if it is not known."""
        return self._rank

    ndim = rank

    @property
    def dtype(self) -> DataType | None:
        """Data type of the elements, None if it is not known."""
        return self._dtype

    @property
    def domain(self) -> IndexDomain | None:
        """Bounds and labels, None if they are not known."""
        return self._domain

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of the domain in elements, None if the domain is not known."""
        return None if self._domain is None else self._domain.shape

    @property
    def origin(self) -> tuple[int, ...] | None:
        """Origin of the domain in elements, None if the domain is not known."""
        return None if self._domain is None else self._domain.origin

    @property
    def size(self) -> int | None:
        """Number of elements of the domain, None if the domain is not known."""
        return None if self._domain is None else self._domain.size

    @property
    def chunk_layout(self) -> ChunkLayout:
        """Copy of the constraints on the chunks."""
        return self._chunk_layout.copy()

    @property
    def has_chunk_shapes(self) -> bool:
        """Whether there are other constraints on the chunks than numbers of elements."""
        return self._chunk_layout.rank != -1

    @property
    def codec(self) -> CodecSpec | None:
        """Constraints on the encoding, None if there are none."""
        return self._codec

    @property
    def fill_value(self) -> np.ndarray[Any, np.dtype[Any]] | None:
        """Fill value as a read-only host array, unbroadcast; None if it is not known."""
        return None if self._fill_value is None else self._fill_value.array

    @property
    def dimension_units(self) -> tuple[Unit | None, ...] | None:
        """Unit of each dimension, None for an unknown one; None if the rank is not known."""
        if self._units is None and self._rank is not None:
            return (None,) * self._rank
        return self._units

    # ---- indexing

    @property
    def transform(self) -> IndexTransform:
        """Identity transform over the domain, which indexing composes with other transforms.

        Raises
        ------
        MetadataError
            If the rank is not known.
        """
        if self._rank is None:
            raise MetadataError("Cannot index a schema whose rank is not known; give it a rank")
        if self._domain is not None:
            return IndexTransform(self._domain)
        return IndexTransform(self._rank)

    def __getitem__(self, index: Any) -> Schema:
        """Return the schema of the indexed array.

        Parameters
        ----------
        index : NumPy-style indices, DimExpression, IndexTransform or IndexDomain
            Index expression, as of :class:`gpustore.IndexTransform`.

        Raises
        ------
        MetadataError
            If the rank is not known, or a constraint overflows.
        UnsupportedError
            If a fill value that is not a scalar would have to be gathered.
        """
        return self.transformed(self.transform[index])

    # Python would count up from 0 for ever to iterate over a schema.
    __iter__ = None

    def transformed(self, transform: IndexTransform) -> Schema:
        """Return these constraints on the output of `transform` as constraints on its input.

        Parameters
        ----------
        transform : IndexTransform
            Transform whose domain is that of the result if this schema has a domain.
        """
        return self._replaced(parts_to_input(self._parts(), transform))

    def inverse_transformed(self, transform: IndexTransform) -> Schema:
        """Return these constraints on the input of `transform` as constraints on its output."""
        return self._replaced(parts_to_output(self._parts(), transform))

    def _parts(self) -> SchemaParts:
        return SchemaParts(
            self._rank, self._domain, self._chunk_layout, self._fill_value, self._units
        )

    def _replaced(self, parts: SchemaParts) -> Schema:
        new = self.copy()
        new._rank, new._domain, new._chunk_layout, new._fill_value, new._units = parts
        return new

    def _accessed(self, name: str, index: Any) -> Schema:
        return self.transformed(getattr(self.transform, name)[index])

    def transpose(self, axes: Any = None) -> Schema:
        """Return the schema with its dimensions in the order `axes`, reversed by default."""
        return self.transformed(self.transform.transpose(axes))

    # ---- comparing

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        a, b = self._fill_value, other._fill_value
        same_fill = a is b if a is None or b is None else a.same_as(b)
        return same_fill and self._state() == other._state()

    def _state(self) -> tuple[object, ...]:
        return (
            self._rank,
            self._dtype,
            self._domain,
            self._chunk_layout,
            self._codec,
            self._units,
        )

    def __repr__(self) -> str:
        try:
            return pretty("Schema", self.to_json())
        except MetadataError:  # JSON has no form for a fill value of bytes.
            return "Schema(...)"


_SETTERS: Mapping[str, Callable[[Schema, Any], None]] = {
    "rank": lambda schema, v: when_known(as_int(v), lambda rank: schema.set_rank(rank, "rank")),
    "dtype": Schema.set_dtype,
    "domain": lambda schema, v: schema.merge_domain(expect_type(IndexDomain, v)),
    "shape": Schema._set_shape,
    "chunk_layout": lambda schema, v: schema.merge_chunk_layout(expect_type(ChunkLayout, v)),
    "codec": lambda schema, v: schema.merge_codec(expect_type(CodecSpec, v)),
    "fill_value": Schema.merge_fill_value,
    "dimension_units": lambda schema, v: schema.merge_units(_as_units(v)),
    "schema": lambda schema, v: schema.merge(expect_type(Schema, v)),
}

_CONVERTERS: Mapping[str, Callable[[Schema, Any], Any]] = {
    "dtype": lambda schema, value: _as_dtype(value),
    "fill_value": lambda schema, value: FillValue.from_array(value, schema._dtype),
}


def _as_dtype(value: Any) -> DataType:
    try:
        return DataType(value)
    except TypeError as error:
        raise TypeError(f"Invalid dtype: {value!r:.200}") from error


def _as_units(values: Any) -> tuple[Unit | None, ...]:
    return tuple(None if unit is None else Unit(unit) for unit in values)
