"""Zarr v2 array metadata: the document ``.zarray``, and constraints on it in a spec.

:class:`Zarr2Metadata` is the content of a ``.zarray``; reading and writing it back keeps unknown
members. :class:`Zarr2Constraints` is the ``metadata`` of a spec, in which every member is optional.
Compressor and filters are JSON objects here, which the codecs interpret.

Source: Zarr v2 specification, "Metadata"; TensorStore's zarr2 driver page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeAlias, cast

import numpy as np

from gpustore.data_types.dtype import of_elements
from gpustore.metadata.chunk_key_encoding import ChunkKeyEncoding
from gpustore.metadata.component import is_opaque
from gpustore.metadata.data_type import v2_dtype_to_json
from gpustore.metadata.document import (
    ZarrMetadata,
    check_chunk_nbytes,
    check_length,
    expect_equal,
    merge_values,
)
from gpustore.metadata.fill_value import (
    FillValue,
    fill_value_array,
    parse_v2_fill_value,
    v2_fill_value_to_json,
)
from gpustore.metadata.named_configuration import json_equal
from gpustore.metadata.object_type import object_type
from gpustore.metadata.zarr2_member import MEMBERS, UNSET, Codec, Unset, parse_members
from gpustore.runtime.limits import DEFAULT_LIMITS, Limits
from gpustore.strict_json.parsing import JsonValue, Members, in_member

Order: TypeAlias = Literal["C", "F"]
Separator: TypeAlias = Literal[".", "/"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Zarr2Metadata(ZarrMetadata):
    """Content of a ``.zarray``.

    Parameters
    ----------
    shape : tuple of int, length rank
        Extents in elements.
    chunks : tuple of int, length rank
        Extents of a chunk in elements.
    dtype : numpy.dtype
        Type of the stored elements, with their byte order.
    compressor : mapping or None
        Configuration with an ``id``, None without a compressor. Not to be changed.
    fill_value : numpy.ndarray of rank 0 or None
        Value of elements never written, native byte order; for records, strings and raw bytes the
        stored bytes. None if undefined (read as zero).
    order : {"C", "F"}
        Order of the elements in a chunk.
    filters : tuple of mapping or None
        Configurations with an ``id``, in the order of encoding; None without filters.
    dimension_separator : {".", "/"} or None
        Text between the indices of a chunk's key; None if the document has none, which means
        ``"."``.
    extra : mapping of str to JsonValue
        Unknown members, kept as they are. Not to be changed.

    Raises
    ------
    MetadataError
        If the lengths differ.
    """

    document_name: ClassVar[str] = ".zarray"
    invalid_json_status: ClassVar[str] = "FAILED_PRECONDITION"
    free_member: ClassVar[str] = "extra"

    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    compressor: Codec | None = None
    fill_value: FillValue | None = None
    order: Order = "C"
    filters: tuple[Codec, ...] | None = None
    dimension_separator: Separator | None = "."
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    def check_shape(self) -> None:
        """Raise MetadataError if the other members do not fit the shape."""
        if len(self.chunks) != len(self.shape):
            with in_member("chunks"):
                check_length(self.chunks, len(self.shape))

    def __post_init__(self) -> None:
        self.check_shape()
        object.__setattr__(self, "fill_value", self._normal(self.fill_value))

    def _normal(self, fill_value: Any) -> FillValue | None:
        """Return a fill value in the form in which it is kept."""
        if fill_value is None:
            return None
        if self.dtype.hasobject:
            return fill_value_array(fill_value, object_type(self.dtype))
        if is_opaque(self.dtype):
            return cast("FillValue", fill_value)
        # JSON has one NaN only; the value compared with must be the one that is written.
        given = fill_value_array(fill_value, of_elements(self.dtype))
        return parse_v2_fill_value(v2_fill_value_to_json(given, self.dtype), self.dtype)

    @classmethod
    def from_json(cls, value: JsonValue, *, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Validate parsed JSON.

        Raises
        ------
        MetadataError
            If it is not the metadata of an array.
        UnsupportedError
            If its data type is not supported.
        LimitError
            If the rank or a chunk's size is beyond `limits`.
        """
        members = Members(value)
        parsed = parse_members(members, limits=limits, is_stored=True)
        del parsed["zarr_format"]
        extra = {name: members.take(name) for name in filter(members.__contains__, value)}
        metadata = cls(**parsed, extra=extra)
        metadata.check(limits)
        return metadata

    def check(self, limits: Limits) -> None:
        """Raise MetadataError or LimitError if a chunk is too large."""
        with in_member("chunks"):
            check_chunk_nbytes(self.chunks, self.dtype.itemsize, limits, is_sharded=False)

    @classmethod
    def take_free(cls, document: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return {name: document.pop(name) for name in [*document] if name not in MEMBERS}

    def parse_fill_value(self, value: JsonValue) -> FillValue | None:
        parsed = parse_v2_fill_value(value, self.dtype)
        # Only of floating-point numbers can one value be written in several ways.
        return parsed if self.dtype.kind in "iub" else self._normal(parsed)

    def parse_free(self, members: dict[str, JsonValue], limits: Limits) -> Mapping[str, JsonValue]:
        del limits
        return members

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Extents of a chunk in elements, the member ``chunks``."""
        return self.chunks

    @property
    def chunk_key_encoding(self) -> ChunkKeyEncoding:
        """Encoding of grid positions as keys of chunks."""
        return ChunkKeyEncoding("v2", self.dimension_separator or ".")

    def to_json(self) -> dict[str, JsonValue]:
        """Return the document."""
        value: dict[str, JsonValue] = {
            "zarr_format": 2,
            "shape": list(self.shape),
            "chunks": list(self.chunks),
            "dtype": v2_dtype_to_json(self.dtype),
            "compressor": _compressor_to_json(self.compressor),
            "fill_value": v2_fill_value_to_json(self.fill_value, self.dtype),
            "order": self.order,
            "filters": _filters_to_json(self.filters),
        }
        if self.dimension_separator is not None:
            value["dimension_separator"] = self.dimension_separator
        return value | dict(self.extra)

    def __hash__(self) -> int:
        return hash((self.shape, self.chunks, self.dtype, self.order))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, kw_only=True)
class Zarr2Constraints:
    """Constraints in the ``metadata`` of a zarr2 spec: :class:`Zarr2Metadata`, or UNSET members."""

    zarr_format: int | Unset = UNSET
    shape: tuple[int, ...] | Unset = UNSET
    chunks: tuple[int, ...] | Unset = UNSET
    dtype: np.dtype[Any] | Unset = UNSET
    compressor: Codec | Unset | None = UNSET
    fill_value: FillValue | Unset | None = UNSET
    order: Order | Unset = UNSET
    filters: tuple[Codec, ...] | Unset | None = UNSET
    dimension_separator: Separator | Unset = UNSET

    def __post_init__(self) -> None:
        if not isinstance(self.shape, Unset) and not isinstance(self.chunks, Unset):
            with in_member("chunks"):
                check_length(self.chunks, len(self.shape))

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
        members = Members(value, pointer=pointer, integral_floats=True)
        parsed = parse_members(members, limits=DEFAULT_LIMITS, is_stored=False)
        members.finish()
        return cls(**parsed)

    @property
    def rank(self) -> int | None:
        """Number of dimensions, None if no member tells it."""
        for value in (self.shape, self.chunks):
            if not isinstance(value, Unset):
                return len(value)
        return None

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        """Return the ``metadata`` of a spec, which are the same with defaults."""
        del include_defaults
        return {
            name: to_json(value)
            for name, to_json in self._to_json().items()
            if not isinstance(value := getattr(self, name), Unset)
        }

    def _to_json(self) -> dict[str, Callable[[Any], JsonValue]]:
        """Return the conversion of each member to JSON, by name."""
        return {
            "zarr_format": int,
            "shape": list,
            "chunks": list,
            "dtype": v2_dtype_to_json,
            "compressor": _compressor_to_json,
            "fill_value": lambda value: v2_fill_value_to_json(
                value, cast("np.dtype[Any]", self.dtype)
            ),
            "order": str,
            "filters": _filters_to_json,
            "dimension_separator": str,
        }

    def merge(self, other: Zarr2Constraints) -> Self:
        """Return the constraints of both specs.

        Raises
        ------
        MismatchError
            If the constraints contradict each other.
        """
        merged = {
            name: merge_values(
                name, getattr(self, name), getattr(other, name), to_json, unset=UNSET
            )
            for name, to_json in self._to_json().items()
        }
        return type(self)(**merged)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Zarr2Constraints):
            return NotImplemented
        return json_equal(self.to_json(), other.to_json())

    def __hash__(self) -> int:
        return hash((self.shape, self.chunks, self.dtype, self.order))


def validate(
    constraints: Zarr2Constraints,
    metadata: Zarr2Metadata,
    *,
    complete_compressor: Callable[[Codec], Codec] | None = None,
    complete_filters: Callable[[Sequence[Codec]], Sequence[JsonValue]] | None = None,
) -> None:
    """Raise MismatchError unless stored `metadata` satisfies `constraints`.

    Parameters
    ----------
    constraints : Zarr2Constraints
        Constraints of the spec.
    metadata : Zarr2Metadata
        Stored metadata.
    complete_compressor, complete_filters : callable, optional
        Functions that add default options to the configurations before these are compared.

    Examples
    --------
    >>> stored = Zarr2Metadata(shape=(4,), chunks=(2,), dtype=np.dtype("<u2"))
    >>> validate(Zarr2Constraints(order="F"), stored)
    Traceback (most recent call last):
        ...
    gpustore.errors.MismatchError: FAILED_PRECONDITION: Expected "order" of "F" but received: "C"
    """
    asked, stored = constraints.to_json(), metadata.to_json()
    if metadata.dimension_separator is None:
        # The spec may give a separator that the document lacks.
        asked.pop("dimension_separator", None)
    if complete_compressor is not None:
        for value in (asked, stored):
            if value.get("compressor") is not None:
                value["compressor"] = dict(complete_compressor(value["compressor"]))
    if complete_filters is not None:
        for value in (asked, stored):
            if value.get("filters") is not None:
                value["filters"] = list(complete_filters(value["filters"]))
    for name, value in asked.items():
        expect_equal(name, value, stored[name])


def _compressor_to_json(compressor: Codec | None) -> JsonValue:
    return None if compressor is None else dict(compressor)


def _filters_to_json(filters: Sequence[Codec] | None) -> JsonValue:
    return None if filters is None else [dict(codec) for codec in filters]
