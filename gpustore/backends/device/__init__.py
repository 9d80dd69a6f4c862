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

from gpustore.backends.base import Check, Chunks, Overlay
from gpustore.backends.device.chunk_cache import ChunkCache
from gpustore.backends.device.chunk_caches import ChunkCaches
from gpustore.backends.device.conversion import conversion_of
from gpustore.backends.device.direct_read import direct_unsupported_reason
from gpustore.backends.device.downsample import launches_of
from gpustore.backends.device.encoding import DeviceEncoder
from gpustore.backends.device.extent import Extent, extent_of
from gpustore.backends.device.open_files import OpenFiles
from gpustore.backends.device.overlay import DeviceSource, broadcast_strides
from gpustore.backends.device.sink import DeviceSink
from gpustore.backends.device.staging_buffer import StagingBuffers
from gpustore.backends.device.submissions import DeviceMemory, DeviceRegion
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

PART_NBYTES = 8 << 20
"""Least decoded bytes of a task: a smaller read is done by one."""

_EXTENTS = 256
"""Most sizes of reads that are remembered."""

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
        return choose(tuple(streams), self.driven.multiprocessors, rule)

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
        extent = self.extent(tuple(chunks), limits)
        return DeviceSink(
            self.driven, self.buffers, self.caches, self.files, extent, fill_value, out, check
        )

    def extent(self, chunks: tuple[Chunks, ...], limits: Limits) -> Extent:
        """Return the sizes of the submissions of a read; those of small reads are remembered."""
        in_flight_nbytes = limits.device_in_flight_nbytes
        known = self._extents.get((chunks, in_flight_nbytes))
        if known is not None:
            return known
        extent, is_certain = extent_of(self.driven, chunks, in_flight_nbytes)
        if is_certain and extent.is_small:
            if len(self._extents) >= _EXTENTS:
                self._extents.clear()
            self._extents[chunks, in_flight_nbytes] = extent
        return extent

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
            Overlay([one._replace(source=self._on_host(one.source)) for one in layers], stored)
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
