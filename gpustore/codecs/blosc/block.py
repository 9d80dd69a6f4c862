"""Blocks and streams of frames that Blosc will make or has made of a chunk, known without a frame.

Source: c-blosc 1.21, ``compute_blocksize`` and ``split_block`` in ``blosc.c``.
"""

from __future__ import annotations

from typing import Final

from gpustore.codecs.blosc.frame import MAX_SPLITS, MIN_STREAM_NBYTES

_L1_NBYTES: Final = 32 << 10
_LARGE_CNAMES: Final = frozenset({"lz4hc", "zlib", "zstd"})
"""Compressors that get blocks of twice the size, because they are slow with small ones."""

_LEVEL_FACTORS: Final = (1 / 4, 1 / 2, 1, 2, 4, 4, 8, 8, 8, 8)
_LEAST_NBYTES: Final = 128
_SPLIT_NBYTES: Final = (64 << 10, 1 << 20)
"""Least and most bytes of a block of several streams."""


def streams_of(
    nbytes: int, *, cname: str, clevel: int, typesize: int, blocksize: int
) -> tuple[int, int]:
    """Return the number of streams in a frame of `nbytes` decoded bytes, and bytes of the longest.

    Streams that are stored as they are count too. `blocksize` is 0 if Blosc chooses it.

    >>> streams_of(16 << 20, cname="lz4", clevel=5, typesize=4, blocksize=0)
    (128, 131072)
    """
    block = _block_nbytes(nbytes, cname, clevel, typesize, blocksize)
    if not block:
        return 0, 0
    splits = typesize if _is_split(cname, typesize, block) else 1
    whole, left = divmod(nbytes, block)
    return whole * splits + bool(left), max(block // splits if whole else 0, left)


def _is_split(cname: str, typesize: int, block: int) -> bool:
    is_long = block // typesize >= MIN_STREAM_NBYTES
    return cname != "zstd" and typesize <= MAX_SPLITS and is_long


def _block_nbytes(nbytes: int, cname: str, clevel: int, typesize: int, blocksize: int) -> int:
    if nbytes < typesize:
        return min(1, nbytes)
    block = nbytes
    if blocksize:
        block = max(blocksize, _LEAST_NBYTES)
    elif nbytes >= _L1_NBYTES:
        is_large = cname in _LARGE_CNAMES
        block = int(_L1_NBYTES * _LEVEL_FACTORS[clevel]) * (2 if is_large else 1)
        if is_large and clevel == 9:
            block *= 2
    if clevel and _is_split(cname, typesize, block):
        least, most = _SPLIT_NBYTES
        block = min(max(min(block, 1 << 18) * typesize, least), most)
    block = min(block, nbytes)
    return block // typesize * typesize if block > typesize else block
