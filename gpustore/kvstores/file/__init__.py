"""The ``file`` kvstore: one file a key, in local or network file systems.

A key is a whole path: ``{"driver": "file", "path": "/data/x/"}`` prefixes every key with
``/data/x/``. Reading costs one open, fstat, read and close. Writing is atomic and, unless
``file_io_sync`` says otherwise, durable (:mod:`~gpustore.kvstores.file.atomic_file`); writers of
one key exclude each other, TensorStore's included (:mod:`~gpustore.kvstores.file.lock`); links do
not lead out of the store (:mod:`~gpustore.kvstores.file.root`).

Source: TensorStore ``kvstore/file/index.rst``; URL ``file:///data/x/``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, ParamSpec, TypeVar

from gpustore.errors import GpustoreError, StoreIOError
from gpustore.kvstores.base import (
    KeyDirectory,
    KvStoreDriver,
    prefix_end,
    references_json,
    take_references,
)
from gpustore.kvstores.columns import (
    ABSENT,
    LocateColumns,
    ReadColumns,
    ReadRequest,
    ReadState,
    WriteColumns,
    WriteRequest,
    check_byte_range,
    check_nbytes,
    condition_holds,
)
from gpustore.kvstores.direct_reads import DirectReads
from gpustore.kvstores.file.atomic_file import CAN_COPY, OpenFile
from gpustore.kvstores.file.batch import WriteBatch
from gpustore.kvstores.file.key import (
    check_path,
    check_tail,
    is_plain,
    parent_of,
    path_from_url,
)
from gpustore.kvstores.file.lock import thread_lock
from gpustore.kvstores.file.options import RESOURCES, FileOptions
from gpustore.kvstores.file.root import Root, generation_of, io_error, open_regular
from gpustore.kvstores.file.unbuffered_file import read_unbuffered, start_unbuffered
from gpustore.kvstores.file.walk import only_file, scan, walk, within
from gpustore.kvstores.file.write_directories import FileWriteDirectories
from gpustore.strict_json.parsing import quote
from gpustore.url import encode_path

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from gpustore.kvstores.arena import Arena
    from gpustore.kvstores.base import Replacement
    from gpustore.runtime.buffer import Buffer
    from gpustore.runtime.context import Context
    from gpustore.strict_json.parsing import JsonValue, Members
    from gpustore.url import UrlComponent

P = ParamSpec("P")
T = TypeVar("T")


# Errors that may be gone a moment later.
_PASSING: Final = frozenset(
    {
        *(errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE),
        *(errno.ENOLCK, errno.ESTALE, errno.ETIMEDOUT),
    }
)


class FileKvStore(KvStoreDriver):
    """An opened file kvstore.

    Parameters
    ----------
    path : str
        The root that links must not leave; keys outside of it may be named.
    spec : FileSpec
    options : FileOptions
        Values of the context resources.
    """

    id = "file"
    atomic_single_key = True
    is_local = True
    locates_files = True
    replaces_in_pieces = True

    def __init__(
        self,
        path: str,
        *,
        spec: FileSpec,
        options: FileOptions,
        resources: Mapping[str, Context.Resource],
    ) -> None:
        self._root = Root(path)
        # Most keys lie in this directory; only what follows needs to be checked.
        self._prefix = path if not path or path.endswith("/") else f"{path}/"
        self._spec = spec
        self._options = options
        self._resources = resources
        self.executor = options.executor
        self.atomic_single_key = options.locking.mode not in ("none", "non_atomic")
        self._in_place = options.locking.mode == "non_atomic"
        self.replaces_in_pieces = not self._in_place

    @property
    def spec(self) -> FileSpec:
        return self._spec

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        return self._resources

    def rooted(self, path: str) -> FileKvStore:
        return FileKvStore(path, spec=self._spec, options=self._options, resources=self._resources)

    @property
    def identity(self) -> Hashable:
        # A relative path means another file once the process is elsewhere.
        return "file", "" if self._root.path.startswith("/") else str(Path.cwd())

    def describe(self, key: str) -> str:
        return f"local file {quote(key)}"

    def check_key(self, key: str) -> None:
        if key.startswith(self._prefix):
            tail = key[len(self._prefix) :]
        elif key.startswith(self._root.path):
            tail = key[len(parent_of(self._root.path)) :]
        else:
            tail = key.removeprefix("/")
        if not is_plain(tail):
            check_tail(tail, key)

    # ------------------------------------------------------------------ reading

    def read_many(self, request: ReadRequest) -> ReadColumns:
        result = ReadColumns.blank(len(request.keys))
        direct = None if request.into is None else request.into.direct
        self._read_rows(range(len(request.keys)), request, result, direct)
        if direct is not None:
            again = direct.end()
            for i in again:
                result.state[i] = ReadState.UNSPECIFIED
                result.value[i] = None
                result.total[i] = -1
            self._read_rows(again, request, result, None)
        return result

    def _read_rows(
        self,
        rows: Sequence[int],
        request: ReadRequest,
        result: ReadColumns,
        direct: DirectReads | None,
    ) -> None:
        read_one = self._read_alone if self._in_place else self._read_one
        repeat = self._repeat if self._options.retries.max_retries else None
        for i in rows:
            key = request.keys[i]
            try:
                self.check_key(key)
                if repeat is None:
                    read_one(i, key, request, result, direct)
                else:
                    repeat(read_one, i, key, request, result, direct)
            except GpustoreError as error:
                result.error[i] = error
            except OSError as error:
                result.error[i] = io_error(error, "read", key)

    def _repeat(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something, again after passing errors as ``file_io_retries`` says."""
        retries = self._options.retries
        pause_s = retries.initial_delay_s
        for _ in range(retries.max_retries):
            try:
                return operation(*args, **kwargs)
            except OSError as error:
                if error.errno not in _PASSING:
                    raise
            time.sleep(min(pause_s, retries.max_delay_s))
            pause_s *= 2
        return operation(*args, **kwargs)

    def _open(self, key: str) -> tuple[int, os.stat_result] | None:
        """A regular file and its status; None if there is nothing."""
        opened = open_regular(self._root, key)
        if not isinstance(opened, int):
            return opened
        if opened in (-errno.ENOENT, -errno.ENOTDIR):
            return None
        raise io_error(-opened, "open", key)

    def _read_alone(
        self,
        i: int,
        key: str,
        request: ReadRequest,
        result: ReadColumns,
        direct: DirectReads | None,
    ) -> None:
        """Read one key while no thread of this process writes the same file."""
        del direct  # What is read past the host goes on after the lock is released.
        with thread_lock(key):
            self._read_one(i, key, request, result, None)

    def _read_one(
        self,
        i: int,
        key: str,
        request: ReadRequest,
        result: ReadColumns,
        direct: DirectReads | None,
    ) -> None:
        opened = self._open(key)
        condition = b"" if request.if_equal is None else request.if_equal[i]
        if opened is None:
            result.generation[i] = ABSENT
            if condition_holds(condition, ABSENT):
                result.state[i] = ReadState.MISSING
            return
        fd, status = opened
        try:
            size = status.st_size
            generation = generation_of(status)
            result.generation[i] = generation
            result.total[i] = size
            if not condition_holds(condition, generation):
                return
            if request.if_not_equal is not None and request.if_not_equal[i] == generation:
                return
            begin, end = 0, size
            if request.start is not None or request.stop is not None:
                start = 0 if request.start is None else request.start[i]
                stop = None if request.stop is None else request.stop[i]
                begin, end = check_byte_range(size, start, stop, key)
            check_nbytes(end - begin, request.max_nbytes, key)
            value: Buffer | None = None
            if direct is not None:
                value = direct.begin(i, fd, status, begin, end - begin)
            if value is None:
                unbuffered = self._options.mode == "direct" and end > begin and start_unbuffered(fd)
                value = _read_range(
                    fd, begin, end - begin, request.into, key, unbuffered=unbuffered
                )
            result.value[i] = value
            result.state[i] = ReadState.VALUE
        finally:
            os.close(fd)

    def locate_many(self, keys: Sequence[str]) -> LocateColumns:
        result = LocateColumns.blank(len(keys))
        for i, key in enumerate(keys):
            try:
                self.check_key(key)
                opened = self._open(key)
                if opened is None:
                    result.generation[i] = ABSENT
                    continue
                os.close(opened[0])
                result.path[i] = key
                result.offset[i] = 0
                result.nbytes[i] = opened[1].st_size
                result.generation[i] = generation_of(opened[1])
            except GpustoreError as error:
                result.error[i] = error
        return result

    def plain_file(self, key: str) -> bytes | None:
        if self._in_place or self._options.mode == "direct" or not self._root.refuses_links:
            return None
        self.check_key(key)
        return key.encode("utf-8", "surrogateescape")

    def key_directory(self, prefix: str) -> KeyDirectory | None:
        if self._in_place or self._options.mode == "direct":
            return None
        return self._root.key_directory(prefix)

    # ------------------------------------------------------------------ writing

    def write_directories(self) -> FileWriteDirectories | None:
        if self._options.locking.mode != "os" or not hasattr(fcntl, "F_OFD_SETLK"):
            return None
        return FileWriteDirectories(self._root, self._options, self.check_key)

    def write_many(self, request: WriteRequest) -> WriteColumns:
        result = WriteColumns.blank(len(request.keys))
        batch = WriteBatch(self._root, self._options, link=len(request.keys) > 1, anew=request.anew)
        try:
            for i, (key, value) in enumerate(zip(request.keys, request.values, strict=True)):
                condition = b"" if request.if_equal is None else request.if_equal[i]
                try:
                    self.check_key(key)
                    result.generation[i] = self._repeat(batch.write, i, key, value, condition)
                except GpustoreError as error:
                    result.error[i] = error
                except OSError as error:
                    result.error[i] = io_error(error, "write", key)
        finally:
            batch.close()
        for i, failure in batch.error.items():
            result.error.setdefault(i, failure)
            result.generation[i] = b""
        return result

    def copy_from(
        self,
        source: KvStoreDriver,
        keys: Sequence[tuple[str, str]],
        staleness_bound: float | None,
    ) -> bool:
        """Let the system copy files, each of which appears whole; the source is read as it is."""
        del staleness_bound
        if (
            not CAN_COPY
            or not isinstance(source, FileKvStore)
            or self._in_place
            or source._in_place
        ):
            return False
        batch = WriteBatch(self._root, self._options, link=len(keys) > 1)
        try:
            for i, (old, new) in enumerate(keys):
                source.check_key(old)
                self.check_key(new)
                opened = source._open(old)
                if opened is None:
                    continue
                fd, status = opened
                try:
                    self._repeat(batch.write, i, new, OpenFile(fd, status.st_size), b"")
                except GpustoreError:
                    raise
                except OSError as error:
                    raise io_error(error, "write", new) from error
                finally:
                    os.close(fd)
        finally:
            batch.close()
        for failure in batch.error.values():
            raise failure
        return True

    def replace(self, key: str, make: Callable[[], Replacement | None]) -> bytes:
        self.check_key(key)
        if self._in_place:
            # The old value cannot be read while the new one takes its place.
            return super().replace(key, make)
        batch = WriteBatch(self._root, self._options)
        try:
            generation = batch.replace(key, make)
        except GpustoreError:
            raise
        except OSError as error:
            raise io_error(error, "write", key) from error
        finally:
            batch.close()
        for failure in batch.error.values():
            raise failure
        return generation

    def delete_range(self, inclusive_min: str = "", exclusive_max: str | None = None) -> int:
        return self._delete_range(inclusive_min, exclusive_max)

    def clear_directory(self, path: str, key: str) -> bytes:
        found = ABSENT if self._in_place else only_file(self._root, path, key[len(path) :])
        if found != ABSENT:
            return found
        # The write that follows changes the same directory, and syncs it.
        self._delete_range(path, prefix_end(path), unsynced=path)
        return ABSENT

    def _delete_range(
        self, inclusive_min: str, exclusive_max: str | None, *, unsynced: str | None = None
    ) -> int:
        """Delete keys; leave syncing directory `unsynced` to the caller, unless an error occurs."""
        count = 0
        emptied = []
        batch = WriteBatch(self._root, self._options)
        try:
            for directory, keys in walk(self._root, inclusive_min, exclusive_max):
                for key in keys:
                    try:
                        count += batch.delete(count, key, b"") == ABSENT
                    except FileNotFoundError:
                        pass
                    except GpustoreError:
                        raise
                    except OSError as error:
                        raise io_error(error, "delete", key) from error
                if within(directory, prefix_end(directory), inclusive_min, exclusive_max):
                    emptied.append(directory)
            for directory in sorted(emptied, reverse=True):
                if directory.startswith(self._root.path) and directory != self._prefix:
                    batch.remove_directory(directory)
            if unsynced is not None:
                batch.leave_unsynced(unsynced)
        finally:
            batch.close()
        for failure in batch.error.values():
            raise failure
        return count

    def list(self, inclusive_min: str = "", exclusive_max: str | None = None) -> builtins.list[str]:
        found = walk(self._root, inclusive_min, exclusive_max)
        return sorted(key for _, keys in found for key in keys)

    def list_directories(self, prefix: str) -> builtins.list[str]:
        # One directory is read; an empty one below it is named too.
        found = scan(self._root, prefix)
        return sorted(name for name, is_directory in found if is_directory)

    def list_names(self, prefix: str) -> builtins.list[str]:
        found = scan(self._root, prefix)
        return sorted(name + "/" * is_directory for name, is_directory in found)


def _read_range(
    fd: int, begin: int, nbytes: int, into: Arena | None, key: str, *, unbuffered: bool
) -> Buffer:
    """Bytes of an open file."""
    done = 0
    if into is not None:
        out = into.take(nbytes)
    elif unbuffered:
        out = memoryview(bytearray(nbytes))
    else:
        data = os.pread(fd, nbytes, begin) if nbytes else b""
        if len(data) == nbytes:
            return data
        # Linux reads at most 2 GiB at a time.
        out = memoryview(bytearray(nbytes))
        done = len(data)
        out[:done] = data
    while done < nbytes:
        if unbuffered:
            count = read_unbuffered(fd, out[done:], begin + done)
        else:
            count = os.preadv(fd, [out[done:]], begin + done)
        if not count:
            raise StoreIOError(
                f"local file {quote(key)} became shorter while it was being read: "
                f"{done} bytes from {begin} on, expected {nbytes}",
                status="ABORTED",
                key=key,
            )
        done += count
    return out


@dataclass(frozen=True, slots=True)
class FileSpec:
    """Spec of a file kvstore.

    Attributes
    ----------
    references : mapping of str to JsonValue
        Context resources other than the default ones, by identifier.
    """

    references: Mapping[str, JsonValue] = field(default_factory=dict)

    id = "file"
    base = None

    def without_references(self) -> FileSpec:
        return FileSpec()

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        return references_json(RESOURCES, self.references, include_defaults=include_defaults)

    def to_url(self, path: str) -> str:
        # A relative path is printed as it is typed, as in "file://data/x"; TensorStore leaves "@".
        return f"file://{encode_path(path).replace('%40', '@')}"

    def open(self, context: Context, path: str) -> FileKvStore:
        if self.references:
            resources, options = _bound(context, self.references)
        else:
            resources, options = context.once(_default)
        return FileKvStore(path, spec=self, options=options, resources=resources)


def _bound(
    context: Context, references: Mapping[str, JsonValue]
) -> tuple[Mapping[str, Context.Resource], FileOptions]:
    """Return the resources that a spec refers to, and what they come to."""
    resources = {id: context.resource(id, references.get(id)) for id in RESOURCES}
    return resources, FileOptions.from_resources(resources)


def _default(context: Context) -> tuple[Mapping[str, Context.Resource], FileOptions]:
    return _bound(context, {})


class _Kind:
    """Parses both forms of a file spec."""

    id = "file"
    is_adapter: Literal[False] = False
    schemes = ("file",)

    def from_json(self, members: Members) -> FileSpec:
        return FileSpec(take_references(members, RESOURCES))

    def from_url(self, component: UrlComponent) -> tuple[FileSpec, str]:
        return FileSpec(), path_from_url(component)

    def check_path(self, path: str) -> None:
        check_path(path)


DRIVER = _Kind()
