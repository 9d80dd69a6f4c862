"""Checksums that a device computes: which kernel does, and what its results say.

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
    """A checksum of each of some rows, and what it must be."""

    result: Result
    rows: NDArray[np.int64]
    expected: NDArray[np.uint32]


def differing(
    name: str,
    computed: NDArray[np.uint32],
    rows: NDArray[np.int64],
    expected: NDArray[np.uint32],
) -> Iterator[tuple[int, str]]:
    """Rows whose checksum is not the expected one, and what it is."""
    for i in np.flatnonzero(computed != expected):
        yield (
            int(rows[i]),
            f"{name}: checksum is 0x{computed[i]:08x}, expected 0x{expected[i]:08x}",
        )


def _crc(found: NDArray[np.uint32], nbytes: NDArray[np.uint64]) -> NDArray[np.uint32]:
    del nbytes
    return found


def adler32(found: NDArray[np.uint32], nbytes: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """From the two sums of each range, which began at -1 (RFC 1950 8.2)."""
    sums = (found + np.uint32(1)).reshape(-1, 2).astype(np.uint64)
    low = (1 + sums[:, 0]) % 65521
    high = (nbytes + sums[:, 1]) % 65521
    return (high << 16 | low).astype(np.uint32)


CHECKSUMS = {
    "crc32c": ("crc32c", 1, _crc),
    "crc32": ("crc32c", 1, _crc),
    "adler32": ("adler32", 2, adler32),
}
"""Family of the kernel, words of a result, and what makes checksums of them."""
