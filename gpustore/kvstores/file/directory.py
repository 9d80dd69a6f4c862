"""Directories of one batch of writes: made, kept open, and synced once each."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from gpustore.kvstores.file.atomic_file import clean_up
from gpustore.kvstores.file.key import parent_of
from gpustore.kvstores.file.root import DIRECTORY_FLAGS, io_error

if TYPE_CHECKING:
    from gpustore.errors import StoreIOError
    from gpustore.kvstores.file.root import Root


_MAX_OPEN: Final = 64
_ATTEMPTS: Final = 10

# Directories (device, inode) this process has rid of what killed writers left, the oldest first.
# A directory that has dropped out of it is looked through again, which does no harm.
_MAX_REMEMBERED: Final = 10_000
_cleaned: OrderedDict[tuple[int, int], None] = OrderedDict()

# Held while a directory is looked through: a thread that wrote in it meanwhile could lose a lock
# file that it has made and not locked yet, as if a killed writer had left it behind.
_STRIPES: Final = [threading.Lock() for _ in range(64)]


def _renew_stripes() -> None:
    # A lock held by a thread that does not exist in the child would never be released.
    _STRIPES[:] = [threading.Lock() for _ in _STRIPES]


os.register_at_fork(after_in_child=_renew_stripes)


class Directories:
    """Open directories of one batch.

    Parameters
    ----------
    root : Root
        Root of the store, outside of which nothing is opened.
    sync : bool
        Whether changed directories must reach the disk.
    remove_locks : bool
        Argument of :func:`clean_up`.

    Attributes
    ----------
    error : dict of int to StoreIOError
        Changes that may not have reached the disk, by position in the batch.
    """

    __slots__ = ("_changed", "_fds", "_made", "_remove_locks", "_root", "_sync", "error")

    def __init__(self, root: Root, *, sync: bool, remove_locks: bool) -> None:
        self._root = root
        self._sync = sync
        self._remove_locks = remove_locks
        self._fds: dict[str, int] = {}
        self._made: set[str] = set()
        self._changed: dict[str, list[int]] = {}
        self.error: dict[int, StoreIOError] = {}

    @property
    def room(self) -> int:
        """Number of directories that can be opened before others are closed."""
        return _MAX_OPEN - len(self._fds)

    def open(self, path: str, *, index: int, create: bool) -> int:
        """Return a file descriptor of directory `path`, which ends in a slash or is empty.

        Parameters
        ----------
        path : str
        index : int
            Position in the batch, for errors of a later sync.
        create : bool
            Whether to make the directory and its parents if missing.

        Raises
        ------
        FileNotFoundError
            If the directory is missing and `create` is False.
        StoreIOError
            For any other failure.
        """
        if path in self._fds:
            return self._fds[path]
        fd = -errno.ENOENT
        for _ in range(_ATTEMPTS):
            fd = self._root.open(path, DIRECTORY_FLAGS)
            if fd != -errno.ENOENT or not create:
                break
            above = self.open(parent_of(path), index=index, create=True)
            try:
                os.mkdir(path.rstrip("/").rpartition("/")[2], dir_fd=above)
                self.changed(parent_of(path), index)
                self._made.add(path)
            except FileExistsError:
                pass
            except FileNotFoundError:
                self.forget(parent_of(path))
            except OSError as error:
                raise io_error(error, "create directory", path) from error
        if fd == -errno.ENOENT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if fd < 0:
            raise io_error(-fd, "open directory", path)
        if len(self._fds) >= _MAX_OPEN:
            self.forget(next(iter(self._fds)))
        self._fds[path] = fd
        return fd

    def clean(self, path: str, *, again: bool = False) -> None:
        """Remove abandoned files from an open directory, once a process or again."""
        fd = self._fds[path]
        status = os.fstat(fd)
        identity = status.st_dev, status.st_ino
        with _STRIPES[hash(identity) % len(_STRIPES)]:
            if identity in _cleaned and not again:
                return
            while len(_cleaned) >= _MAX_REMEMBERED:
                _cleaned.popitem(last=False)
            _cleaned[identity] = None
            if path in self._made and not again:
                return  # Nobody can have left anything behind in it.
            # A directory that cannot be read can still be written to.
            with contextlib.suppress(OSError):
                clean_up(fd, remove_locks=self._remove_locks)

    def changed(self, path: str, index: int) -> None:
        """Record that entry `index` of the batch changed directory `path`."""
        self.changes(path).append(index)

    def changes(self, path: str) -> list[int]:
        """Return the list of the batch's entries that have changed directory `path`."""
        return self._changed.setdefault(path, [])

    def unchanged(self, path: str) -> None:
        """Forget the changes of directory `path`, which need not be synced."""
        self._changed.pop(path, None)

    def forget(self, path: str) -> None:
        """Sync and close a directory."""
        fd = self._fds.pop(path, None)
        indices = self._changed.pop(path, None)
        if fd is None:
            return
        try:
            if indices and self._sync:
                os.fsync(fd)
        except OSError as error:
            for index in indices or ():
                self.error.setdefault(index, io_error(error, "sync directory", path))
        finally:
            os.close(fd)

    def close(self) -> None:
        """Sync and close all directories."""
        while self._fds:
            self.forget(next(iter(self._fds)))
