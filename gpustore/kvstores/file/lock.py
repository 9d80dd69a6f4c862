"""TensorStore's lock protocol for files, so that its processes and ours exclude each other.

The writer of ``key`` locks ``<key>.__lock``. TensorStore writes the new value into that file and
renames it onto the key, so the file behind a lock just obtained may by now be live data, or gone.
Therefore:

1. open the lock file without truncating it, creating it if need be;
2. wait for an exclusive lock of the open file description;
3. compare the locked file with the one that has the name now; if they differ, close and retry;
4. do the work, remove the name while still holding the lock, and close.

A lock file that a killed process left behind is locked again. Between threads of one process a lock
per key (striped) is taken first.

Source: TensorStore ``kvstore/file/file_key_value_store.cc``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gpustore.errors import StoreIOError
from gpustore.kvstores.file.linked_lock import WHOLE_FILE, LinkedLock
from gpustore.kvstores.file.root import io_error
from gpustore.strict_json.parsing import quote

if TYPE_CHECKING:
    from collections.abc import Iterator


LOCK_SUFFIX: Final = ".__lock"

_OPEN_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NOT_SUPPORTED: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
_STRIPES: Final = [threading.Lock() for _ in range(128)]


def _renew_stripes() -> None:
    # A lock held by a thread that does not exist in the child would never be released.
    _STRIPES[:] = [threading.Lock() for _ in _STRIPES]


os.register_at_fork(after_in_child=_renew_stripes)


def thread_lock(key: str) -> threading.Lock:
    """Return the lock that threads of this process hold while they write `key`."""
    return _STRIPES[hash(key) % len(_STRIPES)]


class HeldLock:
    """A lock that is held; got from :func:`hold`.

    Attributes
    ----------
    descriptor : int
        File descriptor of the lock file if it is new and empty, so that the value can be written
        into it and become the key by :meth:`rename`, as in TensorStore; -1 otherwise.
    """

    __slots__ = ("_directory", "_lock_name", "_renamed", "descriptor")

    def __init__(self, directory: int = -1, lock_name: str = "", descriptor: int = -1) -> None:
        self._directory = directory
        self._lock_name = lock_name
        self._renamed = False
        self.descriptor = descriptor

    def rename(self, name: str) -> None:
        """Make the lock file the value of the key `name`; the lock ends with that."""
        os.rename(self._lock_name, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._renamed = True

    def release(self) -> None:
        """Remove the lock file, unless it has become the key."""
        if not self._renamed:
            # delete_range of another process may have removed the directory.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._lock_name, dir_fd=self._directory)


@contextmanager
def hold(
    directory: int,
    name: str,
    *,
    key: str,
    mode: str,
    timeout_s: float,
    linked: LinkedLock | None = None,
) -> Iterator[HeldLock]:
    """Hold the lock of one key.

    Parameters
    ----------
    directory : int
        File descriptor of the directory that contains the key.
    name : str
        Name of the key in it.
    key : str
        Whole path, for messages.
    mode : str
        ``"os"`` for the protocol above, ``"lockfile"`` to use the existence of the lock file
        (for file systems without locks), ``"none"`` or ``"non_atomic"`` to exclude only threads
        of this process.
    timeout_s : float
        Longest wait of mode ``"lockfile"``, in seconds. Mode ``"os"`` waits until the lock is free,
        as TensorStore does: a lock of the system ends with the process that holds it.
    linked : LinkedLock, optional
        Shared lock file that mode ``"os"`` uses if it need not wait.

    Raises
    ------
    StoreIOError
        If the file system cannot lock, or on timeout.
    FileNotFoundError
        If the directory has been removed; nothing was done.
    """
    with thread_lock(key):
        if mode in ("none", "non_atomic"):
            yield HeldLock()
            return
        lock_name = name + LOCK_SUFFIX
        if mode == "os" and linked is not None and linked.acquire(directory, lock_name):
            try:
                yield HeldLock()
            finally:
                linked.release(directory, lock_name)
            return
        fd = _create_locked(directory, lock_name) if mode == "os" else -1
        lock = HeldLock(directory, lock_name, fd)
        if mode == "lockfile":
            fd = _create_exclusively(directory, lock_name, key, timeout_s)
        elif fd < 0:
            fd = _acquire(directory, lock_name, key)
        try:
            yield lock
        finally:
            try:
                lock.release()
            finally:
                os.close(fd)


def _create_locked(directory: int, lock_name: str) -> int:
    """Create and lock a lock file without waiting; return its file descriptor, or -1 if it cannot
    be done or another writer was faster.
    """
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return -1
    try:
        fd = os.open(lock_name, _OPEN_FLAGS | os.O_EXCL, 0o666, dir_fd=directory)
    except FileExistsError:
        return -1
    try:
        with contextlib.suppress(
            OSError
        ):  # `_acquire` opens the file again, and tells what is wrong.
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, WHOLE_FILE)
            if _is_current(fd, directory, lock_name):
                return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return -1


def _acquire(directory: int, lock_name: str, key: str) -> int:
    while True:
        fd = os.open(lock_name, _OPEN_FLAGS, 0o666, dir_fd=directory)
        try:
            _lock(fd, key)
            if _is_current(fd, directory, lock_name):
                return fd
        except OSError as error:
            os.close(fd)
            if error.errno != errno.ESTALE:
                # The owner of the name is unknown; it is removed if nobody holds the lock.
                with contextlib.suppress(OSError):
                    remove_abandoned(directory, lock_name)
                raise
        except BaseException:
            os.close(fd)
            raise
        else:
            os.close(fd)


def _lock(fd: int, key: str, *, wait: bool = True) -> None:
    """Lock an open file, by ``flock`` where open file description locks do not exist."""
    try:
        _lock_description(fd, wait=wait)
    except OSError as error:
        if error.errno == errno.ENOLCK:
            raise _no_locks(error, key) from error
        if error.errno not in _NOT_SUPPORTED:
            raise
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as second:
            if second.errno in (errno.ENOLCK, *_NOT_SUPPORTED):
                raise _no_locks(second, key) from second
            raise


def _lock_description(fd: int, *, wait: bool) -> None:
    """Take an open file description lock."""
    if not hasattr(fcntl, "F_OFD_SETLKW"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, WHOLE_FILE)


def _no_locks(error: OSError, key: str) -> StoreIOError:
    located = io_error(error, "lock", key)
    return StoreIOError(
        f"{located.text}; a file system without locks needs the context resource "
        '"file_io_locking": {"mode": "lockfile"}, or "none" if there is only one writer',
        status=located.status,
        key=key,
    )


def _is_current(fd: int, directory: int, lock_name: str) -> bool:
    """Whether the locked file is the one that has the name now."""
    try:
        named = os.stat(lock_name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), named)


def _create_exclusively(directory: int, lock_name: str, key: str, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    pause_s = 0.0005
    while True:
        try:
            return os.open(lock_name, _OPEN_FLAGS | os.O_EXCL, 0o666, dir_fd=directory)
        except FileExistsError as error:
            if time.monotonic() >= deadline:
                raise StoreIOError(
                    f"Failed to open lock file: {quote(key + LOCK_SUFFIX)}: it has existed for "
                    f"{timeout_s:g} s; remove it if no other process is writing",
                    status="DEADLINE_EXCEEDED",
                    key=key,
                ) from error
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)


def remove_abandoned(directory: int, lock_name: str) -> bool:
    """Remove a lock file that no process holds; return whether it was removed."""
    try:
        fd = os.open(lock_name, _OPEN_FLAGS & ~os.O_CREAT, dir_fd=directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        _lock(fd, lock_name, wait=False)
        if _is_current(fd, directory, lock_name):
            os.unlink(lock_name, dir_fd=directory)
    except (OSError, StoreIOError):
        return False
    finally:
        os.close(fd)
    return True
