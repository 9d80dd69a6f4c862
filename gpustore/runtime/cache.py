"""Caches of opaque entries, bounded in bytes; the least recently used entries go first.

Each :class:`~gpustore.resources.cache_pool.CachePool` has one :class:`Cache`, which all arrays
opened with that pool share. An entry is found by the :class:`Space` of its array, the key of the
stored value, and the part of that value. It holds the generation it was made from and the time when
that was known to be the stored one; the reader decides whether that is recent enough.

Writers drop the entries of the values they change. A reader that fetched a value before such a
change must not store it afterwards: it takes a stamp first, and :meth:`Cache.put` drops an entry
whose stamp has changed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gpustore.runtime.executor import reset_after_fork

OVERHEAD_NBYTES: Final = 512
"""Bytes counted for an entry beside its value: entries of missing chunks take memory, too."""

_STAMPS: Final = 1024
"""Number of stamps. Two values may share one: a change of either only costs a fetch."""

Part = tuple[int | str, ...] | None
Key = tuple["Space", str, Part]


@dataclass(slots=True)
class Entry:
    """One entry of a cache.

    Attributes
    ----------
    value : object
        An immutable object, None for a missing chunk.
    nbytes : int
        Bytes of memory of `value`.
    generation : bytes
        Generation of the stored value that `value` was made from; ``b""`` if unknown.
    read_at : float
        Latest time at which that generation was known to be stored, in seconds since the epoch.
    """

    value: Any
    nbytes: int
    generation: bytes
    read_at: float


class Space(NamedTuple):
    """Namespace of entries: the values of one kvstore, decoded in one way.

    Attributes
    ----------
    store : hashable
        Identity of the kvstore.
    meaning : hashable
        Identity of the decoding: readers that decode differently share no entries.
    """

    store: Hashable
    meaning: Hashable


class ArrayId(NamedTuple):
    """Namespace of the chunks of one array, decoded in one way, in caches of devices.

    Attributes
    ----------
    store : hashable
        Identity of the kvstore.
    key_prefix : str
        Beginning of the keys of the chunks.
    meaning : hashable
        Identity of the decoding: readers that decode differently share no entries.
    """

    store: Hashable
    key_prefix: str
    meaning: Hashable


class Cache:
    """Cache of entries of at most `limit` bytes; any number of threads may use it at once.

    Parameters
    ----------
    limit : int
        Most bytes that the entries take, :data:`OVERHEAD_NBYTES` for each included.

    Examples
    --------
    >>> cache, space = Cache(2000), Space("store", "array")
    >>> [(entry, stamp)] = cache.find(space, ["a"], [None])
    >>> cache.put(space, "a", None, Entry("value", 5, b"1", 0.0), stamp)
    >>> cache.find(space, ["a"], [None])[0][0].value
    'value'
    """

    __slots__ = ("__weakref__", "_entries", "_lock", "_nbytes", "_parts", "_stamps", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Empty the cache: a thread of the parent may have been in the middle of a change."""
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._parts: dict[tuple[Space, str], set[Part]] = {}
        self._stamps = [0] * _STAMPS
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that the entries take now, at most `limit`."""
        return self._nbytes

    def __len__(self) -> int:
        return len(self._entries)

    def find(
        self, space: Space, names: Sequence[str], parts: Sequence[Part]
    ) -> list[tuple[Entry | None, int]]:
        """Return for each key and part its entry, None if there is none, and the value's stamp.

        Parameters
        ----------
        space : Space
        names, parts : sequence, length n
            Key of each stored value, and the part of it.

        Returns
        -------
        list of (Entry or None, int), length n
        """
        found: list[tuple[Entry | None, int]] = []
        with self._lock:
            for name, part in zip(names, parts):
                key = (space, name, part)
                entry = self._entries.get(key)
                if entry is not None:
                    self._entries.move_to_end(key)
                found.append((entry, self._stamps[hash((space, name)) % _STAMPS]))
        return found

    def put(self, space: Space, name: str, part: Part, entry: Entry, stamp: int) -> None:
        """Keep an entry, unless it is too large or its value was changed since `stamp`."""
        nbytes = entry.nbytes + OVERHEAD_NBYTES
        if nbytes > self.limit:
            return
        key = (space, name, part)
        with self._lock:
            if self._stamps[hash((space, name)) % _STAMPS] != stamp:
                return
            self._remove(key)
            while self._nbytes + nbytes > self.limit:
                self._remove(next(iter(self._entries)))
            self._entries[key] = entry
            self._parts.setdefault((space, name), set()).add(part)
            self._nbytes += nbytes

    def forget(self, space: Space, names: Iterable[str]) -> None:
        """Drop all parts of the values `names`, which were or may have been changed."""
        with self._lock:
            for name in names:
                self._stamps[hash((space, name)) % _STAMPS] += 1
                for part in list(self._parts.get((space, name), ())):
                    self._remove((space, name, part))

    def forget_range(self, store: Hashable, prefix: str) -> None:
        """Drop all values of a store whose keys start with `prefix`."""
        with self._lock:
            self._stamps = [stamp + 1 for stamp in self._stamps]
            for key in list(self._entries):
                if key[0].store == store and key[1].startswith(prefix):
                    self._remove(key)

    def _remove(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._nbytes -= entry.nbytes + OVERHEAD_NBYTES
        space, name, part = key
        parts = self._parts[space, name]
        parts.discard(part)
        if not parts:
            del self._parts[space, name]


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Use of a cache by one array.

    Attributes
    ----------
    cache : Cache
    space : Space
    bound : float
        Time in seconds since the epoch. Entries known to be the stored ones at this time or later
        are used as they are, older ones are checked; infinite if each use checks.
    keeps_encoded : bool
        Whether entries are chunks as they are stored, because a device decodes them; otherwise they
        are decoded chunks.
    """

    cache: Cache
    space: Space
    bound: float
    keeps_encoded: bool

    def forget(self, names: Iterable[str]) -> None:
        """Drop the entries of the values `names`, which were or may have been changed."""
        self.cache.forget(self.space, names)
