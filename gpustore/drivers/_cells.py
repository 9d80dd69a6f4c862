"""Cells, each a block of an array: checks of factors and methods, chunks, units and selections."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final

from numpy.typing import NDArray

from gpustore.backends.downsampling import GAUSSIAN, METHODS, Cells
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.unit import Unit
from gpustore.drivers.array import selected
from gpustore.errors import MetadataError
from gpustore.index_space import IndexDomain, IndexTransform, OutputIndexMap
from gpustore.index_space.interval import fits_int64
from gpustore.planning.crop_plan import check_starts
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.strict_json.parsing import JsonValue, expect_str

Box = tuple[tuple[int, int], ...]
"""First index, and the one behind the last, along each dimension."""

_ONLY_REAL: Final = ("min", "max", "median")


def check_factors(factors: Sequence[int], rank: int | None, of: str) -> tuple[int, ...]:
    """Return the factors; MetadataError if they are not positive, or not as many as dimensions."""
    found = tuple(operator.index(factor) for factor in factors)
    if rank is not None and len(found) != rank:
        raise MetadataError(
            f"Number of downsample factors ({len(found)}) does not match {of} rank ({rank})"
        )
    shown = ", ".join(map(str, found))
    if any(factor < 1 for factor in found):
        raise MetadataError(f"Downsample factors {{{shown}}} are not all positive")
    if not all(map(fits_int64, found)):
        raise MetadataError(f"Downsample factors {{{shown}}} are not all 64-bit signed integers")
    return found


def method_of(value: JsonValue) -> str:
    """Return the name of a method; MetadataError names those of TensorStore."""
    return GAUSSIAN if value == GAUSSIAN else expect_str(value, choices=METHODS)


def check_method(method: str, dtype: dtype_ | None, factors: Sequence[int]) -> None:
    """Raise MetadataError if there is no such method, or not for data type and factors."""
    if method_of(method) == GAUSSIAN and max(factors, default=1) > 2:
        shown = ", ".join(map(str, factors))
        raise MetadataError(f'"gaussian" halves dimensions: expected 1 or 2, got {{{shown}}}')
    if dtype is None:
        return
    kind = dtype.array_dtype
    if (
        (kind.hasobject and method not in ("stride", "mode"))
        or (kind.kind == "c" and method in _ONLY_REAL)
        or (kind.kind in "SU" and method != "stride")
        or (
            method == GAUSSIAN
            and not (kind.kind == "f" or (kind.kind in "iu" and kind.itemsize < 8))
        )
    ):
        raise MetadataError(
            f'Downsample method "{method}" does not support data type "{dtype.name}"'
        )


def layout_of_cells(layout: ChunkLayout, factors: Sequence[int]) -> ChunkLayout:
    """Return the layout of the cells: chunks that whole blocks fill."""
    found: dict[str, Any] = {"rank": len(factors)}
    if layout.inner_order is not None:
        found["inner_order"] = layout.inner_order
    if layout.grid_origin is not None:
        places = zip(layout.grid_origin, factors, strict=True)
        found["grid_origin"] = [None if at is None else -(-at // factor) for at, factor in places]
    for usage in ("read_chunk", "write_chunk", "codec_chunk"):
        found[usage] = {
            name: _of_cells(name, value, factors)
            for name, value in getattr(layout, usage).to_json().items()
        }
    return ChunkLayout(found)


def _of_cells(name: str, value: Any, factors: Sequence[int]) -> Any:
    """Return a member of the JSON of a chunk grid in terms of cells."""
    if name.startswith("shape"):
        pairs = zip(value, factors, strict=True)
        return [math.lcm(size, f) // f if (size or 0) > 0 else size for size, f in pairs]
    if name.startswith("aspect_ratio"):
        return [one and one / factor for one, factor in zip(value, factors, strict=True)]
    return value


def units_of_cells(
    units: Sequence[Unit | None] | None, factors: Sequence[int]
) -> tuple[Unit | None, ...]:
    """Return the units of steps from cell to cell, None where unknown."""
    return tuple(
        None if unit is None else unit * factor
        for unit, factor in zip(units or (None,) * len(factors), factors, strict=True)
    )


def shifted(transform: IndexTransform, by: Sequence[int]) -> IndexTransform:
    """Return the transform with outputs less by so much."""
    maps = []
    for map_, less in zip(transform.output, by, strict=True):
        offset, stride = map_.offset - less, map_.stride or 0
        if map_.index_array is not None:
            maps.append(OutputIndexMap(map_.index_array, offset=offset, stride=stride))
        elif map_.input_dimension is not None:
            maps.append(OutputIndexMap(map_.input_dimension, offset=offset, stride=stride))
        else:
            maps.append(OutputIndexMap(offset))
    return IndexTransform(transform.domain, maps)


def selected_cells(cells: NDArray[Any], box: Box, transform: IndexTransform) -> NDArray[Any]:
    """Return the elements of a box that a transform selects, in its order."""
    if transform.output_rank == transform.input_rank and all(
        (map_.input_dimension, map_.stride) == (d, 1) for d, map_ in enumerate(transform.output)
    ):
        return cells
    return selected(cells, shifted(transform, [low for low, _ in box]))


def cells_in_memory(part: Box, transform: IndexTransform, strides: Sequence[int]) -> Cells | None:
    """Return the cells of a part that a transform selects, and where they go.

    Parameters
    ----------
    part : Box
        The part.
    transform : IndexTransform
        Selects cells; each once, unless the result is None.
    strides : sequence of int
        Bytes between neighbours in the array of the selected cells.

    Returns
    -------
    Cells or None
        None if index arrays select them, or a cell goes to more than one place.
    """
    domain = transform.domain
    offset = 0
    found: list[tuple[int, int, int, int]] = []
    used = set()
    for (low, high), map_ in zip(part, transform.output, strict=True):
        d, stride = map_.input_dimension, map_.stride or 0
        if d is None:
            if map_.index_array is not None:
                return None
            found.append((map_.offset - low, 1, int(low <= map_.offset < high), 0))
            continue
        if stride == 0 or d in used:
            return None
        used.add(d)
        # Indices of the selection whose cells lie in the part.
        step, start = abs(stride), domain[d].inclusive_min
        if stride > 0:
            begin, end = (-((map_.offset - at) // step) for at in (low, high))
        else:
            begin, end = ((map_.offset - at) // step + 1 for at in (high, low))
        begin, end = max(begin, start), min(end, domain[d].exclusive_max)
        at = begin if stride > 0 else end - 1
        offset += (at - start) * strides[d]
        along = strides[d] if stride > 0 else -strides[d]
        found.append((map_.offset + stride * at - low, step, max(0, end - begin), along))
    if any(size > 1 and d not in used for d, size in enumerate(domain.shape)):
        return None
    first, steps, counts, along_all = zip(*found, strict=True) if found else ((),) * 4
    return Cells(first, steps, counts, offset, along_all)


def crop_transforms(
    domain: IndexDomain, transform: IndexTransform, starts: Any, shape: tuple[int, ...]
) -> list[IndexTransform]:
    """Return the transforms of crops of a view with this domain.

    Raises
    ------
    OutOfBoundsError
        If a crop is not inside.
    """
    low = domain.inclusive_min
    sizes = [end - begin for begin, end in zip(low, domain.exclusive_max, strict=True)]
    from_zero = shifted(IndexTransform(domain)[transform], low)
    found = []
    for corner in check_starts(from_zero, starts, shape, sizes).tolist():
        ends = [at + size for at, size in zip(corner, shape, strict=True)]
        found.append(transform[tuple(map(slice, corner, ends))])
    return found
