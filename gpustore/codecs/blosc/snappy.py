"""Snappy's raw blocks, which Blosc frames hold: a varint, literals, and copies of earlier bytes.

cramjam decodes them where it is installed. Otherwise a loop over the elements does, 50 to 150
times as slowly: a chunk of a mebibyte in a tenth of a second. Only cramjam encodes. Measured in
``docs/design/002-dependencies.md``.

Source: https://github.com/google/snappy/blob/main/format_description.txt
"""

from __future__ import annotations

from typing import Any, Final

from gpustore.runtime.buffer import Buffer

_library: Any
try:
    import cramjam
except ModuleNotFoundError:
    _library = None
else:
    _library = cramjam


_MAX_VARINT_NBYTES: Final = 5


def can_encode() -> bool:
    """Return whether the library that encodes is installed."""
    return _library is not None


def encode(decoded: Buffer) -> Buffer:
    """Encode one block; requires :func:`can_encode`."""
    encoded: Buffer = memoryview(_library.snappy.compress_raw(decoded))
    return encoded


def decode(encoded: memoryview, nbytes: int) -> Buffer:
    """Decode one block of exactly `nbytes` bytes; allocates no more.

    Raises
    ------
    ValueError
        If `encoded` is not such a block.
    """
    start = _check_length(encoded, nbytes)
    if _library is None:
        return _decode_elements(encoded, start, nbytes)
    decoded = bytearray(nbytes)
    try:
        found = _library.snappy.decompress_raw_into(encoded, decoded)
    except _library.DecompressionError as error:
        raise ValueError(f"snappy: {error}") from error
    if found != nbytes:
        raise ValueError(f"snappy: {found} bytes, expected {nbytes}")
    return decoded


def _check_length(encoded: memoryview, nbytes: int) -> int:
    """Check that a block decodes to `nbytes` bytes; return the beginning of its elements."""
    length = 0
    for position, byte in enumerate(encoded[:_MAX_VARINT_NBYTES]):
        length |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            if length != nbytes:
                raise ValueError(f"snappy: a block of {length} bytes, expected {nbytes}")
            return position + 1
    raise ValueError("snappy: a block without a length")


def _decode_elements(encoded: memoryview, position: int, nbytes: int) -> bytearray:
    decoded = bytearray()
    end = len(encoded)
    while position < end:
        tag = encoded[position]
        kind = tag & 3
        if kind == 0:
            length = (tag >> 2) + 1
            position += 1
            if length > 60:
                more = length - 60
                length = int.from_bytes(encoded[position : position + more], "little") + 1
                position += more
            if position + length > end:
                raise ValueError("snappy: a literal goes beyond the end")
            decoded += encoded[position : position + length]
            position += length
        else:
            length, offset, size = _copy(encoded, position, kind)
            position += size
            found = len(decoded)
            if position > end or not 0 < offset <= found:
                raise ValueError("snappy: a copy of what is not there")
            if offset >= length:
                decoded += decoded[found - offset : found - offset + length]
            else:
                # The copy overlaps its own output: the last `offset` bytes repeat.
                decoded += (decoded[found - offset :] * (length // offset + 1))[:length]
        if len(decoded) > nbytes:
            raise ValueError(f"snappy: more than {nbytes} bytes")
    if len(decoded) != nbytes:
        raise ValueError(f"snappy: {len(decoded)} bytes, expected {nbytes}")
    return decoded


def _copy(encoded: memoryview, position: int, kind: int) -> tuple[int, int, int]:
    """Return length and offset of a copy, and the number of its bytes."""
    tag = encoded[position]
    if kind == 1:
        low = int.from_bytes(encoded[position + 1 : position + 2], "little")
        return (tag >> 2 & 7) + 4, tag >> 5 << 8 | low, 2
    size = 3 if kind == 2 else 5
    return (tag >> 2) + 1, int.from_bytes(encoded[position + 1 : position + size], "little"), size
