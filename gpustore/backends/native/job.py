"""Reads of the rows of one window by the native core."""

from __future__ import annotations

import ctypes
import itertools
from array import array as numbers
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.native.library import library
from gpustore.kvstores.base import KeyDirectory
from gpustore.planning.row_table import RowTable
from gpustore.runtime.cancel_token import CancelToken

if TYPE_CHECKING:
    from gpustore.backends.host.memory import HostMemory
    from gpustore.backends.native.array import NativeArray

SLICE_NS: Final = 20_000_000
"""Nanoseconds after which a thread looks whether its work is still wanted, and hears Ctrl-C."""

TAKEN: Final = 0
AGAIN: Final = 1
ENDED: Final = 2
"""Results of :meth:`Job.read`."""

DONE: Final = 1
MISSING: Final = 2
NOT_DONE: Final = 3
NO_ROOM: Final = 4
"""Statuses of rows; those from ``NOT_DONE`` on are left to Python."""

_AT_FIRST: Final = (0,) * 6  # next, finished, and those of Counts but the decoded bytes


_address: Final = ctypes.addressof
_byte_of: Final[Any] = ctypes.c_char.from_buffer


class Counts(NamedTuple):
    """Work of the core on one job: reads of keys, encoded and decoded bytes, and rows."""

    reads: int
    fetched: int
    decoded: int
    missing: int
    left: int


NO_COUNTS: Final = Counts(0, 0, 0, 0, 0)


def address_of(column: NDArray[Any]) -> int:
    """Return the address of the first byte of an array."""
    try:  # A third of the time of the other way, and small reads ask often.
        return _address(_byte_of(column))
    except (TypeError, ValueError):  # Read-only, without elements, or with gaps.
        address: int = column.__array_interface__["data"][0]
        return address


@cache
def _core() -> Any:
    core = library()
    assert core is not None
    core.gpustore_core_read.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    core.gpustore_core_read.restype = ctypes.c_int64
    return core


@dataclass(slots=True)
class Job:
    """Struct ``Job`` of ``kernels/host/job.h``, and the memory it refers to.

    Attributes
    ----------
    table : RowTable
        Rows that are read.
    generation : uint64 array of shape (rows, 4), optional
        Device, inode, time of modification in nanoseconds and size of the file of each row.
    """

    table: RowTable
    generation: NDArray[np.uint64] | None
    _struct: numbers[int]
    _address: int
    _small: numbers[int]
    _status: int
    _directory: KeyDirectory | None
    _kept: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        array: NativeArray,
        table: RowTable,
        src_strides: Sequence[Sequence[int]],
        dst_strides: Sequence[Sequence[int]],
        out: Sequence[HostMemory],
        directory: KeyDirectory | None,
        threads: int,
        staging: numbers[int] | None = None,
        values: tuple[numbers[int], numbers[int]] | None = None,
        generation: NDArray[np.uint64] | None = None,
    ) -> Job:
        """Make the job for the rows of `table`.

        Parameters
        ----------
        src_strides, dst_strides : sequence of sequence of int
            For each array that is filled, the bytes between neighbours in a decoded chunk and in
            the array, along each input dimension.
        out : sequence of HostMemory
            Arrays that are filled.
        directory : KeyDirectory or None
            Open until the job is over; None if no files are read.
        threads : int
            Number of threads that will take part.
        staging : array of int64, optional
            Struct ``Staging``, if values are fetched and neither decoded nor placed.
        values : (addresses, sizes), optional
            Encoded values in host memory, address 0 for missing ones, if no files are read.
        generation : uint64 array of shape (rows, 4), optional
            Attribute that is filled; by default a new one if `directory` notes generations.
        """
        if generation is None and directory is not None and directory.note is not None:
            generation = np.zeros((table.rows, 4), np.uint64)
        at = table.address
        cells, first, src, dst, count, target = [at + 8 * offset for offset in table.offsets()]
        small = numbers("q", itertools.chain(*src_strides, *dst_strides))
        rank = table.input_rank
        dst_stride = 8 * rank * len(src_strides)
        targets = 8 * len(small)
        for memory in out:
            flat = memory.flat
            small.extend((address_of(flat), memory.offset, flat.size))
        points = 8 * len(small)
        for one in table.points:
            columns = (one.begin, one.end, one.src, one.dst)
            small.extend(address_of(column) for column in columns)
        prefix = 8 * len(small)
        key_prefix = b"" if directory is None else directory.prefix
        small.frombytes(key_prefix + bytes(8 - len(key_prefix) % 8))
        status = 8 * len(small)
        small.frombytes(bytes(table.rows + -table.rows % 8))
        small.append(0)
        here = small.buffer_info()[0]
        struct = numbers(
            "q",
            (
                array.address,
                *((-1, 0) if directory is None else (directory.descriptor, directory.resolve)),
                *(here + prefix, 0 if table.prefixes is None else address_of(table.prefixes)),
                *(table.units, at, table.rows, cells, first if table.has_first else 0),
                *(table.regions, rank, src, dst, count, target if table.has_target else 0),
                *(here, here + dst_stride, here + targets),
                *(len(table.points), here + points, threads),
                staging.buffer_info()[0] if staging else 0,
                *((values[0].buffer_info()[0], values[1].buffer_info()[0]) if values else (0, 0)),
                0 if generation is None else address_of(generation),
                *(here + status, here + 8 * (len(small) - 1)),
                *_AT_FIRST,
            ),
        )
        return cls(
            table,
            generation,
            struct,
            struct.buffer_info()[0],
            small,
            status // 8,
            directory,
            (array, out, staging, values),
        )

    def read(self, wanted: CancelToken) -> int:
        """Read rows until none is left or a slice of time is over; any number of threads may.

        Parameters
        ----------
        wanted : CancelToken
            Of the task that this thread runs; it is to be checked if the result is :data:`AGAIN`.

        Returns
        -------
        int
            :data:`AGAIN` if time was over first or the work is not wanted, :data:`TAKEN` if no rows
            are left to take, and :data:`ENDED` to the one caller who has read the last rows: no
            thread reads any more.
        """
        progress: int = _core().gpustore_core_read(self._address, SLICE_NS, wanted.address)
        return progress

    def counts(self) -> Counts:
        """Return what was done, once the job is over."""
        reads, fetched, missing, left = self._struct[-4:]
        return Counts(reads, fetched, self.decoded(), missing, left)

    def decoded(self) -> int:
        """Return the decoded bytes so far; any thread may look."""
        return self._small[-1]

    def statuses(self) -> memoryview:
        """Return the status of each row, once the job is over."""
        return memoryview(self._small)[self._status :].cast("B")[: self.table.rows]

    def note(self) -> None:
        """Note the generations of the files, once the job is over, if the directory wants them.

        Raises
        ------
        ConflictError
            If a file has changed since it was read before.
        """
        if self._directory is not None and self._directory.note is not None:
            cells = self.table.columns().cells
            statuses = np.frombuffer(self.statuses(), np.uint8)
            self._directory.note(cells, self.generation, statuses)

    def left(self) -> list[int]:
        """Return the rows that Python must read, once the job is over."""
        return [row for row, one in enumerate(self.statuses()) if one >= NOT_DONE]
