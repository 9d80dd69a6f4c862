"""Check of OME-Zarr groups: :func:`validate`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import gpustore
from gpustore.ome.collection import Collection
from gpustore.ome.image import Image
from gpustore.ome.members import place_of
from gpustore.ome.multiscale import in_order, ome_of
from gpustore.ome.plate import Plate, Well
from gpustore.ome.rules import Problem
from gpustore.ome.schemas import KINDS, rule_of


def validate(
    url: str | os.PathLike[str] | Mapping[str, Any] | gpustore.Group,
    *,
    context: gpustore.Context | Mapping[str, Any] | None = None,
) -> list[Problem]:
    """Check a group of OME-Zarr and all that it names: levels, label images, wells and fields.

    Parameters
    ----------
    url : str, os.PathLike, dict or Group
        Place of an image, a label image, a plate, a well or a collection.
    context : Context or dict, optional
        Shared caches, thread pools and limits.

    Returns
    -------
    list of Problem
        Empty if all is as the specification has it. Problems that the published schemas have too
        are marked; the others are those of the specification's text, and of members that are not
        stored or do not fit each other. Elements are not read: ``gpustore verify`` does that.

    Raises
    ------
    NotFoundError
        If there is no group.

    Examples
    --------
    >>> from gpustore import ome
    >>> context = gpustore.Context()
    >>> image = ome.create(
    ...     "memory://good/", shape=(8, 8), dtype="uint8", axes="yx", context=context
    ... )
    >>> validate("memory://good/", context=context)
    []
    """
    group = url
    if not isinstance(group, gpustore.Group):
        group = gpustore.open_group(url, context=context).result()
    return list(_group(group))


def _group(group: gpustore.Group) -> Iterator[Problem]:
    """Yield the problems of a group and of what it names."""
    where = f"{place_of(group)}: "
    attributes = group.attrs.asdict()
    try:
        version, ome = ome_of(attributes, where)
    except gpustore.GpustoreError as error:
        yield _problem(group, error, is_of_schema=True)
        return
    kinds = [schema for member, schema in KINDS.items() if member in ome]
    if not kinds:
        yield Problem(where.rstrip(": "), "expected an image, a plate, a well or a collection")
        return
    found: list[Problem] = []
    for kind in kinds:
        rule_of(kind, version)(attributes, where, found)
    yield from found
    if version == "0.4" and group.zarr_format == 3:
        yield _stored(group, "expected Zarr v2 for OME-Zarr 0.4, found v3")
    if found:
        return  # What is named by members that are wrong is not looked for.
    try:
        if "plate" in kinds:
            yield from _plate(Plate(group))
        elif "well" in kinds:
            yield from _well(Well(group))
        elif "image" in kinds:
            yield from _image(Image.of_group(group))
        elif "bf2raw" in kinds:
            yield from _collection(group)
    except gpustore.GpustoreError as error:
        yield _problem(group, error)


def _image(image: Image) -> Iterator[Problem]:
    group = image.group
    if image.version != "0.6" and not in_order(image.all_axes):
        shown = ", ".join(image.axes)
        yield _stored(group, f"axes: expected time, then channels, then space, found {shown}")
    above = None
    for level in image.levels:
        try:
            store = level.store
        except gpustore.GpustoreError as error:
            yield _problem(group, error)
            continue
        if store.dtype != image.level(0).dtype:
            yield _stored(
                group,
                f"level {level.path}: expected {image.level(0).dtype.name} as in level "
                f"{image.level(0).path}, found {store.dtype.name}",
            )
        labels = group[level.path].domain.labels
        if image.version != "0.4" and tuple(labels) != image.axes:
            yield _stored(
                group,
                f"level {level.path}: expected dimension_names {list(image.axes)}, found "
                f"{list(labels)}",
            )
        if above is not None and any(n > m for n, m in zip(store.shape, above.shape, strict=True)):
            yield _stored(
                group,
                f"level {level.path}: expected no more elements along any axis than in level "
                f"{above.path}, found {store.shape} after {above.shape}",
            )
        above = level
    if image.omero is not None and above is not None:
        counts = [
            n
            for axis, n in zip(image.all_axes, image.level(0).shape, strict=True)
            if axis.type == "channel"
        ]
        if counts and counts[0] != len(image.omero.channels):
            yield _stored(
                group, f"omero.channels: expected {counts[0]}, found {len(image.omero.channels)}"
            )
    for name in image.labels:
        try:
            label = image.labels[name]
        except gpustore.GpustoreError as error:
            yield _problem(group, error)
            continue
        yield from _group(label.group)
        try:
            kind = label.level(0).dtype.array_dtype.kind
        except gpustore.GpustoreError:
            continue  # Said above.
        if kind not in "iu":
            yield _stored(label.group, f"expected integers, found {label.level(0).dtype.name}")


def _plate(plate: Plate) -> Iterator[Problem]:
    for number, one in enumerate(plate.json["wells"]):
        row, column = one["rowIndex"], one["columnIndex"]
        if row >= len(plate.rows) or column >= len(plate.columns):
            found = f"rowIndex {row}, columnIndex {column}"
        else:
            found = f"{plate.rows[int(row)]}/{plate.columns[int(column)]}"
        if found != one["path"]:
            text = f"plate.wells[{number}]: the path is {one['path']!r}, the indices say {found}"
            yield _stored(plate.group, text)
    for path in plate.wells:
        try:
            well = plate.wells[path]
        except gpustore.GpustoreError as error:
            yield _problem(plate.group, error)
            continue
        yield from _group(well.group)


def _well(well: Well) -> Iterator[Problem]:
    for number in range(len(well.fields)):
        try:
            field = well.fields[number]
        except gpustore.GpustoreError as error:
            yield _problem(well.group, error)
            continue
        yield from _group(field.group)


def _collection(group: gpustore.Group) -> Iterator[Problem]:
    found = Collection(group)
    if not len(found.images):
        yield _stored(group, "expected images, found none")
    for number in range(len(found.images)):
        try:
            image = found.images[number]
        except gpustore.GpustoreError as error:
            yield _problem(group, error)
            continue
        yield from _group(image.group)


def _stored(group: gpustore.Group, text: str) -> Problem:
    return Problem(place_of(group), text, is_of_schema=False)


def _problem(
    group: gpustore.Group, error: gpustore.GpustoreError, *, is_of_schema: bool = False
) -> Problem:
    return Problem(place_of(group), error.text.removeprefix(f"{place_of(group)}: "), is_of_schema)
