"""Divisions of an epoch: its patches into batches, and each batch among the ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpustore.loader.order import Window
from gpustore.loader.strata import order_by

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Division:
    """Batches of an epoch, and the part of each that one rank takes.

    Attributes
    ----------
    total : int
        Patches of an epoch.
    size : int
        Patches of a batch of all ranks together, a *global* batch.
    rank, world : int
        Number of this rank, and of how many.
    batches : int
        Batches of an epoch; the last one may be smaller.
    """

    total: int
    size: int
    rank: int
    world: int
    batches: int

    @classmethod
    def of(cls, total: int, batch_size: int, rank: int, world: int, *, drop_last: bool) -> Division:
        """Divide patches into batches of which each rank has `batch_size` patches.

        Raises
        ------
        ValueError
            If there is no batch, or some ranks have none of the last one.
        """
        size = batch_size * world
        left = total % size
        if left and left < world and not drop_last:
            raise ValueError(
                f"The last of the batches of {size} patches on {world} ranks has {left}, so that "
                "some ranks have none; choose drop_last=True or other sizes"
            )
        batches = total // size + (bool(left) and not drop_last)
        if not batches:
            raise ValueError(
                f"An epoch of {total} patches has no batch of {size}; choose drop_last=False or "
                "other sizes"
            )
        return cls(total, size, rank, world, batches)

    def part_size(self, batch: int) -> int:
        """Return the number of patches of a batch that this rank takes."""
        count = min(self.size, self.total - batch * self.size)
        return count * (self.rank + 1) // self.world - count * self.rank // self.world

    def chosen(
        self, window: Window, batches: range, strata: Callable[[Integers], Integers]
    ) -> tuple[Integers, Integers]:
        """Return which patches of a window are in this rank's parts of some batches.

        Parameters
        ----------
        window : Window
        batches : range
            Numbers of the batches.
        strata : callable
            Returns numbers by which the patches of a batch are sorted, and then divided, for their
            numbers in the epoch.

        Returns
        -------
        ndarray of int64, ndarray of int64, both of shape (n,)
            Numbers of the patches within the window, ascending, and the row of each in this rank's
            part of its batch.
        """
        begin = max(window.first // self.size, batches.start) * self.size
        end = min(-(-(window.first + len(window)) // self.size), batches.stop) * self.size
        number = np.arange(begin, min(end, self.total))
        batch = number // self.size
        row = np.empty_like(number)
        row[order_by(batch - batch[:1], strata(number))] = number
        count = np.minimum(self.size, self.total - batch * self.size)
        row -= batch * self.size + count * self.rank // self.world
        size = count * (self.rank + 1) // self.world - count * self.rank // self.world
        at = number - window.first
        chosen = (row >= 0) & (row < size) & ((batch - batches.start) % batches.step == 0)
        chosen &= (at >= 0) & (at < len(window))
        return at[chosen], row[chosen]
