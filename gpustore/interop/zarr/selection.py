"""Batches of zarr-python as one region of the array.

A codec pipeline receives a selection chunk by chunk: the key of each chunk, the elements that are
wanted of it, and their places in the result. :func:`region_of` puts them together again:

1. Slices with step 1: the first and the last chunk are the corners of a box, and the number of
   chunks says that the box is complete.
2. Other slices and orthogonal selections: for each dimension, the positions that each chunk along
   it contributes. The selection is their product.
3. Coordinates and masks: the points of all chunks, in the order of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Item = tuple[Any, Any, Any, Any, bool]
"""Byte getter, chunk spec, selection in the chunk, selection in the result, whether complete."""


@dataclass(frozen=True, slots=True)
class Region:
    """A part of an array.

    Attributes
    ----------
    index : tuple
        Index expression, one entry a dimension of the array.
    kind : {"basic", "outer", "vectorized"}
        Rules of the index.
    shape : tuple of int
        Shape of the result.
    stop : tuple of int
        End of the part along each dimension of the array.
    """

    index: tuple[Any, ...]
    kind: str
    shape: tuple[int, ...]
    stop: tuple[int, ...]


class ChunkKeys:
    """Keys of the chunks of an array, from its metadata.

    Parameters
    ----------
    document : mapping
        ``zarr.json`` or ``.zarray``.

    Attributes
    ----------
    chunk_shape : tuple of int
        Elements of what a key holds along each dimension.

    Raises
    ------
    KeyError
        If the grid or the encoding of keys is one that is not known.
    """

    def __init__(self, document: Any) -> None:
        if document["zarr_format"] == 2:
            self.chunk_shape = tuple(document["chunks"])
            self._head = ""
            self._separator = document.get("dimension_separator", ".")
        else:
            grid = document["chunk_grid"]
            encoding = document["chunk_key_encoding"]
            if grid["name"] != "regular":
                raise KeyError(grid["name"])
            self.chunk_shape = tuple(grid["configuration"]["chunk_shape"])
            self._head, separator = {"default": ("c", "/"), "v2": ("", ".")}[encoding["name"]]
            self._separator = encoding.get("configuration", {}).get("separator", separator)

    def prefix(self, key: str) -> str:
        """Return what precedes the cell in a key: the path of the array with a slash, and more."""
        rank, separator = len(self.chunk_shape), self._separator
        if not rank:
            return key[:-1]
        if separator != "/":
            directory, slash, _ = key.rpartition("/")
            return directory + slash + (self._head and self._head + separator)
        name = "/".join(key.rsplit("/", rank)[-rank:])
        return key[: len(key) - len(name)]

    def directory(self, prefix: str) -> str:
        """Return the path of the array, which ends with a slash or is empty."""
        return (
            prefix[: len(prefix) - len(self._head and self._head + self._separator)]
            if (self.chunk_shape)
            else prefix
        )

    def cell(self, key: str, prefix: str) -> tuple[int, ...]:
        """Return the position of the chunk in the grid.

        Raises
        ------
        ValueError
            If it is no key of this array.
        """
        if not key.startswith(prefix):
            raise ValueError(key)
        if not self.chunk_shape:
            return ()
        cell = tuple(map(int, key[len(prefix) :].split(self._separator)))
        if len(cell) != len(self.chunk_shape):
            raise ValueError(key)
        return cell


def region_of(
    batch: Sequence[Item],
    cell_of: Callable[[Item], tuple[int, ...]],
    chunk_shape: tuple[int, ...],
    drop_axes: tuple[int, ...],
) -> Region | None:
    """Return the region of a batch, None if it has none.

    Parameters
    ----------
    batch : sequence of tuple
        Chunks, at least one.
    cell_of : callable
        Returns the position of an item's chunk in the grid.
    chunk_shape : tuple of int
    drop_axes : tuple of int
        Dimensions of the array that the result does not have.
    """
    out = batch[0][3]
    if not isinstance(out, tuple):
        return _points(batch, cell_of, chunk_shape)
    return _box(batch, cell_of, chunk_shape) or _product(batch, cell_of, chunk_shape, drop_axes)


def _box(
    batch: Sequence[Item],
    cell_of: Callable[[Item], tuple[int, ...]],
    chunk_shape: tuple[int, ...],
) -> Region | None:
    """Return the region of slices with step 1 and integers; None for others."""
    first, last = batch[0], batch[-1]
    low, high = cell_of(first), cell_of(last)
    index: list[Any] = []
    shape: list[int] = []
    count = 1
    if not isinstance(first[2], tuple) or len(first[2]) != len(chunk_shape):
        return None
    for begin, end, a, b, chunk in zip(first[2], last[2], low, high, chunk_shape, strict=True):
        if type(begin) is slice and type(end) is slice:
            if begin.step not in (None, 1) or end.step not in (None, 1):
                return None
            start, stop = a * chunk + begin.start, b * chunk + end.stop
            index.append(slice(start, stop))
            shape.append(stop - start)
            count *= b - a + 1
        elif isinstance(begin, int) and begin == end and a == b:
            index.append(a * chunk + begin)
        else:
            return None
    places, ends = first[3], last[3]
    if count != len(batch) or len(places) != len(shape) or len(ends) != len(shape):
        return None
    for place, end, size in zip(places, ends, shape, strict=True):
        if type(place) is not slice or type(end) is not slice or place.start or end.stop != size:
            return None
    stops = tuple(i.stop if type(i) is slice else i + 1 for i in index)
    return Region(tuple(index), "basic", tuple(shape), stops)


def _product(
    batch: Sequence[Item],
    cell_of: Callable[[Item], tuple[int, ...]],
    chunk_shape: tuple[int, ...],
    drop_axes: tuple[int, ...],
) -> Region | None:
    """Return the region of positions along each dimension; None if there are none such."""
    rank = len(chunk_shape)
    along: list[dict[int, tuple[Any, Any]]] = [{} for _ in range(rank)]
    first = batch[0][2]
    if not isinstance(first, tuple) or len(first) != rank:
        return None
    whole = [d in drop_axes or isinstance(i, int) for d, i in enumerate(first)]
    axis = [-1 if gone else d - sum(whole[:d]) for d, gone in enumerate(whole)]
    for item in batch:
        for d, cell in enumerate(cell_of(item)):
            if cell not in along[d]:
                if axis[d] >= len(item[3]):
                    return None
                along[d][cell] = item[2][d], None if axis[d] < 0 else item[3][axis[d]]
    if math.prod(map(len, along)) != len(batch):
        return None
    index: list[Any] = []
    shape: list[int] = []
    stops: list[int] = []
    for found, chunk, gone in zip(along, chunk_shape, whole, strict=True):
        positions = [_positions(inside) + cell * chunk for cell, (inside, _) in found.items()]
        if gone:
            if len(positions) != 1 or positions[0].size != 1:
                return None
            index.append(int(positions[0][0]))
            stops.append(index[-1] + 1)
            continue
        ordered = _ordered(positions, [place for _, place in found.values()])
        if ordered is None:
            return None
        index.append(_as_slice(ordered))
        shape.append(len(ordered))
        stops.append(int(ordered.max()) + 1)
    kind = "basic" if all(isinstance(i, int | slice) for i in index) else "outer"
    return Region(tuple(index), kind, tuple(shape), tuple(stops))


def _points(
    batch: Sequence[Item],
    cell_of: Callable[[Item], tuple[int, ...]],
    chunk_shape: tuple[int, ...],
) -> Region | None:
    """Return the region of points; None if there are none such."""
    rank = len(chunk_shape)
    if not rank or any(not isinstance(item[2], tuple) or len(item[2]) != rank for item in batch):
        return None
    cells = [cell_of(item) for item in batch]
    index = []
    for d, chunk in enumerate(chunk_shape):
        inside = [np.asarray(item[2][d]) for item in batch]
        if any(one.ndim != 1 for one in inside):
            return None
        positions = [one + cell[d] * chunk for one, cell in zip(inside, cells, strict=True)]
        ordered = _ordered(positions, [item[3] for item in batch])
        if ordered is None:
            return None
        index.append(ordered)
    stops = tuple(int(one.max()) + 1 for one in index)
    return Region(tuple(index), "vectorized", (len(index[0]),), stops)


def _positions(inside: Any) -> NDArray[np.intp]:
    """Return the positions that a selection of one dimension of a chunk names."""
    if isinstance(inside, slice):
        return np.arange(inside.start or 0, inside.stop, inside.step or 1)
    return np.asarray(inside).reshape(-1)


def _ordered(
    positions: Sequence[NDArray[np.intp]], places: Sequence[Any]
) -> NDArray[np.intp] | None:
    """Return positions in the order of their places in the result; None if places do not fit."""
    size = sum(len(some) for some in positions)
    if not size:
        return None
    result = np.full(size, -1, np.intp)
    for some, place in zip(positions, places, strict=True):
        at = place if isinstance(place, slice) else np.asarray(place).reshape(-1)
        stop = at.stop if isinstance(at, slice) else int(at.max(initial=0)) + 1
        if stop > size:
            return None
        target = result[at]
        if len(target) != len(some):
            return None
        result[at] = some
    return None if (result < 0).any() else result


def _as_slice(positions: NDArray[np.intp]) -> Any:
    """Return positions as a slice if they ascend in equal steps."""
    if len(positions) == 1:
        return slice(int(positions[0]), int(positions[0]) + 1)
    steps = np.diff(positions)
    if steps[0] > 0 and (steps == steps[0]).all():
        return slice(int(positions[0]), int(positions[-1]) + 1, int(steps[0]))
    return positions
