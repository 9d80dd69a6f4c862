"""Launches that copy rectangles on a device, whose descriptors the native core writes.

They are those of :func:`gpustore.device.kernels.launch.copy_launches`, to which the core leaves all
that is not plain.
"""

from __future__ import annotations

import ctypes
from array import array as numbers
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.native.job import address_of
from gpustore.backends.native.library import library
from gpustore.device.kernels.descriptor import KernelLaunch, run_dtype
from gpustore.device.kernels.instance import WIDTHS
from gpustore.device.kernels.launch import copy_launches
from gpustore.device.kernels.run import Rows
from gpustore.planning.row_table import RowTable

_MOST_DIMS: Final = 8  # Of a run: one more than of a rectangle.
_MOST_TABLES: Final = 10
_HEAD: Final = 5
"""Numbers about each table."""

_UNITS: Final = {unit: np.uint32(unit) for unit in (1, 2, 4, 8)}


@cache
def _core() -> Any:
    core = library()
    if core is not None:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        core.gpustore_core_copy_runs.argtypes = (pointer, pointer, pointer, number)
        core.gpustore_core_copy_runs.restype = number
    return core


def _fresh(nbytes: int) -> NDArray[np.uint8]:
    return np.empty(nbytes, np.uint8)


def core_copy_launches(
    rows: Rows,
    itemsize: int,
    *,
    unit: int = 1,
    memory: Callable[[int], NDArray[np.uint8]] = _fresh,
) -> list[KernelLaunch]:
    """Return launches that copy all elements of all rows.

    Other parameters and errors are those of
    :func:`~gpustore.device.kernels.launch.copy_launches`.

    Parameters
    ----------
    memory : callable
        Returns so many bytes of memory for the tables, at a multiple of 16.
    """
    launches = _written(rows, itemsize, unit, memory)
    return copy_launches(rows, itemsize, unit=unit) if launches is None else launches


def core_table_launches(
    table: RowTable,
    lo: int,
    hi: int,
    chunks: NDArray[np.uint64],
    strides: tuple[Sequence[int], Sequence[int]],
    bases: tuple[int, int],
    itemsize: int,
    *,
    unit: int = 1,
    memory: Callable[[int], NDArray[np.uint8]] = _fresh,
) -> list[KernelLaunch] | None:
    """Return launches that copy the regions of rows `lo` to `hi` of a table out of their chunks.

    None if the core leaves them alone, and for rows of several regions or arrays.

    Parameters
    ----------
    chunks : ndarray of uint64, shape (hi - lo,)
        Address of each chunk.
    strides : (src_stride, dst_stride)
        Bytes between neighbours in a chunk and in the array.
    bases : (src, dst)
        Where the first byte of a region counts from in a chunk, and in the array: its address.
    """
    if table.points or table.has_first or table.has_target:
        return None
    chunks = np.ascontiguousarray(chunks)
    begin = table.address + 8 * lo
    _, _, src, dst, count, _ = [begin + 8 * offset for offset in table.offsets()]
    columns = (src, dst, *bases, address_of(chunks), count, table.regions)
    return _launches(columns, strides, hi - lo, itemsize, unit, memory)


def _written(
    rows: Rows, itemsize: int, unit: int, memory: Callable[[int], NDArray[np.uint8]] = _fresh
) -> list[KernelLaunch] | None:
    src_stride, dst_stride = rows.src_stride, rows.dst_stride
    if not isinstance(src_stride, tuple) or not isinstance(dst_stride, tuple):
        return None
    src, dst, count = _column(rows.src), _column(rows.dst), _column(rows.count)
    n = len(src)
    if count.shape != (len(src_stride), n):
        return None
    columns = (address_of(src), address_of(dst), 0, 0, 0, address_of(count), n)
    return _launches(columns, (src_stride, dst_stride), n, itemsize, unit, memory)


def _launches(
    columns: tuple[int, ...],
    strides: tuple[Sequence[int], Sequence[int]],
    n: int,
    itemsize: int,
    unit: int,
    memory: Callable[[int], NDArray[np.uint8]],
) -> list[KernelLaunch] | None:
    """Return the launches of `n` rectangles, whose `columns` are those of struct ``CopyRows``."""
    core, rank = _core(), len(strides[0])
    if core is None or unit not in _UNITS or itemsize % unit or rank >= _MOST_DIMS:
        return None
    words = numbers("q", (n, rank, itemsize, unit, *columns, 0, 0, *strides[0], *strides[1]))
    here = words.buffer_info()[0]
    words[11], words[12] = here + 104, here + 104 + 8 * rank
    heads = numbers("q", bytes(8 * _HEAD * _MOST_TABLES))
    # A run has at most as many dimensions as a rectangle, and the bytes of an element.
    most = rank + 1 if rank < 4 else _MOST_DIMS
    room = memory(n * run_dtype(most).itemsize)
    tables = core.gpustore_core_copy_runs(here, heads.buffer_info()[0], address_of(room), len(room))
    if not tables:
        return None
    found = []
    at = 0
    for head in range(0, _HEAD * tables, _HEAD):
        width, is_tiled, used, some, blocks = heads[head : head + _HEAD]
        nbytes = some * run_dtype(used).itemsize
        table = room[at : at + nbytes]
        at += nbytes
        kernel = "copy_tiled" if is_tiled else "copy_strided"
        expression = f"gs::{kernel}<{WIDTHS[width]}, {used}>"
        arguments = (_UNITS[unit],)
        found.append(KernelLaunch("copy", expression, blocks, table, arguments, length=some))
    return found


def _column(values: Any) -> NDArray[np.int64]:
    """Return integers as a contiguous array of int64; addresses stay what they are."""
    column = np.asarray(values)
    if column.dtype == np.uint64:
        column = column.view(np.int64)
    return np.ascontiguousarray(column, np.int64)
