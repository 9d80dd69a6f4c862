"""Writes of chunks to files by the native core, and encoding of chunks for other values.

The core gathers, encodes and stores the rows of a window without the interpreter's lock; here their
directories are opened, and synced afterwards. A chunk that is not covered whole it reads, decodes
and changes under the lock of its file. Inner chunks of shards, and chunks for other stores than
files, it encodes only. What it leaves alone the caller does in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.base import Layer, Overlay
from gpustore.backends.native.write_job import (
    DONE,
    MISSING,
    NOTHING,
    STORED,
    UNTOUCHED,
    WriteJob,
    WrittenRows,
)
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
    """Write rows of different keys.

    Returns
    -------
    WriteColumns
        Errors by row; generations are not known.
    list of int
        Rows that are to be written in Python.
    """
    if planned.points is not None or source.array.dtype != array.dtype:
        return WriteColumns.blank(len(planned)), [*range(len(planned))]
    return _write(array, WrittenRows.of_window(Layer(planned, source)), planned.keys, planned.whole)


def write_layers(
    array: ChunkedArray,
    keys: Sequence[str],
    layers: Sequence[Sequence[Layer]],
    whole: Sequence[bool] | NDArray[np.bool_],
) -> tuple[WriteColumns, list[int]]:
    """Write what is laid over the chunks of different keys; of `whole` ones nothing stays.

    Returns as :func:`write_native`, by number of the key.
    """
    plain = [number for number, some in enumerate(layers) if _are_plain(array, some)]
    rows = WrittenRows.of_chunks([(layers[number], 0) for number in plain])
    columns, left = _write(
        array, rows, [keys[number] for number in plain], [whole[number] for number in plain]
    )
    done = set(plain).difference([plain[row] for row in left])
    found = WriteColumns.blank(len(keys))
    found.error.update({plain[row]: error for row, error in columns.error.items()})
    return found, [number for number in range(len(keys)) if number not in done]


def _are_plain(array: ChunkedArray, layers: Sequence[Layer]) -> bool:
    """Whether the core lays all of these over a chunk."""
    return all(
        [one.rows.points is None and one.source.array.dtype == array.dtype for one in layers]
    )


def _write(
    array: ChunkedArray,
    rows: WrittenRows,
    keys: Sequence[str],
    whole: Sequence[bool] | NDArray[np.bool_],
) -> tuple[WriteColumns, list[int]]:
    """Write the rows of a job as files; returns as :func:`write_native`."""
    columns = WriteColumns.blank(len(keys))
    encoding = array.native_encoding
    directories = None if encoding is None else array.store.write_directories()
    if encoding is None or directories is None or not keys:
        return columns, [*range(len(keys))]
    under = () if all(whole) else [NOTHING if one else STORED for one in whole]
    drops_fill = not array.keep_fill
    job = WriteJob(encoding, rows, under, drops_fill=drops_fill, keys=keys, syncs=directories.syncs)
    missing: list[int] = []
    try:
        if drops_fill:
            missing = _delete_fill(array, keys, job, columns.error)
        begin = _write_some(array, keys, job, 0, directories, columns.error)
        while begin < len(keys):
            more = array.store.write_directories()
            assert more is not None
            begin = _write_some(array, keys, job, begin, more, columns.error)
    finally:
        array.forget(keys)
        done = {row for row, status in enumerate(job.status) if status == DONE}
        # A file whose directory did not reach the disk is not certainly stored.
        sizes = [job.stored[row] for row in done.difference(columns.error)]
        reads, fetched = job.fetched
        STATISTICS.add(
            values_stored=len(sizes),
            bytes_stored=sum(sizes),
            key_reads=reads,
            bytes_fetched=fetched,
        )
    decided = done.union(missing, columns.error)
    return columns, [row for row in range(len(keys)) if row not in decided]


def encode_native(
    array: ChunkedArray, overlays: Sequence[Overlay], values: list[Buffer | None]
) -> tuple[list[Overlay], list[int]]:
    """Encode chunks with what is laid over them.

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
    chunks: list[tuple[Overlay, int]] = []
    chosen: list[int] = []
    for one in overlays:
        first, count = len(chunks), len(one.stored)
        chunks += [(one, row) for row in range(count)]
        if array.native_encoding is not None and _are_plain(array, one.layers):
            chosen += range(first, first + count)
    done = _encode_chunks(array, chunks, chosen, values)
    if len(done) == len(chunks):
        return [], []
    left: list[Overlay] = []
    places: list[int] = []
    first = 0
    for one in overlays:
        others = [row for row in range(len(one.stored)) if first + row not in done]
        if others:
            layers = [layer._replace(rows=layer.rows.take(others)) for layer in one.layers]
            left.append(Overlay(layers, [one.stored[row] for row in others]))
            places += [first + row for row in others]
        first += len(one.stored)
    return left, places


def _encode_chunks(
    array: ChunkedArray,
    chunks: Sequence[tuple[Overlay, int]],
    chosen: Sequence[int],
    values: list[Buffer | None],
) -> set[int]:
    """Encode chosen chunks, rows of overlays, into `values`; return those that are done."""
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
        assert array.native_encoding is not None
        picked = [chunks[number] for number in some]
        stored = [one.stored[row] for one, row in picked]
        job = WriteJob(
            array.native_encoding,
            WrittenRows.of_chunks([(one.layers, row) for one, row in picked]),
            stored if stored.count(None) < len(stored) else (),
            drops_fill=not array.keep_fill,
            encoded=encoded,
        )
        while not array.keep_fill and job.find_fill(wanted):
            wanted.check()
        job.take(0, len(some))
        _encode(array, job, job.encode, wanted)
        for number, status, at, nbytes in zip(some, job.status, job.at, job.stored):
            if status == DONE:
                values[number] = encoded[at : at + nbytes].data
            if status in (DONE, MISSING):
                done.add(number)
    return done


def _delete_fill(
    array: ChunkedArray, keys: Sequence[str], job: WriteJob, errors: dict[int, GpustoreError]
) -> list[int]:
    """Delete the chunks that would hold fill values only, and return their rows."""
    wanted = CancelToken.current()
    while job.find_fill(wanted):
        wanted.check()
    missing = [row for row, one in enumerate(job.status) if one == MISSING]
    if missing:
        gone = [keys[row] for row in missing]
        stored = array.store.write_many(WriteRequest(gone, [None] * len(gone)))
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
    keys: Sequence[str],
    job: WriteJob,
    begin: int,
    directories: WriteDirectories,
    errors: dict[int, GpustoreError],
) -> int:
    """Write rows from `begin` on whose directories can be open together; return the next row."""
    end = begin
    status, directory = job.status, job.directory
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
