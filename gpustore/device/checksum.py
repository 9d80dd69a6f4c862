"""Checksums that a device computes: their kernels, and the evaluation of the results.

Source: RFC 1950 8.2 (Adler-32), RFC 1952 8 (CRC-32), RFC 3720 B.4 (CRC-32C).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpustore.device.table import Result


@dataclass(frozen=True, slots=True)
class Verdict:
    """Computed and expected checksums of rows.

    Attributes
    ----------
    result : Result
        Device memory of the computed checksums, one uint32 for each row.
    rows : ndarray of int64, shape (n,)
        Row of each checksum.
    expected : ndarray of uint32, shape (n,)
        Checksum stored for each row.
    """

    result: Result
    rows: NDArray[np.int64]
    expected: NDArray[np.uint32]


def differing(
    name: str,
    computed: NDArray[np.uint32],
    rows: NDArray[np.int64],
    expected: NDArray[np.uint32],
) -> Iterator[tuple[int, str]]:
    """Yield each row whose checksum is not the expected one, and the text of the error."""
    for i in np.flatnonzero(computed != expected):
        yield (
            int(rows[i]),
            f"{name}: checksum is 0x{computed[i]:08x}, expected 0x{expected[i]:08x}",
        )


def _crc(found: NDArray[np.uint32], nbytes: NDArray[np.uint64]) -> NDArray[np.uint32]:
    del nbytes
    return found


def adler32(found: NDArray[np.uint32], nbytes: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return the Adler-32 checksums of ranges from the sums of the kernel (RFC 1950 8.2).

    Parameters
    ----------
    found : ndarray of uint32, shape (2 n,)
        Two sums of each range; the kernel adds to -1, all bits set.
    nbytes : ndarray of uint64, shape (n,)
        Bytes of each range.
    """
    sums = (found + np.uint32(1)).reshape(-1, 2).astype(np.uint64)
    low = (1 + sums[:, 0]) % 65521
    high = (nbytes + sums[:, 1]) % 65521
    return (high << 16 | low).astype(np.uint32)


CHECKSUMS = {
    "crc32c": ("crc32c", 1, _crc),
    "crc32": ("crc32c", 1, _crc),
    "adler32": ("adler32", 2, adler32),
}
"""Kernel family, words of a result, and function from words to checksums, by checksum."""
