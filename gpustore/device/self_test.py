"""Self-test of the decoders of a device: a constant stream of each codec, decoded once.

A library may load and still not decode: it may be made for other GPUs or drivers. A wrong result
would otherwise be seen in every read.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from gpustore.device.protocol import STATUSES, CodecBatch, Device, DeviceCodec, Spans, Stream
from gpustore.errors import DeviceError

PLAIN: Final = b"".join(b"%d squared is %d. " % (n, n * n) for n in range(24))
"""Decoded bytes of each of :data:`STREAMS`."""

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
"""Stream of each codec, made by lz4, a Snappy encoder, libzstd and zlib."""

_SRC, _DST, _NBYTES = 256, 768, 1280
"""Places of stream and output behind table and results, and bytes of all of them together."""

_TABLE_NBYTES, _RESULT_NBYTES = 32, 12


def failures(device: Device, codecs: Sequence[DeviceCodec]) -> dict[str, str]:
    """Decode the constant stream of each of `codecs`; return the reasons of those that fail.

    Waits for the device.

    Raises
    ------
    MemoryError
        If there is not enough memory, which says nothing about the decoders.
    """
    found: dict[str, str] = {}
    stream = device.stream()
    for codec in codecs:
        try:
            reason = _failure(device, codec.name, stream)
        except DeviceError as error:
            reason = error.text
        if reason is not None:
            found[codec.name] = reason
    return found


def _failure(device: Device, codec: str, stream: Stream) -> str | None:
    encoded, size = STREAMS[codec], len(PLAIN)
    temp_nbytes = device.decompress_temp_nbytes(codec, 1, size, size)
    pinned = device.allocate_pinned(2 * _NBYTES)
    try:
        memory = device.allocate(_NBYTES + temp_nbytes, stream)
        try:
            at = memory.address
            batch = CodecBatch(
                codec,
                Spans.contiguous(at + _SRC, [len(encoded)]),
                Spans.contiguous(at + _DST, [size]),
                table=at,
                result=at + _TABLE_NBYTES,
                temp=at + _NBYTES if temp_nbytes else 0,
                temp_nbytes=temp_nbytes,
            )
            # All bits set: results that nobody has written are no success.
            pinned.view[:_NBYTES] = b"\xff" * _NBYTES
            pinned.view[:_TABLE_NBYTES] = CodecBatch.columns(batch.src, batch.dst).tobytes()
            pinned.view[_SRC : _SRC + len(encoded)] = encoded
            device.upload(pinned, 0, at, _NBYTES, stream)
            device.decompress(batch, stream)
            device.download(at, pinned, _NBYTES, _NBYTES, stream)
        finally:
            with suppress(DeviceError):
                device.synchronize(device.record(stream))
                device.free(memory, stream)
        return _difference(bytes(pinned.view[_NBYTES:]))
    finally:
        with suppress(DeviceError):
            device.free_pinned(pinned)


def _difference(found: bytes) -> str | None:
    """Return what is wrong with the memory of the test after decoding; None if nothing is."""
    results = np.frombuffer(found, np.uint8)[_TABLE_NBYTES : _TABLE_NBYTES + _RESULT_NBYTES]
    sizes, statuses = CodecBatch.results(results.copy())
    size, status = int(sizes[0]), int(statuses[0])
    if status:
        return f"status {status} ({STATUSES.get(status, 'unknown')})"
    if size != len(PLAIN):
        return f"{size} bytes instead of {len(PLAIN)}"
    return None if found[_DST : _DST + size] == PLAIN else "other bytes than were encoded"
