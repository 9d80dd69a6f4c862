"""Deflate streams, which ``gzip`` and ``zlib`` wrap differently (RFC 1950, 1951, 1952).

isal (Intel's ISA-L) decodes them 1.4 to 2.7 times as fast as the standard library. The native core
calls libdeflate instead, which takes three quarters of isal's time and decodes one whole stream
only. isal also decodes several members, and reports damage.

A level means the effort that zlib makes at it. isal encodes levels 1 and 2, in Python alone, 4 to
18 times as fast as zlib and 2 to 6 times as fast as libdeflate; it has no counterpart of others.
Those libdeflate encodes, at its level of the same number, in a fifth to a half of zlib's time; the
native core calls it too, so that both store the same bytes. Measured in
``docs/design/002-dependencies.md``. All release the GIL.

On a device nvcomp decodes and encodes the streams; kernels compute the checksums that end what is
encoded. When it decodes it compares no checksum, so a kernel computes that of the
decoded bytes; gzip's length is compared before. nvcomp does not report the end of a stream either:
bytes behind it are detected unless they end with that same checksum (and length).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from isal import isal_zlib

from gpustore.codec_chain.base import BytesCodec, deliver, too_long, too_short
from gpustore.codec_chain.device_segments import (
    HIGHEST_LEVELS,
    EncodedValues,
    Framed,
    big_endian,
    little_endian,
)
from gpustore.codec_chain.device_streams import decompress_values
from gpustore.codec_chain.registered import CodecVariant, Option, Options, integer
from gpustore.codecs._deflate_columns import (
    GZIP_HEADER,
    ZLIB_CHECKSUM_NBYTES,
    ZLIB_HEADER,
    ZLIB_HEADER_NBYTES,
    adler32s,
    crc32s,
    read_gzip,
    read_zlib,
)
from gpustore.codecs.libdeflate import compress
from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.device.encoding_list import EncodingList, cannot_compress
from gpustore.device.headers import HeaderColumns
from gpustore.device.protocol import Decoders, Device
from gpustore.errors import CorruptChunkError
from gpustore.runtime.buffer import Buffer
from gpustore.strict_json.parsing import JsonValue

# Its stub calls it an instance.
_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]

# What the libraries call the container, and whether a value may hold several streams.
_GZIP, _ZLIB = 31, 15

# Levels at which isal compresses about as well as zlib does.
_ISAL_LEVELS = (1, 2)

# Input handed over at once where several streams follow each other. What a stream leaves of it
# is copied, so a value of very many tiny streams costs time in proportion to this.
_PIECE_NBYTES = 16 << 10

# What zlib makes of level -1.
_DEFAULT_LEVEL = 6

_STORED_LEVEL = integer(-1, 9)


def _stored_level(value: JsonValue) -> int:
    """Return the level in the metadata of a Zarr v2 array, with 6 for -1."""
    level: int = _STORED_LEVEL(value)
    return _DEFAULT_LEVEL if level == -1 else level


LEVEL_V2 = Option(
    name="level",
    convert=integer(0, 9),
    convert_stored=_stored_level,
    default=1,
    stored_default=1,
)
"""Option ``level`` of Zarr v2."""


def deflate_variant(name: str, level: Option) -> CodecVariant:
    """Return the variant of ``gzip`` or ``zlib`` with this option ``level``."""

    def prepare(options: Options, itemsize: int | None) -> Deflate:
        del itemsize
        return Deflate(name, options["level"])

    return CodecVariant(options=(level,), prepare=prepare)


@dataclass(frozen=True, slots=True)
class Deflate(BytesCodec):
    """A gzip or zlib stage.

    Attributes
    ----------
    name : str
        ``"gzip"`` or ``"zlib"``.
    level : int
        0 (stored) to 9.
    """

    name: str
    level: int
    decode_ns = 1.8

    @property
    def native_codec(self) -> str:
        return self.name

    def native_options(self, decoded_nbytes: int) -> Mapping[str, int] | None:
        del decoded_nbytes
        return None if self.level in _ISAL_LEVELS else {"level": self.level}

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return zlib's bound for unknown encoders, with room for headers, in bytes."""
        return decoded_nbytes + (decoded_nbytes >> 3) + (decoded_nbytes >> 6) + 4096

    def encode(self, decoded: Buffer) -> Buffer:
        """Encode one stream, with a gzip header without time and name.

        Equal chunks have equal bytes, but for levels 1 and 2: isal does not promise them.
        """
        if self.level in _ISAL_LEVELS:
            encoded: bytes = isal_zlib.compress(decoded, self.level, self._wbits)
            return encoded
        nbytes = memoryview(decoded).nbytes
        return compress(self.name, decoded, self.level, self.encoded_bound(nbytes))

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode one stream, for gzip also several members in a row, as the format allows."""
        stream = isal_zlib.decompressobj(self._wbits)
        try:
            decoded = stream.decompress(encoded, decoded_max + 1)
            if stream.unused_data and self._wbits == _GZIP:
                decoded = self._decode_members(memoryview(encoded), decoded_max)
            else:
                self._check_end(stream, len(decoded), decoded_max)
                if stream.unused_data:
                    used = len(encoded) - len(stream.unused_data)
                    raise too_long(used, len(encoded), codec=self.name)
        except _ERROR as error:
            raise CorruptChunkError(f"inflate() failed: {error}", codec=self.name) from error
        if exact and len(decoded) != decoded_max:
            raise too_short(decoded_max, len(decoded), codec=self.name)
        return deliver(decoded, decoded_max, exact=exact, out=out)

    @property
    def device_codec(self) -> str:
        """Name of the codec on a device."""
        return "gzip" if self._wbits == _GZIP else "deflate"

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the decoding of values of one plain stream, with a comparison of checksums."""
        is_gzip = self._wbits == _GZIP
        if not is_gzip and not exact:
            self._fall_back_all(commands, "zlib: does not say how many bytes it holds")
            return

        def read(columns: EncodedColumns) -> tuple[HeaderColumns, dict[int, str]]:
            start, length = columns.start, columns.nbytes
            if is_gzip:
                nbytes, reasons = read_gzip(columns, start, length)
            else:
                _, reasons = read_zlib(columns, start, length)
                nbytes = np.full(len(columns), decoded_max, np.int64)
            wrong = (nbytes == 0) | ((nbytes != decoded_max) if exact else (nbytes > decoded_max))
            size = f"{self.name}: does not hold {decoded_max} bytes, or in several members"
            reasons = {**dict.fromkeys(np.flatnonzero(wrong).tolist(), size), **reasons}
            ok = np.ones(len(columns), np.bool_)
            ok[list(reasons)] = False
            expected = np.zeros(len(columns), np.uint32)
            checksums = crc32s if is_gzip else adler32s
            expected[ok] = checksums(columns, start[ok], length[ok])
            return HeaderColumns((nbytes, expected)), reasons

        headers = self._headers(commands, read)
        if headers is None:
            return
        nbytes, _ = headers.columns
        if is_gzip:
            decompress_values(commands, device, "gzip", commands.values, nbytes)
        else:
            src = commands.values.inside(ZLIB_HEADER_NBYTES, ZLIB_CHECKSUM_NBYTES)
            decompress_values(commands, device, "deflate", src, nbytes)
        if len(commands):
            _, expected = commands.headers.columns
            commands.checksum("crc32" if is_gzip else "adler32", commands.values, expected)

    def encode_unsupported_reason(self, device: Decoders, decoded_nbytes: int) -> str | None:
        """Return why a device encodes no values: level 0, a high one, or a missing library."""
        highest = HIGHEST_LEVELS["deflate"]
        if not 0 < self.level <= highest:
            return f"{self.name}: the host encodes level 0 and levels above {highest}"
        return cannot_compress(device, "deflate", decoded_nbytes)

    def encode_device(self, commands: EncodingList) -> EncodedValues:
        """Record the encoding of each value as one stream, and the checksums behind them."""
        if self._wbits == _ZLIB:
            sums = commands.digest("adler32", commands.values)
            return Framed(commands, "deflate", ZLIB_HEADER, lambda: big_endian(sums.values))
        crcs = commands.digest("crc32", commands.values)
        sizes = little_endian(commands.values.nbytes.astype(np.uint32))
        return Framed(
            commands,
            "deflate",
            GZIP_HEADER,
            lambda: np.concatenate([little_endian(crcs.values), sizes], axis=1),
        )

    @property
    def _wbits(self) -> int:
        return _GZIP if self.name == "gzip" else _ZLIB

    def _check_end(self, stream: isal_zlib.Decompress, found: int, decoded_max: int) -> None:
        if found > decoded_max:
            raise too_long(decoded_max, codec=self.name)
        if not stream.eof:
            raise CorruptChunkError(
                f"Truncated Zlib-compressed stream; at uncompressed byte {found}", codec=self.name
            )

    def _decode_members(self, encoded: memoryview, decoded_max: int) -> bytes:
        """Decode all members of a gzip file with several."""
        decoded = bytearray()
        position = 0
        while position < len(encoded):
            stream = isal_zlib.decompressobj(_GZIP)
            while not stream.eof and position < len(encoded) and len(decoded) <= decoded_max:
                piece = encoded[position : position + _PIECE_NBYTES]
                decoded += stream.decompress(piece, decoded_max + 1 - len(decoded))
                position += len(piece) - len(stream.unused_data) - len(stream.unconsumed_tail)
            self._check_end(stream, len(decoded), decoded_max)
        return bytes(decoded)
