"""OME-Zarr groups for tests, with attributes as the specification has them."""

from __future__ import annotations

import copy

import numpy as np

import gpustore

AXES = [
    {"name": "c", "type": "channel"},
    *({"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"),
]
OMERO = {
    "channels": [
        {
            "label": label,
            "color": color,
            "window": {"start": 10, "end": 100, "min": 0, "max": 65535},
            "active": True,
        }
        for label, color in (("DAPI", "0000FF"), ("GFP", "00FF00"))
    ]
}
VALUES = np.arange(2 * 8 * 32 * 32, dtype="uint16").reshape(2, 8, 32, 32)


def transformations(level: int) -> list[dict]:
    """Scale and translation of a level whose y and x have been halved."""
    factor = 2**level
    return [
        {"type": "scale", "scale": [1, 2, 0.5 * factor, 0.5 * factor]},
        {"type": "translation", "translation": [0, 0, 0.25 * (factor - 1), 0.25 * (factor - 1)]},
    ]


def image_attributes(version: str, levels: int = 3, **more) -> dict:
    """Attributes of an image."""
    if version == "0.6":
        datasets = [
            {
                "path": str(level),
                "coordinateTransformations": [
                    {
                        "type": "sequence",
                        "input": {"path": str(level)},
                        "output": {"name": "physical"},
                        "transformations": transformations(level),
                    }
                ],
            }
            for level in range(levels)
        ]
        one = {
            "name": "cells",
            "coordinateSystems": [{"name": "physical", "axes": AXES}],
            "datasets": datasets,
        }
    else:
        one = {
            "name": "cells",
            "axes": AXES,
            "datasets": [
                {"path": str(level), "coordinateTransformations": transformations(level)}
                for level in range(levels)
            ],
        }
    return copy.deepcopy(stated(version, multiscales=[{**one, **more}], omero=OMERO))


def stated(version: str, **members) -> dict:
    """Attributes with OME members, and the version where it belongs."""
    if version != "0.4":
        return {"ome": {"version": version, **members}}
    members = dict(members)
    if "multiscales" in members:
        members["multiscales"] = [{**one, "version": "0.4"} for one in members["multiscales"]]
    for name in "plate", "well", "omero", "image-label":
        if name in members:
            members[name] = {**members[name], "version": "0.4"}
    return members


def write_group(url: str, version: str, attributes: dict, context=None) -> gpustore.Group:
    """Create a group."""
    return gpustore.open_group(
        url,
        create=True,
        zarr_format=2 if version == "0.4" else 3,
        attributes=attributes,
        context=context,
    ).result()


def write_image(url: str, version: str = "0.5", context=None, **more) -> gpustore.Group:
    """Create an image of three levels; every second element of a level is in the next."""
    group = write_group(url, version, image_attributes(version, **more), context)
    for level in range(3):
        values = VALUES[:, :, :: 2**level, :: 2**level]
        store = group.create_array(
            str(level), shape=values.shape, dtype="uint16", chunks=(1, 4, 16, 16)
        ).result()
        store.write(values).result()
    return group
