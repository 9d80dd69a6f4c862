"""Extents of chunks, and sizes and shapes as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gpustore


_PREFIXES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def format_nbytes(nbytes: int) -> str:
    """Format a decimal size with three digits.

    >>> format_nbytes(999), format_nbytes(1_234_567), format_nbytes(200_000_000)
    ('999 B', '1.23 MB', '200 MB')
    """
    value = float(nbytes)
    for unit in _PREFIXES:
        # What rounds up to four digits belongs to the next unit.
        if value < 999.5 or unit == _PREFIXES[-1]:
            break
        value /= 1000
    return f"{nbytes} B" if unit == "B" else f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"


def format_shape(extents: Sequence[int]) -> str:
    """Format extents for people.

    >>> format_shape([4, 7]), format_shape([])
    ('4 x 7', 'a single value')
    """
    return " x ".join(map(str, extents)) if extents else "a single value"


def chunk_extents(
    store: gpustore.TensorStore, name: Literal["read_chunk", "write_chunk"]
) -> list[int]:
    """Return chunk extents as ints, at least 1.

    The extent is the largest where chunks differ, and the whole dimension where there are no
    chunks.
    """
    extents = getattr(store.chunk_layout, name).shape or [None] * store.rank
    if all(extents):
        return [int(c) for c in extents]
    largest = [_largest(edges) for edges in edges_of(store) or ()]
    largest += [int(n) for n in store.shape[len(largest) :]]
    return [int(c) if c else max(1, n) for c, n in zip(extents, largest, strict=True)]


def edges_of(store: gpustore.TensorStore) -> list[Any] | None:
    """Return ``chunk_shapes`` of an array with a rectilinear chunk grid."""
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
