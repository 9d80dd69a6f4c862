"""Self-tests of a device: a constant stream of each codec, decoded or encoded once.

A library may load and still not decode: it may be made for other GPUs or drivers, and so may a
kernel be compiled. A wrong result would otherwise be seen in every read.
"""

from __future__ import annotations

import threading
import warnings
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np

from gpustore.device.own_kernels import OWN_KERNELS
from gpustore.device.protocol import STATUSES, CodecBatch, Device, Spans, Stream
from gpustore.errors import DeviceError, DeviceWarning

PLAIN: Final = b"".join(b"%d squared is %d. " % (n, n * n) for n in range(24))
"""Decoded bytes of all constant streams."""

STREAMS: Final = {
    "lz4": b64decode(
        "+AIwIHNxdWFyZWQgaXMgMC4gMRAASDEuIDIQAEg0LiAzEABIOS4gNBAAWDE2LiA1EQBYMjUuIDYRAFgz"
        "Ni4gNxEAWDQ5LiA4EQBYNjQuIDkRAFk4MS4gMacAIDEwqQAKqgAQMiYACa0AaTE0NC4gMbAAajE2OS4g"
        "MbMAWjk2LiAxtQAAtgAZMbcAIDI1JgAJuQAgMjhMAAm7ACAzMnIACb0AIDM2RAEJvgAQNL4AGTK+ACA0"
        "NCYACb4AaTQ4NC4gMr4AUDUyOS4g"
    ),
    "snappy": b64decode(
        "sANAMCBzcXVhcmVkIGlzIDAuIDEuEAAMMS4gMi4QAAw0LiAzLhAADDkuIDQuEAAQMTYuIDUuEQAQMjUu"
        "IDYuEQAQMzYuIDcuEQAQNDkuIDguEQAQNjQuIDkuEQAQODEuIDEypwAEMTABqTaqAAAyASYAMi44ABQx"
        "NDQuIDEysAAUMTY5LiAxNrMAEDk2LiAxNrUAAbYAMTK3AAQyNQEmMrkABDI4AUwyuwAEMzIBcjK9AAQz"
        "NiFEMr4AADQBvgAyMr4ABDQ0ASYyvgAUNDg0LiAyMr4AEDUyOS4g"
    ),
    "zstd": b64decode(
        "KLUv/WCwANUDABLJFRCw6+Bh4wytksrKJjtjRicCdTkRrkZyVx9/NQAIrn6W13iBvC5kvE6Rr8WdeJ0F"
        "X5cMrxHv9e81AH99UmpMUhccdYasxYk6j3UJNV7916As9aBlmmIFAReoEKak174BoGPrEF7pA8CRbdWY"
        "lbU2qiJbEiocHGpT"
    ),
    "deflate": b64decode(
        "VZBBDsQwCAO/wgtQICRNnlOpPfS4W+3/F9/w0ZZlDzR5P7/ze1/yvNJUrGpT8apDpVe9VYLyU2VUw4fK"
        "rEbPxEGV2bGqMXNkV2MlhTWaaQBlUkeKYC2yyTrz5Zox8k4iY2hQ2+Q7kCJwX+gi9O5Y3Hwvfkj0AXon"
        "+gik+NUru5zoh+fiHw=="
    ),
    "gzip": b64decode(
        "H4sIAAAAAAACA1WQQQ7EMAgDv8ILUCAkTZ5TqT30uFvt/xff8NGWZQ80eT+/83tf8rzSVKxqU/GqQ6VX"
        "vVWC8lNlVMOHyqxGz8RBldmxqjFzZFdjJYU1mmkAZVJHimAtssk68+WaMfJOImNoUNvkO5AicF/oIvTu"
        "WNx8L35I9AF6J/oIpPjVK7uc6Ifn4h/GClG4sAEAAA=="
    ),
}
"""Stream of each codec of a library, made by lz4, a Snappy encoder, libzstd and zlib."""

OWN_STREAMS: Final = {
    "lz4": STREAMS["lz4"],
    "blosclz": b64decode(
        "MzAgc3F1YXJlZCBpcyAwLiAxIHNx4AAPAzEuIDLgAw8DNC4gM+ADDwM5LiA04AMPBDE2LiA14AMQBDI1"
        "LiA24AMQBDM2LiA34AMQBDQ5LiA44AMQBDY0LiA54AMQBDgxLiAx4ASmBTEwMC4gMeAFqQQyMS4gMeAE"
        "rAUxNDQuIDHgBK8FMTY5LiAx4AWyBDk2LiAx4AW0BDI1LiAx4AS2BTI1Ni4gMeAEuAUyODkuIDHgBLoF"
        "MzI0LiAx4AS8BTM2MS4gMuAEvQU0MDAuIDLgBL0FNDQxLiAy4AS9BTQ4NC4gMuAEvQQ1MjkuIA=="
    ),
}
"""Stream of each codec that has a kernel of the package, made by lz4 and blosclz."""

_SRC: Final = 64
"""Place of the stream behind table and results."""

_TABLE_NBYTES: Final = 32
_ALIGNMENT: Final = 256

UNWRITTEN: Final = b"\xff"
"""Byte of results before a step: those that nobody has written are no success."""


class Outcome(NamedTuple):
    """Result of one stream that a device has decoded or encoded.

    Attributes
    ----------
    nbytes, status : int
        What the device says: bytes of the output, and status.
    output : bytes
        All bytes that there was room for.
    """

    nbytes: int
    status: int
    output: bytes

    @property
    def failure(self) -> str | None:
        """Text of the status, None if it is success."""
        if not self.status:
            return None
        return f"status {self.status} ({STATUSES.get(self.status, 'unknown')})"


def outcome(
    device: Device,
    step: Callable[[CodecBatch, Stream], object],
    codec: str,
    stream: bytes,
    room: int,
    temp_nbytes: int,
) -> Outcome:
    """Have a step of a device decode or encode one stream, and wait for it.

    Parameters
    ----------
    stream : bytes
    room : int
        Bytes of the output.
    temp_nbytes : int
        Bytes of scratch memory.

    Raises
    ------
    MemoryError
        If there is not enough memory, which says nothing about the step.
    DeviceError
        If an operation fails; nothing is left behind.
    """
    dst = _SRC + aligned(len(stream))
    temp = dst + aligned(room)

    def batch(at: int) -> CodecBatch:
        return CodecBatch(
            codec,
            Spans.contiguous(at + _SRC, [len(stream)]),
            Spans.contiguous(at + dst, [room]),
            table=at,
            result=at + _TABLE_NBYTES,
            temp=at + temp if temp_nbytes else 0,
            temp_nbytes=temp_nbytes,
        )

    def content(at: int) -> bytes:
        table = CodecBatch.columns(batch(at).src, batch(at).dst).tobytes()
        return table + UNWRITTEN * (_SRC - _TABLE_NBYTES) + stream

    found = memory_after(
        device, content, lambda at, queue: step(batch(at), queue), temp, temp_nbytes
    )
    results = np.frombuffer(found[_TABLE_NBYTES : _TABLE_NBYTES + 12], np.uint8)
    sizes, statuses = CodecBatch.results(results)
    return Outcome(int(sizes[0]), int(statuses[0]), found[dst : dst + room])


def memory_after(
    device: Device,
    content: Callable[[int], bytes],
    step: Callable[[int, Stream], object],
    nbytes: int,
    more_nbytes: int = 0,
) -> bytes:
    """Run a step on device memory, wait for it, and return what the memory has then.

    Parameters
    ----------
    content : callable
        Returns the first bytes of the memory before the step, from its address.
    step : callable
        Called with the address and a stream.
    nbytes : int
        Bytes that are returned.
    more_nbytes : int
        Bytes of the memory behind these.
    """
    queue = device.stream()
    pinned = device.allocate_pinned(2 * nbytes)
    try:
        memory = device.allocate(nbytes + more_nbytes, queue)
        try:
            before = content(memory.address)
            pinned.view[: len(before)] = before
            device.upload(pinned, 0, memory.address, len(before), queue)
            step(memory.address, queue)
            device.download(memory.address, pinned, nbytes, nbytes, queue)
            device.synchronize(device.record(queue))
        except BaseException:
            with suppress(DeviceError):  # Nothing may still use what is freed.
                device.synchronize(device.record(queue))
            raise
        finally:
            with suppress(DeviceError):
                device.free(memory, queue)
        return bytes(pinned.view[nbytes:])
    finally:
        with suppress(DeviceError):
            device.free_pinned(pinned)


def aligned(nbytes: int) -> int:
    """Return the first multiple of the alignment of outputs that is not below `nbytes`."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def library_failure(device: Device, codec: str) -> str | None:
    """Decode the constant stream of `codec` by the device's library; return what is wrong.

    Raises
    ------
    MemoryError
        If there is not enough memory.
    """
    size = len(PLAIN)
    return _decoding_failure(
        device,
        device.decompress,
        codec,
        STREAMS[codec],
        lambda: device.decompress_temp_nbytes(codec, 1, size, size),
    )


def own_kernel_failure(device: Device, codec: str) -> str | None:
    """Decode the constant stream of `codec` by the package's kernel; return what is wrong.

    Raises
    ------
    MemoryError
        If there is not enough memory.
    """

    def step(batch: CodecBatch, stream: Stream) -> None:
        sizes = np.uint64(batch.result)
        statuses = np.uint64(batch.result + 8)
        kernel = device.kernel("lz", OWN_KERNELS[codec])
        device.launch(kernel, 1, [np.uint64(batch.table), np.uint32(1), sizes, statuses], stream)

    return _decoding_failure(device, step, codec, OWN_STREAMS[codec], lambda: 0)


def _decoding_failure(
    device: Device,
    step: Callable[[CodecBatch, Stream], object],
    codec: str,
    stream: bytes,
    temp_nbytes: Callable[[], int],
) -> str | None:
    try:
        found = outcome(device, step, codec, stream, len(PLAIN), temp_nbytes())
    except DeviceError as error:
        return error.text
    if found.failure is not None:
        return found.failure
    if found.nbytes != len(PLAIN):
        return f"{found.nbytes} bytes instead of {len(PLAIN)}"
    return None if found.output == PLAIN else "other bytes than were encoded"


class SelfTests:
    """Self-tests of a device, each of which runs once. Thread-safe.

    Parameters
    ----------
    device : Device
    warning : str
        Text of the warning of one that fails, with ``{codec}`` and ``{reason}``.

    Attributes
    ----------
    shortcomings : list of str
        Texts of the warnings so far.
    """

    def __init__(self, device: Device, warning: str) -> None:
        self._device = device
        self._warning = warning
        self._lock = threading.Lock()
        self._found: dict[str, str | None] = {}
        self.shortcomings: list[str] = []

    def failure(self, codec: str, test: Callable[[str], str | None]) -> str | None:
        """Return what `test` says of a codec, None if it passes; the first question runs it."""
        if codec not in self._found:
            with self._lock:
                if codec not in self._found:
                    reason = self._found[codec] = test(codec)
                    if reason is not None:
                        text = self._warning.format(codec=codec, reason=reason)
                        self.shortcomings.append(text)
                        told = f"{self._device.name}: {text}"
                        warnings.warn(told, DeviceWarning, stacklevel=2)
        return self._found[codec]
