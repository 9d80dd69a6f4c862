"""New label images: :func:`make_label`. `image` is the :class:`~gpustore.ome.Image` they are of."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

import gpustore
from gpustore.ome.attributes import restate
from gpustore.ome.multiscale import Axis
from gpustore.ome.new_image import (
    ArrayProperties,
    NewDocuments,
    check_names,
    new_image,
)


class LabelProperties(ArrayProperties, total=False):
    """Properties of a new label image; see :meth:`gpustore.ome.Image.create_label`."""

    dtype: Any
    axes: str | Sequence[Any] | None
    levels: int | None


def make_label(
    image: Any,
    name: str,
    colors: Mapping[int, Sequence[int]] | None,
    **properties: Unpack[LabelProperties],
) -> gpustore.Group:
    """Create a label image and list it among those of the image; see :meth:`Image.create_label`."""
    check_names(properties, LabelProperties)
    dtype = properties.get("dtype", "uint32")
    axes, levels = properties.get("axes"), properties.get("levels")
    if np.dtype(gpustore.dtype(dtype)).kind not in "iu":
        raise ValueError(f"dtype: labels are integers, got {dtype}")
    if not isinstance(name, str) or not name.strip("/"):
        raise ValueError(f"name: expected a name, got {name!r}")
    names = [one.name if isinstance(one, Axis) else str(one) for one in axes or ()]
    shown = image.axes
    unknown = [one for one in names if one not in shown]
    if unknown:
        raise ValueError(f"axes: no axis {unknown[0]!r}; axes are {', '.join(shown)}")
    # A label image has one coordinate system, that in which the levels of the image are stored.
    image = type(image).of_group(image.group)
    kept = [
        axis
        for axis, name_shown in zip(image.all_axes, shown, strict=True)
        if (name_shown in names if names else axis.type != "channel")
    ]
    finest = image.level(0)
    extents = dict(zip(image.axes, finest.shape, strict=True))
    label = new_image(
        {
            "codec": "zstd",
            **properties,
            "dtype": dtype,
            "axes": kept,
            "levels": 1 if levels is None else levels,
            "shape": [extents[axis.name] for axis in kept],
            "scale": {axis.name: finest.scale[axis.name] for axis in kept},
            "translation": {axis.name: finest.translation[axis.name] for axis in kept},
            "name": name,
            "version": image.version,
        }
    )
    if levels is None:
        label = replace(label, factors=_factors(image, [axis.name for axis in kept]))
    above = "../" * (2 + name.strip("/").count("/"))
    described: dict[str, Any] = {"source": {"image": above}}
    if colors is not None:
        described["colors"] = [
            {"label-value": int(value), "rgba": [int(part) for part in rgba]}
            for value, rgba in colors.items()
        ]

    documents = NewDocuments.of(label, **{"image-label": described})
    group: gpustore.Group = image.group
    made = group.create_group(f"labels/{name}").result()
    documents.store([made])

    def with_label(known: Any) -> list[Any]:
        return list(dict.fromkeys([*(known or ()), name]))

    restate(group["labels"], image.version, "labels", with_label)
    return made


def _factors(image: Any, axes: Sequence[str]) -> list[tuple[int, ...]]:
    """Return by how much each level is smaller than the one above, along some axes."""
    shapes = [dict(zip(image.axes, level.shape, strict=True)) for level in image.levels]
    return [
        tuple(-(-above[axis] // below[axis]) if below[axis] else 1 for axis in axes)
        for above, below in itertools.pairwise(shapes)
    ]
