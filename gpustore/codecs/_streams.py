"""Values of several compressed streams in a row, as bzip2 and xz files may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpustore.codec_chain.base import too_long
from gpustore.errors import CorruptChunkError

# Input handed over at once. What a stream leaves of it is copied, so a value of very many tiny
# streams costs time in proportion to this.
_PIECE_NBYTES = 4 << 10


class Decompressor(Protocol):
    """Common interface of the decompressors of :mod:`bz2` and :mod:`lzma`."""

    @property
    def eof(self) -> bool:
        """Whether the end of the stream was reached."""

    @property
    def needs_input(self) -> bool:
        """Whether no more can be decoded without more input."""

    @property
    def unused_data(self) -> bytes:
        """Bytes after the end of the stream."""

    def decompress(self, data: bytes | memoryview, max_length: int) -> bytes:
        """Decode at most `max_length` bytes."""


def decode_streams(
    start: Callable[[], Decompressor],
    encoded: memoryview,
    decoded_max: int,
    *,
    codec: str,
    name: str,
    several: bool = True,
) -> bytearray:
    """Decode streams of at most `decoded_max` bytes together.

    Parameters
    ----------
    start : callable
        Makes the decompressor of one stream.
    encoded : memoryview
        Bytes of the whole value.
    decoded_max : int
        Longest result, in bytes.
    codec, name : str
        Names of the codec and of its format in errors.
    several : bool, optional
        Whether several streams in a row are legal.

    Raises
    ------
    CorruptChunkError
        If the result would be longer, a stream has no end, or bytes follow the last one.
    """
    decoded = bytearray()
    position = 0
    stream = start()
    while True:
        piece = encoded[position : position + _PIECE_NBYTES] if stream.needs_input else b""
        if stream.needs_input and not piece:
            raise CorruptChunkError(
                f"Truncated {name}-compressed stream; at uncompressed byte {len(decoded)}",
                codec=codec,
            )
        decoded += stream.decompress(piece, decoded_max + 1 - len(decoded))
        if len(decoded) > decoded_max:
            raise too_long(decoded_max, codec=codec)
        position += len(piece)
        if stream.eof:
            position -= len(stream.unused_data)
            if position == len(encoded):
                return decoded
            if not several:
                raise too_long(position, len(encoded), codec=codec)
            stream = start()
