"""Where results go, and how they are compared there, on a GPU."""

import cupy
import numpy as np

from gpustore.backends.selection import select_backend
from gpustore.resources.device import parse_device

runtime = cupy.cuda.runtime


class CudaTarget:
    """Device 0.

    Parameters
    ----------
    gpu : benchmarks.gpu.gpu.Gpu
    """

    is_emulated = False
    name = "cuda:0"

    def __init__(self, gpu):
        self.gpu = gpu
        self._backend = select_backend(parse_device(self.name))
        self.device = self._backend.driven

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
        array = cupy.ascontiguousarray(array)
        cupy.cuda.get_current_stream().synchronize()
        expected = np.ascontiguousarray(expected).reshape(-1).view(np.uint8)
        return self.gpu.count_different(array.data.ptr, expected, array.nbytes) == 0

    def wait(self):
        self.gpu.check()

    def clock(self):
        return CudaClock()

    def check(self, findings, name):
        """End this process if the context is lost."""
        findings.leave_if_lost(self.gpu, name)

    def forget(self):
        """Give back all memory that anybody keeps for later."""
        self._backend.release()
        self.gpu.trim()
        runtime.deviceSynchronize()
        runtime.memPoolTrimTo(runtime.deviceGetDefaultMemPool(0), 0)

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
        return cupy.cuda.get_elapsed_time(self._first, mark)
