"""Guards around outputs of decoders, and the streams decoders get instead of damaged ones.

nvcomp promises nothing of damaged streams, not even that nothing is written behind an output. The
bytes around outputs, which nobody may write, are the *guards*. They have a known value before the
decoders run, and are looked at behind all steps.

Who writes beyond its output writes them on the way, so where one has changed, the outputs on both
sides of it are taken for damaged: whose decoder it was, and how far it went. One that writes across
several outputs changes all the guards between them.

A value behind a checksum is compared with it first, by a kernel; nobody waits for the outcome, but
where it is wrong another kernel puts an empty stream in the place of the value's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpustore.device.protocol import Spans

GUARD: Final = 0xC3
"""Every byte of a guard."""

NO_ROW: Final = -1
"""On a side of a guard where there is no output."""

NO_CHECKSUM: Final = 0xFFFFFFFF
"""Number of the checksum of a stream that has none."""

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


class Guards:
    """Guards of one submission, as columns."""

    __slots__ = ("_after", "_before", "_spans")

    def __init__(self) -> None:
        self._spans: list[Spans] = []
        self._before: list[Integers] = []
        self._after: list[Integers] = []

    def __len__(self) -> int:
        return sum(map(len, self._spans))

    def add(self, spans: Spans, before: Integers, after: Integers) -> None:
        """Guards, and the row whose output is before and after each; :data:`NO_ROW` if none is."""
        self._spans.append(spans)
        self._before.append(before)
        self._after.append(after)

    @property
    def columns(self) -> NDArray[np.uint64]:
        """Their addresses and sizes in bytes, shape (2, n)."""
        if not self._spans:
            return np.zeros((2, 0), np.uint64)
        return np.concatenate([np.stack((one.address, one.nbytes)) for one in self._spans], axis=1)

    @property
    def blocks(self) -> int:
        """Of a launch over all of them."""
        return -(-len(self) // _WARPS_PER_BLOCK)

    def overwritten(self, found: NDArray[np.uint8]) -> Iterator[tuple[int, str]]:
        """Rows beside guards that have changed, from the words that the kernel has written."""
        changed = np.flatnonzero(found.view(np.uint32))
        if not len(changed):
            return
        for rows in (self._before, self._after):
            for row in np.concatenate(rows)[changed].tolist():
                if row != NO_ROW:
                    yield row, "the bytes around the decoded ones were written"
