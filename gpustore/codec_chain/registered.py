"""Registered codecs: what a module of ``gpustore/codecs`` defines as ``CODEC``.

:class:`Codec`, :class:`LayoutCodec`, :class:`ArrayCodec` and :class:`ShardCodec` hold the options
of an algorithm, their defaults, and its preparation; of codecs of bytes for Zarr v3 and for Zarr v2
(a :class:`CodecVariant` each).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from gpustore.codec_chain.base import BytesCodec
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.metadata.component import Component
from gpustore.metadata.data_type import V3DataType
from gpustore.metadata.named_configuration import json_equal
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    Members,
    Required,
    expect_bool,
    expect_int,
    expect_str,
)

Options = Mapping[str, JsonValue]
"""Validated options of one codec, by name, without those that were not given."""

ABSENT: Final = object()
"""Default of an option that is left out if it is not given."""

Convert = Callable[[JsonValue], JsonValue]


def integer(minimum: int, maximum: int) -> Convert:
    """Return the conversion of options that are integers; ``3.0`` is one, as in TensorStore."""

    def convert(value: JsonValue) -> int:
        return expect_int(value, minimum, maximum, integral_floats=True)

    return convert


def boolean(value: JsonValue) -> bool:
    """Convert an option that is true or false."""
    return expect_bool(value)


def choice(*choices: str) -> Convert:
    """Return the conversion of options that are one of `choices`."""

    def convert(value: JsonValue) -> str:
        return expect_str(value, choices=choices)

    return convert


def merge_equal(a: JsonValue, b: JsonValue) -> JsonValue:
    """Return `a` if `b` is the same JSON, None otherwise."""
    return a if json_equal(a, b) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a codec.

    Attributes
    ----------
    name : str
        Name of the member in the codec's JSON object.
    convert : callable
        ``convert(value)`` is the normalised value; it raises MetadataError for a wrong one.
    default : JsonValue
        Value in a new array; :data:`ABSENT` to leave the member out.
    stored_default : JsonValue
        Value of stored metadata without the member; ``REQUIRED`` if that is an error, `ABSENT` if
        it has no meaning.
    constraint_default : JsonValue
        Value of constraints without the member: by default none; ``REQUIRED`` if that is an error.
    convert_stored : callable, optional
        A more lenient `convert` for stored metadata, which other libraries may have written.
    merge : callable, optional
        ``merge(a, b)`` is the value that satisfies both, None if they contradict each other.
    """

    name: str
    convert: Convert
    default: JsonValue
    stored_default: JsonValue | Required = REQUIRED
    constraint_default: JsonValue | Required = ABSENT
    convert_stored: Convert | None = None
    merge: Callable[[JsonValue, JsonValue], JsonValue] = merge_equal


def fill_defaults(
    variant: CodecVariant, options: Options, itemsize: int | None
) -> dict[str, JsonValue]:
    """Return `options` with the default of every option that has a fixed one."""
    del itemsize
    defaults = {o.name: o.default for o in variant.options if o.default is not ABSENT}
    return {**defaults, **options}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecVariant:
    """Variant of a codec of bytes for one version of the format: its options and their defaults.

    Attributes
    ----------
    options : tuple of Option
    prepare : callable
        ``prepare(options, itemsize)`` is the stage for complete options. `itemsize` is the size
        of the elements before the stage in bytes, None if it is given bytes without elements.
    complete : callable
        ``complete(variant, options, itemsize)`` are the options of a new array with defaults.
    check_stored : callable, optional
        Raises MetadataError if stored options, each valid, do not go together.
    """

    options: tuple[Option, ...]
    prepare: Callable[[Options, int | None], BytesCodec]
    complete: Callable[[CodecVariant, Options, int | None], dict[str, JsonValue]] = fill_defaults
    check_stored: Callable[[Options], None] | None = None

    def parse(self, members: Members, *, stored: bool) -> dict[str, JsonValue]:
        """Validate options of stored metadata (strict) or of constraints (all optional)."""
        options = parse_options(self.options, members, stored=stored)
        if stored and self.check_stored is not None:
            self.check_stored(options)
        return options


def parse_options(
    options: tuple[Option, ...], members: Members, *, stored: bool
) -> dict[str, JsonValue]:
    """Take the values of `options` from `members`; MetadataError if other members are left."""
    parsed = {}
    for option in options:
        convert = (stored and option.convert_stored) or option.convert
        default = option.stored_default if stored else option.constraint_default
        value = members.take_with(option.name, convert, default)
        if value is not ABSENT:
            parsed[option.name] = value
    members.finish()
    return parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """Registered codec of bytes or of elements: one algorithm under all its names.

    Attributes
    ----------
    name : str
        Name in Zarr v3 and id in Zarr v2.
    v3, v2 : CodecVariant, ValueVariant or None
        Variant for Zarr v3, and as a compressor of Zarr v2; None if that version lacks the codec.
    filter : CodecVariant, ValueVariant or None
        Variant as a filter of Zarr v2, if it differs from `v2`. Zarr v3 also has the filters of
        Zarr v2, under the name ``numcodecs.<id>``.
    """

    kind: ClassVar[str] = "bytes -> bytes"
    name: str
    v3: Any = None
    v2: Any = None
    filter: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _CodecV3:
    """Registered codec that only Zarr v3 has, with its options."""

    name: str
    options: tuple[Option, ...]

    def parse(self, members: Members, *, stored: bool) -> dict[str, JsonValue]:
        """Validate options of stored metadata (strict) or of constraints (all optional)."""
        return parse_options(self.options, members, stored=stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCodec(_CodecV3):
    """Registered array -> bytes codec that does no work per chunk: it determines a layout.

    Attributes
    ----------
    name : str
        Name in Zarr v3. Zarr v2 has no such codecs.
    options : tuple of Option
    layout : callable
        ``layout(options, component, shape)`` is the :class:`ChunkBytes` for complete options;
        `shape` is that of the chunk without the inner dimensions of the component.
    complete : callable
        ``complete(options, itemsize)`` are the options of a new array with defaults.
    """

    kind: ClassVar[str] = "array -> bytes"
    layout: Callable[[Options, Component, tuple[int, ...]], ChunkBytes]
    complete: Callable[[Options, int], dict[str, JsonValue]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayCodec(_CodecV3):
    """Registered array -> array codec that permutes dimensions.

    Attributes
    ----------
    name : str
        Name in Zarr v3. Zarr v2 has no such codecs.
    options : tuple of Option
    order : callable
        ``order(options, rank)`` is a permutation: dimension ``order[i]`` of the decoded array is
        dimension i of the encoded one. Raises MetadataError for another rank.
    complete : callable
        ``complete(options, rank)`` are the options that a new array stores.
    """

    kind: ClassVar[str] = "array -> array"
    order: Callable[[Options, int], tuple[int, ...]]
    complete: Callable[[Options, int], dict[str, JsonValue]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCodec(_CodecV3):
    """Registered array -> bytes codec that stores a chunk as many inner chunks.

    Attributes
    ----------
    name : str
        Name in Zarr v3.
    options : tuple of Option
        ``chunk_shape``, ``codecs``, ``index_codecs`` and ``index_location``.
    complete : callable
        ``complete(options, dtype, rank, inner_order)`` are the options of a new array with
        defaults, except the shape of the inner chunks.
    """

    kind: ClassVar[str] = "array -> bytes"
    complete: Callable[[Options, V3DataType, int, tuple[int, ...] | None], dict[str, JsonValue]]
