"""Encoded values of files, fetched by the native core into one piece of memory."""

from __future__ import annotations

import ctypes
import threading
from array import array as numbers
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.native.array import NativeArray
from gpustore.backends.native.headers import Frames, StagedHeaders
from gpustore.backends.native.job import AGAIN, Counts, Job, address_of
from gpustore.backends.native.library import library
from gpustore.device.headers import KnownHeaders
from gpustore.kvstores.base import KeyDirectory
from gpustore.planning.row_table import RowTable
from gpustore.runtime.cancel_token import CancelToken

ALIGNMENT: Final = 64
"""Multiple of bytes at which each value begins."""


@dataclass(frozen=True, slots=True)
class FetchedFiles:
    """Columns of values that were fetched, one entry a row.

    Attributes
    ----------
    at, nbytes : int64 array
        First byte of the value in the memory, and its length; meaningless where there is none.
    generation : uint64 array of shape (rows, 4)
        Device, inode, time of modification in nanoseconds and size of each file.
    status : memoryview of uint8
        ``DONE``, ``MISSING``, or ``NOT_DONE`` and above for values that the core has left alone,
        because there was no room or any doubt.
    counts : Counts
        Work of the core.
    known : KnownHeaders, optional
        Headers of the values, as far as they are right.
    """

    at: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    generation: NDArray[np.uint64]
    status: memoryview
    counts: Counts
    known: KnownHeaders | None = None

    def generations(self, make: Callable[[int, int, int, int], bytes]) -> NDArray[np.object_]:
        """Return the generation of each file, made by `make` of its numbers."""
        times = self.generation[:, 2].view(np.int64).tolist()
        columns = (self.generation[:, k].tolist() for k in (0, 1, 3))
        device, inode, size = columns
        found = np.empty(len(times), object)
        found[:] = list(map(make, device, inode, times, size))
        return found


@cache
def _core() -> Any:
    core = library()
    if core is not None:
        core.gpustore_core_take.argtypes = (ctypes.c_void_p, *(ctypes.c_int64,) * 3)
        core.gpustore_core_take.restype = ctypes.c_int64
    return core


class SharedMemory:
    """Host memory that any number of threads fill, of Python and of the native core.

    Parameters
    ----------
    data : ndarray of uint8
        The memory.
    alignment : int
        Multiple of bytes at which each value begins.

    Attributes
    ----------
    data, alignment
        Parameters.
    begin : int
        Address of the memory.
    """

    __slots__ = ("_lock", "_used", "alignment", "begin", "data")

    def __init__(self, data: NDArray[np.uint8], alignment: int) -> None:
        self.data = data
        self.begin = address_of(data)
        self.alignment = alignment
        self._used = numbers("q", (0,))
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Number of bytes taken from the start; set only while no other thread takes any."""
        return self._used[0]

    @used.setter
    def used(self, nbytes: int) -> None:
        self._used[0] = nbytes

    @property
    def address(self) -> int:
        """Address of :attr:`used`, for the native core."""
        return self._used.buffer_info()[0]

    def take(self, nbytes: int, limit: int) -> int | None:
        """Take bytes before byte `limit`; return their start, or None if too few are left."""
        core = _core()
        if core is not None:
            start: int = core.gpustore_core_take(self.address, nbytes, self.alignment, limit)
            return None if start < 0 else start
        with self._lock:
            start = self._used[0]
            if nbytes > limit - start:
                return None
            self._used[0] = start + -(-nbytes // self.alignment) * self.alignment
            return start


def fetch_files(
    array: NativeArray,
    table: RowTable,
    memory: SharedMemory,
    limit: int,
    directory: KeyDirectory,
    frames: Frames | None = None,
) -> FetchedFiles:
    """Fetch the whole values of all rows of a table, in files of their own or in shards.

    Parameters
    ----------
    array : NativeArray
        Made by :func:`~gpustore.backends.native.array.native_files`.
    table : RowTable
        Its regions are not looked at.
    memory : SharedMemory
        Memory for the values.
    limit : int
        Number of its bytes that values may take, from the start.
    directory : KeyDirectory
        Directory of the keys.
    frames : Frames, optional
        Frames that the values are, whose headers are read while they are in the caches of the
        processor.

    Raises
    ------
    Cancelled
        If the work of this thread is no longer wanted.
    ConflictError
        If a file has changed since it was read before, where generations are noted.
    """
    rows = table.rows
    found = np.zeros(6 * rows, np.int64)
    first = address_of(found)
    columns = first, first + 8 * rows
    headers = None if frames is None else StagedHeaders(frames, rows)
    words = (0, 0, 0) if headers is None else headers.words
    staging = numbers(
        "q", (memory.begin, limit, memory.alignment, *columns, memory.address, *words)
    )
    generation = found[2 * rows : 6 * rows].view(np.uint64).reshape(rows, 4)
    job = Job.of(array, table, (), (), (), directory, 1, staging, generation=generation)
    wanted = CancelToken.current()
    while job.read(wanted) == AGAIN:
        wanted.check()
    job.note()
    at, nbytes = found[:rows], found[rows : 2 * rows]
    known = None if headers is None else headers.found
    return FetchedFiles(at, nbytes, generation, job.statuses(), job.counts(), known)
