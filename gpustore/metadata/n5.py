"""N5 array metadata: the document ``attributes.json``, and constraints on it in a spec.

:class:`N5Metadata` is the content of an ``attributes.json``; reading and writing it back keeps the
user's attributes, which N5 has among the members of the array. :class:`N5Constraints` is the
``metadata`` of a spec, in which every member is optional.

Source: https://github.com/saalfeldlab/n5, "file-system specification"; TensorStore's n5 driver page
and ``driver/n5/metadata.cc``, from which ``axes``, ``units`` and ``resolution`` are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

from gpustore.data_types.dtype import dtype as DataType
from gpustore.data_types.dtype import from_json as dtype_from_json
from gpustore.data_types.unit import Unit
from gpustore.errors import MetadataError
from gpustore.index_space.bounds import check_labels
from gpustore.metadata.document import (
    ArrayMetadata,
    check_chunk_nbytes,
    check_length,
    expect_subset,
    parse_shape,
)
from gpustore.metadata.n5_compression import Compression, parse_compression
from gpustore.metadata.named_configuration import json_equal
from gpustore.runtime.limits import DEFAULT_LIMITS, Limits
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    Members,
    Required,
    at_position,
    expect_float,
    expect_list,
    expect_str,
    in_member,
)

DATA_TYPES: Final = (
    *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float32", "float64"),
)
"""Names of the data types of N5."""

_MAX_BLOCK_NBYTES: Final = 2**31

_OF_BLOCKS: Final = ("blockSize", "dataType", "compression")

MEMBERS: Final = frozenset((*_OF_BLOCKS, "dimensions", "axes", "units", "resolution"))
"""Names of the members that are no attributes of the user."""


def check_data_type(dtype: DataType) -> DataType:
    """Return `dtype`; MetadataError if N5 lacks it."""
    if dtype.name not in DATA_TYPES:
        raise MetadataError(
            f"{dtype.name} data type is not one of the supported data types: "
            f"{', '.join(DATA_TYPES)}"
        )
    return dtype


@dataclass(frozen=True, eq=False, kw_only=True)
class N5Metadata(ArrayMetadata):
    """Content of the ``attributes.json`` of an array.

    Parameters
    ----------
    shape : tuple of int, length rank
        Extents in elements, the member ``dimensions``.
    chunk_shape : tuple of int, length rank
        Extents of a whole block in elements, the member ``blockSize``.
    dtype : dtype
        Type of the elements, the member ``dataType``.
    compression : mapping
        Complete compression, see :mod:`gpustore.metadata.n5_compression`. Not to be changed.
    axes : tuple of str, length rank
        Labels of the dimensions, empty where they have none.
    units : tuple of str, length rank, or None
        Base unit of each dimension.
    resolution : tuple of float, length rank, or None
        Size of a step along each dimension, in its unit.
    extra : mapping of str to JsonValue
        Attributes of the user. Not to be changed.
    """

    document_name: ClassVar[str] = "attributes.json"
    invalid_json_status: ClassVar[str] = "FAILED_PRECONDITION"
    free_member: ClassVar[str] = "extra"

    chunk_shape: tuple[int, ...]
    dtype: DataType
    compression: Compression
    axes: tuple[str, ...]
    units: tuple[str, ...] | None = None
    resolution: tuple[float, ...] | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    def check_shape(self) -> None:
        """Raise MetadataError if the block has another rank than the array."""
        with in_member("blockSize"):
            check_length(self.chunk_shape, len(self.shape))

    @classmethod
    def from_json(cls, value: JsonValue, *, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Validate parsed JSON.

        Raises
        ------
        MetadataError
            If it is not the metadata of an array.
        LimitError
            If the rank or a block's size is beyond `limits`.
        """
        parsed = _parse(value, limits, REQUIRED)
        axes = parsed.pop("axes")
        metadata = cls(**parsed, axes=("",) * len(parsed["shape"]) if axes is None else axes)
        metadata.check(limits)
        return metadata

    def check(self, limits: Limits) -> None:
        """Raise MetadataError or LimitError if a block is too large."""
        if math.prod(self.chunk_shape) > _MAX_BLOCK_NBYTES // self.dtype.itemsize:
            sizes = ", ".join(map(str, self.chunk_shape))
            raise MetadataError(
                f'"blockSize" of {{{sizes}}} with data type of {self.dtype.name} exceeds maximum '
                f"chunk size of 2GB"
            )
        with in_member("blockSize"):
            check_chunk_nbytes(self.chunk_shape, self.dtype.itemsize, limits, is_sharded=False)

    @property
    def dimension_units(self) -> tuple[Unit | None, ...]:
        """Unit of a step along each dimension; None without ``units``."""
        return units_of(self.rank, self.units, self.resolution)

    def same_array(self, other: Self) -> bool:
        """Whether blocks of `other` are decoded in the same way; all else may differ."""
        ours, theirs = self.to_json(), other.to_json()
        same = all(json_equal(ours[name], theirs[name]) for name in _OF_BLOCKS)
        return same and len(self.shape) == len(other.shape)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the document."""
        return _to_json(self)

    def __hash__(self) -> int:
        return hash((self.shape, self.chunk_shape, self.dtype))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, kw_only=True)
class N5Constraints:
    """Constraints in the ``metadata`` of an n5 spec: :class:`N5Metadata`, or None members."""

    shape: tuple[int, ...] | None = None
    chunk_shape: tuple[int, ...] | None = None
    dtype: DataType | None = None
    compression: Compression | None = None
    axes: tuple[str, ...] | None = None
    units: tuple[str, ...] | None = None
    resolution: tuple[float, ...] | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: JsonValue) -> Self:
        """Validate the ``metadata`` of a spec.

        Raises
        ------
        MetadataError
            If a member is not as expected.
        """
        return cls(**_parse(value, DEFAULT_LIMITS, None))

    @property
    def rank(self) -> int | None:
        """Number of dimensions, None if no member tells it."""
        for value in (self.shape, self.chunk_shape, self.axes, self.units, self.resolution):
            if value is not None:
                return len(value)
        return None

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        """Return the ``metadata`` of a spec, which are the same with defaults."""
        del include_defaults
        return _to_json(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, N5Constraints):
            return NotImplemented
        return json_equal(self.to_json(), other.to_json())

    def __hash__(self) -> int:
        return hash((self.shape, self.chunk_shape, self.dtype))


def validate(constraints: N5Constraints, metadata: N5Metadata) -> None:
    """Raise MismatchError unless stored `metadata` satisfies `constraints`."""
    asked, stored = constraints.to_json(), metadata.to_json()
    if constraints.axes is not None:
        asked["axes"], stored["axes"] = list(constraints.axes), list(metadata.axes)
    expect_subset(asked, stored)


def units_of(
    rank: int, units: Sequence[str] | None, resolution: Sequence[float] | None
) -> tuple[Unit | None, ...]:
    """Return the unit of each of `rank` dimensions, None for all without ``units``."""
    if units is None:
        return (None,) * rank
    sizes = (1.0,) * rank if resolution is None else resolution
    return tuple(Unit(size, unit) for size, unit in zip(sizes, units, strict=True))


def _to_json(value: N5Metadata | N5Constraints) -> dict[str, JsonValue]:
    axes, dtype = value.axes, value.dtype
    members: dict[str, JsonValue] = {
        "dimensions": None if value.shape is None else list(value.shape),
        "blockSize": None if value.chunk_shape is None else list(value.chunk_shape),
        "dataType": None if dtype is None else dtype.name,
        "compression": None if value.compression is None else dict(value.compression),
        "axes": list(axes) if axes is not None and any(axes) else None,
        "units": None if value.units is None else list(value.units),
        "resolution": None if value.resolution is None else list(value.resolution),
    }
    return {**{k: v for k, v in members.items() if v is not None}, **value.extra}


def _parse(value: JsonValue, limits: Limits, default: Required | None) -> dict[str, Any]:
    """Take all members; those of an array are required if `default` is REQUIRED."""
    members = Members(value, integral_floats=True)
    rank: int | None = None

    def sized(minimum: int) -> Callable[[JsonValue], tuple[int, ...]]:
        return lambda value: parse_shape(
            value, minimum, rank=rank, max_rank=limits.rank, integral_floats=True
        )

    def each(convert: Callable[[JsonValue], Any]) -> Callable[[JsonValue], tuple[Any, ...]]:
        def parsed(value: JsonValue) -> tuple[Any, ...]:
            items = expect_list(value)
            if len(items) > limits.rank:
                raise MetadataError(f"Rank {len(items)} is outside valid range [0, {limits.rank}]")
            check_length(items, rank)
            found = []
            for index, item in enumerate(items):
                with at_position(index):
                    found.append(convert(item))
            return tuple(found)

        return parsed

    def labels(value: JsonValue) -> tuple[str, ...]:
        found: tuple[str, ...] = each(expect_str)(value)
        check_labels(found)
        return found

    taken: dict[str, Any] = {}
    for name, member, convert, otherwise in (
        ("shape", "dimensions", sized(0), default),
        ("chunk_shape", "blockSize", sized(1), default),
        ("dtype", "dataType", _data_type, default),
        ("compression", "compression", parse_compression, default),
        ("axes", "axes", labels, None),
        ("units", "units", each(expect_str), None),
        ("resolution", "resolution", each(expect_float), None),
    ):
        found: Any = members.take_with(member, convert, otherwise)
        taken[name] = found
        if rank is None and found is not None and isinstance(found, tuple):
            rank = len(found)
    taken["extra"] = {name: members.take(name) for name in members.names()}
    return taken


def _data_type(value: JsonValue) -> DataType:
    return check_data_type(dtype_from_json(value))
