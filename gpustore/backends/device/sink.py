"""Sink of a device: the submissions of one read, which all its tasks fill together.

The tasks of a read bring values into one staging buffer. Whoever adds the last ones begins the
submission (:mod:`gpustore.backends.device.submission`); then the next is opened in another buffer,
or, if there is none, the oldest submission is completed. Rows that are left to the host then are
decoded by the tasks, like any others, and placed by a later submission.

A read has a buffer from its beginning to its end, and takes others while they are idle. So its
threads wait only for its own submissions, and for each other.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gpustore.backends.base import Check
from gpustore.backends.device.cell_table import NO_ENTRY
from gpustore.backends.device.chunk_cache import CachedChunks
from gpustore.backends.device.chunk_caches import ChunkCaches
from gpustore.backends.device.direct_read import DirectReads, direct_unsupported_reason
from gpustore.backends.device.early_result import EarlyResult
from gpustore.backends.device.open_files import OpenFiles
from gpustore.backends.device.piece import (
    DECODED,
    MISSING,
    Left,
    Piece,
    Report,
    renumbered,
)
from gpustore.backends.device.placement import Places
from gpustore.backends.device.staging_buffer import StagingArena, StagingBuffer, StagingBuffers
from gpustore.backends.device.submission import Submission, too_large
from gpustore.codec_chain.chain import CodecChain
from gpustore.device.protocol import Device, DeviceArray, Event, Stream
from gpustore.errors import DeviceError, GpustoreError, LimitError
from gpustore.kvstores.arena import Arena, thread_arena
from gpustore.planning.copy_plan import CopyWindow
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cancel_token import CancelledError, CancelToken
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future, Promise
from gpustore.runtime.statistics import STATISTICS

if TYPE_CHECKING:
    from gpustore.backends.native.array import NativeArray


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Array on a device, with the event after which it may be used.

    Attributes
    ----------
    view : DeviceArray
    ready : Event
        Event behind all other uses of the memory.
    stream : Stream, optional
        Stream of the caller.
    """

    view: DeviceArray
    ready: Event
    stream: Stream | None = None

    @property
    def array(self) -> Any:
        return self.view.array

    @property
    def strides(self) -> tuple[int, ...]:
        return self.view.strides


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes of the submissions of a read.

    Attributes
    ----------
    rows, buffer_rows : int
        Most values of a submission, and number of those that a staging buffer has room for.
    value_nbytes, room_nbytes : int
        Bytes of the staging buffer for a value, and for its tables and results.
    slack_nbytes : int
        More bytes of the buffer, so that the longest value fits.
    piece_nbytes : int
        Decoded bytes that a task adds at a time.
    is_small : bool
        Whether a small buffer is enough.
    """

    rows: int
    buffer_rows: int
    value_nbytes: int
    room_nbytes: int
    slack_nbytes: int
    piece_nbytes: int
    is_small: bool


class DeviceSink:
    """Sink into device memory.

    Parameters
    ----------
    device : Device
    pool : StagingBuffers
    caches : ChunkCaches
    files : OpenFiles
    extent : Extent
    fill_value, out, check
        Parameters of :meth:`gpustore.backends.base.Backend.sink`.
    """

    def __init__(
        self,
        device: Device,
        pool: StagingBuffers,
        caches: ChunkCaches,
        files: OpenFiles,
        extent: Extent,
        fill_value: Any,
        out: Sequence[DeviceMemory],
        check: Check,
    ) -> None:
        self.device = device
        self.files = files
        self.out = out
        self.extent = extent
        self.check = check
        self._pool = pool
        self._caches = caches
        self._fill_value = fill_value
        self._ready = [memory.ready for memory in out]
        self._changed = threading.Condition()
        self._idle: list[StagingBuffer] = []
        self._live: list[Submission] = []
        self._open: Submission | None = None
        self._is_opening = self._has_failed = False
        self._running: deque[Submission] = deque()
        self._left: deque[Left] = deque()
        self._groups = 0
        streams = [memory.stream for memory in out if memory.stream is not None]
        self._early = EarlyResult(device, streams)

    @property
    def nbytes(self) -> int:
        return self.extent.piece_nbytes

    def part(
        self,
        chain: CodecChain,
        *,
        rows: int,
        blocks: tuple[int, ...] = (),
        native: NativeArray | None = None,
    ) -> DevicePart:
        """Make the part of one task; see :meth:`gpustore.backends.base.Sink.part`."""
        del blocks, native  # They place elements in host memory.
        return DevicePart(self, chain, rows)

    # ----------------------------------------------------------------- from begin to end

    def run(
        self,
        executor: Executor,
        tasks: Sequence[Callable[[], object]],
        result: Callable[[], Any],
        *,
        helped: bool = False,
    ) -> Future[Any]:
        """Run the tasks of the read as soon as there is a staging buffer."""
        del helped  # A thread that helped would wait for the device.
        if not len(tasks):
            return executor.run_all(tasks, result)
        promise, future = Promise[Any].new()
        promise.offer(partial(self._early.take, result))

        def begin(buffer: StagingBuffer) -> None:
            self._idle.append(buffer)
            self._groups += 1
            end = partial(self._end, executor, result)
            executor.run_all(tasks, end, parent=promise, ended=self._close)

        buffer = self._pool.take(is_small=self.extent.is_small, later=begin)
        if buffer is not None:
            begin(buffer)
        return future

    def _end(self, executor: Executor, result: Callable[[], Any]) -> Any:
        """Complete all submissions, and have rows that are left to the host decoded by tasks."""
        try:
            opened, self._open = self._open, None
            if opened is not None:
                self._begin(opened)
            if not self._left:
                self._early.queued(list(self._running))
            while self._running:
                self._complete(self._running.popleft())
            if self._left:
                self._groups += 1
                tasks = [self.decode_left] * min(len(self._left), executor.limit)
                end = partial(self._end, executor, result)
                return executor.run_all(tasks, end, ended=self._close)
        except BaseException:
            self._put_back()
            raise
        self._put_back()
        self._early.check()
        return result()

    def _close(self) -> None:
        """Give everything back, if no tasks are left."""
        self._groups -= 1
        if not self._groups:
            self._put_back()

    def _put_back(self) -> None:
        self._early.over()
        live, self._live = self._live, []
        for submission in live:
            try:
                submission.give_up()
            except DeviceError:
                pass  # Of a lost device, whose first error is raised.
            self._idle.append(submission.buffer)
        self._open = None
        self._running.clear()
        self._left.clear()
        self.out = ()  # Nobody holds the arrays when the Future is done.
        while self._idle:
            self._pool.put(self._idle.pop())

    # ----------------------------------------------------------------- submissions

    def join(self, rows: int) -> Submission:
        """Return the submission to which a task adds its next values, about `rows` of them."""
        wanted = CancelToken.current()
        while True:
            wanted.check()
            buffer = oldest = None
            with self._changed:
                if self._has_failed:
                    raise CancelledError
                opened = self._open
                if opened is not None:
                    opened.fillers += 1
                    opened.rows += rows
                    if opened.rows >= self.extent.rows:
                        self._close_open()
                    return opened
                if not self._is_opening:
                    buffer = self._idle.pop() if self._idle else self._another()
                if buffer is not None:
                    self._is_opening = True
                elif self._running:
                    oldest = self._running.popleft()
                else:
                    # Other tasks fill, begin or complete a submission.
                    self._changed.wait()
            if buffer is not None:
                self._open_in(buffer)
            if oldest is not None:
                self._complete(oldest)

    def _another(self) -> StagingBuffer | None:
        """Take one more buffer, if no other read has to wait for it."""
        is_small = self.extent.is_small
        return (
            None if self._pool.is_wanted(is_small=is_small) else self._pool.take(is_small=is_small)
        )

    def _close_open(self) -> None:
        assert self._open is not None
        self._open.is_closed = True
        self._open = None

    def _open_in(self, buffer: StagingBuffer) -> None:
        """Open a submission; of fewer values where memory is short."""
        extent = self.extent
        try:
            rows, is_relieved = extent.buffer_rows, False
            while rows:
                try:
                    each = extent.value_nbytes + extent.room_nbytes
                    buffer.resize(rows * each + extent.slack_nbytes)
                except MemoryError:
                    if not self._relieve() and is_relieved:
                        rows //= 2
                    is_relieved = True
                else:
                    buffer.clear()
                    buffer.room = rows * extent.room_nbytes
                    break
            submission = Submission(
                self.device, buffer, self._fill_value, self._ready, self._relieve
            )
        except BaseException:
            self._idle.append(buffer)
            raise
        with self._changed:
            self._live.append(submission)
            self._open = submission
            self._is_opening = False
            self._changed.notify_all()

    def leave(
        self, submission: Submission, expected: int, piece: Piece | None, *, is_full: bool
    ) -> None:
        """Add a piece of a task that has joined for `expected` rows; the last one begins it."""
        with self._changed:
            submission.rows -= expected
            if piece is not None and len(piece):
                submission.pieces.append(piece)
                submission.rows += len(piece)
            submission.fillers -= 1
            is_full = is_full or submission.rows >= self.extent.rows
            if is_full and self._open is submission:
                self._close_open()
            is_last = submission.is_closed and not submission.fillers
        if is_last:
            self._begin(submission)

    def _begin(self, submission: Submission) -> None:
        submission.begin()
        with self._changed:
            self._running.append(submission)
            self._changed.notify_all()

    def _complete(self, submission: Submission) -> None:
        """Wait for a submission, note what it leaves to the host, and report the others."""
        left = submission.finish()
        if left:
            self._early.wrong(sum([len(one.rows) for one in left]))
        with self._changed:
            self._live.remove(submission)
            self._left.extend(left)
            self._idle.append(submission.buffer)
            while len(self._idle) > 1 and self._pool.is_wanted(is_small=self.extent.is_small):
                self._pool.put(self._idle.pop())
            self._changed.notify_all()
        for piece in submission.pieces:
            piece.report(int((piece.state == MISSING).sum()), piece.errors)

    def _relieve(self) -> bool:
        """Have memory freed that is not needed: of idle buffers, and of work that has ended.

        Returns whether a cache has given memory back, so that the same may succeed now.
        """
        self._pool.free()
        for submission in list(self._running):
            submission.synchronize()
        return bool(self._caches.give_back())

    def fail(self) -> None:
        """Have tasks end that wait for one that has failed."""
        with self._changed:
            self._has_failed = True
            self._changed.notify_all()

    def decode_left(self) -> None:
        """Decode rows that submissions have left to the host, until there are none."""
        while True:
            with self._changed:
                if not self._left:
                    return
                left = self._left.popleft()
            with DevicePart(self, left.piece.chain, len(left.rows)) as part:
                part.add_left(left)


class DevicePart:
    """Part of a read for one task, which adds values to the submissions of all.

    Parameters
    ----------
    sink : DeviceSink
    chain : CodecChain
        Decodes the values.
    rows : int
        Number of values that the task adds, as far as it is known.
    """

    def __init__(self, sink: DeviceSink, chain: CodecChain, rows: int) -> None:
        self._sink = sink
        self._chain = chain
        self._by_host = chain.unsupported_reason(sink.device) is not None
        nbytes = max(1, chain.layout.nbytes)
        self._rows = max(1, min(rows, sink.extent.piece_nbytes // nbytes, sink.extent.rows))
        self._reads_directly = (
            not self._by_host
            and sink.files.unsupported_reason is None
            and direct_unsupported_reason(needs_bytes=chain.needs_bytes) is None
        )
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
    ) -> None:
        """Add values, which may lie in :meth:`arena`, and chunks for the only array."""
        (out,) = self._sink.out
        places = Places.of_rows(rows, self._chain.layout, out.view)
        report = partial(self._sink.check, rows.keys)
        self._add(places, values, report, cached, are_parts=rows.narrowed)

    def keep(self, rows: PlanWindow, values: Sequence[Buffer | None], cached: CachedChunks) -> None:
        """Add values, which may lie in :meth:`arena`, for the cache alone."""
        places = Places.none(len(rows), self._chain.layout.dtype)
        self._add(places, values, partial(self._sink.check, rows.keys), cached, are_parts=False)

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
            self._sink.decode_left()
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
                    piece.fail(i, self._too_large())
                left = []
            if self._by_host:
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
        at = None if self._by_host else buffer.start_of(value)
        try:
            if self._by_host:
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

    def _too_large(self) -> LimitError:
        return too_large(self._chain, self._sink.device.name)
