"""Launches that reduce blocks of elements to one element each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpustore.device.kernels.descriptor import (
    BLOCK_TABLE,
    ITEMS_PER_TILE,
    MAX_ITEMS,
    KernelLaunch,
    division,
    first_tiles,
)
from gpustore.device.kernels.value import NARROW
from gpustore.errors import LimitError

_FLOATS: Final = {"float16": 2, "bfloat16": 3, "float32": 4, "float64": 5}
_METHODS: Final = {"min": 0, "max": 1, "median": 2, "mode": 3, "mean": 4}
_MOST_SUMMED: Final = 1 << 30
"""Most elements of a block."""

_MOST_RANKED: Final = 512
"""Most elements of a block whose median or mode is wanted: each is compared with all others."""

_MOST_HALVED: Final = 3
"""Most dimensions that gaussian halves."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks along one dimension.

    Attributes
    ----------
    cells : int
        Number of blocks, at least 1.
    factor : int
        Elements of a whole block.
    size : int
        Elements that there are, at least 1; every block has some of them.
    first : int
        Number of the first element of the first block; negative if it is not there.
    step : int
        Elements from one block to the next.
    src_stride, dst_stride : int
        Bytes between neighbours.
    """

    cells: int
    factor: int
    size: int
    first: int
    step: int
    src_stride: int
    dst_stride: int


def can_downsample(dtype: np.dtype[Any], method: str, factors: Sequence[int]) -> bool:
    """Whether :func:`downsample_launches` makes blocks of so many elements one by a method.

    >>> can_downsample(np.dtype("u2"), "mode", [2, 2, 2])
    True
    >>> can_downsample(np.dtype("c8"), "mode", [2, 2, 2])
    False
    """
    found = _type_of(_part(dtype) if method == "mean" else dtype)
    elements = math.prod(factors)
    if found is None or elements > _MOST_SUMMED:
        return False
    if method == "gaussian":
        return list(factors).count(2) <= _MOST_HALVED
    return method not in ("median", "mode") or elements <= _MOST_RANKED


def downsample_launches(
    src: int, dst: int, dims: Sequence[Blocks], dtypes: tuple[Any, Any], method: str
) -> list[KernelLaunch]:
    """Return the launch that reduces blocks; see ``kernels/downsample.cu``.

    Parameters
    ----------
    src : int
        Address of the first element.
    dst : int
        Address of the element of the first block.
    dims : sequence of Blocks
        Dimensions, in the order of the elements of a block.
    dtypes : (numpy.dtype, numpy.dtype)
        Data types of both sides, which differ at most in byte order, and for which
        :func:`can_downsample` is true.
    method : str
        Method, such as ``"mean"``.

    Raises
    ------
    LimitError
        If there are 2**31 blocks or elements along a dimension, or more.
    """
    dtype = dtypes[0]
    dims = list(dims)
    if dtype.kind == "c":
        nbytes = dtype.itemsize // 2
        dims.append(Blocks(2, 1, 2, 0, 1, nbytes, nbytes))
    part = _part(dtype)
    found = _type_of(part)
    assert found is not None, dtype
    number, bits = found
    src, dst, dims = _merged(src, dst, dims)
    if method == "gaussian":
        # Those that are halved come first, in their order.
        halves = [one for one in dims if one.factor == 2]
        halved = len(halves)
        halves += [Blocks(1, 1, 1, 0, 1, 0, 0)] * (_MOST_HALVED - halved)
        dims = halves + [one for one in dims if one.factor == 1]
        kernel, code = "smooth_blocks", halved
    else:
        kernel, code = "reduce_blocks", _METHODS[method]
    table = np.zeros(1, BLOCK_TABLE)
    cells = math.prod(one.cells for one in dims)
    table["src"], table["dst"] = src, dst
    if max([cells, *(one.size for one in dims)]) > MAX_ITEMS:
        raise LimitError(f"Blocks or elements beyond {MAX_ITEMS} at once; read in parts")
    table["cells"] = cells
    table["elements"] = math.prod(one.factor for one in dims)
    table["type"], table["bits"], table["nbytes"] = number, bits, part.itemsize
    table["method"] = code
    table["src_swapped"], table["dst_swapped"] = (not one.isnative for one in dtypes)
    table["rank"] = len(dims)
    into = table["dim"][0, : len(dims)]
    for name in ("cells", "factor", "size", "first", "step", "src_stride", "dst_stride"):
        into[name] = [getattr(one, name) for one in dims]
    into["magic"], into["shift"] = division(into["cells"].astype(np.int64))
    into["factor_magic"], into["factor_shift"] = division(into["factor"].astype(np.int64))
    _, blocks = first_tiles(np.array([-(-cells // ITEMS_PER_TILE)]))
    return [KernelLaunch("downsample", f"gs::{kernel}", blocks, table)]


def _merged(src: int, dst: int, dims: Sequence[Blocks]) -> tuple[int, int, list[Blocks]]:
    """Return addresses and dimensions with the same elements, as few as possible.

    Dimensions whose blocks are single elements are merged where they continue one another on both
    sides.
    """
    found: list[Blocks] = []
    for one in dims:
        if one.factor == 1:
            src += one.first * one.src_stride
            step = one.step * one.src_stride
            one = Blocks(one.cells, 1, one.cells, 0, 1, step, one.dst_stride)
            if one.cells == 1:
                continue
            if found and found[-1].factor == 1:
                outer = found[-1]
                if (outer.src_stride, outer.dst_stride) == (
                    one.cells * one.src_stride,
                    one.cells * one.dst_stride,
                ):
                    cells = outer.cells * one.cells
                    found[-1] = Blocks(cells, 1, cells, 0, 1, one.src_stride, one.dst_stride)
                    continue
        found.append(one)
    return src, dst, found


def _part(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the data type of the parts of complex numbers, and any other type unchanged."""
    return np.dtype(f"{dtype.byteorder}f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _type_of(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """Return number and bits of a type in kernels; None if they do not know it."""
    if dtype.kind in "iub":
        return int(dtype.kind == "i"), 8 * dtype.itemsize
    if dtype.name in NARROW:
        return int(dtype.name.startswith("int")), NARROW[dtype.name]
    number = _FLOATS.get(dtype.name)
    return None if number is None else (number, 8 * dtype.itemsize)
