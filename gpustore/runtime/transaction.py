"""``Transaction``: changes that are staged in memory and then stored together, or dropped.

A transaction is *open*, then its *commit has started* or it is *aborted*. Kvstores take part in it
(:class:`Participant`): each keeps what is staged for its keys. A commit waits for the operations
that were begun in the transaction, and then asks one participant after the other to store.

Source: the semantics of TensorStore's ``Transaction`` (``tensorstore/transaction.h``).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from gpustore.errors import GpustoreError, TransactionError
from gpustore.runtime.executor import Executor, shared, wait_at_exit
from gpustore.runtime.future import Future, failed, new, ready

T = TypeVar("T")
P = TypeVar("P", bound="Participant")

_OPEN: Final = "open"
_ABORTED: Final = "aborted"
_STARTED: Final = "commit already started"
_AT_ONCE: Final = "as single atomic transaction"


class Participant(Protocol):
    """Changes that a transaction has staged for one kvstore."""

    def commit(self) -> Future[None]:
        """Store what is staged."""

    def drop(self) -> None:
        """Forget what is staged."""


class Transaction:
    """Changes that are staged in memory, and stored by a commit or dropped by an abort.

    Bind it to arrays and kvstores with ``store.with_transaction(transaction)`` or
    ``gpustore.open(..., transaction=transaction)``. What is written through them is seen by reads
    through them, and by nobody else before the commit. As a context manager it commits at the end
    of the block, and aborts if the block raises an exception. A transaction that is dropped while
    it is open is aborted.

    Many writes to one chunk cost one read, one encoding and one write, at the commit. Every value
    is replaced whole; values of different keys are replaced one by one, unless the transaction is
    `atomic`.

    Parameters
    ----------
    atomic : bool
        Whether readers must see all changes or none. Several keys can be changed so in the kvstores
        ``memory``, ``ocdbt`` and ``zip``, one key in every kvstore; other changes are refused, and
        abort the transaction.
    repeatable_read : bool
        Whether the commit fails with ConflictError, and stores nothing, if a key that was read in
        the transaction was changed by others.

    Examples
    --------
    >>> import gpustore
    >>> store = gpustore.open(
    ...     "memory://t/|zarr3:", create=True, dtype="uint8", shape=[4]
    ... ).result()
    >>> with gpustore.Transaction() as transaction:
    ...     staged = store.with_transaction(transaction)
    ...     staged[0] = 1
    ...     staged[2:] = 2
    ...     staged.read().result(), store.read().result()
    (array([1, 0, 2, 2], dtype=uint8), array([0, 0, 0, 0], dtype=uint8))
    >>> store.read().result()
    array([1, 0, 2, 2], dtype=uint8)
    """

    __slots__ = (
        "__weakref__", "_atomic", "_claim", "_done", "_futures", "_lock", "_made", "_participants",
        "_repeatable_read", "_running", "_state",
    )  # fmt: skip

    def __init__(self, atomic: bool = False, repeatable_read: bool = False) -> None:
        for name, value in (("atomic", atomic), ("repeatable_read", repeatable_read)):
            if not isinstance(value, bool | int):
                raise TypeError(f"{name}: expected a bool, but received: {value!r:.200}")
        self._atomic = bool(atomic)
        self._repeatable_read = bool(repeatable_read)
        self._lock = threading.RLock()  # The collector may drop another transaction meanwhile.
        self._state = _OPEN
        self._running = 0
        self._participants: dict[Hashable, Participant] = {}
        self._made: dict[Hashable, Any] = {}
        self._claim: tuple[Hashable, str] | None = None
        self._futures: list[weakref.ref[Future[None]]] = []
        self._done: Future[None] = new()

    # ------------------------------------------------------------------ state

    @property
    def atomic(self) -> bool:
        """Whether readers see all changes or none."""
        return self._atomic

    @property
    def repeatable_read(self) -> bool:
        """Whether the commit fails if others changed what was read in the transaction."""
        return self._repeatable_read

    @property
    def open(self) -> bool:
        """Whether operations may still be added: no commit has started, and it was not aborted."""
        return self._state is _OPEN

    @property
    def aborted(self) -> bool:
        """Whether the transaction was aborted."""
        return self._state is _ABORTED

    @property
    def commit_started(self) -> bool:
        """Whether a commit has started."""
        return self._state is _STARTED

    @property
    def future(self) -> Future[None]:
        """Outcome of the transaction; waiting for it starts the commit, ``done()`` does not.

        It is ready when everything is stored, and fails with the error of the commit, or with
        TransactionError if the transaction was aborted.
        """
        with self._lock:
            if self._done.done():
                return self._done
            future: Future[None] = Future.deferred(
                self.commit_async, shared(), begins_when_polled=False
            )
            self._futures = [one for one in self._futures if one() is not None]
            self._futures.append(weakref.ref(future))
            return future

    # ------------------------------------------------------------------ end

    def commit_async(self) -> Future[None]:
        """Start to store what is staged; does nothing after the first commit or an abort.

        Returns
        -------
        Future of None
            As :attr:`future`. Cancelling it ends the wait alone: the commit goes on.
        """
        with self._lock:
            starts = self._state is _OPEN
            if starts:
                self._state = _STARTED
                wait_at_exit(self._done)
            begins = starts and not self._running
        if begins:
            self._store()
        outcome: Future[None] = new()
        self._done.add_done_callback(lambda done: outcome._finish(None, done._error))
        return outcome

    def commit_sync(self) -> None:
        """Store what is staged and wait until that is done.

        Raises
        ------
        ConflictError
            If others changed a key meanwhile on which a condition was set.
        TransactionError
            If the transaction was aborted.
        CorruptChunkError, StoreIOError
            They name the key.
        """
        self.commit_async().result()

    def abort(self) -> None:
        """Drop what is staged; does nothing after a commit has started."""
        if self._state is _OPEN:
            self._abort(TransactionError("Transaction aborted", status="CANCELLED"))

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.commit_sync()
        else:
            self.abort()

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.commit_async()
        else:
            self.abort()

    def __del__(self) -> None:
        if getattr(self, "_state", None) is _OPEN:
            self._state = _ABORTED

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle 'gpustore.Transaction' object")

    # ------------------------------------------------------------------ for stores

    @property
    def _is_committed(self) -> bool:
        return self.commit_started and self._done.done() and self._done.exception() is None

    @property
    def _accepts(self) -> bool:
        """Whether changes may be staged: also by operations that the commit waits for."""
        return self._state is _OPEN or (self._state is _STARTED and self._running > 0)

    def _check_open(self) -> None:
        """Raise unless changes may be staged."""
        if not self._accepts:
            raise TransactionError(f"Transaction not open ({self._state})")

    def _participant(self, key: Hashable, make: Callable[[], P]) -> P:
        """Return the participant for `key`, which `make` makes first."""
        with self._lock:
            found: Any = self._participants.get(key)
            if found is None:
                found = make()
                if self._accepts:
                    self._participants[key] = found
            return found  # type: ignore[no-any-return]

    def _shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned for `key` first."""
        with self._lock:
            found: T | None = self._made.get(key)
            if found is None:
                found = make()
                if self._accepts:
                    self._made[key] = found
            return found

    def _claim_for(self, owner: Hashable, what: str) -> None:
        """Let an atomic transaction change only what `owner` can change at once.

        Parameters
        ----------
        owner : hashable
            A participant that stores all its keys at once, or else a participant with a key.
        what : str
            Name of the change for the message.

        Raises
        ------
        TransactionError
            If another change was staged; the transaction is aborted.
        """
        if not self._atomic:
            return
        with self._lock:
            if self._claim is None:
                self._claim = owner, what
            other, first = self._claim
        if other != owner:
            one, two = sorted([first, what])
            self._refuse(f"Cannot read/write {one} and read/write {two} {_AT_ONCE}")

    def _refuse_range(self, what: str) -> None:
        """Abort an atomic transaction because a range of keys cannot be deleted at once."""
        self._refuse(f"Cannot delete range starting at {what} {_AT_ONCE}")

    def _refuse(self, text: str) -> None:
        error = TransactionError(text)
        self._abort(error)
        raise error

    def _abort(self, error: GpustoreError) -> None:
        """Abort with the error of the outcome, unless it is being stored already."""
        with self._lock:
            if not self._accepts:
                return
            self._state = _ABORTED
        self._finish(error)

    def _during(self, begin: Callable[[], Future[T]]) -> Future[T]:
        """Begin an operation for which the commit waits."""
        with self._lock:
            self._check_open()
            self._running += 1
        try:
            future = begin()
        except BaseException:
            self._leave()
            raise
        future.add_done_callback(lambda _: self._leave())
        return future

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1
            begins = self._state is _STARTED and not self._running
        if begins:
            self._store()

    def _store(self) -> None:
        """Ask one participant after the other to store what is staged."""
        left = list(self._participants.values())

        def go_on(done: Future[None] | None = None) -> None:
            error = None if done is None else done._error  # also that of a cancelled one
            if error is not None or not left:
                self._finish(error)
                return
            try:
                future = left.pop(0).commit()
            except Exception as raised:
                self._finish(raised)
            else:
                future.add_done_callback(go_on)

        go_on()

    def _finish(self, error: BaseException | None) -> None:
        with self._lock:
            participants = list(self._participants.values())
            self._participants.clear()
            self._made.clear()
        for one in participants:
            one.drop()
        self._finish_futures(error)
        self._done._finish(None, error)
        self._finish_futures(error)  # Those that were asked for meanwhile.

    def _finish_futures(self, error: BaseException | None) -> None:
        with self._lock:
            futures, self._futures = self._futures, []
        for ref in futures:
            future = ref()
            if future is not None:
                future._finish(None, error)


class TransactionExecutor(Executor):
    """Executor whose work is a part of a transaction: its commit waits for it.

    Parameters
    ----------
    executor : Executor
        Executor that does the work.
    transaction : Transaction
    """

    __slots__ = ("_executor", "_transaction")

    def __init__(self, executor: Executor, transaction: Transaction) -> None:
        self.limit = executor.limit
        self._crew = executor._crew
        self._executor = executor  # keeps its threads
        self._transaction = transaction

    def submit(
        self, fn: Callable[..., T | Future[T]], /, *args: object, drain: bool = False
    ) -> Future[T]:
        """Submit a task; the Future fails if the transaction is not open."""
        try:
            return self._transaction._during(lambda: Executor.submit(self, fn, *args, drain=drain))
        except TransactionError as error:
            return failed(error)

    def run_all(
        self,
        tasks: Sequence[Callable[[], object]],
        then: Callable[[], T | Future[T]],
        **options: Any,
    ) -> Future[T]:
        """Run tasks; raises TransactionError if the transaction is not open."""
        return self._transaction._during(lambda: Executor.run_all(self, tasks, then, **options))


def at_once(operation: Callable[[], T]) -> Future[T]:
    """Call an operation that only stages a change; return a Future of its result or error."""
    try:
        return ready(operation())
    except GpustoreError as error:
        return failed(error)


def check_transaction(transaction: object) -> None:
    """Raise TypeError unless `transaction` is a Transaction or None."""
    if transaction is not None and not isinstance(transaction, Transaction):
        raise TypeError(
            f"Invalid transaction: expected a Transaction, but received: {transaction!r:.200}"
        )


def check_rebinding(old: Transaction | None, new: object) -> None:
    """Raise unless a store bound to `old` may be bound to `new`.

    Raises
    ------
    TypeError
        If `new` is neither a Transaction nor None.
    TransactionError
        If `old` is not committed.
    """
    check_transaction(new)
    if old is not None and not old._is_committed:
        raise TransactionError("Cannot rebind transaction when existing transaction is uncommitted")
