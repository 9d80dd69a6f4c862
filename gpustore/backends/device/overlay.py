"""Elements of arrays on a device, laid over chunks there: the gather of writes.

The strided copies of :mod:`gpustore.device.kernels.launch` take every layout of both sides: C and F
order, transposes, steps, broadcasts, fields and byte order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.base import Layer
from gpustore.backends.device.placement import parts
from gpustore.backends.host.points import elements_of
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.device.command_list import CommandList
from gpustore.device.kernels.instance import WIDTHS
from gpustore.device.kernels.launch import (
    Listed,
    copy_launches,
    fill_launches,
    indexed_launches,
    repeated,
)
from gpustore.device.kernels.run import Rows
from gpustore.device.protocol import DeviceArray, Event
from gpustore.planning.window import PlanWindow

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DeviceSource:
    """Array on a device whose elements are written.

    Attributes
    ----------
    view : DeviceArray
    shape, strides : tuple of int
        Shape of the domain written, and bytes between neighbours; 0 where `view` is broadcast.
    ready : Event
        Event behind all work on the array at the time of the write.
    """

    view: DeviceArray
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    ready: Event

    @property
    def array(self) -> Any:
        return self.view.array


@dataclass(frozen=True, slots=True)
class Laid:
    """Rows of a layer, and the chunks of one submission they are laid over.

    Attributes
    ----------
    rows : PlanWindow, length n
    source : DeviceSource
    chunks : ndarray of int64, shape (n,)
        Number of the chunk of each row.
    """

    rows: PlanWindow
    source: DeviceSource
    chunks: Integers

    @classmethod
    def of(cls, layer: Layer, first: int) -> Laid:
        """Return the rows of a layer over consecutive chunks from number `first` on."""
        return cls(layer.rows, layer.source, first + np.arange(len(layer.rows)))

    @property
    def count(self) -> Integers:
        """Elements of each row along each dimension, shape (rank, n)."""
        rank = len(self.rows.count)
        columns = [np.asarray(column, np.int64) for column in self.rows.count]
        return np.array(columns, np.int64).reshape(rank, len(self.chunks))

    def covers(self, layout: ChunkBytes) -> NDArray[np.bool_]:
        """Whether each row has all bytes of its chunk."""
        if not (layout.is_dense and self.rows.may_cover(layout.shape)):
            return np.zeros(len(self.chunks), np.bool_)
        whole: NDArray[np.bool_] = (self.count == np.array(layout.shape)[:, None]).all(axis=0)
        return whole


def lay(
    commands: CommandList, laid: Sequence[Laid], chunks: NDArray[np.uint64], layout: ChunkBytes
) -> None:
    """Record the copy of rows over chunks; rows of alike layers are copied together.

    Parameters
    ----------
    laid : sequence of Laid
        Rows over different chunks.
    chunks : ndarray of uint64, shape (n,)
        Device address of each chunk.
    """
    alike: dict[tuple[Any, ...], list[Laid]] = {}
    for one in laid:
        if one.rows.points is not None:
            _lay_points(commands, one, chunks, layout)
            continue
        key = (len(one.rows.count), one.rows.src_stride, one.rows.dst_stride)
        alike.setdefault(key, []).append(one)
    for (_, src_stride, dst_stride), some in alike.items():
        src = np.concatenate(
            [np.asarray(one.rows.dst_start, np.int64) + one.source.view.address for one in some]
        )
        dst = np.concatenate(
            [
                np.asarray(one.rows.src_start, np.int64) + chunks[one.chunks].astype(np.int64)
                for one in some
            ]
        )
        count = np.concatenate([one.count for one in some], axis=1)
        for d, stride in enumerate(src_stride):
            if stride == 0:  # Elements for one place, of which the last stays.
                src += (count[d] - 1) * dst_stride[d]
                count[d] = 1
        for part in parts(layout.dtype):
            inner = np.array(part.shape, np.int64).reshape(-1, 1)
            rows = Rows(
                src + part.offset,
                dst + layout.offset + part.offset,
                np.concatenate([count, np.repeat(inner, len(src), axis=1)]),
                (*dst_stride, *part.strides),
                (*src_stride, *part.strides),
            )
            commands.launch_tables(copy_launches(rows, part.itemsize, unit=part.unit))


def _lay_points(
    commands: CommandList, laid: Laid, chunks: NDArray[np.uint64], layout: ChunkBytes
) -> None:
    """Record the copy of elements one by one; of several for one place the last is copied."""
    into: list[Integers] = []
    out_of: list[Integers] = []
    for i in range(len(laid.rows)):
        inside, outside = elements_of(laid.rows, i, base=0)
        # NumPy keeps the first of equal elements, so they are looked at backwards.
        place, last = np.unique(inside[::-1], return_index=True)
        into.append(place)
        out_of.append(outside[::-1][last])
    counts = [len(place) for place in into]
    n = len(counts)
    for part in parts(layout.dtype):
        inner = np.array(part.shape, np.int64).reshape(-1, 1)
        rows = Rows(
            np.full(n, laid.source.view.address + part.offset, np.int64),
            chunks[laid.chunks].astype(np.int64) + layout.offset + part.offset,
            np.repeat(inner, n, axis=1),
            part.strides,
            part.strides,
        )
        listed = [Listed(counts, out_of, into)]
        commands.launch_tables(indexed_launches(rows, listed, part.itemsize, unit=part.unit))


def fill_chunks(
    commands: CommandList, chunks: NDArray[np.uint64], nbytes: int, fill: bytes, address: int
) -> None:
    """Record a fill of whole chunks of `nbytes` bytes with `fill`, whose copy is at `address`."""
    if not len(chunks):
        return
    count = np.full((1, len(chunks)), nbytes // len(fill), np.int64)
    if repeated(fill) in WIDTHS:
        commands.launch_tables(fill_launches(chunks, count, (len(fill),), fill))
        return
    src = np.full(len(chunks), address, np.int64)
    rows = Rows(src, chunks, count, (0,), (len(fill),))
    commands.launch_tables(copy_launches(rows, len(fill)))


def broadcast_strides(view: DeviceArray, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of an array broadcast to `shape`, which it fits."""
    extra = len(view.shape) - len(shape)
    sizes, steps = view.shape[max(extra, 0) :], view.strides[max(extra, 0) :]
    steps = tuple([step if size > 1 else 0 for size, step in zip(sizes, steps)])
    return (0,) * (len(shape) - len(steps)) + steps
