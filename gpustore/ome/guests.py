"""Images for other libraries: xarray and napari. `image` is an :class:`~gpustore.ome.Image`."""

from __future__ import annotations

from typing import Any

import numpy as np

import gpustore
from gpustore.interop import extra
from gpustore.ome.channels import Channel
from gpustore.ome.level import Level


def to_xarray(image: Any, level: Level) -> Any:
    """Return a lazy array of xarray; see :meth:`Image.to_xarray`."""
    with extra("xarray"):
        import xarray

    coordinates: dict[str, Any] = {}
    for axis, n in zip(image.all_axes, level.shape, strict=True):
        if axis.type == "channel":
            if len(image.channels) == n and any(image.channels):
                coordinates[axis.name] = list(image.channels)
            continue
        centres = level.translation[axis.name] + level.scale[axis.name] * np.arange(n)
        units = {} if axis.unit is None else {"units": axis.unit.name}
        coordinates[axis.name] = xarray.Variable((axis.name,), centres, units)
    return xarray.DataArray(
        gpustore.to_dask(level.store), coordinates, image.axes, name=image.name or None
    )


def to_napari(image: Any) -> list[tuple[list[Any], dict[str, Any], str]]:
    """Return the layers of an image; see :meth:`Image.to_napari`."""
    return [_layer(image), *(_layer(one, name) for name, one in image.labels.items())]


def _layer(image: Any, label: str | None = None) -> tuple[list[Any], dict[str, Any], str]:
    levels = [gpustore.to_dask(level.store) for level in image.levels]
    types = [axis.type for axis in image.all_axes]
    channel = types.index("channel") if "channel" in types and label is None else None
    finest = image.level(0)
    kept = [axis for axis in image.axes if channel is None or axis != image.axes[channel]]
    about: dict[str, Any] = {
        "name": label or image.name or "image",
        "scale": [finest.scale[axis] for axis in kept],
        "translate": [finest.translation[axis] for axis in kept],
        "multiscale": True,
    }
    if channel is None:
        return levels, about, "image" if label is None else "labels"
    about["channel_axis"] = channel
    channels = image.omero.channels if image.omero is not None else ()
    if len(channels) == finest.shape[channel]:
        names = [one.name or f"channel {number}" for number, one in enumerate(channels)]
        about["name"] = names
        about["visible"] = [one.active for one in channels]
        if all(one.color for one in channels):
            about["colormap"] = [_colors(one) for one in channels]
        dtype = finest.dtype.array_dtype
        windows = [one.chosen_window(dtype) for one in channels]
        # Without all of them napari looks at the elements.
        limits = [[one.start, one.end] for one in windows if one is not None]
        if len(limits) == len(channels):
            about["contrast_limits"] = limits
    return levels, about, "image"


def _colors(channel: Channel) -> Any:
    """Return a colour map from black to the colour of a channel, for napari."""
    color = channel.color or "FFFFFF"
    return np.array([[0, 0, 0], [int(color[at : at + 2], 16) / 255 for at in (0, 2, 4)]])
