"""Chunk plans: which part of which chunk goes where, as columns of numbers.

:func:`plan_chunks` turns an index transform and a chunk grid into plans:

1. The input dimensions that share no output dimension are independent of each other, so each makes
   a :class:`~gpustore.planning.connected_set.ConnectedSet`: the runs of its interval during which
   no cell index changes. A constant output dimension makes a set of one row.
2. The rows of a plan are the product of the sets in C order. They are never all written down: a
   plan of ten million chunks is a few small sets.
3. Where chunks differ in size the rows of each set are grouped by the sizes of their chunks. Each
   combination of groups is a :class:`ChunkPlan` over chunks of one shape.
4. :meth:`ChunkPlan.window` writes down the rows of one task: a start in the decoded chunk, a start
   in the array, a count for each input dimension, and the cell each row touches. The byte strides
   are constants of the plan.

Up to 500 rows the columns are Python lists, because NumPy's fixed cost per call would dominate a
read of a few chunks; above, they are int64 arrays. Both hold the same numbers.

The theory is that of TensorStore's ``internal/grid_partition.h`` (connected sets of input
dimensions).
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.errors import LimitError, OutOfBoundsError
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.planning import connected_set
from gpustore.planning.chunk_format import ChunkFormat
from gpustore.planning.chunk_grid import ChunkGrid
from gpustore.planning.connected_set import ConnectedSet, connected_sets
from gpustore.planning.row_table import RowTable, TablePoints, split_units
from gpustore.planning.window import Column, PlanWindow, Points
from gpustore.runtime.cached_attribute import cached_attribute

WINDOW_ROWS = 65_536
"""Largest number of rows a window may have."""

TABLE_LISTED = 64
"""Largest number of rows of a plan whose row table is made without NumPy, which is slower there."""


@dataclass(frozen=True)
class ChunkPlan:
    """Plan of all rows that touch chunks of one shape, kept by connected sets.

    Attributes
    ----------
    sets : sequence of ConnectedSet
        In order of their first output dimension; rows are their product in C order.
    format : ChunkFormat
        Layout and keys of the chunks.
    src_stride, dst_stride : tuple of int, one an input dimension
        Bytes between neighbours in the decoded chunk and in the array.
    input_shape : tuple of int
        Shape of the transform's domain, and so of the array read or written.
    """

    sets: Sequence[ConnectedSet]
    format: ChunkFormat
    src_stride: tuple[int, ...]
    dst_stride: tuple[int, ...]
    input_shape: tuple[int, ...]

    @cached_attribute
    def sizes(self) -> tuple[int, ...]:
        """Rows of each set."""
        return tuple([len(one.count) for one in self.sets])

    @cached_attribute
    def rows(self) -> int:
        """Number of rows."""
        rows = 1
        for one in self.sets:
            rows *= len(one.count)
        return rows

    def __len__(self) -> int:
        return self.rows

    @cached_attribute
    def groups(self) -> tuple[list[tuple[int, int]], ...]:
        """Runs of rows whose cells share a key, for each set."""
        found = []
        for one in self.sets:
            ratios = [self.format.key_ratio[o] for o in one.output_dimensions]
            edges = [0]
            if len(one) > 1:
                keys = np.stack([np.asarray(c) // r for c, r in zip(one.cells, ratios)])
                edges += (np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1).tolist()
            found.append(list(itertools.pairwise([*edges, len(one)])))
        return tuple(found)

    @cached_attribute
    def objects(self) -> int:
        """Number of keys."""
        return math.prod(map(len, self.groups))

    def _object(self, i: int) -> list[range]:
        """Return the rows of each set whose product are the rows of the `i`-th key."""
        ranges = []
        for groups in reversed(self.groups):
            i, rest = divmod(i, len(groups))
            ranges.append(range(*groups[rest]))
        return ranges[::-1]

    def _product_window(self, rows: list[tuple[int, ...]]) -> PlanWindow:
        index: list[Any] = list(zip(*rows)) or [()] * len(self.sets)
        return self._window(index, len(rows), scalar=True)

    def windows(
        self, part: int, parts: int, most: int, *, most_keys: int | None = None
    ) -> Iterator[PlanWindow]:
        """Write down one of `parts` equal parts of the plan, window by window.

        A window has at most `most` rows, of at most `most_keys` keys. Where rows share a key, it
        has all rows of a key however many there are; but if there are fewer keys than parts, parts
        begin and end within keys. Each part goes on where the one before it ends.
        """
        if parts == 1 and self.rows == 1:
            yield self._only_row()
            return
        limited = most_keys is not None and most_keys < most
        if not limited and all(ratio == 1 for ratio in self.format.key_ratio):
            lo, hi = (len(self) * i // parts for i in (part, part + 1))
            for at in range(lo, hi, most):
                yield self.window(at, min(at + most, hi))
            return
        shared = self.objects < parts
        first, end = (self.objects * i // parts for i in (part, part + 1))
        begin, stop = (len(self) * i // parts for i in (part, part + 1))
        rows: list[tuple[int, ...]] = []
        keys = at = 0
        for i in range(self.objects) if shared else range(first, end):
            some = list(itertools.product(*self._object(i)))
            if shared:
                offset, at = at, at + len(some)
                some = some[max(0, begin - offset) : max(0, stop - offset)]
            if rows and (keys == most_keys or len(rows) + len(some) > most):
                yield self._product_window(rows)
                rows, keys = [], 0
            rows += some
            keys += bool(some)
        if rows:
            yield self._product_window(rows)

    def tables(self, parts: int, unit_rows: int) -> Iterator[RowTable]:
        """Write down all rows as tables of at most ``WINDOW_ROWS`` rows, or of one unit.

        Parameters
        ----------
        parts : int
            Number of threads that will share a table; rows of one key are several units if there
            are fewer keys.
        unit_rows : int
            Most rows of a unit, during which nobody asks whether they are still wanted.
        """
        sharded = any(ratio != 1 for ratio in self.format.key_ratio)
        if self.rows <= TABLE_LISTED:
            if sharded:
                objects = [list(itertools.product(*self._object(i))) for i in range(self.objects)]
                rows = list(itertools.chain.from_iterable(objects))
                edges = list(itertools.accumulate(map(len, objects), initial=0))
            else:
                rows = list(itertools.product(*map(range, self.sizes)))
                edges = list(range(self.rows + 1))
            index: list[Any] = list(zip(*rows)) or [()] * len(self.sets)
            yield self._listed_table(index, split_units(edges, parts, unit_rows))
            return
        if not sharded:
            for lo in range(0, self.rows, WINDOW_ROWS):
                hi = min(lo + WINDOW_ROWS, self.rows)
                index = list(np.unravel_index(np.arange(lo, hi), self.sizes))
                yield self._table(index, np.arange(hi - lo + 1))
            return
        most = math.prod(max(end - begin for begin, end in groups) for groups in self.groups)
        step = max(1, WINDOW_ROWS // most)
        for lo in range(0, self.objects, step):
            index, rows_of = self._rows_of_objects(lo, min(lo + step, self.objects))
            edges = split_units(rows_of.tolist(), parts, unit_rows)
            yield self._table(index, np.array(edges))

    def _rows_of_objects(self, lo: int, hi: int) -> tuple[list[Any], NDArray[np.int64]]:
        """Return the row of each set for all rows of keys `lo` to `hi`, and where keys begin."""
        edges = [np.array(groups) for groups in self.groups]
        found = np.unravel_index(np.arange(lo, hi), [len(groups) for groups in edges])
        begins = [groups[at, 0] for groups, at in zip(edges, found)]
        sizes = [groups[at, 1] - begin for groups, at, begin in zip(edges, found, begins)]
        rows = np.prod(sizes, axis=0)
        ends = np.cumsum(rows)
        left = np.arange(ends[-1]) - np.repeat(ends - rows, rows)
        index: list[Any] = []
        for begin, size in zip(reversed(begins), reversed(sizes)):
            left, along = np.divmod(left, np.repeat(size, rows))
            index.append(np.repeat(begin, rows) + along)
        return index[::-1], np.concatenate([[0], ends])

    def _listed_table(self, index: list[Any], edges: list[int]) -> RowTable:
        """Make the table of a few rows."""
        n = edges[-1]
        stride = self.format.stride
        cells: list[Any] = [()] * len(stride)
        count: list[Any] = [[size] * n for size in self.input_shape]
        src_start, dst_start = [0] * n, [0] * n
        for one, rows in zip(self.sets, index):
            dst_start = [at + one.dst_start[i] for at, i in zip(dst_start, rows)]
            for d in one.input_dimensions:
                count[d] = [one.count[i] for i in rows]
            for o, column, inside in zip(one.output_dimensions, one.cells, one.inside):
                cells[o] = [column[i] for i in rows]
                step = stride[o]
                src_start = [at + step * inside[i] for at, i in zip(src_start, rows)]
        words = array("q", edges)
        for one_column in (*cells, src_start, dst_start, *count):
            words.extend(one_column)
        return self._table_of(words, index, n, len(edges) - 1)

    def _table(self, index: list[Any], edges: NDArray[np.int64]) -> RowTable:
        """Make the table of many rows."""
        n = int(edges[-1])
        rank, input_rank, units = len(self.format.stride), len(self.input_shape), len(edges) - 1
        words = np.zeros(units + 1 + (rank + 2 + input_rank) * n, np.int64)
        words[: units + 1] = edges
        columns = words[units + 1 :].reshape(rank + 2 + input_rank, n)
        cells, src_start, dst_start, count = np.split(columns, [rank, rank + 1, rank + 2])
        count[:] = np.array(self.input_shape, np.int64).reshape(-1, 1)
        for one, rows in zip(self.sets, index):
            dst_start += np.asarray(one.dst_start)[rows]
            for d in one.input_dimensions:
                count[d] = np.asarray(one.count)[rows]
            for o, column, inside in zip(one.output_dimensions, one.cells, one.inside):
                cells[o] = np.asarray(column)[rows]
                src_start += self.format.stride[o] * np.asarray(inside)[rows]
        return self._table_of(words, index, n, units)

    def _table_of(self, words: Any, index: list[Any], n: int, units: int) -> RowTable:
        points = [
            TablePoints(first[:-1][list(rows)], first[1:][list(rows)], src, dst)
            for (first, src, dst), rows in zip(self._joined_points, index)
            if len(first)
        ]
        return RowTable(
            words, units, n, n, len(self.format.stride), len(self.input_shape), index, points
        )

    @cached_attribute
    def _joined_points(self) -> list[tuple[Any, Any, Any]]:
        """Points of all rows of each set one behind the other, and where each row's begin."""
        found = []
        none = np.empty(0, np.int64)
        for one in self.sets:
            if one.points is None:
                found.append((none, none, none))
                continue
            first = np.cumsum([0, *(len(src) for src, _ in one.points)])
            src = np.concatenate([src for src, _ in one.points])
            found.append((first, src, np.concatenate([dst for _, dst in one.points])))
        return found

    def rows_of(self, table: RowTable, rows: Sequence[int]) -> PlanWindow:
        """Write down some rows of a table, with their keys."""
        index = [[int(column[row]) for row in rows] for column in table.index]
        return self._window(index, len(rows), scalar=True)

    def span(self, itemsize: int) -> int:
        """Return the most bytes of a decoded chunk from the first element of a row to its last."""
        reach = itemsize
        for one in self.sets:
            if one.points is not None:
                return 1 << 62  # Not looked at: such rows are never narrowed.
            for d in one.input_dimensions:
                reach += abs(self.src_stride[d]) * (int(max(one.count)) - 1)
        return reach

    def spans(self, itemsize: int) -> Counter[tuple[int, bool]]:
        """Number of rows by their span and by whether they are whole.

        A span is the bytes in the decoded chunk from the first to behind the last element.
        """
        found = Counter({(itemsize, self.format.dense): 1})
        for one in self.sets:
            if one.points is not None:
                return Counter({(1 << 62, False): len(self)})
            stride = sum([abs(self.src_stride[d]) for d in one.input_dimensions])
            runs = Counter(zip(map(int, one.count), map(bool, one.whole)))
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
        index: list[Any]
        if len(self.sets) == 1:
            index = [range(lo, hi) if scalar else np.arange(lo, hi)]
        elif scalar:
            rows = itertools.islice(itertools.product(*map(range, self.sizes)), lo, hi)
            index = list(zip(*rows)) or [()] * len(self.sets)
        else:
            index = list(np.unravel_index(np.arange(lo, hi), self.sizes))
        return self._window(index, hi - lo, scalar=scalar)

    def _only_row(self) -> PlanWindow:
        """Write down the window of a plan of one row; small reads are many and each is one."""
        form = self.format
        stride = form.stride
        cells, count = [0] * len(stride), [[size] for size in self.input_shape]
        src_start = dst_start = 0
        whole = form.dense
        for one in self.sets:
            dst_start += one.dst_start[0]
            whole = whole and one.whole[0]
            for d in one.input_dimensions:
                count[d] = [one.count[0]]
            for o, column, inside in zip(one.output_dimensions, one.cells, one.inside):
                cells[o] = column[0]
                src_start += stride[o] * inside[0]
        key = [cell // r for cell, r in zip(cells[: form.key_rank], form.key_ratio)]
        return PlanWindow(
            cells=tuple([[cell] for cell in cells]),
            src_start=[src_start],
            dst_start=[dst_start],
            count=tuple(count),
            whole=[whole],
            src_stride=self.src_stride,
            dst_stride=self.dst_stride,
            keys=[form.key(key)],
            points=self._points([(0,)] * len(self.sets)),
        )

    def _window(self, index: list[Any], n: int, *, scalar: bool) -> PlanWindow:
        """Write down the rows at `index`, one sequence of row numbers a set."""
        stride = self.format.stride
        cells: dict[int, Column] = {}
        count: list[Column] = [[size] * n for size in self.input_shape]
        src_start, dst_start, whole = [], [], []
        for one, rows in zip(self.sets, index):
            dst_start.append(_take(one.dst_start, rows, scalar))
            whole.append(_take(one.whole, rows, scalar))
            for d in one.input_dimensions:
                count[d] = _take(one.count, rows, scalar)
            for o, column, inside in zip(one.output_dimensions, one.cells, one.inside):
                cells[o] = _take(column, rows, scalar)
                src_start.append(_take(inside, rows, scalar, stride[o]))
        if not self.format.dense:
            whole = [[False] * n]
        return PlanWindow(
            cells=tuple([cells[o] for o in range(len(stride))]),
            src_start=_sum(src_start, n, scalar),
            dst_start=_sum(dst_start, n, scalar),
            count=tuple(count),
            whole=_all(whole, n, scalar),
            src_stride=self.src_stride,
            dst_stride=self.dst_stride,
            keys=self._keys(index, n),
            points=self._points(index),
        )

    def _points(self, index: list[Any]) -> list[tuple[Points, ...]] | None:
        columns = [
            [one.points[i] for i in rows]
            for one, rows in zip(self.sets, index)
            if one.points is not None
        ]
        return list(zip(*columns)) if columns else None

    @cached_attribute
    def _key_columns(self) -> list[tuple[int, Column, int, str]]:
        """Set, cells, ratio and separator of each array dimension in order."""
        found: dict[int, tuple[int, Column, int, str]] = {}
        for position, one in enumerate(self.sets):
            for o, cells in zip(one.output_dimensions, one.cells):
                lead = self.format.key_separator if o else ""
                found[o] = (position, cells, self.format.key_ratio[o], lead)
        return [found[o] for o in range(self.format.key_rank)]

    @cached_attribute
    def _key_parts(self) -> list[list[str] | None]:
        """Text that each row of its set adds to a key, for each array dimension.

        None for a set so long that its texts would fill the memory: these are made anew for each
        window.
        """
        return [
            None if len(cells) > WINDOW_ROWS else [f"{lead}{int(cell) // ratio}" for cell in cells]
            for _, cells, ratio, lead in self._key_columns
        ]

    def _keys(self, index: list[Any], n: int) -> list[str]:
        columns: list[Any] = []
        if self.format.names is not None:
            for position, cells, ratio, _ in self._key_columns:
                columns.append([int(cells[i]) // ratio for i in index[position]])
            return [self.format.key(key) for key in zip(*columns)]
        for (position, cells, ratio, lead), parts in zip(self._key_columns, self._key_parts):
            rows = index[position]
            if parts is None:
                columns.append([f"{lead}{int(cells[i]) // ratio}" for i in rows])
            else:
                columns.append([parts[i] for i in rows])
        if not columns:
            return [self.format.key_prefix] * n
        return list(map("".join, zip(itertools.repeat(self.format.key_prefix), *columns)))


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
    for o, (map_, size) in enumerate(zip(transform.output, shape, strict=True)):
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
    grid: ChunkGrid,
    format_of: Callable[[tuple[int, ...]], ChunkFormat],
    dst_stride: Sequence[int],
    max_chunks: int,
) -> list[tuple[tuple[int, ...], ChunkPlan]]:
    """Plan which chunks `transform` touches, one plan a chunk shape.

    Parameters
    ----------
    transform : IndexTransform
        Maps the domain of the array to be read or written to the chunked array; its output ranges
        must lie inside the latter.
    grid : ChunkGrid
        Edges of the chunks of the chunked array.
    format_of : callable
        Returns layout and keys of the chunks, from the shape of a chunk with a key.
    dst_stride : sequence of int, length input_rank
        Bytes between neighbours in the array read or written.
    max_chunks : int
        Limit ``chunks_per_request``.

    Returns
    -------
    list of (tuple of int, ChunkPlan)
        Plans with the shapes of their chunks with keys; empty if the domain is. Each chunk appears
        in at most one row of one plan.

    Raises
    ------
    LimitError
        If more than `max_chunks` chunks are touched.
    """
    input_shape = tuple(transform.domain.shape)
    if 0 in input_shape:
        return []

    def check(rows: int) -> None:
        check_row_count(rows, max_chunks)

    sets = connected_sets(transform, grid, dst_stride, check)
    maps = tuple(transform.output)
    plans = []
    combinations: Iterable[Sequence[ConnectedSet]] = [sets]
    if any([one.sizes for one in sets]):
        combinations = itertools.product(*[one.groups() for one in sets])
    for combination in combinations:
        sizes: list[Any] = list(grid.edges)
        strides = [0] * len(input_shape)
        for one in combination:
            for o, size in one.sizes.items():
                sizes[o] = size
        form = format_of(tuple(sizes))
        for one in combination:
            if one.first is None:
                for d in one.input_dimensions:
                    if input_shape[d] == 1:
                        continue  # Nothing is a stride away, which may be as long as it likes.
                    outputs = [(o, maps[o].stride or 0) for o in one.output_dimensions]
                    strides[d] = sum([form.stride[o] * stride for o, stride in outputs])
        plan = ChunkPlan(
            [
                one if one.first is None else one.listed(form.stride, form.key_ratio)
                for one in combination
            ],
            form,
            tuple(strides),
            tuple(dst_stride),
            input_shape,
        )
        plans.append((tuple(sizes), plan))
    return plans


def check_row_count(rows: int, most: int) -> None:
    """Raise LimitError if there are more than `most` rows."""
    if rows > most:
        raise LimitError(
            f"A read or write of {rows} chunks exceeds the limit chunks_per_request of {most}; "
            f"select less, or raise it with Context({{'limits': {{'chunks_per_request': {rows}}}}})"
        )


def _take(column: Any, rows: Any, scalar: bool, factor: int = 1) -> Any:
    """Return some rows of a column, times a factor."""
    if scalar:
        return [column[i] for i in rows] if factor == 1 else [factor * column[i] for i in rows]
    taken = np.asarray(column)[rows]
    return taken if factor == 1 else factor * taken


def _sum(columns: list[Any], n: int, scalar: bool) -> Column:
    """Sum columns row by row."""
    if len(columns) < 2:
        return columns[0] if columns else [0] * n
    if scalar:
        return list(map(sum, zip(*columns)))
    total: NDArray[np.int64] = np.sum(columns, axis=0)
    return total


def _all(columns: list[Any], n: int, scalar: bool) -> Sequence[bool] | NDArray[np.bool_]:
    """Tell row by row whether all columns are true."""
    if len(columns) < 2:
        return columns[0] if columns else [True] * n
    if scalar:
        return list(map(all, zip(*columns)))
    every: NDArray[np.bool_] = np.all(columns, axis=0)
    return every
