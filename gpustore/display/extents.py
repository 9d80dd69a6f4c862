"""Extents of the chunks and shards of an opened array."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Literal, Self, overload


class Edges(Sequence[int]):
    """Indices at which the chunks along a dimension begin, and the extent at the end.

    They are computed, as there may be more than memory holds; so are those of a slice.

    Parameters
    ----------
    sizes : int or list
        Size of all chunks, or an entry of ``chunk_shapes``.
    extent : int
        Elements along the dimension.

    Examples
    --------
    >>> list(Edges(4, 10)), list(Edges([[3, 2], 4, 9], 7)), list(Edges(4, 0))
    ([0, 4, 8, 10], [0, 3, 6, 7], [0])
    >>> edges = Edges([[1, 10**12]], 10**12)
    >>> len(edges), edges[-2], list(edges[1:-1][:2])
    (1000000000001, 999999999999, [1, 2])
    """

    def __init__(self, sizes: Any, extent: int) -> None:
        self._extent = extent
        # Size, first chunk and first index of each run of chunks of one size.
        self._sizes: list[int] = []
        self._chunks: list[int] = []
        self._starts: list[int] = []
        chunk = start = 0
        for entry in [[sizes, extent]] if isinstance(sizes, int) else sizes:
            if start >= extent:
                break
            size, times = entry if isinstance(entry, list) else (entry, 1)
            self._sizes.append(size)
            self._chunks.append(chunk)
            self._starts.append(start)
            times = min(times, -(-(extent - start) // size))
            chunk, start = chunk + times, start + size * times
        self._numbers = range(chunk + 1)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> int | Self:
        found = self._numbers[index]
        if isinstance(found, range):
            part = object.__new__(type(self))
            part.__dict__ = self.__dict__ | {"_numbers": found}
            return part
        if not found:
            return 0
        run = bisect_right(self._chunks, found) - 1
        start = self._starts[run] + (found - self._chunks[run]) * self._sizes[run]
        return min(start, self._extent)


def chunk_extents(store: Any, name: Literal["read_chunk", "write_chunk"]) -> list[int]:
    """Return chunk extents of a TensorStore as ints, at least 1.

    The extent is the largest where chunks differ, and the whole dimension where there are no
    chunks.
    """
    extents = getattr(store.chunk_layout, name).shape or [None] * store.rank
    if all(extents):
        return [int(c) for c in extents]
    largest = [_largest(edges) for edges in edges_of(store) or ()]
    largest += [int(n) for n in store.shape[len(largest) :]]
    return [int(c) if c else max(1, n) for c, n in zip(extents, largest, strict=True)]


def edges_of(store: Any) -> list[Any] | None:
    """Return ``chunk_shapes`` of an array with a rectilinear chunk grid, None for other arrays."""
    grid = store.spec().to_json().get("metadata", {}).get("chunk_grid", {})
    if grid.get("name") != "rectilinear":
        return None
    edges: list[Any] = grid["configuration"]["chunk_shapes"]
    return edges


def _largest(edges: Any) -> int:
    """Return the largest chunk of an entry of ``chunk_shapes``."""
    if isinstance(edges, int):
        return edges
    return max((edge[0] if isinstance(edge, list) else edge for edge in edges), default=1)


def count_chunks(edges: Any, extent: int) -> int:
    """Return the number of chunks of an entry of ``chunk_shapes`` that hold `extent` elements.

    >>> count_chunks(3, 10), count_chunks([[3, 2], 4, 9], 10), count_chunks([[3, 9]], 7)
    (4, 3, 3)
    """
    count, left = 0, extent
    for edge in [[edges, extent]] if isinstance(edges, int) else edges:
        size, times = edge if isinstance(edge, list) else (edge, 1)
        needed = min(times, max(0, -(-left // size)))
        count, left = count + needed, left - size * needed
    return count
