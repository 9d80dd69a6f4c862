"""The archive of a zip kvstore: its directory, and the places of members in it.

The directory is read once and belongs to one generation of the archive. Every later read of the
archive is conditional on that generation. A directory may therefore be used without asking whether
it is current: the next read shows it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Final

from gpustore.errors import ConflictError, GpustoreError, StoreIOError, UnsupportedError
from gpustore.kvstores.base import Base
from gpustore.kvstores.columns import ReadRequest, ReadState
from gpustore.kvstores.zip.directory import EMPTY, Directory, read_directory
from gpustore.kvstores.zip.end import TAIL_NBYTES
from gpustore.kvstores.zip.member import LOCAL_HEADER, read_local_header
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.executor import reset_after_fork

if TYPE_CHECKING:
    from gpustore.runtime.limits import Limits


# How often the directory is read anew because the archive was replaced meanwhile.
_ATTEMPTS: Final = 20

# Encoded members up to this size are read together with their local headers, the first time.
_SMALL_NBYTES: Final = 64 << 10

# The extra fields of a local header may be this much longer than those of the directory, and the
# data of a small member still come along.
_LOCAL_EXTRA_NBYTES: Final = 64


class Changed(Exception):
    """Error: the archive is no longer the one whose directory was read."""


class Archive:
    """An archive that may be replaced at any time; any number of threads may use it.

    Parameters
    ----------
    base : Base
        Key of the base that holds the archive.
    limits : Limits
    last : bool
        Whether the last of several members with one name counts; otherwise they are an error.
    """

    def __init__(self, base: Base, *, limits: Limits, last: bool) -> None:
        self._base = base
        self._limits = limits
        self.last = last
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Reset the state: a thread of the parent may have been changing it."""
        self._lock = threading.Lock()
        self._known: tuple[Directory, float] | None = None

    @property
    def where(self) -> str:
        """Name of the archive for messages."""
        return self._base.driver.describe(self._base.path)

    @property
    def is_local(self) -> bool:
        """Whether a request to the base has next to no cost."""
        return self._base.driver.is_local

    def recent(self, bound: float | None) -> tuple[Directory, bool]:
        """Return a directory, and whether it was current at `bound` or later; None means now.

        The caller checks a possibly outdated directory by reading a part of the archive, or calls
        :meth:`current`.
        """
        known = self._known
        if known is None or not known[0].generation:
            return self.current(), True
        return known[0], bound is not None and known[1] >= bound

    def current(self) -> Directory:
        """Return the current directory.

        Raises
        ------
        CorruptChunkError, LimitError, UnsupportedError, StoreIOError
            If the archive cannot be read.
        ConflictError
            If the archive is replaced during every attempt to read its directory.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    directory, began = self._look()
                except Changed:
                    continue
                self._known = directory, began
                return directory
        raise ConflictError(
            f"Error reading {self.where}: it was replaced {_ATTEMPTS} times while its directory "
            f"was being read; retry when its writer is done",
            key=self._base.path,
        )

    def remember(self, directory: Directory, began: float) -> None:
        """Store a directory that was current at some time after `began`."""
        with self._lock:
            if self._known is None or self._known[1] <= began:
                self._known = directory, began

    def _look(self) -> tuple[Directory, float]:
        began = time.time()
        columns = self._base.driver.read_many(ReadRequest([self._base.path], start=[0], stop=[0]))
        columns.raise_first()
        generation = columns.generation[0]
        if columns.state[0] is not ReadState.VALUE:
            return EMPTY, began
        if self._known is not None and generation and self._known[0].generation == generation:
            return self._known[0], began
        nbytes = columns.total[0]
        if nbytes < 0:
            raise UnsupportedError(
                f"Error reading {self.where}: a zip archive is read from its end, but the size of "
                f"this one is not known",
                key=self._base.path,
            )
        # The end is looked at in several places, and often the directory is there, too.
        first = max(0, nbytes - TAIL_NBYTES)
        tail = bytes(self.read([(first, nbytes)], generation)[0])

        def read(start: int, stop: int) -> bytes:
            if start >= first:
                return tail[start - first : stop - first]
            return bytes(self.read([(start, stop)], generation)[0])

        directory = read_directory(
            read,
            nbytes,
            generation,
            limits=self._limits,
            where=self.where,
            key=self._base.path,
            last=self.last,
        )
        return directory, began

    def read(self, ranges: Sequence[tuple[int, int]], generation: bytes) -> list[Buffer]:
        """Read byte ranges of the archive.

        Raises
        ------
        Changed
            If the archive has another generation.
        StoreIOError
            If the archive cannot be read.
        """
        count = len(ranges)
        columns = self._base.driver.read_many(
            ReadRequest(
                [self._base.path] * count,
                start=[start for start, _ in ranges],
                stop=[stop for _, stop in ranges],
                if_equal=[generation] * count,
            )
        )
        for state in columns.state:
            if state is not ReadState.VALUE and not columns.error:
                raise Changed
        columns.raise_first()
        found: list[Buffer] = []
        for (start, stop), value in zip(ranges, columns.value):
            assert value is not None
            self.check_received(value, start, stop)
            found.append(value)
        return found

    def check_received(self, value: Buffer, start: int, stop: int) -> None:
        """Raise StoreIOError unless a read returned the requested range."""
        if len(value) != stop - start:
            raise StoreIOError(
                f"Error reading {self.where}: received {len(value)} bytes of [{start}, {stop})",
                status="DATA_LOSS",
                key=self._base.path,
            )

    def locate(
        self, directory: Directory, rows: Sequence[int], whole: Container[int] = ()
    ) -> _Located:
        """Find the beginnings of the data of members.

        Parameters
        ----------
        directory : Directory
        rows : sequence of int
            The members.
        whole : container of int
            Members whose data will be read whole; small ones are read at the same time.

        Returns
        -------
        _Located
            Errors of members, and data that were read on the way.

        Raises
        ------
        Changed
        StoreIOError
            If the archive cannot be read.
        """
        located = _Located()
        unknown = [row for row in rows if directory.data_start[row] < 0]
        if not unknown:
            return located
        ranges = []
        for row in unknown:
            offset = int(directory.offset[row])
            stop = offset + LOCAL_HEADER.size + int(directory.record["name_nbytes"][row])
            encoded_nbytes = int(directory.encoded_nbytes[row])
            if encoded_nbytes <= _SMALL_NBYTES and row in whole:
                extra = int(directory.record["extra_nbytes"][row]) + _LOCAL_EXTRA_NBYTES
                stop = min(stop + extra + encoded_nbytes, int(directory.bound[row]))
            ranges.append((offset, stop))
        for row, (offset, stop), head in zip(
            unknown, ranges, self.read(ranges, directory.generation)
        ):
            try:
                start = read_local_header(directory, row, head)
            except GpustoreError as error:
                located.error[row] = error
                continue
            directory.data_start[row] = start
            end = start + int(directory.encoded_nbytes[row])
            if end <= stop:
                located.encoded[row] = memoryview(head)[start - offset : end - offset]
        return located


class _Located:
    """Results of reading local headers, by row.

    Attributes
    ----------
    error : dict of int to GpustoreError
    encoded : dict of int to memoryview
        The data of small members.
    """

    __slots__ = ("encoded", "error")

    def __init__(self) -> None:
        self.error: dict[int, GpustoreError] = {}
        self.encoded: dict[int, memoryview] = {}
