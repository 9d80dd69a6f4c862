"""How the parts of a schema follow an index transform, in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpustore.constraint_transform import (
    affine_maps,
    layout_to_input,
    layout_to_output,
    one_to_one_maps,
    units_to_input,
    units_to_output,
)
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.fill_value import FillValue, check_broadcast
from gpustore.index_space import Dim, IndexDomain, IndexTransform

if TYPE_CHECKING:
    from gpustore.chunk_layout import ChunkLayout
    from gpustore.unit import Unit

__all__ = ["SchemaParts", "parts_to_input", "parts_to_output"]

_INF = 2**62 - 1


class SchemaParts(NamedTuple):
    """The parts of a schema that belong to an index space."""

    rank: int | None
    domain: IndexDomain | None
    chunk_layout: ChunkLayout
    fill_value: FillValue | None
    units: tuple[Unit | None, ...] | None


def parts_to_input(parts: SchemaParts, transform: IndexTransform) -> SchemaParts:
    """The parts of a schema of the output of `transform` as seen from its input."""
    rank, domain, chunk_layout, fill_value, units = parts
    if rank != transform.output_rank:
        raise MetadataError(
            f"Cannot transform schema of rank {rank} by index transform of rank "
            f"{transform.input_rank} -> {transform.output_rank}"
        )
    if units is not None:
        units = units_to_input(units, one_to_one_maps(transform), transform.input_rank)
    return SchemaParts(
        transform.input_rank,
        None if domain is None else transform.domain,
        layout_to_input(chunk_layout, transform),
        _fill_to_input(fill_value, transform, domain),
        units,
    )


def parts_to_output(parts: SchemaParts, transform: IndexTransform) -> SchemaParts:
    """The parts of a schema of the input of `transform` as constraints on its output."""
    rank, domain, chunk_layout, fill_value, units = parts
    if rank not in (None, transform.input_rank):
        raise MetadataError(
            f"Cannot inverse transform schema of rank {rank} by index transform of rank "
            f"{transform.input_rank} -> {transform.output_rank}"
        )
    return SchemaParts(
        transform.output_rank,
        chunk_layout=layout_to_output(chunk_layout, transform),
        domain=None if domain is None else _domain_to_output(domain, transform),
        fill_value=_fill_to_output(fill_value, transform),
        units=None if units is None else _units_to_output(units, transform),
    )


def _units_to_output(
    units: tuple[Unit | None, ...], transform: IndexTransform
) -> tuple[Unit | None, ...]:
    try:
        return units_to_output(units, affine_maps(transform), transform.output_rank)
    except MetadataError as error:
        raise error.prefixed("Error transforming dimension_units") from None


# ------------------------------------------------------------------------ domain


def _domain_to_output(domain: IndexDomain, transform: IndexTransform) -> IndexDomain:
    dims: list[Dim] = []
    seen = set[int]()
    for output_dim, m in enumerate(transform.output):
        dim = m.input_dimension
        if dim is None:
            raise _not_transformed(
                f"Cannot specify domain through a transform with a {m.method.name} output index map"
            )
        if dim in seen:
            raise _not_transformed(
                "Cannot specify domain through a transform with multiple output dimensions mapping "
                "to the same input dimension"
            )
        seen.add(dim)
        dims.append(_dim_to_output(domain[dim], m.offset, m.stride or 0, output_dim))
    return IndexDomain(dims)


def _dim_to_output(dim: Dim, offset: int, stride: int, output_dim: int) -> Dim:
    is_infinite = dim.inclusive_min == -_INF and dim.inclusive_max == _INF
    if abs(stride) != 1 and not is_infinite:
        raise _not_transformed(
            "Cannot specify finite domain through a transform with non-unit-stride output index map"
        )
    sign = 1 if stride > 0 else -1
    ends = [
        (end if abs(end) == _INF else end + sign * offset, implicit)
        for end, implicit in (
            (dim.inclusive_min, dim.implicit_lower),
            (dim.inclusive_max, dim.implicit_upper),
        )
    ]
    if sign < 0:
        ends = [(-end, implicit) for end, implicit in reversed(ends)]
    if any(abs(end) > _INF for end, _ in ends):
        raise _not_transformed(f"Integer overflow computing range of output dimension {output_dim}")
    (lower, implicit_lower), (upper, implicit_upper) = ends
    return Dim(
        inclusive_min=lower,
        inclusive_max=upper,
        implicit_lower=implicit_lower,
        implicit_upper=implicit_upper,
        label=dim.label,
    )


def _not_transformed(reason: str) -> MetadataError:
    return MetadataError(f"Error transforming domain: {reason}")


# ------------------------------------------------------------------------ fill value


def _fill_to_input(
    value: FillValue | None, transform: IndexTransform, domain: IndexDomain | None
) -> FillValue | None:
    """The fill value under affine and constant maps, which only cut, turn and drop dimensions."""
    if value is None or value.rank == 0:
        return value
    output_rank, rank = transform.output_rank, transform.input_rank
    array = value.array.reshape((1,) * (output_rank - value.rank) + value.shape)
    order: list[int] = []
    for output_dim, m in enumerate(transform.output):
        varies = array.shape[output_dim] != 1
        source = m.input_dimension
        if varies and (m.index_array is not None or source in order):
            raise UnsupportedError(
                "Error transforming fill_value: gathering a fill_value that is not a scalar "
                f"through the index array or diagonal of output dimension {output_dim}"
            )
        if varies:
            at = _indices(m.offset, m.stride, source, transform, domain, output_dim)
            _check_indices(at, array.shape[output_dim], value, transform)
            array = np.take(array, at, axis=output_dim)
        if varies and source is not None:
            order.append(source)
        else:
            order.append(-1)
    # Dimensions that nothing varies along have size 1 by now and can go anywhere.
    array = array.reshape([n for n, source in zip(array.shape, order, strict=True) if source >= 0])
    sources = [source for source in order if source >= 0]
    array = array.transpose(np.argsort(sources, kind="stable"))
    shape = [1] * rank
    for source, size in zip(sorted(sources), array.shape, strict=True):
        shape[source] = size
    return FillValue.from_array(array.reshape(shape), value.dtype)


def _indices(
    offset: int,
    stride: int | None,
    source: int | None,
    transform: IndexTransform,
    domain: IndexDomain | None,
    output_dim: int,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    origin = 0 if domain is None else domain.inclusive_min[output_dim]
    if source is None or not stride:
        return np.array([offset - origin], np.int64)
    first, size = transform.input_inclusive_min[source], transform.input_shape[source]
    if size > np.iinfo(np.int32).max:
        raise UnsupportedError(
            "Error transforming fill_value: a fill_value that is not a scalar needs a bounded "
            f"domain, but dimension {source} has {size} elements"
        )
    return offset - origin + stride * np.arange(first, first + size, dtype=np.int64)


def _check_indices(
    at: np.ndarray[Any, np.dtype[np.int64]],
    size: int,
    value: FillValue,
    transform: IndexTransform,
) -> None:
    if at.size and (at.min() < 0 or at.max() >= size):
        # The domain is not known, or implicit: TensorStore, too, cannot align the two.
        try:
            check_broadcast(value.shape, [0] * transform.output_rank)
        except MetadataError as error:
            raise error.prefixed("Error transforming fill_value") from None


def _fill_to_output(value: FillValue | None, transform: IndexTransform) -> FillValue | None:
    if value is None or value.rank == 0:
        return value
    if [m.input_dimension for m in transform.output] == list(range(transform.input_rank)) and all(
        m.stride == 1 for m in transform.output
    ):
        return value
    raise UnsupportedError(
        "Error transforming fill_value: only a scalar fill_value can be given through a transform "
        "that does more than translate"
    )
