"""Checks of output index maps, given by a caller or by JSON, against the input domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustore.errors import MetadataError
from gpustore.index_space.bounds import Box, explicitly_empty
from gpustore.index_space.interval import INF, INF_STOP, MAX_RANK
from gpustore.index_space.output_map import (
    OutputIndexMap,
    OutputIndexMaps,
    constant_map,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpustore.index_space.output_map import IndexArray


def checked_maps(box: Box, output: Iterable[OutputIndexMap]) -> OutputIndexMaps:
    """Check the maps of a transform; index arrays over no elements become constant."""
    rank = len(box.inclusive_min)
    maps = tuple(output)
    if not all(isinstance(m, OutputIndexMap) for m in maps):
        raise TypeError("output: expected a sequence of OutputIndexMap")
    if len(maps) > MAX_RANK:
        raise MetadataError(
            f"Number of output dimensions ({len(maps)}) exceeds maximum rank of {MAX_RANK}"
        )
    return OutputIndexMaps(_checked_map(dim, m, box, rank) for dim, m in enumerate(maps))


def _checked_map(dim: int, mapping: OutputIndexMap, box: Box, rank: int) -> OutputIndexMap:
    if mapping.input_dimension is not None:
        if not 0 <= mapping.input_dimension < rank:
            raise MetadataError(
                f"Input dimension {mapping.input_dimension} specified for output dimension "
                f"{dim} is outside valid range [0, {rank})"
            )
    elif mapping.index_array is not None:
        _check_array(dim, mapping.index_array, box, rank)
        if explicitly_empty(box):
            return constant_map(0)
    return constant_map(mapping.offset) if mapping.stride == 0 else mapping


def _check_array(dim: int, array: IndexArray, box: Box, rank: int) -> None:
    about = f"Index array for output dimension {dim}"
    if array.ndim != rank:
        raise MetadataError(f"{about} has rank {array.ndim} but must have rank {rank}")
    sizes = [stop - low for low, stop in zip(box.inclusive_min, box.exclusive_max)]
    if any(size not in (1, wanted) for size, wanted in zip(array.shape, sizes)):
        found, expected = (", ".join(map(str, shape)) for shape in (array.shape, sizes))
        raise MetadataError(
            f"{about} has shape {{{found}}} which does not match input_shape {{{expected}}}"
        )
    for source, size in enumerate(array.shape):
        kind = ""
        if box.implicit_lower[source] or box.implicit_upper[source]:
            kind = "implicit"
        elif box.inclusive_min[source] == -INF or box.exclusive_max[source] == INF_STOP:
            kind = "infinite"
        if size != 1 and kind:
            raise MetadataError(f"{about} depends on input dimension {source} with {kind} bounds")
