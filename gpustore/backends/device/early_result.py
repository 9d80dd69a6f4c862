"""Results of reads for the caller's stream, which waits for the device in place of the host.

:meth:`gpustore.Future.on_stream` returns the array when all work of the read is queued. The host
decodes rows afterwards that the device turns out not to have decoded. That is too late for the
stream, so the read is an error then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from gpustore.backends.device.submission import Submission
from gpustore.device.protocol import Device, Event, Stream
from gpustore.errors import DeviceError
from gpustore.runtime.promise import Promise


class EarlyResult:
    """Early result of one read.

    Parameters
    ----------
    device : Device
    streams : sequence of Stream
        Streams of the caller; without any the result is not early.
    """

    def __init__(self, device: Device, streams: Sequence[Stream]) -> None:
        self._device = device
        self._streams = streams
        self._lock = threading.Lock()
        self._promise: Promise[list[Event] | None] | None = None
        self._events: list[Event] | None = None
        self._is_known = self._is_late = self._is_used = False
        self._wrong = 0

    def queued(self, running: Sequence[Submission]) -> None:
        """Note that all work is queued: that of `running`, and none of other rows is left."""
        for one in running:
            if not one.is_whole:
                return
        self._know([one.event for one in running if one.event is not None])

    def wrong(self, rows: int) -> None:
        """Note rows of a submission that has run, which the host must decode."""
        with self._lock:
            self._is_late = True
            if self._is_used:
                self._wrong += rows

    def over(self) -> None:
        """Note that the read is over, also after an error."""
        self._know(None)

    def _know(self, events: list[Event] | None) -> None:
        with self._lock:
            if self._is_known:
                return
            self._events, self._is_known = events, True
            promise = self._promise
        if promise is not None:
            promise.set_result(events)

    def check(self) -> None:
        """Raise DeviceError if the stream was given rows that were wrong."""
        if self._wrong:
            raise DeviceError(
                f"Device {self._device.name} did not decode {self._wrong} chunks of a read whose "
                f"array was taken by on_stream. The host has decoded them since; later work on the "
                f"stream may have used wrong elements: repeat that work"
            )

    def take(self, result: Callable[[], Any]) -> tuple[Any] | None:
        """Have the streams wait for the device, and return the result.

        Returns None if the caller must wait for the read instead. Waits until all is queued.
        """
        with self._lock:
            asked = None
            if not self._is_known:
                if self._promise is None:
                    self._promise, self._asked = Promise[list[Event] | None].new()
                asked = self._asked
        events = self._events if asked is None else asked.result()
        with self._lock:
            if events is None or self._is_late or not self._streams:
                return None
            self._is_used = True
        for stream in self._streams:
            for event in events:
                self._device.wait(stream, event)
        return (result(),)
