"""A device that notes what it is asked for, and when each call ran.

gpustore is opened on it by the name that :func:`opened` gives; it hands everything on to the device
below it.
"""

import contextlib

from gpustore.backends.selection import select_backend
from gpustore.resources.device import DEVICES, parse_device


class NoClock:
    """For a device on which time means nothing."""

    def mark(self, stream):
        """Note a point of a stream."""

    def start(self):
        """Begin to count."""

    def milliseconds(self, mark):
        """From the start to a point; known once it has passed."""
        return 0.0


class NotedDevice:
    """A device, and what it was asked for.

    Parameters
    ----------
    device : gpustore.device.protocol.Device
    clock : NoClock or one like it

    Attributes
    ----------
    notes : list of tuple
        Stage, bytes (0 where the call does not say), first and last mark.
    """

    def __init__(self, device, clock):
        self._device = device
        self._clock = clock
        self._families = {}
        self.notes = []

    def __getattr__(self, name):
        return getattr(self._device, name)

    def _noted(self, stage, nbytes, stream, call, *arguments):
        first = self._clock.mark(stream)
        call(*arguments)
        self.notes.append((stage, nbytes, first, self._clock.mark(stream)))

    def kernel(self, family, expression):
        self._families[expression] = family
        return self._device.kernel(family, expression)

    def launch(self, kernel, blocks, arguments, stream):
        stage = self._families[kernel.expression]
        self._noted(stage, 0, stream, self._device.launch, kernel, blocks, arguments, stream)

    def upload(self, src, start, dst, nbytes, stream):
        arguments = src, start, dst, nbytes, stream
        self._noted("upload", nbytes, stream, self._device.upload, *arguments)

    def decompress(self, batch, stream):
        nbytes = int(batch.dst.nbytes.sum())
        self._noted("decompress", nbytes, stream, self._device.decompress, batch, stream)

    def begin(self):
        """Forget what was noted."""
        self.notes.clear()
        self._clock.start()

    def stages(self):
        """By stage: how often, bytes, and milliseconds in which at least one ran."""
        found = {}
        for stage, nbytes, first, last in self.notes:
            row = found.setdefault(stage, {"calls": 0, "nbytes": 0, "intervals": []})
            row["calls"] += 1
            row["nbytes"] += nbytes
            row["intervals"].append(
                (self._clock.milliseconds(first), self._clock.milliseconds(last))
            )
        return found


_devices = {}
DEVICES["noted"] = _devices.__getitem__


@contextlib.contextmanager
def opened(device):
    """The name by which gpustore opens on a device; what it keeps there is freed at the end."""
    number = len(_devices)
    _devices[number] = device
    name = f"noted:{number}"
    try:
        yield name
    finally:
        select_backend(parse_device(name)).release()
        _devices[number] = None
