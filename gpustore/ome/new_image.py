"""Groups and arrays of new images: :func:`make_image`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import gpustore
from gpustore.ome.attributes import image_attributes
from gpustore.ome.channels import Channel
from gpustore.ome.channels import omero as check_omero
from gpustore.ome.layout import (
    axes_of,
    coarser,
    default_chunks,
    inside_shards,
    level_factors,
    numbers_of,
)
from gpustore.ome.multiscale import Axis, multiscale, ome_of
from gpustore.ome.transforms import AxisTransform

_COLORS: Final = ("0000FF", "00FF00", "FF0000", "FF00FF", "00FFFF", "FFFF00")
FORMATS: Final = {"0.4": 2, "0.5": 3, "0.6": 3}
"""Version of Zarr by version of OME-Zarr."""


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


def new_image(
    *,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    axes: str | Sequence[Any] | None = None,
    scale: Any = None,
    translation: Any = None,
    units: Any = None,
    channels: Sequence[str | Channel] | None = None,
    name: str | None = None,
    version: str | None = None,
    levels: int | None = 1,
    chunks: Any = None,
    shards: Any = None,
    codec: Any = "zstd",
    fill_value: Any = None,
    like: Any = None,
) -> NewImage:
    """Return the properties of an image; see :func:`gpustore.ome.create`."""
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
        given = {"shape": shape, "dtype": dtype, "axes": axes}
        missing = [word for word, one in given.items() if one is None]
        raise TypeError(f"expected {', '.join(missing)}, or an image that it is `like`")
    version = version or "0.5"
    if version not in FORMATS:
        raise gpustore.UnsupportedError(f"version: expected 0.4, 0.5 or 0.6, got {version!r}")
    if levels is not None and operator.index(levels) < 1:
        raise ValueError(f"levels: expected at least 1, got {levels}")
    described = axes_of(axes, units)
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
        {"chunks": chunks, "shards": shards, "codec": codec, "fill_value": fill_value},
    )


def make_image(
    image: NewImage, make_group: Callable[[Mapping[str, Any]], gpustore.Group], **members: Any
) -> gpustore.Group:
    """Create the arrays of an image and then its attributes.

    Parameters
    ----------
    image : NewImage
    make_group : callable
        Creates the group with the attributes it gets.
    **members
        Other members of OME-Zarr that the group has.

    Returns
    -------
    Group
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
    # What does not fit is found in memory, before anything is made, or deleted to be replaced.
    trial = gpustore.open_group(
        "memory://",
        zarr_format=FORMATS[image.version],
        create=True,
        device="cpu",
        context=gpustore.Context(),
    ).result()
    _make_levels(trial, paths, image)
    # A group is an image from the moment it has the attributes: arrays come first.
    group = make_group({})
    _make_levels(group, paths, image)
    group.attrs.update(attributes).result()
    return group


def _make_levels(group: gpustore.Group, paths: Sequence[str], image: NewImage) -> None:
    for path, shape in zip(paths, image.level_shapes, strict=True):
        _make_level(group, path, shape, image)


def _make_level(group: gpustore.Group, path: str, shape: Sequence[int], image: NewImage) -> None:
    given = {name: value for name, value in image.arrays.items() if value is not None}
    chunks = given["chunks"]
    # A chunk beyond the array would be stored whole for nothing; shards are whole chunks.
    if "shards" not in given and np.shape(chunks) == (len(shape),) and min(chunks) > 0:
        given["chunks"] = tuple(min(c, max(1, n)) for c, n in zip(chunks, shape, strict=True))
    names = [axis.name for axis in image.axes] if FORMATS[image.version] == 3 else None
    if FORMATS[image.version] == 2:
        given["metadata"] = {"dimension_separator": "/"}
    group.create_array(path, shape=shape, dtype=image.dtype, dims=names, **given).result()


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
        found.append(
            {
                "label": channel.name,
                "color": channel.color or white,
                "active": channel.active,
                "window": dict(zip(("start", "end", "min", "max"), bounds, strict=True)),
            }
        )
    return {"channels": found}
