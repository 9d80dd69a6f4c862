"""Chunks as JPEG and PNG images, by Pillow (extra ``image``), which is imported on use.

An image has as many pixels as the chunk has elements of a channel, x fastest, then y and z; its
width and height do not matter. Channels are those of a pixel. The size in the header of an image is
compared with that of the chunk before memory is taken for its pixels.

Source: https://github.com/google/neuroglancer, ``src/datasource/precomputed/volume.md``.
"""

from __future__ import annotations

import io
import math
import struct
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from gpustore.codec_chain import png_of_16_bits
from gpustore.codec_chain.base import BytesCodec
from gpustore.codec_chain.device_images import PlainImage, decode_images, plain_image
from gpustore.device.command_list import CommandList
from gpustore.device.protocol import Device
from gpustore.errors import CorruptChunkError, UnsupportedError
from gpustore.runtime.buffer import Buffer

_MODES: Final = {
    **{(1, 1): "L", (2, 1): "LA", (3, 1): "RGB", (4, 1): "RGBA"},
    **{(1, 2): "I;16B", (2, 2): "LA;16B", (3, 2): "RGB;16B", (4, 2): "RGBA;16B"},
}
"""Pillow's name of stored pixels by channels and bytes of an element."""

_PNG_END: Final = b"\0\0\0\0IEND\xaeB`\x82"


def pillow() -> Any:
    """Import Pillow's ``Image``.

    Raises
    ------
    UnsupportedError
        If it is not installed; the message has the command that installs it.
    """
    try:
        from PIL import Image
    except ImportError:
        raise UnsupportedError(
            "images are read by Pillow, which is not installed: "
            "python -m pip install 'gpustore[image]'"
        ) from None
    return Image


DAMAGE: Final = (
    *(OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError, KeyError, OverflowError),
    *(struct.error, Warning),
)
"""Errors of Pillow about damaged images, and what it warns of where warnings are errors."""


def damaged(name: str, error: BaseException) -> CorruptChunkError:
    """Return the error for an image that Pillow does not read."""
    return CorruptChunkError(
        f"Failed to decode {name.upper()}: {error}", codec=name, status="DATA_LOSS"
    )


def open_image(encoded: Buffer, name: str) -> Any:
    """Read the header of an image, which no limit of Pillow's own applies to.

    Raises
    ------
    CorruptChunkError
        If it is none of the format `name`.
    UnsupportedError
        If Pillow is not installed, or lacks the format.
    """
    library = pillow()
    if name.upper() not in library.OPEN:
        library.init()
    if name.upper() not in library.OPEN:
        raise UnsupportedError(f"this version of Pillow does not read images of {name}")
    factory, _ = library.OPEN[name.upper()]
    try:
        return factory(io.BytesIO(encoded), "")
    except DAMAGE as error:
        raise damaged(name, error) from error


@dataclass(frozen=True, slots=True)
class ImageChunk(BytesCodec):
    """Codec of a chunk as an image.

    Attributes
    ----------
    name : {"jpeg", "png"}
    shape : tuple of int
        Extents of a chunk: channel, z, y, x.
    itemsize : int
        Bytes of an element.
    level : int or None
        Quality of JPEG, effort of PNG.
    """

    decode_ns = 8.0

    name: str
    shape: tuple[int, int, int, int]
    itemsize: int
    level: int | None

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(f"<u{self.itemsize}")

    @property
    def _mode(self) -> str:
        found = _MODES.get((self.shape[0], self.itemsize))
        if found is None:
            raise UnsupportedError(
                f"{self.name} images of {self.shape[0]} channels of {8 * self.itemsize} bits are "
                f"not supported"
            )
        return found

    @property
    def image_format(self) -> str | None:
        """JPEG of one channel: its pixels lie as the elements of a chunk do."""
        is_plain = self.name == "jpeg" and (self.shape[0], self.itemsize) == (1, 1)
        return self.name if is_plain else None

    @property
    def device_outputs(self) -> int:
        """Return 2: the library has memory of its own for the decoded elements."""
        return 2

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return a bound for incompressible pixels, with room for headers and comments."""
        return 4 * decoded_nbytes + (1 << 20)

    def encode(self, decoded: Buffer) -> Buffer:
        """Encode an image with a row for each y and z."""
        channels, z, y, x = self.shape
        planar = np.frombuffer(decoded, self._dtype).reshape(self.shape)
        pixels = np.ascontiguousarray(np.moveaxis(planar, 0, -1)).reshape(z * y, x, channels)
        if channels > 1 and self.itemsize == 2:
            return png_of_16_bits.encoded(pixels, self.level)
        mode = "I;16" if self.itemsize == 2 else self._mode
        image = pillow().frombytes(mode, (x, z * y), pixels.tobytes())
        options: dict[str, Any] = {}
        if self.level is not None:
            options = {"quality" if self.name == "jpeg" else "compress_level": self.level}
        stream = io.BytesIO()
        try:
            image.save(stream, self.name.upper(), **options)
        except (OSError, ValueError) as error:
            raise UnsupportedError(f"{self.name}: Pillow cannot write it: {error}") from error
        return stream.getvalue()

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode an image of as many pixels as the chunk has.

        Raises
        ------
        CorruptChunkError
            If it is none, or has another number of pixels or channels.
        """
        del exact  # Nothing else than a chunk is encoded so.
        channels, z, y, x = self.shape
        mode = self._mode
        try:
            with open_image(encoded, self.name) as image:
                stored = image.tile[0].args if self.name == "png" and image.tile else image.mode
                found = image.width, image.height, stored
                fits = found[0] * found[1] == x * y * z and stored == mode
                if fits and channels > 1 and self.itemsize == 2:
                    again = partial(open_image, encoded, self.name)
                    pixels = png_of_16_bits.decoded(again, channels)
                else:
                    pixels = np.frombuffer(image.tobytes() if fits else b"", self._dtype)
        except (CorruptChunkError, UnsupportedError):
            raise
        except DAMAGE as error:
            raise damaged(self.name, error) from error
        # Pillow does not look for the end of a PNG once it has all pixels.
        if self.name == "png" and bytes(encoded[-len(_PNG_END) :]) != _PNG_END:
            raise CorruptChunkError("png: the end of the image is missing", codec=self.name)
        if not fits:
            raise CorruptChunkError(
                f"Image of {found[0]} x {found[1]} pixels of mode {found[2]} for a chunk of shape "
                f"{[x, y, z, channels]}",
                codec=self.name,
            )
        planar = np.moveaxis(pixels.reshape(z, y, x, channels), -1, 0)
        whole = memoryview(bytearray(decoded_max)) if out is None else out[:decoded_max]
        np.frombuffer(whole, self._dtype).reshape(self.shape)[...] = planar
        return whole

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the decoding of images whose headers are plainly right; the others fall back."""
        del decoded_max, exact  # The shape says it.
        decode_images(commands, device, self.name, self._header)

    def _header(self, encoded: Buffer) -> PlainImage | str:
        """Return what a device has to know of an image, or why the host decodes it."""
        with open_image(encoded, self.name) as image:
            if image.width * image.height != math.prod(self.shape) or image.mode != self._mode:
                return f"{self.name}: another shape"
            return plain_image(image, encoded, self.name)
