"""Values of the rows of a window, batch by batch, through the cache in host memory.

An array with a cache is read as if its chunks were stored as they are cached
(:meth:`gpustore.pipelines.chunked_array.ChunkedArray.reader`): decoded, or encoded if a device
decodes them.

1. Look up the chunks. Of shards, each innermost chunk is an entry.
2. Entries read before the time ``CacheUse.bound`` of the array are compared with the stored
   generation, all keys in one request.
3. Chunks without an entry, or with another generation, are fetched and kept whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from gpustore.errors import GpustoreError
from gpustore.kvstores.columns import ReadRequest
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.fetch import BATCH_NBYTES, fetched_batches, refuse_missing
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cache import CacheUse, Entry, Part
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.statistics import STATISTICS

_ENCODED = "encoded"
"""Part of a key of values that are kept as they are stored; others are kept decoded."""


def cached_batches(
    array: ChunkedArray, planned: PlanWindow, nbytes: int | None
) -> Iterator[tuple[int, PlanWindow, list[Buffer | None]]]:
    """Fetch a window of an array with a cache batch by batch.

    Yields the tuples of :func:`gpustore.pipelines.fetch.fetched_batches`; the values are cached
    chunks in host memory and belong to ``array.chain``.
    """
    use, stored = array.cache, array.stored
    assert use is not None
    assert stored is not None
    nbytes = nbytes or array.store.batch_nbytes or BATCH_NBYTES
    batch = max(1, nbytes // max(1, array.chain.batch_nbytes))
    wanted = CancelToken.current()
    for first in range(0, len(planned), batch):
        wanted.check()
        rows = planned.part(first, first + batch)
        values = cached_values(stored, use, rows)
        if not array.fill_missing:
            refuse_missing(array, rows, values)
        yield first, rows, values


def cached_values(
    stored: ChunkedArray,
    use: CacheUse,
    rows: PlanWindow,
    generations: dict[str, bytes] | None = None,
) -> list[Buffer | None]:
    """Return the cached chunk of each row; None for a missing one.

    The generations of the values are added to `generations`.
    """
    now = time.time()
    form = (_ENCODED,) if use.keeps_encoded else ()
    parts: Sequence[Part] = [form or None] * len(rows)
    if stored.levels:
        cells = rows.cells[: stored.key_rank]
        parts = [(*form, *cell) for cell in zip(*(map(int, column) for column in cells))]
        parts = parts or [form] * len(rows)
    found = use.cache.find(use.space, rows.keys, parts)
    entries = [entry for entry, _ in found]
    _check(stored, use, rows, entries, now)
    missing = [row for row, entry in enumerate(entries) if entry is None]
    STATISTICS.add(cache_hits=len(rows) - len(missing))
    if missing:
        seen: dict[str, bytes] = {}
        for first, some, values in fetched_batches(stored, rows.take(missing), seen=seen):
            for row, key, value in zip(missing[first:], some.keys, values):
                chunk: Buffer | None = None
                if value is not None:
                    chunk = bytes(value) if use.keeps_encoded else _decoded(stored, key, value)
                nbytes = 0 if chunk is None else len(chunk)
                entry = Entry(chunk, nbytes, seen.get(key, b""), now)
                use.cache.put(use.space, key, parts[row], entry, found[row][1])
                entries[row] = entry
    if generations is not None:
        pairs = zip(rows.keys, entries)
        generations.update([(key, entry.generation) for key, entry in pairs if entry is not None])
    return [None if entry is None else entry.value for entry in entries]


def _check(
    stored: ChunkedArray, use: CacheUse, rows: PlanWindow, entries: list[Entry | None], now: float
) -> None:
    """Replace by None the entries whose values are not the stored ones any more."""
    old = [(row, e) for row, e in enumerate(entries) if e is not None and e.read_at < use.bound]
    if not old:
        return
    current = stored_generations(stored, [rows.keys[row] for row, _ in old])
    for row, entry in old:
        generation = current[rows.keys[row]]
        if generation and generation == entry.generation:
            entry.read_at = max(entry.read_at, now)
        else:
            entries[row] = None


def stored_generations(stored: ChunkedArray, keys: Sequence[str]) -> dict[str, bytes]:
    """Ask for the current generation of each key; ``b""`` if it cannot be read.

    Fetching the value tells why.
    """
    once = list(dict.fromkeys(keys))
    none = [0] * len(once)
    columns = stored.store.read_many(ReadRequest(once, start=none, stop=none))
    STATISTICS.add(key_reads=len(once))
    return dict(zip(once, columns.generation))


def _decoded(stored: ChunkedArray, key: str, value: Buffer) -> Buffer:
    """Decode a chunk into read-only memory of its own; objects stay an encoded stream."""
    chain = stored.chain
    try:
        if chain.is_raw or chain.objects is not None:
            return bytes(chain.decode(value))
        memory = np.empty(chain.layout.nbytes, np.uint8).data
        return memoryview(chain.decode(value, memory)).toreadonly()
    except GpustoreError as error:
        raise error.prefixed(f"Error reading {stored.store.describe(key)}", key=key) from error
