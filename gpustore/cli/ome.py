"""OME-Zarr images as commands show them: in a line, as facts, and in the colours of their channels.

Attributes come from files of others: what is not as the specification has it is no image here.

Source: OME-NGFF 0.4, 0.5 and 0.6, "multiscales" and "omero" metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import gpustore
from gpustore.cli.picture import contrast_of, numbers_of
from gpustore.display.text import format_nbytes, format_shape
from gpustore.ome.image import Image
from gpustore.ome.multiscale import Multiscale, multiscale, ome_of

if TYPE_CHECKING:
    from gpustore.cli.picture import Pixels


def find_image(attributes: Mapping[str, Any]) -> Multiscale | None:
    """Return the first image that the attributes of a group describe, None if there is none."""
    try:
        version, ome = ome_of(attributes, "attributes: ")
        return multiscale(ome, version, "attributes: ") if "multiscales" in ome else None
    except gpustore.GpustoreError:
        return None


def line_of(image: Multiscale) -> str:
    """Describe an image in one line.

    >>> axes = [{"name": name, "type": "space"} for name in "yx"]
    >>> one = {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 2]}]}
    >>> line_of(find_image({"multiscales": [{"axes": axes, "datasets": [one]}]}))
    'OME-Zarr 0.4, axes yx, 1 level'
    """
    names = [axis.name for axis in image.axes]
    joined = "".join(names) if all(len(name) == 1 for name in names) else " ".join(names)
    count = len(image.levels)
    return f"OME-Zarr {image.version}, axes {joined}, {count} level{'s' * (count != 1)}"


def scale_text(image: Multiscale, path: str) -> str:
    """Format the scale of a level, without axes that have neither unit nor step."""
    parts = [
        f"{axis.name} {step:g} {axis.unit.symbol if axis.unit else ''}".rstrip()
        for axis, step in zip(image.axes, image.levels[path].scale, strict=True)
        if axis.unit or step != 1
    ]
    return ", ".join(parts) or "1 along each axis"


def facts_of(group: gpustore.Group) -> list[tuple[str, str]]:
    """Return levels, channels and label images of an image; nothing is listed.

    Raises
    ------
    GpustoreError
        If a member is not as the specification has it.
    """
    image = Image.of_group(group)
    found = find_image(group.attrs)
    assert found is not None  # Image.of_group has parsed the same.
    facts = []
    for level in image.levels:
        try:
            store = level.store
        except gpustore.GpustoreError as error:  # The others are shown all the same.
            facts.append((f"level {level.path}", str(error)))
            continue
        facts.append(
            (
                f"level {level.path}",
                f"{format_shape(store.shape)} {store.dtype.name}, "
                f"{scale_text(found, level.path)}, {format_nbytes(store.nbytes)}",
            )
        )
    if any(image.channels):
        facts.append(("channels", ", ".join(image.channels)))
    if len(image.labels):
        facts.append(("labels", ", ".join(image.labels)))
    return facts


def composed(
    group: gpustore.Group, planes: Sequence[np.ndarray[Any, Any]]
) -> tuple[Pixels, str] | None:
    """Return the planes of all channels in their colours, and what is shown.

    Parameters
    ----------
    group : Group
        Group of an image.
    planes : sequence of ndarray
        Plane of each channel.

    Returns
    -------
    pixels : ndarray of uint8, shape (height, width, 3)
        Each channel from the start of its window, black, to the end, its full colour; channels
        that are not active are left out if there is an active one, all are added.
    text : str
        Names, colours and windows.
    None
        If the image states no colours of so many channels.
    """
    omero = Image.of_group(group).omero
    if omero is None or len(omero.channels) != len(planes):
        return None
    channels = omero.channels
    if any(channel.color is None for channel in channels):
        return None
    some = any(channel.active for channel in channels)
    total = np.zeros((*planes[0].shape, 3))
    shown = []
    for channel, plane in zip(channels, planes, strict=True):
        if not channel.active and some:
            continue
        numbers = numbers_of(plane)
        window = channel.window
        start, end = contrast_of(numbers) if window is None else (window.start, window.end)
        if not start < end:
            start, end = contrast_of(numbers)
        share = np.nan_to_num(((numbers - start) / (end - start)).clip(0, 1))
        color = channel.color or "FFFFFF"
        rgb = [int(color[at : at + 2], 16) for at in (0, 2, 4)]
        total += share[..., None] * rgb
        shown.append(f"{channel.name or 'channel'} #{color} {start:g} to {end:g}")
    pixels: Pixels = (total.clip(0, 255) + 0.5).astype(np.uint8)
    return pixels, ", ".join(shown)
