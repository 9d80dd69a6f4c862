"""Copies of byte ranges and shuffles of blocks, done and undone, as launches for whole batches.

The host settles all that kernels need not decide: blocks that are not shuffled, the bytes behind
the last whole element, and the blocks that are aligned for the fast kernels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpustore.device.kernels.descriptor import (
    BYTE_RANGE,
    ITEMS_PER_TILE,
    SHUFFLED_BLOCK,
    KernelLaunch,
    first_tiles,
)

_STREAM_TILE_NBYTES = 16 * ITEMS_PER_TILE
_TYPESIZES = {
    "shuffle": (2, 4, 8),
    "unshuffle": (2, 4, 8, 16),
    "bit_shuffle": (1, 2, 4),
    "bit_unshuffle": (1, 2, 4, 8, 16),
}
"""Sizes of elements with a kernel of their own."""

_ANY = np.iinfo(np.int64).max

_BYTE_TILE, _ANY_BYTE_TILE, _BIT_TILE = 1024, 128, 2048
"""Elements of a tile of the kernels of byte shuffles, for any typesize, and of bit shuffles."""


def stream_launches(src: ArrayLike, dst: ArrayLike, nbytes: ArrayLike) -> list[KernelLaunch]:
    """Return the launch that copies byte ranges of any alignment; none if all are empty.

    Parameters
    ----------
    src, dst, nbytes : integers, shape (n,)
        Device addresses and sizes in bytes. No range of dst overlaps another or one of src.
    """
    src, dst, nbytes = (np.asarray(column, np.int64) for column in (src, dst, nbytes))
    some = nbytes > 0
    if not some.any():
        return []
    table = np.zeros(int(some.sum()), BYTE_RANGE)
    table["src"], table["dst"], table["nbytes"] = src[some], dst[some], nbytes[some]
    # Tiles consist of whole lines of 16 bytes of dst; the first line may begin before the range.
    lines = nbytes[some] + dst[some] % 16
    table["first_tile"], blocks = first_tiles(-(-lines // _STREAM_TILE_NBYTES))
    return [KernelLaunch("stream", "gs::copy_stream", blocks, table)]


def shuffle_launches(
    src: ArrayLike, dst: ArrayLike, nbytes: ArrayLike, typesize: ArrayLike
) -> list[KernelLaunch]:
    """Return launches that shuffle the bytes of blocks as Blosc and numcodecs do.

    Parameters
    ----------
    src, dst, nbytes : integers, shape (n,)
        Device addresses and sizes in bytes of blocks. No dst overlaps another or a src.
    typesize : integers, shape (n,) or ()
        Bytes of an element, at least 1.
    """
    return _launches("shuffle", src, dst, nbytes, typesize)


def unshuffle_launches(
    src: ArrayLike, dst: ArrayLike, nbytes: ArrayLike, typesize: ArrayLike
) -> list[KernelLaunch]:
    """Return launches that undo the byte shuffle of blocks by Blosc or numcodecs.

    The parameters are those of :func:`shuffle_launches`.
    """
    return _launches("unshuffle", src, dst, nbytes, typesize)


def bit_shuffle_launches(
    src: ArrayLike, dst: ArrayLike, nbytes: ArrayLike, typesize: ArrayLike
) -> list[KernelLaunch]:
    """Return launches that shuffle the bits of blocks as Blosc 1 does.

    Blosc 1 does not shuffle blocks whose number of elements is no multiple of 8. The parameters are
    those of :func:`shuffle_launches`.
    """
    return _launches("bit_shuffle", src, dst, nbytes, typesize)


def bit_unshuffle_launches(
    src: ArrayLike, dst: ArrayLike, nbytes: ArrayLike, typesize: ArrayLike
) -> list[KernelLaunch]:
    """Return launches that undo the bit shuffle of blocks by Blosc 1.

    The parameters are those of :func:`shuffle_launches`.
    """
    return _launches("bit_unshuffle", src, dst, nbytes, typesize)


def _launches(
    kernel: str, src: ArrayLike, dst: ArrayLike, nbytes: ArrayLike, typesize: ArrayLike
) -> list[KernelLaunch]:
    src, dst, nbytes, typesize = (
        np.asarray(column, np.int64) for column in (src, dst, nbytes, typesize)
    )
    if typesize.ndim == 0:
        typesize = np.full(len(src), typesize)
    elements = nbytes // typesize
    of_bits = kernel.startswith("bit")
    shuffled = (elements > 0) & ((elements % 8 == 0) if of_bits else (typesize > 1))
    # Bytes that are only copied: those behind the last element, or a whole block.
    begin = np.where(shuffled, elements * typesize, 0)
    rest = nbytes - begin
    launches = stream_launches(src + begin, dst + begin, rest) if rest.any() else []
    # Fast kernels read or write planes bytewise, or in words; elements several at a time.
    planes, whole = (src, dst) if "un" in kernel else (dst, src)
    fast = np.zeros(len(src), np.bool_)
    least, most = typesize.min(initial=_ANY), typesize.max(initial=0)
    for size in _TYPESIZES[kernel]:
        if not least <= size <= most:
            continue
        if of_bits:
            lies = whole % min(8 * size, 16) == 0
        else:
            lies = (elements % 4 == 0) & (planes % 4 == 0) & (whole % min(4 * size, 16) == 0)
        chosen = shuffled & (typesize == size) & lies
        fast |= chosen
        launches += _launch(kernel, f"gs::{kernel}<{size}>", src, dst, elements, typesize, chosen)
    any_kernel = f"{kernel}_any"
    slow = shuffled & ~fast
    return launches + _launch(any_kernel, f"gs::{any_kernel}", src, dst, elements, typesize, slow)


def _launch(
    kernel: str,
    expression: str,
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
    elements: NDArray[np.int64],
    typesize: NDArray[np.int64],
    chosen: NDArray[np.bool_],
) -> list[KernelLaunch]:
    if not chosen.any():
        return []
    if not chosen.all():
        src, dst, elements, typesize = src[chosen], dst[chosen], elements[chosen], typesize[chosen]
    table: NDArray[np.void] = np.empty(len(src), SHUFFLED_BLOCK)
    table["src"], table["dst"] = src, dst
    table["elements"], table["typesize"] = elements, typesize
    tile = _ANY_BYTE_TILE if kernel.endswith("_any") else _BYTE_TILE
    tile = _BIT_TILE if kernel.startswith("bit") else tile
    table["first_tile"], blocks = first_tiles(-(-elements // tile))
    return [KernelLaunch("shuffle", expression, blocks, table)]
