"""Fetching: encoded values of the rows of a window, batch by batch.

1. :func:`refine` lets each stage of the chain narrow the rows. A stage names the byte ranges
   it must see (its *probe*: a shard index), gets them, and rewrites the rows. Stages
   never do I/O; this module owns the loop, and remembers the generation of each value probed.
2. :func:`fetch` reads what is left, on condition that the values are still those that were probed;
   otherwise it raises :class:`Changed`. Ranges of one value that lie close together are read as
   one.
3. :func:`fetched_batches` does both for a window, and refines the rest of it anew after a change.

A missing value has no bytes; every other failure is an error that names the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpustore.backends.native.array import NativeArray
from gpustore.backends.native.fetched_files import ALIGNMENT, SharedMemory, fetch_files
from gpustore.backends.native.job import DONE, MISSING
from gpustore.errors import (
    ConflictError,
    CorruptChunkError,
    GpustoreError,
    LimitError,
    NotFoundError,
)
from gpustore.kvstores.arena import Arena, thread_arena
from gpustore.kvstores.columns import ABSENT, ReadColumns, ReadRequest, ReadState
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.planning.row_table import RowTable
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.statistics import STATISTICS

GAP_NBYTES = 4096
"""Ranges of one value with at most this much between them are read as one."""

MERGED_NBYTES = 16 << 20
"""Longest range that is made by merging."""


ATTEMPTS = 5
"""Most attempts to refine a window whose values a writer replaces meanwhile."""

STAGED_NBYTES = 64 << 20
"""Most decoded bytes of a batch whose values the native core fetches: it needs that much room."""

BATCH_NBYTES = 1 << 20
"""Decoded bytes of a batch of one task, few enough to stay in the processor's cache."""


@dataclass(slots=True)
class Changed(Exception):
    """A value was replaced between its probe and its fetch."""

    key: str


def refine(array: ChunkedArray, rows: PlanWindow) -> tuple[PlanWindow, dict[str, bytes]]:
    """Let each stage narrow the window.

    Returns
    -------
    PlanWindow, dict of str to bytes
        The rows, and the generation of each key that was probed.

    Raises
    ------
    Changed
        If a value was replaced between two probes.
    CorruptChunkError, StoreIOError
        Naming the key.
    """
    generations: dict[str, bytes] = {}
    for refiner in array.refiners:
        probe = refiner.probe(rows)
        heads: Sequence[Buffer | None] = ()
        totals: Sequence[int] = ()
        if probe is not None:
            keys = [rows.keys[row] for row in probe.rows]
            arena = thread_arena()
            columns = _read(array, keys, probe.start, probe.stop, generations, arena, 0)
            heads, totals = columns.value, columns.total
            generations.update(zip(keys, columns.generation))
        try:
            rows = refiner.refine(rows, heads, totals)
        except CorruptChunkError as error:
            where = "" if error.key is None else f" {array.store.describe(error.key)}"
            raise error.prefixed(f"Error reading{where}") from error
    return rows, generations


def fetch(
    array: ChunkedArray,
    rows: PlanWindow,
    generations: Mapping[str, bytes],
    arena: Arena,
    seen: dict[str, bytes] | None = None,
) -> list[Buffer | None]:
    """Fetch the encoded bytes of each row into `arena`, in host memory; None for a missing value.

    The bytes are valid until the arena is reset. Generations of the values are added to `seen`.

    Raises
    ------
    Changed
        If a value is not the one that was probed.
    CorruptChunkError, StoreIOError
        Naming the key.
    """
    if rows.byte_start is None or rows.byte_stop is None:
        bound = array.chain.encoded_bound
        nbytes = array.chain.layout.nbytes
        plain = not generations and len(rows) * nbytes <= STAGED_NBYTES
        files = array.native_files if plain else None
        direct = arena.direct
        if files is not None and (direct is None or not direct.may_read(array.file_system)):
            return _fetch_files(array, files, rows, arena, seen)
        columns = _read(array, rows.keys, None, None, generations, arena, nbytes, bound)
        if seen is not None:
            seen.update(zip(rows.keys, columns.generation))
        return columns.value
    if seen is not None:
        seen.update(generations)  # They are a condition of what is read below.
    wanted = [row for row in range(len(rows)) if rows.absent is None or not rows.absent[row]]
    _check_lengths(array, rows, wanted)
    requests = _merged(rows, wanted)
    columns = _read(
        array,
        [rows.keys[members[0]] for members, _, _ in requests],
        [start for _, start, _ in requests],
        [stop for _, _, stop in requests],
        generations,
        arena,
        _decoded_nbytes(array, rows, requests),
    )
    values: list[Buffer | None] = [None] * len(rows)
    for (members, start, stop), value, total in zip(requests, columns.value, columns.total):
        key = rows.keys[members[0]]
        if value is None:
            continue
        _check_received(array, key, value, start, stop, total)
        view = memoryview(value)
        for row in members:
            values[row] = view[rows.byte_start[row] - start : rows.byte_stop[row] - start]
    return values


def _fetch_files(
    array: ChunkedArray,
    files: NativeArray,
    rows: PlanWindow,
    arena: Arena,
    seen: dict[str, bytes] | None,
) -> list[Buffer | None]:
    """Fetch whole values by the native core, and in Python what it leaves alone."""
    directory = array.key_directory()
    nbytes = array.chain.layout.nbytes
    memory = arena.take(len(rows) * (nbytes + ALIGNMENT))
    shared = SharedMemory(np.frombuffer(memory, np.uint8), ALIGNMENT)
    table = RowTable.of_cells(rows.cells)
    fetched = fetch_files(files, table, shared, len(memory), directory)
    reads, nbytes_fetched = fetched.counts.reads, fetched.counts.fetched
    starts, lengths = fetched.at.tolist(), fetched.nbytes.tolist()
    values: list[Buffer | None] = [None] * len(rows)
    left = []
    present = 0
    for row, (status, at, length) in enumerate(zip(fetched.status, starts, lengths)):
        if status == DONE:
            values[row] = memory[at : at + length]
            present += 1
        elif status != MISSING:
            left.append(row)
    STATISTICS.add(key_reads=reads, bytes_fetched=nbytes_fetched, bytes_decoded=present * nbytes)
    if arena.direct is not None:
        done = np.frombuffer(fetched.status, np.uint8) == DONE
        arena.direct.count_others(fetched.nbytes[done], fetched.generation[done, 3])
    if seen is not None:
        for row, four in enumerate(fetched.generation.tolist()):
            status = fetched.status[row]
            if status <= MISSING:
                seen[rows.keys[row]] = ABSENT if status == MISSING else directory.generation(*four)
    if left:
        keys = [rows.keys[row] for row in left]
        bound = array.chain.encoded_bound
        columns = _read(array, keys, None, None, {}, arena, nbytes, bound)
        for row, value in zip(left, columns.value):
            values[row] = value
        if seen is not None:
            seen.update(zip(keys, columns.generation))
    return values


def _decoded_nbytes(
    array: ChunkedArray, rows: PlanWindow, requests: list[tuple[list[int], int, int]]
) -> int | list[int]:
    """Return the decoded bytes of each request, or an int if there is one request of one row."""
    if len(requests) == 1 and len(requests[0][0]) == 1:
        _, low, high = requests[0]
        return high - low if rows.narrowed else array.chain.layout.nbytes
    if not rows.narrowed:
        nbytes = array.chain.layout.nbytes
        return [nbytes * len(members) for members, _, _ in requests]
    assert rows.byte_start is not None
    assert rows.byte_stop is not None
    start, stop = rows.byte_start, rows.byte_stop
    return [sum([stop[row] - start[row] for row in members]) for members, _, _ in requests]


def _merged(rows: PlanWindow, wanted: list[int]) -> list[tuple[list[int], int, int]]:
    """Merge byte ranges; return the rows, start and end of each request."""
    assert rows.byte_start is not None
    assert rows.byte_stop is not None
    start, stop = rows.byte_start, rows.byte_stop
    if len(wanted) == 1:
        row = wanted[0]
        return [(wanted, start[row], stop[row])]
    by_key: dict[str, list[int]] = {}
    for row in wanted:
        by_key.setdefault(rows.keys[row], []).append(row)
    requests: list[tuple[list[int], int, int]] = []
    for members in by_key.values():
        members.sort(key=start.__getitem__)
        group, low, high = [members[0]], start[members[0]], stop[members[0]]
        for row in members[1:]:
            end = max(high, stop[row])
            if start[row] <= high + GAP_NBYTES and end - low <= MERGED_NBYTES:
                group.append(row)
                high = end
            else:
                requests.append((group, low, high))
                group, low, high = [row], start[row], stop[row]
        requests.append((group, low, high))
    return requests


def _read(
    array: ChunkedArray,
    keys: Sequence[str],
    start: Sequence[int] | None,
    stop: Sequence[int | None] | None,
    generations: Mapping[str, bytes],
    arena: Arena,
    decoded_nbytes: int | list[int],
    max_nbytes: int | None = None,
) -> ReadColumns:
    """Read values and count them, with `decoded_nbytes` of each request or of all alike."""
    if_equal = [generations.get(key, b"") for key in keys] if generations else None
    columns = array.store.read_many(
        ReadRequest(
            keys=keys,
            start=start,
            stop=stop,
            if_equal=if_equal,
            max_nbytes=max_nbytes,
            into=arena,
        )
    )
    _count(columns, decoded_nbytes)
    if columns.error:
        row = min(columns.error)
        raise _explained(array, keys[row], columns.error[row]) from columns.error[row]
    if if_equal is not None:
        for row, state in enumerate(columns.state):
            if state is ReadState.UNSPECIFIED:
                raise Changed(keys[row])
    return columns


def _count(columns: ReadColumns, decoded_nbytes: int | list[int]) -> None:
    values = columns.value
    if len(values) == 1 and isinstance(decoded_nbytes, int):
        value = values[0]  # Small reads are many.
        if value is None:
            STATISTICS.add(key_reads=1)
        else:
            STATISTICS.add(key_reads=1, bytes_fetched=len(value), bytes_decoded=decoded_nbytes)
        return
    if isinstance(decoded_nbytes, int):
        decoded = decoded_nbytes * (len(values) - values.count(None))
    else:
        pairs = zip(values, decoded_nbytes)
        decoded = sum([nbytes for value, nbytes in pairs if value is not None])
    STATISTICS.add(
        key_reads=len(values),
        bytes_fetched=sum([len(value) for value in values if value is not None]),
        bytes_decoded=decoded,
    )


def _explained(array: ChunkedArray, key: str, error: GpustoreError) -> GpustoreError:
    """Turn the error of a key into that of its chunk."""
    where = f"Error reading {array.store.describe(key)}"
    nbytes = array.chain.layout.nbytes
    if isinstance(error, LimitError) and array.chain.objects is not None:
        return LimitError(
            f"{error.text}; strings and bytes of a chunk may have chunk_nbytes together, the limit "
            f"is {array.chain.objects_max}",
            key=key,
        )
    if isinstance(error, LimitError):
        return CorruptChunkError(
            f"{error.text}; no legal encoding of a chunk of {nbytes} bytes is that long",
            key=key,
        )
    if error.status == "OUT_OF_RANGE":
        expected = "a shard with an index" if array.levels else f"a chunk of {nbytes} bytes"
        return CorruptChunkError(f"{where}: {error.text}; expected {expected}", key=key)
    return error.prefixed(where, key=key) if error.key is None else error


def _check_lengths(array: ChunkedArray, rows: PlanWindow, wanted: Sequence[int]) -> None:
    """Raise CorruptChunkError for inner chunks longer than any legal encoding."""
    assert rows.byte_start is not None
    assert rows.byte_stop is not None
    for row in wanted:
        nbytes = rows.byte_stop[row] - rows.byte_start[row]
        if nbytes > array.chain.encoded_bound:
            key = rows.keys[row]
            raise CorruptChunkError(
                f"Error reading {array.store.describe(key)}: an inner chunk has {nbytes} bytes; no "
                f"legal encoding of {array.chain.objects_max or array.chain.layout.nbytes} bytes "
                f"is that long",
                key=key,
            )


def _check_received(
    array: ChunkedArray, key: str, value: Buffer, start: int, stop: int, total: int
) -> None:
    """Raise CorruptChunkError unless a store returned the range, of a value of the right size."""
    if len(value) != stop - start:
        where = f"Error reading {array.store.describe(key)}"
        raise CorruptChunkError(
            f"{where}: received {len(value)} bytes of [{start}, {stop})", key=key
        )
    nbytes = array.chain.layout.nbytes
    # A part of a raw chunk is only right if the whole has the right length.
    if not array.levels and total not in (-1, nbytes):
        where = f"Error reading {array.store.describe(key)}"
        raise CorruptChunkError(
            f"{where}: Uncompressed chunk is {total} bytes, but should be {nbytes} bytes", key=key
        )


def fetch_whole(array: ChunkedArray, keys: Sequence[str]) -> ReadColumns:
    """Fetch whole values into host buffers of their own, for a read-modify-write."""
    columns = array.store.read_many(ReadRequest(keys=keys, max_nbytes=array.object_bound))
    _count(columns, 0)
    for row, error in sorted(columns.error.items()):
        raise _explained(array, keys[row], error) from error
    return columns


def fetched_batches(
    array: ChunkedArray,
    planned: PlanWindow,
    nbytes: int | None = None,
    arena: Callable[[], Arena] = thread_arena,
    seen: dict[str, bytes] | None = None,
) -> Iterator[tuple[int, PlanWindow, list[Buffer | None]]]:
    """Refine a window once, then fetch it batch by batch.

    Parameters
    ----------
    nbytes : int, optional
        Most decoded bytes of a batch; by default ``batch_nbytes`` of the store, or else
        ``BATCH_NBYTES``.
    arena : callable
        Returns the arena, in host memory, for the values of the next batch.
    seen : dict, optional
        Receives the generations of the values, by key.

    Yields
    ------
    int, PlanWindow, list of buffer or None
        The first of some rows of `planned`, those rows refined, and their values, which are valid
        until the next batch.
    """
    batch = max(
        1, (nbytes or array.store.batch_nbytes or BATCH_NBYTES) // max(1, array.chain.batch_nbytes)
    )
    wanted = CancelToken.current()
    done = attempts = 0
    while done < len(planned):
        try:
            # After a change one key at a time: of many, one could change in every attempt.
            end = _end_of_key(planned.keys, done) if attempts else len(planned)
            rows = planned.part(done, end)
            generations: dict[str, bytes] = {}
            if array.refiners:
                rows, generations = refine(array, rows)
            for first in range(0, len(rows), batch):
                wanted.check()  # After Ctrl-C the threads stop here.
                some = rows.part(first, first + batch)
                values = fetch(array, some, generations, arena(), seen)
                if not array.fill_missing:
                    refuse_missing(array, some, values)
                yield done, some, values
                done += len(some)
                attempts = 0
        except Changed as change:
            attempts += 1
            STATISTICS.add(retries=1)
            if attempts == ATTEMPTS:
                raise ConflictError(
                    f"Error reading {array.store.describe(change.key)}: it was replaced {ATTEMPTS} "
                    f"times while being read; retry when its writer is done",
                    key=change.key,
                ) from None
    thread_arena()  # It may have grown beyond what is kept.


def _end_of_key(keys: list[str], first: int) -> int:
    """Return the end of the run of rows from `first` on that have its key."""
    end = first
    while end < len(keys) and keys[end] == keys[first]:
        end += 1
    return end


def refuse_missing(array: ChunkedArray, rows: PlanWindow, values: list[Buffer | None]) -> None:
    """Raise NotFoundError for the first row without a value."""
    for row, value in enumerate(values):
        if value is None:
            cell = ", ".join(str(column[row]) for column in rows.cells)
            key = rows.keys[row]
            raise NotFoundError(
                f"chunk {{{cell}}} stored at {array.store.describe(key)} is missing; pass "
                f"fill_missing_data_reads=True to read it as the fill value",
                key=key,
            )
