"""Submissions of writes: chunks that are laid out, encoded and downloaded together.

1. Chunks are laid out in device memory: decoded from what is stored, or filled with the fill value,
   where the write leaves elements alone; then the elements of the write are laid over them.
2. Each chunk is compared with the fill value, and the stages of the chain record how it is encoded.
   The host waits for the sizes of the compressed streams.
3. The streams, and what the host writes before and between them, are copied one behind another, and
   downloaded together. That is the second and last wait.

A stored chunk that the device cannot decode is decoded by the host, copied to the device, and step
1 begins again. A chunk that it cannot encode is downloaded decoded, and the host encodes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.base import Layer, Overlay
from gpustore.backends.device.overlay import Laid, fill_chunks, lay
from gpustore.backends.native.headers import header_reader
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.device_segments import EncodedValues, Segments, little_endian
from gpustore.device.command_list import CommandList
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.device.encoding_list import EncodingList, Matches
from gpustore.device.kernels.block import stream_launches
from gpustore.device.protocol import Device, Pinned, Spans
from gpustore.errors import DeviceError, GpustoreError
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.statistics import STATISTICS

Integers = NDArray[np.int64]

_ALIGNMENT: Final = 16
_CHECKSUM_NBYTES: Final = 4
_SMALLEST_NBYTES: Final = 1 << 20
_TABLE_NBYTES: Final = 48
"""Most bytes of the tables of a submission's copies and checksums, for each of them."""


class WrittenChunk(NamedTuple):
    """Chunk of an overlay: its key, and its stored contents as far as they are kept."""

    overlay: int
    row: int
    key: str
    stored: Buffer | None


@dataclass(frozen=True, slots=True)
class WrittenValues:
    """Result of a submission: encoded values, and decoded chunks that the host is to encode."""

    encoded: list[Buffer | None]
    decoded: dict[int, bytes]


class Lane:
    """Stream of a submission, and the pinned memory that it is copied through."""

    __slots__ = ("_device", "_nbytes", "_pinned", "stream")

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pinned: Pinned | None = None
        self._nbytes = 0
        self.stream = device.stream()

    def pinned(self, nbytes: int) -> Pinned:
        """Return pinned memory of at least `nbytes` bytes; growing loses its contents.

        Raises
        ------
        MemoryError
            If there is not enough pinned memory; the lane has none then.
        """
        if self._pinned is None or nbytes > self._nbytes:
            self.free()
            nbytes = max(nbytes, _SMALLEST_NBYTES)
            self._pinned, self._nbytes = self._device.allocate_pinned(nbytes), nbytes
        return self._pinned

    def settle(self) -> None:
        """Wait until nothing that was queued on the stream runs any more."""
        self._device.synchronize(self._device.record(self.stream))

    def free(self) -> None:
        """Free the pinned memory, which nothing may use."""
        pinned, self._pinned, self._nbytes = self._pinned, None, 0
        if pinned is not None:
            self._device.free_pinned(pinned)


class WriteSubmission:
    """Chunks that are laid out, encoded and downloaded together."""

    def __init__(
        self,
        device: Device,
        lane: Lane,
        chunks: Sequence[WrittenChunk],
        overlays: Sequence[Overlay],
        chain: CodecChain,
        fill_value: Any,
    ) -> None:
        self._device = device
        self._lane = lane
        self._chunks = chunks
        self._chain = chain
        self._laid = _layers(chunks, overlays)
        self._lists: list[CommandList] = []
        layout = chain.layout
        self._nbytes = layout.nbytes
        self._step = _aligned(layout.nbytes)
        element = np.dtype(f"V{layout.record}") if layout.record else layout.dtype
        self._fill: bytes = np.asarray(fill_value).astype(element).tobytes()
        self._by_host: dict[int, Buffer] = {}
        """Stored chunks that the host has decoded, by number."""

    def run(self, *, keep_fill: bool, encodes: bool) -> WrittenValues:
        """Encode the chunks; None is one that equals the fill value, unless `keep_fill`.

        All are left to the host unless the device `encodes` them.

        Raises
        ------
        CorruptChunkError
            If a stored chunk does not decode; names its key.
        MemoryError
            If there is not enough memory; nothing is left of the submission.
        """
        stored = [i for i, chunk in enumerate(self._chunks) if chunk.stored is not None]
        if self._chain.unsupported_reason(self._device) is not None:
            self._decode_by_host(stored)
        while True:
            try:
                found = self._run(keep_fill=keep_fill, encodes=encodes)
            except BaseException:
                with suppress(DeviceError):  # Of a lost device, whose first error is raised.
                    self._release()
                    self._lane.settle()
                raise
            self._release()
            if isinstance(found, WrittenValues):
                return found
            self._decode_by_host(found)

    def _release(self) -> None:
        """Free the device memory of all lists, in stream order."""
        while self._lists:
            self._lists.pop().release()

    def _decode_by_host(self, rows: Sequence[int]) -> None:
        for i in rows:
            chunk = self._chunks[i]
            assert chunk.stored is not None
            try:
                self._by_host[i] = self._chain.decode(chunk.stored)
            except GpustoreError as error:
                raise error.prefixed(f'Error reading "{chunk.key}"', key=chunk.key) from error
        if rows and not self._chain.is_raw:
            STATISTICS.add(host_fallbacks=len(rows))

    def _run(self, *, keep_fill: bool, encodes: bool) -> WrittenValues | list[int]:
        """Run the submission, or return the stored chunks that the host has to decode first."""
        device, stream, chain = self._device, self._lane.stream, self._chain
        count = len(self._chunks)
        nothing = Spans.contiguous(0, [])
        commands = EncodingList(device, stream, np.arange(count), nothing)
        self._lists.append(commands)
        base = commands.scratch(count * self._step)
        starts = (base + np.arange(count) * self._step).astype(np.uint64)
        chunks = Spans(starts, np.full(count, self._nbytes, np.uint64))
        commands.values = chunks

        held, held_starts = self._held()
        address = commands.scratch(len(held))
        decoding = self._record_stored(commands, held, held_starts, address)
        if decoding.fallbacks:
            return sorted(decoding.fallbacks)
        self._record_elements(commands, address)
        matches = None if keep_fill else commands.match(self._fill)
        encoded = chain.encode_device(commands) if encodes else None
        failed, refused = self._find_sizes(decoding, commands, held, address)
        if failed:
            STATISTICS.add(retries=len(failed))
            return failed
        return self._download(chunks, matches, encoded, refused)

    # ----------------------------------------------------------------- 1. chunks

    def _held(self) -> tuple[NDArray[np.uint8], Integers]:
        """Return the bytes that are uploaded for the chunks, and where each begins: the fill value
        first, then the stored chunk of each that keeps some of it, -1 for the others.
        """
        contents: list[Buffer] = [self._fill]
        starts = np.full(len(self._chunks), -1, np.int64)
        end = _aligned(len(self._fill))
        for i, chunk in enumerate(self._chunks):
            content = self._by_host.get(i, chunk.stored)
            if content is not None:
                starts[i] = end
                contents.append(content)
                end += _aligned(len(content))
        held = np.zeros(end, np.uint8)
        at = 0
        for content in contents:
            held[at : at + len(content)] = np.frombuffer(content, np.uint8)
            at += _aligned(len(content))
        return held, starts

    def _record_stored(
        self, commands: EncodingList, held: NDArray[np.uint8], starts: Integers, address: int
    ) -> CommandList:
        """Record how stored chunks are decoded, into the list that is returned, and laid out."""
        is_decoded = np.zeros(len(starts), np.bool_)
        is_decoded[list(self._by_host)] = True
        rows = np.flatnonzero((starts >= 0) & ~is_decoded)
        sizes = np.array([len(self._chunks[i].stored or b"") for i in rows.tolist()], np.int64)
        decoding = CommandList(
            self._device,
            self._lane.stream,
            rows,
            Spans((address + starts[rows]).astype(np.uint64), sizes.astype(np.uint64)),
            EncodedColumns(held, starts[rows], sizes, header_reader()),
        )
        self._lists.append(decoding)
        if len(rows):
            self._chain.decode_device(decoding, self._device)
        known = np.flatnonzero(is_decoded)
        chunks = commands.values.address
        commands.launch_tables(
            stream_launches(
                np.concatenate([decoding.values.address.astype(np.int64), address + starts[known]]),
                np.concatenate([chunks[decoding.rows], chunks[known]]),
                np.full(len(decoding.rows) + len(known), self._nbytes),
            )
        )
        return decoding

    def _record_elements(self, commands: EncodingList, fill: int) -> None:
        """Record how chunks without stored contents are filled, and the elements laid over."""
        layout, chunks = self._chain.layout, commands.values.address
        is_blank = np.array([chunk.stored is None for chunk in self._chunks])
        for laid in self._laid[0]:
            is_blank[laid.chunks[laid.covers(layout)]] = False
        fill_chunks(commands, chunks[is_blank], self._nbytes, self._fill, fill)
        for depth in self._laid:
            lay(commands, depth, chunks, layout)

    # ----------------------------------------------------------------- 2. sizes

    def _find_sizes(
        self,
        decoding: CommandList,
        commands: EncodingList,
        held: NDArray[np.uint8],
        address: int,
    ) -> tuple[list[int], list[int]]:
        """Run both lists; return the chunks that were not decoded, and those not encoded."""
        device, stream = self._device, self._lane.stream
        tables_at = _aligned(decoding.table_nbytes)
        tables_nbytes = tables_at + commands.table_nbytes
        results_at = _aligned(decoding.result_nbytes)
        results_nbytes = results_at + commands.result_nbytes
        tables = commands.scratch(tables_nbytes) if tables_nbytes else 0
        results = commands.scratch(results_nbytes) if results_nbytes else 0
        pinned_tables = _aligned(len(held))
        pinned_results = _aligned(pinned_tables + tables_nbytes)
        pinned = self._lane.pinned(pinned_results + results_nbytes)
        view = pinned.view
        view[: len(held)] = held.data
        decoding.write_tables(view[pinned_tables : pinned_tables + decoding.table_nbytes])
        at = pinned_tables + tables_at
        commands.write_tables(view[at : at + commands.table_nbytes])
        for source in {id(one.source): one.source for one in itertools.chain(*self._laid)}.values():
            device.wait(stream, source.ready)
        device.upload(pinned, 0, address, len(held), stream)
        copies, nbytes = 1, len(held)
        if tables_nbytes:
            device.upload(pinned, pinned_tables, tables, tables_nbytes, stream)
            copies, nbytes = copies + 1, nbytes + tables_nbytes
        decoding.run(tables, results)
        commands.run(tables + tables_at, results + results_at)
        if results_nbytes:
            device.download(results, pinned, pinned_results, results_nbytes, stream)
            copies += 1
        self._lane.settle()
        STATISTICS.add(
            copies=copies,
            waits=1,
            launches=decoding.launches + commands.launches,
            bytes_to_device=nbytes,
            bytes_to_host=results_nbytes,
        )
        found = view[pinned_results : pinned_results + results_nbytes]
        failed = decoding.failures(found[: decoding.result_nbytes])
        refused = commands.failures(found[results_at:])
        return sorted(failed), sorted(refused)

    # ----------------------------------------------------------------- 3. values

    def _download(
        self,
        chunks: Spans,
        matches: Matches | None,
        encoded: EncodedValues | None,
        refused: Sequence[int],
    ) -> WrittenValues:
        """Copy values one behind another, or decoded `chunks`, and download them."""
        count = len(self._chunks)
        is_wanted = np.ones(count, np.bool_) if matches is None else ~matches.equal
        if not is_wanted.any():
            return WrittenValues([None] * count, {})
        on_device = np.full(count, encoded is not None)
        on_device[list(refused)] = False
        checksum = self._chain.appended_checksum
        columns = _Columns(count)
        if encoded is not None:
            found = encoded.segments()
            most = self._chain.encoded_bound - (_CHECKSUM_NBYTES if checksum else 0)
            on_device &= found.nbytes.sum(axis=1) <= most
            columns.add(is_wanted & on_device, found)
        columns.add(is_wanted & ~on_device, Segments.of_spans(chunks))
        tail = np.where(on_device & is_wanted & bool(checksum), _CHECKSUM_NBYTES, 0)
        ends = np.cumsum(_padded(columns.nbytes + tail))
        starts = ends - _padded(columns.nbytes + tail)
        view, digests = self._copy_down(columns, starts, int(ends[-1]), np.flatnonzero(tail))
        if checksum:
            places = (starts + columns.nbytes)[tail > 0]
            view[places[:, None] + np.arange(_CHECKSUM_NBYTES)] = little_endian(digests)
        values: list[Buffer | None] = [None] * count
        decoded: dict[int, bytes] = {}
        stops = starts + columns.nbytes + tail
        for i in np.flatnonzero(is_wanted).tolist():
            value = view[starts[i] : stops[i]].tobytes()
            if on_device[i]:
                values[i] = value
            else:
                decoded[i] = value
        by_device = 0 if self._chain.is_raw else int((is_wanted & on_device).sum())
        STATISTICS.add(chunks_encoded_device=by_device, host_encodings=len(decoded))
        return WrittenValues(values, decoded)

    def _copy_down(
        self, columns: _Columns, starts: Integers, nbytes: int, digested: Integers
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
        """Copy the segments of all values to `starts` in `nbytes` bytes, and download these.

        Returns
        -------
        ndarray of uint8, ndarray of uint32
            The bytes, in pinned memory, and the checksums of the values numbered `digested`.
        """
        device, stream, lane = self._device, self._lane.stream, self._lane
        packing = EncodingList(device, stream, digested, Spans.contiguous(0, []))
        self._lists.append(packing)
        result_nbytes = _CHECKSUM_NBYTES * len(digested)
        written = columns.written
        tables_at = _aligned(len(written))
        uploaded = tables_at + _TABLE_NBYTES * (len(columns.source) + len(digested) + 1)
        pinned = lane.pinned(_aligned(uploaded) + nbytes + result_nbytes)
        below = packing.scratch(_aligned(uploaded) + nbytes + result_nbytes)
        out = below + _aligned(uploaded)
        packing.launch_tables(
            stream_launches(
                np.where(columns.is_written, below + columns.source, columns.source),
                out + starts[columns.value] + columns.within,
                columns.sizes,
            )
        )
        digests = None
        checksum = self._chain.appended_checksum
        if checksum and len(digested):
            spans = Spans(
                (out + starts[digested]).astype(np.uint64),
                columns.nbytes[digested].astype(np.uint64),
            )
            digests = packing.digest(checksum, spans)
        end = tables_at + packing.table_nbytes
        assert end <= uploaded
        pinned.view[: len(written)] = written.data
        packing.write_tables(pinned.view[tables_at:end])
        device.upload(pinned, 0, below, end, stream)
        packing.run(below + tables_at, out + nbytes)
        device.download(out, pinned, _aligned(uploaded), nbytes + result_nbytes, stream)
        lane.settle()
        STATISTICS.add(
            copies=2,
            waits=1,
            launches=packing.launches,
            bytes_to_device=end,
            bytes_to_host=nbytes + result_nbytes,
        )
        whole = np.frombuffer(pinned.view, np.uint8)[_aligned(uploaded) :]
        packing.failures(whole[nbytes : nbytes + result_nbytes].data)
        found = np.zeros(0, np.uint32) if digests is None else digests.values
        return whole[:nbytes], found


class _Columns:
    """Segments of `count` values of different kinds, one row each.

    Attributes
    ----------
    nbytes : ndarray of int64, shape (count,)
        Bytes of all segments of each value.
    value, within, sizes, source : ndarray of int64, shape (n,)
        Value of each segment, its first byte there, its bytes, and where it comes from.
    is_written : ndarray of bool, shape (n,)
        Whether a segment is in `written`.
    written : ndarray of uint8
    """

    def __init__(self, count: int) -> None:
        self.nbytes = np.zeros(count, np.int64)
        self.written = np.zeros(0, np.uint8)
        self.value = self.within = self.sizes = self.source = np.zeros(0, np.int64)
        self.is_written = np.zeros(0, np.bool_)

    def add(self, chosen: NDArray[np.bool_], segments: Segments) -> None:
        """Add the segments of the chosen values."""
        sizes = segments.nbytes[chosen]
        is_written = np.broadcast_to(segments.is_written, segments.nbytes.shape)[chosen]
        source = segments.source[chosen] + np.where(is_written, len(self.written), 0)
        within = np.cumsum(sizes, axis=1) - sizes
        value = np.repeat(np.flatnonzero(chosen), sizes.shape[1])
        some = (sizes > 0).reshape(-1)
        self.nbytes[chosen] = sizes.sum(axis=1)
        self.written = np.concatenate([self.written, segments.written])
        self.value = np.concatenate([self.value, value[some]])
        self.within = np.concatenate([self.within, within.reshape(-1)[some]])
        self.sizes = np.concatenate([self.sizes, sizes.reshape(-1)[some]])
        self.source = np.concatenate([self.source, source.reshape(-1)[some]])
        self.is_written = np.concatenate([self.is_written, is_written.reshape(-1)[some]])


def _layers(chunks: Sequence[WrittenChunk], overlays: Sequence[Overlay]) -> list[list[Laid]]:
    """Return what is laid over the chunks of one submission: first layers, second layers, ..."""
    found: list[list[Laid]] = []
    first = 0
    while first < len(chunks):
        number, begin = chunks[first].overlay, chunks[first].row
        overlay = overlays[number]
        count = min(len(overlay.stored) - begin, len(chunks) - first)
        for depth, layer in enumerate(overlay.layers):
            if depth == len(found):
                found.append([])
            part = Layer(layer.rows.part(begin, begin + count), layer.source)
            found[depth].append(Laid.of(part, first))
        first += count
    return found


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _padded(nbytes: Integers) -> Integers:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
