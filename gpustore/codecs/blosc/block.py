"""Blocks and streams of frames that Blosc will make or has made of a chunk, known without a frame.

Source: c-blosc 1.21, ``compute_blocksize`` and ``split_block`` in ``blosc.c``.
"""

from __future__ import annotations

from typing import Final

from gpustore.codecs.blosc.frame import MAX_SPLITS, MIN_STREAM_NBYTES

_MIN_BLOCKSIZE: Final = 128
MAX_BLOCKSIZE: Final = (2**31 - 1 - 4 * 255) // 3
_MAX_CLEVEL: Final = 9
_L1_NBYTES: Final = 32 << 10
_BLOCK_QUARTERS: Final = (1, 2, 4, 8, 16, 16, 32, 32, 32, 32)
_HIGH_RATIO_CNAMES: Final = frozenset({"lz4hc", "zlib", "zstd"})
"""Compressors that get blocks of twice the size, because they are slow with small ones."""

# Of blocks that are split: most bytes of a stream before the limits of the whole, and these.
_MAX_SPLIT, _LEAST_SPLIT, _MOST_SPLIT = 256 << 10, 64 << 10, 1 << 20


def streams_of(
    nbytes: int, *, cname: str, clevel: int, typesize: int, blocksize: int
) -> tuple[int, int]:
    """Return the number of streams in a frame of `nbytes` decoded bytes, and bytes of the longest.

    Streams that are stored as they are count too. `blocksize` is 0 if Blosc chooses it.

    >>> streams_of(16 << 20, cname="lz4", clevel=5, typesize=4, blocksize=0)
    (128, 131072)
    """
    if not nbytes:
        return 0, 0
    block = blocksize_of(cname, clevel, typesize, nbytes, blocksize)
    splits = typesize if is_split(cname, typesize, block) else 1
    whole, left = divmod(nbytes, block)
    return whole * splits + bool(left), max(block // splits if whole else 0, left)


def blocksize_of(cname: str, clevel: int, typesize: int, nbytes: int, wanted: int) -> int:
    """Return the size of the blocks into which Blosc divides `nbytes` bytes.

    Parameters
    ----------
    cname : str
        Name of the compressor.
    clevel : int
        Level, 0 to 9.
    typesize, nbytes : int
        Bytes of an element and of the chunk.
    wanted : int
        Size that the codec asks for; 0 for none.
    """
    if nbytes < typesize:
        return 1
    size = nbytes
    if wanted:
        size = min(max(wanted, _MIN_BLOCKSIZE), MAX_BLOCKSIZE)
    elif nbytes >= _L1_NBYTES:
        is_high_ratio = cname in _HIGH_RATIO_CNAMES
        size = _L1_NBYTES * _BLOCK_QUARTERS[clevel] // 4 << is_high_ratio
        size <<= is_high_ratio and clevel == _MAX_CLEVEL
    if clevel and is_split(cname, typesize, size):
        size = min(max(min(size, _MAX_SPLIT) * typesize, _LEAST_SPLIT), _MOST_SPLIT)
    size = min(size, nbytes)
    return size // typesize * typesize if size > typesize else size


def is_split(cname: str, typesize: int, blocksize: int) -> bool:
    """Return whether Blosc cuts a block into one stream for each byte of an element."""
    is_long = blocksize // typesize >= MIN_STREAM_NBYTES
    return cname != "zstd" and typesize <= MAX_SPLITS and is_long
