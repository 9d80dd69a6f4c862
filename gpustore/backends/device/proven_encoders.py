"""Encoders of a device's library that have passed a test: the host decodes what they encode.

What an encoder gets wrong stays in stored chunks. Before the first use of each, a constant stream
is encoded on the device and decoded by the libraries that other readers use.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numcodecs.lz4
import zstandard

from gpustore.device.protocol import DecoderState, Device, DeviceCodec
from gpustore.device.self_test import PLAIN, SelfTests, outcome

_PLAIN: Final = 8 * PLAIN

_DECODERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "lz4": lambda encoded: numcodecs.lz4.decompress(len(_PLAIN).to_bytes(4, "little") + encoded),
    "zstd": lambda encoded: zstandard.ZstdDecompressor().decompress(encoded, len(_PLAIN)),
    "deflate": lambda encoded: zlib.decompress(encoded, -15),
}

_ERRORS: Final = (RuntimeError, ValueError, zlib.error, zstandard.ZstdError)


class ProvenEncoders:
    """Codecs of a device, which encode nothing unless they have passed the test. Thread-safe.

    Parameters
    ----------
    device : Device
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._tests = SelfTests(
            device,
            "the library fails the test of its {codec} encoder ({reason}): install it again, or "
            "another version; the host encodes {codec}",
        )

    @property
    def shortcomings(self) -> Sequence[str]:
        """Encoders that have failed, and what to install."""
        return self._tests.shortcomings

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
        try:
            is_proved = self._tests.failure(name, self._failure) is None
        except MemoryError:
            is_proved = False  # The host encodes; the next question repeats the test.
        return known if is_proved else replace(known, encodes_max_nbytes=0)

    def decoders(self) -> DecoderState:
        """Return what is known of the decoders of the device."""
        return self._device.decoders()

    def own_kernel_failure(self, codec: str) -> str | None:
        """Return why no kernel of the package decodes these streams, None if one does."""
        return self._device.own_kernel_failure(codec)

    def image_decoder(self, name: str) -> DecoderState:
        """Return what is known of the library for images of a format."""
        return self._device.image_decoder(name)

    def _failure(self, codec: str) -> str | None:
        """Encode the constant stream; return what is wrong with the result, None if nothing is."""
        device = self._device
        bound, temp_nbytes = device.compress_nbytes(codec, 1, len(_PLAIN))
        found = outcome(device, device.compress, codec, _PLAIN, bound, temp_nbytes)
        if found.failure is not None:
            return found.failure
        if not 0 < found.nbytes <= bound:
            return f"{found.nbytes} bytes"
        try:
            decoded = _DECODERS[codec](found.output[: found.nbytes])
        except _ERRORS as error:
            return str(error)
        return None if decoded == _PLAIN else "other bytes are decoded"
