"""PyTorch's caching allocator as a source of device memory.

It gives memory that is freed to later work of the stream for which it was allocated, at once. So
that stream first waits for the stream on which our memory is freed, if that is another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpustore.backends.device.foreign import stream_handle
from gpustore.device.protocol import Device, Stream
from gpustore.errors import DeviceError


@dataclass(frozen=True, slots=True)
class TorchAllocation:
    """Memory of PyTorch's allocator, and the stream for which it was allocated."""

    address: int
    nbytes: int
    stream: Stream


class TorchAllocator:
    """See the module. Implements :class:`gpustore.device.protocol.DeviceAllocator`.

    Parameters
    ----------
    device : Device
        Device of the memory, which orders its streams.
    ordinal : int
        CUDA's number of the device.
    cuda : module
        ``torch.cuda``.

    Raises
    ------
    DeviceError
        If PyTorch cannot use a GPU.
    """

    def __init__(self, device: Device, ordinal: int, cuda: Any) -> None:
        if not cuda.is_available():
            raise DeviceError(
                'device_allocator "torch": PyTorch finds no GPU; install a build of it for CUDA'
            )
        cuda.init()
        self._device = device
        self._ordinal = ordinal
        self._cuda = cuda

    def allocate(self, nbytes: int, stream: Stream) -> TorchAllocation:
        """Allocate memory for use on `stream`; MemoryError if there is none."""
        handle = stream_handle(stream).address
        try:
            address = self._cuda.caching_allocator_alloc(nbytes, self._ordinal, handle)
        except self._cuda.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error
        except RuntimeError as error:
            raise DeviceError(f'device_allocator "torch": {error}') from error
        return TorchAllocation(address, nbytes, stream)

    def free(self, allocation: TorchAllocation, stream: Stream) -> None:
        """Free memory behind all operations queued on `stream`."""
        if stream_handle(stream) != stream_handle(allocation.stream):
            self._device.wait(allocation.stream, self._device.record(stream))
        self._cuda.caching_allocator_delete(allocation.address)

    def kept_nbytes(self) -> int:
        """Return the bytes that PyTorch has reserved and nobody uses."""
        cuda, ordinal = self._cuda, self._ordinal
        kept: int = cuda.memory_reserved(ordinal) - cuda.memory_allocated(ordinal)
        return kept


def torch_allocator(device: Device, ordinal: int) -> TorchAllocator:
    """Import PyTorch, and return its allocator for a device."""
    from torch import cuda

    return TorchAllocator(device, ordinal, cuda)
