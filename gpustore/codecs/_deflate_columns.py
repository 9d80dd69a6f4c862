"""What is around many Deflate streams: headers and trailers of zlib and gzip, read together.

Deflate itself has no headers that could be followed without decoding it. Source: RFC 1950 2.2,
RFC 1952 2.3.
"""

from __future__ import annotations

import numpy as np

from gpustore.codecs._encoded_columns import EncodedColumns, Integers

__all__ = ["read_gzip", "read_zlib"]

_ZLIB_MIN_NBYTES = 2 + 2 + 4
_GZIP_MIN_NBYTES = 10 + 2 + 8


def read_zlib(
    encoded: EncodedColumns, start: Integers, nbytes: Integers
) -> tuple[Integers, dict[int, str]]:
    """Which zlib streams are left to the host, and why; their decoded sizes are -1: not known.

    Parameters
    ----------
    encoded : EncodedColumns
    start, nbytes : ndarray of int64, shape (n,)
        Where each stream begins, counted as in `encoded`, and how many bytes it has.
    """
    ok = nbytes >= _ZLIB_MIN_NBYTES
    method, flags = encoded.uint(start, 1, ok), encoded.uint(start + 1, 1, ok)
    reasons = dict.fromkeys(
        np.flatnonzero(flags & 0x20).tolist(), "zlib: needs a preset dictionary"
    )
    wrong = (method & 0xF != 8) | (method >> 4 > 7) | ((method << 8 | flags) % 31 != 0)
    reasons.update(dict.fromkeys(np.flatnonzero(wrong).tolist(), "zlib: no zlib header"))
    reasons.update(dict.fromkeys(np.flatnonzero(~ok).tolist(), "zlib: shorter than a stream"))
    return np.full(len(start), -1, np.int64), reasons


def read_gzip(
    encoded: EncodedColumns, start: Integers, nbytes: Integers
) -> tuple[Integers, dict[int, str]]:
    """How many bytes the last member of gzip files has, modulo 2**32, and which go to the host.

    Of several members the last one is shorter than all together. Parameters as for
    :func:`read_zlib`.
    """
    ok = nbytes >= _GZIP_MIN_NBYTES
    magic, flags = encoded.uint(start, 3, ok), encoded.uint(start + 3, 1, ok)
    reasons = dict.fromkeys(
        np.flatnonzero(flags).tolist(), "gzip: its header has a name, a comment or extra fields"
    )
    wrong = magic != 0x088B1F
    reasons.update(dict.fromkeys(np.flatnonzero(wrong).tolist(), "gzip: no gzip header"))
    reasons.update(dict.fromkeys(np.flatnonzero(~ok).tolist(), "gzip: shorter than a member"))
    return encoded.uint(start + nbytes - 4, 4, ok), reasons
