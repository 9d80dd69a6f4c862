"""Row tables: rows of a plan as columns of 64-bit integers in one block of memory.

The native core reads a window from such a table. Rows that share a key follow one another and make
a *unit*, so that a file is opened once. A row is one chunk, of which one region or several are
copied to arrays.
"""

from __future__ import annotations

import ctypes
import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.planning.chunk_grid import Integers


@dataclass(frozen=True, slots=True)
class TablePoints:
    """Byte offsets that an index array adds to the elements of each row.

    Attributes
    ----------
    begin, end : int64 array, one entry a row
        Entries of `src` and `dst` that belong to the row.
    src, dst : int64 array
        Offsets in the decoded chunk and in the array.
    """

    begin: Integers
    end: Integers
    src: Integers
    dst: Integers


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows of a window, in units of rows that share a key.

    Attributes
    ----------
    words : array of int64 in one block
        ``units + 1`` edges of the units in the rows; a column of grid indices for each array
        dimension; with `has_first`, ``rows + 1`` edges of the rows in the regions; then columns of
        the regions: first byte in the decoded chunk, first byte in the array, elements along each
        input dimension, and with `has_target` the number of the array.
    units, rows, regions : int
        Without `has_first`, each row is one region.
    rank, input_rank : int
        Number of array dimensions and of input dimensions.
    index : sequence of columns
        What the plan needs to write a row down again.
    points : sequence of TablePoints
        One for each connected set with an index array.
    prefixes : int64 array or None
        Addresses of the prefixes of the keys of the rows, each with a NUL behind it, if the rows
        are of several arrays.
    """

    words: array[int] | NDArray[np.int64]
    units: int
    rows: int
    regions: int
    rank: int
    input_rank: int
    index: Sequence[Any] = ()
    points: Sequence[TablePoints] = ()
    has_first: bool = False
    has_target: bool = False
    prefixes: Integers | None = None

    @classmethod
    def of_cells(
        cls, cells: Sequence[Any] | Integers, prefixes: Integers | None = None
    ) -> RowTable:
        """Make the table of chunks that are fetched and go nowhere, each a unit.

        Parameters
        ----------
        cells : sequence of columns, one an array dimension
            Grid index of each chunk.
        prefixes : int64 array, optional
            Attribute of the table.
        """
        rows = len(cells[0])
        words = np.empty((len(cells) + 1) * rows + 1, np.int64)
        words[: rows + 1] = np.arange(rows + 1)
        for number, column in enumerate(cells, 1):
            words[number * rows + 1 : (number + 1) * rows + 1] = column
        rank = len(cells)
        return cls(
            words, units=rows, rows=rows, regions=0, rank=rank, input_rank=0, prefixes=prefixes
        )

    def offsets(self) -> tuple[int, int, int, int, int, int]:
        """Return where cells, `first`, src_start, dst_start, counts and targets begin in `words`.

        Those of `first` and targets mean nothing if the table has none.
        """
        cells = self.units + 1
        first = cells + self.rank * self.rows
        src = first + (self.rows + 1 if self.has_first else 0)
        dst = src + self.regions
        count = dst + self.regions
        return cells, first, src, dst, count, count + self.input_rank * self.regions

    @property
    def address(self) -> int:
        """Address of :attr:`words`, for the native core."""
        words = self.words
        if isinstance(words, array):
            return words.buffer_info()[0]
        return ctypes.addressof(ctypes.c_char.from_buffer(words.data))

    @property
    def _integers(self) -> Integers:
        words = self.words
        return np.frombuffer(words, np.int64) if isinstance(words, array) else words

    @property
    def cells(self) -> Integers:
        """Grid index of each chunk, shape (rank, rows)."""
        cells = self.units + 1
        return self._integers[cells : cells + self.rank * self.rows].reshape(self.rank, self.rows)

    def columns(self) -> TableColumns:
        """Return the columns of the rows and of their regions."""
        words = self._integers
        _, first, src, dst, count, target = self.offsets()
        end = count + self.input_rank * self.regions
        return TableColumns(
            self.cells,
            words[first : first + self.rows + 1] if self.has_first else np.arange(self.rows + 1),
            words[src:dst],
            words[dst:count],
            words[count:end].reshape(self.input_rank, self.regions),
            words[target : target + self.regions] if self.has_target else None,
        )


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Columns of a row table.

    Attributes
    ----------
    cells : int64 array of shape (rank, rows)
        Grid index of each chunk.
    first : int64 array of shape (rows + 1,)
        Where the regions of each row begin, and where the last one ends.
    src_start, dst_start : int64 array of shape (regions,)
        First byte of each region in the decoded chunk and in the array.
    count : int64 array of shape (input_rank, regions)
        Elements of each region along each input dimension.
    target : int64 array of shape (regions,), or None
        Number of the array of each region; None if there is only one.
    """

    cells: Integers
    first: Integers
    src_start: Integers
    dst_start: Integers
    count: Integers
    target: Integers | None


def split_units(edges: list[int], parts: int, most: int) -> list[int]:
    """Split units into smaller ones of at most `most` rows, and if there are fewer than `parts`."""
    units = len(edges) - 1
    fewest = -(-parts // units)
    if fewest == 1 and (edges[-1] <= most or edges[-1] == units):
        return edges
    found = {0}
    for begin, end in itertools.pairwise(edges):
        pieces = max(fewest, -(-(end - begin) // most))
        found.update([begin + (end - begin) * i // pieces for i in range(1, pieces + 1)])
    return sorted(found)
