"""Generations of the values that reads of one array have seen: a value that changes is an error.

A generation is kept as 64 bits. They come with the values: from the kvstore, or from the status of
each file that the native core has open. So nothing is asked of the store for them.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.native.job import DONE, MISSING
from gpustore.errors import ConflictError
from gpustore.kvstores.base import DriverSpec, KeyDirectory, KvStoreDriver
from gpustore.kvstores.columns import ABSENT, ReadColumns, ReadRequest
from gpustore.planning.chunk_format import ChunkFormat
from gpustore.planning.chunk_grid import Integers
from gpustore.runtime.context import Context

Stamps = NDArray[np.uint64]

MOST_KEYS: Final = 1 << 27
"""Most chunks and shards of an array whose generations are kept, in 8 bytes each."""

_UNKNOWN, _ABSENT, _STORED = 0, 1, 2
"""Stamps of an unknown generation and of a key without a value, and a bit of all others."""

_FILE_NBYTES: Final = 33
"""Bytes of the generation of a file: one, and four integers."""


class SeenGenerations:
    """Generations of the chunks and shards of an array, as they were when each was first read.

    Any number of threads may use it. Pages for chunks that nobody reads take no memory.

    Parameters
    ----------
    keys : tuple of int
        Number of keys along each dimension that keys have.
    format : ChunkFormat
        Names of the keys.
    describe : callable
        Returns the name of a key for messages.
    """

    def __init__(
        self, keys: tuple[int, ...], format: ChunkFormat, describe: Callable[[str], str]
    ) -> None:
        self._shape = keys
        self._format = format
        self._describe = describe
        self._stamps = np.zeros(math.prod(keys), np.uint64)
        self._lock = threading.Lock()

    def note_files(
        self,
        ratio: Sequence[int],
        cells: Integers,
        generation: NDArray[np.uint64],
        status: NDArray[np.uint8],
    ) -> None:
        """Note the files of chunks that the native core has read.

        Parameters
        ----------
        ratio : sequence of int
            Chunks along each dimension that share a file.
        cells : ndarray of int64, shape (rank, rows)
            Grid index of each chunk.
        generation : ndarray of uint64, shape (rows, 4)
            Device, inode, time of modification and size of each file.
        status : ndarray of uint8, shape (rows,)
            Status of each chunk; those that the core has left alone are not noted.

        Raises
        ------
        ConflictError
            If a file is not the one that was read before; the error has its key.
        """
        stamps = _of_files(generation)
        # Of a shard that is there, inner chunks may be missing.
        stamps[(status == MISSING) & ~generation.any(axis=1)] = _ABSENT
        stamps[(status != DONE) & (status != MISSING)] = _UNKNOWN
        places = [cell // r for cell, r in zip(cells, ratio)][: len(self._shape)]
        numbers = np.zeros(len(stamps), np.int64)
        if places:
            numbers = np.ravel_multi_index(tuple(places), self._shape)
        changed = np.flatnonzero(self._differ(numbers, stamps))
        if len(changed):
            number = numbers[changed[0]]
            raise self._error(self._format.key([int(i) for i in self._index(number)]))

    def _index(self, number: np.int64) -> Sequence[Any]:
        return np.unravel_index(number, self._shape) if self._shape else ()

    def note(self, keys: Sequence[str], generations: Sequence[bytes]) -> dict[int, ConflictError]:
        """Note values; return errors, by position, of those that are not what was read before."""
        places = [self._number(key) for key in keys]
        rows = np.array([row for row, place in enumerate(places) if place is not None], np.int64)
        numbers = np.array([place for place in places if place is not None], np.int64)
        stamps = np.array([_of(generations[row]) for row in rows.tolist()], np.uint64)
        changed = rows[self._differ(numbers, stamps)].tolist()
        return {row: self._error(keys[row]) for row in changed}

    def _number(self, key: str) -> int | None:
        """Return the number of a key; None if it is not that of a chunk."""
        form = self._format
        name = key.removeprefix(form.key_prefix)
        index: Sequence[int] = ()
        if form.names is not None:
            index = form.names.cell(name)
        elif form.key_rank:
            index = [int(part) for part in name.split(form.key_separator)]
        found = 0
        for i, n in zip(index, self._shape, strict=True):
            found = found * n + i
        return found

    def _differ(self, numbers: Integers, stamps: Stamps) -> NDArray[np.bool_]:
        """Keep the stamps of keys that are new, and return which others are not as they were."""
        with self._lock:
            is_new = self._stamps[numbers] == _UNKNOWN
            self._stamps[numbers[is_new]] = stamps[is_new]
            kept = self._stamps[numbers]
        found: NDArray[np.bool_] = (kept != stamps) & (stamps != _UNKNOWN) & (kept != _UNKNOWN)
        return found

    def _error(self, key: str) -> ConflictError:
        return ConflictError(f"{self._describe(key)} has changed since it was first read", key=key)


class WatchedKvStore(KvStoreDriver):
    """Kvstore of an array that only reads, and notes the generation of what it has read.

    Parameters
    ----------
    plain : KvStoreDriver
        The same kvstore without notes.
    seen : SeenGenerations
    """

    can_write = False

    def __init__(self, plain: KvStoreDriver, seen: SeenGenerations) -> None:
        self._plain = plain
        self._seen = seen
        self.id = plain.id  # type: ignore[misc]  # of the kvstore, which only this object knows
        self.is_local = plain.is_local
        self.is_trusted = plain.is_trusted
        self.batch_nbytes = plain.batch_nbytes
        self.executor = plain.executor
        self.base = plain.base

    def read_many(self, request: ReadRequest) -> ReadColumns:
        """Read a batch of keys; one that has changed is an error."""
        found = self._plain.read_many(request)
        changed = self._seen.note(request.keys, found.generation)
        for row, error in changed.items():
            found.error.setdefault(row, error)
        return found

    @property
    def plain(self) -> KvStoreDriver:
        return self._plain

    def key_directory(self, prefix: str) -> KeyDirectory | None:
        """Return that of the kvstore; whoever reads its files notes their generations."""
        return self._plain.key_directory(prefix)

    def check_key(self, key: str) -> None:
        self._plain.check_key(key)

    def describe(self, key: str) -> str:
        return self._plain.describe(key)

    @property
    def spec(self) -> DriverSpec:
        return self._plain.spec

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        return self._plain.resources


def _of_files(generation: NDArray[np.uint64]) -> Stamps:
    """Return the stamps of files; shape (n,) for n rows of four integers.

    They are made of time of modification and size: network file systems may number their files, and
    themselves, anew while nothing changes.
    """
    found = np.zeros(len(generation), np.uint64)
    with np.errstate(over="ignore"):
        for column in generation.T[2:]:
            # Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
            found = (found ^ column) + np.uint64(0x9E3779B97F4A7C15)
            found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            found ^= found >> np.uint64(31)
    return found | np.uint64(_STORED)


def _of(generation: bytes) -> int:
    """Return the stamp of a generation; that of a file is the one of :func:`_of_files`."""
    if generation in (b"", ABSENT):
        return _ABSENT if generation else _UNKNOWN
    if len(generation) == _FILE_NBYTES:
        return int(_of_files(np.frombuffer(generation, "<u8", offset=1).reshape(1, 4))[0])
    digest = hashlib.blake2b(generation, digest_size=8).digest()
    return int.from_bytes(digest, "little") | _STORED
