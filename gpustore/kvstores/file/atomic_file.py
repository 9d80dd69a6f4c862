"""Temporary files that become a key by a rename, and their removal after a crash.

A value is written to ``<key>.<pid>-<tag>.__lock`` beside the key and then renamed onto it, so a
reader sees the old value or the new one and never a part. The suffix makes TensorStore hide the
file. The first half of the tag stands for the machine and process namespace in which the pid
means something, the second half is random. A value that is written under the lock of its key, and
without a condition, needs no second name: it is written into the lock file, as TensorStore does
(:meth:`HeldLock.rename <gpustore.kvstores.file.lock.HeldLock.rename>`, and
``kernels/host/write.h``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
import zlib
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from gpustore.kvstores.file.lock import LOCK_SUFFIX, remove_abandoned
from gpustore.runtime.buffer import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterable


_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY: Final = re.compile(r".*\.(\d{1,10})-([0-9a-f]{8})[0-9a-f]{8}\.__lock", re.DOTALL)
_FOREIGN_MAX_AGE_S: Final = 24 * 3600
# Looking through the names of a directory costs about 0.3 us each; this bounds the delay that
# the first write to a huge flat directory suffers to 30 ms.
_MAX_SCANNED: Final = 100_000
_MAX_NAME_NBYTES: Final = 255
# Device, inode, time of last change in ns, size.


@cache
def _origin_tag() -> str:
    """Eight hexadecimal digits for this boot of this machine and this pid namespace."""
    parts = []
    for path, read in (
        ("/proc/sys/kernel/random/boot_id", _read_text),
        ("/proc/self/ns/pid", os.readlink),
    ):
        try:
            parts.append(read(path))
        except OSError:
            parts.append(os.uname().nodename)
    return f"{zlib.crc32(' '.join(parts).encode()):08x}"


def _read_text(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 100).decode()
    finally:
        os.close(fd)


def temporary_name(name: str) -> str:
    """Return a new name for a file that belongs to `name`; :func:`clean_up` recognises it."""
    ending = f".{os.getpid()}-{_origin_tag()}{os.urandom(4).hex()}{LOCK_SUFFIX}"
    room = _MAX_NAME_NBYTES - len(ending)
    encoded = os.fsencode(name)
    if len(encoded) > room:
        # The name only tells people what the file was for; cut between characters.
        name = encoded[:room].decode("utf-8", "ignore")
    return name + ending


class OpenFile(NamedTuple):
    """A file whose bytes are copied by the system, which may share them between files.

    Attributes
    ----------
    descriptor : int
    nbytes : int
    """

    descriptor: int
    nbytes: int

    def copy_to(self, fd: int) -> None:
        """Append the bytes to an open file.

        Raises
        ------
        OSError
            ESTALE if the file has become shorter.
        """
        done = 0
        while done < self.nbytes:
            left = self.nbytes - done
            try:
                count = os.copy_file_range(self.descriptor, fd, left, offset_src=done)
            except OSError as error:
                if error.errno not in _NOT_SHARED:
                    raise
                count = os.sendfile(fd, self.descriptor, done, left)
            if not count:
                raise OSError(errno.ESTALE, "the file became shorter while it was being copied")
            done += count


Piece = Buffer | OpenFile
"""Part of a value that is written."""

CAN_COPY: Final = hasattr(os, "copy_file_range")
"""Whether the system copies files."""

_NOT_SHARED: Final = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""Errors of systems that copy no files between these two places."""


class TemporaryFile:
    """A new file that holds a value, in the directory of its key. Context manager.

    Leaving the block removes the file unless :meth:`rename` was called, also on Ctrl-C.

    Parameters
    ----------
    directory : int
        File descriptor of the directory.
    name : str
        Name of the key in it.
    pieces : iterable of Piece
        The bytes of the value, from the beginning to the end.
    sync : bool
        Whether the bytes reach the disk before this returns.

    Attributes
    ----------
    status : os.stat_result
        Status of the written file, which identifies the version of the key after :meth:`rename`.

    Raises
    ------
    OSError
        From the system; no file is left behind.
    """

    __slots__ = ("_directory", "_key_name", "_name", "status")

    def __init__(self, directory: int, name: str, pieces: Iterable[Piece], *, sync: bool) -> None:
        self._directory = directory
        self._key_name = name
        self._name = temporary_name(name)
        fd = os.open(self._name, _FLAGS, 0o666, dir_fd=directory)
        try:
            try:
                self.status = fill(fd, pieces, sync=sync)
            finally:
                os.close(fd)
        except BaseException:
            self.__exit__()
            raise

    def rename(self) -> None:
        """Make the file the value of the key."""
        os.rename(
            self._name, self._key_name, src_dir_fd=self._directory, dst_dir_fd=self._directory
        )
        self._name = ""

    def __enter__(self) -> TemporaryFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._name, dir_fd=self._directory)


def write_all(fd: int, pieces: Iterable[Piece]) -> None:
    """Write bytes into an open file at its position."""
    for piece in pieces:
        if isinstance(piece, OpenFile):
            piece.copy_to(fd)
            continue
        rest = memoryview(piece).cast("B")
        while rest:
            rest = rest[os.write(fd, rest) :]


def fill(fd: int, pieces: Iterable[Piece], *, sync: bool) -> os.stat_result:
    """Write a value into a new open file and return the status that identifies the version of its
    key; arguments and errors of :class:`TemporaryFile`.
    """
    write_all(fd, pieces)
    # Kernels before 6.13 stamp files with a clock of 1-10 ms; the inode number of a replaced
    # file is used again at once, so only an exact time keeps two versions of a key apart.
    now = time.time_ns()
    os.utime(fd, ns=(now, now))
    if sync:
        os.fsync(fd)
    return os.fstat(fd)


def clean_up(directory: int, *, remove_locks: bool) -> int:
    """Remove the files that killed writers left in a directory.

    Parameters
    ----------
    directory : int
        File descriptor of the directory.
    remove_locks : bool
        Whether to remove lock files that no process holds; False where their existence is the lock.

    Returns
    -------
    int
        Number of files removed.
    """
    with os.scandir(directory) as entries:
        names = [
            entry.name
            for _, entry in zip(range(_MAX_SCANNED), entries, strict=False)
            if entry.name.endswith(LOCK_SUFFIX)
        ]
    removed = 0
    for name in names:
        match = _TEMPORARY.fullmatch(name)
        if match is None:
            removed += remove_locks and remove_abandoned(directory, name)
        elif _is_dead(directory, name, pid=int(match[1]), tag=match[2]):
            # Another process may be faster, or it is not ours to remove.
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory)
                removed += 1
    return removed


def _is_dead(directory: int, name: str, *, pid: int, tag: str) -> bool:
    if tag == _origin_tag():
        try:
            # One that is there may belong to someone else.
            with contextlib.suppress(PermissionError):
                os.kill(pid, 0)
        except ProcessLookupError:
            return True
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > _FOREIGN_MAX_AGE_S
