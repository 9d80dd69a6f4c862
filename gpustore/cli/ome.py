"""OME-Zarr as commands show it: images, plates, wells and collections, in a line and as facts.

Attributes come from files of others: what is not as the specification has it is no image here.

Source: OME-NGFF 0.4, 0.5 and 0.6, "multiscales", "omero", "plate" and "well" metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from contextlib import suppress
from typing import Any, Final

import gpustore
from gpustore.display.text import format_nbytes, format_shape
from gpustore.ome.collection import Collection
from gpustore.ome.image import Image
from gpustore.ome.multiscale import Multiscale, multiscale, ome_of
from gpustore.ome.plate import Images, Plate, Well

_SOME: Final = 8
"""Wells that are named."""


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
    return f"OME-Zarr {image.version}, axes {joined}, {_counted(image.levels, 'level')}"


def scale_text(image: Multiscale, path: str) -> str:
    """Format the scale of a level, without axes that have neither unit nor step."""
    parts = [
        f"{axis.name} {step:g} {axis.unit.symbol if axis.unit else ''}".rstrip()
        for axis, step in zip(image.axes, image.levels[path].scale, strict=True)
        if axis.unit or step != 1
    ]
    return ", ".join(parts) or "1 along each axis"


def facts_of(group: gpustore.Group) -> list[tuple[str, str]]:
    """Return what the metadata of OME-Zarr say of a group; nothing is listed.

    Returns
    -------
    list of (str, str)
        First the kind, ``"image"``, ``"plate"``, ``"well"`` or ``"collection"``, with a line about
        it. Empty if the group is none of these, or not as the specification has it.

    Raises
    ------
    GpustoreError
        If a member of an image is not as the specification has it.
    """
    image = find_image(group.attrs)
    if image is not None:
        return [("image", line_of(image)), *_image_facts(group, image)]
    with suppress(gpustore.GpustoreError):
        _, members = ome_of(group.attrs, "attributes: ")
        if "plate" in members:
            return _plate_facts(Plate(group))
        if "well" in members:
            well = Well(group)
            found = _counted(well.fields.paths, "field")
            return [("well", f"OME-Zarr {well.version}, {found}"), *_first(well.fields)]
        if "bioformats2raw.layout" in members:
            images = Collection(group).images
            line = f"OME-Zarr, converted by bioformats2raw, {_counted(images.paths, 'image')}"
            return [("collection", line), *_first(images)]
    return []


def _plate_facts(plate: Plate) -> list[tuple[str, str]]:
    rows, columns = _counted(plate.rows, "row"), _counted(plate.columns, "column")
    facts = [("plate", f"OME-Zarr {plate.version}, {rows}, {columns}")]
    if plate.name:
        facts.append(("name", plate.name))
    if plate.acquisitions:
        names = [one.name or str(one.id) for one in plate.acquisitions]
        facts.append(("acquisitions", ", ".join(names)))
    paths = list(plate.wells)
    some = ", ".join(paths[:_SOME]) + ", ..." * (len(paths) > _SOME)
    facts.append(("wells", f"{len(paths)}: {some}" if paths else "none"))
    return facts + (_first(plate.wells[paths[0]].fields, f"{paths[0]}/") if paths else [])


def _first(images: Images, before: str = "") -> list[tuple[str, str]]:
    """Describe the first of some images, which tend to be alike."""
    if not images:
        return []
    with suppress(gpustore.GpustoreError):
        image = images[0]
        found = find_image(image.group.attrs)
        assert found is not None  # The image has parsed the same.
        level = image.levels[0]
        line = f"{before}{images.paths[0]}: {format_shape(level.shape)} {level.dtype.name}, "
        line += f"{scale_text(found, level.path)}, {_counted(image.levels, 'level')}"
        facts = [("first image", line)]
        if any(image.channels):
            facts.append(("channels", ", ".join(image.channels)))
        return facts
    return []


def _counted(some: Sized, one: str) -> str:
    """Return a number of things in words.

    >>> _counted("ab", "row"), _counted("a", "row")
    ('2 rows', '1 row')
    """
    return f"{len(some)} {one}{'s' * (len(some) != 1)}"


def _image_facts(group: gpustore.Group, found: Multiscale) -> list[tuple[str, str]]:
    """Return levels, channels and label images."""
    image = Image.of_group(group)
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
