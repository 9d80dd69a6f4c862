"""Regular files of a store: opening with a check of the file type, and generations."""

from __future__ import annotations

import errno
import os
import stat
import struct
from typing import Final

from gpustore.errors import StoreIOError
from gpustore.kvstores.file.root import READ_FLAGS, Root
from gpustore.strict_json.parsing import quote

_pack_generation = struct.Struct("<xQQqQ").pack

# How often a file is opened anew that an NFS server replaced meanwhile.
_ATTEMPTS: Final = 10
_FILE_TYPES: Final = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


def open_regular(root: Root, key: str, flags: int = READ_FLAGS) -> tuple[int, os.stat_result] | int:
    """Open a regular file.

    Parameters
    ----------
    root : Root
        Root that links must not leave.
    key : str
        A checked path.
    flags : int, optional
        Flags of :meth:`Root.open`.

    Returns
    -------
    (int, os.stat_result) or int
        The file descriptor and its status, or a negative errno.

    Raises
    ------
    StoreIOError
        If the file is not a regular file.
    """
    fd = -errno.ESTALE
    for _ in range(_ATTEMPTS):
        fd = root.open(key, flags)
        # ESTALE: an NFS server replaced the file between two steps of the open.
        if fd != -errno.ESTALE:
            break
    if fd < 0:
        return fd
    try:
        status = os.fstat(fd)
    except BaseException:
        os.close(fd)
        raise
    if stat.S_ISREG(status.st_mode):
        return fd, status
    os.close(fd)
    file_type = _FILE_TYPES.get(stat.S_IFMT(status.st_mode), "special file")
    raise StoreIOError(
        f"local file {quote(key)} is not a regular file but a {file_type}",
        status="FAILED_PRECONDITION",
        key=key,
    )


def generation_of(status: os.stat_result) -> bytes:
    """Return the generation of a key whose file has this status."""
    return _pack_generation(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
