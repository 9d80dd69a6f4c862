"""The contract every kvstore fulfils: batches of keys in, columns of results out.

A kvstore maps keys (text, ordered by code point) to values (bytes). Every operation takes a
whole batch, because that is what all callers have: an HTTP store coalesces it, the file store
saves system calls, an archive *locates* its members instead of reading them. Calls block, are
thread-safe, and use no thread pool of their own: the pipelines own the threads.

A *generation* identifies one version of one value. Two generations of a key are equal only if
the bytes are; :data:`ABSENT` is the generation of a key without a value, and ``b""`` means
"unknown" in a result and "no condition" in a request.

Source: the semantics are those of ``tensorstore/kvstore/{driver,operations,read_result}.h``.
"""

from __future__ import annotations

import abc
import contextlib
import os
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from gpustore.errors import (
    ConflictError,
    GpustoreError,
    InvalidKeyError,
    StoreIOError,
    UnsupportedError,
)
from gpustore.kvstores.columns import (
    ABSENT,
    AtomicRequest,
    LocateColumns,
    ReadColumns,
    ReadRequest,
    WriteColumns,
    WriteRequest,
)
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.context import resource_json
from gpustore.strict_json.parsing import quote

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from gpustore.runtime.context import Context
    from gpustore.runtime.executor import Executor
    from gpustore.runtime.transaction import Transaction
    from gpustore.strict_json.parsing import JsonValue, Members


_REPLACE_ATTEMPTS: Final = 1000
_FIRST_DELAY_S: Final = 0.0002
_LONGEST_DELAY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Replacement:
    """The new value of a key, made from its old one.

    Attributes
    ----------
    if_equal : bytes
        Generation of the old value; :data:`ABSENT` if there was none, ``b""`` if unknown.
    nbytes : int
        Length of the new value, in bytes.
    pieces : iterable of Buffer
        Bytes of the new value in order. Iteration may read the old value, and raises ConflictError
        if that no longer exists.
    """

    if_equal: bytes
    nbytes: int
    pieces: Iterable[Buffer]


class KeyDirectory:
    """Directory in which the values of a prefix of keys are files that may be opened directly.

    Parameters
    ----------
    descriptor : int
        Descriptor of the directory, owned by this object; ``AT_FDCWD``, or -1 for none.
    resolve : int
        Flag ``resolve`` of ``openat2(2)`` with which files must be opened there; 0 where the system
        has no ``openat2``: then no component of their paths may be a link.
    prefix : bytes
        Beginning of the paths of the files, from the directory on.
    generation : callable
        Makes the generation of a file from its device, inode, time of modification in nanoseconds
        and size.

    Attributes
    ----------
    note : callable or None
        Called with what was read by the native core: the cells of chunks, those four integers of
        the file of each, and their statuses. It raises ConflictError if a file has changed.
    """

    __slots__ = ("descriptor", "generation", "note", "prefix", "resolve")

    note: Callable[[Any, Any, Any], None] | None

    def __init__(
        self,
        descriptor: int,
        resolve: int,
        prefix: bytes,
        generation: Callable[[int, int, int, int], bytes],
    ) -> None:
        self.descriptor = descriptor
        self.resolve = resolve
        self.prefix = prefix
        self.generation = generation
        self.note = None

    def file_system(self) -> int | None:
        """Return the number of the file system, ``st_dev``; None if there is no such directory."""
        path = self.prefix[: self.prefix.rfind(b"/") + 1] or b"."
        try:
            return os.stat(path, dir_fd=self.descriptor).st_dev
        except OSError:
            return None

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class WriteDirectories(Protocol):
    """Open directories in which the native core writes values as files. For one thread.

    Attributes
    ----------
    syncs : bool
        Whether the bytes of a file must reach the disk before the file gets its name.
    """

    syncs: bool

    def open(self, index: int, key: str) -> int | None:
        """Return the descriptor of the directory of a key, which is made if missing.

        Returns
        -------
        int or None
            -1 if the kvstore must write the key; None if no more directories can be open: the ones
            that are must be closed first.
        """

    def version(self, generation: bytes) -> bytes | None:
        """Return device, inode, time of modification in nanoseconds and size, int64 each, of the
        file that has a generation; None for :data:`ABSENT`.
        """

    def changed(self, indices: Iterable[int], keys: Sequence[str]) -> None:
        """Record that the files of ``keys[index]`` have got their names."""

    def close(self) -> dict[int, StoreIOError]:
        """Sync and close the directories; return changes that may not have reached the disk."""


class KvStoreDriver(abc.ABC):
    """An opened kvstore. All methods block and are thread-safe.

    Attributes
    ----------
    id : str
        Name under which it is registered.
    can_write, can_list : bool
        Whether :meth:`write_many` and :meth:`list` (:meth:`list_directories`) are supported.
    atomic_single_key : bool
        Whether a conditional write compares and writes in one step, also between processes.
    is_local : bool
        Whether reads are fast enough for small ones on the caller's thread.
    is_trusted : bool
        Whether decoders that promise nothing about damaged streams may decode its values. False for
        plain http and https, where anybody can be the server.
    computes_values : bool
        Whether values are computed: a transaction keeps those that it has read for writes to parts.
    writes_together : bool
        Whether :meth:`write_together` is supported.
    transaction : Transaction or None
        Transaction to which reads and writes belong.
    locates_files : bool
        Whether :meth:`locate_many` returns local files for some values.
    replaces_in_pieces : bool
        Whether :meth:`replace` never holds the whole value in memory.
    write_nbytes : int
        Size of a good batch of writes in bytes, where each batch has a high cost; 0 elsewhere.
    base : Base or None
        Kvstore in which an adapter lies; None for others.
    batch_nbytes : int or None
        Size of a good batch of reads in bytes of decoded chunks; large for remote stores. None for
        as many as fit in a core's cache.
    executor : Executor or None
        Threads for its operations; None for those of the process.
    """

    id: ClassVar[str]
    can_write: bool = True
    can_list: bool = True
    atomic_single_key: bool = False
    computes_values: bool = False
    writes_together: bool = False
    transaction: Transaction | None = None
    is_local: bool = False
    is_trusted: bool = True
    locates_files: bool = False
    replaces_in_pieces: bool = False
    write_nbytes: int = 0
    base: Base | None = None
    batch_nbytes: int | None = None
    executor: Executor | None = None

    @abc.abstractmethod
    def read_many(self, request: ReadRequest) -> ReadColumns:
        """Read a batch of keys. Errors are reported by key, and not raised."""

    def write_many(self, request: WriteRequest) -> WriteColumns:
        """Write or delete a batch of keys. Errors are reported by key, and not raised."""
        raise self._unsupported("writing")

    def write_together(self, request: AtomicRequest) -> builtins.list[str]:
        """Make changes of several keys so that readers, also after a power failure, find all of
        them or none.

        Returns
        -------
        list of str
            Keys without the expected generation: if there are any, nothing is changed.

        Raises
        ------
        GpustoreError
            Nothing was changed, as far as is known.
        """
        raise self._unsupported("changing several keys at once")

    def copy_from(
        self,
        source: KvStoreDriver,
        keys: Sequence[tuple[str, str]],
        staleness_bound: float | None,
    ) -> bool:
        """Copy values of another kvstore without reading them; return whether that is possible.

        Parameters
        ----------
        source : KvStoreDriver
        keys : sequence of (str, str)
            Keys in `source`, each with that which gets its value; missing ones are left out.
        staleness_bound : float or None
            Seconds since the epoch: as in a :class:`ReadRequest`.

        Raises
        ------
        GpustoreError
            The first error of a key.
        """
        del source, keys, staleness_bound
        return False

    def replace(self, key: str, make: Callable[[], Replacement | None]) -> bytes:
        """Replace a value by one that is made from it; repeat if another writer was faster.

        Parameters
        ----------
        key : str
        make : callable
            Reads the current value and returns its replacement, or None to write nothing. It is
            called again if another writer was faster.

        Returns
        -------
        bytes
            The new generation, ``b""`` if nothing was written.

        Raises
        ------
        ConflictError
            If other writers were faster in every attempt.
        """
        delay = _FIRST_DELAY_S
        for _ in range(_REPLACE_ATTEMPTS):
            made = make()
            if made is None:
                return b""
            with contextlib.suppress(ConflictError):
                value = b"".join(made.pieces)
                columns = self.write_many(WriteRequest([key], [value], [made.if_equal]))
                columns.raise_first()
                if columns.generation[0]:
                    return columns.generation[0]
            time.sleep(random.uniform(0, delay))
            delay = min(2 * delay, _LONGEST_DELAY_S)
        raise ConflictError(
            f"Error writing {self.describe(key)}: another writer was faster {_REPLACE_ATTEMPTS} "
            f"times",
            key=key,
        )

    def delete_range(self, inclusive_min: str = "", exclusive_max: str | None = None) -> int:
        """Delete all keys in a range and return their number. None means no upper bound."""
        raise self._unsupported("deleting ranges")

    def clear_directory(self, path: str, key: str) -> bytes:
        """Delete all keys below `path`, which ends in a slash or is empty, before `key` is written
        directly below it. What was deleted may come back after a power failure until then.

        Returns
        -------
        bytes
            The generation of `key` if nothing was deleted because there was only `key`: the write
            replaces it on that condition. :data:`ABSENT` otherwise.
        """
        del key
        self.delete_range(path, prefix_end(path))
        return ABSENT

    def list(self, inclusive_min: str = "", exclusive_max: str | None = None) -> list[str]:
        """Return all keys in a range, in ascending order of their code points."""
        raise self._unsupported("listing")

    def list_bytes(
        self, inclusive_min: str = "", exclusive_max: str | None = None
    ) -> builtins.list[bytes]:
        """Return the result of :meth:`list` as bytes, for kvstores that store keys as bytes."""
        names = self.list(inclusive_min, exclusive_max)
        try:
            # Takes a third of the time of the exact conversion below.
            return [name.encode() for name in names]
        except UnicodeEncodeError:
            return [name.encode("utf-8", "surrogateescape") for name in names]

    def list_directories(self, prefix: str) -> builtins.list[str]:
        """Return the names of the directories directly below `prefix`, sorted.

        The names are the parts between `prefix` and the next slash of the keys. `prefix` ends with
        a slash or is empty.
        """
        keys = self.list(prefix, prefix_end(prefix))
        below = (key[len(prefix) :].partition("/") for key in keys)
        return sorted({name for name, slash, _ in below if slash})

    def list_names(self, prefix: str) -> builtins.list[str]:
        """Return the names directly below `prefix`, sorted; those of directories end with a slash.

        `prefix` ends with a slash or is empty.
        """
        keys = self.list(prefix, prefix_end(prefix))
        below = (key[len(prefix) :].partition("/") for key in keys)
        return sorted({name + slash for name, slash, _ in below})

    def list_nbytes(
        self, inclusive_min: str = "", exclusive_max: str | None = None
    ) -> tuple[dict[str, int], dict[str, GpustoreError]]:
        """Return the keys in a range in ascending order, with the length of each value in bytes.

        The second part of the result has the keys of unreadable values, with the errors.
        """
        keys = self.list(inclusive_min, exclusive_max)
        nbytes, errors = self._nbytes(keys)
        # Keys that were deleted meanwhile have no length.
        return {key: n for key, n in zip(keys, nbytes, strict=True) if n >= 0}, {
            keys[row]: error for row, error in errors.items()
        }

    def nbytes_many(self, keys: Sequence[str]) -> builtins.list[int]:
        """Return the lengths of values in bytes, -1 for missing keys. Raises the first error."""
        nbytes, errors = self._nbytes(keys)
        if errors:
            raise errors[min(errors)]
        return nbytes

    def _nbytes(self, keys: Sequence[str]) -> tuple[builtins.list[int], dict[int, GpustoreError]]:
        try:
            located = self.locate_many(keys)
        except UnsupportedError:
            none = [0] * len(keys)
            columns = self.read_many(ReadRequest(keys, start=none, stop=none))
            return columns.total, columns.error
        return located.nbytes, located.error

    def locate_many(self, keys: Sequence[str]) -> LocateColumns:
        """Return the places of values in files or at URLs, without reading them."""
        raise self._unsupported("locating values")

    def may_be_missing(self, error: GpustoreError) -> bool:
        """Whether an error of reading a key may say that there is nothing.

        S3, and the web servers before it, deny keys that are not there to those who may not list.
        """
        return not self.is_local and error.status == "PERMISSION_DENIED"

    def plain_file(self, key: str) -> bytes | None:
        """Return the path of the file with the value of a key, which is to be opened without
        following links; None if :meth:`read_many` must read the value.

        Raises
        ------
        InvalidKeyError
            If the key is not valid.
        """
        del key
        return None

    def key_directory(self, prefix: str) -> KeyDirectory | None:
        """Return the directory of keys that are `prefix`, digits and slashes.

        None unless each value is a file that may be read without any call of this kvstore.
        """
        del prefix
        return None

    def write_directories(self) -> WriteDirectories | None:
        """Return what the native core needs to write values as files; None if it must not."""
        return None

    @abc.abstractmethod
    def check_key(self, key: str) -> None:
        """Raise InvalidKeyError unless `key` is legal here. No I/O."""

    def unit(self, key: str) -> str:
        """Return the unit that holds the value of a key: a batch changes all its keys at once."""
        return key

    @property
    def identity(self) -> Hashable:
        """Hashable value, equal for drivers in which a key names the same value; used by caches."""
        return self

    def describe(self, key: str) -> str:
        """Return the name of a key for messages, e.g. ``local file "/p/zarr.json"``."""
        return quote(key)

    @property
    def plain(self) -> KvStoreDriver:
        """The same kvstore outside of any transaction."""
        return self

    def rooted(self, path: str) -> KvStoreDriver:
        """Return the same store with another root, which links must not leave."""
        return self

    @property
    @abc.abstractmethod
    def spec(self) -> DriverSpec:
        """Spec that opens the driver again."""

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        """Context resources of the driver by identifier, without those of its base."""
        return {}

    @property
    def bases(self) -> Sequence[Base]:
        """Kvstores in which this one lies: :attr:`base`, or those of several layers."""
        return () if self.base is None else (self.base,)

    @property
    def all_resources(self) -> Mapping[str, Context.Resource]:
        """Context resources of the driver and its bases, by identifier."""
        found: dict[str, Context.Resource] = {}
        for base in self.bases:
            found.update(base.driver.all_resources)
        return {**found, **self.resources}

    def _unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(f'kvstore driver "{self.id}" does not support {what}')


@dataclass(frozen=True, slots=True)
class Base:
    """The opened kvstore in which an adapter lies, with the adapted path.

    Attributes
    ----------
    driver : KvStoreDriver
    path : str
        The adapted key, or the prefix of the adapted keys.
    """

    driver: KvStoreDriver
    path: str


class DriverSpec(Protocol):
    """Spec of a kvstore driver: an immutable, picklable value.

    The path (the prefix of all keys) is not part of it; :class:`gpustore.kvstores.kvstore.KvStore`
    holds it beside the driver.
    """

    @property
    def id(self) -> str:
        """Name of the driver."""

    @property
    def references(self) -> Mapping[str, JsonValue]:
        """Context resources other than the default ones: references or JSON, by identifier."""

    @property
    def base(self) -> Any:
        """``KvStore.Spec`` of the kvstore in which an adapter lies; None for others."""

    def without_references(self) -> DriverSpec:
        """Return the spec with the default context resources, also of its base."""

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        """Return the driver's own JSON members, without ``driver``, ``path`` and ``context``."""

    def to_url(self, path: str) -> str:
        """Return the URL of `path` in the kvstore; UnsupportedError if there is none."""

    def open(self, context: Context, path: str) -> KvStoreDriver:
        """Open the driver; `path` is the root that keys must not leave through links."""


class DriverKind(Protocol):
    """The object that a module in ``kvstores/`` registers under the name ``DRIVER``.

    With URLs the object is a ``RootKind`` or an ``AdapterKind`` of :mod:`gpustore.kvstores.spec`,
    which parse them.
    """

    is_adapter: bool

    @property
    def id(self) -> str:
        """Name of the driver, the member ``driver`` of specs."""

    @property
    def schemes(self) -> tuple[str, ...]:
        """Schemes of its URLs; none if only JSON describes it."""

    def from_json(self, members: Members) -> DriverSpec:
        """Take the members of the driver; the caller takes ``path`` and checks for others."""

    def check_path(self, path: str) -> None:
        """Raise InvalidKeyError unless `path` is a legal path member."""


def invalid_key(key: str, reason: str) -> InvalidKeyError:
    """Return the error for an illegal key."""
    return InvalidKeyError(f"Invalid key: {quote(key)}: {reason}", key=key)


def prefix_end(prefix: str) -> str | None:
    """Return the smallest text greater than all that start with `prefix`, None if there is none.

    >>> prefix_end("c/")
    'c0'
    """
    stripped = prefix.rstrip("\U0010ffff")
    if not stripped:
        return None
    return stripped[:-1] + chr(ord(stripped[-1]) + 1)


def take_references(
    members: Members, ids: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, JsonValue]:
    """Take the members of a spec for the context resources of types `ids`, normalised.

    References to the default ones are left out, except of those in `optional`, which a spec without
    the member has not.
    """
    given = {
        id: members.take_with(id, partial(resource_json, id))
        for id in (*ids, *optional)
        if id in members
    }
    return {id: json for id, json in given.items() if json != id or id in optional}


def references_json(
    ids: Sequence[str], references: Mapping[str, JsonValue], *, include_defaults: bool
) -> dict[str, JsonValue]:
    """Return the members of a spec that :func:`take_references` takes."""
    if not include_defaults:
        return dict(references)
    named = {**{id: id for id in ids}, **references}
    return {id: resource_json(id, json, include_defaults=True) for id, json in named.items()}
