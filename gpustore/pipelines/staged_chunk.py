"""Staged writes of one key, merged: the elements of its chunks, and which of them are written.

Layers over a key are merged when they take more memory than the chunks that they touch. From then
on a write that lies in one chunk is planned as one part (:func:`part_of_chunk`) and copied at once.

Layers are kept in host memory in one form for all arrays over the same values
(:func:`staged_array`): of records their bytes, so that writes of different fields are merged, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustore import registry
from gpustore.backends.base import Layer
from gpustore.backends.host import HostBackend
from gpustore.backends.host.memory import HostMemory, memory_of, object_view
from gpustore.backends.host.points import elements_of, gather_points
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.codec_chain.legal_elements import normalizer
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.planning.window import PlanWindow

_LAYER_NBYTES: Final = 2048
"""Memory of a layer besides its elements."""


class Part(NamedTuple):
    """Elements of one chunk.

    Attributes
    ----------
    cell : tuple of int
        Grid index of the chunk.
    start : int
        First byte in the decoded chunk.
    strides : tuple of int
        Bytes between neighbours there, along each dimension of the request.
    """

    cell: tuple[int, ...]
    start: int
    strides: tuple[int, ...]


def staged_array(array: ChunkedArray) -> ChunkedArray:
    """Return the array whose writes are staged for `array`: in host memory, of records the bytes.

    It has the same stored values.
    """
    backend: Any = array.backend
    if not isinstance(backend, HostBackend):
        array = replace(array, backend=registry.find("backends", "host"))
    nbytes, rank = array.chain.layout.record, array.key_rank
    if not nbytes:
        return array
    shape, chunk_shape = (*array.shape[:rank], nbytes), (*array.chunk_shape[:rank], nbytes)
    return replace(
        array,
        shape=shape,
        chunk_shape=chunk_shape,
        inner_rank=1,
        dtype=np.dtype(np.uint8),
        chain=array.chain.of_bytes(rank),
    )


def staged_elements(array: ChunkedArray, elements: NDArray[Any]) -> NDArray[Any]:
    """Return elements as they are staged: of records as bytes along one more dimension."""
    layout = array.chain.layout
    if not layout.record:
        return elements
    stored = elements.astype(layout.dtype, order="C", copy=False)[..., None].view(np.uint8)
    normalize = normalizer(layout.dtype)
    if normalize is not None:
        stored = np.frombuffer(normalize(stored.tobytes()), np.uint8).reshape(stored.shape)
    return stored


def staged_source(array: ChunkedArray, elements: NDArray[Any]) -> HostMemory:
    """Return a copy of elements as they are staged; a broadcast one stays small."""
    if all(elements.strides):
        return memory_of(staged_elements(array, elements.copy()))
    once = elements[(*[slice(None) if stride else slice(1) for stride in elements.strides], ...)]
    found = staged_elements(array, once.copy())
    inside = found.shape[elements.ndim :]
    return memory_of(np.broadcast_to(found, (*elements.shape, *inside)))


def staged_rows(array: ChunkedArray, rows: PlanWindow) -> PlanWindow:
    """Return rows of an array, for a :func:`staged_source`, over its :func:`staged_array`."""
    layout = array.chain.layout
    if not layout.record:
        return rows
    return replace(
        rows,
        src_start=[start + layout.offset for start in rows.rows()[0]],
        count=(*rows.count, [layout.dtype.itemsize] * len(rows)),
        src_stride=(*rows.src_stride, 1),
        dst_stride=(*rows.dst_stride, 1),
    )


def staged_part(array: ChunkedArray, key: str, part: Part, source: HostMemory) -> Layer:
    """Return a :func:`staged_source` over a part of a chunk of a :func:`staged_array`."""
    shape = source.array.shape
    cell = (*part.cell, *[0] * (len(array.shape) - array.key_rank))
    is_whole = math.prod(shape) == math.prod(extents_of(array, part.cell))
    columns = [[at] for at in cell], [[count] for count in shape]
    rows = PlanWindow(
        tuple(columns[0]), [part.start], [0], tuple(columns[1]), [is_whole],
        part.strides, source.array.strides, [key],
    )  # fmt: skip
    return Layer(rows, source)


def are_worth_merging(array: ChunkedArray, layers: Sequence[Layer]) -> bool:
    """Whether layers over a key take more memory than all elements of the chunks they touch."""
    layout = array.chain.layout
    chunks = {cell for one in layers for cell in cells_of(array, one.rows)}
    nbytes = len(chunks) * (layout.nbytes + layout.nbytes // layout.dtype.itemsize)
    if len(layers) * _LAYER_NBYTES > nbytes:
        return True
    return sum([_LAYER_NBYTES + _count(one) * layout.dtype.itemsize for one in layers]) > nbytes


def may_cover(array: ChunkedArray, layers: Sequence[Layer]) -> bool:
    """Whether layers over a chunk have as many elements as it has inside the array."""
    (cell,) = cells_of(array, layers[0].rows)
    return sum(map(_count, layers)) >= math.prod(extents_of(array, cell))


def _count(layer: Layer) -> int:
    rows = layer.rows
    return sum(
        math.prod(shape) * math.prod(len(src) for src, _ in points)
        for shape, points in zip(rows.rows()[2], rows.points or [()] * len(rows))
    )


def cells_of(array: ChunkedArray, rows: PlanWindow) -> list[tuple[int, ...]]:
    """Return the grid indices of the chunks of rows."""
    columns = [map(int, column) for column in rows.cells[: array.key_rank]]
    return list(zip(*columns)) if columns else [()] * len(rows)


def extents_of(array: ChunkedArray, cell: tuple[int, ...]) -> tuple[int, ...]:
    """Return the extents of the part of a chunk that lies inside the array."""
    shape = array.chunk_shape
    found = []
    for d, at in enumerate(cell):
        ratio = array.key_ratio[d]
        start = array.first_of_key(d, at) + at % ratio * shape[d]
        found.append(min(shape[d], array.shape[d] - start))
    return (*found, *shape[len(cell) :])


def part_of_chunk(array: ChunkedArray, transform: IndexTransform) -> Part | None:
    """Plan elements inside one chunk of a regular grid; None for others, and those out of bounds.

    The elements are at different places: along each dimension of the request one dimension of the
    array grows or falls.
    """
    low, high = transform.domain.box[:2]
    if array.grid is not None:
        return None
    strides = [0] * len(low)
    layout = array.chain.layout
    start = layout.offset
    cell = []
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
    if layout.record:
        strides.append(1)
    return Part(tuple(cell[: array.key_rank]), start, tuple(strides))


class StagedChunk:
    """Elements of a chunk, and which of them are written.

    Attributes
    ----------
    elements : ndarray
        All elements of the decoded chunk, in the order of their bytes.
    written : ndarray of bool
    changed : int
        Number of the layer that changed it last.
    """

    __slots__ = ("_layout", "changed", "elements", "written")

    def __init__(self, layout: ChunkBytes) -> None:
        count = layout.nbytes // layout.dtype.itemsize
        self._layout = layout
        self.elements = np.empty(count, layout.dtype)
        self.written = np.zeros(count, bool)
        self.changed = 0

    def place(
        self, start: int, shape: tuple[int, ...], strides: tuple[int, ...], elements: Any
    ) -> None:
        """Copy elements to a region, given by byte offset and byte strides."""
        dtype = self._layout.dtype
        itemsize = dtype.itemsize
        if dtype.hasobject:
            object_view(self.elements, shape, start, strides)[...] = elements
        else:
            np.ndarray(shape, dtype, self.elements, start, strides)[...] = elements
        steps = [stride // itemsize for stride in strides]
        np.ndarray(shape, bool, self.written, start // itemsize, steps)[...] = True

    def taken(
        self, start: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any] | None:
        """Return elements of `dtype` in a region, as a view; None unless all of it is written."""
        itemsize = self._layout.dtype.itemsize
        inside = (dtype.itemsize,) if len(strides) > len(shape) else ()
        steps = [stride // itemsize for stride in strides]
        region = np.ndarray(shape + inside, bool, self.written, start // itemsize, steps)
        if not region.all():
            return None
        return np.ndarray(shape, dtype, self.elements, start, strides[: len(shape)])

    def place_points(self, rows: PlanWindow, i: int, source: HostMemory) -> None:
        """Copy the elements that index arrays choose in row `i` of a layer."""
        itemsize = self._layout.dtype.itemsize
        src, dst = elements_of(rows, i, base=source.offset)
        if self._layout.dtype.hasobject:
            self.elements[src // itemsize] = source.flat[dst // itemsize]
        else:
            gather_points(rows, i, self.elements.view(np.uint8), self._layout, source)
        self.written[src // itemsize] = True


class StagedChunks:
    """Merged layers of a key: the chunks that they touch. Not thread-safe.

    Parameters
    ----------
    array : ChunkedArray
        A :func:`staged_array`.
    layers : sequence of Layer

    Attributes
    ----------
    count : int
        Number of layers.
    """

    __slots__ = ("_array", "_chunks", "_key", "count")

    def __init__(self, array: ChunkedArray, layers: Sequence[Layer]) -> None:
        self._array = array
        self._key = layers[0].rows.keys[0]
        self._chunks: dict[tuple[int, ...], StagedChunk] = {}
        self.count = 0
        for one in layers:
            self.lay(one)

    def _changed(self, cell: tuple[int, ...]) -> StagedChunk:
        """Return the chunk of a cell, which the last layer changes."""
        chunk = self._chunks.get(cell)
        if chunk is None:
            chunk = self._chunks[cell] = StagedChunk(self._array.chain.layout)
        chunk.changed = self.count
        return chunk

    def put(self, part: Part, elements: NDArray[Any]) -> None:
        """Add a layer of :func:`staged_elements`."""
        self.count += 1
        self._changed(part.cell).place(part.start, elements.shape, part.strides, elements)

    def taken(
        self, part: Part, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any] | None:
        """Return the elements of a part, as a view; None unless all of them are written."""
        chunk = self._chunks.get(part.cell)
        return None if chunk is None else chunk.taken(part.start, shape, part.strides, dtype)

    def lay(self, layer: Layer) -> None:
        """Add a layer."""
        self.count += 1
        rows, source = layer.rows, layer.source
        dtype = source.array.dtype
        for i, (cell, start, at, shape) in enumerate(
            zip(cells_of(self._array, rows), *rows.rows(), strict=True)
        ):
            chunk = self._changed(cell)
            at += source.offset
            if rows.points is not None:
                chunk.place_points(rows, i, source)
            elif dtype.hasobject:
                elements = object_view(source.flat, shape, at, rows.dst_stride)
                chunk.place(start, shape, rows.src_stride, elements)
            else:
                elements = np.ndarray(shape, dtype, source.flat, at, rows.dst_stride)
                chunk.place(start, shape, rows.src_stride, elements)

    def _is_whole(self, cell: tuple[int, ...], chunk: StagedChunk) -> bool:
        return int(np.count_nonzero(chunk.written)) == math.prod(extents_of(self._array, cell))

    @property
    def is_whole(self) -> bool:
        """Whether nothing of a value stays under the layers."""
        cell = next(iter(self._chunks))
        if len(self._chunks) < self._array.inner_chunks(cell):
            return False
        return all(self._is_whole(*one) for one in self._chunks.items())

    def layers(self, seen: int) -> list[tuple[int, Layer]]:
        """Return layers with copies of all elements, each with the number of its last change.

        Layers of chunks that changed after the number `seen` are apart.
        """
        groups: dict[tuple[bool, bool], list[tuple[tuple[int, ...], StagedChunk]]] = {}
        for cell, chunk in self._chunks.items():
            kind = chunk.changed > seen, self._is_whole(cell, chunk)
            groups.setdefault(kind, []).append((cell, chunk))
        return [
            (max(chunk.changed for _, chunk in some), self._layer(some, is_whole=is_whole))
            for (_, is_whole), some in groups.items()
        ]

    def _layer(
        self, chunks: Sequence[tuple[tuple[int, ...], StagedChunk]], *, is_whole: bool
    ) -> Layer:
        """Return what is written of some chunks as one layer."""
        array, layout = self._array, self._array.chain.layout
        itemsize = layout.dtype.itemsize
        inner = len(array.shape) - array.key_rank
        cells = tuple(
            list(column) for column in zip(*[(*cell, *[0] * inner) for cell, _ in chunks])
        )
        zeros, keys = [0] * len(chunks), [self._key] * len(chunks)
        if is_whole:
            elements = _joined([chunk.elements for _, chunk in chunks], array.dtype)
            counts = tuple(
                list(column) for column in zip(*[extents_of(array, c) for c, _ in chunks])
            )
            starts = [i * layout.nbytes for i in range(len(chunks))]
            strides = layout.strides, layout.strides
            whole = [True] * len(chunks)
            rows = PlanWindow(cells, zeros, starts, counts, whole, *strides, keys)
            return Layer(rows, memory_of(elements))
        count = layout.nbytes // itemsize
        elements = _joined([chunk.elements for _, chunk in chunks], array.dtype)
        mask = np.concatenate([chunk.written for _, chunk in chunks])
        starts = [i * elements.itemsize * count for i in range(len(chunks))]
        rows = PlanWindow(
            cells, zeros, starts, ([count] * len(chunks),), [False] * len(chunks),
            (itemsize,), (elements.itemsize,), keys,
        )  # fmt: skip
        return Layer(rows, memory_of(elements), mask)


def _joined(elements: list[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a copy of elements of several chunks, of the data type in memory."""
    if len(elements) == 1:
        return elements[0].astype(dtype)
    return np.concatenate(elements, dtype=dtype, casting="unsafe")
