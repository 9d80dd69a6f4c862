"""Codecs of numcodecs that put a checksum of 32 bits before or behind the bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpustore.codec_chain.base import BytesCodec, deliver, too_long, too_short
from gpustore.codec_chain.registered import Codec, CodecVariant, Option, Options, choice
from gpustore.errors import CorruptChunkError
from gpustore.runtime.buffer import Buffer

_NBYTES = 4


@dataclass(frozen=True, slots=True)
class Checksum(BytesCodec):
    """The checksum of a codec of numcodecs, whose :meth:`decode` compares it.

    Attributes
    ----------
    name : str
    codec : numcodecs.abc.Codec
        Codec without state, shared by all chunks.
    """

    is_exact = True
    is_view = True
    decode_ns = 0.5

    name: str
    codec: Any

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the exact length of the encoding, in bytes."""
        return decoded_nbytes + _NBYTES

    def encode(self, decoded: Buffer) -> Buffer:
        """Return the data and their checksum."""
        return memoryview(self.codec.encode(decoded))

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Return a view of `encoded` without its checksum, or a copy in `out`."""
        nbytes = len(encoded) - _NBYTES
        if nbytes < 0 or (exact and nbytes < decoded_max):
            expected = decoded_max + _NBYTES if exact else _NBYTES
            raise too_short(expected, len(encoded), codec=self.name)
        if nbytes > decoded_max:
            raise too_long(decoded_max + _NBYTES, len(encoded), codec=self.name)
        try:
            view = memoryview(self.codec.decode(encoded))
        except RuntimeError as error:
            raise CorruptChunkError(
                f"Digest mismatch: {error}".replace(chr(10), " "),
                status="DATA_LOSS",
                codec=self.name,
            ) from error
        return deliver(view, decoded_max, exact=exact, out=out)


def checksum_variant(name: str, make: Callable[..., Any], location: str) -> CodecVariant:
    """Return the Zarr v2 variant of a checksum in the place that ``location`` names."""

    def prepare(options: Options, itemsize: int | None) -> Checksum:
        del itemsize
        return Checksum(name, make(location=options["location"]))

    return CodecVariant(
        options=(
            Option(
                name="location",
                convert=choice("start", "end"),
                default=location,
                stored_default=location,
            ),
        ),
        prepare=prepare,
    )


def checksum_codec(name: str, make: Callable[..., Any]) -> Codec:
    """Return a codec with a checksum before the bytes, unless ``location`` names another place."""
    return Codec(name=name, filter=checksum_variant(name, make, "start"))
