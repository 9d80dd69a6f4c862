"""Composition of output index maps: from ``a -> b`` and ``b -> c`` to ``a -> c``.

Affine maps multiply out. Where an index array is involved, it is looked up for the whole domain
``a`` at once, once per composition; an array of one element becomes a constant map.
Source: TensorStore ``index_space/internal/compose_transforms.cc``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import gpustore.index_space.interval as interval
from gpustore.errors import MetadataError, OutOfBoundsError
from gpustore.index_space.bounds import Box, explicitly_empty
from gpustore.index_space.interval import INF, INF_STOP, fits_int64
from gpustore.index_space.output_map import (
    OutputIndexMap,
    OutputIndexMaps,
    array_map,
    constant_map,
    input_map,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpustore.index_space.output_map import IndexArray


def compose_maps(
    b_to_c: Sequence[OutputIndexMap], b: Box, a_to_b: Sequence[OutputIndexMap], a: Box
) -> OutputIndexMaps:
    """Return the output index maps of ``b_to_c(a_to_b(x))`` for x in `a`.

    `a` is the result of :func:`~gpustore.index_space.bounds.propagate`.
    """
    maps = []
    for dim, outer in enumerate(b_to_c):
        source = outer.input_dimension
        if source is not None:
            maps.append(_through_affine(dim, outer, source, a_to_b[source], b, a))
        elif outer.index_array is not None:
            maps.append(_through_array(outer, outer.index_array, b, a_to_b, a))
        else:
            maps.append(outer)
    return OutputIndexMaps(maps)


def _through_affine(
    dim: int, outer: OutputIndexMap, source: int, inner: OutputIndexMap, b: Box, a: Box
) -> OutputIndexMap:
    scale = outer.stride
    assert scale is not None
    array = inner.index_array
    if array is None and scale == 1 and outer.offset == 0:
        return inner
    offset = outer.offset + scale * inner.offset
    if not (fits_int64(offset) and fits_int64(scale * inner.offset)):
        raise MetadataError(f"Integer overflow computing output offset for output dimension {dim}.")
    if inner.stride is None:
        return constant_map(offset)
    stride = scale * inner.stride
    if not fits_int64(stride):
        raise MetadataError(
            f"Integer overflow computing output_strides[{dim}] = {inner.stride} * {scale}"
        )
    if inner.input_dimension is not None:
        return input_map(offset, stride, inner.input_dimension)
    assert array is not None
    if explicitly_empty(a):
        return constant_map(0)
    bounds = _intersect(_array_bounds(b, source, inner), inner.bounds)
    return simplified_array_map(offset, stride, array, bounds)


def _array_bounds(b: Box, dim: int, inner: OutputIndexMap) -> tuple[int, int]:
    """Return bounds of the index array whose values map into dimension `dim` of `b`."""
    low = -INF if b.implicit_lower[dim] else b.inclusive_min[dim]
    stop = INF_STOP if b.implicit_upper[dim] else b.exclusive_max[dim]
    assert inner.stride is not None
    return interval.affine_domain(low, stop, inner.offset, inner.stride)


def _intersect(x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int]:
    low = max(x[0], y[0])
    return low, max(low, min(x[1], y[1]))


def simplified_array_map(
    offset: int, stride: int, array: IndexArray, bounds: tuple[int, int]
) -> OutputIndexMap:
    """Return an index array map, or a constant map if the array has one element.

    Raises
    ------
    OutOfBoundsError
        If that element is outside `bounds`.
    MetadataError
        If the constant overflows.
    """
    if array.size != 1:
        return array_map(offset, stride, array, bounds)
    index = int(array.reshape(()))
    interval.check_index(index, *bounds)
    if not (fits_int64(index * stride) and fits_int64(offset + index * stride)):
        raise MetadataError("Integer overflow computing offset for output dimension.")
    return constant_map(offset + index * stride)


def _through_array(
    outer: OutputIndexMap, array: IndexArray, b: Box, a_to_b: Sequence[OutputIndexMap], a: Box
) -> OutputIndexMap:
    if explicitly_empty(a):
        return constant_map(0)
    assert outer.stride is not None
    rank = len(a.inclusive_min)
    steps: dict[int, slice] = {}
    terms: list[int | slice | IndexArray] = []
    affine = True
    for dim, size in enumerate(array.shape):
        inner = a_to_b[dim]
        if size == 1:
            terms.append(0)
        elif inner.index_array is not None:
            affine = False
            terms.append(_checked_indices(b, dim, inner, inner.index_array))
        elif inner.input_dimension is None or inner.stride is None:
            terms.append(inner.offset - b.inclusive_min[dim])
        else:
            source = inner.input_dimension
            count = a.exclusive_max[source] - a.inclusive_min[source]
            start = inner.offset + inner.stride * a.inclusive_min[source] - b.inclusive_min[dim]
            affine = affine and source not in steps
            stop = start + inner.stride * count
            steps[source] = slice(start, stop if stop >= 0 else None, inner.stride)
            terms.append(
                steps[source] if affine else _arange(start, inner.stride, count, source, rank)
            )
    if affine:
        result = _sliced(array, terms, a_to_b, rank)
    else:
        for dim, term in enumerate(terms):
            if isinstance(term, slice):
                inner = a_to_b[dim]
                assert inner.input_dimension is not None
                values = np.arange(array.shape[dim], dtype=np.int64)[term]
                terms[dim] = _along(values, inner.input_dimension, rank)
        result = array[tuple(terms)]
        result = result.reshape((1,) * (rank - result.ndim) + result.shape)
    return simplified_array_map(outer.offset, outer.stride, result, outer.bounds)


def _sliced(
    array: IndexArray,
    terms: Sequence[int | slice | IndexArray],
    a_to_b: Sequence[OutputIndexMap],
    rank: int,
) -> IndexArray:
    """Return a view of `array`; every input dimension is used at most once, by a slice."""
    view = array[tuple(terms)]
    sources = [a_to_b[dim].input_dimension for dim, t in enumerate(terms) if isinstance(t, slice)]
    shape = [1] * rank
    for axis, source in enumerate(sources):
        assert source is not None
        shape[source] = view.shape[axis]
    order = sorted(range(len(sources)), key=lambda axis: sources[axis] or 0)
    return view.transpose(order).reshape(shape)


def _arange(start: int, stride: int, count: int, axis: int, rank: int) -> IndexArray:
    return _along(start + stride * np.arange(count, dtype=np.int64), axis, rank)


def _along(values: IndexArray, axis: int, rank: int) -> IndexArray:
    return values.reshape((1,) * axis + (-1,) + (1,) * (rank - axis - 1))


def _checked_indices(b: Box, dim: int, inner: OutputIndexMap, array: IndexArray) -> IndexArray:
    """Return the positions in dimension `dim` of `b` that the array map `inner` leads to."""
    low, stop = _intersect(_array_bounds(b, dim, inner), inner.bounds)
    bad = (array < max(low, -INF + 1)) | (array >= min(stop, INF))
    if bad.any():
        index = int(array[bad].flat[0])
        valid = interval.format_interval(low, stop)
        raise OutOfBoundsError(
            f"In index array map for output dimension {dim}: "
            f"Index {index} is outside valid range {valid}"
        )
    # The values are now within a finite dimension, so nothing overflows.
    shifted: IndexArray = array * np.int64(inner.stride or 0) + np.int64(
        inner.offset - b.inclusive_min[dim]
    )
    return shifted


def crop_arrays(maps: Sequence[OutputIndexMap], old: Box, new: Box) -> OutputIndexMaps:
    """Return the maps for the domain `new`, a part of `old`: index arrays are cropped to it."""
    empty = explicitly_empty(new)
    result = []
    for mapping in maps:
        array = mapping.index_array
        if array is None:
            result.append(mapping)
        elif empty:
            result.append(constant_map(0))
        else:
            cut = tuple(
                slice(None) if size == 1 else slice(low - old_low, stop - old_low)
                for size, old_low, low, stop in zip(
                    array.shape, old.inclusive_min, new.inclusive_min, new.exclusive_max
                )
            )
            assert mapping.stride is not None
            result.append(array_map(mapping.offset, mapping.stride, array[cut], mapping.bounds))
    return OutputIndexMaps(result)
