"""Steps on a device that decode images by its library, and what is left to the host.

A library for a device and the host's need not agree about what is damaged or unusual. So the device
decodes images that are plainly right and of common forms alone; the host decodes the others, or
says what is wrong. Headers are those that Pillow has read.

Sources: ISO/IEC 10918-1 (JPEG), TIFF 6.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.device_streams import destinations
from gpustore.device.command_list import CommandList
from gpustore.device.image_batch import ImageBatch
from gpustore.device.protocol import Device, Stream
from gpustore.errors import GpustoreError
from gpustore.runtime.buffer import Buffer

CHANNELS: Final = {"L": 1, "RGB": 3}
"""Channels of the images that a device decodes, by Pillow's name of their pixels."""

_MARKER: Final = re.compile(rb"\xff[^\x00\xd0-\xd7]")
_END_OF_IMAGE: Final = 0xD9
_LUMA: Final = ((1, 1), (2, 1), (1, 2), (2, 2))

_COMPRESSIONS: Final = {1: "none", 5: "LZW", 8: "deflate", 32946: "deflate"}
_GRAY, _RGB = 1, 2


def odd_reason(image: Any, encoded: Buffer, name: str) -> str | None:
    """Return why the host decodes an image, None if a device may.

    Parameters
    ----------
    image : PIL.Image.Image
        The image, of which only the header was read.
    encoded : buffer
        The whole file.
    name : str
        Format.
    """
    if image.mode not in CHANNELS:
        return f"{name}: pixels of mode {image.mode}"
    reason = _odd_jpeg(image, encoded) if name == "jpeg" else _odd_tiff(image.tag_v2, encoded)
    return None if reason is None else f"{name}: {reason}"


def _odd_jpeg(image: Any, encoded: Buffer) -> str | None:
    if image.info.get("progression"):
        return "progressive"
    if image.bits != 8 or image.layers != CHANNELS[image.mode]:
        return "other components than gray or YCbCr of 8 bits"
    if image.info.get("adobe_transform", 1) != 1:
        return "colours that are not transformed"
    numbers, *sizes = zip(*[(number, (h, v)) for number, h, v, _ in image.layer])
    luma, *chroma = sizes[0]
    if image.layers == 3 and (numbers != (1, 2, 3) or luma not in _LUMA):
        return "unusual components"
    if any(size != (1, 1) for size in (chroma or [luma])):
        return "unusual sampling of components"
    # Behind the header comes one scan, and then the end; anything else may be damage.
    marker = _MARKER.search(encoded, image.fp.tell())
    if marker is None or marker.start() != len(encoded) - 2 or encoded[-1] != _END_OF_IMAGE:
        return "more than one scan, or no plain end"
    return None


def _odd_tiff(tags: Any, encoded: Buffer) -> str | None:
    if tags.get(259, 1) not in _COMPRESSIONS:
        return f"compression {tags[259]}"
    channels = tags.get(277, 1)
    if tags.get(262) != {1: _GRAY, 3: _RGB}.get(channels) or 338 in tags:
        return "colours other than gray that grows brighter, and RGB"
    if {*tags.get(258, (1,))} != {8} or {*tags.get(339, (1,))} != {1}:
        return "elements other than uint8"
    if any(tags.get(tag, 1) != 1 for tag in (266, 274, 284)):
        return "unusual order of bits, rows or channels"
    if tags.get(317, 1) not in (1, 2):
        return f"predictor {tags[317]}"
    width, height = tags[256], tags[257]
    if 322 in tags:
        parts = -(-width // tags[322]) * -(-height // tags[323])
        starts, sizes = tags.get(324, ()), tags.get(325, ())
    else:
        parts = -(-height // max(1, min(height, tags.get(278, height))))
        starts, sizes = tags.get(273, ()), tags.get(279, ())
    if not len(starts) == len(sizes) == parts:
        return f"{len(starts)} strips or tiles instead of {parts}"
    if any(start + size > len(encoded) for start, size in zip(starts, sizes)):
        return "strips or tiles beyond the end of the file"
    return None


def decode_images(
    commands: CommandList,
    device: Device,
    name: str,
    header: Callable[[Buffer], tuple[int, int, int] | str],
    page: int = 0,
) -> None:
    """Record that all values, images in host memory, are decoded; the others fall back.

    Parameters
    ----------
    name : str
        Format.
    header : callable
        Returns height, width and channels of a file that a device may decode, the same channels for
        all, or why it may not. Its GpustoreError is a reason too: the host then raises it.
    page : int
        Number of the image in its file.
    """
    encoded = commands.encoded
    if encoded is None:
        reason = f"{name}: its bytes are not in host memory"
        commands.fall_back(dict.fromkeys(range(len(commands)), reason))
        return
    shapes: list[tuple[int, int, int]] = []
    reasons: dict[int, str] = {}
    for i in range(len(encoded)):
        try:
            found = header(encoded[i])
        except GpustoreError as error:
            found = error.text
        if isinstance(found, str):
            reasons[i] = found
        else:
            shapes.append(found)
    commands.fall_back(reasons)
    if not shapes:
        return
    assert commands.encoded is not None
    files = [commands.encoded[i] for i in range(len(commands))]
    nbytes = np.array([math.prod(shape) for shape in shapes], np.int64)
    owners = commands.rows
    dst = destinations(commands, nbytes, owners)

    def check(found: NDArray[np.uint8]) -> Iterator[tuple[int, str]]:
        for i in found.view(np.int32).nonzero()[0].tolist():
            yield int(owners[i]), f"{name}: the library of the device does not decode it"

    result = commands.result(4 * len(owners), check)

    def step(stream: Stream, tables: int, results: int) -> None:
        del tables
        at = results + result.offset
        device.decode_images(ImageBatch(name, files, shapes, page, dst.address, at), stream)

    commands.record(step)
    commands.values, commands.encoded = dst, None
