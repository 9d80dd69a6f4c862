"""Values of the rows of a window that a device does not have, beside the chunks that it has.

An array with a ``device_cache_pool`` is read window by window:

1. Look up all chunks of the window at once. Of shards, each innermost chunk is an entry.
2. Entries read before the time :attr:`Residence.bound` are compared with the stored generation, all
   keys in one request.
3. Chunks without an entry are fetched, as without the pool. The sink keeps what it has decoded of
   them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpustore.kvstores.arena import Arena
from gpustore.pipelines.cached import cached_values, stored_generations
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.fetch import BATCH_NBYTES, fetched_batches, refuse_missing
from gpustore.planning.chunk_grid import Integers
from gpustore.planning.window import PlanWindow
from gpustore.resources.device_cache_pool import Residence
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.statistics import STATISTICS


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
    if is_known.all():
        batch = max(1, len(planned))
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
