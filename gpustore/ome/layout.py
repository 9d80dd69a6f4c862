"""Properties of new images: axes by short words, shapes of chunks, factors between levels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from gpustore.ome.multiscale import Axis, in_order, order_of
from gpustore.ome.transforms import AxisTransform
from gpustore.ome.units import Unit, as_float, unit

_TYPES: Final = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}
_CHUNK_NBYTES: Final = 1 << 20
_SMALL: Final = 256
"""Extent of the two last axes of a coarsest level that is chosen."""


def axes_of(axes: str | Sequence[Any], units: str | Mapping[str, Any] | None) -> tuple[Axis, ...]:
    """Return axes by short words.

    Parameters
    ----------
    axes : str or sequence of str or Axis
        Names such as ``"tczyx"`` or ``("z", "y", "x")``; t is of time, c of channels, z, y and x of
        space. An :class:`Axis` stays as it is.
    units : str or dict, optional
        Unit of the axes of space, or units by axis: ``"um"``, ``{"t": "s", "x": "nm"}``.

    Raises
    ------
    ValueError
        If there are not 2 to 5 axes with 2 or 3 of space, in the order time, channel, space.
    """
    found = [
        one if isinstance(one, Axis) else Axis(str(one), _TYPES.get(str(one)), None) for one in axes
    ]
    names = [axis.name for axis in found]
    shown = ", ".join(names)
    if len(set(names)) != len(names):
        raise ValueError(f"axes: expected different names, got {shown}")
    space = [axis.name for axis in found if axis.type == "space"]
    if not 2 <= len(found) <= 5 or not 2 <= len(space) <= 3:
        raise ValueError(f"axes: expected 2 to 5, 2 or 3 of them of space (z, y, x), got {shown}")
    times = sum(axis.type == "time" for axis in found)
    if not in_order(found) or times > 1 or len(found) - times - len(space) > 1:
        raise ValueError(f"axes: expected time, then channels, then space, got {shown}")
    given = {} if units is None else units
    if not isinstance(given, Mapping):
        given = dict.fromkeys(space, given)
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ValueError(f"units: no axis {unknown[0]!r}; axes are {shown}")
    return tuple(
        Axis(axis.name, axis.type, _unit(given.get(axis.name), axis.name) or axis.unit)
        for axis in found
    )


def axes_in_order(names: Sequence[str]) -> list[str]:
    """Return names of axes in the order of OME-Zarr.

    >>> axes_in_order("zcyx")
    ['c', 'z', 'y', 'x']
    """
    return [names[d] for d in order_of([Axis(name, _TYPES.get(name), None) for name in names])]


def _unit(value: Any, name: str) -> Unit | None:
    if value is None or isinstance(value, Unit):
        return value
    if not isinstance(value, str):
        raise TypeError(f"units: {name}: expected a name such as 'um', got {value!r}")
    return unit(value)


def numbers_of(
    values: float | Sequence[float] | Mapping[str, float] | None,
    axes: Sequence[Axis],
    default: float,
    parameter: str,
) -> tuple[float, ...]:
    """Return a number for each axis.

    Parameters
    ----------
    values : float, sequence of float or dict, optional
        By axis; in the order of all axes, or of those of space; or one for all axes of space.
    axes : sequence of Axis
    default : float
        For axes that have none.
    parameter : str
        Name of the parameter, for errors.
    """
    names = [axis.name for axis in axes]
    space = [axis.name for axis in axes if axis.type == "space"]
    if values is None:
        values = {}
    elif not isinstance(values, Mapping):
        if isinstance(values, int | float | np.number):
            values = dict.fromkeys(space, float(values))
        else:
            listed = list(values)
            of = names if len(listed) == len(names) else space
            if len(listed) != len(of):
                raise ValueError(
                    f"{parameter}: expected {len(names)} numbers for {', '.join(names)} or "
                    f"{len(space)} for {', '.join(space)}, got {len(listed)}"
                )
            values = dict(zip(of, listed, strict=True))
    unknown = [name for name in values if name not in names]
    if unknown:
        raise ValueError(f"{parameter}: no axis {unknown[0]!r}; axes are {', '.join(names)}")
    found = tuple(as_float(values.get(name, default), parameter) for name in names)
    wrong = [one for one in found if not math.isfinite(one) or (parameter == "scale" and one <= 0)]
    if wrong:
        kind = "positive" if parameter == "scale" else "finite"
        raise ValueError(f"{parameter}: expected {kind} numbers, got {wrong[0]}")
    return found


def default_chunks(shape: Sequence[int], axes: Sequence[Axis], itemsize: int) -> tuple[int, ...]:
    """Return chunks of about 1 MiB: single times and channels, even along the axes of space.

    >>> axes = axes_of("czyx", None)
    >>> default_chunks((2, 20, 2048, 2048), axes, 2)
    (1, 20, 128, 128)
    """
    chunk = [1] * len(axes)
    while True:
        able = [d for d, axis in enumerate(axes) if axis.type == "space" and chunk[d] < shape[d]]
        # Of equal extents the last axis grows first, along which elements lie together.
        able.sort(key=lambda d: (chunk[d], -d))
        for d in able:
            larger = min(2 * chunk[d], shape[d])
            if math.prod(chunk) // chunk[d] * larger * itemsize <= _CHUNK_NBYTES:
                chunk[d] = larger
                break
        else:
            return tuple(chunk)


def default_codec(dtype: np.dtype[Any]) -> str:
    """Return the codec of new images of a data type.

    Elements of cameras have 12 to 16 bits, the lowest of them noise. Blosc with LZ4, which shuffles
    bits, makes 10 to 15 % fewer bytes of them than zstd does, in a tenth of the time. Of other
    elements zstd makes fewer.

    >>> default_codec(np.dtype("uint16")), default_codec(np.dtype("float32"))
    ('blosc', 'zstd')
    """
    return "blosc" if dtype.kind in "iu" and dtype.itemsize == 2 else "zstd"


def inside_shards(chunks: Sequence[int], shards: Any) -> tuple[int, ...]:
    """Return chunks no larger than some, whole ones of which fill the shards.

    >>> inside_shards((1, 64, 100), (4, 96, 96))
    (1, 48, 96)
    """
    sides = [shards] * len(chunks) if isinstance(shards, int) else list(shards)
    if len(sides) != len(chunks) or min(sides) < 1:
        return tuple(chunks)  # The driver says what is wrong with the shards.
    return tuple(
        next(c for c in range(min(chunk, side), 0, -1) if side % c == 0)
        for chunk, side in zip(chunks, sides, strict=True)
    )


def level_factors(
    shape: Sequence[int], axes: Sequence[Axis], scale: Sequence[float], levels: int | None
) -> list[tuple[int, ...]]:
    """Return by how much each level is smaller than the one above, along each axis.

    Axes of space are halved whose elements are less than twice as far apart as those of the finest
    axis: so the elements of coarser levels tend to cubes. Axes of one element stay.

    Parameters
    ----------
    shape : sequence of int
        Shape of the finest level.
    axes : sequence of Axis
    scale : sequence of float
        Distance of elements of the finest level.
    levels : int or None
        Number of levels with the finest; None ends when the two last axes have at most 256
        elements.
    """
    here, steps = list(shape), list(scale)
    found: list[tuple[int, ...]] = []
    while levels is None or len(found) + 1 < levels:
        space = [d for d, axis in enumerate(axes) if axis.type == "space" and here[d] > 1]
        if not space or (levels is None and max(here[-2:]) <= _SMALL):
            break
        finest = min(steps[d] for d in space)
        factors = [2 if d in space and steps[d] < 2 * finest else 1 for d in range(len(here))]
        found.append(tuple(factors))
        here = [-(-n // f) for n, f in zip(here, factors, strict=True)]
        steps = [s * f for s, f in zip(steps, factors, strict=True)]
    return found


def coarser(
    transform: AxisTransform, factors: Sequence[int], *, centred: bool = True
) -> AxisTransform:
    """Return the transform of a level whose elements stand for blocks of so many of another.

    Parameters
    ----------
    transform : AxisTransform
        Transform of the finer level.
    factors : sequence of int
        Elements of a block along each axis.
    centred : bool
        Whether an element lies at the centre of its block, or at its first element.

    >>> coarser(AxisTransform((0.5,), (1.0,)), (2,))
    AxisTransform(scale=(1.0,), translation=(1.25,))
    """
    return AxisTransform(
        tuple(s * f for s, f in zip(transform.scale, factors, strict=True)),
        tuple(
            t + s * (f - 1) / 2 if centred else t
            for t, s, f in zip(transform.translation, transform.scale, factors, strict=True)
        ),
    )
