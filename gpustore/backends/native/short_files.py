"""Short files, such as metadata documents, read and stored whole by the native core."""

from __future__ import annotations

import ctypes
import threading
from array import array as numbers
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from gpustore.backends.native.job import DONE, NOT_DONE
from gpustore.backends.native.library import library

NBYTES: Final = 16 << 10
"""Length of the longest file that is read, in bytes."""


_USUAL_NBYTES: Final = 2 << 10


class _Memory(threading.local):
    """Memory of one thread."""

    def __init__(self) -> None:
        self.values = bytearray(NBYTES)
        self.columns = numbers("q", (0, 0, 0))
        # Neither is ever resized.
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.values))
        self.columns_address = self.columns.buffer_info()[0]


_memory = _Memory()


@cache
def _core() -> Any:
    core = library()
    if core is None:
        return None
    number, address = ctypes.c_int64, ctypes.c_void_p
    types = (number, ctypes.c_char_p, address, number, address, number)
    core.gpustore_core_read_files.argtypes = types
    core.gpustore_core_read_files.restype = None
    text = ctypes.c_char_p
    core.gpustore_core_store_file.argtypes = (number, text, text, number, text, number)
    core.gpustore_core_store_file.restype = number
    return core


def read_short_file(name: bytes, limit: int) -> bytes | int:
    """Read a file whole; no link is followed.

    Parameters
    ----------
    name : bytes
        Path without NUL.
    limit : int
        Most bytes of the file.

    Returns
    -------
    bytes or int
        The bytes; otherwise ``MISSING`` without a file, or ``NOT_DONE`` if Python must read it: if
        the native core is not in use, the file too long or not plainly right.
    """
    core = _core()
    if core is None:
        return NOT_DONE
    memory = _memory
    nbytes = min(limit, NBYTES)
    core.gpustore_core_read_files(1, name, memory.address, nbytes, memory.columns_address, 1)
    status, _, nbytes = memory.columns
    return bytes(memory.values[:nbytes]) if status == DONE else status


def read_short_files(names: Sequence[bytes], limit: int, threads: int) -> list[bytes | int]:
    """Read files as :func:`read_short_file`, if all are together not much longer than usual.

    A second thread, if allowed, reads half of many.
    """
    core = _core()
    if core is None:
        return [NOT_DONE] * len(names)
    limit = min(limit, NBYTES)
    values = bytearray(limit + len(names) * _USUAL_NBYTES)
    columns = numbers("q", bytes(24 * len(names)))
    address = ctypes.addressof(ctypes.c_char.from_buffer(values))
    # A byte string ends in 0 too.
    text, place = b"\0".join(names), columns.buffer_info()[0]
    core.gpustore_core_read_files(len(names), text, address, len(values), place, threads)
    found: list[bytes | int] = []
    for status, begin, nbytes in zip(columns[::3], columns[1::3], columns[2::3]):
        if status == DONE and nbytes > limit:
            status = NOT_DONE
        found.append(bytes(values[begin : begin + nbytes]) if status == DONE else status)
    return found


def store_short_file(
    directory: int, key: str, value: bytes, replaced: bytes | None, *, syncs: bool
) -> bool:
    """Store a value as a file under the lock of its key, if nobody else has that.

    Parameters
    ----------
    directory : int
        Descriptor of the directory of the key.
    key : str
    value : bytes
    replaced : bytes or None
        Device, inode, time of modification in nanoseconds and size, int64 each, of the file that
        counts as deleted; None if there must be none.
    syncs : bool
        Whether the bytes must reach the disk before the file gets its name.

    Returns
    -------
    bool
        False if nothing was done, and Python must do it.
    """
    core = _core()
    if core is None:
        return False
    name = key.encode("utf-8", "surrogateescape")
    stored = core.gpustore_core_store_file(directory, name, value, len(value), replaced, syncs)
    return bool(stored)
