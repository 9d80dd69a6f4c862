"""Connected sets of dimensions, and the rows that each adds to a plan.

A set is one input dimension and the output dimensions that use it, a constant output dimension, or
all that an index array ties together. A few rows are found by a scalar loop, more by NumPy; up to
``SCALAR_ROWS`` rows are kept in lists. All hold the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpustore.index_space import IndexTransform
from gpustore.index_space.output_map import OutputIndexMap
from gpustore.planning.chunk_grid import ChunkGrid, Integers, StridedMap
from gpustore.planning.window import Points

SCALAR_ROWS = 500
"""Largest number of rows that are kept in lists, because a plan of so few is written as lists."""

SCALAR_RUNS = 64
"""Largest number of rows of one set that are found by a scalar loop; NumPy is slower for fewer."""


@dataclass(slots=True)
class ConnectedSet:
    """Runs of one connected set of dimensions.

    Attributes
    ----------
    input_dimensions : sequence of int
        Input dimensions: one, none for a constant output, any number with an index array.
    output_dimensions : tuple of int
        Array dimensions whose cell index the rows of this set determine.
    cells : sequence of columns, one an output dimension
        Index of the chunk in the grid.
    inside : sequence of columns, one an output dimension
        Position of the first element in the chunk; with `first`, of each element.
    sizes : dict of int to column
        Size of the chunk with a key, by output dimension; only where sizes differ.
    dst_start : column
        Bytes this set adds to the start in the array; with `first`, of each element.
    count : column
        Elements of the run.
    whole : column of bool
        Whether the run covers all of the chunk that lies inside the array, as far as the
        dimensions of this set go.
    first : int64 array, optional
        For a set that holds an index array: where the elements of each row begin and the last end.
    points : list of Points, optional
        The same elements for one shape of chunks; see :meth:`listed`.
    """

    input_dimensions: Sequence[int]
    output_dimensions: tuple[int, ...]
    cells: Sequence[Any]
    inside: Sequence[Any]
    sizes: dict[int, Any]
    dst_start: Any
    count: Any
    whole: Any
    first: Integers | None = None
    points: list[Points] | None = None

    def __len__(self) -> int:
        return len(self.count)

    def keys(self, key_ratio: Sequence[int]) -> list[tuple[int, ...]]:
        """Compute the indices that each row adds to its key."""
        columns = zip(self.cells, [key_ratio[o] for o in self.output_dimensions])
        return list(zip(*[[cell // ratio for cell in cells] for cells, ratio in columns]))

    def groups(self) -> list[ConnectedSet]:
        """Split the rows by the sizes of their chunks; `sizes` of the parts are integers."""
        if not self.sizes:
            return [self]
        rows: dict[tuple[int, ...], list[int]] = {}
        for row, key in enumerate(zip(*self.sizes.values())):
            rows.setdefault(key, []).append(row)
        return [self._part(key, rows[key]) for key in sorted(rows)]

    def _part(self, sizes: Iterable[int], rows: list[int]) -> ConnectedSet:
        """Return the rows of chunks of these sizes, whose elements follow one another."""
        inside, dst_start, first = self.inside, self.dst_start, self.first
        if first is None:
            inside, dst_start = [_take(column, rows) for column in inside], _take(dst_start, rows)
        else:
            some = slice(int(first[rows[0]]), int(first[rows[-1] + 1]))
            inside, dst_start = [column[some] for column in inside], dst_start[some]
            first = first[rows[0] : rows[-1] + 2] - some.start
        return ConnectedSet(
            self.input_dimensions,
            self.output_dimensions,
            [_take(column, rows) for column in self.cells],
            inside,
            dict(zip(self.sizes, sizes)),
            dst_start,
            _take(self.count, rows),
            _take(self.whole, rows),
            first,
        )

    def listed(self, chunk_stride: Sequence[int], key_ratio: Sequence[int]) -> ConnectedSet:
        """Write down the elements of a set with an index array as points of chunks stored so."""
        assert self.first is not None
        src = np.zeros(len(self.dst_start), np.int64)
        for o, inside in zip(self.output_dimensions, self.inside):
            src += chunk_stride[o] * inside
        at = self.first[1:-1]
        points = list(zip(np.split(src, at), np.split(self.dst_start, at)))
        # Rows that share a key follow one another, so that a shard is read or written once.
        rows = sorted(range(len(self)), key=self.keys(key_ratio).__getitem__)
        zeros = [0] * len(rows)
        return ConnectedSet(
            self.input_dimensions,
            self.output_dimensions,
            [_take(cells, rows) for cells in self.cells],
            [zeros] * len(self.cells),
            {},
            zeros,
            self.count,
            self.whole,
            points=_take(points, rows),
        )


def _take(column: Any, rows: list[int]) -> Any:
    return [column[row] for row in rows] if isinstance(column, list) else _short(column[rows])


def _short(column: Any) -> Any:
    """Return a column as a list if it is short."""
    return column.tolist() if len(column) <= SCALAR_ROWS else column


def connected_sets(
    transform: IndexTransform,
    grid: ChunkGrid,
    dst_stride: Sequence[int],
    check: Callable[[int], None],
) -> list[ConnectedSet]:
    """Find the runs of all connected sets, in order of their first output dimension.

    Parameters
    ----------
    transform : IndexTransform
        Maps a domain that is not empty into the array of `grid`.
    dst_stride : sequence of int, length input_rank
        Bytes between neighbours in the array read or written.
    check : callable
        Raises if there are too many rows; called before memory is taken for them.
    """
    domain = transform.domain
    low, extent = domain.inclusive_min, domain.shape
    pointed = pointed_sets(transform)
    used_by, constant = maps_by_input(transform, {o for _, outputs in pointed for o in outputs})
    rows = 1
    for d, maps in used_by.items():
        rows *= grid.fewest_runs(extent[d], maps)
    if rows > 1:
        check(rows)
    found = [
        _constant_set(o, map_.offset if map_.stride is None else _constant_index(map_), grid)
        for o, map_ in constant
    ]
    found += [_pointed_set(transform, *one, grid, dst_stride) for one in pointed]
    for d, maps in used_by.items():
        found.append(_strided_set(d, low[d], extent[d], maps, grid, dst_stride[d], check))
    if pointed or (constant and used_by):  # Each kind by itself is in order.
        found.sort(key=lambda one: one.output_dimensions[0])
    rows = 1
    for one in found:
        rows *= len(one.count)
    if rows > 1:
        check(rows)
    return found


def maps_by_input(
    transform: IndexTransform, listed: Container[int] = ()
) -> tuple[dict[int, list[StridedMap]], list[tuple[int, OutputIndexMap]]]:
    """Group strided maps by the input dimension they follow, and list outputs that follow none.

    Output dimensions in `listed` are left out.
    """
    used_by: dict[int, list[StridedMap]] = {}
    constant: list[tuple[int, OutputIndexMap]] = []
    for o, map_ in enumerate(transform.output):
        if o in listed:
            continue
        if map_.input_dimension is not None and map_.stride:
            used_by.setdefault(map_.input_dimension, []).append((o, map_.offset, map_.stride))
        else:
            constant.append((o, map_))
    return used_by, constant


def pointed_sets(transform: IndexTransform) -> list[tuple[list[int], list[int]]]:
    """Find the input and output dimensions of connected sets that hold an index array."""
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


def _constant_index(map_: OutputIndexMap) -> int:
    """Return the index of a map that follows no dimension; the domain is not empty."""
    if map_.index_array is None or map_.stride is None:
        return map_.offset
    return map_.offset + map_.stride * int(map_.index_array.item(0))  # The same everywhere.


def _constant_set(o: int, position: int, grid: ChunkGrid) -> ConnectedSet:
    """Locate the one index of an output dimension: one row."""
    sizes: dict[int, Any] = {}
    size: Any = grid.edges[o]
    if isinstance(size, int):  # As `locate`, without a call: elements are read one by one.
        extent = size if grid.inner is None else grid.inner[o]
        cell, inside = divmod(position, extent)
    else:
        cell, inside, size = grid.locate(o, position)
        extent = grid.constant(o) or size
        sizes = {o: [size]}
    extent = min(extent, grid.shape[o] - (position - inside))
    return ConnectedSet((), (o,), ([cell],), ([inside],), sizes, [0], [1], [extent == 1])


def _strided_set(
    d: int,
    low: int,
    n: int,
    maps: Sequence[StridedMap],
    grid: ChunkGrid,
    dst_stride: int,
    check: Callable[[int], None],
) -> ConnectedSet:
    """Find the runs of input dimension `d` during which the chunks of its outputs stay the same."""
    outputs = tuple([o for o, _, _ in maps])
    if _most_runs(low, n, maps, grid) <= SCALAR_RUNS:
        return _scalar_set(d, low, n, maps, grid, dst_stride)
    _, _, offset, count = grid.runs(np.array([low]), n, maps, check)
    extent: Any = 1
    cells, inside, sizes = [], [], {}
    for o, a, b in maps:
        positions = a + b * (low + offset)
        cell, position, size = grid.locate(o, positions)
        left = grid.shape[o] - (positions - position)
        extent = extent * np.minimum(grid.constant(o) or size, left)
        cells.append(_short(cell))
        inside.append(_short(position))
        if not isinstance(size, int):
            sizes[o] = size.tolist()
    dst = _short(dst_stride * offset)
    whole = _short(count == extent)
    return ConnectedSet((d,), outputs, cells, inside, sizes, dst, _short(count), whole)


def _most_runs(low: int, n: int, maps: Sequence[StridedMap], grid: ChunkGrid) -> int:
    """Return an upper bound of the runs of an interval."""
    if n <= SCALAR_RUNS:
        return n
    most = 1
    for o, offset, stride in maps:
        first, last = offset + stride * low, offset + stride * (low + n - 1)
        most += grid.crossed(o, first, last)
    return min(n, most)


def _scalar_set(
    d: int, low: int, n: int, maps: Sequence[StridedMap], grid: ChunkGrid, dst_stride: int
) -> ConnectedSet:
    """Find the runs of an interval by a scalar loop."""
    outputs = tuple([o for o, _, _ in maps])
    cells: list[list[int]] = [[] for _ in maps]
    inside: list[list[int]] = [[] for _ in maps]
    sizes: dict[int, Any] = {o: [] for o in outputs if not isinstance(grid.edges[o], int)}
    places: list[Any] = list(zip(maps, map(grid.constant, outputs), cells, inside))
    dst_start, counts, whole = [], [], []
    at = 0
    while at < n:
        count, extent = n - at, 1
        for (o, offset, stride), chunk, own_cells, own_inside in places:
            position = offset + stride * (low + at)
            if o in sizes:
                cell, begin, size = grid.locate(o, position)
                sizes[o].append(size)
            else:
                cell, begin = divmod(position, chunk)
            length = min(chunk or size, grid.shape[o] - position + begin)
            more = (length - 1 - begin) // stride if stride > 0 else begin // -stride
            if more < count:
                count = more + 1
            extent *= length
            own_cells.append(cell)
            own_inside.append(begin)
        dst_start.append(dst_stride * at)
        counts.append(count)
        whole.append(count == extent)
        at += count
    return ConnectedSet((d,), outputs, cells, inside, sizes, dst_start, counts, whole)


def _pointed_set(
    transform: IndexTransform,
    dims: list[int],
    outputs: list[int],
    grid: ChunkGrid,
    dst_stride: Sequence[int],
) -> ConnectedSet:
    """Locate the elements of a set that holds an index array, sorted by chunk."""
    domain = transform.domain
    extent = [domain.shape[d] for d in dims]
    axes = {}
    dst = np.zeros(extent, np.int64)
    for i, d in enumerate(dims):
        along = [1] * len(dims)
        along[i] = -1
        axes[d] = np.arange(domain.shape[d]).reshape(along)
        dst += dst_stride[d] * axes[d]

    def spread(column: Integers) -> Integers:
        return np.broadcast_to(column, extent).ravel()

    cells, inside, sizes = [], [], {}
    for o in outputs:
        map_ = transform.output[o]
        if map_.index_array is not None:
            # One axis for each dimension of the set: the array has size 1 along all others.
            index = map_.index_array.reshape([map_.index_array.shape[d] for d in dims])
        else:
            assert map_.input_dimension is not None
            index = domain.inclusive_min[map_.input_dimension] + axes[map_.input_dimension]
        position = map_.offset + (1 if map_.stride is None else map_.stride) * index
        cell, at, size = grid.locate(o, position)
        cells.append(spread(cell))
        inside.append(spread(at))
        if not isinstance(size, int):
            sizes[o] = spread(size)
    # By size first: elements of chunks of one size follow one another. Stable, so that those of a
    # chunk stay in the order of the request.
    keys = [*sizes.values(), *cells]
    order = np.lexsort(keys[::-1])
    changes = np.zeros(len(order), np.bool_)
    changes[:1] = True
    for i, key in enumerate(keys):
        keys[i] = key = key[order]
        changes[1:] |= key[1:] != key[:-1]
    first = np.flatnonzero(changes)
    columns = [key[first].tolist() for key in keys]
    rows = len(first)
    return ConnectedSet(
        dims,
        tuple(outputs),
        columns[len(sizes) :],
        [at[order] for at in inside],
        dict(zip(sizes, columns)),
        dst.ravel()[order],
        [1] * rows,
        [False] * rows,
        np.append(first, len(order)),
    )
