"""Evaluation of output index maps at a single input index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustore.errors import OutOfBoundsError
from gpustore.index_space.interval import check_index, fits_int64

if TYPE_CHECKING:
    from gpustore.index_space.bounds import Box
    from gpustore.index_space.output_map import OutputIndexMap


def evaluate(dim: int, mapping: OutputIndexMap, at: tuple[int, ...], box: Box) -> int:
    """Return the index in output dimension `dim` of the input index `at`, which is in `box`."""
    if mapping.stride is None:
        return mapping.offset
    if mapping.input_dimension is not None:
        return _scaled(dim, mapping, at[mapping.input_dimension])
    array = mapping.index_array
    assert array is not None
    where = tuple(
        0 if size == 1 else index - low
        for size, index, low in zip(array.shape, at, box.inclusive_min)
    )
    index = int(array[where])
    try:
        check_index(index, *mapping.bounds)
    except OutOfBoundsError as error:
        raise error.prefixed(
            f"Computing index for output dimension {dim}: "
            "Checking result of index array output index map"
        ) from None
    return _scaled(dim, mapping, index)


def _scaled(dim: int, mapping: OutputIndexMap, index: int) -> int:
    """Return ``offset + stride * index``; OutOfBoundsError where TensorStore wraps around."""
    result = mapping.offset + (mapping.stride or 0) * index
    if not fits_int64(result):
        raise OutOfBoundsError(
            f"Computing index for output dimension {dim}: Integer overflow computing "
            f"{mapping.offset} + {mapping.stride} * {index}"
        )
    return result
