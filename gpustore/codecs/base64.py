"""The ``base64`` codec.

============  ======================================================================
content       The bytes as text of 64 letters (RFC 4648), four for every three
specification https://numcodecs.readthedocs.io/en/stable/base64.html
v3 name       ``numcodecs.base64``
v2 id         ``base64``, among the filters
============  ======================================================================

Zarr v2::

    "filters": [{"id": "base64"}]

Characters other than letters are an error; numcodecs skips them.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass

from gpustore.codec_chain.base import BytesCodec, check_nbytes, deliver
from gpustore.codec_chain.registered import Codec, CodecVariant, Options
from gpustore.errors import CorruptChunkError
from gpustore.runtime.buffer import Buffer


@dataclass(frozen=True, slots=True)
class _Base64(BytesCodec):
    name = "base64"

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the exact length of the encoding, in bytes."""
        return -(-decoded_nbytes // 3) * 4

    def encode(self, decoded: Buffer) -> Buffer:
        return binascii.b2a_base64(decoded, newline=False)

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        try:
            decoded = binascii.a2b_base64(encoded, strict_mode=True)
        except ValueError as error:
            raise CorruptChunkError(f"Invalid base64: {error}", codec=self.name) from error
        check_nbytes(len(decoded), decoded_max, exact=exact, codec=self.name)
        return deliver(decoded, decoded_max, exact=exact, out=out)


def _prepare(options: Options, itemsize: int | None) -> _Base64:
    del options, itemsize
    return _Base64()


CODEC = Codec(name="base64", filter=CodecVariant(options=(), prepare=_prepare))
