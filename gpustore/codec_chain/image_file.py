"""Files of images, by Pillow (extra ``image``): one chunk of height x width x channels.

The header tells the size; a limit is checked before memory is taken for the pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from gpustore.codec_chain.base import BytesCodec, deliver
from gpustore.codec_chain.device_images import CHANNELS, PlainImage, decode_images, plain_image
from gpustore.codec_chain.image_chunk import DAMAGE, damaged, open_image
from gpustore.device.command_list import CommandList
from gpustore.device.image_decoders import FORMATS
from gpustore.device.protocol import Device
from gpustore.errors import CorruptChunkError, GpustoreError, UnsupportedError
from gpustore.runtime.buffer import Buffer

_CHANNELS: Final = {"L": 1, "P": 1, "LA": 2, "RGB": 3, "RGBA": 4}
_PALETTES: Final = ("png", "bmp")
"""Formats whose indices into a palette are the elements, as in TensorStore."""

MAX_FILE_NBYTES: Final = 1 << 30
"""Longest file of an image, in bytes."""


def shape_of(encoded: Buffer, name: str, page: int | None) -> tuple[int, int, int]:
    """Return height, width and channels of an image, from its header.

    Raises
    ------
    CorruptChunkError
        If it is none, or has several pages and `page` is None.
    UnsupportedError
        If its elements are not of 8 bits.
    """
    with _opened(encoded, name, page) as image:
        return _shape(image, name)


def _shape(image: Any, name: str) -> tuple[int, int, int]:
    channels = _CHANNELS.get(image.mode)
    if channels is None or (image.mode == "P" and name not in _PALETTES):
        raise UnsupportedError(
            f'"{name}" driver only supports uint8 images, not those of mode {image.mode}'
        )
    return image.height, image.width, channels


@contextmanager
def _opened(encoded: Buffer, name: str, page: int | None) -> Iterator[Any]:
    """Open an image at a page; what Pillow raises about it is a CorruptChunkError."""
    image = open_image(encoded, name)
    try:
        pages = getattr(image, "n_frames", 1) if name == "tiff" else 1
        if page is not None:
            image.seek(page)
        if page is None and pages > 1:
            raise CorruptChunkError(
                f'Multi-page TIFF image encountered without a "page" specifier: it has {pages}',
                codec=name,
            )
        yield image
    except GpustoreError:
        raise
    except DAMAGE as error:
        raise damaged(name, error) from error
    finally:
        image.close()


@dataclass(frozen=True, slots=True)
class ImageFile(BytesCodec):
    """Codec of a whole image, which is only read.

    Attributes
    ----------
    name : str
        Format, as Pillow names it in lower case.
    shape : tuple of int
        Height, width, channels.
    page : int or None
        Number of the page of a TIFF file.
    file_nbytes : int
        Length of the file when it was opened.
    """

    decode_ns = 8.0

    name: str
    shape: tuple[int, int, int]
    page: int | None
    file_nbytes: int

    @property
    def image_format(self) -> str | None:
        """Format, if a device may decode images of so many channels."""
        is_plain = self.name in FORMATS and self.shape[2] in CHANNELS.values()
        return self.name if is_plain else None

    @property
    def device_outputs(self) -> int:
        """Return 2: the library has memory of its own for the decoded elements."""
        return 2

    def encoded_bound(self, decoded_nbytes: int) -> int:
        """Return the length of the longest file that is read, in bytes."""
        return max(MAX_FILE_NBYTES, decoded_nbytes)

    def staged_bound(self, decoded_nbytes: int) -> int:
        """Return the length of the file, in bytes, or of another that takes its place."""
        return max(self.file_nbytes, decoded_nbytes)

    def encode(self, decoded: Buffer) -> Buffer:
        """Raise UnsupportedError: images are not written."""
        raise UnsupportedError(f'"{self.name}" driver does not support writing')

    def decode(
        self, encoded: Buffer, decoded_max: int, *, exact: bool, out: memoryview | None = None
    ) -> Buffer:
        """Decode the image, which must still have its shape."""
        with _opened(encoded, self.name, self.page) as image:
            found = _shape(image, self.name)
            elements = image.tobytes() if found == self.shape else b""
        if len(elements) != math.prod(self.shape):
            raise CorruptChunkError(
                f"Image of shape {list(found)}, opened as one of {list(self.shape)}",
                codec=self.name,
            )
        return deliver(elements, decoded_max, exact=exact, out=out)

    def decode_device(
        self, commands: CommandList, device: Device, decoded_max: int, *, exact: bool
    ) -> None:
        """Record the decoding of images whose headers are plainly right; the others fall back."""
        del decoded_max, exact  # The shape says it.
        decode_images(commands, device, self.name, self._header, self.page or 0)

    def _header(self, encoded: Buffer) -> PlainImage | str:
        """Return what a device has to know of a file, or why the host decodes it."""
        with _opened(encoded, self.name, self.page) as image:
            if _shape(image, self.name) != self.shape:
                return f"{self.name}: another shape"
            return plain_image(image, encoded, self.name)
