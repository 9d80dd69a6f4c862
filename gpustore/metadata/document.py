"""Metadata documents of arrays in both versions of the format: reading, shapes, chunk sizes.

Every size is computed in Python integers before anything is allocated, and every error names
the document.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, TypeVar

from gpustore.errors import GpustoreError, MetadataError, MismatchError
from gpustore.metadata.named_configuration import json_equal
from gpustore.runtime.limits import DEFAULT_LIMITS, Limits
from gpustore.strict_json.parsing import (
    INT64_MAX,
    JsonValue,
    at_position,
    dump,
    expect_int,
    expect_list,
    parse,
    quote,
    text,
)

T = TypeVar("T")

_MAX_INT: Final = INT64_MAX - 1
"""Largest integer that TensorStore accepts as an extent."""

_INT: Final = frozenset({int})

_MAX_EXTENT: Final = 2**62
"""Largest size of a dimension: its last index is ``inf``."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ArrayMetadata(abc.ABC):
    """Content of the metadata document of an array, in either version of the format.

    Attributes
    ----------
    shape : tuple of int, length rank
        Extents in elements.
    original : ArrayMetadata or None
        Metadata of which these were made by :meth:`with_shape` or :meth:`with_members`.
    derived : dict
        What was made of the original, by a key of whoever made it; all copies share it.
    """

    document_name: ClassVar[str]
    """Usual name of the document."""

    invalid_json_status: ClassVar[str]
    """TensorStore's status name of the error for a document that is no JSON."""

    free_member: ClassVar[str]
    """Name of the field, a mapping, that may change while the array is open."""

    shape: tuple[int, ...]
    original: Self | None = dataclasses.field(default=None, init=False, repr=False)
    derived: dict[Hashable, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    @abc.abstractmethod
    def check_shape(self) -> None:
        """Raise MetadataError if the other members do not fit the shape."""

    @classmethod
    @abc.abstractmethod
    def from_json(cls, value: JsonValue, *, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Validate parsed JSON.

        Raises
        ------
        MetadataError
            If it is not the metadata of an array.
        UnsupportedError
            If its data type, or an extension in it, is not supported.
        LimitError
            If a size is beyond `limits`.
        """

    @abc.abstractmethod
    def to_json(self) -> dict[str, JsonValue]:
        """Return the document."""

    @classmethod
    def decode(
        cls,
        data: bytes | bytearray | memoryview,
        *,
        where: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Self:
        """Parse the bytes of a document; `where` describes it in messages, by default its name.

        Raises
        ------
        MetadataError, UnsupportedError, LimitError
            As :meth:`from_json`, or if the bytes are no JSON; messages name `where`.
        """
        return read_document(
            data,
            lambda value: cls.from_json(value, limits=limits),
            name=cls.document_name,
            where=quote(cls.document_name) if where is None else where,
            limits=limits,
            invalid_json_status=cls.invalid_json_status,
        )

    def encode(self) -> bytes:
        """Return the bytes of the document: compact, members sorted, as TensorStore writes it."""
        return dump(self.to_json(), sort_keys=True, non_finite=True)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> Self:
        """Return the metadata of the array resized to `shape`, of the same rank.

        Raises
        ------
        MetadataError
            If the ranks differ, or edges of chunks do not reach as far.
        """
        return self.with_members(shape=tuple(shape))

    def with_members(self, **fields: Any) -> Self:
        """Return the metadata with other parsed values of the shape, the fill value or
        :attr:`free_member`; raises the errors of :meth:`with_shape`.
        """
        changed = object.__new__(type(self))
        vars(changed).update(vars(self), original=self.original or self, **fields)
        changed.check_shape()
        return changed

    @property
    def differs_in_shape(self) -> bool:
        """Whether nothing but the shape is another than that of :attr:`original`."""
        original = self.original
        if original is None:
            return False
        ours, theirs = vars(self), vars(original)
        name = self.free_member
        same_fill_value = ours.get("fill_value") is theirs.get("fill_value")
        return same_fill_value and ours[name] is theirs[name]

    def same_array(self, other: Self) -> bool:
        """Whether `other` describes the same array, perhaps resized.

        Metadata may differ only in extents and in :attr:`free_member`, as in TensorStore.
        """
        if len(other.shape) != len(self.shape):
            return False
        free: dict[str, Any] = {self.free_member: {}}
        ours = dataclasses.replace(self, **free)
        return ours == dataclasses.replace(other, shape=self.shape, **free)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.encode() == other.encode()

    @abc.abstractmethod
    def __hash__(self) -> int: ...


class ZarrMetadata(ArrayMetadata):
    """Content of a document of Zarr, whose members ``shape`` and ``fill_value`` others may have
    with other values.
    """

    @classmethod
    @abc.abstractmethod
    def take_free(cls, document: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Take the members that make :attr:`free_member` out of a parsed document."""

    @abc.abstractmethod
    def parse_fill_value(self, value: JsonValue) -> Any:
        """Return the field ``fill_value`` for another value of that member."""

    @abc.abstractmethod
    def parse_free(self, members: dict[str, JsonValue], limits: Limits) -> Mapping[str, JsonValue]:
        """Return the field :attr:`free_member` for other members of :meth:`take_free`."""


def read_document(
    data: bytes | bytearray | memoryview,
    from_json: Callable[[JsonValue], T],
    *,
    name: str,
    where: str,
    limits: Limits,
    invalid_json_status: str,
) -> T:
    """Parse stored metadata; messages begin with ``Error reading <where>``.

    NaN and infinities, which Python writes although they are not JSON, are read in ``attributes``
    and as the ``fill_value``: zarr-python reads and writes them, TensorStore refuses them.

    Parameters
    ----------
    data : bytes-like
        The stored document.
    from_json : callable
        ``from_json(value)`` is the result, from the parsed JSON.
    name : str
        Usual name of the document, e.g. ``"zarr.json"``.
    where : str
        Description of the document, as a kvstore describes a key: ``local file "/p/zarr.json"``.
    limits : Limits
        Limits of its length and depth.
    invalid_json_status : str
        Status name of the error if the document is no JSON; other errors of it have
        ``FAILED_PRECONDITION``.

    Returns
    -------
    object
        Result of `from_json`.

    Raises
    ------
    GpustoreError
        If the document is no JSON, and errors of `from_json`.
    """
    try:
        data = bytes(data)
        value = parse(
            data,
            where=name,
            max_nbytes=limits.metadata_nbytes,
            max_depth=limits.metadata_depth,
            status=invalid_json_status,
            non_finite=True,
        )
        if b"NaN" in data or b"Infinity" in data:
            value = with_json_numbers(value, name, invalid_json_status)
        return from_json(value)
    except GpustoreError as error:
        located = error.prefixed(f"Error reading {where}", key=where)
        if isinstance(located, MetadataError) and not located.status:
            located = type(located)(
                located.text, status="FAILED_PRECONDITION", key=located.key, codec=located.codec
            )
        raise located from error.__cause__


def with_json_numbers(document: JsonValue, name: str, status: str) -> JsonValue:
    """Return the document with NaN and infinities of `fill_value` as strings.

    Attributes keep theirs; anywhere else they are an error.
    """

    def checked(value: JsonValue, *, named: bool) -> JsonValue:
        if isinstance(value, float) and not math.isfinite(value):
            found = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            if named:
                return found
            raise MetadataError(
                f"Invalid JSON: not a finite float64: {found} (in {name})", status=status
            )
        if isinstance(value, list):
            return [checked(item, named=named) for item in value]
        if isinstance(value, dict):
            return {key: checked(item, named=named) for key, item in value.items()}
        return value

    if not isinstance(document, dict):
        return checked(document, named=False)
    return {
        member: value if member == "attributes" else checked(value, named=member == "fill_value")
        for member, value in document.items()
    }


def parse_shape(
    value: JsonValue,
    minimum: int,
    *,
    rank: int | None = None,
    max_rank: int = DEFAULT_LIMITS.rank,
    integral_floats: bool = False,
) -> tuple[int, ...]:
    """Parse an array of extents.

    Parameters
    ----------
    value : JsonValue
        The array.
    minimum : int
        Smallest entry allowed: 0 in shapes, 1 in chunk shapes.
    rank : int, optional
        Required length, if known.
    max_rank : int
        Greatest length.
    integral_floats : bool
        Whether ``3.0`` counts as 3.
    """
    extents = expect_list(value)
    if len(extents) > max_rank:
        raise MetadataError(f"Rank {len(extents)} is outside valid range [0, {max_rank}]")
    check_length(extents, rank)
    if _INT.issuperset(map(type, extents)):
        low, high = min(extents, default=minimum), max(extents, default=minimum)
        if minimum <= low and high <= _MAX_EXTENT:
            return tuple(extents)
    shape = []
    for index, extent in enumerate(extents):
        with at_position(index):
            shape.append(_extent(extent, minimum, integral_floats=integral_floats))
    return tuple(shape)


def without_zeros(chunk_shape: JsonValue, shape: Sequence[int]) -> JsonValue:
    """Return `chunk_shape` with 1 for each 0 along a dimension of extent 0.

    zarr-python writes such chunk shapes; no chunk of the array is stored, so any size will do.
    """
    if not isinstance(chunk_shape, list) or len(chunk_shape) != len(shape):
        return chunk_shape
    return [
        1 if size == 0 and n == 0 and n is not False else n for n, size in zip(chunk_shape, shape)
    ]


def _extent(value: JsonValue, minimum: int, *, integral_floats: bool) -> int:
    extent = expect_int(value, minimum, _MAX_INT, integral_floats=integral_floats)
    if extent > _MAX_EXTENT:
        raise MetadataError(f"(0, {extent}) do not specify a valid sized index interval")
    return extent


def check_length(value: Sequence[object], rank: int | None) -> None:
    """Raise MetadataError unless `value` has `rank` entries, if the rank is known."""
    if rank is not None and len(value) != rank:
        raise MetadataError(f"Array has length {len(value)} but should have length {rank}")


def check_chunk_nbytes(
    chunk_shape: Sequence[int], itemsize: int, limits: Limits, *, is_sharded: bool
) -> None:
    """Raise if a decoded chunk is too large.

    Parameters
    ----------
    chunk_shape : sequence of int
        Size of a chunk in elements.
    itemsize : int
        Bytes of an element.
    limits : Limits
        Limit of the bytes of a chunk.
    is_sharded : bool
        Whether the chunk is a shard, which is not decoded as a whole and has no such limit.

    Raises
    ------
    MetadataError
        If the number of bytes is no int64.
    LimitError
        If the number of bytes is beyond the limit.
    """
    nbytes = math.prod(chunk_shape) * itemsize
    if nbytes > INT64_MAX:
        dimensions = ", ".join(map(str, chunk_shape))
        raise MetadataError(
            f"Product of chunk dimensions {{{dimensions}}} is too large: with {itemsize} bytes "
            "an element it must be less than 2^63 bytes"
        )
    if not is_sharded:
        limits.check("chunk_nbytes", nbytes, f"Chunk of shape {text(list(chunk_shape))}")


def expect_equal(name: str, expected: JsonValue, found: JsonValue) -> None:
    """Raise MismatchError unless both JSON values are the same."""
    if not json_equal(expected, found):
        raise MismatchError(
            f"Expected {quote(name)} of {text(expected)} but received: {text(found)}"
        )


def expect_subset(expected: Mapping[str, JsonValue], found: Mapping[str, JsonValue]) -> None:
    """Raise MismatchError unless `found` has every member of `expected`, with the same value."""
    for name, value in expected.items():
        if name not in found:
            raise MismatchError(f"Expected {quote(name)} of {text(value)} but received: nothing")
        expect_equal(name, value, found[name])


def merge_values(name: str, a: T, b: T, to_json: Callable[[Any], JsonValue], *, unset: T) -> T:
    """Return the one of `a` and `b` that is not `unset`.

    Raises
    ------
    MismatchError
        If both are set and differ.
    """
    if a is unset:
        return b
    if b is not unset:
        expect_equal(name, to_json(a), to_json(b))
    return a


def merge_mappings(
    a: Mapping[str, JsonValue], b: Mapping[str, JsonValue]
) -> Mapping[str, JsonValue]:
    """Return the members of both mappings; MismatchError if a common member differs."""
    expect_subset({name: value for name, value in a.items() if name in b}, b)
    return {**a, **b}
