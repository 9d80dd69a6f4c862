"""Parts of a level by names of axes: indices, names of channels, physical ranges.

**Rounding.** Coordinates are those of the centres of elements, as the specification has them. A
range takes the elements whose centre lies in it, the start included and the end not; one coordinate
takes the element whose centre is nearest, the higher one of two. A coordinate that is within a
millionth of an element of a centre, or of the middle between two, counts as there, so that decimal
fractions mean what they say.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from gpustore import OutOfBoundsError
from gpustore.ome.multiscale import Axis
from gpustore.ome.units import Range

_TOLERANCE: Final = 1e-6


def index_of(
    selected: Any,
    axis: Axis,
    scale: float,
    translation: float,
    bounds: tuple[int, int],
    channels: Sequence[str],
) -> Any:
    """Return the index expression for one axis.

    Parameters
    ----------
    selected : int, slice, sequence of int, str, sequence of str or Range
        What the caller wants of the axis.
    axis : Axis
        The axis.
    scale, translation : float
        Distance of two elements, coordinate of the element 0.
    bounds : (int, int)
        First index of the axis, and the one behind the last.
    channels : sequence of str
        Names of channels; used for an axis of channels only.

    Raises
    ------
    TypeError
        If there is no such selection on the axis.
    ValueError
        If there is no channel of that name, or more than one, or the units differ.
    OutOfBoundsError
        If a physical range has no element of the axis.
    """
    if isinstance(selected, Range):
        return _physical(selected, axis, scale, translation, bounds)
    if isinstance(selected, str):
        return _channel(selected, axis, channels)
    if isinstance(selected, Sequence) and any(isinstance(one, str) for one in selected):
        return [_channel(one, axis, channels) for one in selected]
    if isinstance(selected, slice) and any(
        isinstance(end, float | Range) for end in (selected.start, selected.stop, selected.step)
    ):
        raise TypeError(
            f"{axis.name}: slices have indices; physical ranges are made by units, as in "
            "ome.um(10, 40)"
        )
    if isinstance(selected, float):
        raise TypeError(
            f"{axis.name}: expected an index, got {selected!r}; a coordinate has a unit, as in "
            f"ome.um({selected!r})"
        )
    if isinstance(selected, slice):
        back = selected.step is not None and operator.index(selected.step) < 0
        for end in (selected.start, selected.stop):
            if end is not None and not bounds[0] - back <= operator.index(end) <= bounds[1] - back:
                raise _no_index(end, axis, bounds)
        return selected
    indices = np.asarray(selected)
    wrong = indices.ndim > 1 or (indices.dtype.kind not in "iub" and indices.size)
    if wrong or isinstance(selected, bool):
        raise TypeError(f"{axis.name}: expected an index, a slice or a list, got {selected!r:.80}")
    if indices.dtype.kind == "b" and indices.size != bounds[1] - bounds[0]:
        raise ValueError(
            f"{axis.name}: expected a mask of {bounds[1] - bounds[0]} elements, got {indices.size}"
        )
    if indices.dtype.kind in "iu":
        outside = (indices < bounds[0]) | (indices >= bounds[1])
        if outside.any():
            raise _no_index(int(indices[outside].flat[0]), axis, bounds)
    return selected


def _no_index(index: int, axis: Axis, bounds: tuple[int, int]) -> OutOfBoundsError:
    return OutOfBoundsError(
        f"{axis.name}: index {index} lies outside of [{bounds[0]}, {bounds[1]}); indices are "
        "counted from the first element of the level"
    )


def _channel(name: str, axis: Axis, channels: Sequence[str]) -> int:
    if axis.type not in ("channel", None) or (axis.type is None and axis.name != "c"):
        raise TypeError(f"{axis.name}: names are for axes of channels, this one is of {axis.type}")
    if not isinstance(name, str):
        raise TypeError(f"{axis.name}: expected names of channels, got {name!r} among them")
    found = [number for number, one in enumerate(channels) if one == name]
    if len(found) != 1:
        count = "no channel" if not found else f"{len(found)} channels"
        there = ", ".join(map(repr, channels)) if any(channels) else "they have no names"
        raise ValueError(f"{axis.name}: {count} {name!r}; channels: {there}")
    return found[0]


def _physical(
    wanted: Range, axis: Axis, scale: float, translation: float, bounds: tuple[int, int]
) -> Any:
    if axis.unit is None:
        raise ValueError(
            f"{axis.name}: the axis has no unit, so that {wanted} says nothing; give indices"
        )
    factor = wanted.unit.factor_to(axis.unit)
    if factor is None:
        raise ValueError(f"{axis.name}: the unit is {axis.unit.name}, not {wanted.unit.name}")
    start = (wanted.start * factor - translation) / scale
    lowest, behind = bounds
    if wanted.stop is None:
        if not math.isfinite(start):
            raise ValueError(f"{axis.name}: expected a finite coordinate, got {wanted}")
        nearest = math.floor(start + 0.5 + _TOLERANCE)
        if not lowest <= nearest < behind:
            raise _outside(wanted, axis, scale, translation, bounds)
        return nearest
    stop = (wanted.stop * factor - translation) / scale
    if not start < stop:
        raise ValueError(f"{axis.name}: expected a start below the end, got {wanted}")
    first = lowest if start <= lowest else math.ceil(min(start, behind) - _TOLERANCE)
    end = behind if stop >= behind else math.ceil(max(stop, lowest) - _TOLERANCE)
    if not first < end:
        raise _outside(wanted, axis, scale, translation, bounds)
    return slice(first, end)


def _outside(
    wanted: Range, axis: Axis, scale: float, translation: float, bounds: tuple[int, int]
) -> OutOfBoundsError:
    assert axis.unit is not None
    first, last = (translation + scale * index for index in (bounds[0], bounds[1] - 1))
    return OutOfBoundsError(
        f"{axis.name}: no centre of an element lies at {wanted}; they lie from {first:g} to "
        f"{last:g} {axis.unit.symbol}, {scale:g} apart"
    )
