"""Attributes of new images, in the form of each version of OME-Zarr.

Source: OME-NGFF 0.4, 0.5 and 0.6, "multiscales" metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import gpustore
from gpustore.ome.multiscale import Axis
from gpustore.ome.transforms import AxisTransform

SYSTEM: Final = "physical"
"""Name of the coordinate system of new images."""


def image_attributes(
    version: str,
    axes: Sequence[Axis],
    levels: Mapping[str, AxisTransform],
    *,
    name: str = "",
    omero: Mapping[str, Any] | None = None,
    **members: Any,
) -> dict[str, Any]:
    """Return the attributes of an image.

    Parameters
    ----------
    version : {"0.4", "0.5", "0.6"}
        Version of OME-Zarr.
    axes : sequence of Axis
        Axes in the order of the dimensions.
    levels : dict of str to AxisTransform
        From indices to coordinates, by path of the array.
    name : str
        Name of the image.
    omero : dict, optional
        Rendering settings.
    **members
        Other members of OME-Zarr, such as ``image-label``.
    """
    image: dict[str, Any] = {"name": name} if name else {}
    described = [_axis_json(axis) for axis in axes]
    if version == "0.6":
        image["coordinateSystems"] = [{"name": SYSTEM, "axes": described}]
    else:
        image["axes"] = described
    image["datasets"] = [
        dataset_json(version, path, transform, SYSTEM) for path, transform in levels.items()
    ]
    return stated(
        version,
        multiscales=[image],
        **({"omero": dict(omero)} if omero is not None else {}),
        **members,
    )


def stated(version: str, **members: Any) -> dict[str, Any]:
    """Return attributes with OME members, and the version where it belongs."""
    if version != "0.4":
        return {"ome": {"version": version, **members}}
    versioned = ("omero", "plate", "well", "image-label")
    found = {
        name: {**value, "version": version} if name in versioned else value
        for name, value in members.items()
    }
    if "multiscales" in found:
        found["multiscales"] = [{"version": version, **one} for one in found["multiscales"]]
    return found


def restate(
    group: gpustore.Group, version: str, member: str, changed: Callable[[Any], Any]
) -> None:
    """Change a member of OME-Zarr of a group, as it is stored now; the others stay.

    Parameters
    ----------
    group : Group
    version : {"0.4", "0.5", "0.6"}
    member : str
    changed : callable
        Gets what is stored, None if there is nothing, and returns what shall be; it is called
        again if somebody else was faster.
    """

    def restated(attributes: dict[str, Any]) -> dict[str, Any]:
        ome = attributes if version == "0.4" else attributes.get("ome", {})
        new = stated(version, **{member: changed(ome.get(member))})
        if version != "0.4":
            new["ome"] = {**ome, **new["ome"]}
        return {**attributes, **new}

    group.attrs.change(restated).result()


def _axis_json(axis: Axis) -> dict[str, str]:
    found = {"name": axis.name}
    if axis.type is not None:
        found["type"] = axis.type
    if axis.unit is not None:
        found["unit"] = axis.unit.name
    return found


def dataset_json(version: str, path: str, transform: AxisTransform, system: str) -> dict[str, Any]:
    """Return the JSON of a level.

    Parameters
    ----------
    version : {"0.4", "0.5", "0.6"}
    path : str
        Path of the array.
    transform : AxisTransform
        From indices to coordinates.
    system : str
        Name of the coordinate system; of no meaning before 0.6.
    """
    steps: list[dict[str, Any]] = [{"type": "scale", "scale": list(transform.scale)}]
    if any(transform.translation):
        steps.append({"type": "translation", "translation": list(transform.translation)})
    return placed(version, path, steps, system)


def placed(version: str, path: str, steps: list[dict[str, Any]], system: str) -> dict[str, Any]:
    """Return the JSON of a level: `steps` are a scale, or a scale and a translation."""
    if version == "0.6":
        ends = {"input": {"path": path}, "output": {"name": system}}
        if len(steps) == 2:
            steps = [{"type": "sequence", "transformations": steps}]
        steps = [{**steps[0], **ends}]
    return {"path": path, "coordinateTransformations": steps}
