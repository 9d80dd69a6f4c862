"""Tiles of a level: parts of whole chunks or shards, each with a halo of its neighbours."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gpustore
from gpustore.display.extents import chunk_extents
from gpustore.ome.multiscale import Axis

Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Tile:
    """Part of a level, with a halo of elements around it.

    Attributes
    ----------
    store : TensorStore
        Array of the level.
    inner : tuple of slice
        The part; parts of all tiles cover the level once.
    outer : tuple of slice
        The part with its halo, as far as the level has one.
    """

    store: gpustore.TensorStore
    inner: Slices
    outer: Slices

    def read(self, **options: Any) -> gpustore.Future[Any]:
        """Read the part with its halo; options are those of :meth:`gpustore.TensorStore.read`."""
        return self.store[self.outer].read(**options)

    @property
    def core(self) -> Slices:
        """Place of the part in the result of :meth:`read`: ``tile.read().result()[tile.core]``."""
        return tuple(
            slice(part.start - all_.start, part.stop - all_.start)
            for part, all_ in zip(self.inner, self.outer, strict=True)
        )

    def write(self, elements: Any, to: Any) -> gpustore.WriteFutures:
        """Write a result at the place of the part.

        Parameters
        ----------
        elements : array
            Elements of the part, or of the part with its halo, which is cut off.
        to : Level or TensorStore
            Array of the shape of the level that the tile is of.

        Raises
        ------
        ValueError
            If the shape of `elements` is neither.
        """
        target = to if isinstance(to, gpustore.TensorStore) else to.store
        shape = tuple(elements.shape)
        if shape == _shape(self.outer):
            elements = elements[self.core]
        elif shape != _shape(self.inner):
            raise ValueError(
                f"expected elements of shape {_shape(self.outer)} or {_shape(self.inner)}, "
                f"got {shape}"
            )
        return target[self.inner].write(elements)


def tiles_of(
    store: gpustore.TensorStore,
    axes: Sequence[Axis],
    shape: Sequence[int] | None,
    overlap: int | Mapping[str, int],
) -> Iterator[Tile]:
    """Yield the tiles of an array; see :meth:`Level.tiles`."""
    names = [axis.name for axis in axes]
    if not isinstance(overlap, Mapping):
        overlap = {axis.name: overlap for axis in axes if axis.type == "space"}
    for name, extent in overlap.items():
        if name not in names:
            raise ValueError(f"overlap: no axis {name!r}; axes are {', '.join(names)}")
        if operator.index(extent) < 0:
            raise ValueError(f"overlap: expected at least 0 elements, got {extent}")
    halo = [overlap.get(name, 0) for name in names]
    stored = chunk_extents(store, "write_chunk")
    if shape is not None and (len(shape) != len(names) or min(shape) < 1):
        raise ValueError(f"shape: expected {len(names)} positive extents, got {tuple(shape)}")
    sides = (
        stored
        if shape is None
        else [-(-operator.index(n) // c) * c for n, c in zip(shape, stored, strict=True)]
    )
    lowest, highest = store.domain.inclusive_min, store.domain.exclusive_max
    starts = [range(lo, hi, side) for lo, hi, side in zip(lowest, highest, sides, strict=True)]
    return _tiles(store, starts, halo)


def _tiles(
    store: gpustore.TensorStore, starts: Sequence[range], halo: Sequence[int]
) -> Iterator[Tile]:
    for place in itertools.product(*starts):
        inner, outer = [], []
        for begin, along, around in zip(place, starts, halo, strict=True):
            end = min(begin + along.step, along.stop)
            inner.append(slice(begin, end))
            outer.append(slice(max(along.start, begin - around), min(along.stop, end + around)))
        yield Tile(store, tuple(inner), tuple(outer))


def _shape(slices: Slices) -> tuple[int, ...]:
    return tuple(one.stop - one.start for one in slices)
