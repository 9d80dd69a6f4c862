"""Fetching of chunks by the native core, into memory that a sink has for them.

They stay encoded, or are decoded where the host has to do that for a device. Threads take the rows
of the tables of a plan piece by piece. What the core leaves alone is fetched in Python, which words
the errors.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.base import FilesOfTable, Sink, StagingPart
from gpustore.backends.native.array import NativeArray
from gpustore.codec_chain.chain import CodecChain
from gpustore.errors import DeviceError, GpustoreError
from gpustore.kvstores.base import KeyDirectory
from gpustore.pipelines.chunked_array import SPLIT_S, ChunkedArray
from gpustore.pipelines.resident import batches, table_chunks
from gpustore.pipelines.table_rows import TableKeys, strides_of, windows_of
from gpustore.planning.chunk_plan import ChunkPlan
from gpustore.planning.copy_plan import CopyPlan, elements
from gpustore.planning.row_table import RowTable
from gpustore.planning.window import PlanWindow, Points
from gpustore.runtime.cancel_token import CancelToken, is_cancelled
from gpustore.runtime.frames import without_locals

PIECE_ROWS = 64, 512
"""Fewest and most rows that one of many threads takes at once, as long as there are enough."""

WHOLE_NBYTES = 64 << 10
"""Most bytes of an uncompressed chunk that is fetched whole for any part: the system reads so many
in less time than Python needs to ask for fewer."""


Leave = Callable[[RowTable, Sequence[int]], None]
"""Function that takes rows of a table which the core has left alone."""


def fill_tasks(
    array: ChunkedArray,
    plan: ChunkPlan | CopyPlan,
    sink: Sink,
    *,
    by_element: bool = False,
    leave: Leave | None = None,
) -> list[Callable[[], None]] | None:
    """Make the tasks that fill `sink` with the chunks of a plan; None if Python fetches them.

    What the core leaves alone is given to `leave`, by default it is fetched in Python.
    """
    rows = len(plan)
    native = array.native_staging
    if native is None or not rows:
        return None
    file_nbytes = None if array.levels else array.chain.encoded_bound
    staging = sink.staging_parts(array.chain, array.file_system, file_nbytes)
    if staging is None:
        return None
    parts, together = staging
    reads_ranges = array.chain.is_raw and len(array.refiners) > len(array.levels)
    if reads_ranges and isinstance(plan, CopyPlan) and plan.block.partial:
        return None
    most = min(array.executor.limit, rows)
    if native.decodes:
        threads = max(1, min(most, int(rows * array.chain.decode_s / SPLIT_S)))
    else:
        threads = array.device_parts(most, rows)
    step = _piece_rows(array, native, sink, rows, together, threads)
    filling = NativeFill(array, native, plan, sink, parts, step, by_element=by_element, leave=leave)
    return [filling.work] * threads


def _piece_rows(
    array: ChunkedArray, native: NativeArray, sink: Sink, rows: int, together: int, threads: int
) -> int:
    """Return how many of all rows a thread takes at once, of which staging memory has `together`.

    Each piece costs a few tenths of a millisecond in Python. So few threads take larger ones: one
    each of every submission.
    """
    fewest, most = PIECE_ROWS
    most = min(most, max(1, (sink.nbytes or 1) // max(1, array.chain.layout.nbytes)))
    if native.decodes:  # Few long chunks, perhaps, which all threads share.
        return max(1, min(most, -(-rows // (2 * threads))))
    most = max(most, together // threads)
    return max(1, min(most, max(fewest, -(-rows // threads))))


def fetches_whole(chain: CodecChain) -> bool:
    """Return whether the core fetches uncompressed chunks whole for any part of them.

    Illegal elements elsewhere in a chunk are no error of a read that needs a part.
    """
    return chain.layout.nbytes <= WHOLE_NBYTES and chain.all_legal


def _whole_rows(table: RowTable, plan: ChunkPlan, chain: CodecChain) -> NDArray[np.bool_] | None:
    """Return a mask of the rows of which the core fetches whole uncompressed chunks; None for all.

    They need more than half of it, or it is so short that a part costs more.
    """
    layout = chain.layout
    if table.points or fetches_whole(chain):
        return None
    stride = np.abs(np.array(plan.src_stride, np.int64)).reshape(-1, 1)
    reach = (stride * (table.columns().count - 1)).sum(axis=0) + layout.dtype.itemsize
    whole: NDArray[np.bool_] = 2 * reach > layout.nbytes
    return None if whole.all() else whole


class NativeFill:
    """Fetching of all chunks of a plan, shared by any number of threads.

    Parameters
    ----------
    array : ChunkedArray
    native : NativeArray
        Constants of the array for the core.
    plan : ChunkPlan or CopyPlan
    sink : Sink
    parts : callable
        Makes the part of one task (:meth:`gpustore.backends.base.Sink.staging_parts`).
    step : int
        Number of rows that a thread takes at once.
    by_element : bool
        Whether elements of regions are gathered one by one.
    leave : callable, optional
        See :func:`fill_tasks`.
    """

    def __init__(
        self,
        array: ChunkedArray,
        native: NativeArray,
        plan: ChunkPlan | CopyPlan,
        sink: Sink,
        parts: Callable[[int], StagingPart],
        step: int,
        *,
        by_element: bool,
        leave: Leave | None,
    ) -> None:
        self._array = array
        self._native = native
        self._plan = plan
        self._sink = sink
        self._parts = parts
        self._by_element = by_element
        self._leave = leave
        self._windows = windows_of(plan)
        self._step = step
        self._lock = threading.Lock()
        self._working = self._number = 0
        self._failed = sys.maxsize  # number of the first piece that has failed
        self._error: GpustoreError | None = None
        self._directory: KeyDirectory | None = None
        self._pieces = self._split(plan.tables(1, max(1, len(plan))))

    def work(self) -> None:
        """Fetch pieces until all are taken, or one has failed.

        The error of the first piece that fails is raised by the thread that ends last.
        """
        with self._lock:
            self._working += 1
        raised: BaseException | None = None
        try:
            self._fill(CancelToken.current())
        except BaseException as error:
            raised = error
        with self._lock:
            self._working -= 1
            # A thread that is told to stop says nothing about the reason.
            if not self._working and (raised is None or is_cancelled(raised)):
                raised, self._error = self._error or raised, None
        if raised is not None:
            raise raised

    def _fill(self, token: CancelToken) -> None:
        with self._parts(self._step) as part:
            while (piece := self._next()) is not None:
                token.check()
                number, files, lo, hi = piece
                try:
                    self._fetch(part, files, lo, hi)
                except DeviceError:
                    raise  # Others may wait for what this thread has not done.
                except GpustoreError as error:
                    without_locals(error)
                    self._note(number, error)

    def _fetch(self, part: StagingPart, files: FilesOfTable, lo: int, hi: int) -> None:
        """Fetch some rows of a table."""
        chunks, old = table_chunks(self._array, files.table, lo, hi)
        left = part.fill(files, lo, hi, chunks, old)
        if left and self._leave is not None:
            self._leave(files.table, left)
            return
        for target, window in self._windows(files.table, left) if left else ():
            for _, rows, values, cached in batches(
                self._array, window, part.arena, self._sink.nbytes
            ):
                wanted = _by_element(rows) if self._by_element else rows
                part.scatter(wanted, values, cached, target=target)

    def _note(self, number: int, error: GpustoreError) -> None:
        """Note the error of a piece; those before it are taken, and no other is any more."""
        with self._lock:
            if number < self._failed:
                self._failed, self._error = number, error

    def _next(self) -> tuple[int, FilesOfTable, int, int] | None:
        with self._lock:
            if self._failed < sys.maxsize:
                return None
            piece = next(self._pieces, None)
            self._number += 1
            return None if piece is None else (self._number, *piece)

    def _whole(self, table: RowTable) -> NDArray[np.bool_] | None:
        """Return a mask of the rows of which the core fetches the whole value; None for all."""
        array, plan = self._array, self._plan
        reads_ranges = array.chain.is_raw and len(array.refiners) > len(array.levels)
        if not reads_ranges or not isinstance(plan, ChunkPlan):
            return None
        return _whole_rows(table, plan, array.chain)

    def _split(self, tables: Iterable[RowTable]) -> Iterator[tuple[FilesOfTable, int, int]]:
        for table in tables:
            if self._directory is None:
                self._directory = self._array.key_directory()
            files = FilesOfTable(
                table,
                strides_of(self._plan),
                TableKeys(table, self._windows),
                self._by_element,
                array=self._native,
                directory=self._directory,
                fill_missing=self._array.fill_missing,
                is_sharded=bool(self._array.levels),
                whole=self._whole(table),
            )
            for lo in range(0, table.rows, self._step):
                yield files, lo, min(lo + self._step, table.rows)


def _by_element(rows: PlanWindow) -> PlanWindow:
    """Make the elements of each row one list, as those of the rows that the core fetches are."""
    none = np.zeros(len(rows), np.int64)
    count = np.array(rows.count, np.int64).reshape(-1, len(rows))
    edges, src, dst = elements(
        np.arange(len(rows) + 1), none, none, count, rows.src_stride, rows.dst_stride
    )
    points: list[tuple[Points, ...]] = [
        ((src[lo:hi], dst[lo:hi]),) for lo, hi in pairwise(edges.tolist())
    ]
    return replace(rows, count=(), src_stride=(), dst_stride=(), points=points)
