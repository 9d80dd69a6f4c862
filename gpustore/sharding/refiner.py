"""Refiners: the stages of a chain that can narrow a plan down to parts of stored values.

A refiner looks at the rows of a window and says which bytes of each value it must see first
(:meth:`Refiner.probe`: a shard index, a frame header), and, given those, rewrites the rows so that
less is fetched (:meth:`Refiner.refine`). It never does I/O: the read pipeline owns the loop, and
fetches the refined rows on condition that the values are still the ones that were probed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpustore.errors import CorruptChunkError
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer


@dataclass(frozen=True, slots=True)
class Probe:
    """Byte ranges a refiner must see.

    Attributes
    ----------
    rows : sequence of int
        Row of the window for each range; one row of each key suffices.
    start : sequence of int
        First byte; negative for a suffix of that length.
    stop : sequence of int or None
        End of the range, exclusive; None for the end of the value.
    """

    rows: Sequence[int]
    start: Sequence[int]
    stop: Sequence[int | None]


class Refiner(Protocol):
    """Interface of the stages of a codec chain that can read parts of a stored value."""

    def probe(self, rows: PlanWindow) -> Probe | None:
        """Return the byte ranges to fetch before :meth:`refine`, or None if none are needed."""

    def refine(
        self, rows: PlanWindow, heads: Sequence[Buffer | None], totals: Sequence[int]
    ) -> PlanWindow:
        """Return `rows` with narrower byte ranges, so that less is fetched.

        Parameters
        ----------
        rows : PlanWindow
            The window given to :meth:`probe`.
        heads : sequence of buffer or None
            Bytes of the probed ranges in host memory, None for a missing key; empty without a
            probe.
        totals : sequence of int
            Size of each of those values in bytes, -1 if unknown.
        """


@dataclass(frozen=True, slots=True)
class RawBytesRefiner:
    """Reads only the span of an uncompressed chunk that holds the wanted elements.

    Attributes
    ----------
    nbytes, itemsize : int
        Length of a decoded chunk and of one of its elements, in bytes.
    offset : int
        First byte of the first element.
    """

    nbytes: int
    itemsize: int
    offset: int = 0

    def probe(self, rows: PlanWindow) -> Probe | None:
        """Return None: the offsets of raw bytes are known from the shape alone."""
        del rows
        return None

    def part_nbytes(self, span: int) -> int:
        """Bytes that are read for a span: of more than half the chunk all, which shows its size."""
        return self.nbytes if 2 * span > self.nbytes else span

    def refine(
        self, rows: PlanWindow, heads: Sequence[Buffer | None], totals: Sequence[int]
    ) -> PlanWindow:
        """Give each row the byte span between its first and its last element.

        A span of more than half the chunk is left alone: one whole read also verifies the size.
        """
        del heads, totals
        if rows.points is not None or all(rows.whole):
            return rows
        src_start, _, shapes = rows.rows()
        starts, stops, offsets = [], [], []
        narrowed = False
        for row, (start, shape) in enumerate(zip(src_start, shapes)):
            base, first = 0, start + self.offset
            if rows.byte_start is not None and rows.byte_stop is not None:
                base = rows.byte_start[row]
                self._check_length(rows, row, rows.byte_stop[row] - base)
            low, high = rows.span(first, shape, self.itemsize)
            if self.part_nbytes(high - low) == self.nbytes:
                low, high = 0, self.nbytes
            else:
                narrowed = True
            starts.append(base + low)
            stops.append(base + high)
            offsets.append(first - low)
        if not narrowed:
            return rows
        return rows.narrow(offsets, starts, stops)

    def _check_length(self, rows: PlanWindow, row: int, found: int) -> None:
        """An inner chunk must be as long as a chunk, or its parts are not where they should be."""
        absent = rows.absent is not None and rows.absent[row]
        if not absent and found != self.nbytes:
            raise CorruptChunkError(
                f"Uncompressed chunk is {found} bytes, but should be {self.nbytes} bytes",
                key=rows.keys[row],
            )
