"""Reads by the native core, shared by any number of threads.

The rows of a plan are written down table by table; each thread works on the current table until its
rows are taken, and one of them makes the next. The thread that is last with a table counts what was
done, and reads in Python what the core has left alone. If that fails, tables before it are read to
their end, and the last thread raises the error of the first table that failed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from gpustore.backends.host.memory import HostMemory
from gpustore.backends.native.array import NativeArray
from gpustore.backends.native.job import AGAIN, ENDED, Counts, Job
from gpustore.kvstores.base import KeyDirectory
from gpustore.planning.row_table import RowTable
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.frames import without_locals
from gpustore.runtime.statistics import STATISTICS, begin_amount

Strides = tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]

_Counted = tuple[Job, Callable[[Callable[[], object]], None]]
"""A job, and the function that ends its part of a counter (:func:`begin_amount`)."""


class NativeRead:
    """Read of all rows of some tables.

    Parameters
    ----------
    array : NativeArray
    tables : iterator of RowTable
    strides : (src_strides, dst_strides)
        Bytes between neighbours, as in :meth:`~gpustore.backends.native.job.Job.of`.
    out : sequence of HostMemory
        Arrays that are filled.
    directory : callable
        Opens the directory of the keys.
    threads : int
        Number of threads that will call :meth:`work`.
    read_left : callable
        Reads rows of a table that the core has left alone, and raises their errors.
    """

    def __init__(
        self,
        array: NativeArray,
        tables: Iterator[RowTable],
        strides: Strides,
        out: Sequence[HostMemory],
        directory: Callable[[], KeyDirectory],
        threads: int,
        read_left: Callable[[RowTable, Sequence[int]], None],
    ) -> None:
        self._array = array
        self._tables = tables
        self._strides = strides
        self._out = out
        self._open_directory = directory
        self._directory: KeyDirectory | None = None
        self._threads = threads
        self._read_left = read_left
        self._lock = threading.Lock()
        self._job: _Counted | None = None
        self._number = 0  # of the job, from 1 on
        self._failed = sys.maxsize  # number of the first job that has failed
        self._error: Exception | None = None
        self._working = 0

    def work(self) -> None:
        """Read rows until all are taken."""
        with self._lock:
            self._working += 1
        error = None
        try:
            self._read(CancelToken.current())
        finally:
            with self._lock:
                self._working -= 1
                if not self._working:
                    error, self._error = self._error, None
        if error is not None:
            raise error

    def _read(self, wanted: CancelToken) -> None:
        number, one = self._after(0)
        while one is not None:
            job, end = one
            while (progress := job.read(wanted)) == AGAIN and number < self._failed:
                wanted.check()
            wanted.check()
            if number > self._failed:
                return
            if progress == ENDED:
                self._finish(number, job, end)
            number, one = self._after(number)

    def _after(self, number: int) -> tuple[int, _Counted | None]:
        """Return the job after that of `number`, which has no rows left to take.

        None after the last one, or if one has failed.
        """
        with self._lock:
            has_failed = self._failed < sys.maxsize
            if self._number == number and not has_failed:
                table = next(self._tables, None)
                self._job = None if table is None else self._made(table)
                self._number += 1
            return self._number, None if has_failed else self._job

    def _made(self, table: RowTable) -> _Counted:
        if self._directory is None:
            self._directory = self._open_directory()
        job = Job.of(self._array, table, *self._strides, self._out, self._directory, self._threads)
        return job, begin_amount("bytes_decoded", job.decoded)

    def _finish(self, number: int, job: Job, end: Callable[[Callable[[], object]], None]) -> None:
        """Count what was done, and read what was left."""
        counts = job.counts()
        end(partial(count, counts))
        try:
            job.note()
            if counts.left:
                self._read_left(job.table, job.left())
        except Exception as error:
            without_locals(error)
            with self._lock:
                if number < self._failed:
                    self._failed, self._error = number, error


def count(counts: Counts, **planned: int) -> None:
    """Count what the core has done, and what was `planned`."""
    reads, fetched, decoded, missing, _ = counts
    if missing:
        planned["chunks_missing"] = missing
    STATISTICS.add(key_reads=reads, bytes_fetched=fetched, bytes_decoded=decoded, **planned)
