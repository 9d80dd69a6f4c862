"""Host memory of the windows of a loader, of which later ones use that of earlier ones.

The kernel clears each page of new memory, which takes a good part of the time of decoding into it.
Windows differ in size, so that memory which is kept by size would pile up.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore import registry

_SMALLEST_NBYTES: Final = 256 << 10
"""Fewest bytes of an array that is not left to NumPy."""

_DROP: Final[int | None] = getattr(mmap, "MADV_DONTNEED", None)
_FREE: Final[int | None] = getattr(mmap, "MADV_FREE", None)
_HUGE: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)


@dataclass(eq=False, slots=True)
class _Block:
    """Pages that one array uses at a time.

    Attributes
    ----------
    pages : mmap.mmap
    nbytes : int
        Number of bytes, from the first on, that the array has.
    touched : int
        Number of bytes, from the first on, that take memory.
    """

    pages: mmap.mmap
    nbytes: int
    touched: int

    def shrink(self) -> None:
        """Give the pages behind the array back."""
        begin = -(-self.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if _DROP is not None and begin < self.touched:
            self.pages.madvise(_DROP, begin, self.touched - begin)
            self.touched = self.nbytes


class KeptMemory:
    """Memory that stays with a loader between iterations.

    The kernel may take its pages as soon as it needs some.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def take(self) -> list[_Block]:
        """Return all blocks, of which nothing is kept any more."""
        found, self._blocks = self._blocks, []
        return found

    def put(self, blocks: list[_Block]) -> None:
        """Keep blocks that nobody uses."""
        for one in blocks:
            if _FREE is not None:
                one.pages.madvise(_FREE)
        self._blocks = blocks

    def __reduce__(self) -> tuple[type[KeptMemory], tuple[()]]:
        """Return how another process makes its own."""
        return KeptMemory, ()


class WindowMemory:
    """Memory for the arrays of the windows of one iteration. For one thread.

    Parameters
    ----------
    nbytes : int
        Most bytes that it takes, as long as the arrays in use have no more.
    kept : KeptMemory
        Memory of earlier iterations, which is used first.
    """

    def __init__(self, nbytes: int, kept: KeptMemory) -> None:
        self._nbytes = nbytes
        self._free = kept.take()
        self._used: dict[int, _Block] = {}  # by identity of the array

    def end(self, kept: KeptMemory) -> None:
        """Keep what is not in use, for the next iteration."""
        kept.put(self._free)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Return an array of undefined contents, in C order.

        None for a small one, for objects, and where there is too little memory: a read allocates
        these, or says what is wrong.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        most = registry.public("backends.host.memory", "PHYSICAL_NBYTES")
        if _DROP is None or dtype.hasobject or not _SMALLEST_NBYTES <= nbytes <= most:
            return None
        try:
            block = self._block(nbytes)
        except OSError:
            return None
        array: NDArray[Any] = np.ndarray(shape, dtype, block.pages)
        self._used[id(array)] = block
        return array

    def give(self, array: NDArray[Any]) -> None:
        """Take back an array from :meth:`take`, which nobody reads or writes any more."""
        block = self._used.pop(id(array), None)
        if block is not None:
            self._free.append(block)

    def _block(self, nbytes: int) -> _Block:
        """Return a block of at least `nbytes` bytes, and give memory beyond the limit back."""
        self._free.sort(key=lambda one: len(one.pages))
        found = next((one for one in self._free if len(one.pages) >= nbytes), None)
        if found is None:
            found = _Block(_pages(nbytes), 0, 0)
            del self._free[-1:]  # Larger ones are wanted in its place.
        else:
            self._free.remove(found)
        found.nbytes, found.touched = nbytes, max(nbytes, found.touched)
        used = [found, *self._used.values()]
        while self._free and _touched(used) + _touched(self._free) > self._nbytes:
            del self._free[0]
        if _touched(used) > self._nbytes:
            for one in used:
                one.shrink()
        return found


def _touched(blocks: Iterable[_Block]) -> int:
    return sum(one.touched for one in blocks)


def _pages(nbytes: int) -> mmap.mmap:
    # Room that nobody touches takes no memory.
    pages = mmap.mmap(-1, nbytes + nbytes // 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _HUGE is not None:
        with contextlib.suppress(OSError):  # A kernel without it.
            pages.madvise(_HUGE)
    return pages
