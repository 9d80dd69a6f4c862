"""Plates of wells, and wells of fields, each an image.

Source: OME-NGFF 0.4 to 0.6, "plate" and "well" metadata.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Unpack, overload

import gpustore
from gpustore import MetadataError
from gpustore.ome.attributes import restate
from gpustore.ome.image import Image
from gpustore.ome.members import at, items, json_object, member_path, optional, place_of, text
from gpustore.ome.multiscale import ome_of
from gpustore.ome.new_image import ImageProperties, NewDocuments, new_image
from gpustore.ome.opened import Opened, group_of

_INDICES: Final = "rowIndex", "columnIndex"


@dataclass(frozen=True, slots=True)
class Acquisition:
    """One run of a microscope over a plate.

    Attributes
    ----------
    id : int
        Number by which fields name it.
    name : str
        Name; empty if it has none.
    json : dict
        All that is stored of it.
    """

    id: int
    name: str
    json: Mapping[str, Any]


class Plate:
    """Plate of wells; see :func:`gpustore.ome.open`.

    Attributes
    ----------
    group : Group
        Group of the plate.
    version : str
        Version of OME-Zarr.
    name : str
        Name; empty if it has none.
    rows, columns : tuple of str
        Names of the rows and columns.
    acquisitions : tuple of Acquisition
        Acquisitions; none if they are not stated.
    wells : mapping of str to Well
        Wells by path, such as ``"B/03"``; each is opened when it is asked for.
    fields : mapping of str to Image
        Fields of all wells by path, such as ``"B/03/0"``. ``items()`` and ``values()`` read the
        metadata of wells, fields and levels together, a look-up those of one field.
    json : dict
        The member ``plate`` as it is stored.
    """

    def __init__(self, group: gpustore.Group) -> None:
        self.version, plate, where = _member_of(group, group.attrs.asdict(), "plate")
        self.group = group
        self.json = plate
        self.name: str = text(plate, "name", where, "")
        self.rows = _names(plate, "rows", where)
        self.columns = _names(plate, "columns", where)
        self.acquisitions = tuple(
            _acquisition(one, f"{where}.acquisitions[{number}]")
            for number, one in enumerate(optional(plate, "acquisitions", list, where) or ())
        )
        self._set_wells(_well_paths(plate, where))

    def _set_wells(self, paths: Sequence[str]) -> None:
        group = self.group
        self.wells: Mapping[str, Well] = Opened(group, "well", lambda: paths, _wells)
        self.fields: Mapping[str, Image] = Opened(
            group, "field", self._field_paths, Image.open_many
        )

    def _field_paths(self) -> list[str]:
        wells = self.wells.items()
        return [f"{path}/{one}" for path, well in wells for one in well.fields.paths]

    @property
    def url(self) -> str:
        """URL of the group."""
        return self.group.url

    def create_image(
        self, path: str, *, acquisition: int | None = None, **properties: Unpack[ImageProperties]
    ) -> Image:
        """Create a field of a well; see :meth:`create_images`."""
        return self.create_images([path], acquisition=acquisition, **properties)[0]

    def create_images(
        self,
        paths: Iterable[str],
        *,
        acquisition: int | None = None,
        **properties: Unpack[ImageProperties],
    ) -> Images:
        """Create fields of wells that are alike, and the wells that are not there.

        Parameters
        ----------
        paths : iterable of str
            Row, column and field of each, such as ``"B/03/0"``.
        acquisition : int, optional
            Number of the acquisition that they are of.
        **properties
            Properties of the images, as those of :func:`gpustore.ome.create`; the version is that
            of the plate.

        Returns
        -------
        Images

        Raises
        ------
        ValueError
            If the plate has no such row or column, or a field has other characters than letters
            and digits.
        AlreadyExistsError
            If there is something at a path.
        """
        paths = list(paths)
        fields: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for path in paths:
            row, column, field = self._parts(path)
            entry: dict[str, Any] = {"path": field}
            if acquisition is not None:
                entry["acquisition"] = operator.index(acquisition)
            fields.setdefault((row, column), []).append(entry)
        documents = NewDocuments.of(new_image({**properties, "version": self.version}))
        making = [self.group.create_group(path) for path in paths]
        documents.store([made.result() for made in making])
        wells = {f"{row}/{column}": found for (row, column), found in fields.items()}
        for well, found in wells.items():
            restate(self.group[well], self.version, "well", partial(_with_fields, found))
        # Others may have changed the plate, too.
        stored = self.group.attrs.read().result()
        _, self.json, where = _member_of(self.group, stored, "plate")
        if not wells.keys() <= {*_well_paths(self.json, where)}:
            self._list(fields)
        self._set_wells(_well_paths(self.json, where))
        return Images.below(self.group, paths)

    def _list(self, wells: Iterable[tuple[str, str]]) -> None:
        """List wells of rows and columns in the attributes of the plate, if they are not yet."""

        def listed(stored: Mapping[str, Any]) -> Mapping[str, Any]:
            found = list(stored.get("wells") or ())
            known = {one["path"].strip("/") for one in found}
            for row, column in wells:
                path = f"{row}/{column}"
                numbers = self.rows.index(row), self.columns.index(column)
                if path not in known:
                    found.append({"path": path, **dict(zip(_INDICES, numbers, strict=True))})
            self.json = {**stored, "wells": found}
            return self.json

        restate(self.group, self.version, "plate", listed)

    def _parts(self, path: str) -> list[str]:
        """Return row, column and field of a path."""
        parts = path.split("/")
        if len(parts) != 3 or parts[0] not in self.rows or parts[1] not in self.columns:
            raise ValueError(
                f"path: expected row/column/field with a row of {', '.join(self.rows)} and a "
                f"column of {', '.join(self.columns)}, got {path!r}"
            )
        if re.fullmatch("[A-Za-z0-9]+", parts[2]) is None:
            raise ValueError(f"path: expected a field of letters and digits, got {parts[2]!r}")
        return parts

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return (
            f"<Plate{name} OME-Zarr {self.version}, {len(self.rows)} rows, "
            f"{len(self.columns)} columns, {len(self.wells)} wells, {place_of(self.group)}>"
        )


class Well:
    """Well of a plate; see :func:`gpustore.ome.open`.

    Attributes
    ----------
    group : Group
        Group of the well.
    version : str
        Version of OME-Zarr.
    fields : sequence of Image
        Fields of view; each is opened when it is asked for, or all together by iterating.
    acquisitions : tuple of int or None
        Number of the acquisition of each field; None where it is not stated.
    json : dict
        The member ``well`` as it is stored.
    """

    def __init__(self, group: gpustore.Group, attributes: Mapping[str, Any] | None = None) -> None:
        attributes = group.attrs.asdict() if attributes is None else attributes
        self.version, well, where = _member_of(group, attributes, "well")
        self.group = group
        self.json = well
        paths, acquisitions = [], []
        for number, one in enumerate(items(well, "images", where)):
            place = f"{where}.images[{number}]"
            paths.append(member_path(json_object(one, place), "path", place))
            acquisitions.append(optional(one, "acquisition", int, place))
        self.fields = Images.below(group, paths)
        self.acquisitions: tuple[int | None, ...] = tuple(acquisitions)

    @property
    def url(self) -> str:
        """URL of the group."""
        return self.group.url

    def __repr__(self) -> str:
        return f"<Well OME-Zarr {self.version}, {len(self.fields)} fields, {place_of(self.group)}>"


class Images(Sequence[Image]):
    """Images below a group, each opened when it is asked for; iterating reads all together."""

    def __init__(self, opened: Opened[Image], paths: Sequence[str]) -> None:
        self._opened = opened
        self.paths = tuple(paths)

    @classmethod
    def below(cls, group: gpustore.Group, paths: Sequence[str]) -> Images:
        """Return the images at some paths of a group."""
        return cls(Opened(group, "image", lambda: paths, Image.open_many), paths)

    @overload
    def __getitem__(self, index: int) -> Image: ...
    @overload
    def __getitem__(self, index: slice) -> Images: ...
    def __getitem__(self, index: int | slice) -> Image | Images:
        """Open the image of a number, or choose some."""
        if isinstance(index, slice):
            return Images(self._opened, self.paths[index])
        return self._opened[self.paths[index]]

    def __iter__(self) -> Iterator[Image]:
        return self._opened.read(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"<{len(self)} of {self._opened!r}>"


def _wells(group: gpustore.Group, paths: Sequence[str]) -> Iterator[Well]:
    for path, node in zip(paths, group.nodes(paths).result(), strict=True):
        yield Well(*group_of(group, path, node))


def _member_of(
    group: gpustore.Group, attributes: Mapping[str, Any], member: str
) -> tuple[str, Mapping[str, Any], str]:
    """Return the version of a group, an object among its OME members, and where that is."""
    where = f"{place_of(group)}: "
    version, ome = ome_of(attributes, where)
    where = at(f"{where}ome" if "ome" in attributes else where, member)
    return version, json_object(ome.get(member), where), where


def _well_paths(plate: Mapping[str, Any], where: str) -> list[str]:
    paths: dict[str, None] = {}
    # A new plate has none yet.
    for number, one in enumerate(optional(plate, "wells", list, where) or ()):
        place = f"{where}.wells[{number}]"
        well = member_path(json_object(one, place), "path", place).strip("/")
        if well in paths:
            raise MetadataError(f"{place}.path: {well!r} stands twice")
        paths[well] = None
    return list(paths)


def _with_fields(fields: Sequence[Any], stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the member ``well`` with more fields."""
    known = stored or {}
    return {**known, "images": [*known.get("images", ()), *fields]}


def _names(plate: Mapping[str, Any], member: str, where: str) -> tuple[str, ...]:
    found = []
    for number, one in enumerate(items(plate, member, where)):
        place = f"{where}.{member}[{number}]"
        found.append(text(json_object(one, place), "name", place))
    return tuple(found)


def _acquisition(one: Any, where: str) -> Acquisition:
    number = optional(json_object(one, where), "id", int, where)
    if number is None:
        raise MetadataError(f"{where}.id: expected an integer, it is missing")
    return Acquisition(number, text(one, "name", where, ""), one)
