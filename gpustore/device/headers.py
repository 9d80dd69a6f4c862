"""Headers of encoded values, as a codec has read and checked them: columns of many values.

The cache of a device keeps them beside encoded chunks, so that their bytes need not be in host
memory, nor be read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from gpustore.device.encoded_columns import Integers


class Headers(Protocol):
    """Headers of n values; all positions count from the beginning of their value."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""

    def take(self, values: NDArray[Any]) -> Self:
        """Return the headers of some values: of these indices, or those where a mask is true."""

    def joined(self, others: Sequence[Any]) -> Self:
        """Return the headers of these values and those of `others`, which one codec has read."""


@dataclass(frozen=True, slots=True)
class HeaderColumns:
    """Headers of one number a column for each value.

    Attributes
    ----------
    columns : tuple of ndarray, shape (n,) each
    """

    columns: tuple[NDArray[Any], ...]

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    def take(self, values: NDArray[Any]) -> HeaderColumns:
        """Return the headers of some values."""
        return HeaderColumns(tuple([column[values] for column in self.columns]))

    def joined(self, others: Sequence[HeaderColumns]) -> HeaderColumns:
        """Return the headers of these values and those of `others`."""
        pairs = zip(self.columns, *(other.columns for other in others))
        return HeaderColumns(tuple([np.concatenate(columns) for columns in pairs]))


def take_parts(owner: Integers, count: int, values: NDArray[Any]) -> tuple[Integers, Integers]:
    """Find the parts of some values, of which each has any number.

    Parameters
    ----------
    owner : ndarray of int64
        Number of the value of each part, ascending, below `count`.
    values : ndarray
        Indices of values, or a mask of them.

    Returns
    -------
    ndarray of int64
        Number of the value of each part found, among those taken.
    ndarray of int64
        Number of each of these parts.

    >>> take_parts(np.array([0, 1, 1, 2]), 3, np.array([2, 1]))
    (array([0, 1, 1]), array([3, 1, 2]))
    """
    if values.dtype == np.bool_:
        values = np.flatnonzero(values)
    sizes = np.bincount(owner, minlength=count)
    first, taken = np.cumsum(sizes) - sizes, sizes[values]
    before = np.cumsum(taken) - taken
    number = np.arange(int(taken.sum())) + np.repeat(first[values] - before, taken)
    return np.repeat(np.arange(len(values)), taken), number
