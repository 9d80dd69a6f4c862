"""Changes of stored values: what one write, or several one after the other, lay over them.

1. A chunk that is covered whole (as far as it lies inside the array) is laid out anew; its cells
   beyond the array's edge hold the fill value. Any other is read, changed and written back; inner
   chunks of a shard that are not touched are copied as they are encoded.
2. Gather and encode (:class:`gpustore.backends.base.Backend`). A chunk that equals the fill value
   bit for bit is deleted instead, unless told otherwise.
3. Store, and drop the entries of the cache. A value that was read first is stored on condition
   that it still has the generation that was read; if another writer was faster, all steps are
   repeated for it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gpustore.backends.base import Layer, Memory
from gpustore.errors import ConflictError, CorruptChunkError
from gpustore.kvstores.columns import WriteColumns, WriteRequest
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.fetch import BATCH_NBYTES, fetch_whole
from gpustore.pipelines.native_write import write_native
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.statistics import STATISTICS
from gpustore.sharding.shard_codec import pack, unpack

ATTEMPTS = 1000
"""Most attempts of a partial write of a chunk that other writers change."""

FIRST_DELAY_S = 0.0002
LONGEST_DELAY_S = 0.05
"""Bounds of the random pause between two attempts, in seconds."""


@dataclass(frozen=True, slots=True)
class ValueChange:
    """What writes lay over the value of one key.

    Attributes
    ----------
    key : str
    layers : sequence of Layer
        In the order of the writes: one row each, or of a shard rows of its inner chunks.
    whole : bool
        Whether nothing of the stored value stays, so that it is not read.
    """

    key: str
    layers: Sequence[Layer]
    whole: bool

    @classmethod
    def of(cls, array: ChunkedArray, layers: Sequence[Layer]) -> ValueChange:
        """Make the change of layers of one key; those that a later one covers are left out."""
        for i in reversed(range(len(layers))):
            if _is_whole(array, layers[i].rows):
                return cls(layers[0].rows.keys[0], layers[i:], whole=True)
        return cls(layers[0].rows.keys[0], layers, whole=False)


def _is_whole(array: ChunkedArray, rows: PlanWindow) -> bool:
    """Whether rows of one key cover all of its value that lies inside the array."""
    return all(rows.whole) and (not array.levels or len(rows) == _inner_chunks(array, rows))


def _inner_chunks(array: ChunkedArray, rows: PlanWindow) -> int:
    """Count the innermost chunks of the shard of these rows that lie inside the array."""
    count = 1
    for d, (column, ratio, size, chunk) in enumerate(
        zip(rows.cells, array.key_ratio, array.shape, array.chunk_shape)
    ):
        count *= min(ratio, -(-(size - array.first_of_key(d, int(column[0]))) // chunk))
    return count


def batch_rows(array: ChunkedArray) -> int:
    """Return the number of chunks that are gathered, encoded and stored together."""
    nbytes = array.store.write_nbytes or array.store.batch_nbytes or BATCH_NBYTES
    return max(1, nbytes // max(1, array.chain.batch_nbytes))


def write_rows(array: ChunkedArray, planned: PlanWindow, source: Memory) -> None:
    """Gather, encode and store the rows of one write; of an array in shards those of one shard."""
    if array.native_encoding is not None:
        columns, left = write_native(array, planned, source)
        _raise_first(array, planned.keys, columns)
        if not left:
            return
        planned = planned.take(left)
    batch = len(planned) if array.levels else batch_rows(array)
    wanted = CancelToken.current()
    for first in range(0, len(planned), batch):
        wanted.check()  # After Ctrl-C no further file is begun.
        rows = planned.part(first, first + batch)
        if array.levels:
            store_changes(array, [ValueChange.of(array, [Layer(rows, source)])])
        elif all(rows.whole):
            nothing: list[Buffer | None] = [None] * len(rows)
            values = _gather(array, [Layer(rows, source)], nothing)
            _raise_first(array, rows.keys, _store(array, WriteRequest(rows.keys, values)))
        else:
            singles = [Layer(rows.part(i, i + 1), source) for i in range(len(rows))]
            store_changes(array, [ValueChange.of(array, [one]) for one in singles])


def store_changes(array: ChunkedArray, changes: Sequence[ValueChange]) -> None:
    """Apply changes of different keys; those of whole values together.

    Raises
    ------
    CorruptChunkError, ConflictError, StoreIOError
        They name the key.
    """
    if array.store.write_nbytes:
        _apply(array, changes)
        return
    whole = [one for one in changes if one.whole]
    if whole:
        _apply(array, whole)
    wanted = CancelToken.current()
    for change in changes:
        if not change.whole:
            wanted.check()  # After Ctrl-C no further file is begun.
            _apply(array, [change])


def _apply(array: ChunkedArray, changes: Sequence[ValueChange]) -> None:
    """Read, change and write back values in one batch; repeat for those others changed."""
    delay = FIRST_DELAY_S
    for _ in range(ATTEMPTS):
        present: dict[str, tuple[Buffer | None, bytes]] = {}
        read = [one.key for one in changes if not one.whole]
        if read:
            columns = fetch_whole(array, read)
            present = dict(zip(read, zip(columns.value, columns.generation)))
        keys = [one.key for one in changes]
        seen = [present.get(key, (None, b"")) for key in keys]
        values = [_encoded(array, one.layers, value) for one, (value, _) in zip(changes, seen)]
        conditions = [generation for _, generation in seen] if read else None
        stored = _store(array, WriteRequest(keys, values, conditions))
        _raise_first(array, keys, stored)
        changes = [one for one, made in zip(changes, stored.generation) if not made]
        if not changes:
            return
        STATISTICS.add(retries=1)
        time.sleep(random.uniform(0, delay))
        delay = min(2 * delay, LONGEST_DELAY_S)
    key = changes[0].key
    raise ConflictError(
        f"Error writing {array.store.describe(key)}: another writer was faster {ATTEMPTS} times",
        key=key,
    )


def _encoded(
    array: ChunkedArray, layers: Sequence[Layer], present: Buffer | None, depth: int = 0
) -> Buffer | None:
    """Encode the value of a key: a chunk, or a shard that keeps other inner chunks as encoded."""
    if depth == len(array.levels):
        return _chunk(array, layers, present)
    level = array.levels[depth]
    chunks: list[Buffer | None] = [None] * level.index.count
    if present is not None:
        try:
            chunks = unpack(present, level.index, array.inner_bound(depth + 1))
        except CorruptChunkError as error:
            key = layers[0].rows.keys[0]
            where = f"Error reading {array.store.describe(key)}: shard index"
            raise error.prefixed(where, key=key) from error
    if depth + 1 == len(array.levels) and len(layers) == 1:
        rows = layers[0].rows
        positions = [level.position(cell) for cell in _cells(rows)]
        stored = [None if rows.whole[i] else chunks[at] for i, at in enumerate(positions)]
        for at, encoded in zip(positions, _gather(array, layers, stored)):
            chunks[at] = encoded
        return pack(chunks, level.index)
    members: dict[int, list[Layer]] = {}
    for rows, source in layers:
        found: dict[int, list[int]] = {}
        for i, cell in enumerate(_cells(rows)):
            found.setdefault(level.position(cell), []).append(i)
        for at, some in found.items():
            members.setdefault(at, []).append(Layer(rows.take(some), source))
    for at, laid in members.items():
        chunks[at] = _encoded(array, laid, chunks[at], depth + 1)
    return pack(chunks, level.index)


def _cells(rows: PlanWindow) -> list[tuple[int, ...]]:
    return list(zip(*(list(column) for column in rows.cells))) or [()]


def _chunk(array: ChunkedArray, layers: Sequence[Layer], present: Buffer | None) -> Buffer | None:
    """Encode one chunk; what a later layer covers whole is not looked at."""
    for i in reversed(range(len(layers))):
        if layers[i].rows.whole[0]:
            layers, present = layers[i:], None
            break
    return _gather(array, layers, [present])[0]


def _store(array: ChunkedArray, request: WriteRequest) -> WriteColumns:
    try:
        columns = array.store.write_many(request)
    finally:
        if array.cache is not None:
            array.cache.forget(request.keys)
    # Where a condition failed or an error occurred there is no generation.
    stored = zip(request.values, columns.generation)
    nbytes = sum([len(value) for value, generation in stored if generation and value is not None])
    STATISTICS.add(bytes_stored=nbytes)
    return columns


def _raise_first(array: ChunkedArray, keys: Sequence[str], columns: WriteColumns) -> None:
    """Raise the first error; one about a directory names the chunk as well."""
    for row, error in sorted(columns.error.items()):
        key = keys[row]
        if error.key == key:
            raise error
        located = error.prefixed(f"Error writing {array.store.describe(key)}")
        located.key = key
        raise located from error


def _gather(
    array: ChunkedArray, layers: Sequence[Layer], present: list[Buffer | None]
) -> list[Buffer | None]:
    return array.backend.gather(
        layers, present, array.chain, array.blank, keep_fill=array.keep_fill
    )
