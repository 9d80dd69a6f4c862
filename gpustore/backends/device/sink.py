"""Sink of a device, with the submissions of one task of a read.

The values of one submission (:mod:`gpustore.backends.device.submission`) are fetched into a
staging buffer while the submissions of others run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from gpustore.backends.base import Check
from gpustore.backends.device.direct_read import DirectReads, pages_nbytes
from gpustore.backends.device.open_files import OpenFiles
from gpustore.backends.device.placement import Places
from gpustore.backends.device.staging_buffer import StagingBuffer, StagingBuffers
from gpustore.backends.device.submission import Submission
from gpustore.codec_chain.chain import CodecChain
from gpustore.device.protocol import Device, DeviceArray, Event
from gpustore.kvstores.arena import Arena
from gpustore.planning.copy_plan import CopyWindow
from gpustore.planning.window import PlanWindow
from gpustore.runtime.buffer import Buffer

_ROW_NBYTES = 512
_REGION_NBYTES = 160
"""Bytes of a staging buffer reserved for tables, for each row and each of its regions."""

_MOST_ROWS = 4096


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Array on a device, with the event after which it may be used.

    Attributes
    ----------
    view : DeviceArray
    ready : Event
        Event behind all other uses of the memory.
    """

    view: DeviceArray
    ready: Event

    @property
    def array(self) -> Any:
        return self.view.array

    @property
    def strides(self) -> tuple[int, ...]:
        return self.view.strides


class DeviceSink:
    """Sink into device memory; all values are placed when :meth:`finish` returns.

    Parameters
    ----------
    device : Device
    buffers : StagingBuffers
    files : OpenFiles or None
        Files for reads straight into device memory; None if the host must see the values.
    chain, fill_value, out, check, rows, regions
        Parameters of :meth:`gpustore.backends.base.Backend.sink`.
    nbytes : int
        Approximate decoded bytes of a submission.
    """

    def __init__(
        self,
        device: Device,
        buffers: StagingBuffers,
        files: OpenFiles | None,
        chain: CodecChain,
        fill_value: Any,
        out: Sequence[DeviceMemory],
        check: Check,
        *,
        nbytes: int,
        rows: int,
        regions: int,
    ) -> None:
        self.nbytes = nbytes
        self._device = device
        self._buffers = buffers
        self._files = files
        self._chain = chain
        self._fill_value = fill_value
        self._out = out
        self._check = check
        self._next: tuple[StagingBuffer, DirectReads | None] | None = None
        self._pending: deque[tuple[StagingBuffer, Submission, PlanWindow]] = deque()
        chunk = max(1, chain.layout.nbytes)
        count = max(1, min(rows, nbytes // chunk, _MOST_ROWS))
        values_nbytes = count * min(chunk, chain.encoded_bound)
        row_nbytes = _ROW_NBYTES + regions * _REGION_NBYTES // max(1, rows)
        self._buffer_nbytes = values_nbytes + count * row_nbytes
        if files is not None:
            self._buffer_nbytes += pages_nbytes(count, values_nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._pending:
            buffer, submission, _ = self._pending.popleft()
            submission.give_up()
            self._buffers.put(buffer)
        if self._next is not None:
            self._buffers.put(self._next[0])
            self._next = None

    def arena(self) -> Arena:
        """Return the arena, in pinned host memory, for the values of the next submission."""
        if self._next is None:
            buffer = self._buffers.take(wait=not self._pending)
            while buffer is None:
                self._finish_one()
                buffer = self._buffers.take(wait=not self._pending)
        else:
            buffer = self._next[0]
        direct = None
        if self._files is not None:
            direct = DirectReads(self._device, self._files, buffer)
        self._next = buffer, direct
        buffer.clear()
        # If memory is short, values go to ordinary memory, and to the device in smaller parts.
        with suppress(MemoryError):
            buffer.resize(self._buffer_nbytes)
        buffer.arena.direct = direct
        return buffer.arena

    def scatter(self, rows: PlanWindow, values: Sequence[Buffer | None]) -> None:
        """Begin to decode and place values, which may lie in :meth:`arena`."""
        (out,) = self._out
        self._begin(rows, values, Places.of_rows(rows, self._chain.layout, out.view))

    def copy_regions(
        self, regions: CopyWindow, first: int, rows: PlanWindow, values: Sequence[Buffer | None]
    ) -> None:
        """Begin to decode values and to copy their regions; they may lie in :meth:`arena`."""
        views = [memory.view for memory in self._out]
        places = Places.of_regions(regions, first, rows, self._chain.layout, views)
        self._begin(rows, values, places)

    def _begin(
        self,
        rows: PlanWindow,
        values: Sequence[Buffer | None],
        places: Places,
    ) -> None:
        if self._next is None:
            self.arena()
        assert self._next is not None
        buffer, direct = self._next
        self._next = None
        submission = Submission(
            self._device,
            buffer,
            direct,
            places,
            values,
            self._chain,
            self._fill_value,
            [memory.ready for memory in self._out],
            self._shrink,
            narrowed=rows.narrowed,
        )
        self._pending.append((buffer, submission, rows))
        submission.begin()

    def finish(self) -> None:
        """Wait for all submissions."""
        while self._pending:
            self._finish_one()

    def _finish_one(self) -> None:
        buffer, submission, rows = self._pending.popleft()
        try:
            errors = submission.finish()
        finally:
            submission.give_up()
            self._buffers.put(buffer)
        self._check(rows, submission.values, errors)

    def _shrink(self) -> None:
        """Finish all submissions except the newest, and give back idle memory."""
        while len(self._pending) > 1:
            self._finish_one()
        self._buffers.free()
