"""Envelope of the manifest and the nodes of an OCDBT database.

===========  ==========================================================================
bytes        content
===========  ==========================================================================
0 to 4       magic number, big-endian
4 to 12      length of the whole, little-endian, these 12 bytes and the checksum included
then         version (varint, 0), compression (varint, 0 none or 1 zstd), body
last 4       CRC-32C of everything before, little-endian
===========  ==========================================================================

Source: TensorStore ``kvstore/ocdbt/index.rst``, "Storage format".
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Final

import google_crc32c
import zstandard

from gpustore.codecs.zstd import CODEC as ZSTD
from gpustore.errors import CorruptChunkError, LimitError
from gpustore.kvstores.ocdbt.columns import Reader

if TYPE_CHECKING:
    from gpustore.codec_chain.base import BytesCodec
    from gpustore.runtime.buffer import Buffer


MANIFEST: Final = 0x0CDB3A2A
VERSION_NODE: Final = 0x0CDB1234
BTREE_NODE: Final = 0x0CDB20DE

_NAMES: Final = {
    MANIFEST: "manifest",
    VERSION_NODE: "version tree node",
    BTREE_NODE: "b-tree node",
}
_BEGIN = struct.Struct(">I")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_HEADER_NBYTES: Final = 12
_MIN_NBYTES: Final = 16


@cache
def _zstd(level: int) -> BytesCodec:
    stage: BytesCodec = ZSTD.v2.prepare({"level": level}, None)
    return stage


def open_body(data: Buffer, magic: int, *, max_nbytes: int) -> Reader:
    """Return the decompressed body of a structure.

    Parameters
    ----------
    data : Buffer
        All bytes of the structure.
    magic : int
        Magic number of the expected kind.
    max_nbytes : int
        Longest legal body, in bytes.

    Raises
    ------
    CorruptChunkError
        If the bytes are not a whole structure of that kind.
    LimitError
        If the body is too long.
    """
    data = bytes(data)
    reader = Reader(data)
    if len(data) < _MIN_NBYTES:
        raise CorruptChunkError(
            f"Encoded length ({len(data)}) is less than minimum length ({_MIN_NBYTES})",
            status="DATA_LOSS",
        )
    found = reader.take(4)
    if found != _BEGIN.pack(magic):
        raise reader.error(
            f"Expected to start with hex bytes {magic:08x} but received: 0x{found.hex()}"
        )
    length = _LENGTH.unpack(reader.take(8))[0]
    if length != len(data):
        raise reader.error(
            f"Length in header ({length}) does not match actual length ({len(data)})"
        )
    expected = _CHECKSUM.unpack(data[-4:])[0]
    actual = google_crc32c.value(data[:-4])
    if actual != expected:
        raise CorruptChunkError(
            f"CRC-32C checksum verification failed: expected={expected}, actual={actual}",
            status="DATA_LOSS",
        )
    reader.stop -= 4
    version = reader.varint()
    if version:
        raise reader.error(f"Maximum supported version is 0 but received: {version}")
    compression = reader.varint()
    if compression == 0:
        if reader.remaining > max_nbytes:
            raise _too_long(magic, max_nbytes)
        return reader
    if compression != 1:
        raise reader.error(f"Unsupported compression format: {compression}")
    encoded = data[reader.position : reader.stop]
    try:
        # The library allocates the size that the frame states.
        if zstandard.frame_content_size(encoded) > max_nbytes:
            raise _too_long(magic, max_nbytes)
        return Reader(bytes(_zstd(0).decode(encoded, max_nbytes, exact=False)))
    except zstandard.ZstdError as error:
        raise reader.error(f"ZSTD_decompressStream() failed: {error}") from error
    except CorruptChunkError as error:
        raise reader.error(error.text) from error


def _too_long(magic: int, max_nbytes: int) -> LimitError:
    return LimitError(
        f"{_NAMES[magic]}: more than {max_nbytes} bytes when decoded, which is the limit "
        "ocdbt_node_nbytes; if the database can be trusted, open with a larger "
        'context={"limits": {"ocdbt_node_nbytes": ...}}'
    )


def seal(magic: int, body: bytes, level: int | None) -> bytes:
    """Return the bytes of a structure.

    Parameters
    ----------
    magic : int
    body : bytes
    level : int or None
        Level of zstd; None for no compression.
    """
    if level is not None:
        body = bytes(_zstd(level).encode(body))
    nbytes = _MIN_NBYTES + 2 + len(body)
    begin = _BEGIN.pack(magic) + _LENGTH.pack(nbytes) + bytes((0, level is not None))
    data = begin + body
    return data + _CHECKSUM.pack(google_crc32c.value(data))
