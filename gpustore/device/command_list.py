"""Commands for the values of one submission: codecs record them, a backend runs them.

1. The backend makes a :class:`CommandList` of the encoded values of some rows.
2. Each stage of the chain records steps: it says where its results go (:meth:`CommandList.scratch`)
   and what is done (:meth:`~CommandList.decompress`, :meth:`~CommandList.checksum`,
   :meth:`~CommandList.check_bits`, :meth:`~CommandList.guard`, :meth:`~CommandList.launch`), and
   what it cannot do (:meth:`~CommandList.fall_back`).
   Nothing runs yet, so that all tables are known before the one upload.
3. The backend uploads values and tables, calls :meth:`~CommandList.run`, and downloads the
   results: sizes, statuses and checksums of all steps together.
4. When these have come, :meth:`~CommandList.failures` says which rows are damaged.

See ``docs/design/003-device.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpustore.device.checksum import CHECKSUMS, Verdict, differing
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.device.guard import EMPTY_STREAMS, GUARD, NO_CHECKSUM, Guards
from gpustore.device.own_kernels import OWN_KERNELS, checks_bounds
from gpustore.device.protocol import (
    Allocation,
    Argument,
    CodecBatch,
    Device,
    Pinned,
    Spans,
    Stream,
)
from gpustore.device.table import Result, Table, TableLaunch, aligned
from gpustore.resources.gpu_decode_trust import Distrust
from gpustore.runtime.statistics import STATISTICS

UNWRITTEN = 0xFF
"""Value of all bytes of the results before the steps: no status, no likely size or checksum."""

_WARPS_PER_BLOCK = 8
SEGMENT_NBYTES = 64 << 10
"""Bytes that one thread block checks; not measured."""

_NO_ROOM: NDArray[np.uint8] = np.zeros(0, np.uint8)

_Failures = Iterable[tuple[int, str]]

Check = Callable[[NDArray[np.uint8]], _Failures]
"""Function from the bytes of a :class:`Result` to rows that failed, with reasons."""

Step = Callable[[Stream, int, int], None]


class CommandList:
    """Values of some rows, and the steps that decode them.

    Parameters
    ----------
    device : Device
    stream : Stream
        All steps run on it, and scratch memory belongs to it.
    rows : ndarray of int64, shape (n,)
        Numbers of the values, chosen by the caller.
    values : Spans, length n
        Places of the encoded values on the device when the steps run.
    encoded : EncodedColumns, length n, optional
        Bytes of the values in host memory; None if only the device has them.
    headers : Headers, length n, optional
        Headers of the values that :meth:`read_headers` of an earlier list has read.
    room : ndarray of uint8, optional
        Host memory at a multiple of 16 bytes from which tables are uploaded, if they fit: those
        that are made there need not be copied.

    Attributes
    ----------
    rows : ndarray of int64
        Rows still on the device, in the order of the next two.
    values : Spans
        Places of the bytes of each row after the steps recorded so far.
    encoded : EncodedColumns or None
        Bytes of the values in host memory until a stage decodes them. Valid while recording only.
    headers : Headers or None
        Headers of the values, once the codec that needs them has read them.
    distrust : Distrust or None
        Reason for which some decoders must not see the values; None if all may.
    fallbacks : dict of int to str
        Reasons for which the host decodes other rows.
    launches : int
        Number of launches and library calls that :meth:`run` makes.
    looks_at_tables : bool
        Whether it has to know the descriptors in tables, not only their bytes.
    """

    looks_at_tables: ClassVar[bool] = False
    __slots__ = (
        "_checks",
        "_device",
        "_guards",
        "_has_headers",
        "_result_nbytes",
        "_room",
        "_scratch",
        "_steps",
        "_stream",
        "_table_nbytes",
        "_tables",
        "_verdicts",
        "distrust",
        "encoded",
        "fallbacks",
        "headers",
        "launches",
        "rows",
        "values",
    )

    def __init__(
        self,
        device: Device,
        stream: Stream,
        rows: NDArray[np.int64],
        values: Spans,
        encoded: EncodedColumns | None = None,
        headers: Any = None,
        room: NDArray[np.uint8] = _NO_ROOM,
    ) -> None:
        self._room = room
        self.rows = rows
        self.values = values
        self.encoded = encoded
        self.headers = headers
        self.distrust: Distrust | None = None
        self.fallbacks: dict[int, str] = {}
        self.launches = 0
        self._device = device
        self._stream = stream
        self._tables: list[NDArray[Any]] = []
        self._table_nbytes = 0
        self._result_nbytes = 0
        self._steps: list[Step] = []
        self._checks: list[tuple[Result, Check]] = []
        self._scratch: list[Allocation] = []
        self._guards = Guards()
        self._has_headers = False
        self._verdicts: list[Verdict] = []

    def __len__(self) -> int:
        return len(self.rows)

    # ----------------------------------------------------------------- for codecs

    def fall_back(self, reasons: dict[int, str]) -> NDArray[np.bool_]:
        """Leave values to the host, and return a mask of the others.

        `reasons` are by position in :attr:`rows`, not by row.
        """
        kept = np.ones(len(self.rows), np.bool_)
        if not reasons:
            return kept
        self.fallbacks.update((int(self.rows[i]), reason) for i, reason in reasons.items())
        kept[list(reasons)] = False
        self.rows = self.rows[kept]
        self.values = self.values.take(kept)
        if self.encoded is not None:
            self.encoded = self.encoded.take(kept)
        if self.headers is not None:
            self.headers = self.headers.take(kept)
        return kept

    def read_headers(
        self, read: Callable[[EncodedColumns], tuple[Any, dict[int, str]]]
    ) -> Any | None:
        """Return the headers of all values; None if they are neither known nor in host memory.

        Parameters
        ----------
        read : callable
            Returns the :class:`~gpustore.device.headers.Headers` of encoded values, and reasons by
            number for leaving some to the host. Those of the first codec that asks: a later one of
            the chain has no bytes to read.
        """
        if self._has_headers:
            return None
        self._has_headers = True
        if self.headers is None and self.encoded is not None:
            self.headers, reasons = read(self.encoded)
            if reasons:  # Their headers go with the values.
                self.fall_back(reasons)
        return self.headers

    def narrow(self, before: int, behind: int) -> None:
        """Take bytes off both ends of each value, which must be long enough."""
        self.values = self.values.inside(before, behind)
        if self.encoded is not None:
            self.encoded = self.encoded.inside(before, behind)

    def scratch(self, nbytes: int) -> int:
        """Allocate device memory for the time of the steps, and return its address.

        Raises
        ------
        MemoryError
            If there is not enough device memory.
        """
        allocation = self._device.allocate(nbytes, self._stream)
        self._scratch.append(allocation)
        return allocation.address

    def upload(self, src: Pinned, start: int, dst: int, nbytes: int) -> None:
        """Record the copy of bytes of pinned memory to scratch memory."""
        upload = self._device.upload

        def step(stream: Stream, tables: int, results: int) -> None:
            upload(src, start, dst, nbytes, stream)
            STATISTICS.add(copies=1, bytes_to_device=nbytes)

        self._steps.append(step)

    def download(self, src: int, dst: Pinned, start: int, nbytes: int) -> None:
        """Record the copy of bytes of device memory to pinned memory."""
        download = self._device.download

        def step(stream: Stream, tables: int, results: int) -> None:
            download(src, dst, start, nbytes, stream)
            STATISTICS.add(copies=1, bytes_to_host=nbytes)

        self._steps.append(step)

    def guard(self, origin: int, around: Spans, rows: NDArray[np.int64], sets: int = 1) -> None:
        """Guard scratch memory around outputs: if any step writes it, the rows beside have failed.

        Parameters are those of :meth:`gpustore.device.guard.Guards.add`.
        """
        if not self._guards.count:
            self.launches += 2
        self._guards.add(origin, around, rows, sets)

    def table(self, content: NDArray[Any]) -> Table:
        """Add a table (descriptors, offsets) that is uploaded before the steps run.

        The content is read by :meth:`write_tables`, and may change until then. If it is in memory
        of :meth:`table_memory`, it is at its beginning or follows another table there.
        """
        part = Table(aligned(self._table_nbytes))
        self._tables.append(content)
        self._table_nbytes = part.offset + content.nbytes
        return part

    def table_memory(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory for the content of the next tables, which lie one behind the other."""
        start = aligned(self._table_nbytes)
        if start + nbytes <= len(self._room):
            return self._room[start : start + nbytes]
        return np.empty(nbytes, np.uint8)

    def reserve_table(self, nbytes: int) -> tuple[Table, NDArray[np.uint8]]:
        """Add a table of so many bytes; return it and the memory for its content."""
        memory = self.table_memory(nbytes)
        return self.table(memory), memory

    def _codec_table(self, src: Spans, dst: Spans) -> Table:
        """Add the table of a :class:`CodecBatch`."""
        memory = self.table_memory(32 * len(src))
        return self.table(CodecBatch.columns(src, dst, memory.view(np.uint64)))

    def result(self, nbytes: int, check: Check) -> Result:
        """Reserve device memory for the result of a step, which `check` reads afterwards."""
        part = Result(aligned(self._result_nbytes), nbytes)
        self._result_nbytes = part.offset + nbytes
        self._checks.append((part, check))
        return part

    def confirmations(self, blocks: NDArray[np.int64], reason: str) -> Result:
        """Reserve a uint32 word for each value, to which each of its thread blocks adds 1.

        Values whose sum is not their number of `blocks` have failed, for `reason`.
        """
        owners = self.rows

        def check(found: NDArray[np.uint8]) -> Iterator[tuple[int, str]]:
            confirmed = found.view(np.uint32) + np.uint32(1)  # As all bits were set before.
            for i in np.flatnonzero(confirmed != blocks):
                yield int(owners[i]), reason

        return self.result(4 * len(self), check)

    def launch(
        self,
        family: str,
        expression: str,
        blocks: int,
        arguments: Sequence[Argument | Table | Result],
    ) -> None:
        """Record a launch; see :meth:`gpustore.device.protocol.Device.launch`."""
        if not blocks:
            return
        device = self._device
        kernel = device.kernel(family, expression)

        def step(stream: Stream, tables: int, results: int) -> None:
            resolved: list[Argument] = []
            for argument in arguments:
                if isinstance(argument, Table):
                    resolved.append(np.uint64(tables + argument.offset))
                elif isinstance(argument, Result):
                    resolved.append(np.uint64(results + argument.offset))
                else:
                    resolved.append(argument)
            device.launch(kernel, blocks, resolved, stream)

        self.record(step)

    def launch_tables(self, launches: Sequence[TableLaunch]) -> None:
        """Record launches together with their tables; offsets that some share are one table."""
        shared: dict[int, Table] = {}
        for one in launches:
            length = len(one.table) if one.length is None else one.length
            arguments: list[Argument | Table] = [self.table(one.table), np.uint32(length)]
            arguments += one.arguments
            if one.offsets is not None:
                if id(one.offsets) not in shared:
                    shared[id(one.offsets)] = self.table(one.offsets)
                arguments.append(shared[id(one.offsets)])
            self.launch(one.family, one.expression, one.blocks, arguments)

    def decompress(
        self,
        codec: str,
        src: Spans,
        dst: Spans,
        rows: NDArray[np.int64] | None = None,
        table: Table | None = None,
        sizes: tuple[int, int] | None = None,
    ) -> None:
        """Record the decompression of streams, each to exactly as many bytes as `dst` has.

        A decoder that does not check bounds sees no stream of a row that an earlier checksum shows
        to be damaged: an empty stream replaces it in device memory.

        Parameters
        ----------
        codec : str
            Codec for which :func:`~gpustore.device.own_kernels.can_decompress` is true. Alignments
            of `src` and `dst` are those of the device's
            :class:`~gpustore.device.protocol.DeviceCodec`; any if it has none.
        rows : ndarray of int64, optional
            Row each stream is part of; by default :attr:`rows`.
        table : Table, optional
            Table of these streams, if it has been made (:meth:`CodecBatch.columns`).
        sizes : (int, int), optional
            Decoded bytes of the longest stream, and of all together, if they are known.
        """
        count = len(src)
        if not count:
            return
        owners = self.rows if rows is None else rows
        expected = dst.nbytes
        if table is None:
            table = self._codec_table(src, dst)
        result = self.result(
            12 * count, lambda found: CodecBatch.wrong(found, owners, expected, codec)
        )
        if self._device.codec(codec) is None:
            statuses = Result(result.offset + 8 * count, 4 * count)
            blocks = -(-count // _WARPS_PER_BLOCK)
            self.launch(
                "lz", OWN_KERNELS[codec], blocks, [table, np.uint32(count), result, statuses]
            )
            return
        if not checks_bounds(self._device, codec):
            self._replace_damaged(codec, table, owners)
        longest, total = sizes or (int(expected.max()), int(expected.sum()))
        temp_nbytes = self._device.decompress_temp_nbytes(codec, count, longest, total)
        self._call_library(self._device.decompress, codec, src, dst, table, result, temp_nbytes)

    def _call_library(
        self,
        operation: Callable[[CodecBatch, Stream], None],
        codec: str,
        src: Spans,
        dst: Spans,
        table: Table,
        result: Result,
        temp_nbytes: int,
    ) -> None:
        """Record a call of the device's library for streams, with scratch memory of its own."""
        temp = self.scratch(temp_nbytes) if temp_nbytes else 0

        def step(stream: Stream, tables: int, results: int) -> None:
            batch = CodecBatch(
                codec,
                src,
                dst,
                table=tables + table.offset,
                result=results + result.offset,
                temp=temp,
                temp_nbytes=temp_nbytes,
            )
            operation(batch, stream)

        self.record(step)

    def checksum(
        self,
        name: str,
        src: Spans,
        expected: NDArray[np.uint32],
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Record the comparison of a checksum of each of `src` with `expected`.

        Parameters
        ----------
        name : str
            ``"crc32c"`` (Castagnoli), ``"crc32"`` (gzip) or ``"adler32"`` (zlib).
        src : Spans
            Ranges of device memory; for Adler-32, each of fewer than 2**32 bytes.
        rows : ndarray of int64, optional
            Row each range is part of; by default :attr:`rows`.
        """
        count = len(src)
        if not count:
            return
        owners = self.rows if rows is None else rows
        result = self._launch_checksum(
            name, src, lambda found: differing(name, found, owners, expected)
        )
        if rows is None and result.nbytes == 4 * count:
            self._verdicts.append(Verdict(result, owners, expected))

    def _launch_checksum(
        self, name: str, src: Spans, check: Callable[[NDArray[np.uint32]], _Failures]
    ) -> Result:
        """Record the computation of a checksum of each of `src`, which `check` gets afterwards."""
        family, words, finished = CHECKSUMS[name]
        # The kernels add to what is there: all bits set, as all results are before the steps.
        result = self.result(
            4 * words * len(src),
            lambda found: check(finished(found.view(np.uint32), src.nbytes)),
        )
        self._launch_segments(family, name, src, [result])
        return result

    def check_bits(self, illegal: bytes) -> None:
        """Record a check that fails values with any of the bits of `illegal` set.

        Parameters
        ----------
        illegal : bytes
            Mask of each byte of an element in turn; values begin with an element.
        """
        if not len(self):
            return
        segments = (self.values.nbytes + np.uint64(SEGMENT_NBYTES - 1)) // np.uint64(SEGMENT_NBYTES)
        result = self.confirmations(segments.astype(np.int64), "an element is not legal")
        self._launch_elements("check", illegal, [result])

    def clear_bits(self, illegal: bytes) -> None:
        """Record the clearing of the bits of `illegal`, in place; see :meth:`check_bits`."""
        if len(self):
            self._launch_elements("clear", illegal, [])

    def _launch_elements(self, verb: str, illegal: bytes, result: Sequence[Result]) -> None:
        period = len(illegal)
        if period == 1:
            bits = np.uint32(illegal[0] * 0x01010101)
            self._launch_segments("element", f"{verb}_bits", self.values, [bits, *result])
            return
        table = self.table(np.frombuffer(illegal, np.uint8))
        self._launch_segments(
            "element", f"{verb}_records", self.values, [table, np.uint32(period), *result]
        )

    def _launch_segments(
        self, family: str, name: str, src: Spans, arguments: Sequence[Argument | Table | Result]
    ) -> None:
        """Record a launch with a block for each segment of each of `src`."""
        count = len(src)
        table = self.table(np.stack((src.address, src.nbytes)))
        segments = max(1, -(-int(src.nbytes.max()) // SEGMENT_NBYTES))
        sizes = np.uint32(count), np.uint32(segments), np.uint64(SEGMENT_NBYTES)
        self.launch(family, f"gs::{name}", count * segments, [table, *sizes, *arguments])

    def _replace_damaged(self, codec: str, streams: Table, owners: NDArray[np.int64]) -> None:
        """Record the replacement of streams of damaged rows, given in the order of `streams`."""
        for verdict in self._verdicts:
            order = np.argsort(verdict.rows)
            place = np.searchsorted(verdict.rows, owners, sorter=order)
            number = order[np.minimum(place, len(order) - 1)]
            is_known = verdict.rows[number] == owners
            checks = np.stack((np.where(is_known, number, NO_CHECKSUM), verdict.expected[number]))
            count = np.uint32(len(owners))
            table = self.table(checks.astype(np.uint32))
            empty = np.frombuffer(EMPTY_STREAMS[codec], np.uint8)
            arguments: list[Argument | Table | Result] = [streams, count, table, verdict.result]
            arguments += [self.table(empty), np.uint32(len(empty))]
            blocks = -(-len(owners) // _WARPS_PER_BLOCK)
            self.launch("replace_damaged", "gs::replace_damaged", blocks, arguments)

    def record(self, step: Step) -> None:
        """Record a call of the device: a function of stream, tables' and results' addresses.

        It must not refer to this list, whose memory would stay until garbage is collected.
        """
        self._steps.append(step)
        self.launches += 1

    # ----------------------------------------------------------------- for the backend

    @property
    def table_nbytes(self) -> int:
        """Number of bytes that :meth:`write_tables` writes."""
        count = self._guards.count
        return self._guard_table + 16 * count if count else self._table_nbytes

    @property
    def result_nbytes(self) -> int:
        """Number of bytes that the steps fill and :meth:`failures` reads."""
        count = self._guards.count
        return self._guard_result + 4 * count if count else self._result_nbytes

    @property
    def _guard_table(self) -> int:
        """First byte of the table of all guards, the last one of the list."""
        return aligned(self._table_nbytes)

    @property
    def _guard_result(self) -> int:
        """First byte of the result of all guards, the last one of the list."""
        return aligned(self._result_nbytes)

    def write_tables(self, into: memoryview | None = None) -> None:
        """Write all tables to host memory of :attr:`table_nbytes` bytes, to be uploaded.

        By default to the beginning of the room of this list, where those made there stay.
        """
        here = self._room if into is None else np.frombuffer(into, np.uint8)
        owner = here if here.base is None else here.base
        end = 0
        for content in self._tables:
            start = aligned(end)
            end = start + content.nbytes
            if into is not None or content.base is not owner:
                here[start:end] = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        if self._guards.count:
            start = self._guard_table
            table = here[start : start + 16 * self._guards.count]
            self._guards.write(table.view(np.uint64))

    def run(self, tables: int, results: int) -> None:
        """Queue all steps, in order, on the stream of this list.

        Parameters
        ----------
        tables : int
            Address the tables are uploaded to, at a multiple of 16.
        results : int
            Address of :attr:`result_nbytes` bytes at a multiple of 16.
        """
        nbytes, count = self.result_nbytes, self._guards.count
        if nbytes:
            self._device.fill(results, UNWRITTEN, nbytes, self._stream)
        guards: list[Argument] = []
        if count:
            guards = [np.uint64(tables + self._guard_table), np.uint32(count), np.uint32(GUARD)]
            self._launch_guards("gs::fill_guards", guards)
        for step in self._steps:
            step(self._stream, tables, results)
        if count:
            guards.append(np.uint64(results + self._guard_result))
            self._launch_guards("gs::check_guards", guards)

    def _launch_guards(self, expression: str, arguments: Sequence[Argument]) -> None:
        kernel = self._device.kernel("guard", expression)
        self._device.launch(kernel, self._guards.blocks, arguments, self._stream)

    def release(self) -> None:
        """Free scratch memory, behind the steps in stream order. May be called again."""
        while self._scratch:
            self._device.free(self._scratch.pop(), self._stream)

    def failures(self, results: memoryview) -> dict[int, str]:
        """Return rows that did not decode, with reasons, from the results in host memory."""
        found: NDArray[np.uint8] = np.frombuffer(results, np.uint8)
        failed: dict[int, str] = {}
        checks = self._checks
        if self._guards.count:
            guards = Result(self._guard_result, 4 * self._guards.count)
            checks = [*checks, (guards, self._guards.overwritten)]
        for part, check in checks:
            for row, reason in check(found[part.offset : part.offset + part.nbytes]):
                if row in self.fallbacks:
                    continue  # By a later stage: the host decodes it anyway.
                failed.setdefault(row, reason)
        return failed
