"""One empty lock file that a batch of writes shows under the name of one key after the other.

A lock file of its own for each key is created and removed with each write, and ext4 looks through
all files removed in the last seconds whenever it creates one: a batch of 500 chunks took twice the
time. A hard link of a file that is there already costs a directory entry. Other writers see what
:mod:`~gpustore.kvstores.file.lock` describes: a locked file of that name, which is gone, or
another, by the time they get the lock.

The file is locked only while it has a key's name, and the batch waits for no other lock meanwhile.
Another writer of one of the keys may have to wait until the end of the batch.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from typing import Final

# struct flock: type, whence, start, length, pid (0, as open file description locks require).
WHOLE_FILE: Final = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_UNLOCKED: Final = struct.pack("hhqqi", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_POSSIBLE: Final = frozenset(
    {
        *(errno.EPERM, errno.EACCES, errno.EXDEV, errno.EMLINK, errno.EINVAL, errno.ENOSYS),
        *(errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK),
    }
)


class LinkedLock:
    """Locks of keys, one at a time. For one thread; use :meth:`close`.

    Where it is not possible, :meth:`acquire` says so and the caller locks in the other way.

    Parameters
    ----------
    name : str
        A new name for the file, in the directory of the first key.
    """

    __slots__ = ("_directory", "_fd", "_name", "_possible")

    def __init__(self, name: str) -> None:
        self._fd = self._directory = -1
        self._name = name
        self._possible = hasattr(fcntl, "F_OFD_SETLKW")

    def acquire(self, directory: int, lock_name: str) -> bool:
        """Lock a name in an open directory, if nobody else has.

        Raises
        ------
        OSError
            From the system; the name is not locked. FileNotFoundError if the directory has been
            removed.
        """
        if not self._possible:
            return False
        try:
            if self._fd < 0:
                self._create(directory)
            # A process that waited for an earlier name may hold the lock for a moment.
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW, WHOLE_FILE)
        except OSError as error:
            if error.errno not in _NOT_POSSIBLE:
                raise
            self.close()
            return False
        try:
            os.link(self._name, lock_name, src_dir_fd=self._directory, dst_dir_fd=directory)
        except FileExistsError:
            self._unlock()
            return False
        except OSError as error:
            self._unlock()
            if error.errno == errno.ENOENT and os.fstat(self._fd).st_nlink:
                raise  # Not our file is gone but the directory.
            if error.errno not in _NOT_POSSIBLE and error.errno != errno.ENOENT:
                raise
            self.close()
            return False
        except BaseException:
            self.release(directory, lock_name)
            raise
        return True

    def release(self, directory: int, lock_name: str) -> None:
        """Take the name away and unlock."""
        try:
            # delete_range of another process may have removed the directory.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(lock_name, dir_fd=directory)
        except OSError:
            self.close()  # A name that stays must not be that of a lock which is used again.
            raise
        self._unlock()

    def close(self) -> None:
        """Remove the file; from now on locking is not possible."""
        self._possible = False
        if self._fd < 0:
            return
        try:
            # All is written; the next writer in this directory removes it.
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._directory)
        finally:
            os.close(self._fd)
            os.close(self._directory)
            self._fd = -1

    def _create(self, directory: int) -> None:
        self._directory = os.dup(directory)
        try:
            self._fd = os.open(self._name, _FLAGS, 0o666, dir_fd=self._directory)
        except BaseException:
            os.close(self._directory)
            raise

    def _unlock(self) -> None:
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _UNLOCKED)
