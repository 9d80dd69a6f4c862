"""Reads of files straight into device memory: their conditions, and the reads of a batch.

The bytes lie at the end of a staging buffer. A view of its pinned memory stands for them, whose
bytes only the device has, until the host asks for them. Checksums that a
kvstore knows of such values are kept for whoever uses them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.device.open_files import Handle, OpenFiles
from gpustore.backends.device.staging_buffer import StagingBuffer
from gpustore.device.protocol import Device, FileRead
from gpustore.errors import DeviceError, GpustoreError
from gpustore.runtime.statistics import STATISTICS

LEAST_NBYTES: Final = MappingProxyType({"read": 64 << 10, "file": 256 << 10})
"""Shorter reads, and reads of shorter files, go through host memory: not measured. kvikio itself
reads less than 16 KiB through host memory."""

_PAGES_NBYTES = 2 * 4096
"""Most bytes that rounding to pages of 4096 bytes adds to a read."""


def direct_unsupported_reason(
    *,
    needs_bytes: bool = False,
    nbytes: int | None = None,
    file_nbytes: int | None = None,
    is_direct: bool = True,
) -> str | None:
    """Return why a value is read through host memory, None if it goes straight to the device.

    Properties that are not given or not known yet count as no obstacle.

    Parameters
    ----------
    needs_bytes : bool
        Whether the host must see the encoded bytes
        (:attr:`gpustore.codec_chain.chain.CodecChain.needs_bytes`).
    nbytes, file_nbytes : int
        Bytes of the part of the file that is read, and of the file.
    is_direct : bool
        Attribute ``is_direct`` of :class:`~gpustore.device.protocol.DeviceFile`.

    >>> direct_unsupported_reason(nbytes=1 << 20, file_nbytes=1 << 30)
    >>> direct_unsupported_reason(is_direct=False)
    'files cannot be read straight into device memory here'
    """
    if needs_bytes:
        return "the host looks at the encoded bytes"
    for what, found in (("read", nbytes), ("file", file_nbytes)):
        if found is not None and found < LEAST_NBYTES[what]:
            return f"a {what} of less than {LEAST_NBYTES[what]} bytes"
    return None if is_direct else "files cannot be read straight into device memory here"


def pages_nbytes(count: int, nbytes: int) -> int:
    """Return the bytes that rounding to pages adds to `count` values of `nbytes` together.

    >>> pages_nbytes(3, 2 << 20), pages_nbytes(3, 1000)
    (32768, 0)
    """
    reads = min(count, nbytes // LEAST_NBYTES["read"])
    return (reads + 1) * _PAGES_NBYTES if reads else 0


def count_unavailable(nbytes: NDArray[np.int64], file_nbytes: NDArray[np.uint64]) -> None:
    """Count reads that went through host memory and are long enough to go to the device."""
    is_long = (nbytes >= LEAST_NBYTES["read"]) & (file_nbytes >= LEAST_NBYTES["file"])
    STATISTICS.add(direct_unavailable=int(is_long.sum()))


@dataclass(frozen=True, slots=True)
class Expected:
    """Checksum of a value whose bytes are on the device only.

    Attributes
    ----------
    start, nbytes : int
        Place of the value, in bytes of the staging buffer.
    crc32 : int
        Expected CRC-32 of the value.
    error : callable
        Makes the error from another, computed CRC-32.
    """

    start: int
    nbytes: int
    crc32: int
    error: Callable[[int], GpustoreError]


class _Read:
    """A read of a file into device memory that must bring at least `wanted` bytes."""

    __slots__ = ("_files", "_handle", "_read", "_wanted", "is_done", "nbytes", "row", "succeeded")

    def __init__(
        self, files: OpenFiles, handle: Handle, read: FileRead, wanted: int, row: int, nbytes: int
    ) -> None:
        self.row = row
        self.nbytes = nbytes
        self.is_done = self.succeeded = False
        self._files = files
        self._handle = handle
        self._read = read
        self._wanted = wanted

    def wait(self) -> None:
        """Wait for the end of the read, and give its handle back."""
        if self.is_done:
            return
        self.is_done = failed = True
        try:
            with suppress(OSError):  # The host reads the range again, and raises what is wrong.
                enough = self._read.result() >= self._wanted
                failed = False
                self.succeeded = enough and self._handle.is_unchanged()
        finally:
            self._files.put(self._handle, failed=failed)


class DirectReads:
    """Reads of files into the end of a staging buffer, for one batch.

    See :class:`gpustore.kvstores.direct_reads.DirectReads`.

    Parameters
    ----------
    device : Device
    files : OpenFiles
    buffer : StagingBuffer

    Attributes
    ----------
    expected : list of Expected
        Values that have not been compared with their checksums.
    """

    __slots__ = ("_buffer", "_device", "_files", "_reads", "expected")

    def __init__(self, device: Device, files: OpenFiles, buffer: StagingBuffer) -> None:
        self._device = device
        self._files = files
        self._buffer = buffer
        self._reads: list[_Read] = []
        self.expected: list[Expected] = []

    def may_read(self, file_system: Callable[[], int | None]) -> bool:
        return self._files.may_be_direct(file_system)

    def count_others(self, nbytes: NDArray[np.int64], file_nbytes: NDArray[np.uint64]) -> None:
        count_unavailable(nbytes, file_nbytes)

    def begin(
        self, row: int, fd: int, status: os.stat_result, start: int, nbytes: int
    ) -> memoryview | None:
        buffer, files = self._buffer, self._files
        if not buffer.nbytes:
            return None
        if direct_unsupported_reason(nbytes=nbytes, file_nbytes=status.st_size) is not None:
            return None
        handle = files.take(fd, status, self._wait)
        if handle is None:
            return None
        page = handle.file.alignment
        low = start // page * page
        length = -(-(start + nbytes - low) // page) * page
        place = buffer.reserve_end(length, page)
        if place is None:
            files.put(handle)
            STATISTICS.add(direct_fallbacks=1)
            return None
        try:
            buffer.settle()
            read = self._device.read_file(handle.file, low, length, buffer.address(place))
        except BaseException:
            files.put(handle)
            raise
        self._reads.append(_Read(files, handle, read, start - low + nbytes, row, nbytes))
        return buffer.view(place + start - low, nbytes)

    def end(self) -> list[int]:
        self._wait()
        reads, self._reads = self._reads, []
        failed = [one.row for one in reads if not one.succeeded]
        if reads:
            STATISTICS.add(
                direct_reads=len(reads) - len(failed),
                direct_fallbacks=len(failed),
                bytes_direct=sum(one.nbytes for one in reads if one.succeeded),
            )
        return failed

    def _wait(self) -> None:
        """Wait for all reads that have begun."""
        lost: DeviceError | None = None
        for one in self._reads:
            try:
                one.wait()
            except DeviceError as error:
                lost = error  # All of them must have ended before the buffer is used again.
        if lost is not None:
            self._reads.clear()
            raise lost

    def holds(self, value: memoryview) -> bool:
        return self._buffer.is_at_end(value)

    def expect(self, value: memoryview, crc32: int, error: Callable[[int], GpustoreError]) -> None:
        start = self._buffer.start_of(value)
        if start is not None:  # Values that a device has read lie in the buffer.
            self.expected.append(Expected(start, len(value), crc32, error))

    def damaged(self) -> list[tuple[Expected, int]]:
        """Return the values with a wrong checksum, and the one computed.

        Their bytes have come to the host (:meth:`StagingBuffer.download_end`).
        """
        expected, self.expected = self.expected, []
        found = [(one, crc32(self._buffer.view(one.start, one.nbytes))) for one in expected]
        return [(one, crc) for one, crc in found if crc != one.crc32]
