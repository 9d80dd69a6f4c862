"""Encoders of a device's library that have passed a test: the host decodes what they encode.

What an encoder gets wrong stays in stored chunks. Before the first use of each, a constant stream
is encoded on the device and decoded by the libraries that other readers use.
"""

from __future__ import annotations

import threading
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numcodecs.lz4
import numpy as np
import zstandard

from gpustore.device.protocol import STATUSES, CodecBatch, DecoderState, Device, DeviceCodec, Spans
from gpustore.device.self_test import PLAIN
from gpustore.errors import DeviceError, DeviceWarning

_PLAIN: Final = 8 * PLAIN

_DECODERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "lz4": lambda encoded: numcodecs.lz4.decompress(len(_PLAIN).to_bytes(4, "little") + encoded),
    "zstd": lambda encoded: zstandard.ZstdDecompressor().decompress(encoded, len(_PLAIN)),
    "deflate": lambda encoded: zlib.decompress(encoded, -15),
}

_ERRORS: Final = (RuntimeError, ValueError, zlib.error, zstandard.ZstdError)

_TABLE_NBYTES, _RESULT_NBYTES = 32, 12
_SRC: Final = 64
"""Place of the stream behind table and result."""


class ProvenEncoders:
    """Codecs of a device, which encode nothing unless they have passed the test. Thread-safe.

    Parameters
    ----------
    device : Device
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._failed: dict[str, bool] = {}

    def codec(self, name: str) -> DeviceCodec | None:
        """Return the abilities for streams of this kind, None if there are none.

        Raises
        ------
        DeviceError
            If the device fails otherwise than by a wrong stream.
        """
        known = self._device.codec(name)
        if known is None or not known.encodes_max_nbytes or name not in _DECODERS:
            return known
        with self._lock:
            if name not in self._failed:
                try:
                    reason = self._failure(name)
                except MemoryError:
                    # Not proved, so the host encodes; the next question repeats the test.
                    return replace(known, encodes_max_nbytes=0)
                self._failed[name] = reason is not None
                if reason is not None:
                    warnings.warn(
                        f"{self._device.name}: the library fails the test of its {name} encoder "
                        f"({reason}): install it again, or another version; the host encodes "
                        f"{name}",
                        DeviceWarning,
                        stacklevel=2,
                    )
            return replace(known, encodes_max_nbytes=0) if self._failed[name] else known

    def decoders(self) -> DecoderState:
        """Return what is known of the decoders of the device."""
        return self._device.decoders()

    def _failure(self, codec: str) -> str | None:
        """Encode the constant stream; return what is wrong with the result, None if nothing is."""
        device, size = self._device, len(_PLAIN)
        stream = device.stream()
        bound, temp_nbytes = device.compress_nbytes(codec, 1, size)
        dst = _SRC + -(-size // 16) * 16
        temp = dst + -(-bound // 256) * 256
        pinned = device.allocate_pinned(2 * temp)
        try:
            memory = device.allocate(temp + temp_nbytes, stream)
            try:
                at = memory.address
                batch = CodecBatch(
                    codec,
                    Spans.contiguous(at + _SRC, [size]),
                    Spans.contiguous(at + dst, [bound]),
                    table=at,
                    result=at + _TABLE_NBYTES,
                    temp=at + temp if temp_nbytes else 0,
                    temp_nbytes=temp_nbytes,
                )
                # All bits set: results that nobody has written are no success.
                pinned.view[:_SRC] = b"\xff" * _SRC
                pinned.view[:_TABLE_NBYTES] = CodecBatch.columns(batch.src, batch.dst).tobytes()
                pinned.view[_SRC : _SRC + size] = _PLAIN
                device.upload(pinned, 0, at, _SRC + size, stream)
                device.compress(batch, stream)
                device.download(at, pinned, temp, temp, stream)
                device.synchronize(device.record(stream))
            except BaseException:
                with suppress(DeviceError):  # Nothing may still use what is freed.
                    device.synchronize(device.record(stream))
                raise
            finally:
                device.free(memory, stream)
            found = np.array(np.frombuffer(pinned.view, np.uint8)[temp:])
        finally:
            device.free_pinned(pinned)
        results = found[_TABLE_NBYTES : _TABLE_NBYTES + _RESULT_NBYTES]
        sizes, statuses = CodecBatch.results(results.copy())
        nbytes, status = int(sizes[0]), int(statuses[0])
        if status:
            return f"status {status} ({STATUSES.get(status, 'unknown')})"
        if not 0 < nbytes <= bound:
            return f"{nbytes} bytes"
        try:
            decoded = _DECODERS[codec](found[dst : dst + nbytes].tobytes())
        except _ERRORS as error:
            return str(error)
        return None if decoded == _PLAIN else "other bytes are decoded"
