"""CUDA GPUs as :class:`gpustore.device.protocol.Device`, through CuPy, nvcomp and kvikio.

This package only translates calls. Their order and memory are decided by the callers, which are
tested on an emulated device; so this package and ``nvcomp`` are kept small.

Memory is a stream-ordered pool of our own, which gives freed memory back to the streams that
ordered the free before them, and arrays for the user come from CuPy's own pool; or both come from
PyTorch's allocator (``device_allocator``). Every operation makes its device the current one of the
calling thread, and nothing runs on the default stream.
"""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import cupy
import numpy as np

from gpustore.backends.cuda import gds
from gpustore.backends.cuda.own_pool import OUT_OF_MEMORY, OwnPool
from gpustore.backends.device.foreign import ForeignArray, foreign_array, stream_handle
from gpustore.backends.device.torch_allocator import torch_allocator
from gpustore.backends.nvcomp import engine
from gpustore.backends.nvcomp.bindings import Bindings
from gpustore.backends.nvcomp.library import Library
from gpustore.backends.nvimgcodec import Library as ImageLibrary
from gpustore.device.decoders import ProvenDecoders
from gpustore.device.image_batch import ImageBatch
from gpustore.device.image_decoders import ProvenImageDecoders
from gpustore.device.kernels import instance, source
from gpustore.device.protocol import (
    Allocation,
    Argument,
    CodecBatch,
    DecoderState,
    DeviceAllocator,
    DeviceCodec,
    MemoryInfo,
    PinnedMemoryError,
)
from gpustore.errors import DeviceError, ForkError, UnsupportedError

# Errors after which a context is of no use: ECC, illegal address and what follows it in the list
# of the runtime, up to "launch failure", and failed assertions.
_STICKY = frozenset({214, 700, 702, 710, *range(714, 720)})

_HOST_TO_DEVICE, _DEVICE_TO_HOST, _WITHIN_DEVICE = 1, 2, 3
_PORTABLE = 1

_Operation = TypeVar("_Operation", bound=Callable[..., Any])


def _on_device(operation: _Operation) -> _Operation:
    """Decorate an operation to run on its device, and to raise our errors for CUDA's."""

    @wraps(operation)
    def guarded(self: CudaDevice, *args: Any, **kwargs: Any) -> Any:
        if self.failure is not None:
            # A new exception each time: the frames of an old one keep arrays of its caller.
            raise DeviceError(self.failure)
        if os.getpid() != self.pid:
            raise ForkError(f"{self.name} was used before this process was forked; start it anew")
        try:
            with cupy.cuda.Device(self.ordinal):
                return operation(self, *args, **kwargs)
        except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
            if error.status == OUT_OF_MEMORY:
                raise MemoryError(f"{self.name}: {error}") from error
            failure = f"{self.name}: {operation.__name__}: {error}"
            if error.status in _STICKY:
                failure += "; this process cannot use the device any more: start it anew"
                self.failure = failure
            raise DeviceError(failure) from error

    return cast(_Operation, guarded)


class _Owner:
    """Object that lives as long as the memory of an array."""


@dataclass(frozen=True, slots=True)
class _Pinned:
    address: int
    view: memoryview


@dataclass(frozen=True, slots=True)
class _Kernel:
    expression: str
    function: Any


class CudaDevice:
    """A CUDA GPU; methods are those of :class:`gpustore.device.protocol.Device`.

    Parameters
    ----------
    ordinal : int or None
        CUDA's number of the device; None for the current device of CuPy.
    allocator : str
        Value of the context resource ``device_allocator``.

    Attributes
    ----------
    multiprocessors : int
        Number of its multiprocessors.

    Raises
    ------
    DeviceError
        If the device does not exist, or the allocator cannot be used.
    """

    def __init__(self, ordinal: int | None = None, allocator: str = "default") -> None:
        self.ordinal: int = cupy.cuda.Device().id if ordinal is None else ordinal
        self.name = f"cuda:{self.ordinal}"
        self.pid = os.getpid()
        self.failure: str | None = None
        self._nvcomp, shortcoming = engine()
        self._decoders = ProvenDecoders(self, self._nvcomp, shortcoming)
        self._images = ProvenImageDecoders(self, lambda: ImageLibrary(self.ordinal))
        self.multiprocessors = self._multiprocessors()
        self._kernels: dict[str, _Kernel] = {}
        self._allocator: DeviceAllocator = OwnPool(self.ordinal)
        if allocator == "torch":
            self._allocator = torch_allocator(self, self.ordinal)

    @_on_device
    def _multiprocessors(self) -> int:
        runtime = cupy.cuda.runtime
        number = runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, self.ordinal)
        return int(number)

    # ----------------------------------------------------------------- memory and budget

    @_on_device
    def memory(self) -> MemoryInfo:
        free, total = cupy.cuda.runtime.memGetInfo()
        return MemoryInfo(total, min(total, free + self._allocator.kept_nbytes()))

    @_on_device
    def allocate(self, nbytes: int, stream: Any) -> Allocation:
        return self._allocator.allocate(nbytes, stream)

    @_on_device
    def free(self, allocation: Allocation, stream: Any) -> None:
        self._allocator.free(allocation, stream)

    @_on_device
    def allocate_pinned(self, nbytes: int) -> _Pinned:
        try:
            address = cupy.cuda.runtime.hostAlloc(nbytes, _PORTABLE)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status != OUT_OF_MEMORY:
                raise
            raise PinnedMemoryError(f"{self.name}: {error}") from error
        view = memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")
        return _Pinned(address, view)

    @_on_device
    def free_pinned(self, pinned: Any) -> None:
        cupy.cuda.runtime.freeHost(pinned.address)

    @_on_device
    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], order: str, stream: Any
    ) -> ForeignArray:
        nbytes = math.prod(shape) * dtype.itemsize
        with stream:
            memory = self._array_memory(max(1, nbytes), stream)
        # CuPy takes types that it cannot compute with only together with their memory.
        array = cupy.ndarray(shape, dtype, memptr=memory, order=order)
        return ForeignArray(array, array.data.ptr, array.strides, array.shape, array.dtype)

    def _array_memory(self, nbytes: int, stream: Any) -> Any:
        """Return the memory of an array of the user, which goes with the array."""
        if isinstance(self._allocator, OwnPool):
            return self._allocator.array_memory(nbytes)
        allocation = self._allocator.allocate(nbytes, stream)
        owner = _Owner()
        weakref.finalize(owner, self._allocator.free, allocation, stream).atexit = False
        memory = cupy.cuda.UnownedMemory(allocation.address, nbytes, owner, self.ordinal)
        return cupy.cuda.MemoryPointer(memory, 0)

    @_on_device
    def wrap(self, array: Any) -> ForeignArray | None:
        found = foreign_array(array, cupy.cuda.get_current_stream().ptr)
        if found is not None and found.address:
            ordinal = cupy.cuda.runtime.pointerGetAttributes(found.address).device
            if ordinal != self.ordinal:
                raise TypeError(f"memory of device {ordinal}, expected memory of {self.name}")
        return found

    # ----------------------------------------------------------------- queue

    @_on_device
    def stream(self) -> Any:
        return cupy.cuda.Stream(non_blocking=True)

    @_on_device
    def caller_stream(self, stream: Any = None) -> Any:
        if stream is None:
            return cupy.cuda.get_current_stream()
        if hasattr(stream, "ptr"):
            return stream
        return cupy.cuda.Stream.from_external(stream_handle(stream))

    @_on_device
    def record(self, stream: Any) -> Any:
        # Without `block` a thread that waits for it takes a whole core.
        return stream.record(cupy.cuda.Event(block=True, disable_timing=True))

    @_on_device
    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    @_on_device
    def synchronize(self, event: Any) -> None:
        event.synchronize()

    @_on_device
    def upload(self, src: Any, start: int, dst: int, nbytes: int, stream: Any) -> None:
        cupy.cuda.runtime.memcpyAsync(dst, src.address + start, nbytes, _HOST_TO_DEVICE, stream.ptr)

    @_on_device
    def download(self, src: int, dst: Any, start: int, nbytes: int, stream: Any) -> None:
        cupy.cuda.runtime.memcpyAsync(dst.address + start, src, nbytes, _DEVICE_TO_HOST, stream.ptr)

    @_on_device
    def fill(self, dst: int, value: int, nbytes: int, stream: Any) -> None:
        cupy.cuda.runtime.memsetAsync(dst, value, nbytes, stream.ptr)

    # ----------------------------------------------------------------- kernels

    @_on_device
    def kernel(self, family: str, expression: str) -> _Kernel:
        found = self._kernels.get(expression)
        if found is None:
            module = cupy.RawModule(
                code=source.flatten(family),
                options=source.OPTIONS,
                name_expressions=(expression,),
            )
            found = _Kernel(expression, module.get_function(expression))
            self._kernels[expression] = found
        return found

    @_on_device
    def launch(self, kernel: Any, blocks: int, arguments: Sequence[Argument], stream: Any) -> None:
        with stream:
            kernel.function((blocks,), (instance.THREADS_PER_BLOCK,), tuple(arguments))

    # ----------------------------------------------------------------- codecs

    def codec(self, name: str) -> DeviceCodec | None:
        return self._decoders.codec(name)

    def decoders(self) -> DecoderState:
        return self._decoders.state()

    def own_kernel_failure(self, codec: str) -> str | None:
        return self._decoders.own_kernel_failure(codec)

    @_on_device
    def decompress_temp_nbytes(
        self, codec: str, count: int, max_nbytes: int, total_nbytes: int
    ) -> int:
        return self._engine().decompress_temp_nbytes(codec, count, max_nbytes, total_nbytes)

    @_on_device
    def decompress(self, batch: CodecBatch, stream: Any) -> None:
        found = self._engine()
        if isinstance(found, Library):
            found.decompress(batch, stream.ptr)
            return
        results = found.results(batch, stream.ptr)
        cupy.cuda.runtime.memcpyAsync(
            batch.result, results.ctypes.data, results.nbytes, _HOST_TO_DEVICE, stream.ptr
        )
        stream.synchronize()

    @_on_device
    def compress_nbytes(self, codec: str, count: int, max_nbytes: int) -> tuple[int, int]:
        return self._encoder().compress_nbytes(codec, count, max_nbytes)

    @_on_device
    def compress(self, batch: CodecBatch, stream: Any) -> None:
        self._encoder().compress(batch, stream.ptr)

    def _engine(self) -> Library | Bindings:
        if self._nvcomp is None:
            raise UnsupportedError(f"{self.name} has no codecs: {self.decoders().shortcoming}")
        return self._nvcomp

    def _encoder(self) -> Library:
        found = self._engine()
        if not isinstance(found, Library):
            raise UnsupportedError(f"{self.name}: encoding needs nvcomp 5 or 6")
        return found

    # ----------------------------------------------------------------- images

    def image_decoder(self, name: str) -> DecoderState:
        return self._images.state(name)

    @_on_device
    def decode_images(self, batch: ImageBatch, stream: Any) -> None:
        runtime = cupy.cuda.runtime
        for i, image in enumerate(self._images.library().decode(batch, stream.ptr)):
            if image is not None:  # Its memory is freed behind the copy, in the stream's order.
                src = image.__cuda_array_interface__["data"][0]
                dst, nbytes = int(batch.dst[i]), math.prod(batch.shapes[i])
                runtime.memcpyAsync(dst, src, nbytes, _WITHIN_DEVICE, stream.ptr)
                runtime.memsetAsync(batch.result + 4 * i, 0, 4, stream.ptr)

    # ----------------------------------------------------------------- files

    @_on_device
    def open_file(self, path: Path) -> gds.File:
        return gds.File(path)

    @_on_device
    def read_file(self, file: Any, start: int, nbytes: int, dst: int) -> gds.Read:
        read: gds.Read = file.read(start, nbytes, dst)
        return read

    @_on_device
    def close_file(self, file: Any) -> None:
        file.close()


BACKEND = CudaDevice
