"""Rectangles of elements in two memories, reduced to as few strided dimensions as possible.

A row is one rectangle of elements: its addresses in two memories, the number of elements along each
dimension, and their distances. :mod:`gpustore.device.kernels.launch` makes launches of rows. All
steps work on columns, one entry for each row:

1. :func:`ordered`: dimensions with negative strides in dst are reversed, then sorted by their
   distance in dst, the nearest last.
2. :func:`merged`: for each row, dimensions of extent 1 are dropped, and dimensions without a gap on
   both sides are merged; the bytes of an element are the innermost dimension. After this step
   order, fields, steps and edges do not matter.
3. :func:`widths`: the widest item of 1 to 16 bytes that divides the innermost run, all distances
   and both addresses. :func:`reversed_bytes` is for elements whose bytes are swapped and that are
   not aligned for wider items: bytes are copied one by one, backwards.
4. :func:`cut`: rows of 2**31 items or more become several.
5. :func:`packed`: the dimensions in use come first.

The steps use no device: addresses are numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpustore.device.kernels.descriptor import MAX_ITEMS

Integers = NDArray[np.int64]

MAX_WIDTH = 16
"""Size of the widest item in bytes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rectangles of elements in two memories.

    Attributes
    ----------
    src, dst : integers, shape (n,)
        Address of the element of index zero of each row.
    count : integers, shape (rank, n)
        Number of elements of each row along each dimension. Rows without elements are dropped.
    src_stride, dst_stride : integers, shape (rank,) or (rank, n)
        Bytes between neighbours. A src stride may be 0, a dst stride only for a single element.
    """

    src: ArrayLike
    dst: ArrayLike
    count: ArrayLike
    src_stride: ArrayLike
    dst_stride: ArrayLike


@dataclass(slots=True)
class Runs:
    """Rows between the steps of this module.

    Columns have shape (n,), or (rank, n) with the innermost dimension first.
    """

    src: Integers
    dst: Integers
    extent: Integers
    src_stride: Integers
    dst_stride: Integers
    indexed: Integers
    row: Integers

    def take(self, rows: NDArray[Any]) -> Runs:
        """Return the rows with these indices, or those where a mask is true."""
        return Runs(
            self.src[rows],
            self.dst[rows],
            self.extent[:, rows],
            self.src_stride[:, rows],
            self.dst_stride[:, rows],
            self.indexed[:, rows],
            self.row[rows],
        )

    def items(self) -> Integers:
        """Return the number of items of each row, at most 2**62, shape (n,)."""
        # Exact below 2**53; larger rows are cut until they are below.
        product: NDArray[np.float64] = np.prod(self.extent.astype(np.float64), axis=0)
        items: Integers = np.minimum(product, 2.0**62).astype(np.int64)
        return items


def ordered(rows: Rows) -> Runs:
    """Return the rows that have elements, without negative dst strides, dimensions sorted."""
    src = np.array(rows.src, np.uint64).astype(np.int64)
    dst = np.array(rows.dst, np.uint64).astype(np.int64)
    count = np.asarray(rows.count, np.int64)
    count = count.reshape(len(count), len(src))

    def strides(given: ArrayLike) -> Integers:
        column = np.asarray(given, np.int64)
        return np.broadcast_to(column.reshape(len(count), -1 if len(count) else 1), count.shape)

    src_stride, dst_stride = strides(rows.src_stride), strides(rows.dst_stride)
    row = np.arange(len(src))
    some = (count > 0).all(axis=0)
    if not some.all():
        src, dst, count, row = src[some], dst[some], count[:, some], row[some]
        src_stride, dst_stride = src_stride[:, some], dst_stride[:, some]
    if ((dst_stride == 0) & (count > 1)).any():
        raise ValueError("elements of the destination lie on each other: a stride is 0")
    back = dst_stride < 0
    src += np.where(back, src_stride * (count - 1), 0).sum(axis=0)
    dst += np.where(back, dst_stride * (count - 1), 0).sum(axis=0)
    src_stride, dst_stride = (
        np.where(back, -src_stride, src_stride),
        np.where(back, -dst_stride, dst_stride),
    )
    uniform = np.ndim(rows.src_stride) == np.ndim(rows.dst_stride) == 1
    head = slice(0, 1) if uniform else slice(None)
    order = np.lexsort((np.abs(src_stride[:, head]), dst_stride[:, head]), axis=0)
    if uniform and order.size:
        at = order[:, 0]
        count, src_stride, dst_stride = count[at], src_stride[at], dst_stride[at]
    elif order.size:
        count, src_stride, dst_stride = (
            np.take_along_axis(column, order, 0) for column in (count, src_stride, dst_stride)
        )
    return Runs(src, dst, count, src_stride, dst_stride, np.zeros_like(count), row)


def merged(runs: Runs, inner: int, strides: tuple[int, int] = (1, 1)) -> Runs:
    """Merge the dimensions of each row; the innermost begins with `inner` bytes or elements."""
    rank, n = runs.extent.shape
    extent = np.ones((rank + 1, n), np.int64)
    src_stride = np.zeros((rank + 1, n), np.int64)
    dst_stride = np.zeros((rank + 1, n), np.int64)
    extent[0], src_stride[0], dst_stride[0] = inner, *strides
    last = np.zeros(n, np.int64)
    every = np.arange(n)
    for k in range(rank):
        more = runs.extent[k] > 1
        reach = extent[last, every]
        follows = more & (src_stride[last, every] * reach == runs.src_stride[k])
        follows &= dst_stride[last, every] * reach == runs.dst_stride[k]
        last += more & ~follows
        kept = every[more]
        to = last[more]
        extent[to, kept] *= runs.extent[k][more]
        new = more & ~follows
        src_stride[last[new], every[new]] = runs.src_stride[k][new]
        dst_stride[last[new], every[new]] = runs.dst_stride[k][new]
    top = int(last.max(initial=0)) + 1
    return Runs(
        runs.src,
        runs.dst,
        extent[:top],
        src_stride[:top],
        dst_stride[:top],
        np.zeros((top, n), np.int64),
        runs.row,
    )


def widths(runs: Runs, common: int) -> Integers:
    """Return for each row the bytes of the widest item that divides all its distances."""
    every = runs.extent[0] | runs.src | runs.dst | MAX_WIDTH | common
    for k in range(1, len(runs.extent)):
        every |= runs.src_stride[k] | runs.dst_stride[k]
    lowest_bit: Integers = every & -every
    return lowest_bit


def reversed_bytes(runs: Runs, unit: int) -> Runs:
    """Return rows that copy each unit of the innermost dimension as single bytes, backwards."""
    inner = np.ones_like(runs.extent[:1])
    return Runs(
        runs.src + unit - 1,
        runs.dst,
        np.concatenate((inner * unit, runs.extent[:1] // unit, runs.extent[1:])),
        np.concatenate((-inner, inner * unit, runs.src_stride[1:])),
        np.concatenate((inner, inner * unit, runs.dst_stride[1:])),
        np.concatenate((runs.indexed, 0 * inner)),
        runs.row,
    )


def cut(runs: Runs) -> Runs:
    """Return the same items in rows of at most :data:`MAX_ITEMS`."""
    while True:
        items = runs.items()
        large = items > MAX_ITEMS
        if not large.any():
            return runs
        n = len(items)
        every = np.arange(n)
        outer = np.argmax(np.cumsum(runs.extent > 1, axis=0), axis=0)
        extent = runs.extent[outer, every]
        inside = np.where(large, items // extent, 1)
        step = np.where(large, np.maximum(MAX_ITEMS // np.maximum(inside, 1), 1), extent)
        parts = -(-extent // step)
        whose = np.repeat(every, parts)
        number = np.arange(len(whose)) - np.repeat(np.cumsum(parts) - parts, parts)
        begin = number * step[whose]
        split = runs.take(whose)
        place = outer[whose], np.arange(len(whose))
        indexed = split.indexed[place]
        for side, start, stride in (
            (1, split.src, split.src_stride),
            (2, split.dst, split.dst_stride),
        ):
            listed = (indexed & side) > 0
            start += np.where(listed, 0, begin * stride[place])
            stride[place] += np.where(listed, begin, 0)
        split.extent[place] = np.minimum(step[whose], extent[whose] - begin)
        runs = split


def packed(runs: Runs) -> Runs:
    """Return the rows with dimensions of extent 1 outermost, without those that no row uses."""
    unused = (runs.extent == 1) & (runs.indexed == 0)  # A single listed element has an offset.
    order = np.argsort(unused, axis=0, kind="stable")
    rank = max(1, int((~unused).sum(axis=0).max(initial=0)))
    to = order[:rank], np.arange(len(runs.src))
    return replace(
        runs,
        extent=runs.extent[to],
        src_stride=runs.src_stride[to],
        dst_stride=runs.dst_stride[to],
        indexed=runs.indexed[to],
    )


def inserted(
    runs: Runs, at: int, extent: Integers, src: Integers, dst: Integers, sides: int
) -> Runs:
    """Return the rows with one more dimension, of listed elements."""
    return Runs(
        runs.src,
        runs.dst,
        np.insert(runs.extent, at, extent, 0),
        np.insert(runs.src_stride, at, src, 0),
        np.insert(runs.dst_stride, at, dst, 0),
        np.insert(runs.indexed, at, sides, 0),
        runs.row,
    )
