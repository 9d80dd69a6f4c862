"""Opened layers of a stack whose transforms differ in their offsets alone, read together.

Layers that are views of one store, and follow one another in a request, are read as one: the places
of consecutive boxes are steps along the dimension in which the boxes follow one another, or, where
each box is one index long, the values of an index array. Layers whose arrays are stored alike are
read in one pass of the native core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from gpustore.backends.base import Backend, Output
from gpustore.drivers._layer_parts import Opened, Request, read_parts
from gpustore.drivers._layers import Layers
from gpustore.drivers.base import Driver
from gpustore.drivers.chunked import ChunkedDriver
from gpustore.index_space import IndexTransform
from gpustore.index_space.bounds import Box
from gpustore.index_space.domain import make_domain
from gpustore.index_space.output_map import (
    OutputIndexMap,
    OutputIndexMaps,
    array_map,
    constant_map,
    identity_maps,
    input_map,
)
from gpustore.index_space.transform import make_transform
from gpustore.pipelines.alike_reads import AlikeArrays, AlikePart, read_alike
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.planning.chunk_grid import Integers
from gpustore.planning.layer_plan import LayerBoxes, LayerPart
from gpustore.runtime.batch import Batch
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future

FEWEST: Final = 8
FEWEST_NEW: Final = 2
"""Fewest layers of a request that are worth it, and of those that it opens: the constants of the
native core are made for each array that is read by itself."""

_MOST_PLACES: Final = 8
"""Most places at which arrays are read in one pass; with more, each layer is read by itself."""


class Places(NamedTuple):
    """Origins of the boxes of a request in the arrays of their layers.

    Attributes
    ----------
    layer : int64 array, one entry a box
        Position of its layer among the layers.
    first : int64 array of shape (boxes, rank of the arrays)
        Index in the array of the first element of each box.
    along : list of (int, int) or None, one a dimension of the arrays
        Dimension of the request on which it depends, and the step; None for none.
    """

    layer: Integers
    first: Integers
    along: list[tuple[int, int] | None]


@dataclass(frozen=True, eq=False)
class AffineLayers:
    """Layers whose transforms differ in their offsets alone.

    Attributes
    ----------
    opened : callable
        Function from the number of a layer to its driver and the transform from the stack.
    arrays : sequence of Driver
        Drivers of the layers, in their order.
    numbers : int64 array
        Numbers of the layers.
    drivers : int64 array
        Numbers of the drivers; those of views of one store are equal.
    dimensions : tuple of int or None
        Dimension of the stack on which each dimension of the arrays depends.
    strides : tuple of int
        Steps along each of them.
    offsets : int64 array of shape (layers, rank of the arrays)
    """

    opened: Callable[[int], tuple[Driver, IndexTransform]]
    arrays: Sequence[Driver]
    numbers: Integers
    drivers: Integers
    dimensions: tuple[int | None, ...]
    strides: tuple[int, ...]
    offsets: Integers

    @classmethod
    def of(cls, layers: Opened) -> AffineLayers | None:
        """Return layers that a read has opened together; None if that is not worth it."""
        drivers = [driver for driver, _ in layers.values()]
        transforms = [transform for _, transform in layers.values()]
        numbers = np.array([*layers], np.int64)
        if len(drivers) < FEWEST_NEW:
            return None
        return cls._of(layers.__getitem__, numbers, drivers, transforms, None)

    @classmethod
    def of_opened(cls, layers: Layers) -> AffineLayers | None:
        """Return all layers of a stack, which are open; None if that is not worth it."""
        drivers = [driver for driver in layers.drivers if driver is not None]
        numbers = np.arange(len(layers))
        if len(drivers) < FEWEST:
            return None
        return cls._of(layers.opened, numbers, drivers, layers.transforms, layers.axis)

    @classmethod
    def _of(
        cls,
        opened: Callable[[int], tuple[Driver, IndexTransform]],
        numbers: Integers,
        drivers: Sequence[Driver],
        transforms: Sequence[IndexTransform],
        axis: int | None,
    ) -> AffineLayers | None:
        """Return layers together; None if their transforms differ.

        `axis` is a dimension of the stack that the transforms do not have.
        """
        known: dict[int, int] = {}
        places = [known.setdefault(id(driver), len(known)) for driver in drivers]
        maps = [transform.output for transform in transforms]
        columns = list(zip(*maps, strict=True)) if len(set(map(len, maps))) == 1 else None
        if columns is None or not all([driver.readable for driver in drivers]):
            return None
        form, offsets = [], []
        for column in columns:
            first = column[0]
            d, stride = first.input_dimension, first.stride
            if first.index_array is not None:
                return None
            others = [map_ for map_ in column if map_ is not first]
            if any([map_.input_dimension != d or map_.stride != stride for map_ in others]):
                return None
            if d is None and any([map_.index_array is not None for map_ in others]):
                return None
            form.append((d if d is None or axis is None else d + (d >= axis), stride or 0))
            offsets.append([m.offset for m in column])
        return cls(
            opened,
            drivers,
            numbers,
            np.array(places, np.int64),
            tuple([dimension for dimension, _ in form]),
            tuple([stride for _, stride in form]),
            np.array(offsets, np.int64).reshape(len(form), len(drivers)).T,
        )

    @property
    def has_views(self) -> bool:
        """Whether most layers are views of a store of which another one is a view, too."""
        return 2 * int(self.drivers.max() + 1) <= len(self.drivers)

    def places(self, transform: IndexTransform, boxes: LayerBoxes) -> Places:
        """Return where the boxes of an affine request are in the arrays of the layers."""
        index = self.numbers.searchsorted(boxes.layer)
        first = self.offsets[index]
        along: list[tuple[int, int] | None] = []
        for p, (o, step) in enumerate(zip(self.dimensions, self.strides, strict=True)):
            along.append(None)
            if o is None:
                continue
            map_ = transform.output[o]
            first[:, p] += step * map_.offset
            if map_.input_dimension is not None and map_.stride is not None:
                d, stride = map_.input_dimension, step * map_.stride
                first[:, p] += stride * boxes.start[:, d]
                along[p] = d, stride
        return Places(index, first, along)

    def _joined(
        self, transform: IndexTransform, boxes: LayerBoxes, axis: int
    ) -> tuple[list[LayerPart], Opened] | None:
        """Return a request with boxes of views of one store joined; None if they are as many.

        Parameters
        ----------
        transform : IndexTransform
            Request, affine.
        boxes : LayerBoxes
            Plan of the request.
        axis : int
            Dimension of the stack in which the layers follow one another.

        Returns
        -------
        parts : list of LayerPart
        layers : mapping of int to (Driver, IndexTransform)
            Driver of each part, and the transform to it from the box of the part.
        """
        d = transform.output[axis].input_dimension
        if d is None:
            return None
        order = boxes.start[:, d].argsort()
        boxes = LayerBoxes(boxes.layer[order], boxes.start[order], boxes.stop[order])
        index, first, along = self.places(transform, boxes)
        start, stop = boxes.start, boxes.stop
        extent = stop[:, d] - start[:, d]
        follows = self.drivers[index[1:]] == self.drivers[index[:-1]]
        follows &= stop[:-1, d] == start[1:, d]
        for column in (start, stop):
            beside = (column[1:] == column[:-1]).all(axis=1, where=np.arange(len(column[0])) != d)
            follows &= beside
        is_listed = bool((extent == 1).all())
        for p, one in enumerate(along):
            if is_listed and (one is None or one[0] == d):
                continue
            step = one[1] * extent[:-1] if one is not None and one[0] == d else 0
            follows &= first[1:, p] == first[:-1, p] + step
        begins = np.concatenate([[0], np.flatnonzero(~follows) + 1])
        if 2 * len(begins) > len(boxes.layer):
            return None
        parts, layers, labels = [], {}, transform.domain.labels
        for number, (a, b) in enumerate(
            zip(begins.tolist(), [*begins[1:].tolist(), len(boxes.layer)], strict=True)
        ):
            begin, end = start[a].tolist(), stop[b - 1].tolist()
            maps: list[OutputIndexMap] = []
            for p, one in enumerate(along):
                if one is not None and (one[0] != d or not is_listed):
                    maps.append(
                        input_map(int(first[a, p]) - one[1] * begin[one[0]], one[1], one[0])
                    )
                else:
                    maps.append(_map_of(first[a:b, p], d, begin))
            parts.append(LayerPart(number, tuple(begin), tuple(end)))
            driver = self.arrays[int(index[a])]
            explicit = (False,) * len(begin)
            domain = make_domain(Box(tuple(begin), tuple(end), explicit, explicit), labels)
            layers[number] = driver, make_transform(domain, OutputIndexMaps(maps))
        return parts, layers

    def _alike_parts(
        self, transform: IndexTransform, boxes: LayerBoxes, strides: Sequence[int]
    ) -> list[tuple[AlikePart, Integers]] | None:
        """Return the reads of a request, and the numbers of the boxes of each.

        None if there are too many.

        Parameters
        ----------
        transform : IndexTransform
            Request, affine.
        boxes : LayerBoxes
            Plan of the request.
        strides : sequence of int
            Bytes between neighbours in the array that is filled.
        """
        index, first, along = self.places(transform, boxes)
        extents = boxes.stop - boxes.start
        places = np.concatenate([first, extents], axis=1)
        if (places == places[0]).all():
            places, group = places[:1], np.zeros(len(places), np.int64)
        else:
            places, group = np.unique(places, axis=0, return_inverse=True)
        if len(places) > _MOST_PLACES:
            return None
        origin = np.array(transform.domain.inclusive_min, np.int64)
        starts = (boxes.start - origin) @ np.array(strides, np.int64)
        found = []
        rank = first.shape[1]
        for number, place in enumerate(places.tolist()):
            some = np.flatnonzero(group.reshape(-1) == number)
            maps: list[OutputIndexMap] = [
                constant_map(at) if one is None else input_map(at, one[1], one[0])
                for at, one in zip(place[:rank], along, strict=True)
            ]
            shape = tuple(place[rank:])
            explicit = (False,) * len(shape)
            box = Box((0,) * len(shape), shape, explicit, explicit)
            wanted = make_transform(make_domain(box, ("",) * len(shape)), OutputIndexMaps(maps))
            found.append((AlikePart(wanted, index[some], starts[some]), some))
        return found

    @cached_property
    def _alike(self) -> AlikeArrays | None:
        """Arrays of the layers; None if they are not stored alike."""
        arrays: list[ChunkedArray] = []
        places = []
        first: ChunkedDriver | None = None
        for driver in self.arrays:
            if not isinstance(driver, ChunkedDriver) or driver.is_outdated:
                return None
            if first is None or not driver.is_alike(first):
                first = driver
                arrays.append(driver.reader)
                places.append((driver.reader.store, driver.reader.key_prefix))
            else:
                places.append((driver.kvstore.driver, driver.key_prefix))
        return AlikeArrays.of(arrays, places)

    def read(
        self,
        transform: IndexTransform,
        boxes: LayerBoxes,
        axis: int,
        memory: Any,
        output: Output,
        backend: Backend,
        executor: Executor,
        batch: Batch | None,
    ) -> Future[Any] | None:
        """Read a request together; None if each layer is to be read by itself.

        Parameters
        ----------
        transform : IndexTransform
            Request, affine.
        boxes : LayerBoxes
            Plan of the request.
        axis : int
            Dimension of the stack in which the layers follow one another.
        memory : Memory
            Array of `backend` that is filled, made from `output`.
        executor : Executor
        batch : Batch or None
            Batch in which the layers are read.
        """
        domain = transform.domain
        if self.has_views:
            joined = self._joined(transform, boxes, axis)
            if joined is None:
                return None
            parts, layers = joined
            itself = make_transform(domain, identity_maps(domain.rank))
            request = Request(itself, parts, 0, memory.strides)
            return read_parts([request], layers, memory, output, backend, executor, batch)
        if batch is not None or self._alike is None:
            return None
        found = self._alike_parts(transform, boxes, memory.strides)
        if found is None:
            return None

        def read_again(some: Sequence[tuple[int, int]]) -> Future[Any]:
            numbers = np.array([found[part][1][region] for part, region in some])
            left = LayerBoxes(boxes.layer[numbers], boxes.start[numbers], boxes.stop[numbers])
            request = Request(transform, left.parts(), 0, memory.strides)
            layers = {number: self.opened(number) for number in left.layer.tolist()}
            return read_parts([request], layers, memory, output, backend, executor, None)

        reads = [part for part, _ in found]
        return read_alike(self._alike, reads, memory, output.filled(memory), read_again)


def _map_of(values: Integers, d: int, begin: Sequence[int]) -> OutputIndexMap:
    """Return the map whose values along dimension `d` are these, from index ``begin[d]`` on."""
    low = int(values[0])
    step = int(values[1]) - low if len(values) > 1 else 0
    if (values == low + step * np.arange(len(values))).all():
        return input_map(low - step * begin[d], step, d) if step else constant_map(low)
    shape = [len(values) if one == d else 1 for one in range(len(begin))]
    return array_map(0, 1, values.reshape(shape), (int(values.min()), int(values.max()) + 1))
