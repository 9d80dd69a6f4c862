"""Multiscale metadata: axes, levels and their places in space, of OME-Zarr 0.4, 0.5 and 0.6.

Source: OME-NGFF 0.4, "multiscales" metadata; 0.5, the same below "ome"; 0.6, with "axes" in a
coordinate system and the output of each level's transformation naming it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpustore import MetadataError, UnsupportedError
from gpustore.ome.members import at, items, json_object, kind, member_path, optional, text
from gpustore.ome.transforms import AxisTransform, parsed
from gpustore.ome.units import Unit, unit

VERSIONS: Final = {"0.4": "0.4", "0.5": "0.5", "0.6": "0.6", "0.6rc0": "0.6", "0.6.dev4": "0.6"}
"""Stated versions that are read, and the version they are read as."""

MAX_RANK: Final = 32
"""Dimensions that an array may have."""

_PLACES: Final[Mapping[str | None, int]] = {"time": 0, "channel": 1, "space": 3}


@dataclass(frozen=True, slots=True)
class Axis:
    """Axis of an image.

    Attributes
    ----------
    name : str
        Name, such as ``"x"``.
    type : str or None
        ``"space"``, ``"time"``, ``"channel"`` or another word; None if it is not stated.
    unit : Unit or None
        Unit of coordinates; None if it is not stated.
    """

    name: str
    type: str | None
    unit: Unit | None


@dataclass(frozen=True, slots=True)
class Transformation:
    """Transformation between two coordinate systems of an image.

    Attributes
    ----------
    input, output : str
        Names of the coordinate systems.
    json : dict
        The transformation as it is stored.
    """

    input: str
    output: str
    json: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Multiscale:
    """One image of several levels.

    Attributes
    ----------
    version : {"0.4", "0.5", "0.6"}
        Version of OME-Zarr.
    name : str
        Name of the image; empty if it has none.
    system : str
        Name of the coordinate system of the levels; empty before 0.6.
    axes : tuple of Axis
        Axes in the order of the dimensions of the arrays.
    levels : dict of str to AxisTransform
        From indices to coordinates of each level, from the finest to the coarsest, by path of its
        array in the group.
    systems : dict of str to tuple of Axis
        All coordinate systems by name; none before 0.6.
    transformations : tuple of Transformation
        Between coordinate systems; none before 0.6.
    own : dict of str to AxisTransform
        Transforms of the levels alone, without that of the whole image.
    """

    version: str
    name: str
    system: str
    axes: tuple[Axis, ...]
    levels: Mapping[str, AxisTransform]
    systems: Mapping[str, tuple[Axis, ...]]
    transformations: tuple[Transformation, ...]
    own: Mapping[str, AxisTransform]

    def transform_to(self, system: str, where: str) -> AxisTransform:
        """Return the transform from the coordinate system of the levels to another one.

        Raises
        ------
        MetadataError
            If there is no such system, or no way to it.
        UnsupportedError
            If a transformation on the shortest way is more than a scale and a translation.
        """
        if system not in self.systems:
            raise MetadataError(
                f"{where}: no coordinate system {system!r}; there are {', '.join(self.systems)}"
            )
        way = self._way_to(system)
        if way is None:
            raise MetadataError(f"{where}: no transformation leads from {self.system} to {system}")
        result = AxisTransform.identity(len(self.axes))
        for one, forward in way:
            named = f"{where} ({one.input} to {one.output})"
            step = parsed([one.json], len(self.axes), named)
            result = result.then(step if forward else step.inverse())
        return result.checked(where)

    def _way_to(self, system: str) -> list[tuple[Transformation, bool]] | None:
        """Return the shortest chain of transformations, each forward or not."""
        ways: dict[str, list[tuple[Transformation, bool]]] = {self.system: []}
        waiting = [self.system]
        for here in waiting:
            for one in self.transformations:
                for start, end, forward in (
                    (one.input, one.output, True),
                    (one.output, one.input, False),
                ):
                    if start == here and end not in ways:
                        ways[end] = [*ways[here], (one, forward)]
                        waiting.append(end)
        return ways.get(system)


def ome_of(attributes: Mapping[str, Any], where: str) -> tuple[str, Mapping[str, Any]]:
    """Return the version and the OME members of the attributes of a group.

    Returns
    -------
    str
        ``"0.4"``, ``"0.5"`` or ``"0.6"``; empty if the attributes have no member of OME-Zarr.
    mapping
        The members.

    Raises
    ------
    UnsupportedError
        If the version is another one.
    MetadataError
        If the members are not objects.
    """
    if "ome" in attributes:
        ome = attributes["ome"]
        if not isinstance(ome, Mapping):
            raise MetadataError(f"{where}ome: expected an object, got {kind(ome)}")
        return _version(ome.get("version"), ("0.5", "0.6"), f"{where}ome.version"), ome
    for member in ("multiscales", "plate", "well", "image-label"):
        if member in attributes:
            value = attributes[member]
            one = value[0] if isinstance(value, list) and value else value
            if not isinstance(one, Mapping):
                raise MetadataError(f"{where}{member}: expected an object, got {kind(one)}")
            # Writers of 0.4 leave the version of plates and wells out.
            version = one.get("version", "0.4")
            return _version(version, ("0.4",), f"{where}{member}.version"), attributes
    found = any(name in attributes for name in ("bioformats2raw.layout", "labels", "series"))
    return ("0.4" if found else ""), attributes


def _version(stated: Any, expected: tuple[str, ...], where: str) -> str:
    version = VERSIONS.get(stated) if isinstance(stated, str) else None
    if version is None and isinstance(stated, str):
        raise UnsupportedError(f"{where}: {stated!r} is not read, only 0.4, 0.5 and 0.6 are")
    if version not in expected:
        wanted = " or ".join(map(repr, expected))
        raise MetadataError(f"{where}: expected {wanted}, got {stated!r}")
    return version


def order_of(axes: Sequence[Axis]) -> list[int]:
    """Return the numbers of axes in the order of 0.4 and 0.5: time, channels, others, space."""
    return sorted(range(len(axes)), key=lambda number: _PLACES.get(axes[number].type, 2))


def in_order(axes: Sequence[Axis]) -> bool:
    """Whether axes are in the order of 0.4 and 0.5."""
    return order_of(axes) == list(range(len(axes)))


def multiscale(ome: Mapping[str, Any], version: str, where: str, number: int = 0) -> Multiscale:
    """Return an image of the OME members of a group; most groups have one.

    Raises
    ------
    MetadataError
        If a member is missing or is not as the specification has it; the text names the file and
        the member.
    UnsupportedError
        If a level is placed by more than a scale and a translation.
    """
    images = items(ome, "multiscales", where)
    where = at(where, f"multiscales[{number}]")
    image = json_object(images[number], where)
    datasets = items(image, "datasets", where)
    if version == "0.6":
        return _of_06(image, datasets, where)
    axes = _axes(image, where)
    outer = None
    if "coordinateTransformations" in image:
        member = f"{where}.coordinateTransformations"
        outer = parsed(image["coordinateTransformations"], len(axes), member)
    own: dict[str, AxisTransform] = {}
    for position, dataset in enumerate(datasets):
        place = f"{where}.datasets[{position}]"
        transformations, member = _transformations(dataset, place)
        transform = parsed(transformations, len(axes), member)
        own[_path(dataset, place, own)] = transform
    levels = own
    if outer is not None:
        levels = {path: one.then(outer).checked(where) for path, one in own.items()}
    return Multiscale(version, text(image, "name", where, ""), "", axes, levels, {}, (), own)


def _of_06(image: Mapping[str, Any], datasets: list[Any], where: str) -> Multiscale:
    systems: dict[str, tuple[Axis, ...]] = {}
    for number, one in enumerate(items(image, "coordinateSystems", where)):
        place = f"{where}.coordinateSystems[{number}]"
        name = text(json_object(one, place), "name", place)
        if name in systems:
            raise MetadataError(f"{place}.name: {name!r} stands twice")
        systems[name] = _axes(one, place)
    system: str | None = None
    levels: dict[str, AxisTransform] = {}
    for number, dataset in enumerate(datasets):
        place = f"{where}.datasets[{number}]"
        transformations, member = _transformations(dataset, place)
        if len(transformations) != 1:
            raise MetadataError(f"{member}: expected 1 transformation, got {len(transformations)}")
        member += "[0]"
        output = _end(transformations[0], "output", member)
        if output not in systems:
            raise MetadataError(
                f"{member}.output: no coordinate system {output!r}; there are {', '.join(systems)}"
            )
        if system not in (None, output):
            raise MetadataError(f"{member}.output: expected {system!r} as before, got {output!r}")
        system = output
        transform = parsed(transformations, len(systems[system]), member[: -len("[0]")])
        levels[_path(dataset, place, levels)] = transform
    assert system is not None  # _list gives one dataset at least
    between = []
    member = "coordinateTransformations"
    for number, one in enumerate(optional(image, member, list, where) or ()):
        place = f"{where}.coordinateTransformations[{number}]"
        ends = _end(one, "input", place), _end(one, "output", place)
        between.append(Transformation(*ends, one))
    name = text(image, "name", where, "")
    axes, steps = systems[system], tuple(between)
    return Multiscale("0.6", name, system, axes, levels, systems, steps, levels)


def _end(transformation: Any, member: str, where: str) -> str:
    """Return the coordinate system at one end of a transformation of 0.6."""
    end = json_object(transformation, where).get(member)
    if isinstance(end, str):  # as drafts of 0.6 had it
        return end
    return text(json_object(end, f"{where}.{member}"), "name", f"{where}.{member}")


def _axes(owner: Mapping[str, Any], where: str) -> tuple[Axis, ...]:
    axes: list[Axis] = []
    stated = items(owner, "axes", where)
    if len(stated) > MAX_RANK:
        raise MetadataError(f"{where}.axes: expected at most {MAX_RANK}, got {len(stated)}")
    for number, one in enumerate(stated):
        place = f"{where}.axes[{number}]"
        axis = json_object(one, place)
        name = text(axis, "name", place)
        if any(name == other.name for other in axes):
            raise MetadataError(f"{place}.name: {name!r} stands twice")
        of = optional(axis, "unit", str, place)
        axes.append(Axis(name, optional(axis, "type", str, place), unit(of) if of else None))
    return tuple(axes)


def _transformations(dataset: Any, where: str) -> tuple[list[Any], str]:
    found = items(json_object(dataset, where), "coordinateTransformations", where)
    return found, f"{where}.coordinateTransformations"


def _path(dataset: Mapping[str, Any], where: str, others: Mapping[str, Any]) -> str:
    found = member_path(dataset, "path", where)
    if found in others:
        raise MetadataError(f"{where}.path: {found!r} stands twice")
    return found
