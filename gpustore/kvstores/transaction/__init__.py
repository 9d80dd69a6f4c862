"""Kvstores in a transaction: :class:`TransactedKvStore`, a driver over another one.

Its writes go to a :class:`~gpustore.kvstores.transaction.stage.Stage`, of which the transaction has
one for each kvstore; its reads see the staged changes over the stored values.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gpustore.errors import ConflictError, GpustoreError, UnsupportedError
from gpustore.kvstores.base import KvStoreDriver
from gpustore.kvstores.columns import (
    ABSENT,
    ReadColumns,
    ReadRequest,
    WriteColumns,
    WriteRequest,
)
from gpustore.kvstores.result import TimestampedStorageGeneration
from gpustore.kvstores.transaction.stage import Stage
from gpustore.kvstores.transaction.staged_value import (
    Overlayer,
    is_in,
    merged_by,
    new_generation,
)
from gpustore.runtime.executor import shared
from gpustore.runtime.transaction import TransactionExecutor

if TYPE_CHECKING:
    import builtins
    from collections.abc import Hashable

    from gpustore.kvstores.base import Base, DriverSpec
    from gpustore.runtime.context import Context
    from gpustore.runtime.transaction import Transaction

T = TypeVar("T")


class TransactedKvStore(KvStoreDriver):
    """A kvstore whose reads and writes belong to a transaction.

    Parameters
    ----------
    base : KvStoreDriver
        The kvstore outside of the transaction.
    transaction : Transaction
    """

    transaction: Transaction

    def __init__(self, base: KvStoreDriver, transaction: Transaction) -> None:
        self._plain = base
        self.transaction = transaction
        self.stage = transaction._participant(base.identity, partial(Stage, base, transaction))
        self.id = base.id  # type: ignore[misc]  # of the kvstore, which only this object knows
        self.can_write = base.can_write
        self.can_list = base.can_list
        self.is_trusted = base.is_trusted
        self.batch_nbytes = base.batch_nbytes
        self.executor = TransactionExecutor(base.executor or shared(), transaction)
        self.base = base.base

    @property
    def plain(self) -> KvStoreDriver:
        return self._plain

    @property
    def spec(self) -> DriverSpec:
        return self._plain.spec

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        return self._plain.resources

    @property
    def bases(self) -> Sequence[Base]:
        return self._plain.bases

    @property
    def identity(self) -> Hashable:
        return self.stage

    def describe(self, key: str) -> str:
        return self._plain.describe(key)

    def check_key(self, key: str) -> None:
        self._plain.check_key(key)

    def rooted(self, path: str) -> KvStoreDriver:
        return TransactedKvStore(self._plain.rooted(path), self.transaction)

    # ------------------------------------------------------------------ reading

    def read_many(self, request: ReadRequest) -> ReadColumns:
        self.transaction._check_open()
        result = ReadColumns.blank(len(request.keys))
        stage = self.stage
        with stage.lock:
            entries = list(map(stage.find, request.keys))
        stored = [i for i, entry in enumerate(entries) if entry is None]
        staged = [i for i, entry in enumerate(entries) if entry is not None]
        if stored:
            self._read_stored(request, stored, result)
        laid = {request.keys[i] for i in staged if request.keys[i] in stage.entries}
        made = stage.values(sorted(laid)) if laid else {}
        for i in staged:
            found = made.get(request.keys[i])
            if isinstance(found, GpustoreError):
                result.error[i] = found
                continue
            if found is not None and not self._note(request.keys[i], found.stored):
                result.error[i] = self._changed(request.keys[i])
                continue
            value, generation = (None, ABSENT) if found is None else (found.value, found.generation)
            result.take(i, request, value, generation)
        return result

    def _read_stored(
        self, request: ReadRequest, rows: builtins.list[int], result: ReadColumns
    ) -> None:
        """Read what is not staged."""

        def some(column: Sequence[T] | None) -> builtins.list[T] | None:
            return None if column is None else [column[i] for i in rows]

        columns = self._plain.read_many(
            ReadRequest(
                [request.keys[i] for i in rows],
                start=some(request.start),
                stop=some(request.stop),
                if_equal=some(request.if_equal),
                if_not_equal=some(request.if_not_equal),
                staleness_bound=request.staleness_bound,
                max_nbytes=request.max_nbytes,
                into=request.into,
            )
        )
        for j, i in enumerate(rows):
            key = request.keys[i]
            if j in columns.error:
                result.error[i] = columns.error[j]
                continue
            if not self._note(key, columns.generation[j]):
                result.error[i] = self._changed(key)
                continue
            result.state[i] = columns.state[j]
            result.generation[i] = columns.generation[j]
            result.value[i] = columns.value[j]
            result.total[i] = columns.total[j]
            if request.start is None and columns.value[j] is not None:
                self.stage.keep(key, columns.value[j], columns.generation[j])

    def _note(self, key: str, generation: bytes) -> bool:
        """Note a stored value that was read; return whether it is the one that was read before."""
        if not generation or not self.stage.repeatable_read:
            return True
        self._claim(key)
        return self.stage.note(key, generation)

    def _changed(self, key: str) -> ConflictError:
        """Abort because a value is not the one that was read before; return the reader's error."""
        error = ConflictError("Generation mismatch in repeatable_read transaction", key=key)
        self.transaction._abort(error.prefixed(f"Error reading {self.describe(key)}"))
        return error

    def list(self, inclusive_min: str = "", exclusive_max: str | None = None) -> builtins.list[str]:
        self.transaction._check_open()
        wanted = inclusive_min, exclusive_max
        stage = self.stage
        stored = self._plain.list(inclusive_min, exclusive_max)
        with stage.lock:
            staged = sorted(key for key in stage.entries if is_in(key, wanted))
            keys = {key for key in stored if not any(is_in(key, one) for one in stage.deleted)}
        for key, one in stage.values(staged).items():
            if isinstance(one, GpustoreError):
                raise one
            keys.discard(key) if one.value is None else keys.add(key)
        return sorted(keys)

    def list_bytes(
        self, inclusive_min: str = "", exclusive_max: str | None = None
    ) -> builtins.list[bytes]:
        if self.stage.repeatable_read:
            raise UnsupportedError(
                "repeatable_read mode not supported for transactional list operations"
            )
        return super().list_bytes(inclusive_min, exclusive_max)

    # ------------------------------------------------------------------ writing

    def write_many(self, request: WriteRequest) -> WriteColumns:
        self.transaction._check_open()
        return self._write(request, self._mismatched(request))

    def _write(self, request: WriteRequest, wrong: Container[str] = ()) -> WriteColumns:
        """Stage the writes, but those of `wrong` keys, whose conditions are not fulfilled."""
        result = WriteColumns.blank(len(request.keys))
        for i, key in enumerate(request.keys):
            try:
                self.check_key(key)
            except GpustoreError as error:
                result.error[i] = error
                continue
            if key in wrong:
                continue
            self._claim(key)
            value = request.values[i]
            if value is not None and not isinstance(value, bytes):
                value = bytes(value)
            condition = b"" if request.if_equal is None else request.if_equal[i]
            result.generation[i] = self.stage.write(key, value, condition)
        return result

    def _mismatched(self, request: WriteRequest) -> set[str]:
        """Return the keys whose stored values do not fulfil the condition; the commit looks again.

        Those of staged values :meth:`Stage.write` checks.
        """
        conditions = request.if_equal or [b""] * len(request.keys)
        with self.stage.lock:
            wanted = {
                key: condition
                for key, condition in zip(request.keys, conditions, strict=True)
                if condition and self.stage.find(key) is None
            }
        if not wanted:
            return set()
        none = [0] * len(wanted)
        columns = self._plain.read_many(ReadRequest(list(wanted), start=none, stop=none))
        columns.raise_first()
        stored = dict(zip(wanted, columns.generation, strict=True))
        return {key for key in wanted if stored[key] != wanted[key]}

    def delete_range(self, inclusive_min: str = "", exclusive_max: str | None = None) -> int:
        self.transaction._check_open()
        if not self.can_write:
            return self._plain.delete_range(inclusive_min, exclusive_max)
        if self.stage.atomic and not self._plain.writes_together:
            self.transaction._refuse_range(self.describe(inclusive_min))
        self._claim(inclusive_min)
        found = self.list(inclusive_min, exclusive_max) if self.can_list else []
        self.stage.delete_range(inclusive_min, exclusive_max)
        return len(found)

    def lay(self, overlayer: Overlayer, layers: Iterable[tuple[str, Any]]) -> None:
        """Stage layers of an array over the values of keys."""
        self.transaction._check_open()
        for key, layer in layers:
            self._claim(key)
            self.stage.lay(key, overlayer, layer)

    def write(self, request: WriteRequest) -> TimestampedStorageGeneration:
        """Stage the write of one key; the commit fails if the condition on it does."""
        self.transaction._check_open()
        columns = self._write(request)
        columns.raise_first()
        generation = columns.generation[0]
        if not generation:
            self.stage.mismatched, generation = request.keys[0], new_generation()
        return TimestampedStorageGeneration(generation, time.time())

    @contextmanager
    def merged(self, key: str, overlayer: Overlayer, *, changes: bool) -> Iterator[Any]:
        """Give the merged layers of a key, to be used under the lock.

        None if there are none, or the transaction is not open.
        """
        del changes  # Merged layers count them.
        stage = self.stage
        with stage.lock:
            entry = stage.entries.get(key) if self.transaction._accepts else None
            yield None if entry is None else merged_by(entry.layers, overlayer)

    def _claim(self, key: str) -> None:
        if not self.stage.atomic:
            return
        together = self._plain.writes_together
        owner = self.stage if together else (self.stage, self._plain.unit(key))
        self.transaction._claim_for(owner, self.describe(key))


def in_transaction(driver: KvStoreDriver, transaction: Transaction | None) -> KvStoreDriver:
    """Return a driver with all operations in a transaction, or in none."""
    return driver.plain if transaction is None else TransactedKvStore(driver.plain, transaction)
