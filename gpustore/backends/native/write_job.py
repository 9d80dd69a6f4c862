"""Encodes and writes the rows of one window by the native core."""

from __future__ import annotations

import ctypes
import itertools
import os
from array import array as numbers
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.host.memory import HostMemory
from gpustore.backends.native.encoding import NativeEncoding
from gpustore.backends.native.job import address_of
from gpustore.backends.native.library import library
from gpustore.planning.window import PlanWindow
from gpustore.runtime.cancel_token import CancelToken

UNTOUCHED: Final = 0
DONE: Final = 1
MISSING: Final = 2
"""Status of a row: not decided yet, written, and equal to the fill value."""

_SLICE_NS: Final = 10_000_000
_SYNCED_SLICE_NS: Final = 80_000_000
"""Nanoseconds after which the thread hears Ctrl-C; with fsync enough for files to share one."""

_NEXT: Final = -2  # next and end are the last members


@cache
def _core() -> Any:
    core = library()
    assert core is not None
    names = "find_fill", "write", "encode"
    for function in [getattr(core, f"gpustore_core_{name}") for name in names]:
        function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
        function.restype = ctypes.c_int64
    return core


class WriteJob:
    """Struct ``WriteJob`` of ``kernels/host/write_job.h``, and the memory it refers to.

    For one thread, which calls its methods until they return False: they return after a slice of
    time, so that it hears Ctrl-C, and after the row at hand once `wanted` says that the write was
    cancelled. What is written by then stays.

    Parameters
    ----------
    encoding : NativeEncoding
    rows : PlanWindow
        Rows without index arrays, each of another key.
    source : HostMemory
        The array that is written.
    syncs : bool
        Whether the bytes of a file must reach the disk before it gets its name.
    encoded : uint8 array, optional
        Memory for encoded values, for :meth:`encode`.

    Attributes
    ----------
    status : array of int
        Of each row: ``UNTOUCHED``, ``DONE``, ``MISSING``, or another number if Python must write.
    directory : array of int
        Descriptor of each row's directory, to be set before :meth:`write`.
    stored : array of int
        Bytes of the file or the encoded value of each row that is ``DONE``.
    at : array of int
        First byte of each encoded value in `encoded`.
    """

    __slots__ = ("_kept", "_slice_ns", "_struct", "at", "directory", "status", "stored")

    def __init__(
        self,
        encoding: NativeEncoding,
        rows: PlanWindow,
        source: HostMemory,
        *,
        syncs: bool = False,
        encoded: NDArray[np.uint8] | None = None,
    ) -> None:
        n, rank = len(rows), len(rows.count)
        self._slice_ns = _SYNCED_SLICE_NS if syncs else _SLICE_NS
        words = numbers("q", (*rows.src_stride, *rows.dst_stride))
        for column in (rows.src_start, rows.dst_start, *rows.count):
            if isinstance(column, np.ndarray):
                words.frombytes(column.astype(np.int64).tobytes())
            else:
                words.extend(column)
        names: list[Any] = [key[key.rfind("/") + 1 :] for key in rows.keys]
        text = os.fsencode("\0".join(names)) + b"\0"
        if not text.isascii():
            names = [os.fsencode(name) for name in names]
        words.extend(itertools.accumulate([len(name) + 1 for name in names[:-1]], initial=0))
        self.status = numbers("B", bytes(n))
        self.directory = numbers("q", (-1,)) * n
        self.stored = numbers("q", (0,)) * n
        self.at = numbers("q", (0,)) * n
        here = words.buffer_info()[0]
        columns = here + 16 * rank
        flat = source.flat
        encoded = np.empty(0, np.uint8) if encoded is None else encoded
        self._struct = numbers(
            "q",
            (
                *(encoding.address, address_of(flat), source.offset, flat.size),
                *(n, rank, columns, columns + 8 * n, columns + 16 * n, here, here + 8 * rank),
                *(self.directory.buffer_info()[0], columns + 8 * n * (2 + rank)),
                *(address_of(np.frombuffer(text, np.uint8)), syncs, self.status.buffer_info()[0]),
                *(self.stored.buffer_info()[0], address_of(encoded), encoded.size),
                *(0, self.at.buffer_info()[0], 0, n),
            ),
        )
        self._kept = (encoding, words, text, source, encoded)

    def find_fill(self, wanted: CancelToken) -> bool:
        """Find rows that equal the fill value; return whether some have not been looked at."""
        return self._call(_core().gpustore_core_find_fill, wanted)

    def write(self, wanted: CancelToken) -> bool:
        """Write rows that are ``UNTOUCHED``; return whether some have not been looked at."""
        return self._call(_core().gpustore_core_write, wanted)

    def encode(self, wanted: CancelToken) -> bool:
        """Encode rows that are ``UNTOUCHED``; return whether some have not been looked at."""
        return self._call(_core().gpustore_core_encode, wanted)

    def take(self, begin: int, end: int) -> None:
        """Set the rows that the methods work on."""
        self._struct[_NEXT], self._struct[_NEXT + 1] = begin, end

    def done(self) -> int:
        """Return the number of rows that are ``DONE``."""
        return self.status.tobytes().count(DONE)

    def _call(self, function: Callable[[int, int, int], int], wanted: CancelToken) -> bool:
        return bool(function(self._struct.buffer_info()[0], self._slice_ns, wanted.address))
