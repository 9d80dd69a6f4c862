"""Where the rows of a plan window go on a device, recorded as launches of kernels.

The copy of :mod:`gpustore.device_kernels.launch` does everything at once that a layout may ask
for: C and F order, transposes, steps, fields and byte order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.codecs.base import ChunkBytes
from gpustore.device import DeviceArray
from gpustore.device_batch import DeviceBatch
from gpustore.device_kernels.instance import WIDTHS
from gpustore.device_kernels.launch import (
    Listed,
    copy_launches,
    fill_launches,
    indexed_launches,
    repeated,
)
from gpustore.device_kernels.run import Rows
from gpustore.errors import UnsupportedError
from gpustore.plan_window import PlanWindow

__all__ = ["place", "place_fill", "swapped"]

Integers = NDArray[np.int64]


def swapped(dtype: np.dtype[Any]) -> int:
    """Bytes of the units of an element whose order is not this machine's; 1 if there are none.

    Raises
    ------
    UnsupportedError
        If an element has units of several sizes.

    >>> swapped(np.dtype("<u4").newbyteorder()), swapped(np.dtype(">c16")), swapped(np.dtype("V3"))
    (4, 8, 1)
    """
    if dtype.isnative:
        return 1
    unit = {"c": dtype.itemsize // 2, "U": 4}.get(dtype.kind, dtype.itemsize)
    if dtype.fields or unit not in (1, 2, 4, 8):
        raise UnsupportedError(
            f"Elements of {dtype} cannot be brought into this machine's byte order on a device; "
            f'open with device="cpu"'
        )
    return unit


def place(
    batch: DeviceBatch,
    rows: PlanWindow,
    some: Integers,
    chunks: NDArray[np.uint64],
    layout: ChunkBytes,
    out: DeviceArray,
) -> None:
    """Record the copy of elements from decoded chunks.

    Parameters
    ----------
    some : ndarray of int64, shape (n,)
        Numbers of the rows that are copied.
    chunks : ndarray of uint64, shape (n,)
        Address of the decoded bytes of each.
    """
    if not len(some):
        return
    src = chunks.astype(np.int64) + np.asarray(rows.src_start, np.int64)[some]
    if not rows.narrowed:
        src += layout.offset
    _copy(batch, rows, some, src, rows.src_stride, layout.dtype, out, one_element=False)


def _fills_at_once(fill: bytes, rows: PlanWindow) -> bool:
    """Whether kernels fill without reading the fill value."""
    return rows.points is None and repeated(fill) in WIDTHS


def place_fill(
    batch: DeviceBatch,
    rows: PlanWindow,
    some: Integers,
    fill: bytes,
    address: int,
    out: DeviceArray,
) -> None:
    """Record that the elements of some rows become `fill`, which is at `address` too."""
    if not len(some):
        return
    if _fills_at_once(fill, rows):
        dst, count = _destination(rows, some, out)
        batch.launch_tables(fill_launches(dst, count, rows.dst_stride, fill))
        return
    src = np.full(len(some), address, np.int64)
    _copy(batch, rows, some, src, (0,) * len(rows.src_stride), out.dtype, out, one_element=True)


def _destination(rows: PlanWindow, some: Integers, out: DeviceArray) -> tuple[Integers, Integers]:
    dst = np.asarray(rows.dst_start, np.int64)[some] + out.address
    count = np.empty((len(rows.count), len(some)), np.int64)
    for d, column in enumerate(rows.count):
        count[d] = np.asarray(column, np.int64)[some]
    return dst, count


def _copy(
    batch: DeviceBatch,
    rows: PlanWindow,
    some: Integers,
    src: Integers,
    src_stride: tuple[int, ...],
    stored: np.dtype[Any],
    out: DeviceArray,
    *,
    one_element: bool,
) -> None:
    dst, count = _destination(rows, some, out)
    rectangles = Rows(src, dst, count, src_stride, rows.dst_stride)
    unit = swapped(stored)
    if rows.points is None:
        launches = copy_launches(rectangles, stored.itemsize, unit=unit)
    else:
        points = [rows.points[row] for row in some.tolist()]
        listed = [
            Listed(
                [len(pairs[k][0]) for pairs in points],
                None if one_element else [np.asarray(pairs[k][0]) for pairs in points],
                [np.asarray(pairs[k][1]) for pairs in points],
            )
            for k in range(len(points[0]))
        ]
        launches = indexed_launches(rectangles, listed, stored.itemsize, unit=unit)
    batch.launch_tables(launches)
