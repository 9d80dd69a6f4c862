"""Encoded values of files, fetched by the native core into one piece of memory."""

from __future__ import annotations

from array import array as numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.native.array import NativeArray
from gpustore.backends.native.job import AGAIN, Counts, Job
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
    """

    at: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    generation: NDArray[np.uint64]
    status: memoryview
    counts: Counts


def fetch_files(
    array: NativeArray,
    cells: Sequence[Any],
    memory: memoryview,
    directory: KeyDirectory,
) -> FetchedFiles:
    """Fetch the whole values of chunks, each a file of its own.

    Parameters
    ----------
    array : NativeArray
        Made by :func:`~gpustore.backends.native.array.native_files`.
    cells : sequence of columns, one an array dimension
        Grid index of each chunk.
    memory : memoryview
        Writable host memory, 1-D uint8, for the values.
    directory : KeyDirectory
        Directory of the keys.

    Raises
    ------
    CancelledError
        If the work of this thread is no longer wanted.
    """
    rows = len(cells[0])
    words = numbers("q", range(rows + 1))
    for column in cells:
        words.extend(column.tolist() if isinstance(column, np.ndarray) else column)
    table = RowTable(words, units=rows, rows=rows, regions=0, rank=len(cells), input_rank=0)
    at, nbytes = np.zeros((2, rows), np.int64)
    generation = np.zeros((rows, 4), np.uint64)
    flat: NDArray[Any] = np.frombuffer(memory, np.uint8)
    columns = [one.__array_interface__["data"][0] for one in (flat, at, nbytes, generation)]
    staging = numbers("q", (columns[0], len(memory), ALIGNMENT, *columns[1:], 0))
    job = Job.of(array, table, [()], [()], [], directory, 1, staging)
    wanted = CancelToken.current()
    while job.read(wanted) == AGAIN:
        wanted.check()
    return FetchedFiles(at, nbytes, generation, job.statuses(), job.counts())
