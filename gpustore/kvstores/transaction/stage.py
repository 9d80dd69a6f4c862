"""Changes of one kvstore that a transaction stages, and their commit: :class:`Stage`.

The commit stores all values at once where the kvstore can, otherwise values of arrays first, so
that a new array has its metadata when its elements are there. A value that was made from a stored
one is stored on condition that this has not changed, otherwise it is made again.
"""

from __future__ import annotations

import bisect
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gpustore.errors import ConflictError, GpustoreError
from gpustore.kvstores.base import prefix_end
from gpustore.kvstores.columns import ABSENT, AtomicRequest, ReadRequest, ReadState, WriteRequest
from gpustore.kvstores.transaction.staged_value import Entry, Made, Overlayer, is_in
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.executor import shared
from gpustore.runtime.statistics import STATISTICS

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gpustore.kvstores.base import KvStoreDriver
    from gpustore.runtime.executor import Executor
    from gpustore.runtime.future import Future
    from gpustore.runtime.transaction import Transaction

_ATTEMPTS: Final = 1000
_FIRST_DELAY_S: Final = 0.0002
_LONGEST_DELAY_S: Final = 0.05
_KEPT_NBYTES: Final = 64 << 20
"""Most bytes of computed values that a transaction keeps."""
_BATCH_KEYS: Final = 64
_FEW_KEYS: Final = 2
"""Most keys that a task of a commit stores, and most that are stored without a task."""


class Stage:
    """Staged changes of one kvstore; the kvstore's part in the transaction. Thread-safe.

    Parameters
    ----------
    base : KvStoreDriver
        Driver that stores the changes.
    transaction : Transaction
        Its flags alone are kept.
    """

    def __init__(self, base: KvStoreDriver, transaction: Transaction) -> None:
        self.base = base
        self.atomic = transaction.atomic
        self.repeatable_read = transaction.repeatable_read
        self.lock = threading.RLock()
        self.entries: dict[str, Entry] = {}
        self.deleted: list[tuple[str, str | None]] = []
        self.read: dict[str, bytes] = {}
        self.mismatched: str | None = None
        self.committed: dict[Hashable, Callable[[], None]] = {}
        self.kept: dict[str, tuple[bytes, Buffer | None]] = {}
        self._kept_nbytes = 0

    # ------------------------------------------------------------------ staging

    def find(self, key: str) -> Entry | None:
        """Return what is staged for a key; None if that is nothing. Call it under the lock."""
        found = self.entries.get(key)
        if found is None and any(is_in(key, one) for one in self.deleted):
            return Entry(ABSENT, is_set=True)
        return found

    def write(self, key: str, value: Buffer | None, condition: bytes) -> bytes:
        """Stage a value; return its generation, ``b""`` if the condition fails already."""
        with self.lock:
            entry = self.find(key) or Entry()
            if condition:
                if entry.layers:
                    now = entry.last_seen.generation
                elif entry.is_set:
                    now = entry.generation
                else:
                    now = self.read.get(key, condition)
                if now != condition:
                    return b""
                if not entry.is_set:  # Otherwise the stored value plays no part.
                    entry.expected = entry.seen.stored if entry.layers else condition
            entry.set(value)
            self.entries[key] = entry
            return entry.generation

    def lay(self, key: str, overlayer: Overlayer, layer: Any) -> None:
        """Stage a layer over a value."""
        with self.lock:
            entry = self.find(key) or Entry()
            entry.lay(overlayer, layer)
            self.entries[key] = entry

    def delete_range(self, low: str, high: str | None) -> None:
        """Stage the deletion of a range."""
        with self.lock:
            for key in list(self.entries):
                if is_in(key, (low, high)):
                    if self.entries[key].expected:
                        self.entries[key].set(None)
                    else:
                        del self.entries[key]
            self.deleted.append((low, high))

    # ------------------------------------------------------------------ reading

    def note(self, key: str, generation: bytes) -> bool:
        """Note that a stored value was read; return whether that repeats what was read before."""
        if not self.repeatable_read or not generation:
            return True
        with self.lock:
            return self.read.setdefault(key, generation) == generation

    def keep(self, key: str, value: Buffer | None, generation: bytes) -> None:
        """Keep a stored value that was computed, for layers over it; until the commit."""
        if not self.base.computes_values or value is None:
            return
        with self.lock:
            self._kept_nbytes += len(value)
            if self._kept_nbytes <= _KEPT_NBYTES:
                self.kept[key] = generation, bytes(value)

    def values(
        self, keys: Sequence[str], *, to_store: bool = False
    ) -> dict[str, Made | GpustoreError]:
        """Return staged values with their layers. Blocks for stored values that lie under them.

        What is `to_store` is not made of values that readers saw.
        """
        with self.lock:
            merges = self.base.computes_values
            made = {
                key: Made.of(self.entries[key], to_store=to_store, merges=merges) for key in keys
            }
        result: dict[str, Made | GpustoreError] = dict(made)
        below: dict[int, list[str]] = {}
        for key, one in made.items():
            if not one.is_set:
                below.setdefault(one.layers[0][0].max_nbytes, []).append(key)
        for max_nbytes, some in below.items():
            self._fetch(made, some, max_nbytes, result)
        left = [key for key, one in made.items() if result[key] is one and one.layers]
        for key in left:
            made[key].take_seen()
        while left := [key for key in left if result[key] is made[key] and made[key].layers]:
            self._lay(made, left, result)
        with self.lock:
            for one in made.values():
                one.keep()
        return result

    def _fetch(
        self,
        made: Mapping[str, Made],
        keys: Sequence[str],
        max_nbytes: int,
        result: dict[str, Made | GpustoreError],
    ) -> None:
        """Read the stored values that lie under layers, unless they were seen before."""
        for key in keys:
            if key in self.kept:
                made[key].stored, made[key].value = self.kept[key]
        keys = [key for key in keys if key not in self.kept]
        if not keys:
            return
        conditions = [made[key].seen.stored for key in keys]
        columns = self.base.read_many(
            ReadRequest(keys, if_not_equal=conditions, max_nbytes=max_nbytes)
        )
        values = [value for value in columns.value if value is not None]
        STATISTICS.add(key_reads=len(keys), bytes_fetched=sum(map(len, values)))
        for i, key in enumerate(keys):
            if i in columns.error:
                result[key] = columns.error[i]
            else:
                made[key].stored, made[key].value = columns.generation[i], columns.value[i]
                if columns.state[i] is not ReadState.UNSPECIFIED:  # It is not the one seen before.
                    self.keep(key, columns.value[i], columns.generation[i])

    def _lay(
        self,
        made: Mapping[str, Made],
        keys: Iterable[str],
        result: dict[str, Made | GpustoreError],
    ) -> None:
        """Lay the next layers of one array over values: all values of an array together."""
        groups: dict[int, list[str]] = {}
        for key in keys:
            groups.setdefault(id(made[key].overlayer), []).append(key)
        for group in groups.values():
            overlayer = made[group[0]].overlayer
            try:
                values = overlayer.encode([made[key].next for key in group])
            except GpustoreError as error:
                if len(group) == 1:
                    result[group[0]] = error
                    continue
                for key in group:  # Each value has its own result or error.
                    self._lay(made, [key], result)
                continue
            for key, value in zip(group, values, strict=True):
                made[key].value = value
                del made[key].layers[0]

    # ------------------------------------------------------------------ commit

    def commit(self) -> Future[None]:
        """Store everything; the Future has the first error."""
        executor: Executor = self.base.executor or shared()
        if self.base.writes_together:
            return executor.submit(self._commit_together, drain=True)
        return executor.submit(partial(self._commit_separately, executor), drain=True)

    def drop(self) -> None:
        """Forget all changes."""
        with self.lock:
            self.entries, self.deleted, self.read, self.kept = {}, [], {}, {}
            self.committed = {}

    def _commit_together(self) -> None:
        self._check_mismatched()
        keys = sorted(key for key, one in self.entries.items() if one.is_set or one.layers)
        if not (keys or self.deleted or self.read):
            return
        delay = _FIRST_DELAY_S
        for _ in range(_ATTEMPTS):
            values, expected = self._made(keys)
            fixed = {key: self.entries[key].expected for key in keys if self.entries[key].expected}
            fixed |= self.read
            request = AtomicRequest(keys, values, {**expected, **fixed}, self.deleted)
            try:
                failed = self.base.write_together(request)
            finally:
                self._forget()
            if not failed:
                self._count(keys, values)
                return
            for key in failed:
                if key in fixed:
                    raise self._conflict(key)
            time.sleep(random.uniform(0, delay))
            delay = min(2 * delay, _LONGEST_DELAY_S)
        raise self._overtaken(failed[0])

    def _made(self, keys: Sequence[str]) -> tuple[list[Buffer | None], dict[str, bytes]]:
        """Return the values of keys, and the generations of the stored ones they were made from."""
        found = self.values(keys, to_store=True)
        values: list[Buffer | None] = []
        stored: dict[str, bytes] = {}
        for key in keys:
            one = found[key]
            if isinstance(one, GpustoreError):
                raise one
            values.append(one.value)
            if one.stored:
                stored[key] = one.stored
        return values, stored

    def _commit_separately(self, executor: Executor) -> Future[None] | None:
        self._check_mismatched()
        self._check_read()
        for low, high in self.deleted:
            self._delete(low, high)
        entries = sorted(self.entries.items())
        laid = [key for key, one in entries if one.layers]
        plain = [key for key, one in entries if one.is_set and not one.layers]

        def run(keys: list[str], then: Callable[[], Future[None] | None]) -> Future[None] | None:
            size = max(1, min(_BATCH_KEYS, -(-len(keys) // executor.limit)))
            if self.base.write_nbytes:
                size = max(1, len(keys))  # Each batch has a high cost.
            if len(keys) <= max(size, _FEW_KEYS):
                try:
                    if keys:
                        self._commit_keys(keys)
                finally:
                    self._forget()
                return then()
            parts = [keys[at : at + size] for at in range(0, len(keys), size)]
            tasks = [partial(self._commit_keys, part) for part in parts]
            return executor.run_all(tasks, then, drain=True, ended=self._forget)

        return run(laid, lambda: run(plain, lambda: None))

    def _commit_keys(self, keys: list[str]) -> None:
        """Store the values of some keys; repeat for those that were made from others' values."""
        keys = self._store_layers(keys)
        if not keys:
            return
        delay = _FIRST_DELAY_S
        for _ in range(_ATTEMPTS):
            values, stored = self._made(keys)
            conditions = [
                self.entries[key].expected or self.read.get(key) or stored.get(key, b"")
                for key in keys
            ]
            columns = self.base.write_many(WriteRequest(keys, values, conditions))
            columns.raise_first()
            # Where a condition failed there is no generation.
            stays = [not generation for generation in columns.generation]
            self._count(keys, [None if left else one for one, left in zip(values, stays)])
            keys = list(itertools.compress(keys, stays))
            for key in keys:
                self.kept.pop(key, None)
                if self.entries[key].expected or key in self.read:
                    raise self._conflict(key)
            if not keys:
                return
            time.sleep(random.uniform(0, delay))
            delay = min(2 * delay, _LONGEST_DELAY_S)
        raise self._overtaken(keys[0])

    def _store_layers(self, keys: list[str]) -> list[str]:
        """Let arrays store values that have their layers alone; return the keys that are left."""
        groups: dict[int, tuple[Overlayer, list[tuple[str, list[Any], bool]]]] = {}
        left = []
        for key in keys:
            entry = self.entries[key]
            entry.drop_covered(merges=False)
            is_free = entry.value is None and not entry.expected and key not in self.read
            if not is_free or len(entry.layers) != 1:
                left.append(key)
                continue
            laid = entry.layers[0]
            some = [layer for _, layer in laid.now(0)]
            _, group = groups.setdefault(id(laid.overlayer), (laid.overlayer, []))
            group.append((key, some, entry.is_set))
        for overlayer, group in groups.values():
            left += overlayer.store(group)
        return left

    def _count(self, keys: Sequence[str], values: Sequence[Buffer | None]) -> None:
        """Count the chunks that were stored, those with a value."""
        sizes = [
            len(value)
            for key, value in zip(keys, values, strict=True)
            if value is not None and self.entries[key].layers
        ]
        STATISTICS.add(values_stored=len(sizes), bytes_stored=sum(sizes))

    def _check_mismatched(self) -> None:
        if self.mismatched is not None:
            raise self._conflict(self.mismatched)

    def _check_read(self) -> None:
        """Raise ConflictError if a value that was read and is not written has changed."""
        keys = list(self.read)
        if not keys:
            return
        none = [0] * len(keys)
        columns = self.base.read_many(ReadRequest(keys, start=none, stop=none))
        columns.raise_first()
        for key, generation in zip(keys, columns.generation, strict=True):
            if generation != self.read[key]:
                raise self._conflict(key)

    def _delete(self, low: str, high: str | None) -> None:
        """Delete the keys of a range, but for those that are written."""
        if not any(is_in(key, (low, high)) for key in self.entries):
            self.base.delete_range(low, high)
            return
        keys = sorted(key for key in self.base.list(low, high) if key not in self.entries)
        written = sorted(self.entries)
        for key in written:  # A file cannot be written where an emptied directory is left.
            below = key + "/"
            if _has(keys, below) and not _has(written, below):
                end = min(one for one in (prefix_end(below), high) if one is not None)
                self.base.delete_range(max(below, low), end)
        self.base.write_many(WriteRequest(keys, [None] * len(keys))).raise_first()

    def _forget(self) -> None:
        """Drop from caches what was or may have been changed."""
        for forget in list(self.committed.values()):
            forget()

    def _conflict(self, key: str) -> ConflictError:
        return ConflictError(
            f"Error writing {self.base.describe(key)}: Generation mismatch", key=key
        )

    def _overtaken(self, key: str) -> ConflictError:
        return ConflictError(
            f"Error writing {self.base.describe(key)}: another writer was faster {_ATTEMPTS} times",
            key=key,
        )


def _has(keys: Sequence[str], prefix: str) -> bool:
    """Whether one of sorted keys begins with `prefix`."""
    at = bisect.bisect_left(keys, prefix)
    return at < len(keys) and keys[at].startswith(prefix)
