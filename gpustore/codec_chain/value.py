"""Codecs that change the elements of a chunk: their values, their type or their number.

Such codecs are array -> array codecs of Zarr v3 (``packbits``: array -> bytes) and most filters of
Zarr v2. In a chain each is one stage on contiguous elements in stored order, so that it needs no
dimensions: transposes before it are part of the layout, and commute with a codec that changes each
element by itself.

:class:`ValueVariant`
    A variant of such a codec for Zarr v2 or v3: its options, and how it changes type and shape.
:class:`ValueStage`
    A prepared stage from elements of one type to elements of another, as bytes.
:class:`ElementStages`
    Consecutive stages that a device decodes by one launch.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.base import BytesCodec, check_nbytes
from gpustore.codec_chain.device_streams import fall_back_where
from gpustore.codec_chain.device_values import Table, component, convert
from gpustore.codec_chain.legal_elements import checker, normalizer
from gpustore.codec_chain.registered import ABSENT, Option, Options, parse_options
from gpustore.device.command_list import CommandList
from gpustore.device.kernels.value import Conversion, Side
from gpustore.device.protocol import Decoders, Device
from gpustore.errors import CorruptChunkError, MetadataError
from gpustore.metadata.data_type import parse_v2_dtype, v2_dtype_to_json
from gpustore.resources.gpu_decode_trust import Distrust
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import JsonValue, Members, expect_float, expect_str, text

BLOCK: Final = 1 << 16
"""Elements at a time where a result goes through a temporary array.

So many stay in a CPU's cache, and are enough for threads not to wait for each other between calls
of NumPy.
"""


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements before or behind a codec of a chain.

    Attributes
    ----------
    dtype : numpy.dtype
        Type of the elements, with their byte order.
    shape : tuple of int
        Shape of a chunk at this place of the chain; in Zarr v2 one dimension.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def viewed(self, dtype: np.dtype[Any]) -> Elements:
        """Return the same bytes as elements of `dtype`, as numcodecs' filters view them.

        Raises
        ------
        MetadataError
            If the bytes are no whole number of elements.
        """
        if dtype == self.dtype:
            return self
        nbytes = self.count * self.dtype.itemsize
        if nbytes % dtype.itemsize:
            raise MetadataError(
                f"Data type {text(v2_dtype_to_json(dtype))} does not divide chunks of {nbytes} "
                f"bytes"
            )
        return Elements(dtype, (nbytes // dtype.itemsize,))


Types = tuple[np.dtype[Any], np.dtype[Any]]
"""Type of the decoded elements, and of the encoded ones."""


def _same_types(options: Options, dtype: np.dtype[Any]) -> Types:
    del options
    return dtype, dtype


def _same_shape(options: Options, shape: tuple[int, ...]) -> tuple[int, ...]:
    del options
    return shape


def _same_rank(options: Options, rank: int) -> int:
    del options
    return rank


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueVariant:
    """Variant of a codec of elements for one version of the format: options, types and shapes.

    Attributes
    ----------
    options : tuple of Option
    prepare : callable
        ``prepare(options, decoded, encoded)`` is the stage for complete options and two
        :class:`Elements`, None if it would change nothing. It raises MetadataError for elements
        that the codec does not support.
    kind : str
        Kind of the codec in Zarr v3.
    types : callable
        ``types(options, dtype)`` are the decoded and the encoded type for elements of `dtype`. It
        raises MetadataError for elements that the codec does not support.
    shape, rank : callable
        ``shape(options, shape)`` and ``rank(options, rank)`` are shape and rank of the encoding.
    type_option : str
        Name of the option for the decoded type; in Zarr v3 it may be left to the array.
    is_elementwise : bool
        Whether each element is encoded by itself, so that their order does not matter.
    keeps_fill : bool
        Whether the codec must preserve the fill value.
    in_shards : bool
        Whether the codec may precede ``sharding_indexed``.
    has_fixed_size : bool
        Whether the size of the encoding depends on the shape alone.
    """

    options: tuple[Option, ...]
    prepare: Callable[[Options, Elements, Elements], BytesCodec | None]
    kind: Literal["array -> array", "array -> bytes"] = "array -> array"
    types: Callable[[Options, np.dtype[Any]], Types] = _same_types
    shape: Callable[[Options, tuple[int, ...]], tuple[int, ...]] = _same_shape
    rank: Callable[[Options, int], int] = _same_rank
    type_option: str = ""
    is_elementwise: bool = True
    keeps_fill: bool = False
    in_shards: bool = False
    has_fixed_size: bool = True

    @property
    def keeps_shape(self) -> bool:
        """Whether the codec takes elements of any shape and encodes them in the same shape."""
        return self.shape is _same_shape

    def parse(self, members: Members, *, stored: bool, typed: bool = True) -> dict[str, JsonValue]:
        """Validate options of stored metadata (strict) or of constraints (all optional).

        `typed` is whether the option of the decoded type is required.
        """
        known = self.options
        if not typed:
            known = tuple(
                replace(one, stored_default=ABSENT, constraint_default=ABSENT)
                if one.name == self.type_option
                else one
                for one in known
            )
        return parse_options(known, members, stored=stored)

    def complete(self, options: Options, dtype: np.dtype[Any] | None) -> dict[str, JsonValue]:
        """Return `options` with all defaults, for elements of `dtype` if that is known."""
        defaults = {o.name: o.default for o in self.options if o.default is not ABSENT}
        if self.type_option and dtype is not None:
            defaults[self.type_option] = dtype.str
        return {**defaults, **options}

    def viewed(self, options: Options, elements: Elements) -> tuple[Elements, Elements]:
        """Return decoded and encoded elements in Zarr v2, where filters view bytes as elements."""
        decoded, encoded = self.types(options, elements.dtype)
        found = elements.viewed(decoded)
        return found, Elements(encoded, self.shape(options, found.shape))

    def given(self, options: Options, elements: Elements) -> tuple[Elements, Elements]:
        """Return decoded and encoded elements in Zarr v3, where elements have a type.

        Raises
        ------
        MetadataError
            If the options name another type, or one that is not in native byte order.
        """
        decoded, encoded = self.types(options, elements.dtype)
        if decoded != elements.dtype:
            raise MetadataError(
                f"It is for elements of type {text(decoded.str)}, not {elements.dtype.name}"
            )
        if not encoded.isnative:
            raise MetadataError(
                f'{text(encoded.str)} has a byte order, which the codec "bytes" is to say'
            )
        return elements, Elements(encoded, self.shape(options, elements.shape))


@dataclass(frozen=True, slots=True)
class ValueStage(BytesCodec):
    """Stage from elements of type `decoded` to as many of type `encoded`.

    Attributes
    ----------
    decoded, encoded : numpy.dtype
        Types of the elements, with their byte orders.
    keeps_fill : bool
        Whether the codec must preserve the fill value.
    """

    is_exact: ClassVar[bool] = True
    decode_ns = 0.5
    decodes_parts = True
    needs_bytes: ClassVar[bool] = False

    decoded: np.dtype[Any]
    encoded: np.dtype[Any]
    keeps_fill: bool = field(default=False, kw_only=True)

    @abc.abstractmethod
    def to_encoded(self, decoded: NDArray[Any], encoded: NDArray[Any]) -> None:
        """Encode into `encoded`; both are 1-D and of the types of the stage."""

    @abc.abstractmethod
    def to_decoded(self, encoded: NDArray[Any], decoded: NDArray[Any]) -> None:
        """Decode into `decoded`; both are 1-D and of the types of the stage."""

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the exact number of bytes of an encoding."""
        return decoded_nbytes // self.decoded.itemsize * self.encoded.itemsize

    def encode(self, decoded: Buffer) -> Buffer:
        """Convert every element; parameters and errors as in :class:`BytesCodec`."""
        elements = np.frombuffer(decoded, self.decoded)
        encoded = np.empty(len(elements), self.encoded)
        with np.errstate(all="ignore"):
            self.to_encoded(elements, encoded)
        clear = normalizer(self.encoded)
        return as_bytes(encoded) if clear is None else clear(as_bytes(encoded))

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Convert every element; parameters and errors as in :class:`BytesCodec`."""
        nbytes = self._decoded_nbytes(len(encoded), decoded_max, exact=exact)
        whole = np.empty(nbytes, np.uint8).data if out is None else out[:nbytes]
        self._decode_into(encoded, whole)
        return whole

    def decode_part(
        self, encoded: Buffer, nbytes: int, start: int, stop: int, out: memoryview
    ) -> tuple[Buffer, int]:
        """Decode the elements that the range touches, or all if they depend on each other."""
        if not self.decodes_parts:
            return self.decode(encoded, nbytes, exact=True, out=out), 0
        self._decoded_nbytes(len(encoded), nbytes, exact=True)
        first, last = start // self.decoded.itemsize, -(-stop // self.decoded.itemsize)
        size = self.encoded.itemsize
        part = out[: (last - first) * self.decoded.itemsize]
        self._decode_into(memoryview(encoded)[first * size : last * size], part)
        return part, first * self.decoded.itemsize

    def conversions(self) -> Sequence[Conversion] | str | None:
        """Return the conversions by which a device decodes each number, or part of a complex one.

        A text is the reason why kernels do not; elements encoded in one byte are then looked up in
        a table. None if elements are no numbers, or are not decoded one by one.
        """
        return None

    @property
    def is_identity(self) -> bool:
        """Whether decoding returns all bytes unchanged."""
        decoded, encoded = self.parts
        alike = Side.of(decoded) == Side.of(encoded) and checker(encoded) is None
        return alike and self.conversions() in ([], ())

    @property
    def parts(self) -> Types:
        """Types of the numbers that are decoded one by one, those of a complex number's parts."""
        if self.decoded.kind == self.encoded.kind == "c":
            return component(self.decoded), component(self.encoded)
        return self.decoded, self.encoded

    def unsupported_reason(self, device: Decoders, distrust: Distrust | None = None) -> str | None:
        """Return why a device cannot decode, None if it can.

        `distrust` does not matter: the package's kernels check all bounds.
        """
        del device, distrust
        found = self.conversions()
        if found is None:
            return f"{self.name} is not decoded on a device"
        if not all(Side.of(dtype).nbytes in (1, 2, 4, 8) for dtype in (self.decoded, self.encoded)):
            return f"{self.name}: the host decodes elements of type {self.decoded.name}"
        return found if isinstance(found, str) and self.encoded.itemsize > 1 else None

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the conversion of all values; it needs no bytes in host memory."""
        ElementStages((self,)).decode_device(commands, device, decoded_max, exact=exact)

    def _decode_into(self, encoded: Buffer, out: memoryview) -> None:
        check = checker(self.encoded)
        legal = encoded if check is None else check(encoded)
        with np.errstate(all="ignore"):
            self.to_decoded(np.frombuffer(legal, self.encoded), np.frombuffer(out, self.decoded))

    def _decoded_nbytes(self, found: int, decoded_max: int, *, exact: bool) -> int:
        most = self.encoded_bound(decoded_max)
        check_nbytes(found, most, exact=exact, codec=self.name)
        if found % self.encoded.itemsize:
            raise CorruptChunkError(
                f"{found} bytes are no elements of {self.encoded.itemsize} bytes", codec=self.name
            )
        return found // self.encoded.itemsize * self.decoded.itemsize


class ElementStages:
    """Stages of a chain that a device decodes by one launch, each number by itself.

    Parameters
    ----------
    stages : sequence of ValueStage
        Consecutive stages in the order of decoding.
    """

    def __init__(self, stages: Sequence[ValueStage]) -> None:
        self.stages = tuple(stages)
        self._source = stages[0].parts[1]
        self._target = stages[-1].parts[0]
        self._is_looked_up = self._source.itemsize == 1
        self._table: Table | None = None

    def takes(self, stage: ValueStage) -> bool:
        """Whether `stage` can be decoded by the same launch, after these stages."""
        made, taken = Side.of(self._target), Side.of(stage.parts[1])
        return (
            made == taken and made.nbytes == made.stride and (made.nbytes > 1 or self._is_looked_up)
        )

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record one launch that decodes all values; none if decoding changes no byte."""
        del device, exact  # Stages of elements are given whole chunks, so the size is exact.
        src, dst = Side.of(self._source), Side.of(self._target)
        count = decoded_max // dst.stride
        name = self.stages[0].name
        wrong = commands.values.nbytes != count * src.stride
        fall_back_where(commands, wrong, f"{name}: not {count * src.stride} bytes")
        if self._is_looked_up and self._changes:
            self._table = self._table or self._looked_up()
            convert(commands, src, dst, count, (), self._table, name)
            return
        conversions: list[Conversion] = []
        for stage in self.stages:
            found = stage.conversions()
            if found is None or isinstance(found, str):
                raise AssertionError(f"the device has no kernel for {stage.name}")
            conversions += found
        if conversions or src != dst:
            convert(commands, src, dst, count, conversions, None, name)

    @property
    def _changes(self) -> bool:
        """Whether decoding changes bytes or checks them."""
        return not all(stage.is_identity for stage in self.stages)

    def _looked_up(self) -> Table:
        """Return the value of each byte as the host decodes it, and whether it is legal."""
        every = bytes(range(256))
        legal = np.ones(256, np.bool_)
        try:
            return self._decoded(every), legal
        except CorruptChunkError:
            found = np.zeros(256, component(self._target))
        for byte in every:
            try:
                found[byte] = self._decoded(bytes([byte]))[0]
            except CorruptChunkError:
                legal[byte] = False
        return found, legal

    def _decoded(self, encoded: Buffer) -> NDArray[Any]:
        for stage in self.stages:
            nbytes = len(encoded) // stage.encoded.itemsize * stage.decoded.itemsize
            encoded = stage.decode(encoded, nbytes, exact=True)
        found = np.frombuffer(encoded, self._target)
        return found.real if found.dtype.kind == "c" else found


def as_bytes(elements: NDArray[Any]) -> memoryview:
    """Return the bytes of contiguous elements, as a view."""
    return elements.reshape(-1).view(np.uint8).data


def blocks(count: int) -> list[slice]:
    """Return slices of `count` elements that are converted one after the other."""
    return [slice(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK)]


def cast(source: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy elements by NumPy's "unsafe" cast; an imaginary part is dropped without a warning."""
    if source.dtype.kind == "c" and target.dtype.kind not in "cb":
        source = source.real
    np.copyto(target, source, casting="unsafe")


# --------------------------------------------------------------------------- options of numcodecs

_NAMES: Final = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64", "complex64", "complex128"}
)


def numpy_type(kinds: str) -> Callable[[JsonValue], JsonValue]:
    """Return the conversion of options that name a NumPy type of one of `kinds`.

    All spellings that numcodecs takes are read, and become the one it writes.

    >>> numpy_type("if")("float64"), numpy_type("if")(">i2"), numpy_type("u")("u1")
    ('<f8', '>i2', '|u1')
    """

    def convert(value: JsonValue) -> str:
        word = expect_str(value)
        if word in _NAMES:
            word = np.dtype(word).str
        elif word[:1].isalpha() or word[:1] == "=":
            word = f"<{word.removeprefix('=')}"
        if word.endswith("1") and word[:1] in "<>" and len(word) == 3:
            word = f"|{word[1:]}"
        found = parse_v2_dtype(word)
        if found.kind not in kinds or found.names is not None:
            raise MetadataError(
                f"Expected a data type of kind {' or '.join(kinds)}, but received: {text(value)}"
            )
        return str(found.str)

    return convert


def number(value: JsonValue) -> JsonValue:
    """Convert an option that is a finite number; an integer stays one."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    found = expect_float(value)
    if not math.isfinite(found):
        raise MetadataError(f"Expected finite number, but received: {text(value)}")
    return found
