"""Caches of chunks that a device reads again, decoded or as they are stored, bounded in bytes.

Each :class:`~gpustore.resources.device_cache_pool.DeviceCachePool` has one :class:`ChunkCache` a
device, which all arrays opened with that pool share. Its memory is the device's, or pinned memory
of the host:

1. A read looks its chunks up, all at once (:meth:`ChunkCache.find`). Chunks that are there are
   copied from where they lie, out of pinned memory by a few uploads. Their memory is held until the
   read is done with it.
2. The chunks of a submission that were not there are copied into one *slab*, one piece of memory,
   by one launch, and a download if that is pinned. When they have been verified they get entries
   (:meth:`ChunkCache.put`). With encoded chunks their headers are kept, so that a later read
   records their decoding without their bytes.
3. Where room is wanted, the least recently used slabs that nobody holds go, with all their entries.
   A new slab takes over pinned memory of about its size, which is slow to get.

As in :mod:`gpustore.runtime.cache` an entry knows the generation it was made from and when that was
last known to be stored. Writers drop the entries of the keys they change, and a reader that fetched
a value before such a change cannot make an entry of it afterwards: each key has a stamp, which
:meth:`ChunkCache.find` notes and :meth:`ChunkCache.put` compares.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.device.cell_table import MISSING, NO_ENTRY, CellTable
from gpustore.backends.device.slab import EncodedSlab, Slab
from gpustore.device.chunk_tables import ChunkTables
from gpustore.device.protocol import Device, Stream
from gpustore.errors import DeviceError
from gpustore.planning.cell_numbers import CellNumbers
from gpustore.planning.chunk_grid import Integers
from gpustore.runtime.cache import ArrayId
from gpustore.runtime.executor import reset_after_fork

_STAMPS: Final = 1024
"""Number of stamps. Two keys may share one: a change of either only costs a fetch."""

_MOST_WASTE: Final = 2
"""Most bytes of pinned memory that a slab takes over, for each byte that it needs."""


class _Hold:
    """Hold of some slabs, which ends with this object."""

    __slots__ = ("_cache", "_numbers")

    def __init__(self, cache: ChunkCache, numbers: list[int]) -> None:
        self._cache = cache
        self._numbers = numbers

    def __del__(self) -> None:
        self._cache._let_go(self._numbers)


@dataclass(slots=True)
class CachedChunks:
    """Chunks of some rows of a read, as a cache knew them when they were looked up.

    The memory of those that are there is held as long as this object exists, or one that was taken
    from it.

    Attributes
    ----------
    cache : ChunkCache
    slab : ndarray of int64, shape (n,)
        Slab of each chunk; MISSING if it is known not to be stored, NO_ENTRY if nothing is known.
    position : ndarray of int64, shape (n,)
        Position of each chunk in its slab.
    generation : ndarray of object, shape (n,)
        Generation of each value as its entry has it, None without an entry. The reader sets that of
        what it fetches.
    slabs : dict of int to Slab
        The slabs, by number.
    tables : ChunkTables or None
        Tables of all chunks of the array on the device, held as the slabs; None if not there.
    numbers : ndarray of int64, shape (n,)
        Number of each chunk.
    """

    cache: ChunkCache
    slab: Integers
    position: Integers
    generation: NDArray[np.object_]
    slabs: dict[int, Slab]
    tables: ChunkTables | None
    _table: CellTable
    numbers: Integers
    _stamped: Integers
    _stamps: Integers
    _read_at: float
    _hold: _Hold | None = None

    def __len__(self) -> int:
        return len(self.slab)

    @property
    def is_known(self) -> NDArray[np.bool_]:
        """Whether each chunk has an entry."""
        known: NDArray[np.bool_] = self.slab != NO_ENTRY
        return known

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        """Whether each chunk is known not to be stored."""
        missing: NDArray[np.bool_] = self.slab == MISSING
        return missing

    @property
    def is_encoded(self) -> NDArray[np.bool_]:
        """Whether each chunk is there as it is stored."""
        encoded = [number for number, slab in self.slabs.items() if slab.encoded is not None]
        return np.isin(self.slab, encoded)

    @property
    def are_in_place(self) -> bool:
        """Whether all that are there are decoded, and in the memory of the device."""
        slabs = self.slabs.values()
        return not self.cache.is_pinned and all([slab.encoded is None for slab in slabs])

    def reject(self, rows: Integers) -> None:
        """Note that the entries of some rows are not the stored values any more."""
        self.slab[rows] = NO_ENTRY
        self.generation[rows] = None

    def take(self, rows: Integers | slice) -> CachedChunks:
        """Return some of the rows."""
        return replace(
            self,
            slab=self.slab[rows],
            position=self.position[rows],
            generation=self.generation[rows],
            numbers=self.numbers[rows],
            _stamped=self._stamped[rows],
            _stamps=self._stamps[rows],
        )


class Entries(NamedTuple):
    """Entries of all chunks of an array in the memory of the device.

    Attributes
    ----------
    numbers, slab, position : ndarray of int64, shape (n,)
        Number, slab and position of each chunk.
    slabs : dict of int to Slab
        Slabs by number.
    changes : int
        Number of changes of the entries so far.
    """

    numbers: Integers
    slab: Integers
    position: Integers
    slabs: dict[int, Slab]
    changes: int


class ChunkCache:
    """Cache of at most `limit` bytes of chunks for a device. Thread-safe.

    Parameters
    ----------
    device : Device
    limit : int
        Most bytes of all slabs, and of tables and headers in host memory.
    keeps_encoded : bool
        Whether chunks that the device decodes are kept as they are stored.
    is_pinned : bool
        Whether they are kept in pinned memory, otherwise in the memory of the device.
    """

    __slots__ = (
        "__weakref__",
        "_dropped",
        "_last",
        "_lock",
        "_slabs",
        "_slabs_nbytes",
        "_stamps",
        "_stream",
        "_tables",
        "device",
        "is_pinned",
        "keeps_encoded",
        "limit",
    )

    def __init__(
        self, device: Device, limit: int, *, keeps_encoded: bool = False, is_pinned: bool = False
    ) -> None:
        self.limit = limit
        self.keeps_encoded = keeps_encoded
        self.is_pinned = is_pinned
        self.device = device
        self._last = 0
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Empty the cache: the memory of the device is the parent's."""
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._slabs: OrderedDict[int, Slab] = OrderedDict()
        self._tables: dict[ArrayId, dict[CellNumbers, CellTable]] = {}
        self._stamps = np.zeros(_STAMPS, np.int64)
        # Holds that have ended: the garbage collector may end one while the lock is held.
        self._dropped: deque[list[int]] = deque()
        self._slabs_nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that the cache takes now, at most `limit`."""
        with self._lock:
            return self._nbytes()

    def __len__(self) -> int:
        """Return the number of entries."""
        with self._lock:
            return sum(table.count for table in self._all_tables())

    # ----------------------------------------------------------------- lookups

    def find(
        self, array: ArrayId, numbering: CellNumbers, numbers: Integers, now: float, bound: float
    ) -> tuple[CachedChunks, Integers]:
        """Look chunks up, and hold the memory of those that are there.

        Parameters
        ----------
        numbers : ndarray of int64, shape (n,)
            Numbers of the chunks in `numbering`.
        now, bound : float
            Time of the read, and time in seconds since the epoch from which on an entry must have
            been known to be the stored value.

        Returns
        -------
        CachedChunks
        ndarray of int64
            Rows whose entries are older than `bound`.
        """
        stamped = (hash((array, numbering)) + numbers // numbering.per_key) % _STAMPS
        with self._lock:
            self._end_holds()
            table = self._table(array, numbering)
            places, slab, position = table.find(numbers)
            table.looked_up += len(numbers)
            there = np.flatnonzero(slab != NO_ENTRY)
            generation = np.empty(len(numbers), object)
            generation[there] = table.generation(places[there])
            old = there[table.read_at(places[there]) < bound]
            stamps = self._stamps[stamped]
            held = np.unique(slab[slab > MISSING]).tolist()
            slabs = {number: self._slabs[number] for number in held}
            tables = None
            if table.on_device:
                tables = self._slabs[table.on_device].tables
                held.append(table.on_device)
            known = slab, position, generation, slabs, tables
            found = CachedChunks(self, *known, table, numbers, stamped, stamps, now)
            for number in held:
                self._slabs.move_to_end(number)
                self._slabs[number].holds += 1
            if held:
                found._hold = _Hold(self, held)
        return found, old

    def confirm(self, chunks: CachedChunks, rows: Integers, generations: Sequence[bytes]) -> None:
        """Compare the generations of some rows with those that are stored now.

        Entries of others are not used; those of equal ones are known to be stored at the time of
        the read.
        """
        stored = np.empty(len(rows), object)
        stored[:] = generations
        same = (chunks.generation[rows] == stored) & (stored != b"")
        equal = rows[same]
        with self._lock:
            places = chunks._table.places(chunks.numbers[equal])
            there = places >= 0
            chunks._table.confirm(places[there], chunks.generation[equal][there], chunks._read_at)
        chunks.reject(rows[~same])

    def count(self, array: ArrayId, numbering: CellNumbers) -> int:
        """Return the number of entries of an array."""
        with self._lock:
            return self._table(array, numbering).count

    # ----------------------------------------------------------------- entries

    def reserve(self, nbytes: int, stream: Stream) -> Slab | None:
        """Take memory for chunks, held by the caller; None if there is no room for them.

        The memory may be used behind this point of `stream`. It may be more than `nbytes`.
        """
        with self._lock:
            self._end_holds()
            slab = self._taken_over(nbytes)
            if slab is None and self._make_room(nbytes):
                slab = self._allocated(nbytes, stream)
            if slab is not None:
                self._slabs[slab.number] = slab
                self._slabs_nbytes += slab.nbytes
            return slab

    def describe(self, slab: Slab, encoded: EncodedSlab) -> bool:
        """Note what lies in a slab before it gets entries; false if there is no room for that."""
        with self._lock:
            if not self._make_room(encoded.nbytes):
                return False
            slab.encoded = encoded
            self._slabs_nbytes += encoded.nbytes
            return True

    def put(
        self, chunks: CachedChunks, rows: Integers, slab: Slab | None, position: Integers
    ) -> int:
        """Make entries of chunks, unless their values were changed since they were looked up.

        Parameters
        ----------
        chunks : CachedChunks
            Chunks with the generations of what was fetched.
        rows : ndarray of int64
            Rows that get entries.
        slab : Slab or None
            Memory where the chunks lie; None for chunks that are not stored.
        position : ndarray of int64
            Position of each of them in the slab.

        Returns
        -------
        int
            Number of entries made.
        """
        with self._lock:
            self._end_holds()
            fresh = self._stamps[chunks._stamped[rows]] == chunks._stamps[rows]
            rows, position = rows[fresh], position[fresh]
            # Rows of a read with index arrays may be parts of one chunk.
            numbers, first = np.unique(chunks.numbers[rows], return_index=True)
            rows, position, table = rows[first], position[first], chunks._table
            if not len(rows) or not self._make_room(table.growth(numbers)):
                return 0
            number = MISSING if slab is None else slab.number
            before = table.put(numbers, number, position, chunks.generation[rows], chunks._read_at)
            if slab is not None:
                slab.live += len(numbers)
                slab.parts.append((table, numbers))
            self._removed(before)
        return len(numbers)

    def entries(self, chunks: CachedChunks) -> Entries | None:
        """Return all entries of the array; None if some are lacking, or if they were asked before.

        Reads of chunks in the memory of the device need no other tables than these then make
        (:meth:`put_tables`). While chunks change, at most as many are made as chunks are looked up.
        """
        table = chunks._table
        with self._lock:
            if not 0 < table.size == table.count or table.asked == table.changes or self.is_pinned:
                return None
            if table.looked_up < table.size:
                return None
            table.asked = table.changes
            numbers, _, slab, position = table.entries()
            return Entries(numbers, slab, position, dict(self._slabs), table.changes)

    def reserve_left(self, nbytes: int, stream: Stream, host_nbytes: int) -> Slab | None:
        """Take memory as :meth:`reserve` does, if nothing that is kept has to go for it.

        Nor for further bytes of host memory.
        """
        with self._lock:
            if self._nbytes() + nbytes + host_nbytes > self.limit:
                return None
        return self.reserve(nbytes, stream)

    def put_tables(
        self, chunks: CachedChunks, slab: Slab, tables: ChunkTables, changes: int
    ) -> None:
        """Note that a slab begins with tables of all chunks of the array.

        Unless entries have changed since; the slab is not used then.
        """
        table = chunks._table
        with self._lock:
            if table.changes == changes and not table.on_device:
                table.on_device = slab.number
                slab.tables = replace(tables, address=slab.start)
                self._slabs_nbytes += tables.nbytes
                slab.live = 1
                slab.parts.append((table, np.zeros(0, np.int64)))

    def let_go(self, slab: Slab) -> None:
        """End the hold of :meth:`reserve`; nothing on the device uses the memory any more."""
        self._let_go([slab.number])

    # ----------------------------------------------------------------- changes

    def forget(self, array: ArrayId, keys: Iterable[Sequence[int]]) -> None:
        """Drop the chunks of keys with these grid indices, which were or may have been changed."""
        with self._lock:
            # Lists: a collection of garbage on this thread may end a read, which comes here again.
            tables = list(self._tables.get(array, {}).items())
            for index in keys if tables else ():
                for numbering, table in tables:
                    first = numbering.of_key(index)
                    if first is None:
                        continue
                    stamp = (hash((array, numbering)) + first // numbering.per_key) % _STAMPS
                    self._stamps[stamp] += 1
                    self._removed(table.drop(np.arange(first, first + numbering.per_key)))

    def forget_range(self, store: Hashable, prefix: str) -> None:
        """Drop all chunks of a store whose keys start with `prefix`, or may do so."""
        with self._lock:
            self._stamps += 1
            for array, tables in list(self._tables.items()):
                begins = array.key_prefix.startswith(prefix) or prefix.startswith(array.key_prefix)
                if array.store == store and begins:
                    for table in list(tables.values()):
                        self._removed(table.drop_all())

    def give_back(self, nbytes: int | None = None) -> int:
        """Free memory that nobody holds, at least one slab; return its bytes.

        About `nbytes` bytes are freed, by default half of what nobody holds.
        """
        with self._lock:
            self._end_holds()
            if nbytes is None:
                nbytes = sum([slab.nbytes for slab in self._slabs.values() if not slab.holds]) // 2
            return self._evict(max(1, nbytes))

    def clear(self) -> None:
        """Drop all entries, and free the memory that nobody holds."""
        with self._lock:
            self._stamps += 1
            for table in self._all_tables():
                self._removed(table.drop_all())
            self._end_holds()

    # ----------------------------------------------------------------- with the lock

    def _all_tables(self) -> list[CellTable]:
        return [table for tables in list(self._tables.values()) for table in list(tables.values())]

    def _table(self, array: ArrayId, numbering: CellNumbers) -> CellTable:
        """Return the table of an array; a new one has what those of other extents know."""
        tables = self._tables.setdefault(array, {})
        found = tables.get(numbering)
        if found is None:
            found = tables[numbering] = CellTable(numbering.chunks)
            for other, table in list(tables.items()):
                if table is not found and other.inner == numbering.inner:
                    self._adopt(found, numbering, other, table)
        return found

    def _adopt(
        self, table: CellTable, numbering: CellNumbers, other: CellNumbers, known: CellTable
    ) -> None:
        """Give a table the entries that another one of the array has for the same chunks."""
        numbers = other.renumbered(known.entries()[0], numbering)
        if not self._make_room(table.growth(numbers[numbers >= 0])):
            return
        numbers, places, slab, position = known.entries()  # Some may have gone for the room.
        numbers = other.renumbered(numbers, numbering)
        new = (numbers >= 0) & (table.find(numbers)[1] == NO_ENTRY)
        numbers, places = numbers[new], places[new]
        slab, generation = slab[new], known.generation(places)
        table.put(numbers, slab, position[new], generation, known.read_at(places))
        for number in np.unique(slab[slab > MISSING]).tolist():
            here = numbers[slab == number]
            self._slabs[number].live += len(here)
            self._slabs[number].parts.append((table, here))

    def _nbytes(self) -> int:
        return self._slabs_nbytes + sum(table.nbytes for table in self._all_tables())

    def _make_room(self, nbytes: int) -> bool:
        """Evict what is least recently used until there is room; False if there is not enough."""
        if nbytes > self.limit:
            return False
        lacking = self._nbytes() + nbytes - self.limit
        if lacking > 0:
            self._evict(lacking)
            for table in self._all_tables():
                table.shrink()
        if self._nbytes() + nbytes > self.limit:
            for table in self._all_tables():
                self._removed(table.drop_missing())
                table.shrink()
        return self._nbytes() + nbytes <= self.limit

    def _evict(self, nbytes: int) -> int:
        """Free the least recently used slabs that nobody holds, `nbytes` or all there are."""
        freed = 0
        for number in list(self._slabs):
            if freed >= nbytes:
                break
            slab = self._slabs.get(number)
            if slab is None or slab.holds:
                continue  # Addresses go with the first of their chunks.
            self._drop(slab)
            self._free(slab)
            freed += slab.nbytes
        return freed

    def _allocated(self, nbytes: int, stream: Stream) -> Slab | None:
        """Allocate a slab, where memory is short in place of older ones; None if that fails."""
        self._last += 1
        has_evicted = False
        while True:
            try:
                if self.is_pinned:
                    pinned = self.device.allocate_pinned(nbytes)
                    return Slab(self._last, nbytes, pinned=pinned)
                allocation = self.device.allocate(nbytes, stream)
                return Slab(self._last, nbytes, allocation)
            except MemoryError:
                # Of what is kept the oldest goes; if that is not enough, the rest is worth more.
                if has_evicted or not self._evict(nbytes):
                    return None
                has_evicted = True

    def _taken_over(self, nbytes: int) -> Slab | None:
        """Have the oldest slab of about the size go, and take its pinned memory.

        None if there is room for another slab, or no such memory.
        """
        if not self.is_pinned or self._nbytes() + nbytes <= self.limit:
            return None
        for slab in self._slabs.values():
            if not slab.holds and nbytes <= slab.nbytes <= _MOST_WASTE * nbytes:
                self._drop(slab)
                self._last += 1
                return Slab(self._last, slab.nbytes, pinned=slab.pinned)
        return None

    def _drop(self, slab: Slab) -> None:
        """Drop the entries of a slab, and the slab without its memory."""
        del self._slabs[slab.number]
        self._slabs_nbytes -= slab.total_nbytes
        for table, numbers in slab.parts:
            gone = table.drop(numbers, slab.number)
            self._removed(gone[gone != slab.number])

    def _removed(self, slabs: Integers) -> None:
        """Note that entries in these slabs are gone; free slabs without any."""
        numbers, counts = np.unique(slabs[slabs > MISSING], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist()):
            slab = self._slabs[number]
            slab.live -= count
            if not slab.live and not slab.holds:
                self._drop(slab)
                self._free(slab)

    def _let_go(self, numbers: list[int]) -> None:
        self._dropped.append(numbers)
        # Whoever has the lock now does it, or the next one.
        if self._lock.acquire(blocking=False):
            try:
                self._end_holds()
            finally:
                self._lock.release()

    def _end_holds(self) -> None:
        while self._dropped:
            for number in self._dropped.popleft():
                slab = self._slabs.get(number)
                if slab is None:
                    continue  # Of the parent process.
                slab.holds -= 1
                if not slab.holds and not slab.live:
                    self._drop(slab)
                    self._free(slab)

    def _free(self, slab: Slab) -> None:
        """Free the memory of a slab that is not in the cache any more."""
        if self._stream is None:
            self._stream = self.device.stream()
        with suppress(DeviceError):  # Of a lost device, whose memory is lost too.
            slab.free(self.device, self._stream)
