"""A device that records the calls it gets, and when each of them ran.

gpustore is opened on it by the name that :func:`opened` gives; all calls go on to the device below.
"""

import contextlib

from gpustore.backends.selection import select_backend
from gpustore.resources.device import DEVICES, parse_device


class NoClock:
    """Clock of a device on which time means nothing."""

    def mark(self, stream):
        """Record a point of a stream."""

    def start(self):
        """Begin to count."""

    def milliseconds(self, mark):
        """Time from the start to a point, which must have passed."""
        return 0.0


class RecordingDevice:
    """A device and a record of its calls.

    Parameters
    ----------
    device : gpustore.device.protocol.Device
    clock : NoClock or one like it

    Attributes
    ----------
    calls : list of tuple
        Stage, bytes (0 where the call does not say), first and last mark.
    """

    def __init__(self, device, clock):
        self._device = device
        self._clock = clock
        self._families = {}
        self.calls = []

    def __getattr__(self, name):
        return getattr(self._device, name)

    def _recorded(self, stage, nbytes, stream, call, *arguments):
        first = self._clock.mark(stream)
        call(*arguments)
        self.calls.append((stage, nbytes, first, self._clock.mark(stream)))

    def kernel(self, family, expression):
        self._families[expression] = family
        return self._device.kernel(family, expression)

    def launch(self, kernel, blocks, arguments, stream):
        stage = self._families[kernel.expression]
        self._recorded(stage, 0, stream, self._device.launch, kernel, blocks, arguments, stream)

    def upload(self, src, start, dst, nbytes, stream):
        arguments = src, start, dst, nbytes, stream
        self._recorded("upload", nbytes, stream, self._device.upload, *arguments)

    def decompress(self, batch, stream):
        nbytes = int(batch.dst.nbytes.sum())
        self._recorded("decompress", nbytes, stream, self._device.decompress, batch, stream)

    def begin(self):
        """Forget the calls recorded so far."""
        self.calls.clear()
        self._clock.start()

    def stages(self):
        """Return for each stage its calls, bytes, and intervals in milliseconds."""
        found = {}
        for stage, nbytes, first, last in self.calls:
            row = found.setdefault(stage, {"calls": 0, "nbytes": 0, "intervals": []})
            row["calls"] += 1
            row["nbytes"] += nbytes
            row["intervals"].append(
                (self._clock.milliseconds(first), self._clock.milliseconds(last))
            )
        return found


_devices = {}
DEVICES["recording"] = lambda ordinal, allocator: _devices[ordinal]


@contextlib.contextmanager
def opened(device):
    """The name by which gpustore opens on a device; what it keeps there is freed at the end."""
    number = len(_devices)
    _devices[number] = device
    name = f"recording:{number}"
    try:
        yield name
    finally:
        select_backend(parse_device(name)).release()
        _devices[number] = None
