"""Files that are written in place, where a file system cannot rename or lock.

The old value is lost as soon as writing begins. The file is truncated to zero bytes first, so a
killed writer leaves the beginning of the new value, which is too short, and never a mixture of two
values with the length of either.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import TYPE_CHECKING

from gpustore.kvstores.file.atomic_file import write_all
from gpustore.kvstores.file.root import CREATE_FLAGS, OVERWRITE_FLAGS, io_error, open_regular

if TYPE_CHECKING:
    from gpustore.kvstores.file.root import Root
    from gpustore.runtime.buffer import Buffer


def write_in_place(
    root: Root, key: str, value: Buffer, *, create: bool, sync: bool
) -> os.stat_result | None:
    """Write `value` into the file of a key.

    Parameters
    ----------
    root : Root
        Root that links must not leave; links inside it are followed.
    key : str
        A checked path in a directory that exists.
    value : Buffer
    create : bool
        Whether the file must not exist; atomic also between processes.
    sync : bool
        Whether the bytes reach the disk before this returns.

    Returns
    -------
    os.stat_result or None
        Status of the written file; None if it exists and must not.

    Raises
    ------
    FileNotFoundError
        If the directory has been removed.
    OSError
        From the system; the file then holds any part of the value.
    StoreIOError
        If the file cannot be opened, or is not a regular file.
    """
    opened = open_regular(root, key, CREATE_FLAGS if create else OVERWRITE_FLAGS)
    if isinstance(opened, int):
        if opened == -errno.EEXIST and create:
            return None
        if opened == -errno.ENOENT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)
        raise io_error(-opened, "open", key)
    fd = opened[0]
    try:
        os.ftruncate(fd, 0)
        write_all(fd, (value,))
        now = time.time_ns()
        # As for temporary files; but this one may be another user's, or the file system may not be
        # able to, and its own time has to do.
        with contextlib.suppress(OSError):
            os.utime(fd, ns=(now, now))
        if sync:
            os.fsync(fd)
        return os.fstat(fd)
    finally:
        os.close(fd)
