"""Reads past the page cache (``O_DIRECT``), where the file system supports them.

Offset, length and address of such a read must be multiples of the block size, so whole pages are
read into a buffer of the thread, and the requested bytes are copied from there. Refused reads go
through the page cache, and are counted.

Source: ``open(2)``.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from typing import Final

from gpustore.runtime.statistics import STATISTICS

_O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
# A multiple of the logical block size of nearly all disks; what needs more is EINVAL.
_ALIGNMENT: Final = max(4096, mmap.PAGESIZE)
_BOUNCE_NBYTES: Final = 4 << 20

_thread = threading.local()


def _after_fork() -> None:
    global _thread
    _thread = threading.local()


os.register_at_fork(after_in_child=_after_fork)


def _bounce() -> memoryview:
    """Memory of this thread that begins at a page.

    It is shared with a forked child, which forgets it at once: private memory would be copied on
    write while a disk writes into it, and the bytes could end up in the child's copy.
    """
    try:
        found: memoryview = _thread.bounce
    except AttributeError:
        found = _thread.bounce = memoryview(mmap.mmap(-1, _BOUNCE_NBYTES))
    return found


def start_unbuffered(fd: int) -> bool:
    """Switch an open file to reads past the page cache; return whether that is possible."""
    possible = bool(_O_DIRECT)
    if possible:
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | _O_DIRECT)
        except OSError:
            possible = False
    if possible:
        STATISTICS.add(unbuffered_reads=1)
    else:
        STATISTICS.add(unbuffered_fallbacks=1)
    return possible


def read_unbuffered(fd: int, out: memoryview, offset: int) -> int:
    """Read a part of a file that :func:`start_unbuffered` has prepared.

    Parameters
    ----------
    fd : int
    out : memoryview
        Memory for the bytes, with any address and length.
    offset : int
        First byte in the file, at any offset.

    Returns
    -------
    int
        Number of bytes of `out` that were filled; 0 at the end of the file.
    """
    bounce = _bounce()
    skip = offset % _ALIGNMENT
    whole = -(-(skip + len(out)) // _ALIGNMENT) * _ALIGNMENT
    try:
        # At the end of the file fewer bytes come back than a whole block.
        count = os.preadv(fd, [bounce[:whole]], offset - skip) - skip
    except OSError as error:
        if error.errno != errno.EINVAL or not fcntl.fcntl(fd, fcntl.F_GETFL) & _O_DIRECT:
            raise
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~_O_DIRECT)
        STATISTICS.add(unbuffered_fallbacks=1)
        return read_unbuffered(fd, out, offset)
    count = max(0, min(count, len(out)))
    out[:count] = bounce[skip : skip + count]
    return count
