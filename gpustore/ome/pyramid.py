"""Pyramids: each level made from the one above, region by region.

**mean** rounds integers to the nearest, halves to the even number; **nearest** takes the first
element of each block; **mode** takes the most frequent one, the smallest of several. **gaussian**
weighs the elements of a block and its neighbours by 1, 3, 3, 1 along each axis that is halved,
where the edge repeats itself, and rounds as mean does. All are :func:`gpustore.downsample`, by
kernels for an image that was opened for a device, where levels are encoded, too.

A document beside the image says which regions of which level are stored, so that a build that
ended in any way is continued by the same call. The image lists a new level once it is complete.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

import gpustore
from gpustore.display.extents import chunk_extents
from gpustore.ome.attributes import dataset_json, restate
from gpustore.ome.filling import fill, plan_of
from gpustore.ome.layout import coarser, level_factors
from gpustore.ome.members import place_of
from gpustore.ome.multiscale import Axis
from gpustore.ome.transforms import AxisTransform
from gpustore.sources.base import Region, Source
from gpustore.transfer.journal import Journal
from gpustore.transfer.plan import LEAST_IN_FLIGHT
from gpustore.transfer.regions import first_interrupt

METHODS: Final = {"mean": "mean", "nearest": "stride", "mode": "mode", "gaussian": "gaussian"}
"""Words for methods, and the methods of :func:`gpustore.downsample`."""

JOURNAL: Final = ".gpustore-pyramid.json"


@dataclass(frozen=True)
class _Step:
    """A level to be made.

    Attributes
    ----------
    path : str
        Path of its array.
    factors : tuple of int
        By how much it is smaller than the level above, along each axis.
    """

    path: str
    factors: tuple[int, ...]


def build(
    group: gpustore.Group,
    version: str,
    axes: Sequence[Axis],
    own: Mapping[str, AxisTransform],
    *,
    method: str,
    levels: int | None,
    memory: int,
    progress: Callable[[int, int], object] | None,
    elements: Source | None = None,
) -> None:
    """Make the levels of an image below the finest; see :meth:`Image.build_pyramid`.

    Parameters
    ----------
    group : Group
        Group of the image.
    version : str
        Version of OME-Zarr.
    axes : sequence of Axis
    own : dict of str to AxisTransform
        Transforms of the levels that the image has, without that of the whole image, by path.
    method, levels, memory, progress
        As those of :meth:`Image.build_pyramid`.
    elements : Source, optional
        Elements of the finest level, which is written first, and the next one with it if possible.
    """
    paths = list(own)
    finest = _stored(group, paths[0])
    steps = _new_steps(finest, axes, paths[0], own[paths[0]], levels)
    journal = _journal(group, method, finest, steps)
    # An image has several levels, too, when the call that makes them ended before the last one.
    if len(paths) > 1 and not journal.found:
        steps = _steps(group, paths, levels)
        journal = _journal(group, method, finest, steps)
    stores = [finest]
    for step in steps:
        stores.append(_array(group, step, stores[-1], finest))
    sources = [
        _source(above, step.factors, method) for above, step in zip(stores[:-1], steps, strict=True)
    ]
    # The elements of a region are read with those it is made of.
    plans = {
        step.path: plan_of(store, source, max(1, memory // (1 + math.prod(step.factors))))
        for step, store, source in zip(steps, stores[1:], sources, strict=True)
    }
    made = None
    if elements is not None:
        made = _write_finest(stores, steps, elements, method, memory, progress)
    if not (journal.found and journal.is_made) or any(
        journal.region(path) != plan.region for path, plan in plans.items()
    ):
        journal.begin(plans)
    if made is not None:
        journal.advance(made, plans[made].count)
    total = sum(plan.nbytes for plan in plans.values())
    before = 0
    transform = own[paths[0]]
    with first_interrupt() as stopped:
        try:
            for step, store, source in zip(steps, stores[1:], sources, strict=True):

                def moving(nbytes: int, before: int = before) -> None:
                    if progress is not None:
                        progress(before + nbytes, total)

                fill(
                    *(store, source),
                    memory=memory,
                    progress=moving,
                    stopped=stopped,
                    plan=plans[step.path],
                    first=journal.done(step.path),
                    advance=partial(journal.advance, step.path),
                )
                if stopped():
                    break
                before += plans[step.path].nbytes
                transform = coarser(transform, step.factors, centred=method != "nearest")
                _list(group, version, step.path, transform, method)
        finally:
            journal.write()
        if stopped():
            raise KeyboardInterrupt("the same call goes on with the pyramid from there")
    journal.remove()


def checked_method(
    method: str | None, levels: int | None, dtype: gpustore.dtype, *, is_label: bool = False
) -> str:
    """Return the method of a pyramid: by default the mean, of label images the mode.

    Raises
    ------
    ValueError, TypeError
        If there is no such method or number of levels, or labels have no such method.
    UnsupportedError
        If the data type has no such method.
    """
    method = method or ("mode" if is_label else "mean")
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    if is_label and method in ("mean", "gaussian"):
        raise ValueError(f"method: {method} of labels is no label; take mode or nearest")
    if levels is not None and operator.index(levels) < 1:
        raise ValueError(f"levels: expected at least 1, got {levels}")
    _source(gpustore.array(np.zeros(1, dtype.array_dtype)), (1,), method)
    return method


def _write_finest(
    stores: Sequence[gpustore.TensorStore],
    steps: Sequence[_Step],
    elements: Source,
    method: str,
    memory: int,
    progress: Callable[[int, int], object] | None,
) -> str | None:
    """Write the finest level, and the next one of the elements that are in memory for that.

    Then the finest one is not read and decoded for it. It takes regions of whole chunks of both
    levels, which must fit in the memory; and neighbours of a region are not in memory.

    Returns
    -------
    str or None
        Path of the level that was made, if one was.
    """
    finest = stores[0]
    plan = plan_of(finest, elements, memory)
    step = next(iter(steps), None)
    if step is None or method == "gaussian" or finest.device != "cpu":
        step = None
    else:
        below, count = stores[1], math.prod(step.factors)
        chunks = chunk_extents(below, "write_chunk")
        blocks = [c * f for c, f in zip(chunks, step.factors, strict=True)]
        both = plan_of(finest, elements, memory * count // (count + 1), blocks)
        # More regions at once gain less than decoding the finest level once more costs.
        enough = min(plan.in_flight, LEAST_IN_FLIGHT)
        if both.in_flight < enough or both.in_flight * both.region_nbytes > memory:
            step = None
        else:
            plan = both

    def beside(place: Region, found: Any) -> gpustore.WriteFutures | None:
        nonlocal step
        # Arrays of other libraries and other types are converted by the write of the finest level.
        if step is None or type(found) is not np.ndarray or found.dtype != finest.dtype.array_dtype:
            step = None
            return None
        view = gpustore.downsample(gpustore.array(found), step.factors, METHODS[method])
        part = zip(place, step.factors, strict=True)
        index = tuple(slice(p.start // f, -(-p.stop // f)) for p, f in part)
        return below[index].write(view.read().result())

    def moving(nbytes: int) -> None:
        if progress is not None:
            progress(nbytes, finest.nbytes)

    with first_interrupt() as stopped:
        fill(
            *(finest, elements),
            memory=memory,
            progress=moving,
            stopped=stopped,
            plan=plan,
            beside=beside,
        )
        if stopped():
            raise KeyboardInterrupt("only a part of the level was written")
    return None if step is None else step.path


def _journal(
    group: gpustore.Group, method: str, finest: gpustore.TensorStore, steps: Sequence[_Step]
) -> Journal:
    """Return the document about the levels, found if a call that makes these has ended early."""
    text = json.dumps([method, list(finest.shape), finest.dtype.name, [vars(s) for s in steps]])
    return Journal(group.kvstore, hashlib.sha256(text.encode()).hexdigest(), JOURNAL)


def _new_steps(
    finest: gpustore.TensorStore,
    axes: Sequence[Axis],
    path: str,
    transform: AxisTransform,
    levels: int | None,
) -> list[_Step]:
    """Return the levels that an image gets which has one."""
    found = level_factors(finest.shape, axes, transform.scale, levels)
    names = (str(number) for number in itertools.count(1))
    return [_Step(next(n for n in names if n != path), factors) for factors in found]


def _steps(group: gpustore.Group, paths: Sequence[str], levels: int | None) -> list[_Step]:
    """Return the levels that an image has."""
    shape = tuple(_stored(group, paths[0]).shape)
    if levels is not None and levels != len(paths):
        raise ValueError(f"levels: the image has {len(paths)}, got {levels}")
    steps = []
    for number, path in enumerate(paths[1:], 1):
        below = tuple(_stored(group, path).shape)
        if len(below) != len(shape):
            raise gpustore.MetadataError(
                f"{place_of(group)}: level {number} has {len(below)} dimensions, "
                f"the finest {len(shape)}"
            )
        factors = tuple(-(-n // m) if m else 1 for n, m in zip(shape, below, strict=True))
        if tuple(-(-n // f) for n, f in zip(shape, factors, strict=True)) != below:
            raise ValueError(
                f"level {number} has the shape {below}, which no whole factors make of {shape}"
            )
        steps.append(_Step(path, factors))
        shape = below
    return steps


def _array(
    group: gpustore.Group,
    step: _Step,
    above: gpustore.TensorStore,
    finest: gpustore.TensorStore,
) -> gpustore.TensorStore:
    """Return the array of a level; a new one has the properties of the finest one."""
    shape = tuple(-(-n // f) for n, f in zip(above.shape, step.factors, strict=True))
    if step.path in group:
        found = _stored(group, step.path)
        if (found.shape, found.dtype) != (shape, finest.dtype):
            raise gpustore.MetadataError(
                f"{place_of(found)}: expected the shape {shape} and the data type "
                f"{finest.dtype.name} of a level, found an array of {found.shape} and "
                f"{found.dtype.name}"
            )
        return found
    options: dict[str, Any] = {"codec": finest.codec, "fill_value": finest.fill_value}
    if finest.shards is None and finest.chunks is not None:
        options["chunks"] = tuple(
            max(1, min(c, n)) for c, n in zip(finest.chunks, shape, strict=True)
        )
    else:
        options["chunk_layout"] = finest.chunk_layout
    if group.zarr_format == 2:
        options["metadata"] = {"dimension_separator": "/"}
    elif all(finest.domain.labels):
        options["dims"] = finest.domain.labels
    return group.create_array(step.path, shape=shape, dtype=finest.dtype, **options).result()


def forget(group: gpustore.Group) -> None:
    """Make the next build begin again, whatever another one has stored."""
    journal = Journal(group.kvstore, "", JOURNAL)
    if journal.other:
        journal.remove()


def _stored(group: gpustore.Group, path: str) -> gpustore.TensorStore:
    """Return the array at a path; MetadataError if there is a group."""
    found = group[path]
    if not isinstance(found, gpustore.TensorStore):
        raise gpustore.MetadataError(f"{place_of(found)}: expected an array, found a group")
    return found


def _source(above: gpustore.TensorStore, factors: tuple[int, ...], method: str) -> Source:
    if method == "gaussian":
        dtype = above.dtype.array_dtype
        if max(factors) > 2:
            raise ValueError(f"gaussian halves axes; got the factors {factors}")
        if dtype.kind not in "iuf" or (dtype.kind in "iu" and dtype.itemsize == 8):
            raise gpustore.UnsupportedError(
                f"gaussian takes integers of up to 32 bits and floats, not {above.dtype.name}"
            )
    view = gpustore.downsample(above, factors, METHODS[method])

    def read(region: Region) -> Any:
        return view[region].read()

    return Source(tuple(view.shape), view.dtype, read, chunks=view.chunks)


def _list(
    group: gpustore.Group, version: str, path: str, transform: AxisTransform, method: str
) -> None:
    """Add a level to those that the image lists, or state its transform again."""

    def listed(stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
        image = stored[0]
        system = ""
        if version == "0.6":
            system = image["datasets"][0]["coordinateTransformations"][0]["output"]["name"]
        dataset = dataset_json(version, path, transform, system)
        known = [one["path"] for one in image["datasets"]]
        if path in known:
            image["datasets"][known.index(path)] |= dataset
        else:
            image["datasets"].append(dataset)
        image["type"] = method
        return stored

    restate(group, version, "multiscales", listed)
