"""Which part of which chunk goes where, as columns of numbers.

:func:`plan_chunks` turns an index transform and a regular chunk grid into a :class:`ChunkPlan`:

1. The input dimensions that share no output dimension are independent of each other, so each
   makes a :class:`~gpustore.planning.connected_set.ConnectedSet`: the runs of its interval
   during which no cell index changes. A constant output dimension makes a table of one row.
2. The rows of the plan are the product of the tables in C order. They are never all written
   down: a plan of ten million chunks is a few small tables.
3. :meth:`ChunkPlan.window` writes down the rows of one task: a start in the decoded chunk, a
   start in the array, a count for each input dimension, and the cell each row touches. The byte
   strides are constants of the plan.

Up to 500 rows the columns are Python lists made by a scalar loop, because NumPy's
fixed cost per call would dominate a read of a few chunks; above, they are int64 arrays. Both
hold the same numbers.

The theory is that of TensorStore's ``internal/grid_partition.h`` (connected sets of input
dimensions).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.errors import LimitError, OutOfBoundsError
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.planning import connected_set
from gpustore.planning.connected_set import (
    ConnectedSet,
    constant_index,
    constant_table,
    fewest_runs,
    maps_by_input,
    pointed_sets,
    points_table,
    strided_table,
)
from gpustore.planning.window import Column, PlanWindow, Points

WINDOW_ROWS = 65_536
"""Largest number of rows a window may have."""


@dataclass(frozen=True)
class ChunkPlan:
    """A plan of all the rows one transform touches, kept as one table a connected set.

    Attributes
    ----------
    tables : tuple of ConnectedSet
        In order of their first output dimension; rows are their product in C order.
    src_stride, dst_stride : tuple of int, one an input dimension
        Bytes between neighbours in the decoded chunk and in the array.
    input_shape : tuple of int
        Shape of the transform's domain, and so of the array read or written.
    key_prefix, key_separator : str
        A key is the prefix and the cell indices joined by the separator.
    key_rank : int
        How many array dimensions a key has; the others are inside each stored element.
    dense : bool
        Whether a row that has all elements of a chunk has all of its bytes.
    key_ratio : tuple of int, one an array dimension
        Cells along each dimension that share a key: 1, or the inner chunks of a shard.
    pointed : frozenset of int
        Input dimensions whose elements are listed one by one, because of an index array.
    """

    tables: tuple[ConnectedSet, ...]
    src_stride: tuple[int, ...]
    dst_stride: tuple[int, ...]
    input_shape: tuple[int, ...]
    key_prefix: str
    key_separator: str
    key_ratio: tuple[int, ...]
    key_rank: int
    dense: bool
    pointed: frozenset[int] = frozenset()

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each table."""
        return tuple(len(table) for table in self.tables)

    def __len__(self) -> int:
        if 0 in self.input_shape:
            return 0
        rows = 1
        for table in self.tables:
            rows *= len(table.count)
        return rows

    @cached_property
    def groups(self) -> tuple[list[tuple[int, int]], ...]:
        """For each table, the runs of its rows whose cells share a key."""
        found = []
        for table in self.tables:
            ratios = [self.key_ratio[dimension] for dimension in table.output_dimensions]
            if ratios == [1] * len(ratios):
                found.append([(i, i + 1) for i in range(len(table))])
                continue
            columns = [
                [cell // ratio for cell in cells] for cells, ratio in zip(table.cells, ratios)
            ]
            keys = list(zip(*columns))
            edges = [i for i in range(1, len(keys)) if keys[i] != keys[i - 1]]
            found.append(list(itertools.pairwise([0, *edges, len(keys)])))
        return tuple(found)

    @cached_property
    def objects(self) -> int:
        """Number of keys."""
        return math.prod(map(len, self.groups)) if 0 not in self.input_shape else 0

    def _object(self, i: int) -> list[range]:
        """Rows of each table whose product are the rows of the `i`-th key."""
        ranges = []
        for groups in reversed(self.groups):
            i, rest = divmod(i, len(groups))
            ranges.append(range(*groups[rest]))
        return ranges[::-1]

    def _product_window(self, rows: list[tuple[int, ...]]) -> PlanWindow:
        index: list[Any] = list(zip(*rows)) or [()] * len(self.tables)
        return self._window(index, len(rows), scalar=True)

    def windows(
        self, part: int, parts: int, most: int, *, most_keys: int | None = None
    ) -> Iterator[PlanWindow]:
        """The windows of one of `parts` equal parts of the plan.

        A window has at most `most` rows, of at most `most_keys` keys. Where rows share a key, it
        has all rows of a key however many there are, or its share of them if there are fewer keys
        than parts.
        """
        if parts == 1 and len(self) == 1:
            yield self._only_row()
            return
        limited = most_keys is not None and most_keys < most
        if not limited and all(ratio == 1 for ratio in self.key_ratio):
            lo, hi = (len(self) * i // parts for i in (part, part + 1))
            for at in range(lo, hi, most):
                yield self.window(at, min(at + most, hi))
            return
        shared = self.objects < parts
        first, end = (self.objects * i // parts for i in (part, part + 1))
        rows: list[tuple[int, ...]] = []
        keys = 0
        for i in range(self.objects) if shared else range(first, end):
            some = list(itertools.product(*self._object(i)))
            if shared:
                lo, hi = (len(some) * at // parts for at in (part, part + 1))
                some = some[lo:hi]
            if rows and (keys == most_keys or len(rows) + len(some) > most):
                yield self._product_window(rows)
                rows, keys = [], 0
            rows += some
            keys += bool(some)
        if rows:
            yield self._product_window(rows)

    def span(self, itemsize: int) -> int:
        """The most bytes that lie between the first and the last element of a row, in a chunk."""
        if self.pointed:
            return 1 << 62  # Not looked at: such rows are never narrowed.
        reach = itemsize
        for table in self.tables:
            if table.input_dimension is not None:
                stride = self.src_stride[table.input_dimension]
                reach += abs(stride) * (int(max(table.count)) - 1)
        return reach

    def spans(self, itemsize: int) -> Counter[tuple[int, bool]]:
        """Number of rows by their span and by whether they are whole.

        A span is the bytes in the decoded chunk from the first to behind the last element.
        """
        if self.pointed:
            return Counter({(1 << 62, False): len(self)})
        found = Counter({(itemsize, self.dense): min(1, len(self))})
        for table in self.tables:
            d = table.input_dimension
            stride = 0 if d is None else abs(self.src_stride[d])
            runs = Counter(zip(map(int, table.count), map(bool, table.whole)))
            product: Counter[tuple[int, bool]] = Counter()
            for (span, is_whole), rows in found.items():
                for (count, also), n in runs.items():
                    product[span + stride * (count - 1), is_whole and also] += rows * n
            found = product
        return found

    def window(self, lo: int, hi: int) -> PlanWindow:
        """Write down rows `lo` to `hi`, with their keys.

        Raises
        ------
        ValueError
            If the range is not inside the plan or is longer than ``WINDOW_ROWS``.
        """
        if not 0 <= lo <= hi <= len(self) or hi - lo > WINDOW_ROWS:
            raise ValueError(f"window [{lo}, {hi}) of a plan of {len(self)} rows")
        scalar = len(self) <= max(connected_set.SCALAR_ROWS, 1)
        index = self._scalar_index(lo, hi) if scalar else self._vector_index(lo, hi)
        return self._window(index, hi - lo, scalar=scalar)

    def _only_row(self) -> PlanWindow:
        """The window of a plan of one row; small reads are many and each is this."""
        cells = [0] * len(self.key_ratio)
        count = [1 if d in self.pointed else size for d, size in enumerate(self.input_shape)]
        src_start = dst_start = 0
        whole = self.dense
        for table in self.tables:
            src_start += int(table.src_start[0])
            dst_start += int(table.dst_start[0])
            whole = whole and bool(table.whole[0])
            if table.input_dimension is not None:
                count[table.input_dimension] = int(table.count[0])
            for dimension, column in zip(table.output_dimensions, table.cells):
                cells[dimension] = int(column[0])
        parts = [str(cell // r) for cell, r in zip(cells[: self.key_rank], self.key_ratio)]
        return PlanWindow(
            cells=tuple([[cell] for cell in cells]),
            src_start=[src_start],
            dst_start=[dst_start],
            count=tuple([[n] for n in count]),
            whole=[whole],
            src_stride=self.src_stride,
            dst_stride=self.dst_stride,
            keys=[self.key_prefix + self.key_separator.join(parts)],
            points=self._points([(0,)] * len(self.tables)) if self.pointed else None,
        )

    def _window(self, index: list[Any], n: int, *, scalar: bool) -> PlanWindow:
        """The rows at `index`, one sequence of row numbers a table."""
        return PlanWindow(
            cells=self._cells(index, scalar=scalar),
            src_start=_sum_columns([t.src_start for t in self.tables], index, n, scalar),
            dst_start=_sum_columns([t.dst_start for t in self.tables], index, n, scalar),
            count=self._counts(index, n, scalar=scalar),
            whole=self._whole(index, n, scalar=scalar),
            src_stride=self.src_stride,
            dst_stride=self.dst_stride,
            keys=self._keys(index, n),
            points=self._points(index),
        )

    def _points(self, index: list[Any]) -> list[tuple[Points, ...]] | None:
        columns = [
            [table.points[i] for i in rows]
            for table, rows in zip(self.tables, index)
            if table.points is not None
        ]
        if not columns:
            return None
        return list(zip(*columns))

    def _scalar_index(self, lo: int, hi: int) -> list[Sequence[int]]:
        if len(self.tables) == 1:
            return [range(lo, hi)]
        rows = itertools.islice(itertools.product(*map(range, self.sizes)), lo, hi)
        return list(zip(*rows)) or [()] * len(self.tables)

    def _vector_index(self, lo: int, hi: int) -> list[Any]:
        return list(np.unravel_index(np.arange(lo, hi), self.sizes))

    def _cells(self, index: list[Any], *, scalar: bool) -> tuple[Column, ...]:
        columns: dict[int, Column] = {}
        for table, rows in zip(self.tables, index):
            for dimension, cells in zip(table.output_dimensions, table.cells):
                columns[dimension] = _take(cells, rows, scalar)
        return tuple(columns[dimension] for dimension in sorted(columns))

    def _counts(self, index: list[Any], n: int, *, scalar: bool) -> tuple[Column, ...]:
        columns: list[Column] = [
            [1 if d in self.pointed else size] * n for d, size in enumerate(self.input_shape)
        ]
        for table, rows in zip(self.tables, index):
            if table.input_dimension is not None:
                columns[table.input_dimension] = _take(table.count, rows, scalar)
        return tuple(columns)

    def _whole(
        self, index: list[Any], n: int, *, scalar: bool
    ) -> Sequence[bool] | NDArray[np.bool_]:
        if not self.dense:
            return [False] * n
        if scalar:
            taken = [[table.whole[i] for i in rows] for table, rows in zip(self.tables, index)]
            return [all(row) for row in zip(*taken)] if taken else [True] * n
        whole = np.ones(n, np.bool_)
        for table, rows in zip(self.tables, index):
            whole &= np.asarray(table.whole)[rows]
        return whole

    @cached_property
    def _key_columns(self) -> list[tuple[int, Column, int, str]]:
        """For each array dimension in order: its table, its cells, their ratio, and a separator."""
        found: dict[int, tuple[int, Column, int, str]] = {}
        for position, table in enumerate(self.tables):
            for dimension, cells in zip(table.output_dimensions, table.cells):
                lead = self.key_separator if dimension else ""
                found[dimension] = (position, cells, self.key_ratio[dimension], lead)
        return [found[dimension] for dimension in sorted(found) if dimension < self.key_rank]

    @cached_property
    def _key_parts(self) -> list[list[str] | None]:
        """For each array dimension the text that each row of its table adds to a key.

        None for a table so long that its texts would fill the memory; it has them made anew for
        each window.
        """
        return [
            None if len(cells) > WINDOW_ROWS else [f"{lead}{int(cell) // ratio}" for cell in cells]
            for _, cells, ratio, lead in self._key_columns
        ]

    def _keys(self, index: list[Any], n: int) -> list[str]:
        columns = []
        for (position, cells, ratio, lead), parts in zip(self._key_columns, self._key_parts):
            rows = index[position]
            if parts is None:
                columns.append([f"{lead}{int(cells[i]) // ratio}" for i in rows])
            else:
                columns.append([parts[i] for i in rows])
        if not columns:
            return [self.key_prefix] * n
        return list(map("".join, zip(itertools.repeat(self.key_prefix), *columns)))


def check_bounds(transform: IndexTransform, shape: Sequence[int]) -> None:
    """Check that an affine transform stays inside an array of this shape.

    Raises
    ------
    OutOfBoundsError
        Naming the first output dimension that leaves it, in TensorStore's words.
    """
    domain = transform.domain
    low, extent = domain.inclusive_min, domain.shape
    if 0 in extent:
        return
    for o, size in enumerate(shape):
        map_ = transform.output[o]
        d, stride = map_.input_dimension, map_.stride
        first = last = map_.offset
        if map_.index_array is not None and stride is not None:
            first += stride * int(map_.index_array.min())
            last += stride * int(map_.index_array.max())
        elif d is not None and stride is not None:
            first += stride * low[d]
            last = first + stride * (extent[d] - 1)
        for index in (first, last):
            if not 0 <= index < size:
                # Composition says which of the caller's own bounds are too wide.
                IndexTransform(IndexDomain(shape=shape))[transform]
                raise OutOfBoundsError(
                    f"Checking bounds of {map_.method.name} output index map for dimension "
                    f"{o}: Index {index} is outside valid range [0, {size})"
                )


def plan_chunks(
    transform: IndexTransform,
    *,
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    src_stride: Sequence[int],
    dst_stride: Sequence[int],
    key_prefix: str,
    key_separator: str,
    max_chunks: int,
    key_ratio: Sequence[int] | None = None,
    key_rank: int | None = None,
    dense: bool = True,
) -> ChunkPlan:
    """Plan which chunks `transform` touches.

    Parameters
    ----------
    transform : IndexTransform
        From the domain of the array to be read or written to the chunked array; its output ranges
        must lie inside `shape`.
    shape, chunk_shape : sequence of int, length output_rank
        Of the chunked array, in elements.
    src_stride : sequence of int, length output_rank
        Bytes between neighbours in a decoded chunk.
    dst_stride : sequence of int, length input_rank
        Bytes between neighbours in the array read or written.
    key_prefix, key_separator : str
        How chunk keys are written.
    max_chunks : int
        Limit ``chunks_per_request``.
    key_ratio : sequence of int, length output_rank, optional
        Cells along each dimension that share a key; by default each has its own.
    key_rank : int, optional
        Dimensions in a key; by default all.
    dense : bool, optional
        Whether all bytes of a chunk are elements of the array; otherwise no row covers a chunk.

    Returns
    -------
    ChunkPlan
        Each chunk appears in at most one row.

    Raises
    ------
    LimitError
        If more than `max_chunks` chunks are touched.
    """
    domain = transform.domain
    low = domain.inclusive_min
    input_shape = tuple(domain.shape)
    tables: list[ConnectedSet] = []
    empty = 0 in input_shape
    strides = [0] * len(input_shape)
    sets = pointed_sets(transform)
    pointed = frozenset(d for dims, _ in sets for d in dims)
    used_by, constant = maps_by_input(transform, {o for _, outputs in sets for o in outputs})
    if not empty:
        for o, map_ in constant:
            index = constant_index(map_)
            tables.append(constant_table(o, index, shape, chunk_shape, src_stride))
    # Refused before it is built: the table of one dimension alone could fill the memory.
    fewest = [fewest_runs(input_shape[d], maps, chunk_shape) for d, maps in used_by.items()]
    if not empty:
        check_row_count(math.prod(fewest), max_chunks)
    for dims, outputs in sets:
        if not empty:
            tables.append(
                points_table(transform, dims, outputs, chunk_shape, src_stride, dst_stride)
            )
    for d, maps in used_by.items():
        strides[d] = sum(src_stride[o] * stride for o, _, stride in maps)
        if not empty:
            table = strided_table(
                d, low[d], input_shape[d], maps, shape, chunk_shape, src_stride, dst_stride[d]
            )
            tables.append(table)
    tables.sort(key=lambda table: table.output_dimensions[0])
    plan = ChunkPlan(
        tuple(tables),
        tuple(strides),
        tuple(dst_stride),
        input_shape,
        key_prefix,
        key_separator,
        tuple(key_ratio or (1,) * len(shape)),
        len(shape) if key_rank is None else key_rank,
        dense,
        pointed,
    )
    check_row_count(len(plan), max_chunks)
    return plan


def check_row_count(rows: int, most: int) -> None:
    """Raise LimitError if there are more than `most` rows."""
    if rows > most:
        raise LimitError(
            f"A read or write of {rows} chunks exceeds the limit chunks_per_request of {most}; "
            f"select less, or raise it with Context({{'limits': {{'chunks_per_request': {rows}}}}})"
        )


def _take(column: Any, rows: Any, scalar: bool) -> Column:
    if scalar:
        return [column[i] for i in rows]
    taken: NDArray[np.int64] = np.asarray(column)[rows]
    return taken


def _sum_columns(columns: list[Any], index: list[Any], n: int, scalar: bool) -> Column:
    if not columns:
        return [0] * n
    taken = [_take(column, rows, scalar) for column, rows in zip(columns, index)]
    if scalar:
        return taken[0] if len(taken) == 1 else [sum(row) for row in zip(*taken)]
    total: NDArray[np.int64] = np.sum(np.stack([np.asarray(t) for t in taken]), axis=0)
    return total
