"""Copies of rectangles of elements between host memories by the native core."""

from __future__ import annotations

import ctypes
from array import array as numbers
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.native.job import address_of
from gpustore.backends.native.library import library

_MOST_RANK: Final = 32
"""``MAX_INPUT_RANK`` of ``kernels/host/place.h``."""


@cache
def _core() -> Any:
    core = library()
    if core is not None:
        core.gpustore_core_copy.argtypes = (ctypes.c_void_p,)
        core.gpustore_core_copy.restype = None
    return core


def core_copy_boxes(
    source: NDArray[Any], starts: NDArray[np.int64], out: NDArray[Any], rows: NDArray[np.int64]
) -> bool:
    """Copy boxes of an array to rows of another, if the native core can; return whether it did.

    Parameters
    ----------
    source : ndarray
        Array of any strides.
    starts : ndarray of int64, shape (n, source.ndim)
        First element of each box, all of which lie inside.
    out : ndarray of the same data type, shape (m, *box)
    rows : ndarray of int64, shape (n,)
        Row of `out` for each box.
    """
    core, n = _core(), len(rows)
    if core is None or source.dtype.hasobject or source.ndim > _MOST_RANK:
        return False
    src = starts @ np.array(source.strides, np.int64)
    dst = rows * out.strides[0]
    count = np.repeat(np.array(out.shape[1:], np.int64), n)
    places = address_of(src), address_of(dst), address_of(source), address_of(out)
    rank = source.ndim
    strides = numbers("q", (*source.strides, *out.strides[1:]))
    here = strides.buffer_info()[0]
    columns = (*places, 0, address_of(count), n, here, here + 8 * rank)
    struct = numbers("q", (n, rank, source.itemsize, 1, *columns))
    core.gpustore_core_copy(struct.buffer_info()[0])
    return True
