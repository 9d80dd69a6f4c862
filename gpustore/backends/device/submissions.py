"""Submissions of one read, which all its tasks fill together.

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
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpustore.backends.base import Check
from gpustore.backends.device.chunk_caches import ChunkCaches
from gpustore.backends.device.early_result import EarlyResult
from gpustore.backends.device.extent import Extent
from gpustore.backends.device.open_files import OpenFiles
from gpustore.backends.device.piece import MISSING, Left, Piece
from gpustore.backends.device.staging_buffer import StagingBuffer, StagingBuffers
from gpustore.backends.device.submission import Submission
from gpustore.codec_chain.chain import CodecChain
from gpustore.device.protocol import Device, DeviceArray, Event, Stream
from gpustore.errors import DeviceError
from gpustore.runtime.cancel_token import Cancelled, CancelToken


@dataclass(frozen=True, slots=True)
class DeviceRegion:
    """Region of an array on a device; its attributes are those of :class:`DeviceArray`."""

    array: Any
    address: int
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_read_only: bool = False


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


class Submissions:
    """Submissions of one read into device memory. Thread-safe.

    Parameters
    ----------
    device : Device
    pool : StagingBuffers
    caches : ChunkCaches
    files : OpenFiles
    extent : Extent
    fill_value, out, check
        Parameters of :meth:`gpustore.backends.base.Backend.sink`.

    Attributes
    ----------
    on_settled : callable, optional
        Called with the decoded bytes of chunks that are in place, or in the cache, or have failed.
    """

    on_settled: Callable[[int], object] | None = None

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
        self._lock = threading.Lock()
        self._changed: threading.Condition | None = None  # Made where a task waits.
        self._waiting = 0
        self._idle: list[StagingBuffer] = []
        self._live: list[Submission] = []
        self._open: Submission | None = None
        self._is_opening = self._has_failed = False
        self._running: deque[Submission] = deque()
        self._left: deque[Left] = deque()
        self._decodes: dict[CodecChain, bool] = {}
        streams = [memory.stream for memory in out if memory.stream is not None]
        self._early = EarlyResult(device, streams)

    def decodes(self, chain: CodecChain) -> bool:
        """Return whether the device decodes values of `chain`, which does not change meanwhile."""
        known = self._decodes.get(chain)
        if known is None:
            known = self._decodes[chain] = chain.unsupported_reason(self.device) is None
        return known

    def has(self, buffer: StagingBuffer) -> None:
        """Take over a staging buffer, which is given back with the others."""
        self._idle.append(buffer)

    def finish(self) -> int:
        """Complete all submissions, when no task fills one; return how many pieces are left."""
        opened, self._open = self._open, None
        if opened is not None:
            self._begin(opened)
        if not self._left:
            self._early.queued(list(self._running))
        while self._running:
            self._complete(self._running.popleft())
        return len(self._left)

    def put_back(self) -> None:
        """Give everything back. May be called again if Ctrl-C has ended it."""
        self._early.over()
        while self._live:
            with suppress(DeviceError):  # Of a lost device, whose first error is raised.
                self._live[-1].give_up()
            # A buffer that Ctrl-C leaves between the two lists is free once this object is gone.
            submission = self._live.pop()
            self._idle.append(submission.buffer)
        self._open = None
        self._running.clear()
        self._left.clear()
        self.out = ()  # Nobody holds the arrays when the Future is done.
        while self._idle:
            self._pool.put(self._idle.pop())

    def join(self, rows: int) -> Submission:
        """Return the submission to which a task adds its next values, about `rows` of them."""
        wanted = CancelToken.current()
        while True:
            wanted.check()
            buffer = oldest = None
            with self._lock:
                if self._has_failed:
                    raise Cancelled
                opened = self._open
                if opened is not None:
                    self._fill(opened, rows)
                    return opened
                if not self._is_opening:
                    buffer = self._idle.pop() if self._idle else self._another()
                if buffer is not None:
                    self._is_opening = True
                elif self._running:
                    oldest = self._running.popleft()
                else:
                    # Other tasks fill, begin or complete a submission.
                    self._changed = self._changed or threading.Condition(self._lock)
                    self._waiting += 1
                    try:
                        self._changed.wait()
                    finally:
                        self._waiting -= 1
            if buffer is not None:
                return self._open_in(buffer, rows)
            if oldest is not None:
                self._complete(oldest)

    def _fill(self, opened: Submission, rows: int) -> None:
        """Note that one more task fills the open submission."""
        opened.fillers += 1
        opened.rows += rows
        if opened.rows >= self.extent.rows:
            self._close_open()

    def _wake(self) -> None:
        """Wake the tasks that wait for a change."""
        if self._changed is not None and self._waiting:
            self._changed.notify_all()

    def _another(self) -> StagingBuffer | None:
        """Take one more buffer, if no other read has to wait for it."""
        is_small = self.extent.is_small
        if self._pool.is_wanted(is_small=is_small):
            return None
        return self._pool.take(self, is_small=is_small)

    def _close_open(self) -> None:
        assert self._open is not None
        self._open.is_closed = True
        self._open = None

    def _open_in(self, buffer: StagingBuffer, filled: int) -> Submission:
        """Open a submission, which a task fills; of fewer values where memory is short."""
        extent = self.extent
        try:
            rows, is_relieved, lacking = extent.buffer_rows, False, MemoryError
            while rows:
                try:
                    buffer.resize(extent.buffer_nbytes(rows))
                except MemoryError as error:
                    lacking = type(error)
                    if not self._relieve(lacking) and is_relieved:
                        rows //= 2
                    is_relieved = True
                else:
                    buffer.clear()
                    buffer.room = rows * extent.room_nbytes
                    break
            submission = Submission(
                self.device, buffer, self._fill_value, self._ready, self._relieve
            )
            submission.lacking = lacking
        except BaseException:
            self._idle.append(buffer)
            raise
        with self._lock:
            self._live.append(submission)
            self._open = submission
            self._is_opening = False
            self._fill(submission, filled)
            self._wake()
        return submission

    def leave(
        self, submission: Submission, expected: int, piece: Piece | None, *, is_full: bool
    ) -> None:
        """Add a piece of a task that has joined for `expected` rows; the last one begins it."""
        with self._lock:
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
        with self._lock:
            self._running.append(submission)
            self._wake()

    def _complete(self, submission: Submission) -> None:
        """Wait for a submission, note what it leaves to the host, and report the others."""
        left = submission.finish()
        if left:
            self._early.wrong(sum([len(one.rows) for one in left]))
        with self._lock:
            for one in left:  # Cached chunks, of which only tables passed the buffers so far.
                self.extent = self.extent.with_values(one.piece.chain.layout.nbytes)
            self._live.remove(submission)
            self._left.extend(left)
            self._idle.append(submission.buffer)
            while len(self._idle) > 1 and self._pool.is_wanted(is_small=self.extent.is_small):
                self._pool.put(self._idle.pop())
            self._wake()
        if self.on_settled is not None:
            settled = [(piece.chain, len(piece)) for piece in submission.pieces]
            settled += [(one.piece.chain, -len(one.rows)) for one in left]
            self.on_settled(sum([chain.layout.nbytes * rows for chain, rows in settled]))
        for piece in submission.pieces:
            piece.report(int(np.count_nonzero(piece.state == MISSING)), piece.errors)

    def _relieve(self, lacking: type[MemoryError]) -> bool:
        """Have memory freed that is not needed: of idle buffers, and of work that has ended.

        Returns whether a cache has given memory back, so that the same may succeed now.
        """
        self._pool.free()
        for submission in list(self._running):
            submission.synchronize()
        return bool(self._caches.give_back(lacking=lacking))

    def fail(self) -> None:
        """Have tasks end that wait for one that has failed."""
        with self._lock:
            self._has_failed = True
            self._wake()

    def next_left(self) -> Left | None:
        """Return rows that a submission has left to the host, None if there are none now."""
        with self._lock:
            return self._left.popleft() if self._left else None
