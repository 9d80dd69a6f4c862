"""Placement of the elements of chunks on a device, recorded as launches of kernels.

:class:`Places` are rectangles: one a row of a plan window, or one a region of a chunk. The copy of
:mod:`gpustore.device.kernels.launch` supports every layout in a single launch: C and F order,
transposes, steps, fields and byte order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpustore.backends.native.copy_runs import core_copy_launches, core_table_launches
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.device.command_list import CommandList
from gpustore.device.kernels.box import Box, box_copy
from gpustore.device.kernels.descriptor import run_dtype
from gpustore.device.kernels.instance import THREADS_PER_BLOCK, WIDTHS
from gpustore.device.kernels.launch import (
    Listed,
    fill_launches,
    indexed_launches,
    repeated,
)
from gpustore.device.kernels.run import Rows
from gpustore.device.protocol import Argument, Device, DeviceArray
from gpustore.device.table import Table, TableLaunch
from gpustore.planning.copy_plan import CopyWindow, elements
from gpustore.planning.row_table import RowTable
from gpustore.planning.window import PlanWindow, Points
from gpustore.runtime.statistics import STATISTICS

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of an element that are copied alike.

    Attributes
    ----------
    offset, itemsize : int
        First byte in the element, and number of bytes.
    unit : int
        Bytes of a unit whose order is reversed; 1 to copy the bytes unchanged.
    shape, strides : tuple of int
        Shape and byte strides of a subarray; empty for a single occurrence.
    """

    offset: int
    itemsize: int
    unit: int
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


@lru_cache(maxsize=64)
def parts(dtype: np.dtype[Any]) -> tuple[Part, ...]:
    """Split an element into parts to copy: one, except for records of another byte order.

    >>> parts(np.dtype("<u4").newbyteorder()), parts(np.dtype("V3"))
    ((Part(offset=0, itemsize=4, unit=4, shape=(), strides=()),), \
(Part(offset=0, itemsize=3, unit=1, shape=(), strides=()),))
    """
    found = tuple(_leaves(dtype, 0))
    if all(part.unit == 1 for part in found):
        return (Part(0, dtype.itemsize, 1),)
    return found


def _leaves(dtype: np.dtype[Any], offset: int) -> Iterator[Part]:
    """Yield the innermost fields of a record; NumPy has no byte order of subarrays."""
    if dtype.fields is None:
        unit = {"c": dtype.itemsize // 2, "U": 4}.get(dtype.kind, dtype.itemsize)
        yield Part(offset, dtype.itemsize, 1 if dtype.isnative else unit)
        return
    for name in dtype.names or ():
        field, start = dtype.fields[name][:2]
        whole = ChunkBytes.contiguous(field.base, field.shape)
        for part in _leaves(field.base, offset + start):
            yield replace(
                part, shape=whole.shape + part.shape, strides=whole.strides + part.strides
            )


@dataclass(frozen=True, slots=True)
class Places:
    """Destinations of the elements of some chunks: rectangles, each from one chunk to one array.

    Attributes
    ----------
    first : ndarray of int64, shape (chunks + 1,)
        Number of the first rectangle of each chunk, and their total.
    src : ndarray of int64, shape (n,)
        First byte of each rectangle in the bytes of its chunk that were read.
    dst : ndarray of int64, shape (n,)
        Device address of the first element of each rectangle.
    count : ndarray of int64, shape (rank, n)
        Elements along each dimension.
    src_stride, dst_stride : integers, shape (rank,) or (rank, n)
        Bytes between neighbours.
    dtype : dtype
        Data type of the arrays.
    points : list of tuple of Points, length n, optional
        Offsets that index arrays add to each; see :class:`~gpustore.planning.window.PlanWindow`.
    are_single : bool
        Whether each chunk is known to have one rectangle.
    """

    first: Integers
    src: Integers
    dst: Integers
    count: Integers
    src_stride: ArrayLike
    dst_stride: ArrayLike
    dtype: np.dtype[Any]
    points: list[tuple[Points, ...]] | None = None
    are_single: bool = False

    @classmethod
    def of_rows(cls, rows: PlanWindow, layout: ChunkBytes, out: DeviceArray) -> Places:
        """Make the places of a plan window, one rectangle a row."""
        n = len(rows)
        count = np.empty((len(rows.count), n), np.int64)
        for d, column in enumerate(rows.count):
            count[d] = column
        return cls(
            np.arange(n + 1),
            np.asarray(rows.src_start, np.int64) + (0 if rows.narrowed else layout.offset),
            np.asarray(rows.dst_start, np.int64) + out.address,
            count,
            rows.src_stride,
            rows.dst_stride,
            out.dtype,
            rows.points,
            are_single=True,
        )

    @classmethod
    def of_regions(
        cls,
        regions: CopyWindow,
        begin: int,
        rows: PlanWindow,
        layout: ChunkBytes,
        out: Sequence[DeviceArray],
    ) -> Places:
        """Make the places of the regions of some chunks; single elements are one list a chunk.

        Parameters
        ----------
        begin : int
            Number of the first of `rows` in the window.
        rows : PlanWindow
            The chunks, refined.
        """
        n = len(rows)
        first = np.array(regions.first[begin : begin + n + 1], np.int64)
        taken = slice(int(first[0]), int(first[-1]))
        first -= first[0]
        offset = np.full(n, layout.offset, np.int64)
        if rows.narrowed:
            planned = regions.chunks.src_start[begin : begin + n]
            offset = np.asarray(rows.src_start, np.int64) - np.asarray(planned, np.int64)
        src, dst = regions.src_start[taken], regions.dst_start[taken]
        dtype = out[0].dtype
        if regions.of_elements:
            (array,) = out
            ends = zip(first[:-1].tolist(), first[1:].tolist())
            points: list[tuple[Points, ...]] = [((src[lo:hi], dst[lo:hi]),) for lo, hi in ends]
            none: tuple[int, ...] = ()
            every = np.full(n, array.address, np.int64)
            count = np.empty((0, n), np.int64)
            return cls(np.arange(n + 1), offset, every, count, none, none, dtype, points)
        target = np.zeros(len(src), np.intp) if regions.target is None else regions.target[taken]
        address = np.array([array.address for array in out], np.int64)
        return cls(
            first,
            src + np.repeat(offset, np.diff(first)),
            dst + address[target],
            regions.count[:, taken],
            _of_targets(regions.src_stride, target),
            _of_targets(regions.dst_stride, target),
            dtype,
        )

    @classmethod
    def none(cls, chunks: int, dtype: np.dtype[Any]) -> Places:
        """Return no places for some chunks."""
        empty: Integers = np.zeros(0, np.int64)
        first = np.zeros(chunks + 1, np.int64)
        return cls(first, empty, empty, np.zeros((0, 0), np.int64), (), (), dtype)

    @classmethod
    def joined(cls, parts: Sequence[Places]) -> Places:
        """Join the places of several parts of one read."""
        if len(parts) == 1:
            return parts[0]
        sizes = [len(part.src) for part in parts]
        before = np.cumsum([0, *sizes])
        first = [part.first[:-1] + lo for part, lo in zip(parts, before)]
        one = parts[0]
        points = (
            None if one.points is None else [each for part in parts for each in part.points or ()]
        )
        return cls(
            np.concatenate([*first, before[-1:]]),
            np.concatenate([part.src for part in parts]),
            np.concatenate([part.dst for part in parts]),
            np.concatenate([part.count for part in parts], axis=1),
            _joined_strides([part.src_stride for part in parts], sizes),
            _joined_strides([part.dst_stride for part in parts], sizes),
            one.dtype,
            None if one.points is None else points,
            are_single=all([part.are_single for part in parts]),
        )

    def made(self) -> Places:
        """Return these places."""
        return self

    def take(self, chunks: Integers) -> Places:
        """Return the places of the chunks with these numbers."""
        if len(chunks) == len(self.first) - 1 and (chunks[1:] > chunks[:-1]).all():
            return self  # All of them, in order.
        counts = self.first[chunks + 1] - self.first[chunks]
        first = np.concatenate(([0], np.cumsum(counts)))
        some = np.arange(first[-1]) + np.repeat(self.first[chunks] - first[:-1], counts)
        src_stride, dst_stride = (
            stride if np.ndim(stride) < 2 else np.asarray(stride)[:, some]
            for stride in (self.src_stride, self.dst_stride)
        )
        points = None if self.points is None else [self.points[i] for i in some.tolist()]
        return Places(
            first,
            self.src[some],
            self.dst[some],
            self.count[:, some],
            src_stride,
            dst_stride,
            self.dtype,
            points,
            self.are_single,
        )


@dataclass(frozen=True, slots=True)
class TablePlaces:
    """Places of consecutive rows of a row table, which are made when they are needed.

    Attributes
    ----------
    table : RowTable
    lo, hi : int
        Rows from `lo` up to `hi`.
    strides : (src_strides, dst_strides)
        For each array, the bytes between neighbours in a decoded chunk and in the array.
    offset : int
        First byte of the elements of a decoded chunk.
    address : sequence of int
        Device address of each array.
    dtype : dtype
        Data type of the arrays.
    by_element : bool
        Whether the elements of each row become one list; for one array, without index arrays.
    box : Box or None
        All rows of the table as a box of chunks that lie on the device, in another order.
    """

    table: RowTable
    lo: int
    hi: int
    strides: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]
    offset: int
    address: Sequence[int]
    dtype: np.dtype[Any]
    by_element: bool
    box: Box | None = None

    def __len__(self) -> int:
        return self.hi - self.lo

    def take(self, chunks: Integers) -> Places:
        """Return the places of the chunks with these numbers."""
        return self.made().take(chunks)

    def precedes(self, other: TablePlaces) -> bool:
        """Return whether the rows of another part of the read follow in the table."""
        return self.table is other.table and self.hi == other.lo

    def copies(
        self, commands: CommandList, chunks: NDArray[np.uint64], stored: np.dtype[Any]
    ) -> Sequence[TableLaunch] | None:
        """Return the copies from all chunks; None if the native core does not write them.

        Parameters are those of :func:`place`.
        """
        part, *others = parts(stored)
        if others or part.shape or self.by_element:
            return None
        src_stride, dst_stride = self.strides
        return core_table_launches(
            *(self.table, self.lo, self.hi, chunks, (src_stride[0], dst_stride[0])),
            (self.offset + part.offset, self.address[0] + part.offset),
            part.itemsize,
            unit=part.unit,
            memory=commands.table_memory,
        )

    def copy_box(self, commands: CommandList, chain: CodecChain, device: Device) -> bool:
        """Record decoding and copies of a box without an upload; false if that cannot be done."""
        part, *others = parts(chain.layout.dtype)
        if self.box is None or others or part.shape:
            return False
        if len(self.box.tables.is_encoded) and chain.unsupported_reason(device) is not None:
            return False
        rows = len(self)
        src, dst = self.offset + part.offset, self.address[0] + part.offset
        copy = box_copy(self.box.dims, src, dst, part.itemsize, part.unit, rows)
        if copy is None:
            return False
        runs = commands.scratch(rows * run_dtype(copy.rank).itemsize)
        tables = self.box.tables
        selection, decoded = None, (0, 0)
        numbers: Argument | Table = np.uint64(0)
        if len(tables.is_encoded):
            selection = tables.select(commands, copy.chunks(self.lo, self.hi))
            decoded, numbers = selection.decoded, selection.numbers
        places = tables.address + 8 * copy.number, runs, *decoded
        words = [np.uint64(one) for one in places]
        written: list[Argument | Table] = [copy.box, np.uint64(self.lo), np.uint32(rows), *words]
        written.append(numbers)
        blocks = -(-rows // THREADS_PER_BLOCK)
        commands.launch("copy", f"gs::write_runs<{copy.rank}>", blocks, written)
        if selection is not None:
            selection.record(commands, device, copy.number)
            STATISTICS.add(chunks_decoded_device=selection.encoded)
        copied = (np.uint64(runs), np.uint32(rows), np.uint32(part.unit))
        commands.launch("copy", copy.expression, copy.blocks * rows, copied)
        return True

    def made(self) -> Places:
        """Return the places."""
        columns = self.table.columns()
        if self.table.has_first:
            first = columns.first[self.lo : self.hi + 1]
            taken = slice(int(first[0]), int(first[-1]))
            first = first - first[0]
        else:
            taken = slice(self.lo, self.hi)
            first = columns.first[: len(self) + 1]
        src, dst = columns.src_start[taken], columns.dst_start[taken]
        if self.offset:
            src = src + self.offset
        count = columns.count[:, taken]
        src_stride, dst_stride = self.strides
        address, dtype = self.address, self.dtype
        if self.by_element:
            edges, src, dst = elements(first, src, dst, count, src_stride[0], dst_stride[0])
            pairs = zip(edges[:-1].tolist(), edges[1:].tolist())
            points: list[tuple[Points, ...]] = [((src[lo:hi], dst[lo:hi]),) for lo, hi in pairs]
            n = len(points)
            none = np.zeros(n, np.int64), np.full(n, address[0], np.int64)
            return Places(
                np.arange(n + 1), *none, np.empty((0, n), np.int64), (), (), dtype, points
            )
        steps: tuple[ArrayLike, ArrayLike] = src_stride[0], dst_stride[0]
        if columns.target is None:
            dst = dst + address[0]
        else:
            target = columns.target[taken]
            dst = dst + np.array(address, np.int64)[target]
            each_src, each_dst = ([tuple(one) for one in each] for each in self.strides)
            steps = _of_targets(each_src, target), _of_targets(each_dst, target)
        listed = [
            [(one.src[lo:hi], one.dst[lo:hi]) for lo, hi in zip(begin.tolist(), end.tolist())]
            for one in self.table.points
            for begin, end in [(one.begin[taken], one.end[taken])]
        ]
        return Places(
            first,
            src,
            dst,
            count,
            steps[0],
            steps[1],
            dtype,
            list(zip(*listed)) if listed else None,
            are_single=not self.table.has_first,
        )


def order_of(part: Places | TablePlaces) -> tuple[int, int]:
    """Return a key that sorts parts of one read so that rows of a table follow one another."""
    return (id(part.table), part.lo) if isinstance(part, TablePlaces) else (0, 0)


def joined(parts: Sequence[Places | TablePlaces]) -> Places | TablePlaces:
    """Join the places of several parts of one read; those of one table are made when needed."""
    found: list[Places | TablePlaces] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, TablePlaces) and isinstance(last, TablePlaces) and last.precedes(part):
            found[-1] = replace(last, hi=part.hi)
        else:
            found.append(part)
    return found[0] if len(found) == 1 else Places.joined([one.made() for one in found])


def _of_targets(strides: Sequence[tuple[int, ...]], target: NDArray[np.intp]) -> ArrayLike:
    """Return the strides of each region, or those of all if they are the same."""
    if len(set(strides)) == 1:
        return strides[0]
    each: Integers = np.array(strides, np.int64)[target].T
    return each


def _joined_strides(strides: Sequence[ArrayLike], sizes: Sequence[int]) -> ArrayLike:
    """Join the strides of parts, which are the same for all or given for each rectangle."""
    first = strides[0]
    if isinstance(first, tuple) and all(isinstance(one, tuple) and one == first for one in strides):
        return first
    if all(np.ndim(one) < 2 and np.array_equal(one, first) for one in strides):
        return first
    each = [np.asarray(one, np.int64).reshape(np.shape(one)[0], -1) for one in strides]
    pairs = [np.broadcast_to(one, (len(one), n)) for one, n in zip(each, sizes)]
    found: Integers = np.concatenate(pairs, axis=1)
    return found


def place(
    commands: CommandList,
    places: Places | TablePlaces,
    some: Integers | None,
    chunks: NDArray[np.uint64],
    stored: np.dtype[Any],
) -> None:
    """Record the copy of elements from the bytes of chunks.

    Parameters
    ----------
    some : ndarray of int64, shape (n,), or None
        Numbers of the chunks; None for all in their order.
    chunks : ndarray of uint64, shape (n,)
        Device address of the bytes of each chunk.
    stored : dtype
        Data type of an element in a chunk.
    """
    if some is None and isinstance(places, TablePlaces):
        launches = places.copies(commands, chunks, stored)
        if launches is not None:
            commands.launch_tables(launches)
            return
    taken = places.made()
    if len(chunks) and taken.first[-1]:
        taken = taken if some is None else taken.take(some)
        _copy(commands, taken, chunks.astype(np.int64), stored, one_element=False)


def place_fill(
    commands: CommandList,
    places: Places | TablePlaces,
    some: Integers,
    fill: bytes,
    address: int,
) -> None:
    """Record a fill of the elements of some chunks by `fill`, whose copy is at `address`."""
    taken = places.made()
    if not len(some) or not taken.first[-1]:
        return
    taken = taken.take(some)
    if taken.points is None and repeated(fill) in WIDTHS:
        commands.launch_tables(fill_launches(taken.dst, taken.count, taken.dst_stride, fill))
        return
    chunks = np.full(len(some), address, np.int64)
    _copy(commands, taken, chunks, taken.dtype, one_element=True)


def _copy(
    commands: CommandList,
    places: Places,
    chunks: Integers,
    stored: np.dtype[Any],
    *,
    one_element: bool,
) -> None:
    """Record the copy of all elements, or of the one that begins each chunk to all its places.

    `chunks`, the address of each, may be changed.
    """
    src, src_stride = chunks, places.src_stride
    if not places.are_single:
        src = np.repeat(chunks, places.first[1:] - places.first[:-1])
    if one_element:
        src_stride = (0,) * len(places.count)
    else:
        src += places.src
    points = places.points or []
    listed = [
        Listed(
            [len(pairs[k][0]) for pairs in points],
            None if one_element else [np.asarray(pairs[k][0]) for pairs in points],
            [np.asarray(pairs[k][1]) for pairs in points],
        )
        for k in range(len(points[0]) if points else 0)
    ]
    for part in parts(stored):
        rectangles = Rows(
            src + part.offset,
            places.dst + part.offset,
            _with_shape(places.count, part, len(src)),
            _with_part(src_stride, part, len(src)),
            _with_part(places.dst_stride, part, len(src)),
        )
        if not listed:
            launches = core_copy_launches(
                rectangles, part.itemsize, unit=part.unit, memory=commands.table_memory
            )
        else:
            launches = indexed_launches(rectangles, listed, part.itemsize, unit=part.unit)
        commands.launch_tables(launches)


def _repeated(column: Sequence[int], n: int) -> Integers:
    """Repeat a column for each of `n` rectangles, to shape (len(column), n)."""
    return np.repeat(np.array(column, np.int64).reshape(-1, 1), n, axis=1)


def _with_shape(count: Integers, part: Part, n: int) -> Integers:
    """Append the dimensions of a subarray to those of rectangles."""
    return np.concatenate([count, _repeated(part.shape, n)]) if part.shape else count


def _with_part(stride: ArrayLike, part: Part, n: int) -> ArrayLike:
    """Append the strides of a subarray to those of rectangles."""
    if not part.shape:
        return stride
    given = np.asarray(stride, np.int64)
    if given.ndim < 2:
        return (*given.tolist(), *part.strides)
    return np.concatenate([given, _repeated(part.strides, n)])
