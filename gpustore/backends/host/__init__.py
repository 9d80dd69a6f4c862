"""The host backend: NumPy arrays in host memory, the reference for every other backend.

Values are placed by a :class:`~gpustore.backends.host.sink.HostSink` as soon as they are given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.backends import dlpack
from gpustore.backends.base import Check, Chunks, Layer, Overlay
from gpustore.backends.downsampling import Cells, Downsampling
from gpustore.backends.host.memory import (
    HostMemory,
    broadcast,
    converted,
    empty,
    memory_of,
    object_view,
    too_large,
    viewed,
)
from gpustore.backends.host.points import elements_of, gather_points
from gpustore.backends.host.sink import HostSink
from gpustore.codec_chain.chain import CodecChain
from gpustore.data_types.conversion import Converter
from gpustore.errors import GpustoreError, MismatchError
from gpustore.index_space import IndexDomain
from gpustore.resources.device_cache_pool import DeviceCachePool
from gpustore.resources.gpu_decode_choice import AUTO, DecodeRule
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.cached_attribute import cached_attribute
from gpustore.runtime.limits import Limits

_CONVERTED_NBYTES = 1 << 20
"""Approximate bytes of the elements converted at once."""


class HostBackend:
    """Backend of NumPy arrays in host memory; works on the calling thread."""

    name = "host"
    device = "cpu"
    buffers_blocks = True

    def __init__(self, *, is_fallback: bool = False) -> None:
        self._is_fallback = is_fallback

    @cached_attribute
    def as_fallback(self) -> HostBackend:
        """Return a backend for arrays no device can hold; it counts chunks as fallbacks."""
        return HostBackend(is_fallback=True)

    def caller_stream(self, stream: Any) -> None:
        """Return None: host memory has no streams, and reads do not wait for `stream`."""

    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], order: str, stream: Any = None
    ) -> HostMemory:
        """Allocate a NumPy array of undefined contents.

        Raises
        ------
        LimitError
            If there is not enough memory.
        """
        return empty(shape, dtype, order)

    def destination(
        self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Any = None
    ) -> HostMemory:
        """Return the memory of `out`: a NumPy array, or an object that exports host memory.

        The buffer protocol, ``__array_interface__`` and DLPack are supported.
        """
        if isinstance(out, HostMemory):
            return out
        if hasattr(out, "__cuda_array_interface__"):
            raise TypeError(
                "out is in device memory, but this store reads into host memory; open the store "
                "with device='cuda', or pass a NumPy array"
            )
        array = out if isinstance(out, np.ndarray) else viewed(out)
        if array.shape != shape:
            raise MismatchError(f"out has shape {array.shape}, expected {shape}")
        if array.dtype != dtype:
            raise MismatchError(f"out has dtype {array.dtype}, expected {dtype}")
        if not array.flags.writeable:
            raise TypeError("out is read-only, expected writable memory")
        return memory_of(array)

    def region(
        self, memory: HostMemory, start: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> HostMemory:
        """Return a region of `memory`; see :meth:`gpustore.backends.base.Backend.region`."""
        flat, at, dtype = memory.flat, memory.offset + start, memory.array.dtype
        if dtype.hasobject:
            return HostMemory(object_view(flat, shape, at, strides), flat, at)
        return HostMemory(np.ndarray(shape, dtype, flat, at, strides), flat, at)

    def source(self, array: Any, domain: IndexDomain, dtype: np.dtype[Any]) -> HostMemory:
        """Return the memory of `array`, cast under NumPy's rule "safe" and broadcast."""
        if not isinstance(array, np.ndarray) and (
            hasattr(array, "__cuda_array_interface__") or dlpack.is_on_cuda(array)
        ):
            raise TypeError(
                "the source is in device memory, but this store is on the host; open it with "
                "device='cuda', or copy it to the host first, as with array.get()"
            )
        elements = converted(array, dtype)
        if any(stride % dtype.itemsize for stride in elements.strides):
            elements = elements.copy()  # A field of records; see `gather_points`.
        return memory_of(broadcast(elements, domain))

    def convert(self, elements: NDArray[Any], convert: Converter, out: HostMemory) -> None:
        """Convert an array into `out`, in parts that stay in cache."""
        array = out.array
        if not array.ndim or array.nbytes <= _CONVERTED_NBYTES:
            array[...] = convert(elements)
            return
        # Along the dimension whose neighbours are furthest apart.
        axis = max(range(array.ndim), key=lambda d: abs(array.strides[d]))
        src, dst = np.moveaxis(elements, axis, 0), np.moveaxis(array, axis, 0)
        step = max(1, len(dst) * _CONVERTED_NBYTES // array.nbytes)
        for start in range(0, len(dst), step):
            dst[start : start + step] = convert(src[start : start + step])

    def downsample(self, elements: Any, job: Downsampling, cells: Cells, out: HostMemory) -> bool:
        """Return False: drivers reduce blocks in host memory themselves."""
        del elements, job, cells, out
        return False

    def place(self, elements: NDArray[Any], out: HostMemory) -> None:
        """Copy an array into `out`."""
        out.array[...] = elements

    def to_host(self, elements: NDArray[Any]) -> NDArray[Any]:
        """Return `elements` unchanged."""
        return elements

    def unsupported_reason(self, chain: CodecChain) -> str | None:
        """Return that the store is in host memory: no device decodes its chunks."""
        del chain
        return "the store is in host memory"

    def choose_decoder(self, chunks: Sequence[tuple[CodecChain, int]], rule: DecodeRule) -> None:
        """Return None: only the host decodes into host memory."""

    def chunk_cache(self, pool: DeviceCachePool) -> None:
        """Return None: a pool for devices keeps nothing in host memory."""
        del pool

    def part_nbytes(self) -> None:
        """Return None: small parts of a read stay in the processor's cache."""

    def sink(
        self,
        chunks: Sequence[Chunks],
        fill_value: Any,
        out: Sequence[HostMemory],
        limits: Limits,
        check: Check,
    ) -> HostSink:
        """Make the sink of one read; see :meth:`gpustore.backends.base.Backend.sink`."""
        del chunks, limits
        return HostSink(fill_value, out, check, counts_fallbacks=self._is_fallback)

    def _gather_objects(
        self,
        layers: Sequence[Layer],
        stored: Sequence[Buffer | None],
        chain: CodecChain,
        fill_value: Any,
        *,
        keep_fill: bool,
    ) -> list[Buffer | None]:
        """Overlay and encode chunks of strings or bytes of any length."""
        placed = [(*layer, *layer.rows.rows()) for layer in layers]
        encoded: list[Buffer | None] = []
        for i, present in enumerate(stored):
            key, doing = layers[0].rows.keys[i], "writing" if present is None else "reading"
            try:
                if present is None:
                    chunk = np.full(math.prod(chain.layout.shape), fill_value, object)
                else:
                    chunk = chain.decode_objects(present)
                doing = "writing"
                for rows, source, mask, src_start, dst_start, counts in placed:
                    if rows.points is not None:
                        src, dst = elements_of(rows, i, base=source.offset)
                        chunk[src // chunk.itemsize] = source.flat[dst // chunk.itemsize]
                        continue
                    if mask is not None:
                        first = dst_start[i] // chunk.itemsize
                        some = slice(first, first + counts[i][0])
                        np.copyto(chunk, source.flat[some], where=mask[some])
                        continue
                    there = source.offset + dst_start[i]
                    view = object_view(chunk, counts[i], src_start[i], rows.src_stride)
                    view[...] = object_view(source.flat, counts[i], there, rows.dst_stride)
                is_fill = not keep_fill and bool((chunk == fill_value).all())
                encoded.append(None if is_fill else chain.encode_objects(chunk))
            except GpustoreError as error:
                raise error.prefixed(f'Error {doing} "{key}"', key=key) from error
            except MemoryError as error:
                limit = too_large(chain.layout.shape, chain.layout.dtype)
                raise limit.prefixed(f'Error {doing} "{key}"', key=key) from error
        return encoded

    def elements(self, memory: HostMemory) -> NDArray[Any]:
        """Return the array of `memory`."""
        return memory.array

    def gather_nbytes(self, memory: HostMemory, limits: Limits) -> None:
        """Return None: small batches of chunks stay in the processor's cache."""

    def encode_unsupported_reason(self, chain: CodecChain) -> str | None:
        """Return that the store is in host memory: no device encodes its chunks."""
        return self.unsupported_reason(chain)

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
        """Overlay and encode each chunk; see :meth:`gpustore.backends.base.Backend.gather`."""
        del limits, decode_rule
        encoded: list[Buffer | None] = []
        for layers, stored in overlays:
            encoded += self._gather(layers, stored, chain, fill_value, keep_fill=keep_fill)
        return encoded

    def _gather(
        self,
        layers: Sequence[Layer],
        stored: Sequence[Buffer | None],
        chain: CodecChain,
        fill_value: Any,
        *,
        keep_fill: bool,
    ) -> list[Buffer | None]:
        """Overlay and encode the chunks of one overlay."""
        if chain.objects is not None:
            return self._gather_objects(layers, stored, chain, fill_value, keep_fill=keep_fill)
        placed = [(*layer, *layer.rows.rows()) for layer in layers]
        keys, shapes = layers[0].rows.keys, placed[0][-1]
        layout = chain.layout
        element = np.dtype(f"V{layout.record}") if layout.record else layout.dtype
        may_cover = layers[0].mask is None and layout.is_dense
        may_cover = may_cover and layers[0].rows.may_cover(layout.shape)
        encoded: list[Buffer | None] = []
        for i, present in enumerate(stored):
            try:
                chunk = np.empty(layout.nbytes, np.uint8)
            except MemoryError as error:
                raise too_large(layout.shape, element).prefixed(
                    f'Error writing "{keys[i]}"', key=keys[i]
                ) from error
            if present is not None:
                try:
                    _copy_bytes(chunk, chain.decode(present, chunk.data))
                except GpustoreError as error:
                    raise error.prefixed(f'Error reading "{keys[i]}"', key=keys[i]) from error
            elif not (may_cover and shapes[i] == layout.shape):
                chunk.view(element)[...] = fill_value
            for rows, source, mask, src_start, dst_start, counts in placed:
                if rows.points is not None:
                    gather_points(rows, i, chunk, layout, source)
                    continue
                there, first = source.offset + dst_start[i], src_start[i] + layout.offset
                if mask is not None:
                    elements = np.ndarray(counts[i], source.array.dtype, source.flat, there)
                    begin = there // elements.itemsize
                    chosen = mask[begin : begin + elements.size]
                    np.copyto(chunk.view(layout.dtype), elements, where=chosen)
                    continue
                np.ndarray(counts[i], layout.dtype, chunk, first, rows.src_stride)[...] = (
                    np.ndarray(counts[i], source.array.dtype, source.flat, there, rows.dst_stride)
                )
            if not keep_fill and _equals_fill(chunk, element, fill_value):
                encoded.append(None)
            else:
                try:
                    encoded.append(chain.encode(chunk.data))
                except GpustoreError as error:
                    raise error.prefixed(f'Error writing "{keys[i]}"', key=keys[i]) from error
        return encoded


def _copy_bytes(chunk: NDArray[np.uint8], decoded: Buffer) -> None:
    """Copy `decoded` into `chunk`, unless the chain has decoded it there."""
    view = np.frombuffer(decoded, np.uint8)
    if view.ctypes.data != chunk.ctypes.data:
        chunk[:] = view


def _equals_fill(chunk: NDArray[np.uint8], dtype: np.dtype[Any], fill_value: Any) -> bool:
    """Whether every element equals the fill value bit for bit (so -0.0 is not 0.0)."""
    fill = np.frombuffer(np.asarray(fill_value).astype(dtype).tobytes(), np.uint8)
    if chunk[: fill.size].tobytes() != fill.tobytes():
        return False
    word = {2: np.uint16, 4: np.uint32, 8: np.uint64}.get(fill.size)
    if word is not None:
        return bool((chunk.view(word) == fill.view(word)[0]).all())
    return bool((chunk.reshape(-1, fill.size) == fill).all())


BACKEND = HostBackend()
