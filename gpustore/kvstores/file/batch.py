"""One batch of writes and deletions of files.

A single value, and one with a condition, is written under the lock: into the lock file itself, and
a writer which loses a race finds out before it has written anything. In a larger batch values are
written first and the lock is held only for the rename. In mode ``"non_atomic"`` nothing is renamed:
the file itself is written (:mod:`~gpustore.kvstores.file.in_place_file`). All directories are
synced once, when the batch is closed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Final

from gpustore.errors import ConflictError
from gpustore.kvstores.columns import ABSENT, condition_holds
from gpustore.kvstores.file.atomic_file import OpenFile, TemporaryFile, fill, temporary_name
from gpustore.kvstores.file.directory import Directories
from gpustore.kvstores.file.in_place_file import write_in_place
from gpustore.kvstores.file.key import parent_of
from gpustore.kvstores.file.linked_lock import LinkedLock
from gpustore.kvstores.file.lock import hold
from gpustore.kvstores.file.root import generation_of, io_error
from gpustore.runtime.cancel_token import CancelToken
from gpustore.strict_json.parsing import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from gpustore.errors import StoreIOError
    from gpustore.kvstores.base import Replacement
    from gpustore.kvstores.file.atomic_file import Piece
    from gpustore.kvstores.file.lock import HeldLock
    from gpustore.kvstores.file.options import FileOptions
    from gpustore.kvstores.file.root import Root
    from gpustore.runtime.buffer import Buffer


# How often a write is begun anew because its directory was removed meanwhile.
_ATTEMPTS: Final = 20


class WriteBatch:
    """Writes keys one after the other.

    Parameters
    ----------
    root : Root
        Root of the store, outside of which nothing is changed.
    options : FileOptions
    link : bool, optional
        Whether the batch is large enough for a shared lock file. The file lies in one of the keys'
        directories, so these must not be removed in the batch.
    anew : bool, optional
        Whether to delete an old value, under the lock, before its new one gets the name.
    """

    __slots__ = ("_anew", "_cancel", "_directories", "_linked", "_options", "_root")

    def __init__(
        self, root: Root, options: FileOptions, *, link: bool = False, anew: bool = False
    ) -> None:
        self._root = root
        self._anew = anew
        self._options = options
        self._linked = LinkedLock(temporary_name("lock")) if link else None
        self._cancel = CancelToken.current()
        self._directories = Directories(
            root, sync=options.sync == "full", remove_locks=options.locking.mode == "os"
        )

    @property
    def error(self) -> dict[int, StoreIOError]:
        """Changes that may not have reached the disk, by position, after :meth:`close`."""
        return self._directories.error

    def close(self) -> None:
        """Sync the changes, and close all files."""
        try:
            if self._linked is not None:
                self._linked.close()
        finally:
            self._directories.close()

    def write(self, index: int, key: str, value: Piece | None, if_equal: bytes) -> bytes:
        """Write (or with None delete) one key.

        Parameters
        ----------
        index : int
            Position in the batch.
        key : str
            A checked path.
        value : Piece or None
            No open file in mode ``"non_atomic"``.
        if_equal : bytes
            Condition on the generation, or ``b""``.

        Returns
        -------
        bytes
            The new generation, or ``b""`` if the condition does not hold.

        Raises
        ------
        OSError
            The caller turns it into a StoreIOError that names the key.
        """
        for _ in range(_ATTEMPTS):
            try:
                if value is None:
                    return self.delete(index, key, if_equal)
                return self._write(index, key, value, if_equal)
            except FileNotFoundError:
                self._directories.forget(parent_of(key))
        raise io_error(errno.ENOENT, "write", key)

    def _write(self, index: int, key: str, value: Piece, if_equal: bytes) -> bytes:
        parent = parent_of(key)
        name = key[len(parent) :]
        directory = self._directories.open(parent, index=index, create=True)
        self._directories.clean(parent)
        sync = self._options.sync != "none"
        if self._options.locking.mode == "non_atomic":
            with self._lock(directory, name, key):
                if if_equal and _generation_at(directory, name) != if_equal:
                    return b""
                self._cancel.check()
                assert not isinstance(value, OpenFile)
                create = if_equal == ABSENT
                status = write_in_place(self._root, key, value, create=create, sync=sync)
            if status is None:
                return b""
        elif self._linked is not None and not if_equal:
            with (
                TemporaryFile(directory, name, (value,), sync=sync) as file,
                self._lock(directory, name, key),
            ):
                self._cancel.check()
                file.rename()
            status = file.status
        else:
            # Looking before waiting for the lock costs one stat, and often saves the wait.
            if if_equal and _generation_at(directory, name) != if_equal:
                return b""
            with self._lock(directory, name, key) as lock:
                if if_equal and _generation_at(directory, name) != if_equal:
                    return b""
                # What a condition protects, a manifest for example, other libraries write as well.
                # TensorStore writes into the lock file that a killed process leaves, and does not
                # cut it off: it must be empty.
                if lock.descriptor >= 0 and not if_equal:
                    status = fill(lock.descriptor, (value,), sync=sync)
                    # A file system may tell only now that it has no room. The lock is held on.
                    os.close(os.dup(lock.descriptor))
                    self._cancel.check()
                    if self._anew:
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(name, dir_fd=directory)
                    lock.rename(name)
                else:
                    with TemporaryFile(directory, name, (value,), sync=sync) as file:
                        self._cancel.check()
                        file.rename()
                    status = file.status
        self._directories.changed(parent, index)
        return generation_of(status)

    def replace(self, key: str, make: Callable[[], Replacement | None]) -> bytes:
        """Replace one key by :meth:`KvStoreDriver.replace`, all of it under the lock."""
        parent = parent_of(key)
        name = key[len(parent) :]
        for _ in range(_ATTEMPTS):
            try:
                directory = self._directories.open(parent, index=0, create=True)
                self._directories.clean(parent)
                with self._lock(directory, name, key):
                    return self._replace(directory, name, key, make)
            except FileNotFoundError:
                self._directories.forget(parent)
        raise io_error(errno.ENOENT, "write", key)

    def _replace(
        self, directory: int, name: str, key: str, make: Callable[[], Replacement | None]
    ) -> bytes:
        # Only writers that know no locks can come in between here.
        for _ in range(_ATTEMPTS):
            made = make()
            if made is None:
                return b""
            if made.if_equal not in (b"", _generation_at(directory, name)):
                continue
            try:
                sync = self._options.sync != "none"
                with TemporaryFile(
                    directory, name, self._cancelled(made.pieces), sync=sync
                ) as file:
                    if made.if_equal not in (b"", _generation_at(directory, name)):
                        continue
                    self._cancel.check()
                    file.rename()
            except ConflictError:
                continue
            self._directories.changed(parent_of(key), 0)
            return generation_of(file.status)
        raise ConflictError(
            f"Error writing local file {quote(key)}: another writer was faster {_ATTEMPTS} times",
            key=key,
        )

    def _cancelled(self, pieces: Iterable[Buffer]) -> Iterator[Buffer]:
        """Yield the same pieces, until Ctrl-C."""
        for piece in pieces:
            self._cancel.check()
            yield piece

    def delete(self, index: int, key: str, if_equal: bytes) -> bytes:
        """Delete one key; arguments and results of :meth:`write`."""
        parent = parent_of(key)
        name = key[len(parent) :]
        absent = ABSENT if condition_holds(if_equal, ABSENT) else b""
        try:
            directory = self._directories.open(parent, index=index, create=False)
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return absent
        except OSError as error:
            if error.errno == errno.ENOTDIR:
                return absent
            raise
        with self._lock(directory, name, key):
            if if_equal and _generation_at(directory, name) != if_equal:
                return b""
            self._cancel.check()
            try:
                os.unlink(name, dir_fd=directory)
            except FileNotFoundError:
                return absent
        self._directories.changed(parent, index)
        return ABSENT

    def remove_directory(self, path: str) -> None:
        """Remove a directory with its abandoned files, if it is empty otherwise."""
        parent = parent_of(path)
        try:
            self._directories.open(path, index=-1, create=False)
            self._directories.clean(path, again=True)
            above = self._directories.open(parent, index=-1, create=False)
            os.rmdir(path[len(parent) : -1], dir_fd=above)
        except OSError:
            return  # a writer has put something there meanwhile, which is its right
        # What was in it is gone for good as soon as its own removal is.
        self._directories.unchanged(path)
        self._directories.forget(path)
        self._directories.changed(parent, -1)

    def leave_unsynced(self, path: str) -> None:
        """Leave it to a later change of directory `path` to sync those made so far."""
        self._directories.unchanged(path)

    def _lock(self, directory: int, name: str, key: str) -> AbstractContextManager[HeldLock]:
        return hold(
            directory,
            name,
            key=key,
            mode=self._options.locking.mode,
            timeout_s=self._options.locking.acquire_timeout_s,
            linked=self._linked,
        )


def _generation_at(directory: int, name: str) -> bytes:
    """Generation of a name in an open directory."""
    try:
        return generation_of(os.stat(name, dir_fd=directory))
    except FileNotFoundError:
        return ABSENT
