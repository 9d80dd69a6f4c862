"""Orders of patches: which patch is the n-th one of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """Consecutive patches of an epoch that are neighbours in one volume.

    Attributes
    ----------
    first : int
        Number of its first patch in the epoch.
    volume : int
        Number of the volume.
    origins : ndarray of int64, shape (n, rank)
        Origin of each patch, counted from the first element of the volume.
    """

    first: int
    volume: int
    origins: Integers

    def __len__(self) -> int:
        return len(self.origins)


class PatchOrder(Protocol):
    """Order of the patches of some volumes: a function of the epoch and of the patch's number."""

    def __len__(self) -> int:
        """Return the number of patches of an epoch."""

    def windows(self, epoch: int, first: int) -> Iterator[Window]:
        """Yield the windows of an epoch, in order, from the one that has patch `first` on."""

    def strata(self, epoch: int, numbers: Integers) -> Integers:
        """Return a number for each patch that is near for those that are near in their window.

        The parts of a batch that ranks take are those of its patches in this order.

        Parameters
        ----------
        epoch : int
        numbers : ndarray of int64, shape (n,)
            Numbers of patches in the epoch.
        """
