"""Several plans of one array, joined so that each chunk is met once.

The rows of all plans become regions; see :mod:`gpustore.planning.copy_plan`. Their numbers count
through the plans in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpustore.planning.chunk_plan import WINDOW_ROWS, ChunkPlan
from gpustore.planning.copy_plan import (
    Block,
    CellColumn,
    CopyColumns,
    CopyPlan,
    Integers,
    plan_copies,
)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of all plans as columns. Shapes and strides are padded to the largest rank."""

    cells: list[Integers]
    src_start: Integers
    dst_start: Integers
    count: Integers
    target: Integers
    src_stride: list[tuple[int, ...]]
    dst_stride: list[tuple[int, ...]]

    def columns(self, regions: Integers) -> CopyColumns:
        """Write down the rows of these numbers."""
        return CopyColumns(
            [cell[regions] for cell in self.cells],
            self.src_start[regions],
            self.dst_start[regions],
            self.count[:, regions],
            self.target[regions],
        )


def join_plans(
    plans: Sequence[ChunkPlan],
    block: Block,
    numbers: Sequence[int] | None = None,
) -> CopyPlan:
    """Join plans whose rows take elements from blocks of single chunks.

    Parameters
    ----------
    plans : sequence of ChunkPlan
        Made with the byte strides of `block` as ``src_stride``; without index arrays.
    block : Block
        Of single chunks.
    numbers : sequence of int, optional
        Of the read each plan is of; by default they count up. Each read has an array.
    """
    numbers = range(len(plans)) if numbers is None else numbers
    rank = max(len(plan.input_shape) for plan in plans)
    cells: list[list[int]] = [[] for _ in block.chunk_shape]
    count: list[list[int]] = [[] for _ in range(rank)]
    src_start: list[int] = []
    dst_start: list[int] = []
    for plan in plans:
        for lo in range(0, len(plan), WINDOW_ROWS):
            rows = plan.window(lo, min(lo + WINDOW_ROWS, len(plan)))
            starts, ends, _ = rows.rows()
            src_start += starts
            dst_start += ends
            for column, values in zip(cells, rows.cells):
                column += [int(value) for value in values]
            for d, column in enumerate(count):
                given = d < len(rows.count)
                column += [int(n) for n in rows.count[d]] if given else [1] * len(rows)
    reads = np.repeat(np.array(numbers, np.int64), [len(plan) for plan in plans])
    strided = dict(zip(numbers, plans))
    # Numbers without a plan have no regions either.
    of_read = [strided.get(number, plans[0]) for number in range(max(strided) + 1)]
    source = _Rows(
        [np.array(column, np.int64) for column in cells],
        np.array(src_start, np.int64),
        np.array(dst_start, np.int64),
        np.array(count, np.int64).reshape(rank, len(src_start)),
        reads,
        [_padded(plan.src_stride, rank) for plan in of_read],
        [_padded(plan.dst_stride, rank) for plan in of_read],
    )
    columns: list[CellColumn] = [(column, None) for column in source.cells]
    return plan_copies(block, source, len(src_start), columns if len(src_start) else [])


def _padded(strides: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (*strides, *(0 for _ in range(rank - len(strides))))
