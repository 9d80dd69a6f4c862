"""Parts of a schema through an index transform, in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpustore.data_types.json_array import shape_text
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.index_space import Dim, IndexDomain, IndexTransform, OutputIndexMap
from gpustore.schema.constraint_transform import (
    affine_maps,
    layout_to_input,
    layout_to_output,
    one_to_one_maps,
    units_to_input,
    units_to_output,
)
from gpustore.schema.fill_value import FillValue

if TYPE_CHECKING:
    from gpustore.data_types.unit import Unit
    from gpustore.schema.chunk_layout import ChunkLayout


_INF = 2**62 - 1


class SchemaParts(NamedTuple):
    """Parts of a schema that belong to an index space."""

    rank: int | None
    domain: IndexDomain | None
    chunk_layout: ChunkLayout
    fill_value: FillValue | None
    units: tuple[Unit | None, ...] | None


def parts_to_input(parts: SchemaParts, transform: IndexTransform) -> SchemaParts:
    """Return parts of a schema of the output of `transform` as constraints on its input."""
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
    """Return parts of a schema of the input of `transform` as constraints on its output."""
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
    """Return the fill value at every index of the input, gathered only where it varies."""
    if value is None or value.rank == 0:
        return value
    missing = transform.output_rank - value.rank
    if all(size == 1 for size in value.shape):
        return FillValue.from_array(value.array.reshape(()), value.dtype)
    indices: list[Any] = []
    for output_dim, m in enumerate(transform.output):
        size = 1 if output_dim < missing else value.shape[output_dim - missing]
        if size == 1:
            indices.append(0)
            continue
        origin = None if domain is None else domain.inclusive_min[output_dim]
        indices.append(_indices(m, size, origin, transform, value))
    array = value.array.reshape((1,) * missing + value.shape)[tuple(indices)]
    if not array.size:
        # There is no element to fill.
        return None
    shape = (1,) * (transform.input_rank - array.ndim) + array.shape
    return FillValue.from_array(array.reshape(shape), value.dtype)


def _indices(
    m: OutputIndexMap, size: int, origin: int | None, transform: IndexTransform, value: FillValue
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return positions in the fill value, one per index of the input, of size 1 if constant."""
    rank = transform.input_rank
    source = m.input_dimension
    if origin is None:
        # Only a dimension that is passed on whole needs no origin.
        is_whole = source is not None and m.stride == 1 and not _is_bounded(transform, source)
        if not is_whole:
            raise MetadataError(
                f"Error transforming fill_value: cannot place a fill_value of shape "
                f"{shape_text(value.shape)} in an unknown domain; give the schema a domain"
            )
        assert source is not None
        return _along(source, rank, np.arange(size, dtype=np.int64))
    stride = m.stride or 0
    first, last = m.offset - origin, m.offset - origin
    if m.index_array is not None:
        at = first + stride * m.index_array
        first, last = (int(at.min()), int(at.max())) if at.size else (0, 0)
    elif source is None:
        at = np.full((1,) * rank, first, np.int64)
    else:
        lower, count = transform.input_inclusive_min[source], transform.input_shape[source]
        first, last = sorted((first + stride * lower, first + stride * (lower + count - 1)))
        last = first if not count else last
        # Checked below; not computed for a domain far larger than the fill value.
        count = min(count, size)
        at = _along(source, rank, first + abs(stride) * np.arange(count, dtype=np.int64))
        at = at if stride > 0 else np.flip(at, source)
    if not 0 <= first <= last < size and at.size:
        raise MetadataError(
            f"Error transforming fill_value: Cannot broadcast array of shape "
            f"{shape_text(value.shape)} to indices {first} to {last} of a dimension"
        )
    return at


def _is_bounded(transform: IndexTransform, dim: int) -> bool:
    return transform.input_inclusive_min[dim] > -_INF or transform.input_inclusive_max[dim] < _INF


def _along(
    dim: int, rank: int, values: np.ndarray[Any, np.dtype[np.int64]]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    return values.reshape([-1 if d == dim else 1 for d in range(rank)])


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
