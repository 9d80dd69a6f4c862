"""One member of a zip archive: its local header, and the coding of its data (APPNOTE 4.3.7).

The local header repeats the record of the directory; it is needed because its extra fields may
have another length, so only it tells where the data begin. Name, method and flags must be the same
in both. Sizes and checksum may be missing there, if they follow the data.

Decoders make at most one byte more than expected, and refuse data that are longer, shorter, or
followed by other bytes. A request for the beginning of a member decodes no more than that.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import zstandard
from isal import isal_zlib

from gpustore.errors import CorruptChunkError
from gpustore.kvstores.zip.directory import METHODS, Directory, corrupt
from gpustore.runtime.buffer import Buffer

LOCAL_HEADER: Final = struct.Struct("<4s5H3L2H")
"""Signature, version, flags, method, time, date, CRC-32, lengths, lengths of name and extra."""

LOCAL_SIGNATURE: Final = b"PK\3\4"

ENCODE_METHODS: Final = {"store": 0, "deflate": 8, "zstd": 93, "xz": 95}
"""Methods for writing members, by their names in specs."""

# Flags that change how data are read: encrypted (three of them), patched.
_MEANINGFUL_FLAGS: Final = 1 | 1 << 5 | 1 << 6 | 1 << 13

# Compresses about as well as zlib's lowest levels, in a fifth of their time; most values have been
# compressed already.
_DEFLATE_LEVEL: Final = 2

# The dictionary of xz's highest preset takes this much.
_XZ_MEMORY_NBYTES: Final = 80 << 20

# Input of xz handed over at once. What a stream leaves of it is copied, so a member of very many
# tiny streams costs time in proportion to this.
_PIECE_NBYTES: Final = 4 << 10

# Above this size TensorStore takes a member that expands more often than this for a bomb, and
# leaves it out.
_BOMB_NBYTES: Final = 1 << 20
_BOMB_RATIO: Final = 1024

_ERRORS: Final[tuple[type[Exception], ...]] = (
    isal_zlib.error,  # type: ignore[assignment]  # Its stub calls it an instance.
    *(OSError, EOFError, lzma.LZMAError, zstandard.ZstdError),
)


def read_local_header(directory: Directory, row: int, header: Buffer) -> int:
    """Return the beginning of the data of a member, in bytes from the beginning of the archive.

    Parameters
    ----------
    directory : Directory
    row : int
        Row of the member.
    header : Buffer
        Bytes of at least the fixed part of the local header, and the name.

    Raises
    ------
    CorruptChunkError
        If the header is that of another member, or the data reach into the next one.
    """
    name = directory.name(row)
    offset = int(directory.offset[row])
    if len(header) < LOCAL_HEADER.size + len(name):
        raise corrupt("ZIP Local Entry insufficient data available")
    signature, _, flags, method, _, _, _, _, _, name_nbytes, extra_nbytes = (
        LOCAL_HEADER.unpack_from(header)
    )
    if signature != LOCAL_SIGNATURE:
        raise corrupt(
            f"Failed to read ZIP Local Entry signature at byte {offset} of the archive: found "
            f"{signature!r}, expected {LOCAL_SIGNATURE!r}"
        )
    record = directory.record[row]
    if bytes(header[LOCAL_HEADER.size : LOCAL_HEADER.size + name_nbytes]) != name:
        raise corrupt(f"the ZIP Local Entry at byte {offset} of the archive has another name")
    if method != record["method"] or (flags ^ int(record["flags"])) & _MEANINGFUL_FLAGS:
        raise corrupt(
            f"the ZIP Local Entry at byte {offset} of the archive says method {method} and flags "
            f"{flags}, its directory says {record['method']} and {record['flags']}"
        )
    start: int = offset + LOCAL_HEADER.size + name_nbytes + extra_nbytes
    stop = start + int(directory.encoded_nbytes[row])
    if stop > directory.bound[row]:
        raise corrupt(
            f"Invalid ZIP Local Entry extra field length {extra_nbytes}: the data would end at "
            f"byte {stop} of the archive, other things begin at byte {int(directory.bound[row])}"
        )
    return start


def check_encoded_nbytes(method: int, encoded_nbytes: int, decoded_nbytes: int) -> None:
    """Raise CorruptChunkError if the two lengths of a member are incompatible."""
    if method == 0:
        is_possible = encoded_nbytes == decoded_nbytes
    else:
        # No encoder makes more of what it cannot shrink; deflate never expands more often.
        most = decoded_nbytes + (decoded_nbytes >> 2) + (64 << 10)
        is_possible = encoded_nbytes <= most
        if method == 8:
            is_possible &= decoded_nbytes <= (encoded_nbytes + 16) * 1032
    if not is_possible:
        raise corrupt(
            f"{encoded_nbytes} bytes of method {METHODS[method]} cannot hold {decoded_nbytes} bytes"
        )


def check_crc32(data: Buffer, expected: int) -> None:
    """Raise CorruptChunkError unless `data`, a whole member, match the checksum of its record."""
    found = isal_zlib.crc32(data)
    if found != expected:
        raise wrong_crc32(found, expected)


def wrong_crc32(found: int, expected: int) -> CorruptChunkError:
    """Return the error for a member with another checksum than that of its record."""
    return corrupt(f"CRC-32 of the data is {found:08x}, expected {expected:08x}")


def decode(method: int, encoded: Buffer, decoded_nbytes: int, wanted: int) -> bytes:
    """Decode the first `wanted` of `decoded_nbytes` bytes of a compressed member.

    Raises
    ------
    CorruptChunkError
        If the data do not decode, or decode to another number of bytes where all of them are
        wanted.
    """
    if wanted == 0 < decoded_nbytes:
        return b""
    is_whole = wanted == decoded_nbytes
    try:
        if method == 93:
            decoded = _decode_zstd(encoded, wanted, is_whole=is_whole)
        elif method == 95:
            decoded = _decode_xz(memoryview(encoded), wanted, is_whole=is_whole)
        else:
            stream = _DECOMPRESSORS[method]()
            decoded = stream.decompress(encoded, wanted + is_whole)
            if is_whole and len(decoded) == wanted and not stream.eof:
                # All bytes are decoded; the rest of the stream must be its end.
                decoded += stream.decompress(getattr(stream, "unconsumed_tail", b""), 1)
            if is_whole and len(decoded) <= wanted and not stream.eof:
                raise corrupt(
                    f"Truncated {METHODS[method]}-compressed stream; at uncompressed byte "
                    f"{len(decoded)}"
                )
            if is_whole and stream.unused_data:
                raise corrupt(
                    f"{len(stream.unused_data)} bytes follow the end of the "
                    f"{METHODS[method]}-compressed stream"
                )
    except _ERRORS as error:
        raise corrupt(f"{METHODS[method]}-compressed stream cannot be decoded: {error}") from error
    if len(decoded) != wanted:
        more = "more than " if len(decoded) > wanted else ""
        count = min(len(decoded), wanted)
        raise corrupt(f"ZIP entry holds {more}{count} bytes, its directory says {decoded_nbytes}")
    return decoded


def encode(compression: str, data: Buffer) -> tuple[int, Buffer]:
    """Return the method for a new member, and its encoded data.

    Data that do not shrink are stored as they are, so that they can be read in parts, and by a
    device. Data that TensorStore would take for a decompression bomb are deflated at zlib's lowest
    level, which expands at most 250 times.
    """
    method = ENCODE_METHODS[compression]
    nbytes = len(data)
    if method == 0:
        return 0, data
    encoded = _COMPRESS[method](data)
    if _is_bomb(nbytes, len(encoded)):
        stream = zlib.compressobj(1, zlib.DEFLATED, -15)
        method, encoded = 8, stream.compress(data) + stream.flush()
    if len(encoded) >= nbytes or _is_bomb(nbytes, len(encoded)):
        return 0, data
    return method, encoded


def _is_bomb(decoded_nbytes: int, encoded_nbytes: int) -> bool:
    return decoded_nbytes > _BOMB_NBYTES and decoded_nbytes > encoded_nbytes * (_BOMB_RATIO - 1)


def _deflate(data: Buffer) -> bytes:
    stream = isal_zlib.compressobj(_DEFLATE_LEVEL, isal_zlib.DEFLATED, -15)
    encoded: bytes = stream.compress(data) + stream.flush()
    return encoded


def _decode_zstd(encoded: Buffer, wanted: int, *, is_whole: bool) -> bytes:
    decompressor = zstandard.ZstdDecompressor()
    if not is_whole:
        with decompressor.stream_reader(encoded) as reader:
            return reader.read(wanted)
    size = zstandard.frame_content_size(encoded)
    if size not in (-1, wanted):
        raise corrupt(f"zstd frame holds {size} bytes, the directory says {wanted}")
    if not wanted:
        # `decompress` takes a limit of 0 for none.
        with decompressor.stream_reader(encoded) as reader:
            return reader.read(1)
    return decompressor.decompress(encoded, max_output_size=wanted, allow_extra_data=False)


def _decode_xz(encoded: memoryview, wanted: int, *, is_whole: bool) -> bytes:
    """Decode xz streams in a row, with zero bytes in fours between them, as the format allows.

    The result has one byte more than wanted if there are more.
    """
    decoded = bytearray()
    most = wanted + is_whole
    position = 0
    while len(decoded) < most and (position < len(encoded) or not position):
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_NBYTES)
        while len(decoded) < most and not stream.eof:
            piece = encoded[position : position + _PIECE_NBYTES] if stream.needs_input else b""
            if stream.needs_input and not piece:
                raise corrupt(
                    f"Truncated xz-compressed stream; at uncompressed byte {len(decoded)}"
                )
            decoded += stream.decompress(piece, most - len(decoded))
            position += len(piece)
        position -= len(stream.unused_data)
        position += _padding_nbytes(encoded, position)
    return bytes(decoded)


def _padding_nbytes(encoded: memoryview, start: int) -> int:
    """Return the number of zero bytes from `start`, in fours."""
    position = start
    while piece := bytes(encoded[position : position + _PIECE_NBYTES]):
        zeros = len(piece) - len(piece.lstrip(b"\0"))
        position += zeros
        if zeros < len(piece):
            break
    return (position - start) // 4 * 4


_DECOMPRESSORS: Final[dict[int, Callable[[], Any]]] = {
    8: lambda: isal_zlib.decompressobj(-15),
    12: bz2.BZ2Decompressor,
}

_COMPRESS: Final[dict[int, Callable[[Buffer], bytes]]] = {
    8: _deflate,
    93: lambda data: zstandard.ZstdCompressor(level=3).compress(data),
    95: lambda data: lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC64),
}
