"""Numbers of the innermost chunks of an array, so that NumPy finds many of them in a table at once.

A number is ``number of the key * inner chunks of a key + number in the key``, both in C order. The
chunks of one key are consecutive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpustore.planning.chunk_grid import Integers
from gpustore.planning.window import Column


@dataclass(frozen=True, slots=True)
class CellNumbers:
    """Numbering of the innermost chunks of a grid.

    Attributes
    ----------
    keys : tuple of int
        Number of keys along each dimension that keys have.
    inner : tuple of int
        Most innermost chunks that share a key, along each of these dimensions.
    chunks : int
        Number of chunks that the array has, at most :attr:`count`; 0 if nobody asks.

    Examples
    --------
    >>> CellNumbers((2, 3), (1, 2)).of_cells(([1, 1], [4, 5]), (1, 2)).tolist()
    [10, 11]
    """

    keys: tuple[int, ...]
    inner: tuple[int, ...]
    chunks: int = 0

    @property
    def per_key(self) -> int:
        """Number of chunks of each key."""
        return math.prod(self.inner)

    @property
    def count(self) -> int:
        """Number of all numbers; those of a shard that the array ends in may have no chunk."""
        return math.prod(self.keys) * self.per_key

    def of_cells(self, cells: Sequence[Column], ratio: Sequence[int]) -> Integers:
        """Return the numbers of chunks.

        Parameters
        ----------
        cells : sequence of columns, one an array dimension
            Grid index of each innermost chunk.
        ratio : sequence of int
            Innermost chunks that share a key where these chunks are, at most :attr:`inner`.

        Returns
        -------
        ndarray of int64, shape (n,)
        """
        key = number = np.zeros(1, np.int64)
        for column, keys, inner, here in zip(cells, self.keys, self.inner, ratio):
            along, inside = np.divmod(np.asarray(column, np.int64), here)
            key = key * keys + along
            number = number * inner + inside
        return key * self.per_key + number

    def renumbered(self, numbers: Integers, other: CellNumbers) -> Integers:
        """Return the numbers of chunks in a grid of the same chunks and another extent.

        Parameters
        ----------
        numbers : ndarray of int64, shape (n,)
        other : CellNumbers
            Numbering with the same :attr:`inner`.

        Returns
        -------
        ndarray of int64, shape (n,)
            -1 for chunks that the other grid lacks.

        Examples
        --------
        >>> CellNumbers((2, 3), (1, 2)).renumbered(np.array([3, 11]), CellNumbers((4, 2), (1, 2)))
        array([ 3, -1])
        """
        left, inside = np.divmod(numbers, self.per_key)
        key, step = np.zeros_like(left), 1
        is_there = np.ones(len(left), np.bool_)
        for here, there in zip(reversed(self.keys), reversed(other.keys)):
            left, along = np.divmod(left, here)
            is_there &= along < there
            key += along * step
            step *= there
        return np.where(is_there, key * self.per_key + inside, -1)

    def of_key(self, index: Sequence[int]) -> int | None:
        """Return the number of the first chunk of a key; None if the grid has no such key."""
        number = 0
        if len(index) != len(self.keys):
            return None
        for at, keys in zip(index, self.keys):
            if not 0 <= at < keys:
                return None
            number = number * keys + at
        return number * self.per_key
