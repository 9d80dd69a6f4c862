"""Levels of an image: arrays whose dimensions have names, units and places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

import gpustore
from gpustore import MetadataError, NotFoundError
from gpustore.ome.members import place_of
from gpustore.ome.multiscale import Axis
from gpustore.ome.selection import index_of
from gpustore.ome.tiles import Tile, tiles_of
from gpustore.ome.transforms import AxisTransform


class Level:
    """One resolution of an image; its array is opened when it is first asked for.

    Attributes
    ----------
    group : Group
        Group of the image it belongs to.
    number : int
        Position among the levels, 0 is the finest.
    path : str
        Path of the array in the group of the image.
    """

    def __init__(
        self,
        group: gpustore.Group,
        number: int,
        path: str,
        axes: tuple[Axis, ...],
        transform: AxisTransform,
        channels: tuple[str, ...],
    ) -> None:
        self.group = group
        self.number = number
        self.path = path
        self._axes = axes
        self._transform = transform
        self._channels = channels
        self._node: Any = None

    def describe(self, node: Any) -> None:
        """Take what ``group.nodes`` found at the path, so that it is not read again."""
        self._node = node

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, in the order of the dimensions."""
        return tuple(axis.name for axis in self._axes)

    @property
    def scale(self) -> dict[str, float]:
        """Distance of two elements by axis, in the axis's unit."""
        return dict(zip(self.axes, self._transform.scale, strict=True))

    @property
    def translation(self) -> dict[str, float]:
        """Coordinate of the centre of the element 0 by axis, in the axis's unit."""
        return dict(zip(self.axes, self._transform.translation, strict=True))

    @cached_property
    def store(self) -> gpustore.TensorStore:
        """The array; dimensions are labelled with the axes.

        Raises
        ------
        NotFoundError
            If there is no array.
        MetadataError
            If it has another number of dimensions than the image has axes, or is a group.
        """
        try:
            found = self.group.open(self.path if self._node is None else self._node).result()
        except NotFoundError as error:
            named = f"{place_of(self.group)}: multiscales[0].datasets[{self.number}].path"
            raise error.prefixed(named) from None
        where = f"{place_of(found)}: level {self.number}"
        if not isinstance(found, gpustore.TensorStore):
            raise MetadataError(f"{where}: expected an array, found a group")
        if found.rank != len(self.axes):
            raise MetadataError(
                f"{where}: the array has {found.rank} dimensions, the image "
                f"{len(self.axes)} axes ({', '.join(self.axes)})"
            )
        return labelled(found, self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each axis."""
        known = None if self._node is None or self._node.error else self._node.shape
        # What does not fit the axes is an error of the store.
        return known if known is not None and len(known) == len(self._axes) else self.store.shape

    @property
    def dtype(self) -> gpustore.dtype:
        """Data type of the elements."""
        return self.store.dtype

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Shape of a chunk; None if chunks differ."""
        return self.store.chunks

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, decoded."""
        return self.store.nbytes

    def read(self, **options: Any) -> gpustore.Future[Any]:
        """Read the whole level; options are those of :meth:`gpustore.TensorStore.read`."""
        return self.store.read(**options)

    def sel(self, **axes: Any) -> gpustore.TensorStore:
        """Return a part of the level by names of axes; no I/O.

        Parameters
        ----------
        **axes : int, slice, sequence of int, str, sequence of str or Range
            By name of an axis: an index, which takes the axis away, a slice or a list of indices,
            the name of a channel or a list of names, or a physical range such as
            ``ome.um(10, 40)``. Axes that are not named stay whole. Indices are those of the store:
            they begin at 0 and are not counted from the end.

        Returns
        -------
        TensorStore
            Dimensions are labelled with the axes that are left, and keep their indices: a range
            that begins at element 40 has the origin 40.

        Raises
        ------
        TypeError
            If an axis has no such name or no such selection.
        ValueError
            If a channel is not there, or the unit of a range does not fit the axis.
        OutOfBoundsError
            If an index or a range lies outside of the level.

        Notes
        -----
        A range takes the elements whose centres lie in it, the start included, the end not; what
        lies beyond the image is left out. One coordinate (``ome.um(10)``) takes the element whose
        centre is nearest. A millionth of an element is tolerated, so that decimal fractions mean
        what they say.
        """
        unknown = [name for name in axes if name not in self.axes]
        if unknown:
            raise TypeError(f"no axis {unknown[0]!r}; axes are {', '.join(self.axes)}")
        store = self.store
        bounds = zip(store.domain.inclusive_min, store.domain.exclusive_max, strict=True)
        places = zip(self._transform.scale, self._transform.translation, bounds, strict=True)
        indices = tuple(
            index_of(axes[axis.name], axis, scale, start, bound, self._channels)
            if axis.name in axes
            else slice(None)
            for axis, (scale, start, bound) in zip(self._axes, places, strict=True)
        )
        part = store.oindex[indices]
        # An axis that a list indexes has lost its label.
        left = [axis for axis, index in zip(self.axes, indices, strict=True) if not _is_one(index)]
        return labelled(part, left)

    def tiles(
        self,
        *,
        shape: Sequence[int] | None = None,
        overlap: int | Mapping[str, int] = 0,
    ) -> Iterator[Tile]:
        """Yield tiles that cover the level, each with a halo of its neighbours.

        Tiles are whole chunks, or whole shards where there are any, so that different tiles may be
        written at the same time.

        Parameters
        ----------
        shape : sequence of int, optional
            Shape of a tile without its halo, rounded up to whole chunks; one chunk by default.
        overlap : int or dict
            Elements of the halo on each side, along the axes of space or by axis. At the edges of
            the level there are fewer.

        Examples
        --------
        >>> from gpustore import ome
        >>> context = gpustore.Context()
        >>> options = {"shape": (100, 100), "dtype": "float32", "axes": "yx", "context": context}
        >>> image = ome.create("memory://in/", **options, chunks=(50, 100))
        >>> smooth = ome.create("memory://out/", **options)
        >>> for tile in image.level(0).tiles(overlap=8):
        ...     elements = tile.read().result()
        ...     tile.write(elements + 1, smooth.level(0)).result()
        >>> elements.shape
        (58, 100)
        """
        return tiles_of(self.store, self._axes, shape, overlap)

    def __repr__(self) -> str:
        steps = ", ".join(
            f"{axis.name} {step:g} {axis.unit.symbol}"
            for axis, step in zip(self._axes, self._transform.scale, strict=True)
            if axis.unit is not None
        )
        return f"<Level {self.number} {self.path!r}{': ' * bool(steps)}{steps}>"


def labelled(store: gpustore.TensorStore, labels: Sequence[str]) -> gpustore.TensorStore:
    """Return the store with dimensions that have these labels."""
    domain = store.domain
    if domain.labels == tuple(labels):
        return store
    return store[
        gpustore.IndexTransform(
            input_inclusive_min=domain.inclusive_min,
            input_exclusive_max=domain.exclusive_max,
            implicit_lower_bounds=domain.implicit_lower_bounds,
            implicit_upper_bounds=domain.implicit_upper_bounds,
            input_labels=labels,
        )
    ]


def _is_one(index: Any) -> bool:
    """Whether an index takes its axis away."""
    return not isinstance(index, slice) and np.ndim(index) == 0
