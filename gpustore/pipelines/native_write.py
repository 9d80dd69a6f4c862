"""Writes of whole chunks to files by the native core, and encoding of chunks for other values.

The core gathers, encodes and stores the rows of a window without the interpreter's lock; here their
directories are opened, and synced afterwards. Inner chunks of shards, and chunks for other stores
than files, it encodes only. What it leaves alone the caller does in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from gpustore.backends.base import Layer, Overlay
from gpustore.backends.host.memory import HostMemory
from gpustore.backends.native.write_job import DONE, MISSING, UNTOUCHED, WriteJob
from gpustore.errors import GpustoreError
from gpustore.kvstores.base import WriteDirectories
from gpustore.kvstores.columns import WriteColumns, WriteRequest
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.statistics import STATISTICS

ENCODED_NBYTES: Final = 64 << 20
"""Most bytes of memory for encoded values of one call, of which only what they need is touched."""


def write_native(
    array: ChunkedArray, planned: PlanWindow, source: Any
) -> tuple[WriteColumns, list[int]]:
    """Write rows that cover their chunks.

    Returns
    -------
    WriteColumns
        Errors by row; generations are not known.
    list of int
        Rows that are to be written in Python.
    """
    columns = WriteColumns.blank(len(planned))
    encoding = array.native_encoding
    directories = None if encoding is None else array.store.write_directories()
    chosen = [row for row, is_whole in enumerate(planned.whole) if is_whole]
    is_plain = planned.points is None and source.array.dtype == array.dtype
    if encoding is None or directories is None or not chosen or not is_plain:
        return columns, [*range(len(planned))]
    rows = planned if len(chosen) == len(planned) else planned.take(chosen)
    job = WriteJob(encoding, rows, source, syncs=directories.syncs)
    errors: dict[int, GpustoreError] = {}
    try:
        missing = [] if array.keep_fill else _delete_fill(array, rows, job, errors)
        begin = _write_some(array, rows, job, 0, directories, errors)
        while begin < len(rows):
            more = array.store.write_directories()
            assert more is not None
            begin = _write_some(array, rows, job, begin, more, errors)
    finally:
        array.forget(rows.keys)
        done = {row for row, status in enumerate(job.status) if status == DONE}
        # A file whose directory did not reach the disk is not certainly stored.
        sizes = [job.stored[row] for row in done.difference(errors)]
        STATISTICS.add(values_stored=len(sizes), bytes_stored=sum(sizes))
    columns.error.update({chosen[row]: error for row, error in errors.items()})
    decided = done.union(missing, errors)
    over = {chosen[row] for row in decided}
    return columns, [row for row in range(len(planned)) if row not in over]


def encode_native(
    array: ChunkedArray, overlays: Sequence[Overlay], values: list[Buffer | None]
) -> tuple[list[Overlay], list[int]]:
    """Encode chunks of which nothing stored stays, and over which one write lies.

    Parameters
    ----------
    array : ChunkedArray
    overlays : sequence of Overlay
    values : list
        Filled: one entry for each chunk of the overlays, None for those that equal the fill value.

    Returns
    -------
    list of Overlay
        Chunks that are to be encoded in Python.
    list of int
        Places of these in `values`.
    """
    left: list[Overlay] = []
    places: list[int] = []
    first = 0
    for layers, stored in overlays:
        rows, source = layers[0]
        chosen: list[int] = []
        if array.native_encoding is not None and len(layers) == 1 and rows.points is None:
            chosen = [row for row, one in enumerate(stored) if one is None]
        if not chosen or source.array.dtype != array.dtype:
            left.append(Overlay(layers, stored))
            places += range(first, first + len(stored))
        else:
            done = _encode_rows(array, rows, source, chosen, values, first)
            others = [row for row in range(len(stored)) if row not in done]
            if others:
                some = [Layer(rows.take(others), source)]
                left.append(Overlay(some, [stored[row] for row in others]))
                places += [first + row for row in others]
        first += len(stored)
    return left, places


def _encode_rows(
    array: ChunkedArray,
    rows: PlanWindow,
    source: HostMemory,
    chosen: Sequence[int],
    values: list[Buffer | None],
    first: int,
) -> set[int]:
    """Encode chosen rows into ``values[first:]``; return those that are done."""
    assert array.native_encoding is not None
    wanted = CancelToken.current()
    bound = array.chain.encoded_bound
    batch = max(1, ENCODED_NBYTES // bound)
    done: set[int] = set()
    for begin in range(0, len(chosen), batch):
        some = chosen[begin : begin + batch]
        try:
            encoded = np.empty(bound * len(some), np.uint8)
        except MemoryError:
            break  # Python says so.
        job = WriteJob(array.native_encoding, rows.take(some), source, encoded=encoded)
        while not array.keep_fill and job.find_fill(wanted):
            wanted.check()
        job.take(0, len(some))
        _encode(array, job, job.encode, wanted)
        for row, status, at, nbytes in zip(some, job.status, job.at, job.stored):
            if status == DONE:
                values[first + row] = encoded[at : at + nbytes].data
            if status in (DONE, MISSING):
                done.add(row)
    return done


def _delete_fill(
    array: ChunkedArray, rows: PlanWindow, job: WriteJob, errors: dict[int, GpustoreError]
) -> list[int]:
    """Delete the chunks that would hold fill values only, and return their rows."""
    wanted = CancelToken.current()
    while job.find_fill(wanted):
        wanted.check()
    missing = [row for row, one in enumerate(job.status) if one == MISSING]
    if missing:
        keys = [rows.keys[row] for row in missing]
        stored = array.store.write_many(WriteRequest(keys, [None] * len(keys)))
        errors.update({missing[i]: error for i, error in stored.error.items()})
    return missing


def _encode(
    array: ChunkedArray,
    job: WriteJob,
    step: Callable[[CancelToken], bool],
    wanted: CancelToken,
) -> None:
    """Call a step until all rows are looked at, and count what is encoded after each slice."""
    before, more = job.done(), True
    while more:
        wanted.check()
        more = step(wanted)
        done = job.done()
        STATISTICS.add(bytes_encoded=(done - before) * array.chain.layout.nbytes)
        before = done


def _write_some(
    array: ChunkedArray,
    rows: PlanWindow,
    job: WriteJob,
    begin: int,
    directories: WriteDirectories,
    errors: dict[int, GpustoreError],
) -> int:
    """Write rows from `begin` on whose directories can be open together; return the next row."""
    end = begin
    keys, status, directory = rows.keys, job.status, job.directory
    try:
        for end in range(begin, len(keys)):
            if status[end] == UNTOUCHED:
                descriptor = directories.open(end, keys[end])
                if descriptor is None:
                    break
                directory[end] = descriptor
        else:
            end = len(keys)
        job.take(begin, end)
        _encode(array, job, job.write, CancelToken.current())
    finally:
        done = [row for row in range(begin, end) if status[row] == DONE]
        directories.changed(done, keys)
        for row, error in directories.close().items():
            errors.setdefault(row, error)
    return end
