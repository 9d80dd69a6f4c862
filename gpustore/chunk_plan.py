"""Which part of which chunk goes where, as columns of numbers.

:func:`plan_chunks` turns an index transform and a regular chunk grid into a :class:`ChunkPlan`:

1. The input dimensions that share no output dimension are independent of each other, so each
   makes a :class:`PlanTable` of its own: the runs of its interval during which no cell index
   changes. A constant output dimension makes a table of one row.
2. The rows of the plan are the product of the tables in C order. They are never all written
   down: a plan of ten million chunks is a few small tables.
3. :meth:`ChunkPlan.window` writes down the rows of one task: a start in the decoded chunk, a
   start in the array, a count for each input dimension, and the cell each row touches. The byte
   strides are constants of the plan.

Below ``SCALAR_ROWS`` rows the columns are Python lists made by a scalar loop, because NumPy's
fixed cost per call would dominate a read of a few chunks; above, they are int64 arrays. Both
hold the same numbers.

The theory is that of TensorStore's ``internal/grid_partition.h`` (connected sets of input
dimensions).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.errors import LimitError, OutOfBoundsError
from gpustore.index_space import IndexDomain, IndexTransform

__all__ = [
    "SCALAR_ROWS",
    "WINDOW_ROWS",
    "ChunkPlan",
    "PlanTable",
    "PlanWindow",
    "check_bounds",
    "plan_chunks",
]

SCALAR_ROWS = 500
"""Largest number of rows whose columns are made by the scalar loop."""

WINDOW_ROWS = 65_536
"""Largest number of rows a window may have."""

Column = Sequence[int] | NDArray[np.int64]

Points = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Elements one by one: byte offsets in the decoded chunk, and in the array."""

_Map = tuple[int, int, int]
"""Output dimension, offset and stride of a strided output index map."""


@dataclass(frozen=True, slots=True)
class PlanTable:
    """The runs of one connected set: one input dimension (or none) and the outputs that use it.

    Attributes
    ----------
    input_dimension : int or None
        None for a constant output dimension.
    output_dimensions : tuple of int
        Array dimensions whose cell index the rows of this table determine.
    cells : tuple of columns, one an output dimension
        Index of the chunk in the grid.
    src_start, dst_start : column
        Bytes this table adds to the start in the decoded chunk and in the array.
    count : column
        Elements of the run.
    whole : list of bool
        Whether the run covers all of the chunk that lies inside the array, as far as the
        dimensions of this table go.
    points : tuple of Points, optional
        For a set that holds an index array: the elements of each row, one by one.
    """

    input_dimension: int | None
    output_dimensions: tuple[int, ...]
    cells: tuple[Column, ...]
    src_start: Column
    dst_start: Column
    count: Column
    whole: Sequence[bool] | NDArray[np.bool_]
    points: tuple[Points, ...] | None = None

    def __len__(self) -> int:
        return len(self.count)


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
        """Rows `lo` to `hi` of this window."""
        cut = slice(lo, hi)
        return PlanWindow(
            cells=tuple(column[cut] for column in self.cells),
            src_start=self.src_start[cut],
            dst_start=self.dst_start[cut],
            count=tuple(column[cut] for column in self.count),
            whole=self.whole[cut],
            src_stride=self.src_stride,
            dst_stride=self.dst_stride,
            keys=self.keys[cut],
            byte_start=None if self.byte_start is None else self.byte_start[cut],
            byte_stop=None if self.byte_stop is None else self.byte_stop[cut],
            absent=None if self.absent is None else self.absent[cut],
            narrowed=self.narrowed,
            points=None if self.points is None else self.points[cut],
        )

    def take(self, rows: Sequence[int]) -> PlanWindow:
        """The rows with these numbers, before any of them was refined."""

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

    def rows(self) -> tuple[list[int], list[int], list[tuple[int, ...]]]:
        """``src_start``, ``dst_start`` and the shape of each row, as Python ints."""
        counts = [_as_list(column) for column in self.count]
        shapes: list[tuple[int, ...]] = list(zip(*counts)) if counts else [()] * len(self)
        return _as_list(self.src_start), _as_list(self.dst_start), shapes


@dataclass(frozen=True)
class ChunkPlan:
    """A plan of all the rows one transform touches, kept as one table a connected set.

    Attributes
    ----------
    tables : tuple of PlanTable
        In order of their first output dimension; rows are their product in C order.
    src_stride, dst_stride : tuple of int, one an input dimension
        Bytes between neighbours in the decoded chunk and in the array.
    input_shape : tuple of int
        Shape of the transform's domain, and so of the array read or written.
    key_prefix, key_separator : str
        A key is the prefix and the cell indices joined by the separator.
    key_ratio : tuple of int, one an array dimension
        Cells along each dimension that share a key: 1, or the inner chunks of a shard.
    pointed : frozenset of int
        Input dimensions whose elements are listed one by one, because of an index array.
    """

    tables: tuple[PlanTable, ...]
    src_stride: tuple[int, ...]
    dst_stride: tuple[int, ...]
    input_shape: tuple[int, ...]
    key_prefix: str
    key_separator: str
    key_ratio: tuple[int, ...]
    pointed: frozenset[int] = frozenset()

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each table."""
        return tuple(len(table) for table in self.tables)

    def __len__(self) -> int:
        return math.prod(self.sizes) if 0 not in self.input_shape else 0

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
        """Number of keys; each is met in one place of the order of :meth:`object_window`."""
        return math.prod(map(len, self.groups)) if 0 not in self.input_shape else 0

    def object_window(self, i: int) -> PlanWindow:
        """Write down all rows of the `i`-th key, for shards that are handled as a whole."""
        ranges = []
        for groups in reversed(self.groups):
            i, rest = divmod(i, len(groups))
            ranges.append(range(*groups[rest]))
        rows = list(itertools.product(*reversed(ranges)))
        index: list[Any] = list(zip(*rows)) or [()] * len(self.tables)
        return self._window(index, len(rows), scalar=True)

    def windows(
        self, part: int, parts: int, most: int, *, by_key: bool = False
    ) -> Iterator[PlanWindow]:
        """The windows of one of `parts` equal parts of the plan.

        Where no rows share a key a window has at most `most` rows. Otherwise, or if `by_key`, it
        has all the rows of a key, or its share of them if there are fewer keys than parts.
        """
        if not by_key and all(ratio == 1 for ratio in self.key_ratio):
            lo, hi = (len(self) * i // parts for i in (part, part + 1))
            for at in range(lo, hi, most):
                yield self.window(at, min(at + most, hi))
        elif self.objects >= parts:
            lo, hi = (self.objects * i // parts for i in (part, part + 1))
            for i in range(lo, hi):
                yield self.object_window(i)
        else:
            for i in range(self.objects):
                rows = self.object_window(i)
                lo, hi = (len(rows) * at // parts for at in (part, part + 1))
                yield rows.part(lo, hi)

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

    def window(self, lo: int, hi: int) -> PlanWindow:
        """Write down rows `lo` to `hi`, with their keys.

        Raises
        ------
        ValueError
            If the range is not inside the plan or is longer than ``WINDOW_ROWS``.
        """
        if not 0 <= lo <= hi <= len(self) or hi - lo > WINDOW_ROWS:
            raise ValueError(f"window [{lo}, {hi}) of a plan of {len(self)} rows")
        scalar = len(self) <= max(SCALAR_ROWS, 1)
        index = self._scalar_index(lo, hi) if scalar else self._vector_index(lo, hi)
        return self._window(index, hi - lo, scalar=scalar)

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
            points=self._points(index, n),
        )

    def _points(self, index: list[Any], n: int) -> list[tuple[Points, ...]] | None:
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
        if scalar:
            taken = [[table.whole[i] for i in rows] for table, rows in zip(self.tables, index)]
            return [all(row) for row in zip(*taken)] if taken else [True] * n
        whole = np.ones(n, np.bool_)
        for table, rows in zip(self.tables, index):
            whole &= np.asarray(table.whole)[rows]
        return whole

    @cached_property
    def _key_parts(self) -> list[tuple[int, list[str]]]:
        """For each array dimension in order: its table, and the text each row adds to a key."""
        found: dict[int, tuple[int, list[str]]] = {}
        for position, table in enumerate(self.tables):
            for dimension, cells in zip(table.output_dimensions, table.cells):
                lead = self.key_separator if dimension else ""
                ratio = self.key_ratio[dimension]
                found[dimension] = (position, [f"{lead}{cell // ratio}" for cell in cells])
        return [found[dimension] for dimension in sorted(found)]

    def _keys(self, index: list[Any], n: int) -> list[str]:
        columns = []
        for position, parts in self._key_parts:
            rows = index[position]
            columns.append([parts[i] for i in (rows if isinstance(rows, range) else list(rows))])
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
    used_by: dict[int, list[_Map]] = {}
    tables: list[PlanTable] = []
    empty = 0 in input_shape
    strides = [0] * len(input_shape)
    sets = _pointed_sets(transform)
    pointed = frozenset(d for dims, _ in sets for d in dims)
    listed = {o for _, outputs in sets for o in outputs}
    for o, map_ in enumerate(transform.output):
        if o in listed:
            continue
        if map_.input_dimension is not None and map_.stride is not None:
            used_by.setdefault(map_.input_dimension, []).append((o, map_.offset, map_.stride))
        elif not empty:
            offset = map_.offset
            if map_.index_array is not None and map_.stride is not None:
                offset += map_.stride * int(map_.index_array.item(0))  # The same everywhere.
            tables.append(_constant_table(o, offset, shape, chunk_shape, src_stride))
    # Refused before it is built: the table of one dimension alone could fill the memory.
    fewest = [_fewest_runs(input_shape[d], maps, chunk_shape) for d, maps in used_by.items()]
    if not empty:
        _check_rows(math.prod(fewest), max_chunks)
    for dims, outputs in sets:
        if not empty:
            tables.append(
                _points_table(transform, dims, outputs, chunk_shape, src_stride, dst_stride)
            )
    for d, maps in used_by.items():
        strides[d] = sum(src_stride[o] * stride for o, _, stride in maps)
        if not empty:
            table = _strided_table(
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
        pointed,
    )
    _check_rows(len(plan), max_chunks)
    return plan


def _pointed_sets(transform: IndexTransform) -> list[tuple[list[int], list[int]]]:
    """Connected sets that hold an index array: their input and their output dimensions."""
    extent = transform.domain.shape
    # Input dimensions that one array depends on belong together; so do sets that share one.
    groups: list[tuple[set[int], list[int]]] = []
    for o, map_ in enumerate(transform.output):
        if map_.index_array is None:
            continue
        dims = {d for d, size in enumerate(map_.index_array.shape) if size != 1 and extent[d] != 1}
        outputs = [o]
        if not dims:
            continue  # The same index everywhere: a constant.
        for group in [group for group in groups if group[0] & dims]:
            groups.remove(group)
            dims |= group[0]
            outputs += group[1]
        groups.append((dims, outputs))
    for dims, outputs in groups:
        outputs += [o for o, map_ in enumerate(transform.output) if map_.input_dimension in dims]
    return [(sorted(dims), sorted(outputs)) for dims, outputs in groups]


def _points_table(
    transform: IndexTransform,
    dims: list[int],
    outputs: list[int],
    chunk_shape: Sequence[int],
    src_stride: Sequence[int],
    dst_stride: Sequence[int],
) -> PlanTable:
    """The elements of a set that holds an index array, sorted by cell."""
    domain = transform.domain
    extent = [domain.shape[d] for d in dims]
    src = np.zeros(extent, np.int64)
    dst = np.zeros(extent, np.int64)
    axes = {d: np.arange(domain.shape[d]).reshape(_along(i, len(dims))) for i, d in enumerate(dims)}
    cells = []
    for o in outputs:
        map_ = transform.output[o]
        stride = 1 if map_.stride is None else map_.stride
        d = map_.input_dimension
        if map_.index_array is not None:
            # One axis for each dimension of the set: the array has size 1 along all others.
            index = map_.index_array.reshape([map_.index_array.shape[d] for d in dims])
        else:
            assert d is not None
            index = domain.inclusive_min[d] + axes[d]
        position = map_.offset + stride * index
        cell = position // chunk_shape[o]
        src += src_stride[o] * (position - cell * chunk_shape[o])
        cells.append(np.broadcast_to(cell, extent).ravel())
    for d in dims:
        dst += dst_stride[d] * axes[d]
    # Stable, so that the elements of a cell stay in the order of the request.
    order = np.lexsort(cells[::-1])
    ordered = [cell[order] for cell in cells]
    changes = np.zeros(len(order), np.bool_)
    changes[:1] = True
    for cell in ordered:
        changes[1:] |= cell[1:] != cell[:-1]
    first = np.flatnonzero(changes)
    src_points = np.split(src.ravel()[order], first[1:])
    dst_points = np.split(dst.ravel()[order], first[1:])
    rows = len(first)
    return PlanTable(
        None,
        tuple(outputs),
        tuple(cell[first].tolist() for cell in ordered),
        [0] * rows,
        [0] * rows,
        [1] * rows,
        [False] * rows,
        tuple(zip(src_points, dst_points)),
    )


def _along(axis: int, rank: int) -> tuple[int, ...]:
    """The shape that stretches one axis."""
    return tuple(-1 if i == axis else 1 for i in range(rank))


def _check_rows(rows: int, most: int) -> None:
    if rows > most:
        raise LimitError(
            f"A read or write of {rows} chunks exceeds the limit chunks_per_request of {most}; "
            f"select less, or raise it with Context({{'limits': {{'chunks_per_request': {rows}}}}})"
        )


def _constant_table(
    o: int, offset: int, shape: Sequence[int], chunk_shape: Sequence[int], stride: Sequence[int]
) -> PlanTable:
    cell, position = divmod(offset, chunk_shape[o])
    extent = min(chunk_shape[o], shape[o] - cell * chunk_shape[o])
    return PlanTable(None, (o,), ([cell],), [position * stride[o]], [0], [1], [extent == 1])


def _fewest_runs(n: int, maps: list[_Map], chunk_shape: Sequence[int]) -> int:
    """Lower bound of the runs of an interval of `n` indices, without building them."""
    return min(n, max(1 + (n - 1) * abs(stride) // chunk_shape[o] for o, _, stride in maps))


def _most_runs(n: int, maps: list[_Map], chunk_shape: Sequence[int]) -> int:
    """Upper bound of the runs."""
    return min(n, sum(2 + (n - 1) * abs(stride) // chunk_shape[o] for o, _, stride in maps))


def _run_starts(
    i: int, n: int, offset: int, stride: int, chunk: int, *, scalar: bool
) -> list[int] | NDArray[np.int64]:
    """Indices in [i, i+n) at which the cell of ``offset + stride * index`` changes, and `i`."""
    if abs(stride) >= chunk:
        return list(range(i, i + n)) if scalar else np.arange(i, i + n)
    first = (offset + stride * i) // chunk
    last = (offset + stride * (i + n - 1)) // chunk
    # Cell c begins at the first index whose position reaches (rising) or falls to (falling)
    # its edge: ceil((edge - offset) / stride), written with the floor division Python has.
    if stride > 0:
        cells, edge = (first + 1, last + 1, 1), 0
    else:
        cells, edge = (first - 1, last - 1, -1), chunk - 1
    if scalar:
        return [i, *(-((offset - c * chunk - edge) // stride) for c in range(*cells))]
    positions = np.arange(*cells, dtype=np.int64) * chunk + edge
    return np.concatenate([np.array([i]), -((offset - positions) // stride)])


def _strided_table(
    d: int,
    low: int,
    n: int,
    maps: list[_Map],
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    src_stride: Sequence[int],
    dst_stride: int,
) -> PlanTable:
    scalar = _most_runs(n, maps, chunk_shape) <= SCALAR_ROWS
    starts: Any
    if len(maps) == 1:
        o, offset, stride = maps[0]
        starts = _run_starts(low, n, offset, stride, chunk_shape[o], scalar=scalar)
    else:
        # A diagonal: a run ends where any of the outputs changes its cell.
        every = [_run_starts(low, n, a, b, chunk_shape[o], scalar=scalar) for o, a, b in maps]
        starts = sorted(set().union(*every)) if scalar else np.unique(np.concatenate(every))
    if scalar:
        return _scalar_table(
            d, low, n, list(starts), maps, shape, chunk_shape, src_stride, dst_stride
        )
    count = np.diff(starts, append=low + n)
    extent = np.ones(len(starts), np.int64)
    src = np.zeros(len(starts), np.int64)
    cells = []
    for o, offset, stride in maps:
        position = offset + stride * starts
        cell = position // chunk_shape[o]
        src += src_stride[o] * (position - cell * chunk_shape[o])
        extent *= np.minimum(chunk_shape[o], shape[o] - cell * chunk_shape[o])
        cells.append(cell)
    return PlanTable(
        d,
        tuple(o for o, _, _ in maps),
        tuple(cells),
        src,
        dst_stride * (starts - low),
        count,
        count == extent,
    )


def _scalar_table(
    d: int,
    low: int,
    n: int,
    starts: list[int],
    maps: list[_Map],
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    src_stride: Sequence[int],
    dst_stride: int,
) -> PlanTable:
    count = [b - a for a, b in zip(starts, [*starts[1:], low + n])]
    extent = [1] * len(starts)
    src = [0] * len(starts)
    cells = []
    for o, offset, stride in maps:
        chunk, size, byte_stride = chunk_shape[o], shape[o], src_stride[o]
        column = []
        for row, start in enumerate(starts):
            cell, position = divmod(offset + stride * start, chunk)
            src[row] += byte_stride * position
            extent[row] *= min(chunk, size - cell * chunk)
            column.append(cell)
        cells.append(column)
    return PlanTable(
        d,
        tuple(o for o, _, _ in maps),
        tuple(cells),
        src,
        [dst_stride * (start - low) for start in starts],
        count,
        [c == e for c, e in zip(count, extent)],
    )


def _as_list(column: Column) -> list[int]:
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


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
