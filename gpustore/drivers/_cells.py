"""Cells, each a block of an array: checks of factors and methods, chunks, units and selections."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final

from numpy.typing import NDArray

from gpustore.backends.downsampling import METHODS
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.unit import Unit
from gpustore.drivers.array import selected
from gpustore.errors import MetadataError
from gpustore.index_space import IndexTransform, OutputIndexMap
from gpustore.index_space.interval import fits_int64
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.strict_json.parsing import expect_str

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


def check_method(method: str, dtype: dtype_ | None) -> None:
    """Raise MetadataError if there is no such method, or not for the data type."""
    expect_str(method, choices=METHODS)
    if dtype is None:
        return
    kind = dtype.array_dtype
    if (
        (kind.hasobject and method not in ("stride", "mode"))
        or (kind.kind == "c" and method in _ONLY_REAL)
        or (kind.kind in "SU" and method != "stride")
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
    for usage in ("read_chunk", "write_chunk"):
        shape = getattr(layout, usage).shape
        if shape:
            found[f"{usage}_shape"] = [
                size and math.lcm(size, factor) // factor
                for size, factor in zip(shape, factors, strict=True)
            ]
    return ChunkLayout(**found)


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
