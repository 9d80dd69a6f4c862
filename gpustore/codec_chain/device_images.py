"""Steps on a device that decode images by its library, and what is left to the host.

A library for a device and the host's need not agree about what is damaged or unusual: nvImageCodec
gives elements for a TIFF of LZW or deflate with a wrong bit. So the device decodes images that are
plainly right and of common forms alone, TIFF only where damage is seen by checksums, or is none but
to the elements themselves; the host decodes the others, or says what is wrong. Headers are those
that Pillow has read.

Sources: ISO/IEC 10918-1 (JPEG), TIFF 6.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.device_streams import destinations
from gpustore.device.command_list import CommandList
from gpustore.device.image_batch import ImageBatch
from gpustore.device.protocol import Device, Spans, Stream
from gpustore.errors import GpustoreError
from gpustore.runtime.buffer import Buffer

CHANNELS: Final = {"L": 1, "RGB": 3}
"""Channels of the images that a device decodes, by Pillow's name of their pixels."""

_MARKER: Final = re.compile(rb"\xff[^\x00\xd0-\xd7]")
_END_OF_IMAGE: Final = 0xD9
_LUMA: Final = ((1, 1), (2, 1), (1, 2), (2, 2))

_NONE: Final = 1
_DEFLATE: Final = (8, 32946)
_GRAY, _RGB = 1, 2


class PlainImage(NamedTuple):
    """Image that a device may decode.

    Attributes
    ----------
    shape : tuple of int
        Height, width and channels.
    parts : sequence of (int, int)
        Bytes and Adler-32 of consecutive parts of the elements, if the file has checksums.
    """

    shape: tuple[int, int, int]
    parts: Sequence[tuple[int, int]] = ()


def plain_image(image: Any, encoded: Buffer, name: str) -> PlainImage | str:
    """Return what a device has to know of an image, or why the host decodes it.

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
    if reason is not None:
        return f"{name}: {reason}"
    shape = image.height, image.width, CHANNELS[image.mode]
    return PlainImage(shape, () if name == "jpeg" else _checksums(image.tag_v2, encoded))


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
    compression = tags.get(259, _NONE)
    if compression not in (_NONE, *_DEFLATE):
        return f"compression {compression}, which has no checksums"
    channels = tags.get(277, 1)
    if tags.get(262) != {1: _GRAY, 3: _RGB}.get(channels) or 338 in tags:
        return "colours other than gray that grows brighter, and RGB"
    if {*tags.get(258, (1,))} != {8} or {*tags.get(339, (1,))} != {1}:
        return "elements other than uint8"
    if any(tags.get(tag, 1) != 1 for tag in (266, 274, 284)):
        return "unusual order of bits, rows or channels"
    if compression in _DEFLATE and (tags.get(317, 1) != 1 or 322 in tags):
        return "checksums of other bytes than those of rows"
    if 322 in tags:
        starts, sizes = tags.get(324, ()), tags.get(325, ())
    else:
        starts, sizes = tags.get(273, ()), tags.get(279, ())
    expected = _part_sizes(tags)
    if not len(starts) == len(sizes) == len(expected):
        return f"{len(starts)} strips or tiles instead of {len(expected)}"
    if compression == _NONE and [*sizes] != expected:
        return "strips or tiles of another size than their elements"
    if any(start + size > len(encoded) for start, size in zip(starts, sizes)):
        return "strips or tiles beyond the end of the file"
    return None


def _part_sizes(tags: Any) -> list[int]:
    """Return the bytes of the elements of each strip or tile."""
    width, height, channels = tags[256], tags[257], tags.get(277, 1)
    if 322 in tags:
        across, down = max(1, tags[322]), max(1, tags[323])
        return [across * down * channels] * (-(-width // across) * -(-height // down))
    rows = max(1, min(height, tags.get(278, height)))
    return [min(rows, height - row) * width * channels for row in range(0, height, rows)]


def _checksums(tags: Any, encoded: Buffer) -> list[tuple[int, int]]:
    """Return bytes and Adler-32 of each strip of deflate, which ends with it."""
    if tags.get(259, _NONE) not in _DEFLATE:
        return []
    ends = (start + size for start, size in zip(tags[273], tags[279]))
    found = [int.from_bytes(encoded[max(0, end - 4) : end], "big") for end in ends]
    return [*zip(_part_sizes(tags), found)]


def decode_images(
    commands: CommandList,
    device: Device,
    name: str,
    header: Callable[[Buffer], PlainImage | str],
    page: int = 0,
) -> None:
    """Record that all values, images in host memory, are decoded; the others fall back.

    Parameters
    ----------
    name : str
        Format.
    header : callable
        Returns what :func:`plain_image` does of a file; all have as many channels. Its
        GpustoreError is a reason for the host too, which then raises it.
    page : int
        Number of the image in its file.
    """
    encoded = commands.encoded
    if encoded is None:
        reason = f"{name}: its bytes are not in host memory"
        commands.fall_back(dict.fromkeys(range(len(commands)), reason))
        return
    plain: list[PlainImage] = []
    reasons: dict[int, str] = {}
    for i in range(len(encoded)):
        try:
            found = header(encoded[i])
        except GpustoreError as error:
            found = error.text
        if isinstance(found, str):
            reasons[i] = found
        else:
            plain.append(found)
    commands.fall_back(reasons)
    if not plain:
        return
    shapes = [image.shape for image in plain]
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
    _compare_checksums(commands, dst, plain)
    commands.values, commands.encoded = dst, None


def _compare_checksums(commands: CommandList, dst: Spans, plain: Sequence[PlainImage]) -> None:
    """Record the comparison of the parts of all images with their checksums."""
    counts = [len(image.parts) for image in plain]
    parts = [part for image in plain for part in image.parts]
    if not parts:
        return
    nbytes, expected = np.array(parts, np.int64).T
    ends = np.cumsum(nbytes)
    first = np.cumsum(counts) - counts
    # From the first part of the same image on.
    before = (ends - nbytes) - np.repeat((ends - nbytes)[np.minimum(first, len(ends) - 1)], counts)
    address = np.repeat(dst.address, counts) + before.astype(np.uint64)
    rows = np.repeat(commands.rows, counts)
    spans = Spans(address, nbytes.astype(np.uint64))
    commands.checksum("adler32", spans, expected.astype(np.uint32), rows)
