"""Windows: consecutive rows of a plan, written down for one task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = Sequence[int] | NDArray[np.int64]

Points = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Elements one by one: byte offsets in the decoded chunk, and in the array."""


@dataclass(slots=True)
class PlanWindow:
    """Consecutive rows of a plan, one part of one chunk each.

    Attributes
    ----------
    cells : tuple of columns, one an array dimension
        Grid index of the chunk.
    src_start, dst_start : column
        First byte of the row in the decoded chunk (relative to ``byte_start`` once a refiner has
        set it) and in the array.
    count : tuple of columns, one an input dimension
        Elements of the row.
    whole : column of bool
        Whether the row covers all of the chunk that lies inside the array.
    src_stride, dst_stride : tuple of int, one an input dimension
        Bytes between neighbours in the decoded chunk and in the array; the same for all rows.
    keys : list of str
        kvstore key of each chunk.
    byte_start, byte_stop : list of int, optional
        Range of the stored value that holds the row; None where the whole value is needed. Set by
        refiners.
    absent : list of bool, optional
        Rows that a refiner knows to have no bytes: they read as the fill value.
    narrowed : bool
        Whether the ranges are parts of uncompressed chunks, and ``src_start`` counts from them.
    points : list of tuple of Points, optional
        For each row, the offsets that its index arrays add, one pair for each connected set; the
        elements of the row are all their sums with the strided ones. In the order of the request,
        so that of elements written twice the last one stays.
    """

    cells: tuple[Column, ...]
    src_start: Column
    dst_start: Column
    count: tuple[Column, ...]
    whole: Sequence[bool] | NDArray[np.bool_]
    src_stride: tuple[int, ...]
    dst_stride: tuple[int, ...]
    keys: list[str]
    byte_start: list[int] | None = None
    byte_stop: list[int] | None = None
    absent: list[bool] | None = None
    narrowed: bool = False
    points: list[tuple[Points, ...]] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, lo: int, hi: int) -> PlanWindow:
        """Return rows `lo` to `hi` of this window."""
        if lo <= 0 and hi >= len(self.keys):
            return self
        rows = slice(lo, hi)
        return PlanWindow(
            cells=tuple(column[rows] for column in self.cells),
            src_start=self.src_start[rows],
            dst_start=self.dst_start[rows],
            count=tuple(column[rows] for column in self.count),
            whole=self.whole[rows],
            src_stride=self.src_stride,
            dst_stride=self.dst_stride,
            keys=self.keys[rows],
            byte_start=None if self.byte_start is None else self.byte_start[rows],
            byte_stop=None if self.byte_stop is None else self.byte_stop[rows],
            absent=None if self.absent is None else self.absent[rows],
            narrowed=self.narrowed,
            points=None if self.points is None else self.points[rows],
        )

    def may_cover(self, shape: tuple[int, ...]) -> bool:
        """Return whether a row with the shape of a chunk, `shape`, has all elements of the chunk.

        It has not where a dimension lies along none of the chunk's: its elements are for one place.
        """
        strides = self.src_stride
        return len(strides) == len(shape) and all(
            [stride != 0 or size == 1 for stride, size in zip(strides, shape)]
        )

    def span(self, start: int, shape: Sequence[int], itemsize: int) -> tuple[int, int]:
        """Return the bytes of the decoded chunk that hold a row: first byte and end."""
        low = high = start
        for stride, count in zip(self.src_stride, shape):
            reach = stride * (count - 1)
            low, high = (low + reach, high) if reach < 0 else (low, high + reach)
        return low, high + itemsize

    def narrow(self, src_start: list[int], start: list[int], stop: list[int]) -> PlanWindow:
        """Return the rows as byte ranges of uncompressed chunks that `src_start` counts from."""
        return PlanWindow(
            cells=self.cells,
            src_start=src_start,
            dst_start=self.dst_start,
            count=self.count,
            whole=self.whole,
            src_stride=self.src_stride,
            dst_stride=self.dst_stride,
            keys=self.keys,
            byte_start=start,
            byte_stop=stop,
            absent=self.absent,
            narrowed=True,
            points=self.points,
        )

    def take(self, rows: Sequence[int]) -> PlanWindow:
        """Return the rows of these numbers, before any of them was refined."""

        def taken(column: Any) -> list[Any]:
            return [column[row] for row in rows]

        return PlanWindow(
            cells=tuple(taken(column) for column in self.cells),
            src_start=taken(self.src_start),
            dst_start=taken(self.dst_start),
            count=tuple(taken(column) for column in self.count),
            whole=taken(self.whole),
            src_stride=self.src_stride,
            dst_stride=self.dst_stride,
            keys=taken(self.keys),
            points=None if self.points is None else taken(self.points),
        )

    def singles(self) -> list[PlanWindow]:
        """Return each row alone, before any of them was refined."""

        def lists(column: Any) -> list[list[Any]]:
            values = column.tolist() if isinstance(column, np.ndarray) else column
            return [[value] for value in values]

        def tuples(columns: Sequence[Any]) -> list[tuple[list[Any], ...]]:
            return list(zip(*map(lists, columns))) or [()] * len(self)

        src_stride, dst_stride = self.src_stride, self.dst_stride
        points = [None] * len(self) if self.points is None else lists(self.points)
        return [
            PlanWindow(cell, src, dst, count, is_whole, src_stride, dst_stride, key, points=some)
            for cell, src, dst, count, is_whole, key, some in zip(
                tuples(self.cells),
                lists(self.src_start),
                lists(self.dst_start),
                tuples(self.count),
                lists(self.whole),
                lists(self.keys),
                points,
            )
        ]

    def rows(self) -> tuple[list[int], list[int], list[tuple[int, ...]]]:
        """Return ``src_start``, ``dst_start`` and the shape of each row, as Python ints."""
        counts = [one.tolist() if isinstance(one, np.ndarray) else one for one in self.count]
        shapes: list[tuple[int, ...]] = list(zip(*counts)) if counts else [()] * len(self)
        return _as_list(self.src_start), _as_list(self.dst_start), shapes


def _as_list(column: Column) -> list[int]:
    return column.tolist() if isinstance(column, np.ndarray) else list(column)
