"""The GPU through CuPy, as the probes need it: memory by address, one stream, and its time."""

import functools
import statistics
import time
from pathlib import Path

import cupy
import numpy as np

from benchmarks.gpu.findings import HangError
from benchmarks.gpu.nvcomp import Library

runtime = cupy.cuda.runtime

_TO_DEVICE, _TO_HOST, _WITHIN = 1, 2, 3
_ROOM = 16


class Gpu:
    """Device 0.

    Attributes
    ----------
    stream : cupy.cuda.Stream
        Non-blocking; all that is timed runs on it.
    queue : int
        Its address.
    """

    def __init__(self):
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.queue = self.stream.ptr
        source = Path(__file__).with_name("kernels.cu").read_text()
        self._module = cupy.RawModule(code=source, options=("--std=c++17",))
        self._kernels = {}

    @functools.cached_property
    def nvcomp(self):
        return Library()

    def room(self):
        """Bytes that a probe may take for its output: 4 GiB, or an eighth of what is free."""
        return min(4 << 30, runtime.memGetInfo()[0] // 8)

    def allocate(self, nbytes):
        """Give memory at the address `.ptr`, aligned to 256 bytes; freed with the object."""
        return cupy.cuda.alloc(max(int(nbytes), _ROOM))

    def trim(self):
        """Give freed memory back to the driver."""
        cupy.get_default_memory_pool().free_all_blocks()

    def upload(self, array, ptr=None):
        """Copy to new memory, or to an address; done when this returns."""
        array = np.ascontiguousarray(array)
        memory = self.allocate(array.nbytes) if ptr is None else None
        if array.nbytes:
            address = ptr if memory is None else memory.ptr
            runtime.memcpy(address, array.ctypes.data, array.nbytes, _TO_DEVICE)
            # A copy from pageable memory may return before it is done; our stream waits for nobody.
            runtime.deviceSynchronize()
        return memory

    def download(self, ptr, nbytes):
        """Give the bytes at an address."""
        out = np.empty(nbytes, np.uint8)
        if nbytes:
            runtime.memcpy(out.ctypes.data, ptr, nbytes, _TO_HOST)
        return out

    def fill(self, ptr, value, nbytes):
        """Set all bytes; done when this returns."""
        runtime.memset(ptr, value, nbytes)
        runtime.deviceSynchronize()

    def copy(self, dst, src, nbytes, kind=_WITHIN):
        """Queue a copy."""
        runtime.memcpyAsync(dst, src, nbytes, kind, self.queue)

    def to_device(self, dst, src, nbytes):
        self.copy(dst, src, nbytes, _TO_DEVICE)

    def to_host(self, dst, src, nbytes):
        self.copy(dst, src, nbytes, _TO_HOST)

    def launch(self, name, blocks, threads, *arguments, times=1):
        """Queue a kernel of `kernels.cu`; each argument has its C type."""
        if name not in self._kernels:
            self._kernels[name] = self._module.get_function(name)
        kernel = self._kernels[name]
        with self.stream:
            for _ in range(times):
                kernel((blocks,), (threads,), arguments)

    def randomise(self, ptr, nbytes):
        """Queue: fill with bytes that no cache and no compression can know."""
        self.launch("random_words", 2048, 256, np.uint64(ptr), np.uint64(nbytes // 8))

    def occupy(self, milliseconds):
        """Queue work of about this length (at 2 GHz)."""
        self.launch("occupy", 1, 1, np.int64(milliseconds * 2_000_000))

    def wait(self, seconds=20):
        """Wait for the stream, but not for ever."""
        end = time.monotonic() + seconds
        event = cupy.cuda.Event(disable_timing=True)
        event.record(self.stream)
        while not event.done:
            if time.monotonic() > end:
                raise HangError(f"the device has not ended its work within {seconds} s")
            time.sleep(0.0002)
        self.stream.synchronize()

    def check(self):
        """Raise what the device has to complain about."""
        runtime.deviceSynchronize()

    def time_ms(self, call, rounds=7, budget_s=1.0):
        """Median milliseconds between two events around `call`, after one call not timed."""
        taken, begin = [], time.monotonic()
        call()
        self.wait()
        while len(taken) < rounds and (len(taken) < 3 or time.monotonic() - begin < budget_s):
            first, last = cupy.cuda.Event(), cupy.cuda.Event()
            first.record(self.stream)
            call()
            last.record(self.stream)
            self.wait()
            taken.append(cupy.cuda.get_elapsed_time(first, last))
        return statistics.median(taken)

    def count_different(self, ptr, expected, nbytes):
        """Words of 8 bytes at `ptr` that differ from `expected`, repeated; both whole words."""
        reference, count = self.upload(expected), self.upload(np.zeros(1, np.uint64))
        self.launch(
            "count_different",
            2048,
            256,
            np.uint64(ptr),
            np.uint64(reference.ptr),
            np.uint64(nbytes // 8),
            np.uint64(expected.nbytes // 8),
            np.uint64(count.ptr),
        )
        self.wait()
        return int(self.download(count.ptr, 8).view(np.uint64)[0])

    def capture(self, call):
        """Give the CUDA graph of what `call` queues."""
        self.stream.begin_capture()
        try:
            call()
        finally:
            graph = self.stream.end_capture()
        return graph
