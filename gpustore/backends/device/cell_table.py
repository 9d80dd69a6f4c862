"""Tables of the cached chunks of an array, in columns that NumPy looks up all at once.

Columns are kept in pages of consecutive chunks, because a grid may have far more chunks than are
cached. A lookup of n chunks is a binary search of their pages and one access a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.planning.chunk_grid import Integers

NO_ENTRY: Final = -1
MISSING: Final = 0
"""Numbers of slabs that are none: of a chunk that is not known, and of one that is not stored."""

_PAGE: Final = 64
_PAGE_NBYTES: Final = _PAGE * (8 + 8 + 8 + 8) + 16


class CellTable:
    """Cached chunks of an array by number. For one thread at a time.

    Attributes
    ----------
    size : int
        Number of chunks of the array; 0 if that is not known.
    count : int
        Number of entries.
    changes : int
        Number of times that entries were made or removed.
    looked_up : int
        Chunks that were looked up since the table was made, or since addresses were outdated.
    asked : int
        Value of `changes` when somebody last asked for the addresses of all chunks.
    on_device : int
        Slab with the addresses of all chunks, while all have entries; 0 for none.
    """

    __slots__ = (
        *("_address", "_generation", "_ids", "_read_at", "_rows", "_slab"),
        *("asked", "changes", "count", "looked_up", "on_device", "size"),
    )

    def __init__(self, size: int) -> None:
        self.size = size
        self.changes = self.on_device = self.looked_up = 0
        self.asked = -1
        self.clear()

    def clear(self) -> None:
        """Remove all entries."""
        none = np.zeros(0, np.int64)
        self.count = 0
        self._ids: Integers = none
        self._rows: Integers = none
        self._slab: Integers = none
        self._address: Integers = none
        self._read_at: NDArray[np.float64] = np.zeros(0)
        self._generation: NDArray[np.object_] = np.zeros(0, object)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory of the columns."""
        return len(self._slab) // _PAGE * _PAGE_NBYTES

    def growth(self, numbers: Integers) -> int:
        """Return the bytes by which the columns may grow if these chunks get entries."""
        pages = np.unique(numbers // _PAGE)
        missing = len(pages) - len(np.intersect1d(pages, self._ids, assume_unique=True))
        have = len(self._slab) // _PAGE
        free = have - len(self._ids)
        return 0 if missing <= free else max(missing - free, have) * _PAGE_NBYTES

    def places(self, numbers: Integers) -> Integers:
        """Return the place of each chunk in the columns; -1 for chunks whose page is not there."""
        if not len(self._ids):
            return np.full(len(numbers), -1, np.int64)
        page, inside = np.divmod(numbers, _PAGE)
        at = np.minimum(np.searchsorted(self._ids, page), len(self._ids) - 1)
        places: Integers = np.where(self._ids[at] == page, self._rows[at] * _PAGE + inside, -1)
        return places

    def find(self, numbers: Integers) -> tuple[Integers, Integers, Integers]:
        """Return place, slab and address of each chunk; NO_ENTRY is the slab of unknown ones."""
        places = self.places(numbers)
        if not len(self._slab):
            return (
                places,
                np.full(len(numbers), NO_ENTRY, np.int64),
                np.zeros(len(numbers), np.int64),
            )
        slab = np.where(places < 0, NO_ENTRY, self._slab[places])
        return places, slab, self._address[places]

    def entries(self) -> tuple[Integers, Integers, Integers, Integers]:
        """Return number, place, slab and address of each entry, by ascending number."""
        pages = self._slab.reshape(-1, _PAGE)[self._rows]
        page, inside = np.nonzero(pages != NO_ENTRY)
        places = self._rows[page] * _PAGE + inside
        numbers = self._ids[page] * _PAGE + inside
        return numbers, places, self._slab[places], self._address[places]

    def read_at(self, places: Integers) -> NDArray[np.float64]:
        """Return the time at which each entry was last known to be the stored value."""
        return self._read_at[places]

    def generation(self, places: Integers) -> NDArray[np.object_]:
        """Return the generation that each entry was made from."""
        return self._generation[places]

    def confirm(self, places: Integers, generations: Sequence[bytes], now: float) -> None:
        """Note that values of these generations were stored at the time `now`."""
        wanted = np.empty(len(places), object)
        wanted[:] = generations
        same = places[(self._generation[places] == wanted) & (self._slab[places] != NO_ENTRY)]
        self._read_at[same] = np.maximum(self._read_at[same], now)

    def put(
        self,
        numbers: Integers,
        slab: int | Integers,
        address: Integers,
        generation: NDArray[np.object_],
        read_at: float | NDArray[np.float64],
    ) -> Integers:
        """Make entries of chunks, in place of those they have; return the slabs of the latter.

        Also that of the addresses, which are outdated.
        """
        self._add_pages(np.unique(numbers // _PAGE))
        places = self.places(numbers)
        before: Integers = self._slab[places]
        before = before[before != NO_ENTRY]
        self.count += len(numbers) - len(before)
        self._slab[places] = slab
        self._address[places] = address
        self._generation[places] = generation
        self._read_at[places] = read_at
        return self._changed(before)

    def drop(self, numbers: Integers, slab: int | None = None) -> Integers:
        """Remove the entries of these chunks; with `slab` only of those that lie there.

        Returns
        -------
        ndarray of int64
            Slab of each removed entry, and of the addresses if these are outdated, or are `slab`.
        """
        places = self.places(numbers)
        places = places[places >= 0]
        there: Integers = self._slab[places]
        chosen = there != NO_ENTRY if slab is None else there == slab
        places, there = places[chosen], there[chosen]
        self._slab[places] = NO_ENTRY
        self._generation[places] = None
        self.count -= len(places)
        if not self.count:
            self.clear()
        return self._changed(there) if len(there) or slab == self.on_device else there

    def drop_missing(self) -> Integers:
        """Remove the entries of chunks that are not stored; return what :meth:`drop` does."""
        missing = self._slab == MISSING
        self._slab[missing] = NO_ENTRY
        self._generation[missing] = None
        there: Integers = np.full(int(missing.sum()), MISSING, np.int64)
        self.count -= len(there)
        return self._changed(there) if len(there) else there

    def drop_all(self) -> Integers:
        """Remove all entries; return what :meth:`drop` does."""
        slabs: Integers = self._slab[self._slab != NO_ENTRY]
        self.clear()
        return self._changed(slabs)

    def shrink(self) -> None:
        """Give back the memory of pages without entries."""
        if not len(self._ids):
            return
        used = (self._slab.reshape(-1, _PAGE)[self._rows] != NO_ENTRY).any(axis=1)
        rows = self._rows[used]
        self._ids, self._rows = self._ids[used], np.arange(len(rows))
        self._slab, self._address, self._read_at, self._generation = (
            column.reshape(-1, _PAGE)[rows].reshape(-1)
            for column in (self._slab, self._address, self._read_at, self._generation)
        )

    def _changed(self, slabs: Integers) -> Integers:
        """Note a change of entries in these slabs; return them, and that of the addresses."""
        self.changes += 1
        if not self.on_device:
            return slabs
        outdated, self.on_device, self.looked_up = self.on_device, 0, 0
        return np.append(slabs, outdated)

    def _add_pages(self, pages: Integers) -> None:
        new = np.setdiff1d(pages, self._ids, assume_unique=True)
        if not len(new):
            return
        have, count = len(self._slab) // _PAGE, len(self._ids) + len(new)
        if count > have:
            more = (max(count, 2 * have) - have) * _PAGE
            self._slab = _longer(self._slab, more, NO_ENTRY)
            self._address = _longer(self._address, more, 0)
            self._read_at = _longer(self._read_at, more, 0)
            self._generation = _longer(self._generation, more, None)
        ids = np.concatenate((self._ids, new))
        rows = np.concatenate((self._rows, np.arange(len(self._ids), count)))
        order = np.argsort(ids)
        self._ids, self._rows = ids[order], rows[order]


def _longer(column: NDArray[Any], more: int, value: Any) -> NDArray[Any]:
    return np.concatenate((column, np.full(more, value, column.dtype)))
