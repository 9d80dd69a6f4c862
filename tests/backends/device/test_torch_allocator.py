"""Device memory of PyTorch's allocator, of which the emulated device has the documented part."""

import numpy as np
import pytest

import gpustore
from gpustore.backends.device.torch_allocator import TorchAllocator
from gpustore.backends.selection import select_backend
from gpustore.resources.device import parse_device
from tests.emulator.allocators import EmulatedTorch
from tests.emulator.queue import ORDERS, Breach
from tests.kernels.execution import needs_compiler
from tests.matrix import each
from tests.on_device import emulated, on_host

METADATA = {
    "dtype": "<i4",
    "shape": [40, 30],
    "chunks": [16, 8],
    "compressor": {"id": "zlib", "level": 1},
}


@needs_compiler
@each("order", ORDERS)
@each("content", ["decoded", "encoded"])
def test_all_memory_of_reads_and_writes_is_pytorchs(tmp_path, order, content):
    elements = np.random.default_rng(0).integers(0, 9, (40, 30), np.int32)
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/{order}{content}"}
    with emulated(order, allocator="torch") as device:
        pool = {"total_bytes_limit": 10**6, "content": content}
        context = gpustore.Context({"device_allocator": "torch", "device_cache_pool": pool})
        host = gpustore.open({**spec, "metadata": METADATA}, create=True, device="cpu").result()
        host[...] = elements
        there = gpustore.open(spec, context=context, device=device.name).result()
        backend = select_backend(parse_device(device.name), "torch")
        assert there._driver.array.backend is backend
        for _ in range(2):
            found = there[3:, ::2].read(order="F").result()
            assert np.array_equal(on_host(device, found), elements[3:, ::2])
        there[:37, :15].write(found).result()
        elements[:37, :15] = elements[3:, ::2].copy()
        assert np.array_equal(host.read().result(), elements)
        allocated = device.torch.allocated
        assert len(allocated) >= device.counts["allocations"] > 5  # The self-test counts apart.
        assert {ordinal for _, ordinal, _ in allocated} == {0}
        assert device.torch.memory_allocated(0) == device._memory.live_nbytes > 0
        del there, found


def test_memory_that_another_stream_uses_is_free_behind_its_use():
    with emulated(allocator="torch") as device:
        first, second = device.stream(), device.stream()
        allocator = TorchAllocator(device, 0, device.torch)
        allocation = device.allocate(100, first)
        device.wait(second, device.record(first))
        device.fill(allocation.address, 1, 100, second)
        device.free(allocation, second)
        device.synchronize(device.record(second))
        # The emulated device sees it if the stream of the memory does not wait.
        other = allocator.allocate(100, first)
        device.wait(second, device.record(first))
        device.fill(other.address, 1, 100, second)
        with pytest.raises(Breach, match="not ordered"):
            device.torch.caching_allocator_delete(other.address)
        device.breaches.clear()
        device.synchronize(device.record(second))


def test_lack_of_memory_is_a_memory_error():
    with emulated(allocator="torch", total_nbytes=1000) as device:
        stream = device.stream()
        with pytest.raises(MemoryError, match="2000 bytes"):
            device.allocate(2000, stream)
        device.torch.caching_allocator_alloc = _fail
        with pytest.raises(gpustore.DeviceError, match='device_allocator "torch": CUDA error: it'):
            device.allocate(10, stream)


def _fail(size, device, stream):
    raise RuntimeError("CUDA error: it is lost")


def test_pytorch_without_a_gpu_is_an_error():
    with emulated() as device, pytest.raises(gpustore.DeviceError, match="PyTorch finds no GPU"):
        TorchAllocator(device, 0, EmulatedTorch(device, has_gpu=False))
