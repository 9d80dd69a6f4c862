"""Where results go, and how they are compared there, on the device that tests emulate.

No GPU: orders and bytes are checked, and nothing that could be measured would mean anything.
"""

import contextlib
import importlib

import numpy as np

from benchmarks.gpu.recording_device import NoClock
from gpustore.backends.selection import select_backend
from gpustore.resources.device import parse_device


class EmulatedTarget:
    """See :mod:`tests.emulator.device`, and :class:`benchmarks.gpu.cuda_target.CudaTarget`."""

    is_emulated = True

    def __init__(self, device):
        self.device = device
        self.name = device.name
        self._on_host = importlib.import_module("tests.on_device").on_host

    def copied(self, array):
        """A copy of a host array on the device; done when this returns."""
        device, array = self.device, np.ascontiguousarray(array)
        pinned = device.allocate_pinned(array.nbytes)
        np.frombuffer(pinned.view, np.uint8)[:] = array.reshape(-1).view(np.uint8)
        stream = device.caller_stream()
        view = device.empty(array.shape, array.dtype, "C", stream)
        device.upload(pinned, 0, view.address, array.nbytes, stream)
        device.synchronize(device.record(stream))
        device.free_pinned(pinned)
        return view.array

    def equal(self, arrays, expected):
        """Whether arrays on the device, one or stacked, are `expected`, or that repeated."""
        found = [self._on_host(self.device, array) for array in arrays]
        stacked = found[0] if len(found) == 1 else np.stack(found)
        if stacked.dtype != expected.dtype or stacked.shape[1:] != expected.shape[1:]:
            return False
        whole = np.resize(expected, stacked.shape)
        return np.array_equal(stacked.view(np.uint8), whole.view(np.uint8))

    def description(self):
        return {"name": "emulated: no GPU"}

    def clock(self):
        return NoClock()

    def wait(self):
        """Nothing of a GPU can be lost."""

    def forget(self):
        """Give back all memory that is kept for later."""
        select_backend(parse_device(self.name)).release()


@contextlib.contextmanager
def emulated_target():
    with importlib.import_module("tests.on_device").emulated() as device:
        yield EmulatedTarget(device)
