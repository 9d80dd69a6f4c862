"""Images: levels of one picture at several resolutions, channels and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, Unpack

import gpustore
from gpustore import MetadataError
from gpustore.display.nbytes import nbytes_of
from gpustore.ome.channels import Omero, omero
from gpustore.ome.filling import fill, source_of
from gpustore.ome.guests import to_napari, to_xarray
from gpustore.ome.level import Level
from gpustore.ome.members import json_object, member_path, optional, place_of
from gpustore.ome.multiscale import Axis, Multiscale, Transformation, multiscale, ome_of
from gpustore.ome.new_label import LabelProperties, make_label
from gpustore.ome.opened import Opened, group_of, is_absent
from gpustore.ome.pyramid import build, checked_method, forget
from gpustore.ome.transforms import AxisTransform
from gpustore.ome.units import Range, Unit, as_float, um
from gpustore.sources.base import Source
from gpustore.transfer.regions import first_interrupt

_SLACK: Final = 1 + 1e-6
"""Relative error of decimal fractions that sizes of pixels may have."""


class Image:
    """OME-Zarr image; see :func:`gpustore.ome.open`.

    Attributes
    ----------
    group : Group
        Group of the image.
    """

    def __init__(
        self, group: gpustore.Group, metadata: Multiscale, rendering: Omero | None
    ) -> None:
        self.group = group
        self._set(metadata, rendering)

    def _set(self, metadata: Multiscale, rendering: Omero | None) -> None:
        self._metadata = metadata
        self._omero = rendering
        self._levels = tuple(
            Level(self.group, number, path, metadata.axes, transform, self.channels)
            for number, (path, transform) in enumerate(metadata.levels.items())
        )

    @classmethod
    def of_group(cls, group: gpustore.Group) -> Image:
        """Return the image of a group that is open already.

        Raises
        ------
        MetadataError, UnsupportedError
            As :func:`gpustore.ome.open` does.
        """
        return cls(group, *_metadata_of(group, group.attrs.asdict()))

    @classmethod
    def open_many(cls, group: gpustore.Group, paths: Sequence[str]) -> Iterator[Image]:
        """Yield the images below a group; the metadata of several and of their levels are read
        together.

        Raises
        ------
        NotFoundError
            If there is nothing at a path.
        MetadataError, UnsupportedError
            As :func:`gpustore.ome.open` does.
        """
        images: list[Image] = []
        failed = None
        for path, node in zip(paths, group.nodes(paths).result(), strict=True):
            try:
                found, attributes = group_of(group, path, node)
                images.append(cls(found, *_metadata_of(found, attributes)))
            except gpustore.GpustoreError as error:
                failed = error
                break
        if len(images) > 1:
            levels = [(p, one) for p, image in zip(paths, images) for one in image.levels]
            # A path that cannot be one is an error of its level.
            with suppress(gpustore.InvalidKeyError):
                nodes = group.nodes(f"{path}/{one.path}" for path, one in levels).result()
                for (_, one), node in zip(levels, nodes, strict=True):
                    one.describe(node)
        yield from images
        if failed is not None:
            raise failed

    @property
    def url(self) -> str:
        """URL of the group."""
        return self.group.url

    @property
    def version(self) -> str:
        """Version of OME-Zarr: ``"0.4"``, ``"0.5"`` or ``"0.6"``."""
        return self._metadata.version

    @property
    def name(self) -> str:
        """Name of the image; empty if it has none."""
        return self._metadata.name

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, in the order of the dimensions."""
        return tuple(axis.name for axis in self._metadata.axes)

    @property
    def all_axes(self) -> tuple[Axis, ...]:
        """Axes with their types and units."""
        return self._metadata.axes

    @property
    def units(self) -> dict[str, str | None]:
        """Names of the units by axis; None where none is stated."""
        return {
            axis.name: None if axis.unit is None else axis.unit.name for axis in self._metadata.axes
        }

    @property
    def levels(self) -> tuple[Level, ...]:
        """Levels, from the finest to the coarsest."""
        return self._levels

    @property
    def omero(self) -> Omero | None:
        """Rendering settings, None if there are none."""
        return self._omero

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels in order; empty without rendering settings."""
        return () if self._omero is None else tuple(one.name for one in self._omero.channels)

    @cached_property
    def labels(self) -> Mapping[str, Image]:
        """Label images by name, each opened when it is asked for; empty if there are none."""
        return Opened(
            self.group,
            *("label image", lambda: _label_names(self.group), Image.open_many, "labels/"),
        )

    # ---- elements

    def write(
        self,
        array: Any,
        *,
        memory: int = 256 << 20,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        """Write the finest level, in bounded memory, and wait until it is stored.

        Parameters
        ----------
        array : array-like, str or os.PathLike
            Elements of the shape of the finest level, as :func:`gpustore.ome.write` takes them.
        memory : int
            Most bytes of decoded elements in memory at once, unless a chunk has more.
        progress : callable, optional
            ``progress(done, total)`` in decoded bytes.

        Raises
        ------
        ValueError
            If the shape is another one.
        """
        memory = nbytes_of(memory, "memory")
        store = self.level(0).store
        source = source_of(array)

        def moving(nbytes: int) -> None:
            if progress is not None:
                progress(nbytes, store.nbytes)

        try:
            # A pyramid that was being made of other elements begins again.
            forget(self.group)
            with first_interrupt() as stopped:
                fill(store, source, memory=memory, progress=moving, stopped=stopped)
                if stopped():
                    raise KeyboardInterrupt("only a part of the level was written")
        finally:
            source.close()

    def build_pyramid(
        self,
        *,
        method: str | None = None,
        levels: int | None = None,
        memory: int = 256 << 20,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        """Make the levels below the finest, each from the one above, and wait for them.

        An image with one level gets more, as :func:`gpustore.ome.create` makes them; those of an
        image with several are written, whatever they hold. A build that ended with an error,
        Ctrl-C or a kill is continued by the same call; :meth:`write` makes it begin again. Writes
        to the finest level by other ways meanwhile are not noticed.

        Parameters
        ----------
        method : {"mean", "nearest", "mode", "gaussian"}, optional
            What becomes of the elements of a block: their mean, integers rounded to the nearest,
            halves to the even one; the first; the smallest of the most frequent; the mean of the
            block and its neighbours with the weights 1, 3, 3, 1 along each axis. By default the
            mean, and the mode for label images, which have no mean.
        levels : int, optional
            Number of levels, with the finest; as many as make the two last axes 256 elements or
            less by default.
        memory : int
            Most bytes of decoded elements in memory at once, unless a chunk has more.
        progress : callable, optional
            ``progress(done, total)`` in decoded bytes of all new levels.

        Raises
        ------
        ValueError
            If there is no such method, or not for labels, or no whole factors lead from one level
            to the next.
        UnsupportedError
            If the data type has no such method.
        KeyboardInterrupt
            After Ctrl-C; levels that are complete are listed.
        """
        self._build(None, method, levels, memory, progress)

    def _build(
        self,
        elements: Source | None,
        method: str | None,
        levels: int | None,
        memory: int | str,
        progress: Callable[[int, int], object] | None,
    ) -> None:
        """Write the finest level, if elements are given, and make the others."""
        attributes = self.group.attrs
        is_label = "image-label" in attributes.get("ome", attributes)
        build(
            *(self.group, self.version, self.all_axes, self._metadata.own),
            method=checked_method(method, levels, self.level(0).dtype, is_label=is_label),
            levels=levels,
            memory=nbytes_of(memory, "memory"),
            progress=progress,
            elements=elements,
        )
        stored = Image.of_group(self.group)
        if self.coordinate_system != stored.coordinate_system:
            stored = stored.in_system(self.coordinate_system)
        self._set(stored._metadata, stored._omero)

    def create_label(
        self,
        name: str,
        *,
        colors: Mapping[int, Sequence[int]] | None = None,
        **properties: Unpack[LabelProperties],
    ) -> Image:
        """Create a label image, without elements, where the image is.

        Its coordinates are those in which the levels of the image are stored, also for an image in
        another coordinate system (:meth:`in_system`).

        Parameters
        ----------
        name : str
            Name of the label image.
        colors : dict, optional
            Red, green, blue and alpha, each from 0 to 255, by label.
        dtype : dtype
            Integers, of 32 bits without a sign by default; 0 is the background.
        axes : str or sequence of str or Axis, optional
            Axes, in the order of those of the image; all but that of channels by default.
        levels : int, optional
            Number of levels, as many as the image has by default: of the same shapes.
        chunks, shards, codec
            As those of :func:`gpustore.ome.create`; zstd by default.

        Returns
        -------
        Image

        Raises
        ------
        ValueError
            If the name is empty, the data type is not of integers, or an axis is not one of the
            image.
        AlreadyExistsError
            If there is a label image of the name.
        """
        made = make_label(self, name, colors, **properties)
        self.__dict__.pop("labels", None)
        return Image.of_group(made)

    # ---- coordinate systems of 0.6

    @property
    def coordinate_system(self) -> str:
        """Name of the coordinate system of scales and translations; empty before 0.6."""
        return self._metadata.system

    @property
    def coordinate_systems(self) -> tuple[str, ...]:
        """Names of all coordinate systems; none before 0.6."""
        return tuple(self._metadata.systems)

    @property
    def transformations(self) -> tuple[Transformation, ...]:
        """Transformations between coordinate systems, as they are stored; none before 0.6."""
        return self._metadata.transformations

    def in_system(self, name: str) -> Image:
        """Return the image with scales, translations and axes of another coordinate system.

        Raises
        ------
        MetadataError
            If there is no such system, no transformation to it, or its axes are others in number.
        UnsupportedError
            If a transformation on the way is more than a scale and a translation of each axis:
            :attr:`transformations` has it as it is stored, and nothing is resampled.
        """
        where = f"{place_of(self.group)}: multiscales[0].coordinateTransformations"
        after: AxisTransform = self._metadata.transform_to(name, where)
        axes = self._metadata.systems[name]
        if len(axes) != len(self._metadata.axes):
            raise MetadataError(
                f"{where}: {name!r} has {len(axes)} axes, the arrays have {len(self.axes)}"
            )
        before = self._metadata
        levels = {path: one.then(after).checked(where) for path, one in before.levels.items()}
        changed = Multiscale(
            *(before.version, before.name, name, axes, levels),
            *(before.systems, before.transformations, before.own),
        )
        return Image(self.group, changed, self._omero)

    # ---- other libraries

    def to_xarray(self, level: int = 0) -> Any:
        """Return a level as an array of xarray, which dask reads when it is asked for.

        Parameters
        ----------
        level : int
            Number of the level.

        Returns
        -------
        xarray.DataArray
            Dimensions are the axes; coordinates are those of the centres of elements, with the
            unit as the attribute ``units``, and the names of the channels.

        Raises
        ------
        ModuleNotFoundError
            If xarray or dask is not installed; the text has the command that installs it.
        """
        return to_xarray(self, self.level(level))

    def to_dask(self, level: int = 0, chunks: Any = "chunk") -> Any:
        """Return a level as an array of dask; see :func:`gpustore.to_dask`."""
        return gpustore.to_dask(self.level(level).store, chunks)

    def to_napari(self) -> list[tuple[list[Any], dict[str, Any], str]]:
        """Return the image and its label images as layers of napari.

        Returns
        -------
        list of (list of dask.array.Array, dict, str)
            Levels, keywords and kind of each layer, ``"image"`` or ``"labels"``:
            ``viewer._add_layer_from_data(*layer)``, or what a reader of napari returns. Scale and
            translation are those of the finest level, without the axis of channels, which becomes
            ``channel_axis`` with names, colours and windows.

        Raises
        ------
        ModuleNotFoundError
            If dask is not installed; the text has the command that installs it.
        """
        return to_napari(self)

    # ---- choice of a level

    def level(
        self,
        number: int | None = None,
        *,
        pixel_size: float | Range | Mapping[str, float | Range] | None = None,
        max_bytes: int | str | None = None,
    ) -> Level:
        """Choose a level: by number, by the size of its pixels, or by the bytes it takes.

        Parameters
        ----------
        number : int, optional
            Position among the levels, 0 is the finest; negative numbers count from the coarsest.
        pixel_size : float, Range or dict, optional
            The coarsest level whose elements are not further apart than this, by axis, or along
            all axes of space. A number is in micrometres for lengths, and in the unit of the axis
            for others and where the axis has none; ``ome.nm(650)`` has its own unit.
        max_bytes : int or str, optional
            The finest level that takes at most so many bytes, such as ``"2 GiB"``.

        Raises
        ------
        TypeError
            If not exactly one of the three is given.
        IndexError
            If there is no level of that number.
        ValueError
            If no level is as fine or as small as asked, or an axis or unit does not fit.
        """
        given = [one for one in (number, pixel_size, max_bytes) if one is not None]
        if len(given) != 1:
            raise TypeError("expected exactly one of a number, pixel_size= and max_bytes=")
        if number is not None:
            count = len(self._levels)
            if not -count <= number < count:
                raise IndexError(f"level {number}: the image has {count}, counted from 0")
            return self._levels[number]
        if max_bytes is None:
            assert pixel_size is not None
            return self._of_pixel_size(pixel_size)
        most = nbytes_of(max_bytes, "max_bytes")
        for level in self._levels:
            if level.nbytes <= most:
                return level
        smallest = min(self._levels, key=lambda level: level.nbytes)
        raise ValueError(
            f"no level takes at most {most} bytes; the smallest, {smallest.number}, takes "
            f"{smallest.nbytes}"
        )

    def _of_pixel_size(self, wanted: float | Range | Mapping[str, float | Range]) -> Level:
        if not isinstance(wanted, Mapping):
            space = [axis.name for axis in self._metadata.axes if axis.type == "space"]
            wanted = dict.fromkeys(space, wanted)
        if not wanted:
            raise ValueError(f"pixel_size: no axis is named; axes are {', '.join(self.axes)}")
        sizes = {}
        for name, size in wanted.items():
            axis = next((one for one in self._metadata.axes if one.name == name), None)
            if axis is None:
                raise ValueError(f"no axis {name!r}; axes are {', '.join(self.axes)}")
            sizes[name] = _in_unit(size, axis) * _SLACK
        fine = [
            level
            for level in self._levels
            if all(level.scale[name] <= size for name, size in sizes.items())
        ]
        if not fine:
            here = self._levels[0]
            there = ", ".join(
                f"{axis.name} {here.scale[axis.name]:g} {axis.unit.symbol if axis.unit else ''}"
                for axis in self._metadata.axes
                if axis.name in sizes
            )
            raise ValueError(
                f"no level has pixels as small as asked; those of the finest are {there.rstrip()}; "
                "image.level(0) takes it"
            )
        return fine[-1]

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        count = len(self._levels)
        return (
            f"<Image{name} OME-Zarr {self.version}, axes {', '.join(self.axes)}, {count} "
            f"level{'s' * (count != 1)}, {place_of(self.group)}>"
        )


def _metadata_of(
    group: gpustore.Group, attributes: Mapping[str, Any]
) -> tuple[Multiscale, Omero | None]:
    """Return what the attributes of a group say of an image."""
    where = f"{place_of(group)}: "
    version, ome = ome_of(attributes, where)
    below = f"{where}ome" if "ome" in attributes else where
    return multiscale(ome, version, below), omero(ome, below)


def _label_names(group: gpustore.Group) -> list[str]:
    """Return the names of the label images of an image."""
    [node] = group.nodes(["labels"]).result()
    if is_absent(group, node):
        return []
    labels, attributes = group_of(group, "labels", node)
    where = f"{place_of(labels)}: "
    # Writers of 0.5 leave the version out here.
    ome = json_object(attributes.get("ome", attributes), f"{where}ome")
    below = f"{where}ome" if "ome" in attributes else where
    found = optional(ome, "labels", list, below) or []
    named = {f"labels[{number}]": one for number, one in enumerate(found)}
    return [member_path(named, member, below) for member in named]


def _in_unit(size: float | Range, axis: Axis) -> float:
    """Return the size of a pixel in the unit of an axis."""
    if isinstance(size, Range):
        if size.stop is not None:
            raise ValueError(f"{axis.name}: expected one size, got the range {size}")
        given: Unit | None = size.unit
        value = size.start
    else:
        value, given = as_float(size, axis.name), um
        if axis.unit is None or um.factor_to(axis.unit) is None:
            given = axis.unit
    if not value > 0:
        raise ValueError(f"{axis.name}: expected a positive size, got {size}")
    if given is None:
        return value
    if axis.unit is None:
        raise ValueError(f"{axis.name}: the axis has no unit; give the size as a number")
    factor = given.factor_to(axis.unit)
    if factor is None:
        raise ValueError(f"{axis.name}: the unit is {axis.unit.name}, not {given.name}")
    return value * factor
