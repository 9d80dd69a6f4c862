"""Extents of the chunks and shards of an opened array."""

from __future__ import annotations

from typing import Any, Literal


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
