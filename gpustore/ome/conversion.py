"""OME-Zarr metadata of one version as those of another: :func:`converted`.

0.4 has its members among the attributes, each with its version; 0.5 and 0.6 have them below the
attribute ``ome``, with one version for all. 0.6 has the axes in coordinate systems, one
transformation for each level, and transformations between the systems.

Members that no version describes go along. What another version cannot hold is left out and
named, or an error if a level would lie elsewhere without it.

Source: OME-NGFF 0.5 and 0.6, changes from the version before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gpustore
from gpustore import MetadataError, UnsupportedError
from gpustore.ome.attributes import SYSTEM, dataset_json, placed, stated
from gpustore.ome.members import at, items
from gpustore.ome.multiscale import Multiscale, in_order, multiscale, ome_of
from gpustore.ome.rules import Problem
from gpustore.ome.schemas import KINDS, rule_of

_MEMBERS: Final = (
    *("multiscales", "omero", "labels", "image-label", "plate", "well"),
    *("bioformats2raw.layout", "series"),
)
_OF_GROUPS: Final = ("multiscales", "plate", "well", "bioformats2raw.layout")
_OF_NAMES: Final = {"labels": "labels", "series": "OME"}
"""Members that only groups of one name have; elsewhere attributes called so are the user's."""
_VERSIONED: Final = ("omero", "image-label", "plate", "well")
_OF_IMAGE: Final = ("axes", "coordinateSystems", "coordinateTransformations", "datasets", "version")
"""Members of an image that versions state differently."""


def is_ome(attributes: Mapping[str, Any]) -> bool:
    """Whether a group with these attributes is an image, a plate or part of one."""
    return any(name in attributes for name in ("ome", *_OF_GROUPS))


def axes_of(attributes: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of the axes of each array of an image, by its path in the group.

    Images that are not as the specification has them have none.

    >>> axes = [{"name": "y"}, {"name": "x"}]
    >>> one = {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 1]}]}
    >>> axes_of({"multiscales": [{"axes": axes, "datasets": [one]}]})
    {'0': ['y', 'x']}
    """
    found: dict[str, list[str]] = {}
    try:
        version, ome = ome_of(attributes, "")
        for number in range(len(items(ome, "multiscales", ""))):
            image = multiscale(ome, version, "", number)
            names = [axis.name for axis in image.axes]
            found |= {path.strip("/"): names for path in image.levels}
    except gpustore.GpustoreError:
        return {}
    return found


def converted(
    attributes: Mapping[str, Any], version: str, where: str, name: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """Return the attributes of a group for another version of OME-Zarr, and what they lack.

    Parameters
    ----------
    attributes : dict
        Attributes of a group.
    version : {"0.4", "0.5", "0.6"}
        Version wanted.
    where : str
        File of the attributes with ``": "``, for errors.
    name : str
        Name of the group.

    Returns
    -------
    dict
        Attributes; those without a member of OME-Zarr, or of that version already, unchanged.
    list of str
        Members that the version does not have.

    Raises
    ------
    MetadataError
        If a member is not as the specification has it.
    UnsupportedError
        If they are of no version that is read, or the version cannot express them.

    Examples
    --------
    >>> converted({"omero": {"id": 1, "version": "0.4"}, "mine": 2}, "0.5", ".zattrs: ")
    ({'mine': 2, 'ome': {'version': '0.5', 'omero': {'id': 1}}}, [])
    """
    before, members, rest = _parts(attributes, where, name)
    if before in ("", version):
        return dict(attributes), []
    below = where if before == "0.4" else f"{where}ome"
    notes = [
        f"{at(below, one)} stays as it is: OME-Zarr {version} has no such member"
        for one in members
        if one not in _MEMBERS and (version == "0.4" or one == "scene")
    ]
    changed = {
        one: {key: part for key, part in _object(value, at(below, one)).items() if key != "version"}
        if one in _VERSIONED
        else value
        for one, value in members.items()
    }
    if "multiscales" in members:
        changed["multiscales"] = [
            _image(members, before, version, below, number, notes)
            for number in range(len(items(members, "multiscales", below)))
        ]
    found = {**rest, **stated(version, **changed)}
    after = found if version == "0.4" else found["ome"]
    wrong = _problems(found, after, version, where)
    if wrong and not _problems(attributes, members, before, where):
        raise UnsupportedError(f"{wrong[0]}; OME-Zarr {version} cannot express what {before} does")
    return found, notes


def _parts(
    attributes: Mapping[str, Any], where: str, name: str
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return version, members of OME-Zarr, and all other attributes."""
    ome = attributes.get("ome")
    if isinstance(ome, Mapping) and "version" not in ome and set(ome) <= set(_OF_NAMES):
        # Writers of 0.5 leave the version out here.
        attributes = {**attributes, "ome": {"version": "0.5", **ome}}
    version, members = ome_of(attributes, where)
    if "ome" in attributes:
        rest = {one: value for one, value in attributes.items() if one != "ome"}
        return version, {one: v for one, v in members.items() if one != "version"}, rest
    found = {
        one: members[one] for one in _MEMBERS if one in members and _OF_NAMES.get(one, name) == name
    }
    rest = {one: value for one, value in attributes.items() if one not in found}
    return ("0.4" if found else ""), found, rest


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise MetadataError(f"{where}: expected an object")
    return value


def _image(
    members: Mapping[str, Any], before: str, version: str, below: str, number: int, notes: list[str]
) -> dict[str, Any]:
    """Return an image of `members` as another version has it."""
    image = multiscale(members, before, below, number)
    stored = members["multiscales"][number]
    where = at(below, f"multiscales[{number}]")
    if version != "0.6" and not in_order(image.axes):
        shown = ", ".join(axis.name for axis in image.axes)
        raise UnsupportedError(
            f"{where}: OME-Zarr {version} has axes of time, then channels, then space, this image "
            f"has {shown}"
        )
    if "0.6" not in (before, version):
        return {one: value for one, value in stored.items() if one != "version"}
    found = {one: value for one, value in stored.items() if one not in _OF_IMAGE}
    if version == "0.6":
        found["coordinateSystems"] = [{"name": SYSTEM, "axes": stored["axes"]}]
    else:
        [found["axes"]] = (
            one["axes"] for one in stored["coordinateSystems"] if one["name"] == image.system
        )
        notes += _lost(image, where, version)
    found["datasets"] = []
    for one, (path, transform) in zip(stored["datasets"], image.levels.items(), strict=True):
        steps = _steps(one["coordinateTransformations"])
        changed = dataset_json(version, path, transform, SYSTEM)
        if steps is not None and transform == image.own[path]:
            changed = placed(version, path, steps, SYSTEM)
        found["datasets"].append({**one, **changed})
    return found


def _steps(stored: list[Any]) -> list[dict[str, Any]] | None:
    """Return a scale, or a scale and a translation, as they are stored; None for others."""
    if len(stored) == 1 and stored[0]["type"] == "sequence":
        stored = stored[0]["transformations"]
    types = [one["type"] for one in stored]
    if types not in (["scale"], ["scale", "translation"]):
        return None
    return [{"type": type_, type_: one[type_]} for type_, one in zip(types, stored, strict=True)]


def _lost(image: Multiscale, where: str, version: str) -> list[str]:
    """Return notes of coordinate systems that versions before 0.6 do not have."""
    others = [name for name in image.systems if name != image.system]
    if not others and not image.transformations:
        return []
    names = f" {', '.join(map(repr, others))}" if others else "s"
    return [
        f"{where}: coordinate system{'s' * (len(others) > 1)}{names} and the transformations "
        f"between systems are left out: OME-Zarr {version} has one system, {image.system!r} is kept"
    ]


def _problems(
    attributes: Mapping[str, Any], ome: Mapping[str, Any], version: str, where: str
) -> list[Problem]:
    """Return what the published schemas find."""
    found: list[Problem] = []
    for member, kind in KINDS.items():
        if member in ome:
            rule_of(kind, version)(attributes, where, found)
    return found
