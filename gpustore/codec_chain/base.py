"""Codecs: registered algorithms with options, and the bytes -> bytes stages they prepare.

Three kinds of objects are called codecs:

:class:`Codec`, :class:`LayoutCodec` and :class:`ArrayCodec`
    Objects that modules of ``gpustore/codecs`` register as ``CODEC``: the options of an algorithm
    in Zarr v3 and in Zarr v2 (a :class:`CodecVariant` each), their defaults, and its preparation.
:class:`BytesCodec`
    Prepared bytes -> bytes stages of a chain.
:class:`ChunkBytes`
    Layouts of decoded bytes, the result of all codecs before those stages. The codecs
    ``transpose`` and ``bytes``, Zarr v2's ``order`` and its byte order do no work per chunk: they
    tell where the bytes of each element are, and the copy between chunk and array does the rest.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np

from gpustore.codec_chain.device_pieces import EncodedValues
from gpustore.codec_chain.device_streams import cannot
from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.device.encoding_list import EncodingList
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
"""Validated options of one codec, by name, without those that were not given."""


@dataclass(frozen=True, slots=True)
class ChunkBytes:
    """Layout of the elements of a decoded chunk in its bytes.

    Attributes
    ----------
    dtype : numpy.dtype
        Type of the stored elements, with the stored byte order.
    shape : tuple of int
        Elements of a whole chunk along each array dimension.
    strides : tuple of int
        Bytes between neighbours along each array dimension.
    nbytes : int
        Bytes of a whole chunk.
    offset : int
        First byte of the first element.
    record : int
        Bytes of a stored element that is a record, a string or raw bytes of which `dtype` is a
        part; 0 if `dtype` is the whole element.
    is_dense : bool
        Whether all bytes of a chunk are elements.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int
    offset: int = 0
    record: int = 0
    is_dense: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        is_dense = math.prod(self.shape) * self.dtype.itemsize == self.nbytes
        object.__setattr__(self, "is_dense", is_dense)

    @classmethod
    def contiguous(
        cls, dtype: np.dtype[Any], shape: tuple[int, ...], *, order: str = "C"
    ) -> ChunkBytes:
        """Return the layout of elements without gaps in C order, or F order (first one innermost).

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
        """Return the layout of a component of contiguous stored elements.

        `shape` is that of the chunk without the inner dimensions of the component.
        """
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

    def transposed(self, order: Sequence[int]) -> ChunkBytes:
        """Return the layout of the same bytes with dimension i as dimension ``order[i]``.

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
    """Prepared bytes -> bytes stage of a chain. Any number of threads may use it at once."""

    __slots__ = ()

    name: str
    """Registered name of the codec, for messages."""

    is_exact: ClassVar[bool] = False
    """Whether every encoding has exactly :meth:`encoded_bound` bytes."""

    is_view: ClassVar[bool] = False
    """Whether :meth:`decode` without `out` copies nothing."""

    decode_ns: float = 1.0
    """Estimate of the nanoseconds one thread takes for a decoded byte, for the division of work."""

    decodes_parts: bool = False
    """Whether :meth:`decode_part` takes less time than :meth:`decode`."""

    verifies: ClassVar[bool] = False
    """Whether :meth:`decode_device` can compare a checksum before later stages decode."""

    needs_bytes: ClassVar[bool] = True
    """Whether :meth:`decode_device` needs the encoded bytes in host memory, to read headers."""

    appends: ClassVar[str | None] = None
    """Checksum, a key of ``CHECKSUMS``, whose 4 bytes are all that encoding adds, at the end."""

    @property
    def is_identity(self) -> bool:
        """Whether decoding returns all bytes unchanged."""
        return False

    @property
    def device_codec(self) -> str | None:
        """Name of the device codec of the streams in a value, None without one."""
        return None

    @property
    def device_outputs(self) -> int:
        """Number of times that decoding on a device has the decoded bytes in its memory."""
        return 0 if self.is_view else 1

    def device_streams(self, decoded_nbytes: int) -> tuple[int, int]:
        """Return the number of streams in a value, and the decoded bytes of the longest.

        They are an estimate for values of `decoded_nbytes` decoded bytes, made without a value, for
        codecs with a :attr:`device_codec`.
        """
        return 1, decoded_nbytes

    @property
    def native_codec(self) -> str | None:
        """Name of the codec of the native core that decodes whole values, None without one."""
        return None

    @property
    def native_header(self) -> bytes:
        """Bytes with which each value of :attr:`native_codec` begins, before those of the codec."""
        return b""

    def native_options(self, decoded_nbytes: int) -> Mapping[str, int] | None:
        """Return the options with which the native core encodes values of `decoded_nbytes` bytes.

        They are members of ``Encoding`` in ``kernels/host/write_job.h``. None where it cannot make
        the same bytes as :meth:`encode`.
        """
        del decoded_nbytes
        return None

    @abc.abstractmethod
    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the most bytes that any encoder makes of `decoded_nbytes` bytes."""

    @abc.abstractmethod
    def encode(self, decoded: Buffer) -> Buffer:
        """Encode one chunk in host memory.

        `decoded` must be contiguous; it may be changed once the method has returned.
        """

    @abc.abstractmethod
    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode one chunk in host memory bounded by `decoded_max`, whatever its header claims.

        Parameters
        ----------
        encoded : bytes-like
            The whole stored value: no byte may be missing, none may follow.
        decoded_max : int
            Most bytes of the result.
        exact : bool
            Whether the result must have exactly `decoded_max` bytes.
        out : memoryview, optional
            Writable host memory of `decoded_max` bytes. If given, the result is a view of it.

        Returns
        -------
        bytes-like
            The decoded bytes.

        Raises
        ------
        CorruptChunkError
            If `encoded` is damaged, or does not decode to an allowed number of bytes.
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
            Bytes that the whole value must decode to.
        start, stop : int
            Range of decoded bytes; not empty, inside [0, nbytes).
        out : memoryview
            Writable host memory of `nbytes` bytes; the result may be a view of it.

        Returns
        -------
        bytes-like, int
            The decoded bytes, and the offset of the first one in the whole value.

        Raises
        ------
        CorruptChunkError
            If that part is damaged, or the whole has another size. Other parts are not checked.
        """
        del start, stop
        return self.decode(encoded, nbytes, exact=True, out=out), 0

    def unsupported_reason(self, device: Decoders, distrust: Distrust | None = None) -> str | None:
        """Return why no value at all can be decoded on `device`, None if values can be.

        By default that depends on the :attr:`device_codec`. `distrust` is the rule its decoders
        must heed; a command list has its own.
        """
        if self.device_codec is None:
            return f"{self.name} is not decoded on a device"
        return cannot(device, self.device_codec, distrust)

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the steps that decode values of `commands` on a device; the others fall back.

        Parameters
        ----------
        commands : CommandList
            Encoded values. Afterwards ``commands.values`` are the decoded ones, and
            ``commands.encoded`` is None, unless these bytes are in host memory too.
        device : Device
            Device for which :meth:`unsupported_reason` is None.
        decoded_max, exact
            As for :meth:`decode`. Values of unknown decoded size fall back to the host.

        Raises
        ------
        MemoryError
            If there is no scratch memory; the list cannot be used any more.
        """
        del decoded_max, exact
        reason = self.unsupported_reason(device) or f"{self.name} is not decoded on a device"
        self._fall_back_all(commands, reason)

    def encode_unsupported_reason(self, device: Decoders, decoded_nbytes: int) -> str | None:
        """Return why `device` encodes no values of `decoded_nbytes` bytes, None if it does."""
        del device, decoded_nbytes
        return f"{self.name} is not encoded on a device"

    def encode_device(self, commands: EncodingList) -> EncodedValues | None:
        """Record the steps that encode all values of `commands`.

        Called where :meth:`encode_unsupported_reason` is None.

        Returns
        -------
        EncodedValues or None
            Encoded values whose sizes the steps find; None if ``commands.values`` are the encoded
            ones, which have the size of :meth:`encoded_bound`.

        Raises
        ------
        MemoryError
            If there is no scratch memory; the list cannot be used any more.
        """
        raise AssertionError(f"{self.name} is not encoded on a device")

    def _fall_back_all(self, commands: CommandList, reason: str) -> None:
        commands.fall_back(dict.fromkeys(range(len(commands)), reason))

    def _headers(
        self,
        commands: CommandList,
        read: Callable[[EncodedColumns], tuple[Any, dict[int, str]]],
    ) -> Any | None:
        """Return what `read` finds in the encoded bytes, or what it found in those of a cache.

        If the host has neither, all values fall back to it. None if no values are left.
        """
        headers = commands.read_headers(read)
        if headers is None:
            self._fall_back_all(commands, f"{self.name}: its headers are not in host memory")
        return headers if len(commands) else None


def too_short(expected: int, found: int, *, codec: str | None = None) -> CorruptChunkError:
    """Return the error for a value that has `found` instead of `expected` bytes."""
    return CorruptChunkError(
        f"Not enough data: expected at least {expected} or {expected - found} more; "
        f"at byte {found}",
        codec=codec,
    )


def too_long(expected: int, found: int | None = None, *, codec: str) -> CorruptChunkError:
    """Return the error for a value of more than `expected` bytes; `found` is None if unknown."""
    remaining = "" if found is None else f"; remaining length: {found - expected}"
    return CorruptChunkError(f"End of data expected{remaining}; at byte {expected}", codec=codec)


def deliver(decoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None) -> Buffer:
    """Return bytes that a library decoded as :meth:`BytesCodec.decode` does, in `out` if given.

    `decoded` must have at most `decoded_max` bytes, and exactly that many if `exact`.
    """
    if out is None:
        return decoded
    nbytes = decoded_max if exact else len(decoded)
    out[:nbytes] = decoded
    return out[:nbytes]


# --------------------------------------------------------------------------- options

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
