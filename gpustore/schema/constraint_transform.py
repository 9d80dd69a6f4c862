"""Constraints on dimensions through an index transform, in both directions.

Only affine output index maps carry constraints: an input dimension gets those of an output
dimension if no other one depends on it. Constraints of other dimensions are dropped from output to
input; from input to output, dropping a hard one is an error.

Source: TensorStore ``tensorstore/chunk_layout.cc``.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from gpustore.errors import MetadataError
from gpustore.schema.chunk_constraint import (
    MAX_INDEX,
    ConstraintVector,
    aspect_ratio_vector,
    origin_vector,
    shape_vector,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpustore.data_types.unit import Unit
    from gpustore.index_space import IndexTransform
    from gpustore.schema.chunk_constraint import N
    from gpustore.schema.chunk_layout import ChunkLayout


class DimensionMap(NamedTuple):
    """Affine output index map: ``output[output_dim] = offset + stride * input[input_dim]``."""

    output_dim: int
    input_dim: int
    offset: int
    stride: int


def affine_maps(transform: IndexTransform) -> list[DimensionMap]:
    """Return all affine output index maps with a stride other than 0."""
    return [
        DimensionMap(output_dim, m.input_dimension, m.offset, m.stride)
        for output_dim, m in enumerate(transform.output)
        if m.input_dimension is not None and m.stride
    ]


def one_to_one_maps(transform: IndexTransform) -> list[DimensionMap]:
    """Return the affine maps whose input dimension no other output dimension depends on."""
    used = [0] * transform.input_rank
    for m in transform.output:
        if m.input_dimension is not None:
            used[m.input_dimension] += 1
        elif m.index_array is not None:
            for dim, size in enumerate(m.index_array.shape):
                used[dim] += 2 * (size != 1)
    return [m for m in affine_maps(transform) if used[m.input_dim] == 1]


# ------------------------------------------------------------------------ layouts


def layout_to_input(layout: ChunkLayout, transform: IndexTransform) -> ChunkLayout:
    """Return a layout of the output of `transform` as constraints on its input.

    Constraints that no input dimension can carry are dropped.

    Raises
    ------
    MetadataError
        If the rank differs, or an origin overflows.
    """
    _check_rank(layout, transform, transform.output_rank)
    maps, rank = one_to_one_maps(transform), transform.input_rank
    return layout.mapped(
        rank,
        partial(order_to_input, transform=transform),
        partial(origin_to_input, maps=maps, rank=rank),
        partial(shape_to_input, maps=maps, rank=rank),
        partial(aspect_ratio_to_input, maps=maps, rank=rank),
    )


def layout_to_output(layout: ChunkLayout, transform: IndexTransform) -> ChunkLayout:
    """Return a layout of the input of `transform` as constraints on its output.

    Raises
    ------
    MetadataError
        If the rank differs, an origin overflows, or a hard constraint is on a dimension that no
        output dimension depends on.
    """
    _check_rank(layout, transform, transform.input_rank)
    maps, rank = affine_maps(transform), transform.output_rank
    return layout.mapped(
        rank,
        partial(order_to_output, transform=transform),
        partial(origin_to_output, maps=maps, rank=rank),
        partial(shape_to_output, maps=maps, rank=rank),
        partial(aspect_ratio_to_output, maps=maps, rank=rank),
    )


def _check_rank(layout: ChunkLayout, transform: IndexTransform, rank: int) -> None:
    if layout.rank not in (-1, rank):
        raise MetadataError(
            f"Cannot transform constraints of rank {layout.rank} by index transform of rank "
            f"{transform.input_rank} -> {transform.output_rank}"
        )


# ------------------------------------------------------------------------ output to input


def origin_to_input(
    vector: ConstraintVector[int], maps: Sequence[DimensionMap], rank: int
) -> ConstraintVector[int]:
    """Return grid origins of the output dimensions as those of `rank` input dimensions."""
    values, hard = _to_input(vector, maps, rank, _input_origin)
    return origin_vector(values, hard=hard)


def shape_to_input(
    vector: ConstraintVector[int], maps: Sequence[DimensionMap], rank: int
) -> ConstraintVector[int]:
    """Return chunk sizes of the output dimensions as those of `rank` input dimensions."""
    values, hard = _to_input(vector, maps, rank, lambda v, m: v // math.gcd(m.stride, v))
    return shape_vector(values, hard=hard)


def aspect_ratio_to_input(
    vector: ConstraintVector[float], maps: Sequence[DimensionMap], rank: int
) -> ConstraintVector[float]:
    """Return aspect ratios of the output dimensions as those of `rank` input dimensions."""
    values, hard = _to_input(vector, maps, rank, lambda v, m: v / abs(m.stride))
    return aspect_ratio_vector(values, hard=hard)


def units_to_input(
    units: Sequence[Unit | None], maps: Sequence[DimensionMap], rank: int
) -> tuple[Unit | None, ...]:
    """Return units of the output dimensions as those of `rank` input dimensions."""
    result: list[Unit | None] = [None] * rank
    for m in maps:
        unit = units[m.output_dim]
        result[m.input_dim] = None if unit is None else unit * abs(m.stride)
    return tuple(result)


def order_to_input(order: Sequence[int], transform: IndexTransform) -> tuple[int, ...]:
    """Return the order of input dimensions for that of the output; unmapped ones come last."""
    place = {output_dim: i for i, output_dim in enumerate(order)}
    first = [len(order)] * transform.input_rank
    for output_dim, m in enumerate(transform.output):
        if m.input_dimension is not None:
            dim = m.input_dimension
            first[dim] = min(first[dim], place[output_dim])
    return tuple(sorted(range(transform.input_rank), key=first.__getitem__))


def _to_input(
    vector: ConstraintVector[N],
    maps: Sequence[DimensionMap],
    rank: int,
    follow: Callable[[N, DimensionMap], N],
) -> tuple[list[N | None], list[bool]]:
    values: list[N | None] = [None] * rank
    hard = [False] * rank
    for m in maps:
        value = vector.values[m.output_dim]
        if value is not None:
            values[m.input_dim] = follow(value, m)
            hard[m.input_dim] = vector.hard[m.output_dim]
    return values, hard


def _input_origin(value: int, m: DimensionMap) -> int:
    moved = value - m.offset
    if abs(moved) > MAX_INDEX:
        raise _overflow("output", value, m).prefixed(
            f"Error transforming output dimension {m.output_dim} -> input dimension {m.input_dim}"
        )
    # The chunk [moved, moved + n) runs backwards where the stride is negative.
    return -(-moved // m.stride) if m.stride > 0 else -(-(moved - 1) // m.stride)


def _overflow(space: str, value: int, m: DimensionMap) -> MetadataError:
    return MetadataError(
        f"Integer overflow transforming {space} origin {value} by offset {m.offset} and "
        f"stride {m.stride}",
        status="OUT_OF_RANGE",
    )


# ------------------------------------------------------------------------ input to output


def origin_to_output(
    vector: ConstraintVector[int], maps: Sequence[DimensionMap], rank: int
) -> ConstraintVector[int]:
    """Return grid origins of the input dimensions as those of `rank` output dimensions."""
    values, hard = _to_output(vector, maps, rank, _output_origin)
    return origin_vector(values, hard=hard)


def shape_to_output(
    vector: ConstraintVector[int], maps: Sequence[DimensionMap], rank: int
) -> ConstraintVector[int]:
    """Return chunk sizes of the input dimensions as those of `rank` outputs; -1 stays -1."""
    values, hard = _to_output(vector, maps, rank, lambda v, m: -1 if v == -1 else v * abs(m.stride))
    return shape_vector(values, hard=hard)


def aspect_ratio_to_output(
    vector: ConstraintVector[float], maps: Sequence[DimensionMap], rank: int
) -> ConstraintVector[float]:
    """Return aspect ratios of the input dimensions as those of `rank` output dimensions."""
    values, hard = _to_output(vector, maps, rank, lambda v, m: v * abs(m.stride))
    return aspect_ratio_vector(values, hard=hard)


def units_to_output(
    units: Sequence[Unit | None], maps: Sequence[DimensionMap], rank: int
) -> tuple[Unit | None, ...]:
    """Return units of the input dimensions as those of `rank` output dimensions."""
    result: list[Unit | None] = [None] * rank
    left = {dim for dim, unit in enumerate(units) if unit is not None}
    for m in maps:
        unit = units[m.input_dim]
        result[m.output_dim] = None if unit is None else unit / abs(m.stride)
        left.discard(m.input_dim)
    if left:
        dim = min(left)
        raise MetadataError(
            f'No output dimension corresponds to input dimension {dim} with unit "{units[dim]}"'
        )
    return tuple(result)


def order_to_output(order: Sequence[int], transform: IndexTransform) -> tuple[int, ...]:
    """Return the order of output dimensions for that of the input; unmapped ones come last."""
    place = {input_dim: i for i, input_dim in enumerate(order)}
    last = len(order)
    keys = [
        last if m.input_dimension is None else place[m.input_dimension] for m in transform.output
    ]
    return tuple(sorted(range(len(keys)), key=keys.__getitem__))


def _to_output(
    vector: ConstraintVector[N],
    maps: Sequence[DimensionMap],
    rank: int,
    follow: Callable[[N, DimensionMap], N],
) -> tuple[list[N | None], list[bool]]:
    values: list[N | None] = [None] * rank
    hard = [False] * rank
    left = {dim for dim, is_hard in enumerate(vector.hard) if is_hard}
    for m in maps:
        left.discard(m.input_dim)
        value = vector.values[m.input_dim]
        if value is not None:
            values[m.output_dim] = follow(value, m)
            hard[m.output_dim] = vector.hard[m.input_dim]
    if left:
        raise MetadataError(f"No output dimension corresponds to input dimension {min(left)}")
    return values, hard


def _output_origin(value: int, m: DimensionMap) -> int:
    moved = m.offset + m.stride * (value if m.stride > 0 else value - 1)
    if abs(moved) > MAX_INDEX:
        raise _overflow("input", value, m).prefixed(
            f"Error transforming input dimension {m.input_dim} -> output dimension {m.output_dim}"
        )
    return moved
