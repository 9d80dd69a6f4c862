"""The ``bz2`` codec.

============  ====================================================================
content       bzip2 streams
specification https://numcodecs.readthedocs.io/en/stable/compression/bz2.html
v3 name       none
v2 id         ``bz2``
============  ====================================================================

Zarr v2::

    {"id": "bz2", "level": 1}

The default level is 1, as in TensorStore. Several streams in a row are read if together they are
exactly one chunk; TensorStore reads the first alone. A stream without its last bytes is an error;
TensorStore ignores bytes after the last element.
"""

from __future__ import annotations

import bz2
from dataclasses import dataclass

from gpustore.codec_chain.base import BytesCodec, deliver, too_short
from gpustore.codec_chain.registered import Codec, CodecVariant, Option, Options, integer
from gpustore.codecs._streams import decode_streams
from gpustore.errors import CorruptChunkError
from gpustore.runtime.buffer import Buffer


@dataclass(frozen=True, slots=True)
class _Bz2(BytesCodec):
    name = "bz2"
    decode_ns = 30.0
    level: int

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the bound of bzip2's manual: 1 % and 600 bytes more."""
        return decoded_nbytes + (decoded_nbytes >> 5) + 4096

    def encode(self, decoded: Buffer) -> Buffer:
        return bz2.compress(decoded, self.level)

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode one stream or several in a row."""
        try:
            decoded = decode_streams(
                bz2.BZ2Decompressor,
                memoryview(encoded),
                decoded_max,
                codec="bz2",
                name="Bzip2",
            )
        except OSError as error:
            raise CorruptChunkError(f"BZ2_bzDecompress() failed: {error}", codec="bz2") from error
        if exact and len(decoded) != decoded_max:
            raise too_short(decoded_max, len(decoded), codec="bz2")
        return deliver(decoded, decoded_max, exact=exact, out=out)


def _prepare(options: Options, itemsize: int | None) -> _Bz2:
    del itemsize
    return _Bz2(options["level"])


CODEC = Codec(
    name="bz2",
    v2=CodecVariant(
        options=(Option(name="level", convert=integer(1, 9), default=1, stored_default=1),),
        prepare=_prepare,
    ),
)
