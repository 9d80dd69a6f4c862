"""Writes of the rows of one window by the native core."""

from __future__ import annotations

import ctypes
import os
from array import array as numbers
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

from gpustore.backends.host.memory import HostMemory
from gpustore.backends.native.encoding import NativeEncoding
from gpustore.backends.native.library import library
from gpustore.planning.window import PlanWindow

UNTOUCHED: Final = 0
DONE: Final = 1
MISSING: Final = 2
"""Status of a row: not decided yet, written, and equal to the fill value."""

_SLICE_NS: Final = 80_000_000
"""Nanoseconds after which the thread hears Ctrl-C: enough for files to share an fsync."""

_NEXT: Final = -3  # next, end and stored are the last members


@cache
def _core() -> Any:
    core = library()
    assert core is not None
    for function in (core.gpustore_core_find_fill, core.gpustore_core_write):
        function.argtypes = (ctypes.c_void_p, ctypes.c_int64)
        function.restype = ctypes.c_int64
    return core


class WriteJob:
    """Struct ``WriteJob`` of ``kernels/host/write_job.h``, and the memory it refers to.

    For one thread, which calls both methods until they return False: they return after a slice of
    time, so that it hears Ctrl-C.

    Parameters
    ----------
    encoding : NativeEncoding
    rows : PlanWindow
        Rows without index arrays, each of another key.
    source : HostMemory
        The array that is written.
    syncs : bool
        Whether the bytes of a file must reach the disk before it gets its name.

    Attributes
    ----------
    status : bytearray
        Of each row: ``UNTOUCHED``, ``DONE``, ``MISSING``, or another number if Python must write.
    directory : array of int
        Descriptor of each row's directory, to be set before :meth:`write`.
    """

    __slots__ = ("_kept", "_struct", "directory", "status")

    def __init__(
        self, encoding: NativeEncoding, rows: PlanWindow, source: HostMemory, *, syncs: bool
    ) -> None:
        n, rank = len(rows), len(rows.count)
        columns = np.array((rows.src_start, rows.dst_start, *rows.count), np.int64)
        names = [os.fsencode(key[key.rfind("/") + 1 :]) + b"\0" for key in rows.keys]
        blob = b"".join(names)
        ends = np.cumsum([0, *map(len, names)], dtype=np.int64)
        strides = np.array((*rows.src_stride, *rows.dst_stride), np.int64)
        self.status = bytearray(n)
        self.directory = np.full(n, -1, np.int64)
        status = np.frombuffer(self.status, np.uint8)
        text = np.frombuffer(blob, np.uint8)
        address = source.flat.ctypes.data
        at, stride_at = columns.ctypes.data, strides.ctypes.data
        self._struct = numbers(
            "q",
            (
                *(encoding.address, address, source.offset, source.flat.size),
                *(n, rank, at, at + 8 * n, at + 16 * n, stride_at, stride_at + 8 * rank),
                *(self.directory.ctypes.data, ends.ctypes.data, text.ctypes.data),
                *(syncs, status.ctypes.data, 0, n, 0),
            ),
        )
        self._kept = (encoding, columns, ends, strides, text, status, source)

    def find_fill(self) -> bool:
        """Find rows that equal the fill value; return whether some have not been looked at."""
        return self._call(_core().gpustore_core_find_fill)

    def write(self) -> bool:
        """Write rows that are ``UNTOUCHED``; return whether some have not been looked at."""
        return self._call(_core().gpustore_core_write)

    def take(self, begin: int, end: int) -> None:
        """Set the rows that the methods work on."""
        self._struct[_NEXT], self._struct[_NEXT + 1] = begin, end

    @property
    def stored(self) -> int:
        """Bytes of the files written."""
        return self._struct[-1]

    def _call(self, function: Callable[[int, int], int]) -> bool:
        return bool(function(self._struct.buffer_info()[0], _SLICE_NS))
