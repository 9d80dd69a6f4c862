"""PNG images of several channels of 16 bits, which Pillow opens but reads and writes in 8 bits.

Pillow still decodes them: it is told that pixels are of other bytes. Rows that are written have the
filter of differences from the pixel to the left.

Source: https://www.w3.org/TR/png-3/.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_COLOUR_TYPES: Final = {2: 4, 3: 2, 4: 6}
"""Colour type of an image by the number of its channels."""

_RAW_MODES: Final = {
    # Gray and alpha of 16 bits lie as four channels of 8 bits.
    2: ("RGBA",),
    3: ("RGB;16B", "RGB;16L"),
    4: ("RGBA;16B", "RGBA;16L"),
}
"""Pillow's names of the bytes of pixels: of all, or of the high and of the low ones."""


def encoded(pixels: NDArray[np.uint16], level: int | None) -> bytes:
    """Encode pixels of shape (height, width, channels); `level` is that of zlib."""
    height, width, channels = pixels.shape
    step = 2 * channels
    rows = pixels.astype(">u2").view(np.uint8).reshape(height, width * step)
    filtered = np.empty((height, 1 + width * step), np.uint8)
    filtered[:, 0] = 1
    filtered[:, 1:] = rows
    filtered[:, 1 + step :] -= rows[:, :-step]
    header = struct.pack(">IIBBBBB", width, height, 16, _COLOUR_TYPES[channels], 0, 0, 0)
    data = zlib.compress(filtered.tobytes(), -1 if level is None else level)
    parts = (b"IHDR", header), (b"IDAT", data), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, value) for name, value in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(data, zlib.crc32(name))
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)


def decoded(images: Any, channels: int) -> NDArray[np.uint16]:
    """Decode an image; `images` makes an opened one, which is needed twice.

    Returns
    -------
    uint16 array of shape (height * width * channels,)
    """
    found = []
    for raw_mode in _RAW_MODES[channels]:
        with images() as image:
            if channels == 2:
                image._mode = "RGBA"
            image.tile = [tile._replace(args=raw_mode) for tile in image.tile]
            found.append(np.frombuffer(image.tobytes(), np.uint8))
    if len(found) == 1:
        return found[0].view(">u2").astype(np.uint16)
    high, low = found
    return np.stack([low, high], axis=-1).view("<u2")[..., 0]
