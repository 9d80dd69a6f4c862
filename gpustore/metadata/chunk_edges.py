"""Sizes of the chunks along one dimension of a rectilinear grid.

============  =================================================================================
meaning       each dimension has a list of chunk sizes, so chunks differ in shape
specification https://github.com/zarr-developers/zarr-extensions/tree/main/chunk-grids/rectilinear
v3 name       ``rectilinear``
============  =================================================================================

Zarr v3, ``chunk_grid`` of an array of shape ``[10, 12]``::

    {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [4, [[3, 3], 2, 1]]},
    }

An integer is the size of all chunks. In a list an integer is the size of one chunk, a pair ``[size,
count]`` stands for `count` chunks of that size. Together the chunks must be at least as long as the
array.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.errors import MetadataError
from gpustore.runtime.cached_attribute import cached_attribute
from gpustore.strict_json.parsing import JsonValue, at_position, expect_int, expect_list

_LONGEST: Final = 2**62
"""Largest extent of a dimension, in elements."""

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class ChunkEdges:
    """Chunk sizes along one dimension, as runs of equal sizes; a run is never expanded.

    Parameters
    ----------
    runs : tuple of (int, int)
        Size in elements and number of chunks of each run; neighbours differ in size.
    endless : bool
        Whether the one run goes on as far as the array needs: a regular dimension.

    Examples
    --------
    >>> edges = ChunkEdges.from_json([[3, 3], 2, 1])
    >>> edges.runs, edges.total, edges.cells(10)
    (((3, 3), (2, 1), (1, 1)), 12, 4)
    >>> [column.tolist() for column in edges.locate(np.array([8, 9, 11]))]
    [[2, 3, 4], [2, 0, 0], [3, 2, 1]]
    """

    runs: tuple[tuple[int, int], ...]
    endless: bool = False

    @classmethod
    def regular(cls, size: int) -> ChunkEdges:
        """Return edges of chunks that all have `size` elements."""
        return cls(((size, -(-_LONGEST // size)),), endless=True)

    @classmethod
    def from_json(cls, value: JsonValue, *, integral_floats: bool = False) -> ChunkEdges:
        """Parse an entry of ``chunk_shapes``.

        Raises
        ------
        MetadataError
            If `value` is no such entry, or the sizes add up to more than an array may have.
        """

        def positive(number: JsonValue) -> int:
            return expect_int(number, 1, _LONGEST, integral_floats=integral_floats)

        if not isinstance(value, list):
            return cls.regular(positive(value))
        runs: list[tuple[int, int]] = []
        total = 0
        for index, entry in enumerate(value):
            with at_position(index):
                size, count = entry, 1
                if isinstance(entry, list):
                    size, count = expect_list(entry, length=2)
                    count = positive(count)
                size = positive(size)
                total += size * count
                if total > _LONGEST:
                    raise MetadataError(f"Sum of chunk sizes {total} is more than {_LONGEST}")
            if runs and runs[-1][0] == size:
                count += runs.pop()[1]
            runs.append((size, count))
        return cls(tuple(runs))

    def to_json(self) -> JsonValue:
        """Return the entry of ``chunk_shapes``; two and more chunks of one size are a pair."""
        if self.endless:
            return self.runs[0][0]
        return [size if count == 1 else [size, count] for size, count in self.runs]

    @cached_attribute
    def total(self) -> int:
        """Sum of all sizes, in elements."""
        return sum(size * count for size, count in self.runs)

    @cached_attribute
    def sizes(self) -> frozenset[int]:
        """Set of the sizes that occur, in elements."""
        return frozenset(size for size, _ in self.runs)

    @property
    def largest(self) -> int:
        """Largest size in elements, 1 if there are no chunks."""
        return max(self.sizes, default=1)

    @property
    def constant(self) -> int | None:
        """Size of all chunks in elements, None if they differ."""
        return self.runs[0][0] if len(self.runs) == 1 else None

    @cached_attribute
    def _columns(self) -> tuple[Integers, Integers, Integers]:
        """Size, first cell and first position of each run, int64 of shape (runs,) each."""
        size, count = np.array(self.runs or [(1, 1)], np.int64).T
        cell = np.concatenate([[0], np.cumsum(count)[:-1]])
        position = np.concatenate([[0], np.cumsum(size * count)[:-1]])
        return size, cell, position

    @cached_attribute
    def _lists(self) -> list[list[int]]:
        """Size, first cell and first position of each run, as lists for scalar look-ups."""
        return [column.tolist() for column in self._columns]

    def locate(self, positions: Any) -> tuple[Any, Any, Any]:
        """Return cell, offset in the chunk and size of the chunk of each position.

        Parameters
        ----------
        positions : int, or array_like of int of shape (n,)
            Positions along the dimension, in elements.

        Returns
        -------
        cell, offset, size : int, or ndarray of int64 of shape (n,) each
        """
        if isinstance(positions, int):
            sizes, cells, starts = self._lists
            run = bisect_right(starts, positions) - 1
            along, inside = divmod(positions - starts[run], sizes[run])
            return cells[run] + along, inside, sizes[run]
        size, cell, start = self._columns
        runs = np.searchsorted(start, positions, "right") - 1
        found = size[runs]
        number, offset = np.divmod(positions - start[runs], found)
        return cell[runs] + number, offset, found

    def starts(self, cells: Integers) -> Integers:
        """Return the first position of each cell, in elements."""
        size, first, start = self._columns
        run = np.searchsorted(first, cells, "right") - 1
        return start[run] + (cells - first[run]) * size[run]

    def cells(self, extent: int) -> int:
        """Return the number of chunks that hold the first `extent` elements."""
        return int(self.locate(extent - 1)[0]) + 1 if extent else 0

    def uniform(self, extent: int) -> int | None:
        """Return the size of the chunks of the first `extent` elements, None if they differ."""
        last = max(extent - 1, 0)
        size, _, start = self._columns
        within: Iterable[int] = size[start <= last].tolist()
        sizes = set(within)
        return sizes.pop() if len(sizes) == 1 else None
