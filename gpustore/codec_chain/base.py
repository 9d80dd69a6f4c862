"""What a codec is: named options, and the bytes -> bytes stage they prepare.

Three things carry the word:

:class:`Codec`, :class:`LayoutCodec` and :class:`ArrayCodec`
    What a module of this folder registers as ``CODEC``: an algorithm's options in Zarr v3 and in
    Zarr v2 (a :class:`CodecVariant` each), their defaults, and how to prepare it.
:class:`BytesCodec`
    One prepared bytes -> bytes stage of a chain.
:class:`ChunkBytes`
    What everything before those stages comes to. The codecs ``transpose`` and ``bytes``, Zarr v2's
    ``order`` and its byte order do no work per chunk: they only say where the bytes of which
    element are, and the copy between chunk and array does the rest.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np

from gpustore.codec_chain.encoded_columns import EncodedColumns
from gpustore.device.command_list import CommandList
from gpustore.device.protocol import Decoders, Device
from gpustore.errors import CorruptChunkError
from gpustore.metadata.component import Component
from gpustore.metadata.data_type import V3DataType
from gpustore.metadata.named_configuration import json_equal
from gpustore.resources.gpu_decode_trust import Distrust
from gpustore.runtime.buffer import Buffer
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
"""Validated options of one codec, by name; those not given are not in it."""


@dataclass(frozen=True, slots=True)
class ChunkBytes:
    """Where the elements of a decoded chunk are in its bytes.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the stored elements, with the stored byte order.
    shape : tuple of int
        Elements of a whole chunk along each array dimension.
    strides : tuple of int
        Bytes between neighbours along each array dimension.
    nbytes : int
        Bytes of a whole chunk.
    offset : int
        First byte of the first element.
    record : int
        Bytes of a stored element, if that is a record, a string or raw bytes of which `dtype` is
        a part; 0 if it is what `dtype` says.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int
    offset: int = 0
    record: int = 0

    @classmethod
    def contiguous(
        cls, dtype: np.dtype[Any], shape: tuple[int, ...], *, order: str = "C"
    ) -> ChunkBytes:
        """Elements without gaps, the last dimension innermost, or the first if `order` is F.

        >>> ChunkBytes.contiguous(np.dtype("<u2"), (3, 4)).strides
        (8, 2)
        >>> ChunkBytes.contiguous(np.dtype("<u2"), (3, 4), order="F").strides
        (2, 6)
        """
        strides = []
        nbytes = dtype.itemsize
        for size in shape if order == "F" else reversed(shape):
            strides.append(nbytes)
            nbytes *= size
        return cls(dtype, shape, tuple(strides if order == "F" else reversed(strides)), nbytes)

    @classmethod
    def of_component(
        cls, component: Component, shape: tuple[int, ...], *, order: str = "C"
    ) -> ChunkBytes:
        """A component of contiguous stored elements; `shape` is without its inner dimensions."""
        if component.is_element:
            return cls.contiguous(component.stored, shape, order=order)
        outer = cls.contiguous(np.dtype(f"V{component.nbytes}"), shape, order=order)
        inner = cls.contiguous(component.stored, component.shape)
        return cls(
            component.stored,
            (*shape, *component.shape),
            (*outer.strides, *inner.strides),
            outer.nbytes,
            component.offset,
            component.nbytes,
        )

    @property
    def is_dense(self) -> bool:
        """Whether all bytes of a chunk are elements."""
        return math.prod(self.shape) * self.dtype.itemsize == self.nbytes

    def transposed(self, order: Sequence[int]) -> ChunkBytes:
        """The same bytes with dimension i as dimension ``order[i]``.

        >>> stored = ChunkBytes.contiguous(np.dtype("<u2"), (4, 3))
        >>> found = stored.transposed((1, 0))
        >>> found.shape, found.strides
        ((3, 4), (2, 6))
        """
        where = sorted(range(len(order)), key=order.__getitem__)
        shape = tuple(self.shape[i] for i in where)
        strides = tuple(self.strides[i] for i in where)
        return replace(self, shape=shape, strides=strides)


class BytesCodec(abc.ABC):
    """One prepared bytes -> bytes stage. Any number of threads may use it at once."""

    __slots__ = ()

    name: str
    """What errors call it: the registered name."""

    is_exact: ClassVar[bool] = False
    """Whether every encoding has exactly :meth:`encoded_bound` bytes."""

    is_view: ClassVar[bool] = False
    """Whether :meth:`decode` without `out` copies nothing."""

    decode_ns: ClassVar[float] = 1.0
    """About how long one thread takes for a decoded byte: decides how work is split, no more."""

    decodes_parts: ClassVar[bool] = False
    """Whether :meth:`decode_part` takes less time than :meth:`decode`."""

    verifies: ClassVar[bool] = False
    """Whether :meth:`decode_device` can compare a checksum before later stages decode."""

    needs_bytes: ClassVar[bool] = True
    """Whether :meth:`decode_device` looks at encoded bytes, so that the host must have them."""

    @property
    def is_identity(self) -> bool:
        """Whether decoding changes no byte, and refuses none."""
        return False

    @property
    def device_codec(self) -> str | None:
        """Name of the device codec of the streams in a value, or None."""
        return None

    @abc.abstractmethod
    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Most bytes that an honest encoding of `decoded_nbytes` bytes has, by any encoder."""

    @abc.abstractmethod
    def encode(self, decoded: Buffer) -> Buffer:
        """Encode one chunk. `decoded` must be contiguous; it is not kept."""

    @abc.abstractmethod
    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode one chunk in memory bounded by `decoded_max`, whatever `encoded` claims.

        Parameters
        ----------
        encoded : bytes-like
            The whole stored value: nothing may be missing from it, nothing may follow.
        decoded_max : int
            Most bytes the result may have.
        exact : bool
            Whether it must have exactly that many.
        out : memoryview, optional
            Writable host memory of `decoded_max` bytes. If given, the result is a view of it.

        Raises
        ------
        CorruptChunkError
            If `encoded` is no complete encoding of an acceptable size.
        """

    def decode_part(
        self, encoded: Buffer, nbytes: int, start: int, stop: int, out: memoryview
    ) -> tuple[Buffer, int]:
        """Decode at least the bytes [start, stop).

        Parameters
        ----------
        encoded : bytes-like
            The whole stored value.
        nbytes : int
            How many bytes it must decode to.
        start, stop : int
            The range; not empty, inside [0, nbytes).
        out : memoryview
            Writable host memory of `nbytes` bytes; the result may be a view of it.

        Returns
        -------
        bytes-like, int
            The decoded bytes, and where the first of them stands in the whole.

        Raises
        ------
        CorruptChunkError
            If that part is damaged, or the whole has another size. What the part does not need is
            not looked at.
        """
        del start, stop
        return self.decode(encoded, nbytes, exact=True, out=out), 0

    def unsupported_reason(self, device: Decoders, distrust: Distrust | None = None) -> str | None:
        """Return why no value at all can be decoded on `device`, None if values can be.

        `distrust` is the rule its decoders must heed; a command list has its own.
        """
        del device, distrust
        return f"{self.name} is not decoded on a device"

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the steps that decode each value of `commands`, and refuse those that cannot be.

        Parameters
        ----------
        commands : CommandList
            Encoded values. Afterwards ``commands.values`` are the decoded ones, and
            ``commands.encoded`` is None, unless these bytes are in host memory too.
        device : Device
            One that :meth:`unsupported_reason` has nothing against.
        decoded_max, exact
            As for :meth:`decode`. A value whose decoded size cannot be told is refused.

        Raises
        ------
        MemoryError
            If scratch memory cannot be had; the list is given up then.
        """
        del decoded_max, exact
        reason = self.unsupported_reason(device) or f"{self.name} is not decoded on a device"
        self._refuse_all(commands, reason)

    def _refuse_all(self, commands: CommandList, reason: str) -> None:
        commands.refuse(dict.fromkeys(range(len(commands)), reason))

    def _columns(self, commands: CommandList) -> EncodedColumns | None:
        """Return the encoded bytes; None, all values refused, if the host has none to see."""
        if commands.encoded is None:
            self._refuse_all(commands, f"{self.name}: its headers are not in host memory")
        return EncodedColumns(commands.encoded) if commands.encoded else None


def too_short(expected: int, found: int, *, codec: str | None = None) -> CorruptChunkError:
    """The error for a value that has `found` instead of `expected` bytes."""
    return CorruptChunkError(
        f"Not enough data: expected at least {expected} or {expected - found} more; "
        f"at byte {found}",
        codec=codec,
    )


def too_long(expected: int, found: int | None = None, *, codec: str) -> CorruptChunkError:
    """The error for a value of more than `expected` bytes; `found` is None if nobody counted."""
    remaining = "" if found is None else f"; remaining length: {found - expected}"
    return CorruptChunkError(f"End of data expected{remaining}; at byte {expected}", codec=codec)


def deliver(decoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None) -> Buffer:
    """Bring what a library returned to where :meth:`BytesCodec.decode` promises it.

    `decoded` is known to be no longer than `decoded_max`, and exactly that long if `exact`.
    """
    if out is None:
        return decoded
    nbytes = decoded_max if exact else len(decoded)
    out[:nbytes] = decoded
    return out[:nbytes]


# --------------------------------------------------------------------------- options

ABSENT: Final = object()
"""Default of an option that stays away if nobody gives it."""

Convert = Callable[[JsonValue], JsonValue]


def integer(minimum: int, maximum: int) -> Convert:
    """Options that are integers; ``3.0`` is one, as in TensorStore."""

    def convert(value: JsonValue) -> int:
        return expect_int(value, minimum, maximum, integral_floats=True)

    return convert


def boolean(value: JsonValue) -> bool:
    """Options that are true or false."""
    return expect_bool(value)


def choice(*choices: str) -> Convert:
    """Options that are one of some words."""

    def convert(value: JsonValue) -> str:
        return expect_str(value, choices=choices)

    return convert


def merge_equal(a: JsonValue, b: JsonValue) -> JsonValue:
    """`a` if `b` is the same JSON, else None."""
    return a if json_equal(a, b) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a codec.

    Attributes
    ----------
    name : str
        The member of the codec's JSON object.
    convert : callable
        Validates a value, returns it normalised or raises MetadataError.
    default : JsonValue
        What a new array gets; :data:`ABSENT` for nothing.
    stored_default : JsonValue
        What stored metadata mean that lack it; ``REQUIRED`` if that is an error, `ABSENT` if
        they mean nothing.
    constraint_default : JsonValue
        What constraints mean that lack it: by default nothing; ``REQUIRED`` if that is an error.
    convert_stored : callable, optional
        A more lenient `convert` for stored metadata: what other libraries write is read.
    merge : callable, optional
        ``merge(a, b)`` is the value that is both, None if they contradict each other.
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
    """Give every option that has a fixed default its value."""
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
        ``prepare(options, itemsize)`` makes the stage from complete options. `itemsize`, in
        bytes, is that of the elements the stage is given, None if those are no longer elements.
    complete : callable
        ``complete(variant, options, itemsize)`` fills in the defaults of a new array.
    check_stored : callable, optional
        Raises MetadataError if stored options, each valid, do not go together.
    """

    options: tuple[Option, ...]
    prepare: Callable[[Options, int | None], BytesCodec]
    complete: Callable[[CodecVariant, Options, int | None], dict[str, JsonValue]] = fill_defaults
    check_stored: Callable[[Options], None] | None = None

    def parse(self, members: Members, *, stored: bool) -> dict[str, JsonValue]:
        """Validate options: those of stored metadata (strict), or constraints (all optional)."""
        options = parse_options(self.options, members, stored=stored)
        if stored and self.check_stored is not None:
            self.check_stored(options)
        return options


def parse_options(
    options: tuple[Option, ...], members: Members, *, stored: bool
) -> dict[str, JsonValue]:
    """Take each of `options` from `members` and refuse what is left."""
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
    """A registered codec of bytes, or of elements: one algorithm under all its names.

    Attributes
    ----------
    name : str
        Name in Zarr v3 and id in Zarr v2.
    v3, v2 : CodecVariant, ValueVariant or None
        None where that version does not have the codec; in Zarr v2, as a compressor.
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
class LayoutCodec:
    """A registered array -> bytes codec that only says where the bytes are.

    Attributes
    ----------
    name : str
        Name in Zarr v3. Zarr v2 has no such codecs.
    options : tuple of Option
    layout : callable
        ``layout(options, component, shape)`` from complete options; the shape is without the
        inner dimensions of the component.
    complete : callable
        ``complete(options, itemsize)`` fills in the defaults of a new array.
    """

    kind: ClassVar[str] = "array -> bytes"
    name: str
    options: tuple[Option, ...]
    layout: Callable[[Options, Component, tuple[int, ...]], ChunkBytes]
    complete: Callable[[Options, int], dict[str, JsonValue]]

    def parse(self, members: Members, *, stored: bool) -> dict[str, JsonValue]:
        """Validate options: those of stored metadata (strict), or constraints (all optional)."""
        return parse_options(self.options, members, stored=stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayCodec:
    """A registered array -> array codec that only rearranges dimensions.

    Attributes
    ----------
    name : str
        Name in Zarr v3. Zarr v2 has no such codecs.
    options : tuple of Option
    order : callable
        ``order(options, rank)`` is a permutation: dimension ``order[i]`` of the decoded array is
        dimension i of the encoded one. Raises MetadataError for another rank.
    complete : callable
        ``complete(options, rank)`` makes options those that a new array stores.
    """

    kind: ClassVar[str] = "array -> array"
    name: str
    options: tuple[Option, ...]
    order: Callable[[Options, int], tuple[int, ...]]
    complete: Callable[[Options, int], dict[str, JsonValue]]

    def parse(self, members: Members, *, stored: bool) -> dict[str, JsonValue]:
        """Validate options: those of stored metadata (strict), or constraints."""
        return parse_options(self.options, members, stored=stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCodec:
    """The registered array -> bytes codec that stores a chunk as many inner chunks.

    Attributes
    ----------
    name : str
        Name in Zarr v3.
    options : tuple of Option
        ``chunk_shape``, ``codecs``, ``index_codecs`` and ``index_location``.
    complete : callable
        ``complete(options, dtype, rank, inner_order)`` fills in what a new array is left free to
        choose, except the shape of the inner chunks.
    """

    kind: ClassVar[str] = "array -> bytes"
    name: str
    options: tuple[Option, ...]
    complete: Callable[[Options, V3DataType, int, tuple[int, ...] | None], dict[str, JsonValue]]

    def parse(self, members: Members, *, stored: bool) -> dict[str, JsonValue]:
        """Validate options: those of stored metadata (strict), or constraints."""
        return parse_options(self.options, members, stored=stored)
