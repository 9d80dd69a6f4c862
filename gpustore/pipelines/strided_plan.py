"""Plans of reads through strided maps, whose row table the native core writes.

Such reads are many, and a plan in Python takes longer than the core needs to fetch their chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpustore.backends.native.request import MOST_ROWS, strided_maps, strided_table
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.planning.chunk_format import ChunkFormat
from gpustore.planning.chunk_plan import ChunkPlan
from gpustore.planning.connected_set import ConnectedSet
from gpustore.planning.row_table import RowTable
from gpustore.planning.window import PlanWindow
from gpustore.runtime.cached_attribute import cached_attribute


class StridedPlan(ChunkPlan):
    """Plan of a read of chunks of one shape; its connected sets are found when they are asked for.

    Parameters
    ----------
    array : ChunkedArray
    transform : IndexTransform
        Maps of a read that the core plans.
    table : RowTable
        All rows.
    src_stride, dst_stride
        Attributes of the base.
    """

    _array: ChunkedArray
    _transform: IndexTransform
    _written: RowTable

    def __init__(
        self,
        array: ChunkedArray,
        transform: IndexTransform,
        table: RowTable,
        src_stride: tuple[int, ...],
        dst_stride: tuple[int, ...],
    ) -> None:
        vars(self).update(
            _array=array,
            _transform=transform,
            _written=table,
            rows=table.rows,
            src_stride=src_stride,
            dst_stride=dst_stride,
            input_shape=tuple(transform.domain.shape),
        )

    @cached_attribute
    def _planned(self) -> ChunkPlan:
        ((_, plan),) = self._array.plans(self._transform, self.dst_stride)
        return plan

    @cached_attribute
    def sets(self) -> Sequence[ConnectedSet]:
        """Connected sets, as a plan in Python has them."""
        return self._planned.sets

    @cached_attribute
    def format(self) -> ChunkFormat:
        """Layout and keys of the chunks."""
        return self._planned.format

    def tables(self, parts: int, unit_rows: int) -> Iterator[RowTable]:
        """Return the table of all rows."""
        del parts, unit_rows
        yield self._written

    def rows_of(self, table: RowTable, rows: Sequence[int]) -> PlanWindow:
        """Write down some rows of the table, with their keys."""
        every, at = self._every
        cells = table.cells.T[list(rows)].tolist()
        return every.take([at[tuple(cell)] for cell in cells])

    @cached_attribute
    def _every(self) -> tuple[PlanWindow, dict[tuple[int, ...], int]]:
        """All rows with their keys, and the row of each cell: errors ask for key after key."""
        every = self.window(0, self.rows)
        return every, {cell: row for row, cell in enumerate(zip(*every.cells))}


def plans_of(
    array: ChunkedArray, transform: IndexTransform, strides: tuple[int, ...]
) -> list[tuple[ChunkedArray, ChunkPlan]]:
    """Plan a read by the core if it can, and fetches the chunks for a device; else in Python.

    Parameters, result and errors are those of :meth:`ChunkedArray.plans`.
    """
    native = array.native_staging if array.backend.part_nbytes() is not None else None
    if native is not None and array.grid is None:
        maps = strided_maps(transform, array.shape, array.chunk_shape)
        if maps is not None and maps[0] <= min(MOST_ROWS, array.limits.chunks_per_request):
            planned = strided_table(native, transform, *maps, strides)
            if planned is not None:
                return [(array, StridedPlan(array, transform, *planned, strides))]
    return array.plans(transform, strides)
