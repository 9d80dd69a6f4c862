"""Rows of the tables of a plan: strides of their regions, and keys that are written down late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import overload

from gpustore.backends.base import Strides
from gpustore.planning.chunk_plan import ChunkPlan
from gpustore.planning.copy_plan import CopyPlan
from gpustore.planning.row_table import RowTable
from gpustore.planning.window import PlanWindow

Windows = Callable[[RowTable, Sequence[int]], Iterable[tuple[int, PlanWindow]]]
"""Function that writes down some rows of a table: windows, with the number of the array of each."""


def strides_of(plan: ChunkPlan | CopyPlan) -> Strides:
    """Return the byte strides of the regions of a plan."""
    if isinstance(plan, ChunkPlan):
        return [plan.src_stride], [plan.dst_stride]
    return plan.source.src_stride, plan.source.dst_stride


def windows_of(plan: ChunkPlan | CopyPlan) -> Windows:
    """Return what writes down rows of the tables of a plan."""
    return partial(_rows_of, plan) if isinstance(plan, ChunkPlan) else plan.rows_of


def _rows_of(
    plan: ChunkPlan, table: RowTable, rows: Sequence[int]
) -> Iterator[tuple[int, PlanWindow]]:
    yield 0, plan.rows_of(table, rows)


class TableKeys(Sequence[str]):
    """Keys of the rows of a table, written down when they are asked for."""

    def __init__(self, table: RowTable, windows: Windows) -> None:
        self._table = table
        self._windows = windows

    def __len__(self) -> int:
        return self._table.rows

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> list[str]: ...

    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        if row >= len(self):
            raise IndexError(row)
        return next(iter(self._windows(self._table, [row])))[1].keys[0]
