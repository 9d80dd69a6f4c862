"""Kvstores over store objects of other libraries.

The other library reads and writes; :class:`ForeignStore` is what its guest module has to provide.
Such a kvstore has no JSON and no URL: it is known by its object, and pickles if that does.

Values have no generations that the other library would know. A missing key has :data:`ABSENT`, a
value ``b""`` (unknown), so:

* a value that is read, changed and written back overwrites what others wrote meanwhile;
* a write on condition that the key is missing looks first and then writes, in two steps;
* any other condition raises UnsupportedError.
"""

from __future__ import annotations

import itertools
import os
import struct
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

from gpustore.errors import GpustoreError, MismatchError, StoreIOError, UnsupportedError
from gpustore.kvstores.base import KvStoreDriver, prefix_end
from gpustore.kvstores.columns import (
    ABSENT,
    ReadColumns,
    ReadRequest,
    ReadState,
    WriteColumns,
    WriteRequest,
    check_byte_range,
    check_nbytes,
)
from gpustore.strict_json.parsing import quote

if TYPE_CHECKING:
    import builtins
    from collections.abc import Hashable, Mapping, Sequence

    from gpustore.runtime.buffer import Buffer
    from gpustore.runtime.context import Context
    from gpustore.strict_json.parsing import JsonValue

_BATCH_NBYTES: Final = 32 << 20

# One counter for the process: no two writes have the same generation, and no read has one.
_counter = itertools.count()
_pack_generation = struct.Struct("<xQ").pack


class _Numbers:
    """Numbers of objects; none is given again after its object is gone, as those of id() are.

    Objects that take no weak references are kept alive.
    """

    def __init__(self) -> None:
        self._counter = itertools.count()
        self._found: dict[int, tuple[int, object]] = {}
        self.renew_lock()

    def renew_lock(self) -> None:
        """Make a lock that no thread of a parent process holds."""
        self._lock = threading.RLock()  # The end of an object may interrupt of().

    def of(self, one: object) -> int:
        """Return the number of an object."""
        place = id(one)
        with self._lock:
            number, known = self._found.get(place, (-1, None))
            if known is one or (isinstance(known, weakref.ref) and known() is one):
                return number
            number = next(self._counter)
            try:
                kept: object = weakref.ref(one, lambda ref: self._forget(place, ref))
            except TypeError:
                kept = one
            self._found[place] = number, kept
            return number

    def _forget(self, place: int, ref: object) -> None:
        with self._lock:
            if self._found.get(place, (-1, None))[1] is ref:
                del self._found[place]


_numbers = _Numbers()
os.register_at_fork(after_in_child=_numbers.renew_lock)


class ForeignStore(Protocol):
    """Store object of another library, with calls that block. Thread-safe.

    A call gives the failure of each key as an exception in its place, and never raises it.

    Attributes
    ----------
    object : object
        The store itself.
    can_write, can_delete, can_list : bool
        Calls that are supported.
    in_memory : bool
        Whether reads cost no more than a look at a dict.
    """

    @property
    def object(self) -> Any:
        """Store of the other library."""

    @property
    def can_write(self) -> bool:
        """Whether values can be written."""

    @property
    def can_delete(self) -> bool:
        """Whether keys can be deleted."""

    @property
    def can_list(self) -> bool:
        """Whether keys can be listed."""

    @property
    def in_memory(self) -> bool:
        """Whether reads cost no more than a look at a dict."""

    def read(
        self, keys: Sequence[str], starts: Sequence[int], stops: Sequence[int | None]
    ) -> list[Buffer | Exception | None]:
        """Read byte ranges in the form of :class:`ReadRequest`; None for missing keys.

        A range that is not inside the value may be shortened.
        """

    def sizes(self, keys: Sequence[str]) -> list[int | Exception]:
        """Return the lengths of values in bytes, -1 for missing keys."""

    def write(self, keys: Sequence[str], values: Sequence[Buffer | None]) -> list[Exception | None]:
        """Write values, or delete where they are None. Keys are different from each other."""

    def list(self, directory: str) -> list[str]:
        """Return all keys that begin with `directory`, which ends with a slash or is empty."""


class ForeignKvStore(KvStoreDriver):
    """An opened kvstore over a store object of another library.

    Parameters
    ----------
    store : ForeignStore
    id : str
        Name in messages, such as ``"zarr_store"``.
    """

    batch_nbytes = _BATCH_NBYTES

    def __init__(self, store: ForeignStore, id: str) -> None:
        self.store = store
        self.id = id  # type: ignore[misc]  # of the library, which only the guest knows
        self.can_write = store.can_write
        self.can_list = store.can_list
        self.is_local = store.in_memory
        self._number = _numbers.of(store.object)
        self._spec = ForeignSpec(self)

    @property
    def spec(self) -> ForeignSpec:
        return self._spec

    @property
    def identity(self) -> Hashable:
        return self.id, self._number

    def describe(self, key: str) -> str:
        return f"{quote(key)} in {self.store.object!r}"

    def __reduce__(self) -> tuple[Any, ...]:
        return ForeignKvStore, (self.store, self.id)

    def check_key(self, key: str) -> None:
        """Accept any key."""

    def read_many(self, request: ReadRequest) -> ReadColumns:
        count = len(request.keys)
        result = ReadColumns.blank(count)
        starts = [0] * count if request.start is None else [int(n) for n in request.start]
        stops = [None] * count if request.stop is None else list(request.stop)
        # Nothing is to be read of an empty range: it asks whether there is a value.
        looked = [i for i in range(count) if stops[i] is not None and starts[i] == stops[i]]
        asked = [i for i in range(count) if stops[i] is None or starts[i] != stops[i]]
        sizes = self.store.sizes([request.keys[i] for i in looked]) if looked else []
        for i, size in zip(looked, sizes, strict=True):
            found: Any = size if isinstance(size, Exception) else None if size < 0 else b""
            self._take(
                result, request, i, found, starts[i], stops[i], -1 if found is None else size
            )
        values = (
            self.store.read(
                [request.keys[i] for i in asked],
                [starts[i] for i in asked],
                [stops[i] for i in asked],
            )
            if asked
            else []
        )
        for i, value in zip(asked, values, strict=True):
            self._take(result, request, i, value, starts[i], stops[i], None)
        return result

    def _take(
        self,
        result: ReadColumns,
        request: ReadRequest,
        i: int,
        value: Buffer | Exception | None,
        start: int,
        stop: int | None,
        total: Any,
    ) -> None:
        """Set a row of the result."""
        key = request.keys[i]
        if_equal = b"" if request.if_equal is None else request.if_equal[i]
        try:
            if value is None:
                result.generation[i] = ABSENT
                if if_equal in (b"", ABSENT):
                    result.state[i] = ReadState.MISSING
                return
            if if_equal == ABSENT:
                return
            if if_equal:
                raise self._unsupported("conditions on generations")
            part = self._checked(key, value, start, stop, total)
            check_nbytes(len(part), request.max_nbytes, key)
            if start == 0 and stop is None:
                result.total[i] = len(part)
            elif total is not None:
                result.total[i] = total
            if request.into is not None:
                taken = request.into.take(len(part))
                taken[:] = part
                part = taken
            result.value[i] = part
            result.state[i] = ReadState.VALUE
        except GpustoreError as error:
            result.error[i] = error

    def _checked(
        self, key: str, value: Buffer | Exception, start: int, stop: int | None, total: Any
    ) -> Buffer:
        """Return the bytes of a range if they are all there; it costs a look only if in doubt."""
        if isinstance(total, Exception):
            raise self._failed("reading", key, total)
        if total is not None:
            check_byte_range(total, start, stop, key)
        elif isinstance(value, Exception):
            # Other libraries fail in ways of their own if a range is not inside the value.
            if (start or stop is not None) and not isinstance(value, GpustoreError):
                begin, end = self._check_range(key, start, stop)
                if begin == end:
                    return b""
            raise self._failed("reading", key, value)
        elif stop is not None:
            if len(value) != stop - start:
                self._check_range(key, start, stop)
                raise self._failed("reading", key, _shortened(len(value), start, stop))
        elif start < 0:
            if len(value) != -start:
                self._check_range(key, start, stop)
                raise self._failed("reading", key, _shortened(len(value), start, stop))
        elif start and not len(value):
            self._check_range(key, start, stop)
        assert not isinstance(value, Exception)
        return value

    def _check_range(self, key: str, start: int, stop: int | None) -> tuple[int, int]:
        """Return a range from the beginning of its value; MismatchError if it is not inside.

        The result is (0, -1) if the length of the value is not to be had.
        """
        (size,) = self.store.sizes([key])
        if isinstance(size, Exception) or size < 0:
            return 0, -1
        return check_byte_range(size, start, stop, key)

    def write_many(self, request: WriteRequest) -> WriteColumns:
        if not self.can_write:
            raise self._unsupported("writing: the store is read-only")
        result = WriteColumns.blank(len(request.keys))
        conditions = request.if_equal or [b""] * len(request.keys)
        left = list(range(len(request.keys)))
        while left:
            # A key that occurs again waits until its first value is stored.
            first = {request.keys[i]: i for i in reversed(left)}
            rows = sorted(first.values())
            left = [i for i in left if first[request.keys[i]] != i]
            self._write_rows(request, conditions, rows, result)
        return result

    def _write_rows(
        self,
        request: WriteRequest,
        conditions: Sequence[bytes],
        rows: Sequence[int],
        result: WriteColumns,
    ) -> None:
        """Write rows with different keys."""
        creating = [i for i in rows if conditions[i] == ABSENT]
        present = set()
        if creating:
            sizes = self.store.sizes([request.keys[i] for i in creating])
            for i, size in zip(creating, sizes, strict=True):
                if isinstance(size, Exception):
                    result.error[i] = self._failed("reading", request.keys[i], size)
                elif size >= 0:
                    present.add(i)
        wanted = []
        for i in rows:
            if i in result.error or i in present:
                continue
            if conditions[i] not in (b"", ABSENT):
                result.error[i] = self._unsupported(
                    "conditions on generations: its values have none"
                )
            elif request.values[i] is None and not self.store.can_delete:
                result.error[i] = self._unsupported("deleting")
            else:
                wanted.append(i)
        if not wanted:
            return
        made = self.store.write(
            [request.keys[i] for i in wanted], [request.values[i] for i in wanted]
        )
        for i, error in zip(wanted, made, strict=True):
            if error is not None:
                result.error[i] = self._failed("writing", request.keys[i], error)
            elif request.values[i] is None:
                result.generation[i] = ABSENT
            else:
                result.generation[i] = _pack_generation(next(_counter))

    def delete_range(self, inclusive_min: str = "", exclusive_max: str | None = None) -> int:
        if not self.store.can_delete:
            raise self._unsupported("deleting")
        keys = self.list(inclusive_min, exclusive_max)
        if keys:
            self.write_many(WriteRequest(keys, [None] * len(keys))).raise_first()
        return len(keys)

    def list(self, inclusive_min: str = "", exclusive_max: str | None = None) -> builtins.list[str]:
        if not self.can_list:
            raise self._unsupported("listing")
        directory = _directory_of(inclusive_min, exclusive_max)
        try:
            found = self.store.list(directory)
        except GpustoreError:
            raise
        except Exception as error:
            raise self._failed("listing", directory, error) from error
        return sorted(
            key
            for key in found
            if inclusive_min <= key and (exclusive_max is None or key < exclusive_max)
        )

    def _failed(self, doing: str, key: str, error: Exception) -> GpustoreError:
        """Return the failure of the other library as an error that names the key."""
        if isinstance(error, GpustoreError):
            return error
        found = StoreIOError(
            f"Error {doing} {self.describe(key)}: {type(error).__name__}: {error}",
            errno=error.errno if isinstance(error, OSError) else None,
            key=key,
        )
        found.__cause__ = error
        return found


def _shortened(nbytes: int, start: int, stop: int | None) -> MismatchError:
    end = "?" if stop is None else stop
    return MismatchError(f"received {nbytes} bytes of the range [{start}, {end})")


def _directory_of(inclusive_min: str, exclusive_max: str | None) -> str:
    """Return the deepest directory in which all keys of a range lie.

    >>> _directory_of("a/b/c", "a/b/d"), _directory_of("a/b", "b"), _directory_of("a/", None)
    ('a/b/', '', '')
    """
    end = len(inclusive_min)
    while exclusive_max is not None and (end := inclusive_min.rfind("/", 0, end)) >= 0:
        directory = inclusive_min[: end + 1]
        after = prefix_end(directory)
        if after is None or exclusive_max <= after:
            return directory
    return ""


class ForeignSpec:
    """Spec of a kvstore over an object: it opens that object, and has neither JSON nor URL.

    Parameters
    ----------
    driver : ForeignKvStore
    """

    base = None

    def __init__(self, driver: ForeignKvStore) -> None:
        self._driver = driver

    @property
    def id(self) -> str:
        return self._driver.id

    @property
    def references(self) -> Mapping[str, JsonValue]:
        return {}

    def without_references(self) -> ForeignSpec:
        return self

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        """Raise UnsupportedError."""
        del include_defaults
        raise self._not_text("JSON")

    def to_url(self, path: str) -> str:
        """Raise UnsupportedError."""
        del path
        raise self._not_text("URL")

    def open(self, context: Context, path: str) -> ForeignKvStore:
        """Return the driver itself."""
        del context, path
        return self._driver

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ForeignSpec):
            return NotImplemented
        return self._driver.identity == other._driver.identity

    def __hash__(self) -> int:
        return hash(self._driver.identity)

    def __repr__(self) -> str:
        return repr(self._driver.store.object)

    def __reduce__(self) -> tuple[Any, ...]:
        return ForeignSpec, (self._driver,)

    def _not_text(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"a kvstore over {self._driver.store.object!r} has no {what}: it is an object of this "
            f"process"
        )
