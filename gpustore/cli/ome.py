"""OME-Zarr images as commands show them: in a line, and as facts.

Attributes come from files of others: what is not as the specification has it is no image here.

Source: OME-NGFF 0.4, 0.5 and 0.6, "multiscales" and "omero" metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gpustore
from gpustore.display.text import format_nbytes, format_shape
from gpustore.ome.image import Image
from gpustore.ome.multiscale import Multiscale, multiscale, ome_of


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
