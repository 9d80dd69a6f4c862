"""The ``packbits`` codec.

============  ======================================================================
content       Some bits of each element, packed without gaps
specification https://github.com/zarr-developers/zarr-extensions/tree/main/codecs/packbits
v3 name       ``packbits``, and ``numcodecs.packbits``, which is another format
v2 id         ``packbits``, among the filters
============  ======================================================================

Zarr v3::

    {"name": "packbits", "configuration": {"padding_encoding": "first_byte", "last_bit": 11}}

Zarr v2::

    "filters": [{"id": "packbits"}]

The codec of Zarr v3 packs any numbers; the first bit is the lowest of the first byte. Bits below
``first_bit`` decode as zeros; bits above ``last_bit`` decode as zeros, or as the sign of signed
integers. numcodecs' codec packs bool only: the first bit is the highest, a byte in front counts the
bits of padding, and every byte other than zero encodes as true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.base import BytesCodec, check_nbytes
from gpustore.codec_chain.device_streams import destinations, fall_back_where
from gpustore.codec_chain.registered import ABSENT, Codec, Option, Options, choice
from gpustore.codec_chain.value import BLOCK, Elements, Types, ValueVariant, as_bytes
from gpustore.device.command_list import CommandList
from gpustore.device.kernels.value import value_runs
from gpustore.device.protocol import Decoders, Device
from gpustore.errors import CorruptChunkError, MetadataError
from gpustore.resources.gpu_decode_trust import Distrust
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import JsonValue, expect_int

_BITS: Final = {
    **{"bool": 1, "int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4},
    **{"float6_e2m3fn": 6, "float6_e3m2fn": 6},
}
"""Bits of types that use only part of their bytes."""


@dataclass(frozen=True, slots=True)
class _Packed(BytesCodec):
    """Bits [first, first + nbits) of `count` components of `itemsize` bytes.

    Attributes
    ----------
    count, itemsize, first, nbits : int
    sign : int
        Bits of a signed component, whose upper bits repeat the last stored one; 0 for unsigned
        components.
    padding : str
        Place of the number of bits of padding: ``none``, ``first_byte`` or ``last_byte``.
    order : str
        Order of the bits in a byte, in NumPy's terms.
    """

    name = "packbits"
    decode_ns = 2.0
    is_exact = True
    needs_bytes = False

    count: int
    itemsize: int
    first: int
    nbits: int
    sign: int = 0
    padding: str = "none"
    order: Any = "little"

    @property
    def _packed(self) -> int:
        return -(-self.count * self.nbits // 8)

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the exact length of the encoding, in bytes."""
        del decoded_nbytes
        return self._packed + (self.padding != "none")

    def encode(self, decoded: Buffer) -> Buffer:
        components = np.frombuffer(decoded, np.uint8).reshape(self.count, self.itemsize)
        packed = np.empty(self._packed, np.uint8)
        for lo, hi, part in self._blocks():
            if self.nbits == 1 and self.itemsize == 1:
                bits: NDArray[Any] = (components[lo:hi] >> self.first) & 1
            else:
                every = np.unpackbits(components[lo:hi], axis=1, bitorder="little")
                bits = every[:, self.first : self.first + self.nbits]
            packed[part] = np.packbits(bits, bitorder=self.order)
        if self.padding == "none":
            return as_bytes(packed)
        count = bytes([self._unused])
        encoded = packed.tobytes()
        return count + encoded if self.padding == "first_byte" else encoded + count

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        del exact  # Nothing else than a whole chunk is encoded so.
        expected, nbytes = self.encoded_bound(decoded_max), self.count * self.itemsize
        check_nbytes(len(encoded), expected, exact=True, codec=self.name)
        view = memoryview(encoded).cast("B")
        if self.padding != "none":
            first = self.padding == "first_byte"
            found = view[0 if first else -1]
            if found != self._unused:
                raise CorruptChunkError(
                    f"{found} bits of padding, expected {self._unused}", codec=self.name
                )
            view = view[1:] if first else view[:-1]
        whole = memoryview(bytearray(nbytes)) if out is None else out[:nbytes]
        components = np.frombuffer(whole, np.uint8).reshape(self.count, self.itemsize)
        self._unpack(np.frombuffer(view, np.uint8), components)
        return whole

    def _unpack(self, packed: NDArray[np.uint8], components: NDArray[np.uint8]) -> None:
        width, stop = 8 * self.itemsize, self.first + self.nbits
        for lo, hi, part in self._blocks():
            count = hi - lo
            bits = np.unpackbits(packed[part], count=count * self.nbits, bitorder=self.order)
            if self.nbits == 1 and self.itemsize == 1 and not (self.first or self.sign):
                components[lo:hi, 0] = bits
                continue
            every = np.zeros((count, width), np.uint8)
            every[:, self.first : stop] = bits.reshape(count, self.nbits)
            if self.sign:
                every[:, stop : self.sign] = every[:, stop - 1 : stop]
            components[lo:hi] = np.packbits(every, axis=1, bitorder="little")

    def unsupported_reason(self, device: Decoders, distrust: Distrust | None = None) -> str | None:
        """Return None: a kernel decodes on every device, and checks bounds for any bytes."""
        del device, distrust
        if self.itemsize not in (1, 2, 4, 8):
            return f"packbits: the host unpacks elements of {self.itemsize} bytes"
        return None

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the decoding of all values, also of those only on the device."""
        del device, exact
        expected = self.encoded_bound(decoded_max)
        fall_back_where(
            commands, commands.values.nbytes != expected, f"packbits: not {expected} bytes"
        )
        if not len(commands):
            return
        dst = destinations(commands, np.full(len(commands), self.count * self.itemsize, np.int64))
        runs, each, blocks = value_runs(
            commands.values.address, dst.address, np.full(len(commands), self.count)
        )
        padding = ("none", "first_byte", "last_byte").index(self.padding)
        numbers = self.itemsize, self.nbits, self.first, self.sign, self.order == "big", padding
        confirmed = commands.confirmations(each, "packbits: another number of bits of padding")
        commands.launch(
            "value",
            "gs::unpack_bits",
            blocks,
            [commands.table(runs), np.uint32(len(runs)), *map(np.uint32, numbers), confirmed],
        )
        commands.values, commands.encoded = dst, None

    def _blocks(self) -> list[tuple[int, int, slice]]:
        """Return numbers of components and of their packed bytes, which no two blocks share."""
        return [
            (
                lo,
                min(lo + BLOCK, self.count),
                slice(lo * self.nbits // 8, -(-min(lo + BLOCK, self.count) * self.nbits // 8)),
            )
            for lo in range(0, self.count, BLOCK)
        ]

    @property
    def _unused(self) -> int:
        return 8 * self._packed - self.count * self.nbits


def _bit(value: JsonValue) -> JsonValue:
    return None if value is None else expect_int(value, 0, 63, integral_floats=True)


def _types(options: Options, dtype: np.dtype[Any]) -> Types:
    del options
    return dtype, np.dtype(np.uint8)


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> _Packed:
    del encoded
    dtype = decoded.dtype
    is_complex = dtype.kind == "c"
    itemsize = dtype.itemsize // 2 if is_complex else dtype.itemsize
    width = _BITS.get(dtype.name, 8 * itemsize)
    first, last = options.get("first_bit"), options.get("last_bit")
    first, last = 0 if first is None else first, width - 1 if last is None else last
    if not first <= last < width:
        raise MetadataError(
            f'"first_bit" of {first} and "last_bit" of {last} are no bits of {dtype.name}, which '
            f"has {width}"
        )
    # Dates and durations are signed integers.
    if is_complex or dtype.kind in "iufMm" or dtype.isbuiltin == 2 or dtype == np.bool_:
        return _Packed(
            decoded.count * (1 + is_complex),
            itemsize,
            first,
            last - first + 1,
            width if dtype.kind in "iMm" or dtype.name in ("int2", "int4") else 0,
            options.get("padding_encoding", "none"),
        )
    raise MetadataError(f"Elements of type {dtype.name} are not packed")


def _types_v2(options: Options, dtype: np.dtype[Any]) -> Types:
    del options, dtype
    return np.dtype(bool), np.dtype(np.uint8)


def _shape_v2(options: Options, shape: tuple[int, ...]) -> tuple[int, ...]:
    del options
    return (1 + -(-int(np.prod(shape, dtype=np.int64)) // 8),)


def _rank_v2(options: Options, rank: int) -> int:
    del options, rank
    return 1


@dataclass(frozen=True, slots=True)
class _PackedBools(_Packed):
    def encode(self, decoded: Buffer) -> Buffer:
        """Encode every byte other than zero as a one."""
        return _Packed.encode(self, as_bytes(np.frombuffer(decoded, np.uint8) != 0))


def _prepare_v2(options: Options, decoded: Elements, encoded: Elements) -> _PackedBools:
    del options, encoded
    return _PackedBools(decoded.count, 1, 0, 1, padding="first_byte", order="big")


CODEC = Codec(
    name="packbits",
    v3=ValueVariant(
        kind="array -> bytes",
        options=(
            Option(
                name="padding_encoding",
                convert=choice("none", "first_byte", "last_byte"),
                default="none",
                stored_default="none",
            ),
            Option(name="first_bit", convert=_bit, default=ABSENT, stored_default=ABSENT),
            Option(name="last_bit", convert=_bit, default=ABSENT, stored_default=ABSENT),
        ),
        prepare=_prepare,
        types=_types,
    ),
    filter=ValueVariant(
        options=(),
        prepare=_prepare_v2,
        types=_types_v2,
        shape=_shape_v2,
        rank=_rank_v2,
        is_elementwise=False,
    ),
)
