"""A GPU as the probes need it: memory, copies and time of it, and whether results are right."""

import contextlib
import time

import cupy
import numpy as np

from gpustore.backends.selection import select_backend
from gpustore.resources.device import parse_device

runtime = cupy.cuda.runtime

_TO_DEVICE, _TO_HOST, _WITHIN = 1, 2, 3


class CudaTarget:
    """Device 0."""

    is_emulated = False
    name = "cuda:0"

    def __init__(self):
        self.device = select_backend(parse_device(self.name)).driven

    def description(self):
        found = runtime.getDeviceProperties(0)
        free, total = runtime.memGetInfo()
        return {
            "name": found["name"].decode(),
            "compute_capability": cupy.cuda.Device(0).compute_capability,
            "multiprocessors": found.get("multiProcessorCount"),
            "l2_MiB": found.get("l2CacheSize", 0) / 2**20,
            "copy_engines": found.get("asyncEngineCount"),
            "free_GiB": round(free / 2**30, 1),
            "total_GiB": round(total / 2**30, 1),
            "cuda_of_driver": runtime.driverGetVersion(),
            "cuda_of_cupy": runtime.runtimeGetVersion(),
            "nvrtc": list(cupy.cuda.nvrtc.getVersion()),
        }

    def copied(self, array):
        """The driver's own copy of a host array; done when this returns."""
        out = cupy.empty(array.shape, array.dtype)
        out.set(np.ascontiguousarray(array))
        cupy.cuda.get_current_stream().synchronize()
        return out

    def equal(self, arrays, expected):
        """Whether arrays on the device, one or stacked, are `expected`, or that repeated."""
        array = arrays[0] if len(arrays) == 1 else cupy.stack(arrays)
        if array.dtype != expected.dtype or array.shape[1:] != expected.shape[1:]:
            return False
        if array.nbytes % expected.nbytes:
            return False
        found = cupy.ascontiguousarray(array).reshape(-1).view(np.uint8)
        wanted = cupy.asarray(np.ascontiguousarray(expected).reshape(-1).view(np.uint8))
        step = wanted.size
        return all(bool((found[i : i + step] == wanted).all()) for i in range(0, found.size, step))

    def copy_within(self, dst, src, nbytes, stream):
        """Queue a copy within the device."""
        runtime.memcpyAsync(dst, src, nbytes, _WITHIN, stream.ptr)

    def pageable_seconds(self, array, address, stream, *, to_device):
        """Seconds of a copy between ordinary host memory and the device."""
        ends = (address, array.ctypes.data) if to_device else (array.ctypes.data, address)
        begin = time.perf_counter()
        runtime.memcpyAsync(*ends, array.nbytes, _TO_DEVICE if to_device else _TO_HOST, stream.ptr)
        stream.synchronize()
        return time.perf_counter() - begin

    def wait(self):
        """Wait for all work; RuntimeError if the context is lost."""
        runtime.deviceSynchronize()

    def clock(self):
        return CudaClock()

    def forget(self):
        """Give back all memory that anybody keeps for later."""
        select_backend(parse_device(self.name)).release()
        cupy.get_default_memory_pool().free_all_blocks()
        self.device._allocator.trim()

    def used_nbytes(self):
        """Device memory that is taken, by pools too: these keep the most that was needed."""
        free, total = runtime.memGetInfo()
        return total - free


class CudaClock:
    """Marks are events; see :class:`benchmarks.gpu.recording_device.NoClock`."""

    def __init__(self):
        self._first = None

    def start(self):
        self._first = self.mark(cupy.cuda.get_current_stream())

    def mark(self, stream):
        return stream.record(cupy.cuda.Event())

    def milliseconds(self, mark):
        for event in (self._first, mark):
            event.synchronize()
        return cupy.cuda.get_elapsed_time(self._first, mark)


@contextlib.contextmanager
def cuda_target():
    yield CudaTarget()
