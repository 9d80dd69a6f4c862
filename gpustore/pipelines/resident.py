"""Reads of an array with a ``device_cache_pool``, whose chunks a device may have.

If all chunks of a read are there, and known to be the stored ones, one task places them: their rows
are looked up and placed as columns (:func:`resident_tables`). Else the native core fetches those
that are not there (:mod:`gpustore.pipelines.native_fill`). Where it cannot, and for chunks that
have to be compared with what is stored, the array is read window by window:

1. Look up all chunks of the window at once. Of shards, each innermost chunk is an entry.
2. Entries read before the time :attr:`Residence.bound` are compared with the stored generation, all
   keys in one request.
3. Chunks without an entry are fetched, as without the pool. The sink keeps what it has decoded of
   them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpustore.backends.base import CACHED, IN_PLACE, Chunks, TableRows
from gpustore.backends.native.request import strided_maps
from gpustore.device.chunk_tables import ChunkTables
from gpustore.device.kernels.box import Box
from gpustore.index_space import IndexTransform
from gpustore.kvstores.arena import Arena
from gpustore.pipelines.cached import cached_batches, cached_values, stored_generations
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.fetch import BATCH_NBYTES, fetched_batches, refuse_missing
from gpustore.pipelines.table_rows import TableKeys, strides_of, windows_of
from gpustore.planning.chunk_box import chunk_box
from gpustore.planning.chunk_grid import Integers
from gpustore.planning.chunk_plan import ChunkPlan
from gpustore.planning.copy_plan import CopyPlan
from gpustore.planning.row_table import RowTable
from gpustore.planning.window import PlanWindow
from gpustore.resources.device_cache_pool import Residence
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.statistics import STATISTICS


class ResidentTable(NamedTuple):
    """Rows of a plan whose chunks a device has.

    Attributes
    ----------
    array : ChunkedArray
    plan : ChunkPlan or CopyPlan
    table : RowTable
    chunks : CachedChunks
        Chunks of the rows of the table.
    box : Box or None
        The rows as a box, if the tables of all chunks are on the device.
    """

    array: ChunkedArray
    plan: ChunkPlan | CopyPlan
    table: RowTable
    chunks: Any
    box: Box | None

    @property
    def sort(self) -> Chunks:
        """Description of the chunks for the sink of the read."""
        source = IN_PLACE if self.chunks.are_in_place else CACHED
        return Chunks(self.array.chain, self.table.rows, self.table.regions, source)

    def place(self, sink: Any, *, by_element: bool) -> None:
        """Give the chunks to the sink of a device."""
        keys = TableKeys(self.table, windows_of(self.plan))
        rows = TableRows(self.table, strides_of(self.plan), keys, by_element, self.box)
        with sink.part(self.array.chain, rows=self.table.rows) as part:
            part.place(rows, self.chunks)


def resident_tables(
    plans: Sequence[tuple[ChunkedArray, ChunkPlan | CopyPlan]],
    transform: IndexTransform | None = None,
) -> list[ResidentTable] | None:
    """Look up all chunks of a read, without I/O.

    `transform` maps the domain of the read to the array, if it is one read. None unless all are
    there and none is older than the read allows, nor missing where chunks must be stored.
    """
    found = []
    for array, plan in plans:
        residence = array.residence
        if not array.is_resident or residence is None or residence.bound > time.time():
            return None
        numbering = array.cell_numbers
        if residence.cache.count(residence.array, numbering) < len(plan):
            return None
        for table in plan.tables(1, max(1, len(plan))):
            chunks, old = table_chunks(array, table, 0, table.rows)
            is_there = chunks.is_known if array.fill_missing else chunks.slab > 0
            if len(old) or not is_there.all():
                return None
            box = None
            if chunks.tables is not None and transform is not None:
                box = _box(array, plan, table, chunks.tables, transform)
            found.append(ResidentTable(array, plan, table, chunks, box))
    STATISTICS.add(device_cache_hits=sum([one.table.rows for one in found]))
    return found


def _box(
    array: ChunkedArray,
    plan: ChunkPlan | CopyPlan,
    table: RowTable,
    tables: ChunkTables,
    transform: IndexTransform,
) -> Box | None:
    """Return the rows of a read as a box of chunks; None if they are not one."""
    strides = array.chain.layout.strides
    if array.grid is not None or len(strides) != len(array.shape):
        return None
    maps = strided_maps(transform, array.shape, array.chunk_shape)
    if maps is None or maps[0] != table.rows:
        return None
    dims = chunk_box(
        *(transform.domain, maps[1], array.chunk_shape, array.cell_numbers, array.key_ratio),
        (strides, strides_of(plan)[1][0]),
    )
    return None if dims is None else Box(dims, tables)


def table_chunks(array: ChunkedArray, table: RowTable, lo: int, hi: int) -> tuple[Any, Integers]:
    """Look up the chunks of rows `lo` to `hi` of a table.

    Returns
    -------
    CachedChunks or None
        None if the device of the array keeps none.
    ndarray of int64
        Numbers from `lo` on of rows whose chunks have to be compared with the stored ones.
    """
    residence = array.residence
    if not array.is_resident or residence is None:
        return None, np.zeros(0, np.int64)
    numbering = array.cell_numbers
    cells = list(table.cells[:, lo:hi])
    numbers = numbering.of_cells(cells, array.key_ratio)
    found: tuple[Any, Integers] = residence.cache.find(
        residence.array, numbering, numbers, time.time(), residence.bound
    )
    return found


def place_all(tables: Sequence[ResidentTable], sink: Any, *, by_element: bool = False) -> None:
    """Give the chunks of all tables of a read to the sink of a device."""
    for one in tables:
        one.place(sink, by_element=by_element)


def batches(
    array: ChunkedArray,
    planned: PlanWindow,
    arena: Callable[[], Arena],
    most_nbytes: int | None,
) -> Iterator[tuple[int, PlanWindow, list[Buffer | None], Any]]:
    """Fetch the values of a window for a sink, through the caches of the array if it has any.

    Yields the tuples of :func:`gpustore.pipelines.fetch.fetched_batches`, and the chunks as the
    cache of a device knows them, or None.
    """
    if array.is_resident:
        yield from resident_batches(array, planned, most_nbytes, arena)
        return
    if array.stored is None:
        found = fetched_batches(array, planned, most_nbytes, arena)
    else:
        found = cached_batches(array, planned, most_nbytes)
    for first, rows, values in found:
        yield first, rows, values, None


def resident_batches(
    array: ChunkedArray,
    planned: PlanWindow,
    nbytes: int | None,
    arena: Callable[[], Arena],
) -> Iterator[tuple[int, PlanWindow, list[Buffer | None], Any]]:
    """Look up the chunks of a window, and fetch those that are not there batch by batch.

    Yields
    ------
    int, PlanWindow, list of buffer or None, CachedChunks
        The first of some rows of `planned`, those rows, the values of those whose chunks are not on
        the device, valid until the next batch, and the chunks.
    """
    residence = array.residence
    assert residence is not None
    chunks = _looked_up(array, residence, planned)
    is_known = chunks.is_known
    STATISTICS.add(
        device_cache_hits=int(is_known.sum()), device_cache_misses=int((~is_known).sum())
    )
    batch = max(1, (nbytes or BATCH_NBYTES) // max(1, array.chain.batch_nbytes))
    wanted = CancelToken.current()
    for first in range(0, len(planned), batch):
        wanted.check()
        rows = planned.part(first, first + batch)
        some = chunks.take(slice(first, first + batch))
        values: list[Buffer | None] = [None] * len(rows)
        left = np.flatnonzero(~some.is_known)
        if len(left):
            _fetch(array, rows, left, nbytes, arena, values, some)
        if not array.fill_missing:
            is_missing = some.is_missing
            is_missing[left] = [values[row] is None for row in left.tolist()]
            absent = np.flatnonzero(is_missing).tolist()
            if absent:
                refuse_missing(array, rows.take(absent), [None] * len(absent))
        yield first, rows, values, some


def _looked_up(array: ChunkedArray, residence: Residence, rows: PlanWindow) -> Any:
    """Look up chunks; entries of other values than the stored ones are not used."""
    numbering = array.cell_numbers
    numbers = numbering.of_cells(rows.cells, array.key_ratio)
    now = time.time()
    chunks, old = residence.cache.find(residence.array, numbering, numbers, now, residence.bound)
    if len(old):
        assert array.stored is not None
        keys = [rows.keys[row] for row in old.tolist()]
        current = stored_generations(array.stored, keys)
        residence.cache.confirm(chunks, old, [current[key] for key in keys])
    return chunks


def _fetch(
    array: ChunkedArray,
    rows: PlanWindow,
    left: Integers,
    nbytes: int | None,
    arena: Callable[[], Arena],
    values: list[Buffer | None],
    chunks: Any,
) -> None:
    """Fetch the values of the rows `left`, and note their generations in `chunks`."""
    stored = array.stored
    assert stored is not None
    numbers = left.tolist()
    some = rows if len(numbers) == len(rows) else rows.take(numbers)
    seen: dict[str, bytes] = {}
    if array.cache is not None:
        found = cached_values(stored, array.cache, some, seen)
    else:
        found = []
        for _, _, fetched in fetched_batches(stored, some, nbytes, arena, seen):
            # A change of a value meanwhile divides the batch; earlier values lose their memory.
            found = [None if value is None else bytes(value) for value in found]
            found += fetched
    for row, value in zip(numbers, found, strict=True):
        values[row] = value
    chunks.generation[left] = [seen.get(key, b"") for key in some.keys]
