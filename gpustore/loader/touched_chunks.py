"""Chunks that the windows of an iteration touch."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpustore.display.chunk_grid import axes_of
from gpustore.loader.fetched_window import FetchedArray
from gpustore.loader.volume import PairedArray

Integers = NDArray[np.int64]

_MOST_CHUNKS: Final = 1 << 30
"""Most chunks of an array whose different chunks are counted."""


class TouchedChunks:
    """Chunks of one array that windows touch.

    Parameters
    ----------
    array : PairedArray

    Attributes
    ----------
    different : int
        Number of different chunks touched so far; all that were touched, in arrays of more than
        2**30 chunks.
    """

    def __init__(self, array: PairedArray) -> None:
        axes = axes_of(array.store)
        leading = len(array.leading)
        self._times = math.prod(len(axis.chunks) + 1 for axis in axes[:leading])
        self._edges = [np.asarray(axis.chunks, np.int64) for axis in axes[leading:]]
        self._shape = [len(one) + 1 for one in self._edges]
        # Pages of it that nothing touches take no memory.
        is_small = math.prod(self._shape) <= _MOST_CHUNKS
        self._touched = np.zeros(self._shape, np.bool_) if is_small else None
        self.different = 0

    def add(self, fetched: FetchedArray) -> None:
        """Touch the chunks that a window reads of the array."""
        if fetched.is_box:
            low, high = fetched.low[None], fetched.high[None]
        else:
            low, high = fetched.origins, fetched.origins + np.array(fetched.array.patch)
        first = self._numbers(low)
        last = self._numbers(high - 1)
        if fetched.is_box:
            box = tuple(slice(a, b + 1) for a, b in zip(first[0].tolist(), last[0].tolist()))
            self._add(box, math.prod(one.stop - one.start for one in box))
        else:
            found = self._flat(first, last)
            self._add(np.unravel_index(found, self._shape), len(found))

    def _numbers(self, elements: Integers) -> Integers:
        """Return the number of the chunk of each element along each dimension."""
        return np.stack(
            [
                np.searchsorted(edges, elements[:, d], "right")
                for d, edges in enumerate(self._edges)
            ],
            axis=1,
        )

    def _flat(self, first: Integers, last: Integers) -> Integers:
        """Return the numbers, in C order, of the different chunks of some boxes of chunks."""
        most = (last - first).max(axis=0) + 1
        found = []
        for step in np.ndindex(*most.tolist()):
            number = first + np.array(step)
            inside = (number <= last).all(axis=1)
            found.append(np.ravel_multi_index(tuple(number[inside].T), self._shape))
        return np.unique(np.concatenate(found))

    def _add(self, where: tuple[slice | Integers, ...], count: int) -> None:
        if self._touched is not None:
            count -= int(np.count_nonzero(self._touched[where]))
            self._touched[where] = True
        self.different += count * self._times
