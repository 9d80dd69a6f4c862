"""Decoders of images of a device that have passed a self-test: those of an optional library.

The first question for a format decodes a small constant image. What is missing or fails is told by
a :class:`~gpustore.errors.DeviceWarning`, and the host decodes images of that format. Nothing is
asked, loaded or told before the first image is.
"""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpustore.device.image_batch import ImageBatch
from gpustore.device.protocol import DecoderState, Device
from gpustore.device.self_test import UNWRITTEN, SelfTests, aligned, memory_after
from gpustore.errors import DeviceError

IMAGES: Final = {
    "jpeg": b64decode(
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB"
        "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQH/2wBDAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB"
        "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQH/wAARCAAQABADASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAA"
        "Cgn/xAAYEAACAwAAAAAAAAAAAAAAAAAACESDwf/EABUBAQEAAAAAAAAAAAAAAAAAAAcI/8QAFBEBAAAAAAAAAAAA"
        "AAAAAAAAAP/aAAwDAQACEQMRAD8AiutsCrBAC2wKsD/rbAqwQAtsCrAHUQ//2Q=="
    ),
    "tiff": b64decode(
        "SUkqAEoAAAB4nHPTEPEzkAmzUIlz0EnzMMkLsCmLcKlL8GnLCOkriJlWkTKvIWdZR8m6CTXbZrTsW9DjNqp+VP0w"
        "Ug8A8OU2EAAKAAABAwABAAAAEAAAAAEBAwABAAAAEAAAAAIBAwADAAAAyAAAAAMBAwABAAAACAAAAAYBAwABAAAA"
        "AgAAABEBBAABAAAACAAAABUBAwABAAAAAwAAABYBAwABAAAAEAAAABcBBAABAAAAQQAAABwBAwABAAAAAQAAAAAA"
        "AAAIAAgACAA="
    ),
}
"""Image of each format that a device may decode: 16 x 16 pixels of RGB, made by Pillow."""

FORMATS: Final = tuple(IMAGES)
"""Formats that a library decodes on a device; it decodes all others on the host, if at all."""

LARGEST_DIFFERENCE: Final = {"jpeg": 4, "tiff": 0}
"""Most by which an element of :data:`IMAGES` may differ from :func:`pixels`.

Standards do not fix the values of JPEG: its inverse transform and its colours may be rounded in
several ways, and the image itself is off by 1.
"""


def pixels() -> NDArray[np.uint8]:
    """Return the elements of :data:`IMAGES`: gray that grows to the right, with a tint."""
    gray = 40 + 8 * np.arange(16)
    row = np.stack([gray + 30, gray, gray - 20], axis=-1).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(row, (16, 16, 3)))


class ImageLibrary(Protocol):
    """Library that decodes images on a device."""

    @property
    def name(self) -> str:
        """Name of the library, for messages."""


L = TypeVar("L", bound=ImageLibrary)


class ProvenImageDecoders(Generic[L]):
    """Formats of images that the library of a device decodes. Thread-safe.

    Parameters
    ----------
    device : Device
        Device whose ``decode_images`` calls the library.
    load : callable
        Returns the library; a DeviceError says why there is none, and what to install.
    """

    def __init__(self, device: Device, load: Callable[[], L]) -> None:
        self._device = device
        self._load = load
        self._lock = threading.Lock()
        self._library: L | None = None
        self._missing: str | None = None
        self._tests = SelfTests(device, "{reason}; the host decodes images of {codec}")

    def library(self) -> L:
        """Return the library, which is loaded once; raise DeviceError if there is none."""
        with self._lock:
            if self._library is None and self._missing is None:
                try:
                    self._library = self._load()
                except DeviceError as error:
                    self._missing = error.text
        if self._library is None:
            raise DeviceError(self._missing or "")
        return self._library

    def state(self, name: str) -> DecoderState:
        """Return what is known of the library for a format after the self-test.

        Without memory for the test it counts as passed, and the next call repeats it.
        """
        try:
            reason = self._tests.failure(name, self._failure)
        except MemoryError:
            reason = None
        if reason is None:
            return DecoderState(self.library().name, (name,), {}, None)
        shortcoming = f"{reason}; the host decodes images of {name}"
        return DecoderState(None, (), {name: reason}, shortcoming)

    def _failure(self, name: str) -> str | None:
        try:
            library = self.library()
        except DeviceError as error:
            return error.text
        try:
            reason = image_failure(self._device, name)
        except DeviceError as error:
            reason = error.text
        if reason is None:
            return None
        return (
            f"{library.name} fails its self-test ({reason}): install it again, or another version"
        )


def image_failure(device: Device, name: str) -> str | None:
    """Decode the constant image of a format by the device's library; return what is wrong.

    Raises
    ------
    MemoryError
        If there is not enough memory.
    DeviceError
        If an operation fails; nothing is left behind.
    """
    expected = pixels()
    encoded, dst = IMAGES[name], aligned(4)
    found = memory_after(
        device,
        lambda at: UNWRITTEN * dst,
        lambda at, queue: device.decode_images(
            ImageBatch(
                name,
                [encoded],
                [(16, 16, 3)],
                page=0,
                dst=np.array([at + dst], np.uint64),
                result=at,
            ),
            queue,
        ),
        dst + expected.nbytes,
    )
    if found[:4] != bytes(4):
        return f"it does not decode an image of {name}"
    decoded = np.frombuffer(found[dst:], np.uint8).reshape(expected.shape)
    difference = int(np.abs(decoded.astype(np.int64) - expected).max())
    if difference > LARGEST_DIFFERENCE[name]:
        return f"elements of {name} differ by up to {difference} from the right ones"
    return None
