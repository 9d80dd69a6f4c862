"""Chunk grids: where chunks begin, whether all have one size or not.

:meth:`ChunkGrid.locate` looks up positions, :meth:`ChunkGrid.runs` finds the runs of many intervals
of indices during which no chunk changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.metadata.chunk_edges import ChunkEdges

Integers = NDArray[np.int64]

StridedMap = tuple[int, int, int]
"""Output dimension, offset and stride of a strided output index map."""


@dataclass(slots=True)
class ChunkGrid:
    """Edges of the chunks of an array.

    A position lies in a cell, that of its innermost chunk. In shards that differ in size a cell is
    numbered ``shard * ratio + number in the shard``, from which keys are computed.

    Attributes
    ----------
    shape : sequence of int
        Shape of the array, in elements.
    edges : sequence of int or ChunkEdges, one an array dimension
        Edges of the chunks with keys along each dimension; an integer if all have that size.
    inner : sequence of int, or None
        Shape of the innermost chunks if those with keys are shards; it divides them.
    """

    shape: Sequence[int]
    edges: Sequence[int | ChunkEdges]
    inner: Sequence[int] | None = None

    def constant(self, o: int) -> int | None:
        """Size of the innermost chunks along dimension `o`; None if they differ."""
        if self.inner is not None:
            return self.inner[o]
        edges = self.edges[o]
        return edges if isinstance(edges, int) else None

    def locate(self, o: int, positions: Any) -> tuple[Any, Any, Any]:
        """Locate positions along dimension `o`: one integer, or an int64 array.

        Returns
        -------
        cell, inside, size
            Cell of each position, the position in its innermost chunk, and the size of the chunk
            with a key. If all sizes are the same, an integer.
        """
        edges = self.edges[o]
        if isinstance(edges, int):
            cell, inside = divmod(positions, edges if self.inner is None else self.inner[o])
            return cell, inside, edges
        cell, inside, size = edges.locate(positions)
        if self.inner is not None:
            along, inside = divmod(inside, self.inner[o])
            cell = cell * (size // self.inner[o]) + along
        return cell, inside, size

    def crossed(self, o: int, first: int, last: int) -> int:
        """Count the edges of innermost chunks between two positions along dimension `o`."""
        edges = self.constant(o) or self.edges[o]
        number: int = _number(edges, last) - _number(edges, first)
        return abs(number)

    def fewest_runs(self, n: int, maps: Sequence[StridedMap]) -> int:
        """Return a lower bound of the runs of an interval of `n` indices, without finding them."""
        fewest = 1
        for o, _, stride in maps:
            chunk = self.constant(o)
            if chunk is not None:
                fewest = max(fewest, 1 + (n - 1) * abs(stride) // chunk)
        return min(n, fewest)

    def runs(
        self, start: Integers, size: int, maps: Sequence[StridedMap], check: Callable[[int], None]
    ) -> tuple[Integers, Integers, Integers, Integers]:
        """Find the runs of intervals of indices during which no map changes its chunk.

        Parameters
        ----------
        start : int64 array
            First index of each interval.
        size : int
            Indices in each interval, at least 1.
        maps : sequence of StridedMap
            Maps of the output dimensions that depend on the index.
        check : callable
            Raises if there are too many runs; called before memory is taken for them.

        Returns
        -------
        first : int64 array, length intervals + 1
            Where the runs of each interval begin in the columns below.
        interval, offset, count : int64 array
            Interval of a run, its first index counted from the start of that, and its elements.
        """
        changes = [self._changes(start, size, map_, check) for map_ in maps]
        interval, offset = changes[0]
        if len(changes) > 1:
            # A diagonal: a run ends where any of the outputs changes its chunk.
            codes = np.unique(np.concatenate([one * size + offset for one, offset in changes]))
            interval, offset = np.divmod(codes, size)
        first = np.searchsorted(interval, np.arange(len(start) + 1))
        end = np.append(offset[1:], size)
        end[first[1:] - 1] = size
        return first, interval, offset, end - offset

    def _changes(
        self, start: Integers, size: int, map_: StridedMap, check: Callable[[int], None]
    ) -> tuple[Integers, Integers]:
        """Find interval and offset of each index at which a map comes to another chunk."""
        o, a, b = map_
        edges = self.constant(o) or self.edges[o]
        first, last = (_number(edges, a + b * at) for at in (start, start + (size - 1)))
        met = np.abs(last - first) + 1
        # Where more chunks are crossed than there are indices, each index is looked at.
        found = np.minimum(met, size)
        check(int(found.sum(dtype=np.float64)))  # As a float: integers could overflow.
        interval = np.repeat(np.arange(len(start)), found)
        step = np.arange(len(interval)) - np.repeat(np.cumsum(found) - found, found)
        # A chunk begins at the first index whose position reaches (rising) or falls below
        # (falling) an edge: ceil((edge - a) / b), written with the floor division Python has.
        cell = first[interval] + (step if b > 0 else 1 - step)
        edge = (cell * edges if isinstance(edges, int) else edges.starts(cell)) - (b < 0)
        at_edge = -((a - edge) // b) - start[interval]
        offset = np.maximum(at_edge, 0)  # The first run begins with the interval.
        crossed = met > size
        if crossed.any():
            offset = np.where(crossed[interval], step, offset)
        if isinstance(edges, int):
            return interval, offset
        cell = _number(edges, a + b * (start[interval] + offset))
        changed = np.ones(len(cell), np.bool_)
        changed[1:] = (interval[1:] != interval[:-1]) | (cell[1:] != cell[:-1])
        return interval[changed], offset[changed]


def _number(edges: int | ChunkEdges, positions: Any) -> Any:
    """Number of the chunk that holds each position, counted along the dimension."""
    return positions // edges if isinstance(edges, int) else edges.locate(positions)[0]
