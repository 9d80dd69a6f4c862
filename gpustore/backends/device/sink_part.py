"""Parts of a read for one task each, which bring values into staging buffers.

The native core fetches values there (:meth:`DevicePart.fill`). Python does so through an arena, or
decodes values if the host has to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.base import FilesOfTable, TableRows
from gpustore.backends.device.cell_table import NO_ENTRY
from gpustore.backends.device.chunk_cache import CachedChunks
from gpustore.backends.device.direct_read import (
    DirectReads,
    count_unavailable,
    direct_unsupported_reason,
)
from gpustore.backends.device.piece import (
    DECODED,
    ENCODED,
    MISSING,
    Left,
    Piece,
    Report,
    renumbered,
)
from gpustore.backends.device.placement import Places, TablePlaces
from gpustore.backends.device.staging_buffer import StagingArena
from gpustore.backends.device.submission import Submission, too_large
from gpustore.backends.device.submissions import Submissions
from gpustore.backends.native.fetched_files import fetch_files
from gpustore.backends.native.headers import frames_of
from gpustore.backends.native.job import DONE, NO_ROOM
from gpustore.backends.native.job import MISSING as MISSING_FILE
from gpustore.codec_chain.chain import CodecChain
from gpustore.errors import GpustoreError
from gpustore.kvstores.arena import Arena, thread_arena
from gpustore.kvstores.columns import ABSENT
from gpustore.planning.chunk_grid import Integers
from gpustore.planning.copy_plan import CopyWindow
from gpustore.planning.row_table import RowTable
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.statistics import STATISTICS


class DevicePart:
    """Part of a read for one task, which adds values to the submissions of all.

    Parameters
    ----------
    sink : Submissions
        Submissions of the read.
    chain : CodecChain
        Decodes the values.
    rows : int
        Number of values that the task adds, as far as it is known.
    """

    def __init__(self, sink: Submissions, chain: CodecChain, rows: int) -> None:
        self._sink = sink
        self._chain = chain
        self._by_host = not sink.decodes(chain)
        self._rows = max(1, min(rows, sink.extent.rows))
        self._reads_directly = not self._by_host and may_be_direct(chain)
        self._filled: Submission | None = None
        self._direct: DirectReads | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._leave(None)
        except BaseException:
            self._sink.fail()
            raise
        if error is not None:
            self._sink.fail()

    def arena(self) -> Arena:
        """Return the arena for the next values: in pinned memory if the device decodes them."""
        if self._by_host:
            return thread_arena()
        buffer = self._joined().buffer
        arena = StagingArena(buffer)
        if self._reads_directly:
            if self._direct is None:
                self._direct = DirectReads(self._sink.device, self._sink.files, buffer)
            arena.direct = self._direct
        return arena

    def scatter(
        self,
        rows: PlanWindow,
        values: Sequence[Buffer | None],
        cached: CachedChunks | None = None,
        *,
        target: int = 0,
    ) -> None:
        """Add values, which may lie in :meth:`arena`, and chunks for one array, if there is any."""
        if self._sink.out:
            places = Places.of_rows(rows, self._chain.layout, self._sink.out[target].view)
        else:
            places = Places.none(len(rows), self._chain.layout.dtype)
        report = partial(self._sink.check, rows.keys)
        self._add(places, values, report, cached, are_parts=rows.narrowed)

    def copy_regions(
        self,
        regions: CopyWindow,
        first: int,
        rows: PlanWindow,
        values: Sequence[Buffer | None],
        cached: CachedChunks | None = None,
    ) -> None:
        """Add values, which may lie in :meth:`arena`, and chunks for all their regions."""
        views = [memory.view for memory in self._sink.out]
        places = Places.of_regions(regions, first, rows, self._chain.layout, views)
        report = partial(self._sink.check, rows.keys)
        self._add(places, values, report, cached, are_parts=rows.narrowed)

    def place(self, rows: TableRows, cached: CachedChunks) -> None:
        """Add the chunks of all rows of a table, none of which has to be fetched."""
        total, most = rows.table.rows, self._sink.extent.rows
        for lo in range(0, total, most):
            hi = min(lo + most, total)
            self._add_cached(
                self._places(rows, lo, hi), cached.take(slice(lo, hi)), rows.keys, np.arange(lo, hi)
            )

    def _places(self, rows: TableRows, lo: int, hi: int) -> Places | TablePlaces:
        """Return the places of rows `lo` to `hi`; none if nothing is placed."""
        views = [memory.view for memory in self._sink.out]
        if not views:
            return Places.none(hi - lo, self._chain.layout.dtype)
        address, dtype = [view.address for view in views], views[0].dtype
        offset = self._chain.layout.offset
        return TablePlaces(
            *(rows.table, lo, hi, rows.strides, offset, address, dtype, rows.by_element), rows.box
        )

    def _add_cached(
        self,
        places: Places | TablePlaces,
        cached: CachedChunks,
        keys: Sequence[str],
        rows: Integers,
    ) -> None:
        """Add chunks that are there, of some rows of a table."""
        none = np.zeros(len(rows), np.int64)
        report = renumbered(partial(self._sink.check, keys), rows)
        state = none.astype(np.uint8)
        piece = Piece(self._chain, places, none, none, state, report, cached=cached)
        piece.find_cached()
        self._joined()
        self._leave(piece)

    def fill(
        self,
        files: FilesOfTable,
        lo: int,
        hi: int,
        cached: CachedChunks | None = None,
        old: Sequence[int] | Integers = (),
    ) -> list[int]:
        """Add the values of rows that the native core fetches, and decodes if the host has to.

        Chunks of the rows that are `cached` are added as they are, unless they are `old`. Returns
        the rows that are left.
        """
        layout = self._chain.layout
        places = self._places(files, lo, hi)
        state = DECODED if files.array.decodes else ENCODED
        frames = None if files.array.decodes else frames_of(self._chain)
        report = partial(self._sink.check, files.keys)
        rows = np.arange(lo, hi)
        left: list[int] = []
        if files.whole is not None:
            left = rows[~files.whole[lo:hi]].tolist()
            rows = rows[files.whole[lo:hi]]
        if cached is not None:
            is_there = cached.is_known
            is_left = np.isin(rows - lo, old) | (cached.is_missing & (not files.fill_missing))
            left += rows[is_left].tolist()
            there = np.flatnonzero(is_there & ~is_left)
            STATISTICS.add(device_cache_hits=len(there))
            if len(there) and self._sink.out:
                self._add_cached(places.take(there), cached.take(there), files.keys, lo + there)
            elif self._sink.on_settled is not None:
                self._sink.on_settled(len(there) * layout.nbytes)
            rows = rows[~is_there]
        while len(rows):
            submission = self._joined()
            buffer = submission.buffer
            is_empty = not buffer.used
            wanted = files.table
            if len(rows) < wanted.rows:
                some = slice(lo, hi) if len(rows) == hi - lo else rows
                prefixes = None if wanted.prefixes is None else wanted.prefixes[some]
                wanted = RowTable.of_cells(wanted.cells[:, some], prefixes)
            limit = buffer.begin_fill()
            try:
                fetched = fetch_files(
                    files.array, wanted, buffer.memory, limit, files.directory, frames
                )
            finally:
                buffer.end_fill()
            counts = fetched.counts
            at, sizes, some, known = fetched.at, fetched.nbytes, rows, fetched.known
            states = np.frombuffer(bytearray((state,)) * len(rows), np.uint8)
            taken: NDArray[np.bool_] | slice = slice(None)
            done: NDArray[np.bool_] | slice = taken
            number, again = len(rows), rows[:0]
            # Python says what is wrong with uncompressed chunks.
            is_odd = self._chain.is_raw and bool((sizes != layout.nbytes).any())
            if counts.left or counts.missing or is_odd:
                status = np.frombuffer(fetched.status, np.uint8)
                there = status == DONE
                if is_odd:
                    there &= sizes == layout.nbytes
                states[~there] = MISSING
                kept = there
                if files.fill_missing and (cached is None or not files.is_sharded):
                    kept = there | (status == MISSING_FILE)
                taken = kept
                again = rows[status == NO_ROOM]
                left += rows[~kept & (status != NO_ROOM)].tolist()
                at, sizes, states, some = at[kept], sizes[kept], states[kept], rows[kept]
                known = None if known is None else known.take(kept)
                done = there[kept]
                number = int(np.count_nonzero(there))
            if self._reads_directly and not files.array.decodes:
                count_unavailable(sizes[done], fetched.generation[taken][done, 3])
            STATISTICS.add(
                key_reads=counts.reads,
                bytes_fetched=counts.fetched,
                bytes_decoded=number * layout.nbytes,
                host_fallbacks=number * files.array.decodes,
            )
            chunks = None
            if cached is not None:
                STATISTICS.add(device_cache_misses=len(some))
                generation = fetched.generations(files.directory.generation)
                cached.generation[some - lo] = np.where(states == state, generation[taken], ABSENT)
                chunks = cached.take(some - lo)
            piece = Piece(
                self._chain,
                places if len(some) == hi - lo else places.take(some - lo),
                at,
                sizes,
                states,
                renumbered(report, some),
                known=known,
                cached=chunks,
            )
            is_full = bool(len(again)) or buffer.left < self._sink.extent.value_nbytes
            self._leave(piece, is_full=is_full)
            if is_empty and len(again) == len(rows):
                left += again.tolist()
                return left
            rows = again
        return left

    def add_left(self, left: Left) -> None:
        """Decode and add rows that a submission has left to the host."""
        self._by_host = True
        report = renumbered(left.piece.report, left.rows)
        places = left.piece.places.take(left.rows)
        cached = left.piece.cached
        if cached is not None:
            cached = cached.take(left.rows)
            cached.slab[:] = NO_ENTRY  # Those that are there are of no use.
        self._add(places, left.values, report, cached, are_parts=left.piece.are_parts)

    def _joined(self) -> Submission:
        if self._filled is None:
            decode_left(self._sink)
            self._filled = self._sink.join(self._rows)
        return self._filled

    def _leave(self, piece: Piece | None, *, is_full: bool = False) -> None:
        """End the work on a submission."""
        submission, self._filled = self._filled, None
        direct, self._direct = self._direct, None
        if submission is None:
            return
        try:
            if direct is not None:
                direct.end()
                if piece is not None:
                    piece.direct = direct
        finally:
            self._sink.leave(submission, self._rows, piece, is_full=is_full)

    def _add(
        self,
        places: Places,
        values: Sequence[Buffer | None],
        report: Report,
        cached: CachedChunks | None,
        *,
        are_parts: bool,
    ) -> None:
        """Add values to one submission, and those for which it has no room to the next ones."""
        rows = np.arange(len(values))
        while True:
            submission = self._filled or self._sink.join(self._rows)
            self._filled = submission
            is_empty = not submission.buffer.used
            piece = Piece(
                self._chain,
                places.take(rows),
                np.zeros(len(rows), np.int64),
                np.zeros(len(rows), np.int64),
                np.zeros(len(rows), np.uint8),
                renumbered(report, rows),
                are_parts=are_parts,
                cached=None if cached is None else cached.take(rows),
            )
            wanted = piece.find_cached().tolist()
            left = [i for i in wanted if not self._put(piece, i, values[rows[i]])]
            if left and len(left) == len(rows) and is_empty:
                for i in left:
                    error = too_large(self._chain, self._sink.device.name, submission.lacking)
                    piece.fail(i, error)
                left = []
            STATISTICS.add(host_fallbacks=int((piece.state == DECODED).sum()))
            is_full = bool(left) or submission.buffer.left < self._sink.extent.value_nbytes
            kept = np.delete(np.arange(len(rows)), left)
            self._leave(piece.take(kept) if left else piece, is_full=is_full)
            if not left:
                return
            rows = rows[left]

    def _put(self, piece: Piece, i: int, value: Buffer | None) -> bool:
        """Bring a value into the staging buffer, perhaps decoded; False if that is full."""
        assert self._filled is not None
        buffer, chain = self._filled.buffer, self._chain
        if value is None:
            piece.state[i] = MISSING
            return True
        by_host = self._by_host or len(value) > chain.staged_bound
        at = None if by_host else buffer.start_of(value)
        try:
            if by_host:
                nbytes = len(value) if piece.are_parts else chain.layout.nbytes
                at = buffer.reserve(nbytes)
                if at is None:
                    return False
                view = buffer.view(at, nbytes)
                value = chain.check(value) if piece.are_parts else chain.decode(value, view)
                if buffer.start_of(value) != at:
                    view[:] = memoryview(value).cast("B")
                piece.state[i] = DECODED
            elif chain.is_raw and not piece.are_parts and len(value) != chain.layout.nbytes:
                chain.decode(value)  # Raises what is wrong.
        except GpustoreError as error:
            piece.fail(i, error)
            return True
        if at is None:
            at = buffer.reserve(len(value))
            if at is None:
                return False
            buffer.view(at, len(value))[:] = memoryview(value).cast("B")
        piece.start[i], piece.nbytes[i] = at, len(value)
        return True


def may_be_direct(chain: CodecChain, file_nbytes: int | None = None) -> bool:
    """Return whether values that `chain` decodes may go from files straight to a device.

    Parameters
    ----------
    file_nbytes : int, optional
        Most bytes of a file, if that is known.
    """
    nbytes = max(1, chain.layout.nbytes)
    reason = direct_unsupported_reason(
        needs_bytes=chain.needs_bytes, nbytes=nbytes, file_nbytes=file_nbytes
    )
    return reason is None


def decode_left(submissions: Submissions) -> None:
    """Decode rows that submissions have left to the host, until there are none."""
    while (left := submissions.next_left()) is not None:
        with DevicePart(submissions, left.piece.chain, len(left.rows)) as part:
            part.add_left(left)
