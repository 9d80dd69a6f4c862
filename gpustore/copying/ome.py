"""OME-Zarr metadata of groups: 0.4 in Zarr v2, 0.5 in Zarr v3, one made of the other.

Both have the same objects. 0.5 has them below the attribute ``ome`` with one version for all
(https://ngff.openmicroscopy.org/0.5/#changelog), 0.4 has them among the attributes, each with its
version, and wants ``/`` between the numbers of a chunk. 0.5 wants axes as names of dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MEMBERS: Final = (
    *("multiscales", "omero", "labels", "image-label", "plate", "well"),
    *("bioformats2raw.layout", "series"),
)
_OF_NAMES: Final = {"labels": "labels", "series": "OME"}
"""Members that only groups of one name have; elsewhere attributes called so are the user's."""
_VERSIONED: Final = ("omero", "image-label", "plate", "well")
_OF_FORMAT: Final = {2: "0.4", 3: "0.5"}
"""Version of OME-Zarr that has the same objects, by version of Zarr."""


def is_ome(attributes: Mapping[str, Any]) -> bool:
    """Whether a group with these attributes is an image, a plate or part of one."""
    return "ome" in attributes or any(name in attributes for name in ("multiscales", "plate"))


def axes_of(attributes: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of the axes of each array of an image, by its path in the group.

    >>> axes = [{"name": "y"}, {"name": "x"}]
    >>> axes_of({"multiscales": [{"axes": axes, "datasets": [{"path": "0"}]}]})
    {'0': ['y', 'x']}
    """
    ome = attributes.get("ome", attributes)
    found: dict[str, list[str]] = {}
    try:
        for image in ome.get("multiscales", ()):
            names = [str(axis["name"]) for axis in image["axes"]]
            found |= {str(one["path"]).strip("/"): names for one in image["datasets"]}
    except (AttributeError, KeyError, TypeError):
        return {}
    return found


def converted(
    attributes: Mapping[str, Any], after: int, name: str = ""
) -> tuple[dict[str, Any], str | None]:
    """Return the attributes of a group for the other format of Zarr, and a note if they are not.

    Parameters
    ----------
    attributes : dict
        Attributes of a group in Zarr v2 or v3.
    after : {2, 3}
        Format of the copy.
    name : str
        Name of the group.

    Returns
    -------
    dict
        Attributes; those that cannot be converted unchanged.
    str or None
        What could not be converted, and why.

    Examples
    --------
    >>> converted({"omero": {"id": 1}, "mine": 2}, 3)
    ({'mine': 2, 'ome': {'version': '0.5', 'omero': {'id': 1}}}, None)
    """
    try:
        return _to_v3(attributes, name) if after == 3 else _to_v2(attributes)
    except (AttributeError, KeyError, TypeError, ValueError):
        return dict(attributes), "OME metadata are not as any version has them: they stay as is"


def _to_v3(attributes: Mapping[str, Any], name: str) -> tuple[dict[str, Any], str | None]:
    found = {
        member: attributes[member]
        for member in _MEMBERS
        if member in attributes and _OF_NAMES.get(member, name) == name
    }
    if not found:
        return dict(attributes), None
    versions = {one["version"] for one in _objects(found) if "version" in one} - {"0.4"}
    if versions:
        return dict(attributes), _note(", ".join(sorted(map(str, versions))), 2, found)
    rest = {member: value for member, value in attributes.items() if member not in found}
    return {**rest, "ome": {"version": "0.5", **_mapped(found, _unversioned)}}, None


def _to_v2(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    if "ome" not in attributes:
        return dict(attributes), None
    found = dict(attributes["ome"])
    version = found.pop("version")
    unknown = [name for name in found if name not in _MEMBERS]
    if version != "0.5" or unknown:
        return dict(attributes), _note(str(version), 3, unknown or found)
    rest = {name: value for name, value in attributes.items() if name != "ome"}
    return {**rest, **_mapped(found, lambda one: {**one, "version": "0.4"})}, None


def _note(version: str, format_: int, members: Any) -> str:
    return (
        f"OME metadata {version} ({', '.join(members)}) are not converted, only "
        f"{_OF_FORMAT[format_]} are: they stay as is"
    )


def _objects(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the objects that have a version in 0.4."""
    return [*found.get("multiscales", ()), *(found[name] for name in _VERSIONED if name in found)]


def _mapped(found: Mapping[str, Any], change: Any) -> dict[str, Any]:
    """Return the members, with the objects changed that have a version in 0.4."""
    changed = {
        name: change(value) if name in _VERSIONED else value for name, value in found.items()
    }
    if "multiscales" in found:
        changed["multiscales"] = [change(one) for one in found["multiscales"]]
    return changed


def _unversioned(one: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name != "version"}
