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

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpustore.backends.base import Layer, Memory, Overlay
from gpustore.errors import ConflictError, CorruptChunkError
from gpustore.kvstores.columns import WriteColumns, WriteRequest
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.fetch import BATCH_NBYTES, fetch_whole
from gpustore.pipelines.native_write import encode_native, write_layers, write_native
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
    """Changes that writes lay over the value of one key.

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
            if is_whole(array, layers[i].rows):
                return cls(layers[0].rows.keys[0], layers[i:], whole=True)
        return cls(layers[0].rows.keys[0], layers, whole=False)


def is_whole(array: ChunkedArray, rows: PlanWindow) -> bool:
    """Whether rows of one key cover all of its value that lies inside the array."""
    if not all(rows.whole):
        return False
    cell = [int(column[0]) for column in rows.cells[: array.key_rank]]
    return not array.levels or len(rows) == array.inner_chunks(cell)


def batch_rows(array: ChunkedArray, source: Memory) -> int:
    """Return the number of chunks that are gathered, encoded and stored together."""
    nbytes = array.store.write_nbytes or array.store.batch_nbytes or BATCH_NBYTES
    nbytes = array.backend.gather_nbytes(source, array.limits) or nbytes
    return max(1, nbytes // max(1, array.chain.batch_nbytes))


def write_rows(array: ChunkedArray, planned: PlanWindow, source: Memory) -> None:
    """Gather, encode and store the rows of one write; of an array in shards those of shards."""
    if array.writes_files_natively:
        columns, left = write_native(array, planned, source)
        _raise_first(array, planned.keys, columns)
        if not left:
            return
        planned = planned.take(left)
    if array.levels:
        _write_shards(array, planned, source)
        return
    batch = batch_rows(array, source)
    wanted = CancelToken.current()
    for first in range(0, len(planned), batch):
        wanted.check()  # After Ctrl-C no further file is begun.
        rows = planned.part(first, first + batch)
        if all(rows.whole):
            nothing: list[Buffer | None] = [None] * len(rows)
            values = _gather(array, [Overlay([Layer(rows, source)], nothing)])
            _raise_first(array, rows.keys, _store(array, WriteRequest(rows.keys, values)))
        else:
            layers = [Layer(row, source) for row in rows.singles()]
            store_changes(array, [ValueChange.of(array, [one]) for one in layers])


def _write_shards(array: ChunkedArray, planned: PlanWindow, source: Memory) -> None:
    """Write the shards of rows, as many together as make a batch; their rows are neighbours."""
    batch = batch_rows(array, source)
    firsts = [i for i, key in enumerate(planned.keys) if not i or key != planned.keys[i - 1]]
    changes: list[ValueChange] = []
    count = 0
    for first, end in itertools.pairwise([*firsts, len(planned)]):
        if changes and count + end - first > batch:
            store_changes(array, changes)
            changes, count = [], 0
        changes.append(ValueChange.of(array, [Layer(planned.part(first, end), source)]))
        count += end - first
    store_changes(array, changes)


def store_changes(array: ChunkedArray, changes: Sequence[ValueChange]) -> None:
    """Apply changes of different keys; those of whole values together.

    Raises
    ------
    CorruptChunkError, ConflictError, StoreIOError
        They name the key.
    """
    sources = {id(layer.source): layer.source for one in changes for layer in one.layers}
    on_device = any(
        array.backend.gather_nbytes(source, array.limits) is not None for source in sources.values()
    )
    if array.store.write_nbytes or on_device:
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
        values = encoded(array, [(one.layers, value) for one, (value, _) in zip(changes, seen)])
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


def store_layers(
    array: ChunkedArray, values: Sequence[tuple[str, Sequence[Layer], bool]]
) -> list[str]:
    """Store what is laid over the chunks of keys, as far as the native core does.

    Parameters
    ----------
    array : ChunkedArray
        Without shards, in files.
    values : sequence of (str, sequence of Layer, bool)
        Keys, the layers over each, and whether nothing is stored under them.

    Returns
    -------
    list of str
        Keys whose values are not stored.
    """
    changes = [ValueChange.of(array, layers) for _, layers, _ in values]
    keys = [one.key for one in changes]
    whole = [one.whole or alone for one, (_, _, alone) in zip(changes, values)]
    columns, left = write_layers(array, keys, [one.layers for one in changes], whole)
    _raise_first(array, keys, columns)
    return [keys[number] for number in left]


Encoded = Iterator[Buffer | None]
"""Encoded chunks in the order in which they were asked for."""


def encoded(
    array: ChunkedArray, values: Sequence[tuple[Sequence[Layer], Buffer | None]]
) -> list[Buffer | None]:
    """Encode values of layers and what is stored: all chunks of all values together."""
    if not array.levels:
        return _gather(array, [_chunk(layers, present) for layers, present in values])
    overlays: list[Overlay] = []
    pending = [_value(array, layers, present, overlays) for layers, present in values]
    chunks = iter(_gather(array, overlays))
    return [finish(chunks) for finish in pending]


def _value(
    array: ChunkedArray,
    layers: Sequence[Layer],
    present: Buffer | None,
    overlays: list[Overlay],
    depth: int = 0,
) -> Callable[[Encoded], Buffer | None]:
    """Ask for the chunks of a value: itself, or a shard that keeps other inner chunks as encoded.

    Returns
    -------
    callable
        Makes the value of the encoded chunks of `overlays`, which it takes in order.
    """
    if depth == len(array.levels):
        overlays.append(_chunk(layers, present))
        return next
    level = array.levels[depth]
    chunks: list[Buffer | None] = [None] * level.index.count
    if present is not None:
        try:
            chunks = unpack(present, level.index, array.inner_bound(depth + 1))
        except CorruptChunkError as error:
            key = layers[0].rows.keys[0]
            where = f"Error reading {array.store.describe(key)}: shard index"
            raise error.prefixed(where, key=key) from error
    found: list[tuple[int, Callable[[Encoded], Buffer | None]]] = []
    positions = [[level.position(cell) for cell in _cells(one.rows)] for one in layers]
    is_last = depth + 1 == len(array.levels)
    if is_last and sum(map(len, positions)) == len(set().union(*positions)):
        for layer, some in zip(layers, positions):
            whole = layer.rows.whole
            stored = [None if whole[i] else chunks[at] for i, at in enumerate(some)]
            overlays.append(Overlay([layer], stored))
            found += [(at, next) for at in some]
    else:
        members: dict[int, list[Layer]] = {}
        for layer, places in zip(layers, positions):
            inside: dict[int, list[int]] = {}
            for i, at in enumerate(places):
                inside.setdefault(at, []).append(i)
            for at, some in inside.items():
                rows = layer.rows.take(some)
                members.setdefault(at, []).append(layer._replace(rows=rows))
        found = [
            (at, _value(array, laid, chunks[at], overlays, depth + 1))
            for at, laid in members.items()
        ]

    def finish(encoded: Encoded) -> Buffer | None:
        for at, inner in found:
            chunks[at] = inner(encoded)
        return pack(chunks, level.index)

    return finish


def _cells(rows: PlanWindow) -> list[tuple[int, ...]]:
    return list(zip(*(list(column) for column in rows.cells))) or [()]


def _chunk(layers: Sequence[Layer], present: Buffer | None) -> Overlay:
    """Return the overlay of one chunk; what a later layer covers whole is not looked at."""
    for i in reversed(range(len(layers))):
        if layers[i].rows.whole[0]:
            return Overlay(layers[i:], [None])
    return Overlay(layers, [present])


def _store(array: ChunkedArray, request: WriteRequest) -> WriteColumns:
    try:
        columns = array.store.write_many(request)
    finally:
        array.forget(request.keys)
    # Where a condition failed or an error occurred there is no generation.
    stored = zip(request.values, columns.generation)
    sizes = [len(value) for value, generation in stored if generation and value is not None]
    STATISTICS.add(values_stored=len(sizes), bytes_stored=sum(sizes))
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


def _gather(array: ChunkedArray, overlays: Sequence[Overlay]) -> list[Buffer | None]:
    """Encode the chunks of overlays: those of which nothing stored stays in the native core."""
    values: list[Buffer | None] = [None] * sum(len(one.stored) for one in overlays)
    left, places = encode_native(array, overlays, values)
    if left:
        found = array.backend.gather(
            *(left, array.chain, array.blank, array.limits),
            keep_fill=array.keep_fill,
            decode_rule=array.decode_rule,
        )
        count = len(found) - found.count(None)
        STATISTICS.add(bytes_encoded=count * array.chain.layout.nbytes)
        for place, value in zip(places, found, strict=True):
            values[place] = value
    return values
