"""Divisions of an epoch: its patches into batches, and each batch among the ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpustore.loader.order import Window

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

    def chosen(self, window: Window, batches: range) -> Integers:
        """Return which patches of a window are in this rank's parts of some batches; ascending."""
        number = window.first + np.arange(len(window))
        of = number // self.size
        count = np.minimum(self.size, self.total - of * self.size)
        begin = of * self.size + count * self.rank // self.world
        end = of * self.size + count * (self.rank + 1) // self.world
        mine = (begin <= number) & (number < end) & (of >= batches.start) & (of < batches.stop)
        mine &= (of - batches.start) % batches.step == 0
        found: Integers = mine.nonzero()[0]
        return found
