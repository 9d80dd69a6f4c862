"""``KvStore``: an opened kvstore with TensorStore's interface.

A KvStore is a driver, shared by all that were made from one another, and a path that precedes
every key. Its operations on single keys return Futures; :meth:`KvStore.read_many` and
:meth:`KvStore.write_many`, which block, are what gpustore itself uses.

Source: TensorStore ``python/tensorstore/kvstore.cc``.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from gpustore import registry
from gpustore.errors import GpustoreError, NotFoundError, TransactionError
from gpustore.kvstores import result
from gpustore.kvstores.base import prefix_end
from gpustore.kvstores.columns import (
    LocateColumns,
    ReadColumns,
    ReadRequest,
    ReadState,
    WriteColumns,
    WriteRequest,
)
from gpustore.kvstores.copied_values import copy_values
from gpustore.kvstores.foreign import ForeignKvStore
from gpustore.kvstores.read_result import (
    parse_byte_range,
    parse_staleness_bound,
    read_result,
    read_together,
)
from gpustore.kvstores.result import as_bytes
from gpustore.kvstores.spec import (
    KvStoreSpec,
    append_component,
    as_text,
    unbound_json,
    whole_json,
)
from gpustore.kvstores.transaction import TransactedKvStore, in_transaction
from gpustore.runtime.batch import Batch, check_batch
from gpustore.runtime.context import Context
from gpustore.runtime.executor import shared
from gpustore.runtime.future import Future, ready
from gpustore.runtime.promise import Promise
from gpustore.runtime.transaction import Transaction, at_once, check_rebinding, check_transaction
from gpustore.strict_json.repr import pretty

if TYPE_CHECKING:
    import builtins
    from asyncio import AbstractEventLoop
    from collections.abc import Mapping, Sequence

    from gpustore.kvstores.base import KvStoreDriver
    from gpustore.runtime.buffer import Buffer
    from gpustore.runtime.executor import Executor
    from gpustore.strict_json.parsing import JsonValue


class KvStore:
    """Mapping of byte strings (keys) to byte strings (values).

    :meth:`open` makes it. Keys, given as str or bytes, are appended to :attr:`path` without a
    separator.

    Parameters
    ----------
    driver : KvStoreDriver
        An opened driver.
    path : str
        Prefix of all keys.

    Examples
    --------
    >>> store = KvStore.open("memory://a/").result()
    >>> store["b"] = b"value"
    >>> store["b"]
    b'value'
    >>> store.read("c").result().state
    'missing'
    >>> store.list().result()
    [b'b']
    """

    Spec: TypeAlias = KvStoreSpec
    KeyRange: TypeAlias = result.KeyRange
    ReadResult: TypeAlias = result.ReadResult
    TimestampedStorageGeneration: TypeAlias = result.TimestampedStorageGeneration

    __slots__ = ("__weakref__", "_driver", "_path")

    def __init__(self, driver: KvStoreDriver, path: str = "") -> None:
        self._driver = driver
        self._path = path

    @staticmethod
    def open(
        spec: KvStoreSpec | JsonValue | os.PathLike[str],
        *,
        context: Context | None = None,
        transaction: Transaction | None = None,
    ) -> Future[KvStore]:
        """Open a kvstore.

        Parameters
        ----------
        spec : KvStore.Spec, JSON object, URL or os.PathLike
        context : Context, optional
            Context of its resources; by default a new one.
        transaction : Transaction, optional
            Transaction to which all operations of the kvstore belong.

        Returns
        -------
        Future of KvStore

        Raises
        ------
        MetadataError
            If the spec is not valid.
        UnsupportedError
            If the spec requires an unsupported feature.
        """
        check_transaction(transaction)
        if context is not None and not isinstance(context, Context):
            raise TypeError(f"context: expected a Context, but received: {context!r:.200}")
        parsed = KvStoreSpec(spec)
        driver = in_transaction(parsed.open_driver(context), transaction)
        return ready(KvStore(driver, parsed.path))

    @staticmethod
    def from_zarr_store(store: Any, *, loop: AbstractEventLoop | None = None) -> KvStore:
        """Make a kvstore of a store of zarr-python: of fsspec, icechunk, obstore, in memory, ...

        Its values have no generations. So a conditional write is refused, unless the condition is
        that the key is missing: then it looks first, and writes in a second step. Where several
        writers change parts of one chunk at a time, the last one wins.

        Parameters
        ----------
        store : zarr.abc.store.Store
            Store; one that is read-only stays so.
        loop : asyncio.AbstractEventLoop, optional
            Event loop that runs the coroutines of the store, for programs that use the store in a
            loop of their own; by default zarr-python's.

        Returns
        -------
        KvStore
            It has no JSON and no URL, and pickles if `store` does. The JSON of an array there names
            no kvstore: open it with ``kvstore=``.

        Raises
        ------
        TypeError
            If `store` is none of zarr-python's.
        ModuleNotFoundError
            If zarr-python is not installed.
        """
        calls = registry.guest("zarr").StoreCalls(store, loop)
        return KvStore(ForeignKvStore(calls, "zarr_store"))

    # ------------------------------------------------------------------ accessors

    @property
    def driver(self) -> KvStoreDriver:
        """Opened driver; its keys begin with :attr:`path`."""
        return self._driver

    @property
    def path(self) -> str:
        """Prefix of all keys."""
        return self._path

    @path.setter
    def path(self, value: str | bytes) -> None:
        path = as_text(value)
        if path:
            KvStoreSpec.from_parts(self._driver.spec, "").path = path  # Checks it.
        self._path = path
        self._driver = self._driver.rooted(self._path)

    @property
    def url(self) -> str:
        """URL of the same kvstore, without its context."""
        return self._driver.spec.to_url(self._path)

    @property
    def base(self) -> KvStore | None:
        """Kvstore in which an adapter lies; None for others."""
        base = self._driver.base
        return None if base is None else KvStore(base.driver, base.path)

    @property
    def transaction(self) -> Transaction | None:
        """Transaction to which its operations belong; None if there is none."""
        return self._driver.transaction

    @transaction.setter
    def transaction(self, value: Transaction | None) -> None:
        check_transaction(value)
        self._driver = in_transaction(self._driver, value)

    def spec(
        self, *, retain_context: bool | None = None, unbind_context: bool | None = None
    ) -> KvStoreSpec:
        """Return a spec that opens the same kvstore again.

        Parameters
        ----------
        retain_context : bool, optional
            Use the same context resources when the spec is opened.
        unbind_context : bool, optional
            Include the definitions of the context resources, so that opening the spec makes equal
            ones; `retain_context` is then ignored. Without either option, the spec refers to the
            resources of the context in which it is opened.
        """
        if isinstance(self._driver.plain, ForeignKvStore):
            return KvStoreSpec.from_parts(self._driver.spec, self._path)
        spec = KvStoreSpec.from_json(whole_json(self._driver, self._path))
        if unbind_context:
            return spec
        return spec.retaining(self._driver.plain) if retain_context else spec.without_context()

    def spec_within(self, resources: Mapping[str, Context.Resource]) -> KvStoreSpec:
        """Return a spec for use inside one that defines `resources`."""
        if isinstance(self._driver.plain, ForeignKvStore):
            return self.spec()
        return KvStoreSpec.from_json(unbound_json(self._driver, self._path, resources))

    def copy(self) -> KvStore:
        """Return a copy with an independent path."""
        return KvStore(self._driver, self._path)

    def with_transaction(self, transaction: Transaction | None) -> KvStore:
        """Return the kvstore with all operations in `transaction`, or in none if that is None.

        Raises
        ------
        TransactionError
            If the kvstore belongs to a transaction that is not committed.
        """
        check_rebinding(self.transaction, transaction)
        return KvStore(in_transaction(self._driver, transaction), self._path)

    # ------------------------------------------------------------------ single keys

    def read(
        self,
        key: str | bytes,
        *,
        if_not_equal: str | bytes | None = None,
        staleness_bound: float | None = None,
        batch: Batch | None = None,
        byte_range: slice | None = None,
    ) -> Future[result.ReadResult]:
        """Read one value.

        Parameters
        ----------
        key : str or bytes
        if_not_equal : bytes, optional
            Generation for which the value is not read; the state is then ``"unspecified"``.
        staleness_bound : float, optional
            Seconds since the epoch: a cached value that was current at this time is accepted. By
            default the value must be current.
        batch : Batch, optional
            The read begins when the batch is submitted; all reads of one kvstore are one request.
        byte_range : slice, optional
            ``slice(a, b)``, ``slice(a, None)``, ``slice(None, b)`` or ``slice(-n, None)``.

        Returns
        -------
        Future of ReadResult
            A missing key is a result, not an error. A range that is not inside the value is a
            MismatchError (a ValueError) with status OUT_OF_RANGE.
        """
        check_batch(batch)
        start, stop = parse_byte_range(byte_range)
        bound = parse_staleness_bound(staleness_bound)
        condition = b"" if if_not_equal is None else as_bytes(if_not_equal)
        request = ReadRequest(
            [self._path + as_text(key)],
            start=[start],
            stop=[stop],
            if_not_equal=[condition] if condition else None,
            staleness_bound=bound,
        )
        driver, executor = self._driver, self._executor
        if batch is not None:
            promise: Promise[result.ReadResult]
            promise, future = Promise.new()
            group = ("kvstore", id(driver), bound)
            batch._join(group, partial(read_together, driver, executor), (request, promise), future)
            return future

        def read() -> result.ReadResult:
            stamp = result.TimestampedStorageGeneration(time=time.time())
            columns = driver.read_many(request)
            columns.raise_first()
            return read_result(columns, 0, stamp.time)

        if driver.is_local:
            return Future.deferred(read, executor)
        return executor.submit(read)

    def write(
        self,
        key: str | bytes,
        value: str | Buffer | None,
        *,
        if_equal: str | bytes | None = None,
    ) -> Future[result.TimestampedStorageGeneration]:
        r"""Write or delete one value.

        Parameters
        ----------
        key : str or bytes
        value : str, bytes-like or None
            New value, copied before the call returns; None deletes the key.
        if_equal : bytes, optional
            Condition: the stored generation is this one; ``b"\x02"`` requires a missing key.

        Returns
        -------
        Future of TimestampedStorageGeneration
            The new generation, ``b""`` if the condition did not hold.
        """
        request = WriteRequest(
            [self._path + as_text(key)],
            [_copy_value(value)],
            None if if_equal is None else [as_bytes(if_equal)],
        )

        def write() -> result.TimestampedStorageGeneration:
            columns = self._driver.write_many(request)
            columns.raise_first()
            return result.TimestampedStorageGeneration(columns.generation[0], time.time())

        if isinstance(self._driver, TransactedKvStore):
            return at_once(partial(self._driver.write, request))
        return self._executor.submit(write, drain=True)

    def __getitem__(self, key: str | bytes) -> bytes:
        """Return the value of `key`; NotFoundError (a KeyError) if there is none."""
        whole = self._path + as_text(key)
        columns = self._driver.read_many(ReadRequest([whole]))
        columns.raise_first()
        value = columns.value[0]
        if value is None:
            raise NotFoundError(f"{self._driver.describe(whole)} does not exist", key=whole)
        return bytes(value)

    def __setitem__(self, key: str | bytes, value: str | Buffer | None) -> None:
        whole = self._path + as_text(key)
        self._driver.write_many(WriteRequest([whole], [_copy_value(value)])).raise_first()

    def __delitem__(self, key: str | bytes) -> None:
        self[key] = None

    def __contains__(self, key: str | bytes) -> bool:
        whole = self._path + as_text(key)
        columns = self._driver.read_many(ReadRequest([whole], start=[0], stop=[0]))
        columns.raise_first()
        return columns.state[0] is ReadState.VALUE

    # Without this, Python would iterate by asking for keys 0, 1, 2, ...
    __iter__ = None

    # ------------------------------------------------------------------ ranges

    def list(
        self, range: result.KeyRange | None = None, strip_prefix_length: int = 0
    ) -> Future[builtins.list[bytes]]:
        """List the keys, in ascending order.

        Parameters
        ----------
        range : KvStore.KeyRange, optional
            Only keys of this range.
        strip_prefix_length : int
            Number of bytes to remove from the beginning of each key.

        Returns
        -------
        Future of list of bytes
            Keys without :attr:`path`.
        """
        if strip_prefix_length < 0:
            raise TypeError(f"strip_prefix_length: expected at least 0, got {strip_prefix_length}")
        wanted = result.KeyRange() if range is None else _key_range(range)

        def names() -> builtins.list[bytes]:
            keys = self._list_bytes(wanted)
            return [key[strip_prefix_length:] for key in keys] if strip_prefix_length else keys

        return self._executor.submit(names)

    def list_names(self) -> Future[builtins.list[str]]:
        """List the names directly below :attr:`path`, which ends with a slash or is empty.

        Returns
        -------
        Future of list of str
            Sorted. Names of directories, to which keys belong further below, end with a slash.
        """
        return self._executor.submit(partial(self._driver.list_names, self._path))

    def list_nbytes(self) -> Future[tuple[dict[str, int], dict[str, GpustoreError]]]:
        """List the keys in ascending order, with the length of each value in bytes.

        Returns
        -------
        Future of tuple of dict
            Length by key; and errors by key for unreadable values.
        """

        def sizes() -> tuple[dict[str, int], dict[str, GpustoreError]]:
            skip = len(self._path)
            found, errors = self._driver.list_nbytes(self._path, prefix_end(self._path))
            return (
                {key[skip:]: nbytes for key, nbytes in found.items()},
                {key[skip:]: error for key, error in errors.items()},
            )

        return self._executor.submit(sizes)

    def delete_range(self, range: result.KeyRange) -> Future[None]:
        """Delete all keys of a range; its bounds are relative to :attr:`path`."""
        wanted = _key_range(range)
        begin = at_once if self.transaction else partial(self._executor.submit, drain=True)

        def delete() -> None:
            bounds = self._bounds(wanted)
            if bounds is not None:
                self._driver.delete_range(*bounds)
                return
            keys = [self._path + as_text(key) for key in self._list_bytes(wanted)]
            self._driver.write_many(WriteRequest(keys, [None] * len(keys))).raise_first()

        return begin(delete)

    def experimental_copy_range_to(
        self,
        target: KvStore,
        source_range: result.KeyRange | None = None,
        source_staleness_bound: float | None = None,
    ) -> Future[None]:
        """Copy all keys of a range to another kvstore, in batches.

        In an OCDBT database whose root is that of this one, or above it, keys refer to the values:
        nothing is moved, and the data files of this database must stay.

        Files are copied to files by the system, which may share their bytes. A target in an archive
        or a database is rewritten once for each batch.

        Parameters
        ----------
        target : KvStore
            Target, which may use the same driver but must not overlap.
        source_range : KvStore.KeyRange, optional
            Keys to copy, relative to :attr:`path`; by default all.
        source_staleness_bound : float, optional
            Seconds since the epoch; see :meth:`read`.

        Returns
        -------
        Future of None
            Ready when all values are stored.
        """
        if not isinstance(target, KvStore):
            raise TypeError(f"target: expected a KvStore, but received: {target!r:.200}")
        wanted = result.KeyRange() if source_range is None else _key_range(source_range)
        bound = parse_staleness_bound(source_staleness_bound)

        def copy() -> None:
            keys = [as_text(key) for key in self._list_bytes(wanted)]
            copy_values(
                (self._driver, self._path),
                (target.driver, target.path),
                keys,
                bound,
            )

        # The commit of the transaction of the target waits for it.
        threads = self if target.transaction is None else target
        return threads._executor.submit(copy, drain=True)

    def _bounds(self, range: result.KeyRange) -> tuple[str, str | None] | None:
        """Return the range in the driver's namespace, None if it is not a range of text there."""
        try:
            low = self._path + range.inclusive_min.decode()
            high = range.exclusive_max.decode()
        except UnicodeDecodeError:
            return None
        if range.empty:
            return low, low
        return low, self._path + high if high else prefix_end(self._path)

    def _list_bytes(self, range: result.KeyRange) -> builtins.list[bytes]:
        bounds = self._bounds(range)
        low, high = bounds or (self._path, prefix_end(self._path))
        skip = len(as_bytes(self._path))
        keys = self._driver.list_bytes(low, high)
        if skip:
            keys = [key[skip:] for key in keys]
        return keys if bounds else sorted(key for key in keys if key in range)

    # ------------------------------------------------------------------ batches

    def read_many(self, request: ReadRequest) -> ReadColumns:
        """Read a batch whose keys are relative to :attr:`path`; see ``kvstores.base``."""
        return self._driver.read_many(
            ReadRequest(
                self._whole(request.keys),
                start=request.start,
                stop=request.stop,
                if_equal=request.if_equal,
                if_not_equal=request.if_not_equal,
                staleness_bound=request.staleness_bound,
                max_nbytes=request.max_nbytes,
                into=request.into,
            )
        )

    def write_many(self, request: WriteRequest) -> WriteColumns:
        """Write a batch whose keys are relative to :attr:`path`; see ``kvstores.base``."""
        whole = self._whole(request.keys)
        return self._driver.write_many(
            WriteRequest(whole, request.values, request.if_equal, request.anew)
        )

    def locate_many(self, keys: Sequence[str]) -> LocateColumns:
        """Return the places of values; keys are relative to :attr:`path`."""
        return self._driver.locate_many(self._whole(keys))

    def nbytes_many(self, keys: Sequence[str]) -> builtins.list[int]:
        """Return the bytes of values, -1 for missing keys; keys are relative to :attr:`path`."""
        return self._driver.nbytes_many(self._whole(keys))

    def describe(self, key: str) -> str:
        """Return the name of a key for messages, e.g. ``local file "/p/zarr.json"``."""
        return self._driver.describe(self._path + key)

    def _whole(self, keys: Sequence[str]) -> builtins.list[str]:
        path = self._path
        return [path + key for key in keys]

    @property
    def _executor(self) -> Executor:
        return self._driver.executor or shared()

    # ------------------------------------------------------------------ operators

    def __add__(self, suffix: str | bytes) -> KvStore:
        """A kvstore whose path has `suffix` appended as it is."""
        return KvStore(self._driver, self._path + as_text(suffix))

    def __truediv__(self, component: str | bytes) -> KvStore:
        """A kvstore whose path has `component` appended, with a slash in between."""
        return KvStore(self._driver, append_component(self._path, as_text(component)))

    def __copy__(self) -> KvStore:
        return self.copy()

    def __repr__(self) -> str:
        if isinstance(self._driver.plain, ForeignKvStore):
            return f"KvStore({self._driver.spec!r} + {self._path!r})"
        return pretty("KvStore", whole_json(self._driver, self._path))

    def __reduce__(self) -> tuple[Any, ...]:
        if self.transaction is not None:
            raise TransactionError("Cannot serialize KvStore with bound transaction")
        if isinstance(self._driver.plain, ForeignKvStore):
            return KvStore, (self._driver.plain, self._path)
        return _reopen, (whole_json(self._driver, self._path),)


def _reopen(json: dict[str, JsonValue]) -> KvStore:
    return KvStore.open(json).result()


def _key_range(range: result.KeyRange) -> result.KeyRange:
    """Return a copy of a range, which its owner may change."""
    if not isinstance(range, result.KeyRange):
        raise TypeError(f"range: expected a KvStore.KeyRange, but received: {range!r:.200}")
    return range.copy()


def _copy_value(value: str | Buffer | None) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return as_bytes(value)
    return memoryview(value).tobytes()
