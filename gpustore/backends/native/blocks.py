"""Blocks of elements, reduced to one element each by the native core."""

from __future__ import annotations

import ctypes
from array import array as numbers
from functools import cache
from typing import Any, Final

from numpy.typing import NDArray

from gpustore.backends.downsampling import Downsampling
from gpustore.backends.native.job import address_of
from gpustore.backends.native.library import library

KINDS: Final = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")
METHODS: Final = ("mean", "min", "max", "median", "mode", "gaussian")
"""Enums ``Kind`` and ``Method`` of ``kernels/host/job.h``."""


@cache
def _core() -> Any:
    core = library()
    if core is not None:
        core.gpustore_core_downsample.argtypes = (ctypes.c_void_p,)
        core.gpustore_core_downsample.restype = ctypes.c_int64
    return core


def core_downsample(elements: NDArray[Any], job: Downsampling, out: NDArray[Any]) -> bool:
    """Write one element for each block, if the native core can, and return whether it did.

    It leaves to NumPy: numbers that C++ has no type for, blocks of 2**15 elements, and rows whose
    elements do not lie side by side.

    Parameters
    ----------
    elements : ndarray
        Elements of the blocks, in host memory.
    job : Downsampling
        Method and blocks.
    out : ndarray
        Array of the shape of the blocks, at least one-dimensional, and of the same data type.
    """
    core, dtype = _core(), out.dtype
    kind = "u1" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"
    if core is None or kind not in KINDS or elements.dtype != dtype or not dtype.isnative:
        return False
    if not (elements.flags.aligned and out.flags.aligned):
        return False
    dims = numbers("q")
    along = (elements.shape, out.shape, job.factors, job.before, elements.strides, out.strides)
    for dim in zip(*along, strict=True):
        dims.extend(dim)
    heads = KINDS.index(kind), METHODS.index(job.method), out.ndim
    addresses = address_of(elements), address_of(out), dims.buffer_info()[0]
    struct = numbers("q", (*heads, *addresses))
    return bool(core.gpustore_core_downsample(struct.buffer_info()[0]))
