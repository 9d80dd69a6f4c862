"""Headers and trailers of many zlib or gzip streams, read together.

Deflate itself has no headers that can be read without decoding, except that of the first block.
Source: RFC 1950 2.2, RFC 1951 3.2, RFC 1952 2.3.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpustore.device.encoded_columns import EncodedColumns, Integers, Mask

ZLIB_HEADER_NBYTES: Final = 2
ZLIB_CHECKSUM_NBYTES: Final = 4
_ZLIB_MIN_NBYTES: Final = ZLIB_HEADER_NBYTES + 2 + ZLIB_CHECKSUM_NBYTES
ZLIB_HEADER: Final = b"\x78\x9c"
"""Header of a zlib stream with a window of 32 KiB, of the default level."""
GZIP_HEADER: Final = bytes.fromhex("1f8b 08 00 00000000 00 ff")
"""Header of a gzip member without time and name, of an unknown system."""
_GZIP_HEADER_NBYTES: Final = len(GZIP_HEADER)
_GZIP_MIN_NBYTES: Final = _GZIP_HEADER_NBYTES + 2 + 8

_STORED, _RESERVED = 0, 3  # Kinds of blocks.


def read_zlib(
    encoded: EncodedColumns, start: Integers, nbytes: Integers
) -> tuple[Integers, dict[int, str]]:
    """Check zlib streams; return decoded sizes (all -1, unknown) and reasons for the host.

    Parameters
    ----------
    encoded : EncodedColumns
    start, nbytes : ndarray of int64, shape (n,)
        Beginning of each stream, counted as in `encoded`, and its length in bytes.
    """
    ok = nbytes >= _ZLIB_MIN_NBYTES
    method, flags = encoded.uint(start, 1, ok), encoded.uint(start + 1, 1, ok)
    reasons = dict.fromkeys(
        np.flatnonzero(flags & 0x20).tolist(), "zlib: needs a preset dictionary"
    )
    wrong = (method & 0xF != 8) | (method >> 4 > 7) | ((method << 8 | flags) % 31 != 0)
    reasons.update(dict.fromkeys(np.flatnonzero(wrong).tolist(), "zlib: no zlib header"))
    wrong = _impossible(encoded, start + ZLIB_HEADER_NBYTES, start + nbytes, ok)
    reasons.update(dict.fromkeys(np.flatnonzero(wrong).tolist(), "zlib: impossible block"))
    reasons.update(dict.fromkeys(np.flatnonzero(~ok).tolist(), "zlib: shorter than a stream"))
    return np.full(len(start), -1, np.int64), reasons


def read_gzip(
    encoded: EncodedColumns, start: Integers, nbytes: Integers
) -> tuple[Integers, dict[int, str]]:
    """Check gzip files; return the decoded size of the last member, modulo 2**32, and reasons.

    The last of several members is shorter than all together. Parameters are those of
    :func:`read_zlib`.
    """
    ok = nbytes >= _GZIP_MIN_NBYTES
    magic, flags = encoded.uint(start, 3, ok), encoded.uint(start + 3, 1, ok)
    reasons = dict.fromkeys(
        np.flatnonzero(flags).tolist(), "gzip: its header has a name, a comment or extra fields"
    )
    wrong = magic != 0x088B1F
    reasons.update(dict.fromkeys(np.flatnonzero(wrong).tolist(), "gzip: no gzip header"))
    wrong = _impossible(encoded, start + _GZIP_HEADER_NBYTES, start + nbytes, ok & (flags == 0))
    reasons.update(dict.fromkeys(np.flatnonzero(wrong).tolist(), "gzip: impossible block"))
    reasons.update(dict.fromkeys(np.flatnonzero(~ok).tolist(), "gzip: shorter than a member"))
    return encoded.uint(start + nbytes - 4, 4, ok), reasons


def _impossible(encoded: EncodedColumns, position: Integers, end: Integers, ok: Mask) -> Mask:
    """Return the streams that do not begin with a legal first Deflate block."""
    kind = encoded.uint(position, 1, ok) >> 1 & 3
    is_stored = ok & (kind == _STORED)
    fits = position + 5 <= end
    length = encoded.uint(position + 1, 4, is_stored & fits)
    fits &= position + 5 + (length & 0xFFFF) <= end
    wrong: Mask = kind == _RESERVED
    wrong |= is_stored & (~fits | ((length & 0xFFFF) ^ (length >> 16) != 0xFFFF))
    return wrong


def adler32s(encoded: EncodedColumns, start: Integers, nbytes: Integers) -> NDArray[np.uint32]:
    """Return the checksums at the end of zlib streams, uint32."""
    every = np.ones(len(start), np.bool_)
    checksums = encoded.uint(start + nbytes - ZLIB_CHECKSUM_NBYTES, ZLIB_CHECKSUM_NBYTES, every)
    return checksums.astype(np.uint32).byteswap()


def crc32s(encoded: EncodedColumns, start: Integers, nbytes: Integers) -> NDArray[np.uint32]:
    """Return the checksums of the last members of gzip files, uint32."""
    every = np.ones(len(start), np.bool_)
    return encoded.uint(start + nbytes - 8, 4, every).astype(np.uint32)
