"""Translation of a domain: ``translate_to``, ``translate_by`` and ``translate_backward_by``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gpustore.errors import MetadataError
from gpustore.index_space.accessor import offsets_argument
from gpustore.index_space.interval import fits_int64, shift, shift_to
from gpustore.index_space.output_map import OutputIndexMap, input_map

if TYPE_CHECKING:
    from gpustore.index_space.bounds import Box


def translate_box(box: Box, name: str, index: Any) -> tuple[Box, tuple[int, ...]]:
    """Return the translated box, and the offset of each dimension.

    `name` is the operation: ``"translate_to"``, ``"translate_by"``, ``"translate_backward_by"``.
    """
    rank = len(box.inclusive_min)
    given = offsets_argument(index, name)
    offsets: Iterable[int | None] = given if isinstance(given, tuple) else (given,) * rank
    if isinstance(given, tuple) and len(given) != rank:
        if given:
            raise MetadataError(
                f"Number of dimensions ({rank}) does not match number of indices ({len(given)})"
            )
        offsets = (0,) * rank  # An empty index means 0 for all dimensions in TensorStore, too.
    lows, stops, moved = [], [], []
    for low, stop, offset in zip(box.inclusive_min, box.exclusive_max, offsets):
        by = 0 if offset is None else offset
        if name == "translate_to" and offset is not None:
            new_low, new_stop = shift_to(low, stop, offset)
            by = new_low - low
        else:
            by = -by if name == "translate_backward_by" else by
            new_low, new_stop = shift(low, stop, by)
        lows.append(new_low)
        stops.append(new_stop)
        moved.append(by)
    return box._replace(inclusive_min=tuple(lows), exclusive_max=tuple(stops)), tuple(moved)


def translated_map(dim: int, mapping: OutputIndexMap, moved: tuple[int, ...]) -> OutputIndexMap:
    """Return an output index map for the translated input domain.

    Index arrays stay as they are: they are relative to the origin of the domain.
    """
    source, stride = mapping.input_dimension, mapping.stride
    if source is None or stride is None or not moved[source]:
        return mapping
    change = moved[source] * stride
    offset = mapping.offset - change
    if not (fits_int64(change) and fits_int64(offset)):
        raise MetadataError(f"Integer overflow computing output offset for dimension {dim}.")
    return input_map(offset, stride, source)
