"""Guards around outputs of decoders, and the streams decoders get instead of damaged ones.

nvcomp does not say what it does with damaged streams; it may write behind an output. The bytes
around outputs, which no decoder may write, are the *guards*. They are filled with a known value
before the decoders run, and checked behind all steps.

A decoder that writes beyond its output overwrites a guard first, so the outputs on both sides of a
changed guard are taken as damaged: either may be the one whose decoder did it. A decoder that
writes across several outputs changes all the guards between them.

A kernel compares a value with its checksum before it is decoded. The host does not wait for the
outcome: another kernel puts an empty stream in the place of the value's if the checksum is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpustore.device.protocol import Spans

GUARD: Final = 0xC3
"""Value of every byte of a guard."""

NO_ROW: Final = -1
"""Row number for a side of a guard without an output."""

NO_CHECKSUM: Final = 0xFFFFFFFF
"""Number in place of a checksum's for a stream without a checksum."""

EMPTY_STREAMS: Final = {
    "lz4": b"\0",
    "snappy": b"\0",
    "deflate": b"\3\0",
    "gzip": bytes.fromhex("1f8b08000000000000030300 0000000000000000"),
    "zstd": bytes.fromhex("28b52ffd 20 01 0b0000 00"),
}
"""Whole streams of each codec that decode to no bytes (zstd: to one); no valid one is shorter."""

_WARPS_PER_BLOCK = 8

Integers = NDArray[np.int64]


def between(outputs: Spans, end: int) -> Spans:
    """Return what lies around `outputs`, one behind the other, in memory from 0 to `end`.

    >>> found = between(Spans.contiguous(32, [5, 8], 64), 200)
    >>> found.address.tolist(), found.nbytes.tolist()
    ([0, 37, 104], [32, 59, 96])
    """
    address = np.zeros(len(outputs) + 1, np.uint64)
    np.add(outputs.address, outputs.nbytes, out=address[1:])
    return Spans(address, np.append(outputs.address, np.uint64(end)) - address)


class Guards:
    """Guards of one submission, as columns.

    Attributes
    ----------
    count : int
        Number of guards.
    """

    __slots__ = ("_parts", "count")

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[tuple[int, Spans, Integers, int]] = []

    def add(self, origin: int, around: Spans, rows: Integers, sets: int = 1) -> None:
        """Add guards in front of, between and behind outputs.

        Parameters
        ----------
        origin : int
            Address that those of `around` count from.
        around : Spans, length sets * (n + 1)
            Device memory :func:`between` the outputs of each set, in its order.
        rows : ndarray of int64, shape (n,)
            Row of each output of a set.
        sets : int
            Number of outputs that each row has.
        """
        self.count += len(around)
        self._parts.append((origin, around, rows, sets))

    def write(self, into: NDArray[np.uint64]) -> None:
        """Write the table of all n guards: n addresses, then n sizes in bytes."""
        first = 0
        for origin, around, *_ in self._parts:
            last = first + len(around)
            np.add(around.address, np.uint64(origin), out=into[first:last])
            into[self.count + first : self.count + last] = around.nbytes
            first = last

    @property
    def blocks(self) -> int:
        """Number of thread blocks for all guards, one warp for each."""
        return -(-self.count // _WARPS_PER_BLOCK)

    def overwritten(self, found: NDArray[np.uint8]) -> Iterator[tuple[int, str]]:
        """Yield each row beside a changed guard, and the text of the error.

        `found` are the bytes of one uint32 for each guard, written by the kernel: not 0 if changed.
        """
        (changed,) = found.view(np.uint32).nonzero()
        if not len(changed):
            return
        sets = [rows for *_, rows, sets in self._parts for _ in range(sets)]
        before = [column for rows in sets for column in ([NO_ROW], rows)]
        after = [column for rows in sets for column in (rows, [NO_ROW])]
        for sides in (before, after):
            for row in np.concatenate(sides)[changed].tolist():
                if row != NO_ROW:
                    yield row, "the bytes around the decoded ones were written"
