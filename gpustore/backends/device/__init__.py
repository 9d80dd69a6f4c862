"""The backend for device memory, written against :class:`gpustore.device.protocol.Device` alone.

Reads go through a :class:`~gpustore.backends.device.sink.DeviceSink`. Writes of arrays on the
device are gathered and encoded there (:mod:`gpustore.backends.device.encoding`); those of other
arrays, and of arrays that have to be cast, are gathered by the host.

``docs/design/003-device.md`` lists the owners of memory and the ends of their ownership.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.base import FETCHED, IN_PLACE, Check, Chunks, Layer, Overlay
from gpustore.backends.device.chunk_cache import ChunkCache
from gpustore.backends.device.chunk_caches import ChunkCaches
from gpustore.backends.device.conversion import conversion_of
from gpustore.backends.device.direct_read import direct_unsupported_reason, pages_nbytes
from gpustore.backends.device.downsample import launches_of
from gpustore.backends.device.encoding import DeviceEncoder
from gpustore.backends.device.open_files import OpenFiles
from gpustore.backends.device.overlay import DeviceSource, broadcast_strides
from gpustore.backends.device.sink import DeviceSink
from gpustore.backends.device.staging_buffer import (
    LARGE,
    PART_ALIGNMENT,
    SMALL_NBYTES,
    StagingBuffers,
    aligned,
)
from gpustore.backends.device.submissions import DeviceMemory, DeviceRegion, Extent
from gpustore.backends.device.transfers import Transfers
from gpustore.backends.downsampling import Cells, Downsampling
from gpustore.backends.host import BACKEND as HOST
from gpustore.backends.host.memory import HostMemory, broadcast
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.decoder_choice import Choice, choose, joined
from gpustore.data_types.conversion import Converter
from gpustore.device.protocol import Device, Stream
from gpustore.errors import LimitError, MismatchError, UnsupportedError
from gpustore.index_space import IndexDomain
from gpustore.resources.device_cache_pool import DeviceCachePool
from gpustore.resources.gpu_decode_choice import AUTO, DecodeRule
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.limits import Limits
from gpustore.runtime.statistics import STATISTICS

SUBMISSION_NBYTES = 256 << 20
"""Most bytes of the values of a submission, decoded or not."""

SUBMISSION_ROWS = 8192
"""Most values of a submission."""

PIECE_NBYTES = 32 << 20
"""Most decoded bytes that a task fetches at a time."""

PART_NBYTES = 8 << 20
"""Least decoded bytes of a task: a smaller read is done by one."""

UNASKED_NBYTES = 64 << 20
"""Memory that a small read takes without asking the device how much is free."""

_EXTENTS = 256
"""Most sizes of reads that are remembered."""

_ROW_NBYTES = 512
_REGION_NBYTES = 160
"""Bytes of a staging buffer for the tables and results of a value, and for each of its regions."""

_OUTPUT_NBYTES = 64
"""Bytes around an output, for guards and alignment."""


T = TypeVar("T")


class DeviceBackend:
    """Backend of arrays in the memory of one device.

    Parameters
    ----------
    driven : Device
    """

    name = "device"
    buffers_blocks = False

    def __init__(self, driven: Device) -> None:
        self.driven = driven
        self.device = driven.name
        self.buffers = StagingBuffers(driven)
        self.files = OpenFiles(driven)
        self.caches = ChunkCaches(driven)
        self.transfers = Transfers(driven, self.buffers, self.with_memory)
        self.encoder = DeviceEncoder(driven, self.with_memory, self.caches.give_back)
        self._extents: dict[tuple[tuple[Chunks, ...], int], Extent] = {}

    def part_nbytes(self) -> int:
        """Return the least decoded bytes of a task that fetches alone."""
        return PART_NBYTES

    def unsupported_reason(self, chain: CodecChain) -> str | None:
        """Return why the host decodes chunks of `chain`, None if the device does."""
        return chain.unsupported_reason(self.driven)

    def choose_decoder(
        self, chunks: Sequence[tuple[CodecChain, int]], rule: DecodeRule
    ) -> Choice | None:
        """Choose who decodes a read; see :meth:`gpustore.backends.base.Backend.choose_decoder`."""
        first, _ = chunks[0]
        streams = joined([one for chain, count in chunks for one in chain.device_streams(count)])
        reason = self.unsupported_reason(first)
        if reason is not None:
            missing = [stage.missing_decoder(self.driven) for stage in first.stages]
            return Choice(True, reason, "missing_decoder_reads" if reason in missing else None)
        if first.is_raw or not (streams or rule.side != "auto"):
            return None
        return choose(streams, self.driven.multiprocessors, rule)

    def direct_unsupported_reason(self, chain: CodecChain) -> str | None:
        """Return why no file is read straight into device memory, None if large values are.

        ``files.unsupported_reason`` is the reason if this device reads no files at all.
        """
        return self.unsupported_reason(chain) or direct_unsupported_reason(
            needs_bytes=chain.needs_bytes
        )

    def sink(
        self,
        chunks: Sequence[Chunks],
        fill_value: Any,
        out: Sequence[DeviceMemory],
        limits: Limits,
        check: Check,
    ) -> DeviceSink:
        """Make the sink of one read; see :meth:`gpustore.backends.base.Backend.sink`."""
        extent = self._extent_of(tuple(chunks), limits.device_in_flight_nbytes)
        return DeviceSink(
            self.driven, self.buffers, self.caches, self.files, extent, fill_value, out, check
        )

    def _extent_of(self, chunks: tuple[Chunks, ...], in_flight_nbytes: int) -> Extent:
        """Return the sizes of the submissions of a read; those of small reads are remembered."""
        known = self._extents.get((chunks, in_flight_nbytes))
        if known is not None:
            return known
        extent, is_certain = self._extent(chunks, in_flight_nbytes)
        if is_certain and extent.is_small:
            if len(self._extents) >= _EXTENTS:
                self._extents.clear()
            self._extents[chunks, in_flight_nbytes] = extent
        return extent

    def _extent(self, chunks: Sequence[Chunks], in_flight_nbytes: int) -> tuple[Extent, bool]:
        """Choose the sizes of the submissions of a read, so that several fit in the memory.

        Returns
        -------
        Extent, bool
            The sizes, and whether they do not depend on the memory that is free now.
        """
        total = max(1, sum([one.rows for one in chunks]))
        regions = sum([one.regions for one in chunks])
        layouts = [one.chain.layout.nbytes for one in chunks]
        decoded_nbytes = max(layouts, default=1)
        value_nbytes = aligned(decoded_nbytes) + PART_ALIGNMENT
        room_nbytes = _ROW_NBYTES + decoded_nbytes // 128 + regions * _REGION_NBYTES // total
        is_fetched = any([one.source == FETCHED for one in chunks])
        if chunks and all([one.source == IN_PLACE for one in chunks]):
            return self._extent_in_place(total, regions), True
        bound = max([one.chain.staged_bound for one in chunks], default=1)
        slack_nbytes = max(0, bound - decoded_nbytes)

        def needed(rows: int) -> int:
            """Memory of a submission on the device: staging buffer, decoded bytes, scratch."""
            scratch = max([self._scratch_nbytes(one.chain, rows) for one in chunks], default=0)
            return rows * (value_nbytes + room_nbytes) + slack_nbytes + scratch

        rows = min(total, SUBMISSION_ROWS, max(1, SUBMISSION_NBYTES // max(1, decoded_nbytes)))
        budget = in_flight_nbytes // LARGE
        is_certain = needed(rows) <= min(budget, UNASKED_NBYTES)
        if not is_certain:
            budget = min(budget, self.driven.memory().free_nbytes // (2 * LARGE))
        while rows > 1 and (nbytes := needed(rows)) > budget:
            rows = max(1, min(rows - 1, rows * budget // nbytes))
        direct_nbytes = pages_nbytes(rows, rows * decoded_nbytes)
        slack_nbytes += direct_nbytes
        if not is_fetched:  # Only tables pass the staging buffer.
            value_nbytes = slack_nbytes = 0
        nbytes = rows * (value_nbytes + room_nbytes) + slack_nbytes
        extent = Extent(
            rows=rows if rows < total else SUBMISSION_ROWS,
            buffer_rows=rows,
            value_nbytes=value_nbytes,
            room_nbytes=room_nbytes,
            slack_nbytes=slack_nbytes,
            piece_nbytes=max(1, min(PIECE_NBYTES, rows * decoded_nbytes)),
            is_small=rows == total and nbytes <= SMALL_NBYTES,
        )
        return extent, is_certain

    def _extent_in_place(self, total: int, regions: int) -> Extent:
        """Return the sizes of submissions that copy chunks in device memory, and take none."""
        rows, room_nbytes = (
            min(total, SUBMISSION_ROWS),
            _ROW_NBYTES + regions * _REGION_NBYTES // total,
        )
        return Extent(
            rows=SUBMISSION_ROWS,
            buffer_rows=rows,
            value_nbytes=0,
            room_nbytes=room_nbytes,
            slack_nbytes=0,
            piece_nbytes=PIECE_NBYTES,
            is_small=rows * room_nbytes <= SMALL_NBYTES,
        )

    def _scratch_nbytes(self, chain: CodecChain, rows: int) -> int:
        """Estimate the device memory that decoding takes beside the values."""
        decoded_nbytes = chain.layout.nbytes
        found = 0
        for stage in chain.stages:
            found += stage.device_outputs * rows * (decoded_nbytes + _OUTPUT_NBYTES)
            codec = stage.device_codec
            known = None if codec is None else self.driven.codec(codec)
            if codec is None or known is None:
                continue
            if known.src_alignment > 1:
                found += rows * decoded_nbytes  # Streams are copied that do not lie so.
            sizes = rows, decoded_nbytes, rows * decoded_nbytes
            found += self.driven.decompress_temp_nbytes(codec, *sizes)
        return found

    def with_memory(self, work: Callable[[], T]) -> T:
        """Do `work`, again and again while it lacks memory that is kept for later work."""
        has_freed = False
        while True:
            try:
                return work()
            except MemoryError as error:
                if has_freed and not self.caches.give_back(lacking=type(error)):
                    raise
                self.buffers.free()
                self.encoder.free()
                has_freed = True

    def release(self) -> None:
        """Give back all memory and close all files that are kept for the next read."""
        self.files.close_idle()
        self.caches.clear()
        self.buffers.free()
        self.encoder.free()

    def chunk_cache(self, pool: DeviceCachePool) -> ChunkCache | None:
        """Return the cache of a pool on this device, None if its limit is 0."""
        return self.caches.of(pool)

    # ----------------------------------------------------------------- arrays

    def caller_stream(self, stream: Any) -> Stream:
        """Return the stream of the caller: `stream`, or the calling thread's if that is None."""
        return self.driven.caller_stream(stream)

    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], order: str, stream: Any = None
    ) -> DeviceMemory:
        """Allocate an array on the device, of undefined contents.

        Raises
        ------
        LimitError
            If there is not enough memory.
        UnsupportedError
            If its elements are Python objects.
        """
        if dtype.hasobject:
            raise UnsupportedError(
                f'Elements of {dtype} cannot be on a device; open with device="cpu"'
            )
        stream = self.driven.caller_stream(stream)
        self.caches.free_orphans()
        dense = "F" if order == "F" else "C"
        try:
            view = self.with_memory(lambda: self.driven.empty(shape, dtype, dense, stream))
        except MemoryError as error:
            nbytes = math.prod(shape) * dtype.itemsize
            raise LimitError(
                f"An array of shape {list(shape)} and {nbytes} bytes does not fit the memory of "
                f"device {self.device}; read it in parts"
            ) from error
        return DeviceMemory(view, self.driven.record(stream), stream)

    def destination(
        self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Any = None
    ) -> DeviceMemory:
        """Return the memory of `out`, an array on this device."""
        if isinstance(out, DeviceMemory):
            return out
        view = self.driven.wrap(out)
        if view is None:
            raise TypeError(
                f"out is not in the memory of device {self.device}, into which this store reads: "
                f'got {type(out).__name__}; open the store with device="cpu", or pass an array '
                f"with __cuda_array_interface__ or DLPack"
            )
        if view.is_read_only:
            raise TypeError("out is read-only, expected writable device memory")
        if tuple(view.shape) != shape:
            raise MismatchError(f"out has shape {tuple(view.shape)}, expected {shape}")
        if view.dtype != dtype:
            raise MismatchError(f"out has dtype {view.dtype}, expected {dtype}")
        is_shared = any(step == 0 and size > 1 for step, size in zip(view.strides, view.shape))
        if is_shared and 0 not in shape:
            raise TypeError("out has elements that share their memory")
        stream = self.driven.caller_stream(stream)
        return DeviceMemory(view, self.driven.record(stream), stream)

    def region(
        self, memory: DeviceMemory, start: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> DeviceMemory:
        """Return a region of `memory`; see :meth:`gpustore.backends.base.Backend.region`."""
        view = memory.view
        region = DeviceRegion(view.array, view.address + start, strides, shape, view.dtype)
        return DeviceMemory(region, memory.ready, memory.stream)

    def source(
        self, array: Any, domain: IndexDomain, dtype: np.dtype[Any]
    ) -> HostMemory | DeviceSource:
        """Return the memory of `array`; one on the device stays there unless it has to be cast."""
        device = self.driven
        view = device.wrap(array)
        if view is None:
            return HOST.source(array, domain, dtype)
        shape = tuple(domain.shape)
        is_cast = view.dtype != dtype or any(step % dtype.itemsize for step in view.strides)
        if is_cast or 0 in view.shape:
            return HOST.source(self.transfers.download(view), domain, dtype)
        broadcast(np.broadcast_to(np.empty((), dtype), view.shape), domain)  # Checks the shape.
        strides = broadcast_strides(view, shape)
        return DeviceSource(view, shape, strides, device.record(device.caller_stream()))

    def elements(self, memory: HostMemory | DeviceSource) -> NDArray[Any]:
        """Return the elements of the memory of :meth:`source`; those on the device are copied."""
        if isinstance(memory, HostMemory):
            return memory.array
        array = self.transfers.download(memory.view)
        array = array.reshape(array.shape[max(0, array.ndim - len(memory.shape)) :])
        return np.broadcast_to(array, memory.shape)

    # ----------------------------------------------------------------- elements

    def convert(self, elements: Any, convert: Converter, out: DeviceMemory) -> None:
        """Convert an array on the device into `out`; by the host if no kernel does."""
        source = self.driven.wrap(elements)
        if source is None:
            raise TypeError(f"{type(elements).__name__} is not on device {self.device}")
        if 0 in source.shape:
            return
        record = conversion_of(source, out.view, convert)
        if record is None:
            STATISTICS.add(host_conversions=1)
            self.transfers.upload(convert(self.transfers.download(source)), out)
        else:
            self.transfers.launch(record, [out])

    def downsample(self, elements: Any, job: Downsampling, cells: Cells, out: DeviceMemory) -> bool:
        """Reduce blocks by a kernel; return False if there is none for them."""
        launches = launches_of(self.driven.wrap(elements), job, cells, out.view)
        if launches:
            self.transfers.launch(lambda commands: commands.launch_tables(launches), [out])
        return launches is not None

    def place(self, elements: NDArray[Any], out: DeviceMemory) -> None:
        """Copy an array to the device."""
        if elements.size:
            STATISTICS.add(host_conversions=1)
            self.transfers.upload(elements, out)

    def to_host(self, elements: Any) -> NDArray[Any]:
        """Copy an array to host memory, and count its bytes."""
        view = self.driven.wrap(elements)
        return np.asarray(elements) if view is None else self.transfers.download(view)

    # ----------------------------------------------------------------- writes

    def gather_nbytes(self, memory: HostMemory | DeviceSource, limits: Limits) -> int | None:
        """Return the decoded bytes of the chunks that are encoded together on the device."""
        if isinstance(memory, HostMemory):
            return None
        nbytes = math.prod(memory.shape) * memory.view.dtype.itemsize
        return self.encoder.nbytes(limits, nbytes)

    def encode_unsupported_reason(self, chain: CodecChain) -> str | None:
        """Return why the host encodes chunks of `chain`, None if the device does."""
        return chain.encode_unsupported_reason(self.encoder.codecs)

    def gather(
        self,
        overlays: Sequence[Overlay],
        chain: CodecChain,
        fill_value: Any,
        limits: Limits,
        *,
        keep_fill: bool,
        decode_rule: DecodeRule = AUTO,
    ) -> list[Buffer | None]:
        """Overlay and encode chunks where the arrays are that are written."""
        sources = [layer.source for overlay in overlays for layer in overlay.layers]
        if all(isinstance(source, DeviceSource) for source in sources):
            stored = [one for overlay in overlays for one in overlay.stored if one is not None]
            choice = self.choose_decoder([(chain, len(stored))], decode_rule) if stored else None
            if choice is not None and choice.by_host:
                chain = chain.for_host(choice.reason)
                if choice.counter is not None:
                    STATISTICS.add(**{choice.counter: 1})
            return self.encoder.encode(overlays, chain, fill_value, limits, keep_fill=keep_fill)
        there = [
            Overlay([Layer(rows, self._on_host(source)) for rows, source in layers], stored)
            for layers, stored in overlays
        ]
        return HOST.gather(there, chain, fill_value, limits, keep_fill=keep_fill)

    def _on_host(self, source: HostMemory | DeviceSource) -> HostMemory:
        """Return host memory with the strides of `source`, for which layers are planned."""
        if isinstance(source, HostMemory):
            return source
        reach = [step * (size - 1) for step, size in zip(source.strides, source.shape)]
        low, high = sum(min(0, at) for at in reach), sum(max(0, at) for at in reach)
        dtype = source.view.dtype
        flat = np.empty(high - low + dtype.itemsize, np.uint8)
        array: NDArray[Any] = np.ndarray(source.shape, dtype, flat, -low, source.strides)
        array[...] = self.elements(source)
        return HostMemory(array, flat, -low, source.strides)


BACKEND = DeviceBackend
