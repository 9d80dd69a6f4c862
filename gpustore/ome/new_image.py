"""Properties and documents of new images: :func:`new_image` and :class:`NewDocuments`."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

import numpy as np

import gpustore
from gpustore.ome.attributes import image_attributes
from gpustore.ome.channels import Channel
from gpustore.ome.channels import omero as check_omero
from gpustore.ome.layout import (
    axes_of,
    coarser,
    default_chunks,
    default_codec,
    inside_shards,
    level_factors,
    numbers_of,
)
from gpustore.ome.members import place_of
from gpustore.ome.multiscale import Axis, multiscale, ome_of
from gpustore.ome.transforms import AxisTransform

_COLORS_OF_NAMES: Final = {"red": "FF0000", "green": "00FF00", "blue": "0000FF"}
_COLORS: Final = ("0000FF", "00FF00", "FF0000", "FF00FF", "00FFFF", "FFFF00")
FORMATS: Final = {"0.4": 2, "0.5": 3, "0.6": 3}
"""Version of Zarr by version of OME-Zarr."""

_ABSENT: Final = b"\x02"
"""Condition of a write: nothing is stored under the key."""


@dataclass(frozen=True)
class NewImage:
    """Properties of a new image, checked.

    Attributes
    ----------
    shape : tuple of int
        Shape of the finest level.
    dtype : gpustore.dtype
    axes : tuple of Axis
    transform : AxisTransform
        From indices of the finest level to coordinates.
    factors : list of tuple of int
        By how much each further level is smaller than the one above.
    version : str
    name : str
    omero : dict or None
        Rendering settings.
    arrays : dict
        Arguments of ``create_array`` of all levels, chunks included.
    """

    shape: tuple[int, ...]
    dtype: Any
    axes: tuple[Axis, ...]
    transform: AxisTransform
    factors: Sequence[tuple[int, ...]]
    version: str
    name: str
    omero: Mapping[str, Any] | None
    arrays: Mapping[str, Any]

    @property
    def level_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of all levels."""
        shapes = [self.shape]
        for factors in self.factors:
            shapes.append(tuple(-(-n // f) for n, f in zip(shapes[-1], factors, strict=True)))
        return shapes

    @property
    def transforms(self) -> list[AxisTransform]:
        """From indices to coordinates, of all levels."""
        found = [self.transform]
        for factors in self.factors:
            found.append(coarser(found[-1], factors))
        return found


class ArrayProperties(TypedDict, total=False):
    """Properties of the arrays of a new image, as those of :func:`gpustore.open`."""

    chunks: Any
    shards: Any
    codec: Any


class ImageProperties(ArrayProperties, total=False):
    """Properties of a new image; see :func:`gpustore.ome.create`."""

    shape: Sequence[int] | None
    dtype: Any
    axes: str | Sequence[Any] | None
    scale: float | Sequence[float] | Mapping[str, float] | None
    translation: float | Sequence[float] | Mapping[str, float] | None
    units: str | Mapping[str, Any] | None
    channels: Sequence[str | Channel] | None
    name: str | None
    version: str | None
    levels: int | None
    fill_value: Any
    like: Any


def new_image(properties: Mapping[str, Any]) -> NewImage:
    """Return a new image of some :class:`ImageProperties`, checked."""
    check_names(properties, ImageProperties)
    get = properties.get
    shape, dtype, axes = get("shape"), get("dtype"), get("axes")
    scale, translation, channels = get("scale"), get("translation"), get("channels")
    name, version, like = get("name"), get("version"), get("like")
    levels, chunks, shards = get("levels", 1), get("chunks"), get("shards")
    if like is not None:
        finest = like.level(0)
        shape = finest.shape if shape is None else shape
        dtype = finest.dtype if dtype is None else dtype
        known = {axis.name: axis for axis in like.all_axes}
        axes = like.all_axes if axes is None else [_axis_like(one, known) for one in axes]
        shared = [one.name if isinstance(one, Axis) else one for one in axes]
        scale = _of_axes(finest.scale, shared) if scale is None else scale
        translation = _of_axes(finest.translation, shared) if translation is None else translation
        name = like.name if name is None else name
        version = like.version if version is None else version
        if chunks is None and shards is None and len(shape) == len(finest.shape):
            chunks = finest.chunks
    if shape is None or dtype is None or axes is None:
        needed = {"shape": shape, "dtype": dtype, "axes": axes}
        missing = [word for word, one in needed.items() if one is None]
        raise TypeError(f"expected {', '.join(missing)}, or an image that it is `like`")
    version = version or "0.5"
    if version not in FORMATS:
        raise gpustore.UnsupportedError(f"version: expected 0.4, 0.5 or 0.6, got {version!r}")
    if levels is not None and operator.index(levels) < 1:
        raise ValueError(f"levels: expected at least 1, got {levels}")
    described = axes_of(axes, get("units"))
    extents = tuple(operator.index(n) for n in shape)
    if len(extents) != len(described):
        names = ", ".join(axis.name for axis in described)
        raise ValueError(f"shape: expected {len(described)} extents for {names}, got {extents}")
    element = gpustore.dtype(dtype)
    steps = numbers_of(scale, described, 1.0, "scale")
    transform = AxisTransform(steps, numbers_of(translation, described, 0.0, "translation"))
    if chunks is None:
        chunks = default_chunks(extents, described, max(1, element.array_dtype.itemsize))
        if shards is not None:
            chunks = inside_shards(chunks, shards)
    if channels is None and like is not None and like.omero is not None:
        same = tuple(axis.name for axis in described) == like.axes
        if same and len(like.omero.channels) == _channel_count(described, extents):
            channels = like.omero.channels
    return NewImage(
        extents,
        element,
        described,
        transform,
        level_factors(extents, described, steps, levels),
        version,
        name or "",
        _omero(channels, described, extents, element.array_dtype),
        {
            "chunks": chunks,
            "shards": shards,
            "codec": get("codec", default_codec(element.array_dtype)),
            "fill_value": get("fill_value"),
        },
    )


def new_place(url: Any) -> Any:
    """Return the place of a new group; a file whose name ends in ``.ozx`` is a zip archive.

    >>> new_place("a.ozx"), new_place("a.zarr")
    ('a.ozx|zip:', 'a.zarr')
    """
    place = os.fspath(url) if isinstance(url, os.PathLike) else url
    return f"{place}|zip:" if isinstance(place, str) and place.endswith(".ozx") else place


def check_names(given: Mapping[str, Any], kind: Any) -> None:
    """Raise TypeError if a name is none of a TypedDict without required names."""
    unknown = given.keys() - kind.__optional_keys__
    if unknown:
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")


@dataclass(frozen=True)
class NewDocuments:
    """Documents of a new image, of which none is stored yet.

    Attributes
    ----------
    attributes : dict
        Attributes of its group.
    arrays : dict of str to bytes
        Documents of its arrays, by key below the group.
    """

    attributes: Mapping[str, Any]
    arrays: Mapping[str, bytes]

    @classmethod
    def of(cls, image: NewImage, **members: Any) -> NewDocuments:
        """Make the documents of an image, with other members of OME-Zarr that its group has.

        Raises
        ------
        GpustoreError, TypeError
            If properties do not fit each other.
        """
        paths = [str(number) for number in range(len(image.level_shapes))]
        where = "new image: "
        attributes = image_attributes(
            image.version,
            image.axes,
            dict(zip(paths, image.transforms, strict=True)),
            name=image.name,
            omero=image.omero,
            **members,
        )
        version, ome = ome_of(attributes, where)
        multiscale(ome, version, where)
        check_omero(ome, where)
        # A group in memory: nothing is made at the place, or deleted there, for what does not fit.
        trial = gpustore.open_group(
            "memory://",
            zarr_format=FORMATS[image.version],
            create=True,
            device="cpu",
            context=gpustore.Context(),
        ).result()
        making = [_make_level(trial, *one, image) for one in zip(paths, image.level_shapes)]
        for level in making:
            level.result()
        stored = trial.kvstore
        keys = [key.decode() for key in stored.list().result()]
        return cls(attributes, {key: stored[key] for key in keys if "/" in key})

    def store(self, groups: Sequence[gpustore.Group]) -> None:
        """Make an image of each of some new groups.

        Raises
        ------
        AlreadyExistsError
            If there is an array of a level already.
        """
        writing = [
            (group, key, group.kvstore.write(key, document, if_equal=_ABSENT))
            for group in groups
            for key, document in self.arrays.items()
        ]
        for group, key, write in writing:
            if not write.result().generation:
                raise gpustore.AlreadyExistsError(f"{place_of(group)}: {key} exists already")
        # A group is an image from the moment it has the attributes: arrays come first.
        changes = [group.attrs.update(self.attributes) for group in groups]
        for change in changes:
            change.result()


def _make_level(
    group: gpustore.Group, path: str, shape: Sequence[int], image: NewImage
) -> gpustore.Future[gpustore.TensorStore]:
    given = {name: value for name, value in image.arrays.items() if value is not None}
    chunks = given["chunks"]
    # A chunk beyond the array would be stored whole for nothing; shards are whole chunks.
    if "shards" not in given and np.shape(chunks) == (len(shape),) and min(chunks) > 0:
        given["chunks"] = tuple(min(c, max(1, n)) for c, n in zip(chunks, shape, strict=True))
    names = [axis.name for axis in image.axes] if FORMATS[image.version] == 3 else None
    if FORMATS[image.version] == 2:
        given["metadata"] = {"dimension_separator": "/"}
    return group.create_array(path, shape=shape, dtype=image.dtype, dims=names, **given)


def _axis_like(axis: Any, known: Mapping[str, Axis]) -> Any:
    """Return the axis of that name of another image, if only the name is given."""
    return known.get(axis, axis) if isinstance(axis, str) else axis


def _of_axes(values: Mapping[str, float], names: Sequence[Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if name in names}


def _channel_count(axes: Sequence[Axis], shape: Sequence[int]) -> int:
    return next((n for n, axis in zip(shape, axes, strict=True) if axis.type == "channel"), 1)


def _omero(
    channels: Sequence[str | Channel] | None,
    axes: Sequence[Axis],
    shape: Sequence[int],
    dtype: np.dtype[Any],
) -> dict[str, Any] | None:
    if channels is None:
        return None
    count = _channel_count(axes, shape)
    if isinstance(channels, str) or len(channels) != count:
        raise ValueError(f"channels: expected {count} names, got {channels!r}")
    lowest, highest = 0.0, 1.0
    if dtype.kind in "iu":
        lowest, highest = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    found = []
    for number, one in enumerate(channels):
        channel = one if isinstance(one, Channel) else Channel(str(one), None, None, True)
        window = channel.window
        bounds = (lowest, highest, lowest, highest)
        if window is not None:
            bounds = (window.start, window.end, window.min, window.max)
        white = "FFFFFF" if len(channels) == 1 else _COLORS[number % len(_COLORS)]
        color = channel.color or _COLORS_OF_NAMES.get(channel.name.lower(), white)
        found.append(
            {
                "label": channel.name,
                "color": color,
                "active": channel.active,
                "window": dict(zip(("start", "end", "min", "max"), bounds, strict=True)),
            }
        )
    return {"channels": found}
