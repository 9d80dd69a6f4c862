"""The ``lz4`` codec.

============  ====================================================================
content       One LZ4 block behind its decoded size
specification https://numcodecs.readthedocs.io/en/stable/compression/lz4.html
block format  https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md
v3 name       none
v2 id         ``lz4``
============  ====================================================================

Zarr v2::

    {"id": "lz4", "acceleration": 1}

The size is four bytes, little endian. The value is not an LZ4 frame and has no checksum. A stored
acceleration may be any number that numcodecs takes; the library uses the nearest from 1 to 65537.
TensorStore does not have this codec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpustore.codec_chain.base import BytesCodec, check_nbytes, deliver, too_short
from gpustore.codec_chain.device_segments import EncodedValues, Framed
from gpustore.codec_chain.device_streams import decompress_values
from gpustore.codec_chain.registered import Codec, CodecVariant, Option, Options, integer
from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.device.encoding_list import EncodingList, cannot_compress
from gpustore.device.headers import HeaderColumns
from gpustore.device.protocol import Decoders, Device
from gpustore.errors import CorruptChunkError, LimitError
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import JsonValue

_SIZE_NBYTES: Final = 4
_MAX_NBYTES: Final = 0x7E000000

# What the library makes of larger numbers; of smaller ones than 1 it makes 1.
_MAX_ACCELERATION: Final = 65537
_INT32: Final = integer(-(2**31), 2**31 - 1)

# The block of no bytes. The library writes it but does not read it.
_EMPTY: Final = b"\0\0\0\0\0"

# Below this a new bytes object that is then copied costs less than numcodecs' checks of `out`.
_SMALL_NBYTES: Final = 32 << 10


@dataclass(frozen=True, slots=True)
class _Lz4(BytesCodec):
    name = "lz4"
    decode_ns = 0.3
    acceleration: int

    @property
    def native_codec(self) -> str:
        return "lz4"

    def native_options(self, decoded_nbytes: int) -> Mapping[str, int] | None:
        """Return the acceleration."""
        return {"level": self.acceleration} if decoded_nbytes <= _MAX_NBYTES else None

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return LZ4's own bound: 1/255 and 16 bytes more."""
        return decoded_nbytes + (decoded_nbytes >> 7) + 64

    def encode(self, decoded: Buffer) -> Buffer:
        if len(decoded) > _MAX_NBYTES:
            raise LimitError(
                f"lz4: a chunk of {len(decoded)} bytes exceeds the format's limit of "
                f"{_MAX_NBYTES}: choose smaller chunks"
            )
        import numcodecs.lz4  # On use: the package imports all of its codecs.

        encoded: bytes = numcodecs.lz4.compress(decoded, self.acceleration)
        return encoded

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode one block, which must have the stored decoded size."""
        if len(encoded) < _SIZE_NBYTES:
            raise too_short(_SIZE_NBYTES, len(encoded), codec="lz4")
        # The library allocates what the size says.
        nbytes = int.from_bytes(encoded[:_SIZE_NBYTES], "little")
        check_nbytes(nbytes, decoded_max, exact=exact, codec="lz4")
        if nbytes == 0:
            if bytes(encoded) != _EMPTY:
                raise CorruptChunkError("Invalid lz4 block of 0 bytes", codec="lz4")
            return deliver(b"", decoded_max, exact=exact, out=out)
        import numcodecs.lz4

        try:
            if out is None or nbytes <= _SMALL_NBYTES:
                decoded = numcodecs.lz4.decompress(encoded)
                return deliver(decoded, decoded_max, exact=exact, out=out)
            numcodecs.lz4.decompress(encoded, out[:nbytes])
        except (RuntimeError, ValueError) as error:
            raise CorruptChunkError(f"Invalid lz4 block: {error}", codec="lz4") from error
        return out[:nbytes]

    @property
    def device_codec(self) -> str:
        return "lz4"

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the decoding of blocks to their stored decoded sizes."""

        def read(columns: EncodedColumns) -> tuple[HeaderColumns, dict[int, str]]:
            ok = columns.nbytes > _SIZE_NBYTES
            nbytes = columns.uint(columns.start, _SIZE_NBYTES, ok)
            ok &= (nbytes > 0) & ((nbytes == decoded_max) if exact else (nbytes <= decoded_max))
            reason = f"lz4: no block of {decoded_max} bytes"
            return HeaderColumns((nbytes,)), dict.fromkeys(np.flatnonzero(~ok).tolist(), reason)

        headers = self._headers(commands, read)
        if headers is not None:
            (nbytes,) = headers.columns
            src = commands.values.inside(_SIZE_NBYTES, 0)
            decompress_values(commands, device, "lz4", src, nbytes, decoded_max if exact else None)

    def encode_unsupported_reason(self, device: Decoders, decoded_nbytes: int) -> str | None:
        """Return why a device encodes no blocks: it lacks the library, or they are too long."""
        return cannot_compress(device, "lz4", decoded_nbytes)

    def encode_device(self, commands: EncodingList) -> EncodedValues:
        """Record the encoding of each value as one block behind its decoded size."""
        nbytes = int(commands.values.nbytes[0])
        return Framed(commands, "lz4", nbytes.to_bytes(_SIZE_NBYTES, "little"))


def _stored_acceleration(value: JsonValue) -> int:
    acceleration: int = _INT32(value)
    return min(max(acceleration, 1), _MAX_ACCELERATION)


def _prepare(options: Options, itemsize: int | None) -> _Lz4:
    del itemsize
    return _Lz4(options["acceleration"])


CODEC = Codec(
    name="lz4",
    v2=CodecVariant(
        options=(
            Option(
                name="acceleration",
                convert=integer(1, _MAX_ACCELERATION),
                convert_stored=_stored_acceleration,
                default=1,
                stored_default=1,
            ),
        ),
        prepare=_prepare,
    ),
)
