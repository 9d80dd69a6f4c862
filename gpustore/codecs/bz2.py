"""The ``bz2`` codec.

============  ====================================================================
what          bzip2 streams
specification https://numcodecs.readthedocs.io/en/stable/compression/bz2.html
v3 name       none
v2 id         ``bz2``
============  ====================================================================

Zarr v2::

    {"id": "bz2", "level": 1}

The default level is 1, as in TensorStore. Several streams in a row are read if together they are
exactly one chunk; TensorStore reads the first alone. A stream that lacks its last bytes is an
error; TensorStore ignores what comes after the last element.
"""

from __future__ import annotations

import bz2
from dataclasses import dataclass

from gpustore.codecs.base import (
    BytesCodec,
    Codec,
    Face,
    Option,
    Options,
    deliver,
    integer,
    too_long,
    too_short,
)
from gpustore.errors import CorruptChunkError
from gpustore.kvstores.base import Buffer

__all__ = ["CODEC"]

# Input handed over at once. What a stream leaves of it is copied, so a value of very many tiny
# streams costs time in proportion to this.
_PIECE_NBYTES = 4 << 10


@dataclass(frozen=True, slots=True)
class _Bz2(BytesCodec):
    name = "bz2"
    level: int

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """The bound that bzip2's manual gives is 1 % and 600 bytes."""
        return decoded_nbytes + (decoded_nbytes >> 5) + 4096

    def encode(self, decoded: Buffer) -> Buffer:
        """One stream."""
        return bz2.compress(decoded, self.level)

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """One stream or several in a row."""
        try:
            decoded = _decode_streams(memoryview(encoded), decoded_max)
        except OSError as error:
            raise CorruptChunkError(f"BZ2_bzDecompress() failed: {error}", codec="bz2") from error
        if exact and len(decoded) != decoded_max:
            raise too_short(decoded_max, len(decoded), codec="bz2")
        return deliver(decoded, decoded_max, exact=exact, out=out)


def _decode_streams(encoded: memoryview, decoded_max: int) -> bytearray:
    decoded = bytearray()
    position = 0
    stream = bz2.BZ2Decompressor()
    while True:
        piece = encoded[position : position + _PIECE_NBYTES] if stream.needs_input else b""
        if stream.needs_input and not piece:
            raise CorruptChunkError(
                f"Truncated Bzip2-compressed stream; at uncompressed byte {len(decoded)}",
                codec="bz2",
            )
        decoded += stream.decompress(piece, decoded_max + 1 - len(decoded))
        position += len(piece) - len(stream.unused_data)
        if len(decoded) > decoded_max:
            raise too_long(decoded_max, codec="bz2")
        if stream.eof:
            if position == len(encoded):
                return decoded
            stream = bz2.BZ2Decompressor()


def _prepare(options: Options, itemsize: int | None) -> _Bz2:
    del itemsize
    return _Bz2(options["level"])


CODEC = Codec(
    name="bz2",
    v2=Face(
        options=(Option(name="level", convert=integer(1, 9), default=1, stored_default=1),),
        prepare=_prepare,
    ),
)
