"""Submissions: values of some chunks of a read, uploaded to a device and decoded together.

1. :meth:`Submission.begin` brings the values into a staging buffer, lets the chain record its
   steps and the placement its launches, and asks the device for one upload of values and tables,
   all steps, and one download of their results. It waits for nothing.
2. :meth:`Submission.finish` waits for the results. Values that fall back to the host and those that
   failed are decoded by the host, once, copied and placed: the only fallback there is. What is
   wrong then is an error.

Values that went straight to the device may have checksums that their kvstore knows. The device
compares these before the other steps, or the host if it gets the bytes before.

A chain that cannot be decoded on the device at all takes the fallback in step 1. Where memory is
short, halves are run one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.device.direct_read import DirectReads, Expected
from gpustore.backends.device.placement import Places, place, place_fill
from gpustore.backends.device.staging_buffer import StagingBuffer
from gpustore.codec_chain.chain import CodecChain
from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.device.protocol import Allocation, Device, Event, Pinned, Spans
from gpustore.errors import DeviceError, GpustoreError, LimitError
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.statistics import STATISTICS

_TABLES_PER_ROW_NBYTES = 256


class Submission:
    """Submission of values to a device; it owns its staging buffer until finished or given up.

    Parameters
    ----------
    device : Device
    buffer : StagingBuffer
    direct : DirectReads or None
        Reads of files that have ended in the buffer.
    places : Places
        Destinations of the elements of each value.
    values : sequence of bytes-like or None
        Encoded values in host memory, or at the end of the buffer; None for a missing chunk.
    chain : CodecChain
    fill_value : ndarray
        Value of missing elements, or the bytes of a stored record.
    ready : sequence of Event
        Events after which the destinations may be written.
    shrink : callable
        Frees device memory that other submissions hold and do not need.
    narrowed : bool
        Whether the values are parts of uncompressed chunks.
    decoded : bool
        Whether the values are decoded chunks.

    Attributes
    ----------
    values
        Values of the parameter; they may have moved into the staging buffer.
    """

    def __init__(
        self,
        device: Device,
        buffer: StagingBuffer,
        direct: DirectReads | None,
        places: Places,
        values: Sequence[Buffer | None],
        chain: CodecChain,
        fill_value: Any,
        ready: Sequence[Event],
        shrink: Callable[[], None],
        *,
        narrowed: bool = False,
        decoded: bool = False,
    ) -> None:
        self.values = list(values)
        self._shrink = shrink
        self._device = device
        self._buffer = buffer
        self._direct = direct
        self._chain = chain
        self._fill_value = fill_value
        self._places = places
        self._ready = ready
        self._narrowed = narrowed
        self._decoded = decoded
        self._errors: dict[int, GpustoreError] = {}
        self._commands: CommandList | None = None
        self._event: Event | None = None
        self._results: tuple[Pinned, int] | None = None
        self._on_device = 0
        self._own: tuple[Pinned, Allocation] | None = None

    def begin(self) -> None:
        """Queue all work on the device; if memory is short, run halves of it one by one."""
        try:
            self._begin()
        except MemoryError:
            self._halve()

    def _halve(self) -> None:
        self._fetch_direct()
        copies = [None if value is None else bytes(value) for value in self.values]
        self.give_up()
        self._buffer.free()
        self._shrink()
        count = len(self.values)
        if count == 1:
            nbytes = self._chain.layout.nbytes
            self._errors[0] = LimitError(
                f"A chunk of {nbytes} bytes does not fit in the free memory of device "
                f'{self._device.name} while it is decoded; free some, or open with device="cpu"'
            )
            return
        for lo, hi in ((0, count // 2), (count // 2, count)):
            half = self._part(np.arange(lo, hi), copies[lo:hi], decoded=self._decoded)
            for i in [i for i in self._errors if lo <= i < hi]:
                half._errors[i - lo] = self._errors[i]
            for i, error in half.complete().items():
                self._errors[lo + i] = error

    def _part(
        self, rows: NDArray[np.int64], values: Sequence[Buffer | None], *, decoded: bool
    ) -> Submission:
        """Make a submission of some of the values, in the same buffer."""
        return Submission(
            self._device,
            self._buffer,
            None,
            self._places.take(rows),
            values,
            self._chain,
            self._fill_value,
            self._ready,
            self._shrink,
            narrowed=self._narrowed,
            decoded=decoded,
        )

    def complete(self) -> dict[int, GpustoreError]:
        """Begin and finish; return the error of each row that failed."""
        try:
            self.begin()
            return self.finish()
        finally:
            self.give_up()

    def _begin(self) -> None:
        on_device = self._decode_on_host()
        buffer, device = self._buffer, self._device
        some = [
            i for i, value in enumerate(self.values) if value is not None and i not in self._errors
        ]
        missing = np.array([i for i, value in enumerate(self.values) if value is None], np.int64)
        pattern = self._pattern() if len(missing) else b""
        present = [self.values[i] or b"" for i in some]
        room = len(self.values) * _TABLES_PER_ROW_NBYTES + len(pattern)
        lacking = buffer.lacks(present, room)
        if lacking:
            self._fetch_direct()
            some = [i for i in some if i not in self._errors]
            present = [bytes(self.values[i] or b"") for i in some]
            for i, value in zip(some, present):
                self.values[i] = value
            buffer.clear()
            buffer.resize(lacking)
        starts = buffer.hold(present)
        for i, start, value in zip(some, starts, present):
            self.values[i] = buffer.view(start, len(value))
        commands = self._commands = CommandList(
            device,
            buffer.stream,
            np.array(some, np.int64),
            Spans(
                np.array([buffer.address(start) for start in starts], np.uint64),
                np.array([len(value) for value in present], np.uint64),
            ),
            None
            if buffer.has_end
            else EncodedColumns(
                np.frombuffer(buffer.pinned.view, np.uint8),
                np.array(starts, np.int64),
                np.array([len(value) for value in present], np.int64),
            ),
        )
        # After an error from here on, `give_up` frees the memory of the commands.
        if self._direct is not None and self._direct.expected:
            self._check_checksums(commands, starts, self._direct.expected)
        if on_device and self._narrowed:
            self._chain.check_device(commands)
        elif on_device and len(commands):
            self._chain.decode_device(commands, device)
            self._on_device = 0 if self._chain.is_raw else len(commands)
        stored, places = self._chain.layout.dtype, self._places
        place(commands, places, commands.rows, commands.values.address, stored)
        if len(missing):
            (start,) = buffer.hold([pattern])
            address = buffer.address(start)
            if self._is_record():
                chunks = np.full(len(missing), address, np.uint64)
                place(commands, places, missing, chunks, stored)
            else:
                place_fill(commands, places, missing, pattern, address)
        self._run(commands)

    def _check_checksums(
        self, commands: CommandList, starts: Sequence[int], expected: Sequence[Expected]
    ) -> None:
        """Record the comparison of checksums of values; values of the list begin at `starts`."""
        buffer = self._buffer
        # A checksum is that of values that were read together; the first of them stands for all.
        row_at = dict(zip(starts, commands.rows.tolist()))
        wanted = [one for one in expected if one.start in row_at]
        commands.checksum(
            "crc32",
            Spans(
                np.array([buffer.address(one.start) for one in wanted], np.uint64),
                np.array([one.nbytes for one in wanted], np.uint64),
            ),
            np.array([one.crc32 for one in wanted], np.uint32),
            np.array([row_at[one.start] for one in wanted], np.int64),
        )

    def _fetch_direct(self) -> None:
        """Copy bytes that only the device has to the host; compare checksums left to compare."""
        if self._direct is None:
            return
        for whole, found in self._direct.fetch():
            for i, value in enumerate(self.values):
                if value is not None and self._direct.is_within(value, whole):
                    self._errors[i] = whole.error(found)

    def _decode_on_host(self) -> bool:
        """Return whether the device decodes the values; if not, decode them on the host."""
        if self._decoded:
            return False
        if self._chain.unsupported_reason(self._device) is None:
            return True
        count = 0
        for i, value in enumerate(self.values):
            if value is None:
                continue
            try:
                self.values[i] = self._decode(value)
                count += 1
            except GpustoreError as error:
                self._errors[i] = error
        self._decoded = True
        if count:
            STATISTICS.add(host_fallbacks=count)
        return False

    def _decode(self, value: Buffer) -> Buffer:
        """Decode a chunk, or a part of a raw one, on the host."""
        return self._chain.check(value) if self._narrowed else self._chain.decode(value)

    def _is_record(self) -> bool:
        """Whether the fill value is the bytes of a stored record."""
        dtype: np.dtype[Any] = self._fill_value.dtype
        record = self._chain.layout.record
        return dtype.type is np.void and dtype.itemsize == record

    def _pattern(self) -> bytes:
        """Return the bytes that fill missing rows: an element, or a chunk of records."""
        layout = self._chain.layout
        if self._is_record():
            record: bytes = self._fill_value.tobytes()
            return record * (layout.nbytes // layout.record)
        return bytes(np.asarray(self._fill_value, self._places.dtype).tobytes())

    def _run(self, commands: CommandList) -> None:
        device, buffer = self._device, self._buffer
        stream = buffer.stream
        if not commands.launches:
            return
        tables = buffer.reserve(commands.table_nbytes)
        end = buffer.used
        results = None if tables is None else buffer.reserve(commands.result_nbytes)
        copies = nbytes = 0
        for ready in self._ready:
            device.wait(stream, ready)
        if tables is not None and results is not None:
            pinned, pinned_start = buffer.pinned, results
            table_address, result_address = buffer.address(tables), buffer.address(results)
            commands.write_tables(buffer.view(tables, commands.table_nbytes))
            device.upload(pinned, 0, buffer.address(0), end, stream)
            copies, nbytes = 1, end
        else:
            # More tables than there is room for behind the values: they get memory of their own.
            pinned_start = -(-commands.table_nbytes // 16) * 16
            own = pinned_start + commands.result_nbytes
            pinned = device.allocate_pinned(own)
            try:
                allocation = device.allocate(own, stream)
            except BaseException:
                device.free_pinned(pinned)
                raise
            self._own = pinned, allocation
            commands.write_tables(pinned.view[: commands.table_nbytes])
            if end:
                device.upload(buffer.pinned, 0, buffer.address(0), end, stream)
                copies, nbytes = 1, end
            device.upload(pinned, 0, allocation.address, commands.table_nbytes, stream)
            copies, nbytes = copies + 1, nbytes + commands.table_nbytes
            table_address = allocation.address
            result_address = allocation.address + pinned_start
        commands.run(table_address, result_address)
        if commands.result_nbytes:
            device.download(result_address, pinned, pinned_start, commands.result_nbytes, stream)
            STATISTICS.add(copies=1, bytes_to_host=commands.result_nbytes)
        commands.release()
        self._results = pinned, pinned_start
        self._event = device.record(stream)
        STATISTICS.add(copies=copies, bytes_to_device=nbytes, launches=commands.launches)

    def finish(self) -> dict[int, GpustoreError]:
        """Wait, and decode failed rows on the host; return errors of those that fail again."""
        commands = self._commands
        if commands is None:
            return self._errors
        left = dict(commands.fallbacks)
        if self._event is not None:
            self._device.synchronize(self._event)
            STATISTICS.add(waits=1)
            assert self._results is not None
            pinned, start = self._results
            failed = commands.failures(pinned.view[start : start + commands.result_nbytes])
            STATISTICS.add(
                retries=len(failed), chunks_decoded_device=max(0, self._on_device - len(failed))
            )
            left.update(failed)
        self._free_own()
        self._commands = None
        if left:
            self._place_from_host(sorted(left))
        return self._errors

    def _place_from_host(self, left: list[int]) -> None:
        """Decode some rows on the host and place them, as many at a time as fit in a buffer."""
        nbytes = max(1, self._chain.layout.nbytes)
        most = max(1, self._buffer.nbytes // (nbytes + _TABLES_PER_ROW_NBYTES))
        # The staging buffer of the values is used again below.
        self._fetch_direct()
        left = [i for i in left if i not in self._errors]
        encoded = {i: bytes(self.values[i] or b"") for i in left}
        decoded: dict[int, Buffer] = {}
        for number, i in enumerate(left):
            try:
                decoded[i] = self._decode(encoded.pop(i))
            except GpustoreError as error:
                self._errors[i] = error
            if decoded and (len(decoded) == most or number == len(left) - 1):
                STATISTICS.add(host_fallbacks=len(decoded))
                self._buffer.clear()
                values = list(decoded.values())
                part = self._part(np.array(list(decoded)), values, decoded=True)
                for at, wrong in part.complete().items():
                    self._errors[list(decoded)[at]] = wrong
                decoded.clear()

    def give_up(self) -> None:
        """Wait until none of its work runs any more, and free its memory. May be called again."""
        if self._commands is None:
            return
        with suppress(DeviceError):  # Of a lost device, whose first error is raised.
            self._commands.release()
            self._device.synchronize(self._device.record(self._buffer.stream))
            self._free_own()
        self._commands = None

    def _free_own(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            self._device.free_pinned(own[0])
            self._device.free(own[1], self._buffer.stream)
