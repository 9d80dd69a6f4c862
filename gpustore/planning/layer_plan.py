"""Plans of layers: which layer of a stack has which elements of a request.

A layer is a box of the stack's domain; a later one lies over earlier ones. The bounds of all layers
are two columns, so that thousands of them are compared with a request at once. The boxes of layers
that a request meets become boxes of its own domain, from which later ones are cut away. Where index
arrays choose elements, points with the same layers are grouped first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustore.errors import MetadataError, OutOfBoundsError
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.bounds import Box
from gpustore.index_space.composition import crop_arrays
from gpustore.index_space.domain import make_domain
from gpustore.index_space.interval import format_interval
from gpustore.index_space.output_map import (
    OutputIndexMap,
    OutputIndexMaps,
    array_map,
    constant_map,
    input_map,
)
from gpustore.index_space.transform import make_transform
from gpustore.planning.chunk_grid import Integers

_LISTED: Final = 16
"""Most layers whose boxes are found without NumPy, whose calls take longer there."""

Region = tuple[tuple[int, ...], tuple[int, ...]]
"""First indices, and those behind the last ones, along each dimension."""


class LayerPart(NamedTuple):
    """Elements of a request that one layer has.

    Attributes
    ----------
    layer : int
    start, stop : tuple of int
        Their box in the domain of the request.
    points : int64 array or None
        Numbers of the elements within the dimensions that index arrays tie, in C order; None for
        all of the box.
    """

    layer: int
    start: tuple[int, ...]
    stop: tuple[int, ...]
    points: Integers | None = None


class LayerBoxes(NamedTuple):
    """Parts of a request by columns: boxes in its domain, each of another layer.

    Attributes
    ----------
    layer : int64 array of shape (parts,)
    start, stop : int64 array of shape (parts, rank)
    """

    layer: Integers
    start: Integers
    stop: Integers

    def parts(self) -> list[LayerPart]:
        """Return the parts one by one."""
        columns = self.layer.tolist(), self.start.tolist(), self.stop.tolist()
        return [LayerPart(layer, tuple(a), tuple(b)) for layer, a, b in zip(*columns)]


class _Affine(NamedTuple):
    """Output that is a constant, or a step of one input dimension."""

    output: int
    dimension: int | None
    offset: int
    stride: int


@dataclass(frozen=True, eq=False)
class LayerBounds:
    """Bounds of the layers of a stack.

    Attributes
    ----------
    whole : IndexDomain
        Domain of the stack.
    low, high : int64 array of shape (layers, rank)
        First index of each layer along each dimension, and the one behind the last.
    """

    whole: IndexDomain
    low: Integers
    high: Integers

    @cached_property
    def axis(self) -> int | None:
        """Dimension along which each layer begins behind the one before it; None without one."""
        behind = (self.low[1:] >= self.high[:-1]).all(axis=0)
        found = np.flatnonzero(behind)
        return int(found[0]) if len(found) else None

    def between(self, low: Sequence[int], high: Sequence[int]) -> tuple[int, int]:
        """Return the first layer that may have elements of a box, and the one behind the last."""
        axis = self.axis
        if axis is None:
            return 0, len(self.low)
        first = int(self.high[:, axis].searchsorted(low[axis], "right"))
        return first, max(first, int(self.low[:, axis].searchsorted(high[axis], "left")))

    def meeting(self, low: Sequence[int], high: Sequence[int]) -> Integers:
        """Return the numbers of the layers that have elements of a box, in order."""
        first, last = self.between(low, high)
        meets = (self.low[first:last] < high) & (self.high[first:last] > low)
        return np.flatnonzero(meets.all(axis=1)) + first

    def missing(self, point: Sequence[int]) -> MetadataError:
        """Return the error for a point that no layer has."""
        origin = []
        for d, index in enumerate(point):
            edges = np.concatenate([self.low[:, d], self.high[:, d]])
            if not len(edges):
                edges = np.array(self.whole.inclusive_min[d : d + 1], np.int64)
            below = edges[edges <= index]
            origin.append(str(below.max() if len(below) else index))
        return MetadataError(
            f'Cell with origin={{{", ".join(origin)}}} missing layer mapping in "stack" driver'
        )


def plan_layers(bounds: LayerBounds, transform: IndexTransform) -> list[LayerPart]:
    """Divide the domain of `transform`, which maps to that of a stack, among the layers.

    Raises
    ------
    MetadataError
        If no layer has some of the elements.
    OutOfBoundsError
        If a value of an index array is outside its range.
    """
    domain = transform.domain
    if 0 in domain.shape:
        return []
    start, stop = domain.inclusive_min, domain.exclusive_max
    tied = _tied_dimensions(transform)
    if tied:
        return list(_through_arrays(bounds, transform, tied))
    maps = _affine(transform, {d: d for d in range(domain.rank)})
    return [LayerPart(layer, *region) for layer, region in _visible(bounds, maps, start, stop)]


def plan_boxes(bounds: LayerBounds, transform: IndexTransform) -> LayerBoxes | None:
    """Divide the domain of `transform` among layers that follow one another, by columns.

    None if layers may overlap, an index array chooses elements, or a layer has none of some.
    """
    domain = transform.domain
    if (
        bounds.axis is None
        or 0 in domain.shape
        or any(map_.index_array is not None for map_ in transform.output)
    ):
        return None
    maps = _affine(transform, {d: d for d in range(domain.rank)})
    boxes = _boxes(bounds, maps, domain.inclusive_min, domain.exclusive_max)
    if int((boxes.stop - boxes.start).prod(axis=1).sum()) != domain.size:
        return None
    return boxes


def part_transform(transform: IndexTransform, part: LayerPart) -> IndexTransform:
    """Return the transform from the elements of a part to the domain of the stack.

    The domain is the box of the part. With points, these are the first dimension, and those that
    index arrays do not tie follow.
    """
    domain, rank = transform.domain, len(part.start)
    if part.points is None:
        explicit = (False,) * rank
        box = Box(part.start, part.stop, explicit, explicit)
        maps = transform.output
        if any(map_.index_array is not None for map_ in maps):
            maps = crop_arrays(maps, domain.box, box)
        return make_transform(make_domain(box, domain.labels), maps)
    tied = _tied_dimensions(transform)
    free = [d for d in range(rank) if d not in tied]
    explicit = (False,) * (1 + len(free))
    box = Box(
        (0, *(part.start[d] for d in free)),
        (len(part.points), *(part.stop[d] for d in free)),
        explicit,
        explicit,
    )
    renamed = {d: at for at, d in enumerate(free, 1)}
    found: list[OutputIndexMap] = []
    for map_ in transform.output:
        values = _values(map_, domain, tied)
        if values is not None:
            chosen = values[part.points].reshape(-1, *[1] * len(free))
            found.append(array_map(0, 1, chosen, (int(chosen.min()), int(chosen.max()) + 1)))
        elif map_.input_dimension is not None and map_.stride is not None:
            found.append(input_map(map_.offset, map_.stride, renamed[map_.input_dimension]))
        else:
            found.append(constant_map(_constant(map_)))
    return make_transform(make_domain(box, ("",) * len(explicit)), OutputIndexMaps(found))


def place_of(part: LayerPart, transform: IndexTransform) -> tuple[tuple[int, ...], Any]:
    """Return where the elements of a part with points are in the array of the request.

    Returns
    -------
    axes : tuple of int
        Order of the dimensions of the array: those that index arrays tie first.
    index : tuple
        Index of the elements in the array with its dimensions in that order.
    """
    domain = transform.domain
    tied = _tied_dimensions(transform)
    free = [d for d in range(domain.rank) if d not in tied]
    assert part.points is not None
    numbers = np.unravel_index(part.points, [domain.shape[d] for d in tied])
    origin = domain.inclusive_min
    slices = [slice(part.start[d] - origin[d], part.stop[d] - origin[d]) for d in free]
    return (*tied, *free), (*numbers, *slices)


def _tied_dimensions(transform: IndexTransform) -> list[int]:
    """Return the input dimensions that index arrays depend on."""
    arrays = [map_.index_array for map_ in transform.output if map_.index_array is not None]
    return sorted({d for array in arrays for d, size in enumerate(array.shape) if size > 1})


def _constant(map_: OutputIndexMap) -> int:
    """Return the value of a map that depends on no input dimension."""
    if map_.index_array is None or map_.stride is None:
        return map_.offset
    return map_.offset + map_.stride * int(map_.index_array.reshape(-1)[0])


def _affine(transform: IndexTransform, renamed: dict[int, int]) -> list[_Affine]:
    """Return the outputs that depend on no dimension but those of `renamed`, by its numbers."""
    found = []
    for o, map_ in enumerate(transform.output):
        d = map_.input_dimension
        if d is not None and map_.stride is not None:
            if d in renamed:
                found.append(_Affine(o, renamed[d], map_.offset, map_.stride))
        elif map_.index_array is None or map_.index_array.size == 1:
            _check_range(map_)
            found.append(_Affine(o, None, _constant(map_), 0))
    return found


def _values(
    map_: OutputIndexMap, domain: IndexDomain, tied: Sequence[int]
) -> NDArray[np.int64] | None:
    """Return the values of an output that index arrays tie to others, one for each point."""
    shape = tuple([domain.shape[d] for d in tied])
    d = map_.input_dimension
    if map_.stride is None:
        return None
    if d is not None:
        if d not in tied:
            return None
        steps = np.arange(domain.inclusive_min[d], domain.exclusive_max[d])
        along = steps.reshape([-1 if one == d else 1 for one in tied])
    else:
        assert map_.index_array is not None
        if map_.index_array.size == 1:
            return None
        along = map_.index_array.transpose(
            [*tied, *(one for one in range(domain.rank) if one not in tied)]
        ).reshape([map_.index_array.shape[one] for one in tied])
    return np.broadcast_to(map_.offset + map_.stride * along, shape).reshape(-1)


def _check_range(map_: OutputIndexMap) -> None:
    array = map_.index_array
    if array is None or not array.size:
        return
    low, stop = map_.bounds
    outside = array[(array < low) | (array >= stop)]
    if outside.size:
        raise OutOfBoundsError(
            f"Index {outside.reshape(-1)[0]} is outside valid range {format_interval(low, stop)}"
        )


def _through_arrays(
    bounds: LayerBounds, transform: IndexTransform, tied: Sequence[int]
) -> Iterator[LayerPart]:
    """Divide a request in which index arrays choose elements."""
    domain = transform.domain
    free = [d for d in range(domain.rank) if d not in tied]
    maps = _affine(transform, {d: at for at, d in enumerate(free)})
    start = tuple([domain.inclusive_min[d] for d in free])
    stop = tuple([domain.exclusive_max[d] for d in free])
    columns: dict[int, NDArray[np.int64]] = {}
    for o, map_ in enumerate(transform.output):
        values = _values(map_, domain, tied)
        if values is not None:
            _check_range(map_)
            columns[o] = values
    code = np.zeros(math.prod(domain.shape[d] for d in tied), np.int64)
    for o, values in columns.items():
        edges = np.unique(np.concatenate([bounds.low[:, o], bounds.high[:, o]]))
        cells = edges.searchsorted(values, "right")
        _, code = np.unique(code * (len(edges) + 1) + cells, return_inverse=True)
    order = code.argsort(kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(code[order])) + 1)
    runs = np.flatnonzero(np.diff(code)) + 1
    is_listed = len(tied) > 1 or len(runs) >= len(groups)
    for points in groups:
        first = {o: int(values[points[0]]) for o, values in columns.items()}
        fixed = [_Affine(o, None, value, 0) for o, value in first.items()]
        region = list(domain.inclusive_min), list(domain.exclusive_max)
        if not is_listed:  # Each group is an interval.
            region[0][tied[0]] += int(points[0])
            region[1][tied[0]] = region[0][tied[0]] + len(points)
        for layer, part in _visible(bounds, [*maps, *fixed], start, stop):
            for at, d in enumerate(free):
                region[0][d], region[1][d] = part[0][at], part[1][at]
            listed = points if is_listed else None
            yield LayerPart(layer, tuple(region[0]), tuple(region[1]), listed)


def _visible(
    bounds: LayerBounds, maps: Sequence[_Affine], start: tuple[int, ...], stop: tuple[int, ...]
) -> Iterator[tuple[int, Region]]:
    """Yield the layers that a box of inputs meets, and the parts of it that they have."""
    boxes = _boxes(bounds, maps, start, stop)
    if bounds.axis is None and len(boxes.layer) > 1:
        found = list(_uncovered(*boxes))
    else:
        found = [(part.layer, (part.start, part.stop)) for part in boxes.parts()]
    wanted = math.prod([b - a for a, b in zip(start, stop)])
    there = sum([math.prod([b - a for a, b in zip(*region)]) for _, region in found])
    if there != wanted:
        rest = [(start, stop)]
        for _, region in found:
            rest = [piece for one in rest for piece in _without(one, region)]
        at = min(rest)[0]
        point = [0] * len(maps)
        for o, d, offset, stride in maps:
            point[o] = offset if d is None else offset + stride * at[d]
        raise bounds.missing(point)
    yield from found


def _boxes(
    bounds: LayerBounds, maps: Sequence[_Affine], start: tuple[int, ...], stop: tuple[int, ...]
) -> LayerBoxes:
    """Return the layers that a box of inputs meets, and the boxes of inputs that lie in them."""
    low, high = [0] * len(maps), [0] * len(maps)
    for o, d, offset, stride in maps:
        ends = (offset, offset)
        if d is not None:
            ends = offset + stride * start[d], offset + stride * (stop[d] - 1)
        low[o], high[o] = min(ends), max(ends) + 1
    some = bounds.between(low, high)
    if some[1] - some[0] <= _LISTED:
        return _listed_boxes(bounds, some, maps, start, stop)
    ids = bounds.meeting(low, high)
    begin = np.tile(np.array(start, np.int64), (len(ids), 1))
    end = np.tile(np.array(stop, np.int64), (len(ids), 1))
    for o, d, offset, stride in maps:
        if d is None:
            continue
        # Indices beyond those of the request, which may be infinite, count as its own ends.
        first = bounds.low[ids, o].clip(low[o], high[o])
        last = bounds.high[ids, o].clip(low[o], high[o])
        if stride < 0:
            first, last, offset, stride = 1 - last, 1 - first, -offset, -stride
        np.maximum(begin[:, d], -((offset - first) // stride), out=begin[:, d])
        np.minimum(end[:, d], -((offset - last) // stride), out=end[:, d])
    kept = np.flatnonzero((begin < end).all(axis=1))
    return LayerBoxes(ids[kept], begin[kept], end[kept])


def _listed_boxes(
    bounds: LayerBounds,
    some: tuple[int, int],
    maps: Sequence[_Affine],
    start: tuple[int, ...],
    stop: tuple[int, ...],
) -> LayerBoxes:
    """Return the boxes of a few layers, which Python finds sooner than NumPy."""
    rows = slice(*some)
    found: list[tuple[int, list[int], list[int]]] = []
    bounds_of = zip(bounds.low[rows].tolist(), bounds.high[rows].tolist())
    for layer, (low, high) in enumerate(bounds_of, some[0]):
        begin, end = list(start), list(stop)
        for o, d, offset, stride in maps:
            first, last = low[o], high[o]
            if d is None:
                if not first <= offset < last:
                    break
                continue
            if stride < 0:
                first, last, offset, stride = 1 - last, 1 - first, -offset, -stride
            begin[d] = max(begin[d], -((offset - first) // stride))
            end[d] = min(end[d], -((offset - last) // stride))
            if begin[d] >= end[d]:
                break
        else:
            found.append((layer, begin, end))
    shape = len(found), len(start)
    layers, begins, ends = zip(*found) if found else ((), (), ())
    return LayerBoxes(
        np.array(layers, np.int64),
        np.array(begins, np.int64).reshape(shape),
        np.array(ends, np.int64).reshape(shape),
    )


def _uncovered(ids: Integers, begin: Integers, end: Integers) -> Iterator[tuple[int, Region]]:
    """Yield the parts of boxes that no later box covers."""
    for i, layer in enumerate(ids.tolist()):
        covers = (begin[i + 1 :] < end[i]) & (end[i + 1 :] > begin[i])
        rest = [(tuple(begin[i].tolist()), tuple(end[i].tolist()))]
        for j in (np.flatnonzero(covers.all(axis=1)) + i + 1).tolist():
            later = tuple(begin[j].tolist()), tuple(end[j].tolist())
            rest = [piece for one in rest for piece in _without(one, later)]
        for region in rest:
            yield layer, region


def _without(region: Region, other: Region) -> Iterator[Region]:
    """Yield the boxes that are left of a region without another one."""
    start, stop = list(region[0]), list(region[1])
    if any(a >= d or b <= c for a, b, c, d in zip(start, stop, *other)):
        yield region
        return
    for d, (low, high) in enumerate(zip(*other)):
        if start[d] < low:
            yield tuple(start), (*stop[:d], low, *stop[d + 1 :])
            start[d] = low
        if stop[d] > high:
            yield (*start[:d], high, *start[d + 1 :]), tuple(stop)
            stop[d] = high
