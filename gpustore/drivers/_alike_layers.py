"""Layers of a stack that are stored alike, read in one pass of the native core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpustore.backends.base import Backend, Output
from gpustore.drivers._layer_parts import Opened, Request, read_parts
from gpustore.drivers.chunked import ChunkedDriver
from gpustore.index_space import IndexTransform
from gpustore.index_space.bounds import Box
from gpustore.index_space.domain import make_domain
from gpustore.index_space.output_map import (
    OutputIndexMap,
    OutputIndexMaps,
    constant_map,
    input_map,
)
from gpustore.index_space.transform import make_transform
from gpustore.pipelines.alike_reads import AlikeArrays, AlikePart, read_alike
from gpustore.planning.chunk_grid import Integers
from gpustore.planning.layer_plan import LayerBoxes, LayerPart
from gpustore.runtime.future import Future

_FEWEST: Final = 8
"""Fewest layers of a request that are worth it."""

_MOST_PLACES: Final = 8
"""Most places at which the arrays are read; with more, each layer is read by itself."""


@dataclass(frozen=True, eq=False)
class AlikeLayers:
    """Layers whose arrays are stored alike, and whose transforms differ in their offsets alone.

    Attributes
    ----------
    layers : mapping of int to (Driver, IndexTransform)
        Drivers by the numbers of the layers, in their order, and transforms from the stack.
    numbers : int64 array
        These numbers.
    arrays : AlikeArrays
    dimensions : tuple of int or None
        Dimension of the stack on which each dimension of the arrays depends.
    strides : tuple of int
        Steps along each of them.
    offsets : int64 array of shape (layers, rank of the arrays)
    """

    layers: Opened
    numbers: Integers
    arrays: AlikeArrays
    dimensions: tuple[int | None, ...]
    strides: tuple[int, ...]
    offsets: Integers

    @classmethod
    def of(cls, layers: Opened) -> AlikeLayers | None:
        """Return opened layers together; None if they are few or not alike."""
        if len(layers) < _FEWEST:
            return None
        arrays, offsets, forms = [], [], set()
        for driver, transform in layers.values():
            if not isinstance(driver, ChunkedDriver) or driver.is_outdated:
                return None
            maps = transform.output
            if not driver.readable or any([map_.index_array is not None for map_ in maps]):
                return None
            arrays.append(driver.reader)
            offsets.append([map_.offset for map_ in maps])
            forms.add(tuple([(map_.input_dimension, map_.stride) for map_ in maps]))
        if len(forms) > 1:
            return None
        found = AlikeArrays.of(arrays)
        if found is None:
            return None
        (form,) = forms
        return cls(
            layers,
            np.array([*layers], np.int64),
            found,
            tuple([dimension for dimension, _ in form]),
            tuple([stride or 0 for _, stride in form]),
            np.array(offsets, np.int64).reshape(len(layers), len(form)),
        )

    def parts(
        self, transform: IndexTransform, boxes: LayerBoxes, strides: Sequence[int]
    ) -> list[tuple[AlikePart, Integers]] | None:
        """Return the reads of a request, and the numbers of the boxes of each.

        None if there are too many, or the request meets few layers.

        Parameters
        ----------
        transform : IndexTransform
            Request, affine.
        boxes : LayerBoxes
            Plan of the request.
        strides : sequence of int
            Bytes between neighbours in the array that is filled.
        """
        domain = transform.domain
        if len(boxes.layer) < _FEWEST:
            return None
        extents = boxes.stop - boxes.start
        index = self.numbers.searchsorted(boxes.layer)
        offsets = self.offsets[index]
        first = np.empty_like(offsets)
        along: list[tuple[int, int] | None] = []
        for p, (o, step) in enumerate(zip(self.dimensions, self.strides, strict=True)):
            first[:, p] = offsets[:, p]
            along.append(None)
            if o is None:
                continue
            map_ = transform.output[o]
            first[:, p] += step * map_.offset
            if map_.input_dimension is not None and map_.stride is not None:
                d, stride = map_.input_dimension, step * map_.stride
                first[:, p] += stride * boxes.start[:, d]
                along[p] = d, stride
        places, group = np.unique(
            np.concatenate([first, extents], axis=1), axis=0, return_inverse=True
        )
        if len(places) > _MOST_PLACES:
            return None
        starts = (boxes.start - np.array(domain.inclusive_min, np.int64)) @ np.array(
            strides, np.int64
        )
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


def read_together(
    alike: AlikeLayers,
    transform: IndexTransform,
    boxes: LayerBoxes,
    memory: Any,
    output: Output,
    backend: Backend,
) -> Future[Any] | None:
    """Read a request in one pass; None if it meets few layers, or these at many places.

    Parameters
    ----------
    transform : IndexTransform
        Request.
    boxes : LayerBoxes
        Plan of the request.
    memory : Memory
        Array that is filled, made from `output`.
    """
    found = alike.parts(transform, boxes, memory.strides)
    if not found:
        return None

    def read_again(some: Sequence[tuple[int, int]]) -> Future[Any]:
        numbers = [int(found[part][1][region]) for part, region in some]
        parts = [
            LayerPart(
                int(boxes.layer[number]),
                tuple(boxes.start[number].tolist()),
                tuple(boxes.stop[number].tolist()),
            )
            for number in numbers
        ]
        request = Request(transform, parts, 0, memory.strides)
        layers = {part.layer: alike.layers[part.layer] for part in parts}
        executor = alike.arrays.first.executor
        return read_parts([request], layers, memory, output, backend, executor, None)

    reads = [part for part, _ in found]
    return read_alike(alike.arrays, reads, memory, output.filled(memory), read_again)
