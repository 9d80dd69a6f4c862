"""Interface for reads of files past host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from gpustore.errors import GpustoreError

if TYPE_CHECKING:
    import os

    import numpy as np
    from numpy.typing import NDArray


class DirectReads(Protocol):
    """Reads of parts of files into memory that the host does not see, that of a device.

    A kvstore that opens files begins such reads for the arena of a request
    (:attr:`gpustore.kvstores.arena.Arena.direct`), under its own rules about links and conditions.
    """

    def may_read(self, file_system: Callable[[], int | None]) -> bool:
        """Return whether :meth:`begin` may succeed for files of a file system, as far as is known.

        Parameters
        ----------
        file_system : callable
            Returns the number of the file system, ``st_dev``; None if that is not known.
        """

    def count_others(self, nbytes: NDArray[np.int64], file_nbytes: NDArray[np.uint64]) -> None:
        """Count values that were read elsewhere, because :meth:`may_read` is false.

        Parameters
        ----------
        nbytes, file_nbytes : int array, one entry a value
            Bytes of each value, and of its file.
        """

    def begin(
        self, row: int, fd: int, status: os.stat_result, start: int, nbytes: int
    ) -> memoryview | None:
        """Begin to read a part of an open file, where possible.

        Parameters
        ----------
        row : int
            Name of the read for the caller.
        fd : int
            The file; it may be closed afterwards.
        status : os.stat_result
            Status of `fd`.
        start, nbytes : int
            The part, in bytes; it lies in the file.

        Returns
        -------
        memoryview or None
            Placeholder for the bytes, which the host never has. None means that the caller reads
            them into memory of the arena.
        """

    def end(self) -> Sequence[int]:
        """Wait for all reads that have begun.

        Returns
        -------
        sequence of int
            The rows that failed, which the caller has to read into memory of the arena.
        """

    def holds(self, value: memoryview) -> bool:
        """Return whether the bytes of `value` went past host memory."""

    def expect(self, value: memoryview, crc32: int, error: Callable[[int], GpustoreError]) -> None:
        """Have the user of bytes that went past host memory compare them with a checksum.

        Parameters
        ----------
        value : memoryview
            Value for which :meth:`holds` is true; the kvstore compares all others itself.
        crc32 : int
            CRC-32 that its bytes must have (RFC 1952 8).
        error : callable
            Makes the error from the actual CRC-32.
        """
