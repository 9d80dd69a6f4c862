"""Staged writes of one chunk, merged: its elements, and which of them are written.

Layers of a chunk are merged when they take more memory than that. From then on a write that lies in
the chunk is planned as one part (:func:`part_of_chunk`) and copied at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.base import Layer
from gpustore.backends.host import HostBackend
from gpustore.backends.host.memory import HostMemory
from gpustore.backends.host.points import elements_of, gather_points
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.planning.window import PlanWindow, Points

_LAYER_NBYTES: Final = 2048
"""Memory of a layer besides its elements."""


class Part(NamedTuple):
    """Elements of one chunk.

    Attributes
    ----------
    cell : list of int
        Grid index of the chunk.
    start : int
        First byte in the decoded chunk.
    strides : tuple of int
        Bytes between neighbours there, along each dimension of the request.
    """

    cell: list[int]
    start: int
    strides: tuple[int, ...]


def can_merge(array: ChunkedArray) -> bool:
    """Whether layers over chunks can be merged: the host lays them, and elements fill a chunk."""
    layout = array.chain.layout
    is_plain = layout.is_dense and not (layout.record or layout.offset or layout.dtype.hasobject)
    return is_plain and not array.levels and isinstance(array.backend, HostBackend)


def are_worth_merging(array: ChunkedArray, layers: Sequence[Layer]) -> bool:
    """Whether layers of a chunk take more memory than all of its elements."""
    layout = array.chain.layout
    nbytes = layout.nbytes + layout.nbytes // layout.dtype.itemsize
    if len(layers) * _LAYER_NBYTES > nbytes:
        return True
    return sum([_LAYER_NBYTES + _count(one) * layout.dtype.itemsize for one in layers]) > nbytes


def _count(layer: Layer) -> int:
    rows = layer.rows
    return sum(
        math.prod(shape) * math.prod(len(src) for src, _ in points)
        for shape, points in zip(rows.rows()[2], rows.points or [()] * len(rows))
    )


def part_of_chunk(array: ChunkedArray, transform: IndexTransform) -> Part | None:
    """Plan elements inside one chunk of a regular grid; None for others, and those out of bounds.

    The elements are at different places: along each dimension of the request one dimension of the
    array grows or falls.
    """
    low, high = transform.domain.box[:2]
    if array.grid is not None:
        return None
    strides = [0] * len(low)
    start = 0
    cell = []
    layout = array.chain.layout
    for map_, size, extent, stride in zip(
        transform.output, array.chunk_shape, array.shape, layout.strides
    ):
        d, step, first = map_.input_dimension, map_.stride, map_.offset
        last = first
        if d is not None and step is not None:
            first, last = first + step * low[d], first + step * (high[d] - 1)
            if strides[d] or last // size != first // size:
                return None
            strides[d] = step * stride
        elif step is not None:
            return None  # an index array
        if not (0 <= first < extent and 0 <= last < extent):
            return None
        at, inside = divmod(first, size)
        cell.append(at)
        start += inside * stride
    for step, begin, end in zip(strides, low, high):
        if end <= begin or (not step and end - begin > 1):
            return None
    return Part(cell, start, tuple(strides))


class StagedChunk:
    """Merged layers of a chunk. Not thread-safe.

    Parameters
    ----------
    array : ChunkedArray
    rows : PlanWindow
        Rows of one of the layers, which name the chunk.
    """

    __slots__ = ("_array", "_bytes", "_cell", "_key", "_written")

    def __init__(self, array: ChunkedArray, rows: PlanWindow) -> None:
        layout = array.chain.layout
        self._array = array
        self._key = rows.keys[0]
        self._cell = [int(column[0]) for column in rows.cells]
        self._bytes = np.empty(layout.nbytes, np.uint8)
        self._written = np.zeros(layout.nbytes // layout.dtype.itemsize, bool)

    def put(self, part: Part, elements: NDArray[Any]) -> None:
        """Copy elements of the shape of a request."""
        self._place(part.start, elements.shape, part.strides, elements)

    def _place(
        self, start: int, shape: tuple[int, ...], strides: tuple[int, ...], elements: Any
    ) -> None:
        dtype = self._array.chain.layout.dtype
        itemsize = dtype.itemsize
        np.ndarray(shape, dtype, self._bytes, start, strides)[...] = elements
        steps = [stride // itemsize for stride in strides]
        np.ndarray(shape, bool, self._written, start // itemsize, steps)[...] = True

    def lay(self, layer: Layer) -> None:
        """Copy the elements of a layer."""
        rows, source = layer
        layout = self._array.chain.layout
        starts, places, shapes = rows.rows()
        for i, (start, place, shape) in enumerate(zip(starts, places, shapes)):
            if rows.points is None:
                at = source.offset + place
                dtype = source.array.dtype
                elements = np.ndarray(shape, dtype, source.flat, at, rows.dst_stride)
                self._place(start, shape, rows.src_stride, elements)
                continue
            gather_points(rows, i, self._bytes, layout, source)
            src, _ = elements_of(rows, i, base=source.offset)
            self._written[src // layout.dtype.itemsize] = True

    def layers(self) -> list[Layer]:
        """Return what is written as one layer over the chunk, with a copy of its elements."""
        array, layout = self._array, self._array.chain.layout
        sizes = zip(array.shape, array.chunk_shape, self._cell)
        inside = tuple([min(chunk, size - cell * chunk) for size, chunk, cell in sizes])
        elements = self._bytes.view(layout.dtype)
        cells: tuple[list[int], ...] = tuple([[cell] for cell in self._cell])
        if int(np.count_nonzero(self._written)) == math.prod(inside):
            memory = HostMemory(elements.astype(array.dtype), None, 0)
            counts = tuple([[size] for size in inside])
            strides = layout.strides, layout.strides
            rows = PlanWindow(cells, [0], [0], counts, [True], *strides, [self._key])
            return [Layer(rows, memory)]
        places = self._written.nonzero()[0]
        memory = HostMemory(elements[places].astype(array.dtype), None, 0)
        itemsize = layout.dtype.itemsize
        points: Points = (places * itemsize, np.arange(len(places)) * itemsize)
        rows = PlanWindow(cells, [0], [0], (), [False], (), (), [self._key], points=[(points,)])
        return [Layer(rows, memory)]
