"""Emulated devices that ``open(device=...)`` knows, and what their arrays hold, for tests."""

import gc
import itertools
from contextlib import contextmanager

import numpy as np

from gpustore.backends import selection
from gpustore.backends.selection import select_backend
from gpustore.resources.device import DEVICES, parse_device
from tests.emulator.device import EmulatedDevice
from tests.waiting import wait_until

_numbers = itertools.count()
_devices = {}

DEVICES["emulated"] = lambda ordinal, allocator: _devices[ordinal, allocator]


@contextmanager
def emulated(order="lazy", **settings):
    """A new emulated device; its name is what opens arrays on it. Breach if it was misused."""
    device = EmulatedDevice(order, **settings)
    number = next(_numbers) % 1000
    device.name = f"emulated:{number}"
    _devices[number, device.allocator] = device
    try:
        yield device
        if device._lost is None:
            _settle(device)
        device.close()
    finally:
        del _devices[number, device.allocator]
        # Numbers come again, and the backend of a lost device would keep its memory.
        selection._backends.pop(("emulated", number, device.allocator), None)


def _settle(device):
    """Let cancelled reads end, and everything go that nobody needs."""
    backend = select_backend(parse_device(device.name), device.allocator)
    looks = itertools.count(1)

    def is_empty():
        backend.release()
        device.memory()  # Any operation frees dropped arrays.
        left = device._memory.live() or device._pinned or device.files
        # Errors and their frames hold arrays, most of them new ones: to collect all takes long.
        if left:
            gc.collect(1 if next(looks) % 4 else 2)
        return not left

    wait_until(is_empty)


def on_host(device, array, stream=None):
    """A NumPy copy of an array on a device, made on its stream or on a new one."""
    view = device.wrap(array)
    shape, itemsize = view.shape, view.dtype.itemsize
    low = sum(min(0, step * (size - 1)) for step, size in zip(view.strides, shape, strict=True))
    high = sum(max(0, step * (size - 1)) for step, size in zip(view.strides, shape, strict=True))
    if 0 in shape:
        return np.empty(shape, view.dtype)
    nbytes = high - low + itemsize
    pinned = device.allocate_pinned(nbytes)
    stream = device.stream() if stream is None else stream
    device.download(view.address + low, pinned, 0, nbytes, stream)
    device.synchronize(device.record(stream))
    data = np.array(pinned.view)
    device.free_pinned(pinned)
    return np.ndarray(shape, view.dtype, data, -low, view.strides).copy()
