"""Chunk at the origin of a grid, and the precise chunk shapes of a finished layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustore.data_types.json_array import shape_text
from gpustore.errors import MetadataError
from gpustore.index_space import IndexDomain
from gpustore.schema.chunk_constraint import MAX_INDEX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def chunk_template(origin: Sequence[int | None], shape: Sequence[int | None]) -> IndexDomain:
    """Return the domain of the chunk at the origin, unbounded where origin or size are unknown.

    >>> chunk_template([5, None], [100, 200])
    { [5, 105), (-inf, +inf) }
    """
    lower: list[int] = []
    upper: list[int] = []
    for i, (start, size) in enumerate(zip(origin, shape, strict=True)):
        if start is None or size is None:
            start, size = -MAX_INDEX - 1, 2 * MAX_INDEX + 3
        elif start + size - 1 > MAX_INDEX:
            raise MetadataError(
                f"Incompatible grid origin/chunk shape for dimension {i}: "
                f"({start}, {size}) do not specify a valid sized index interval"
            )
        lower.append(start)
        upper.append(start + size)
    return IndexDomain(inclusive_min=lower, exclusive_max=upper)


def precise_shapes(
    origin: Sequence[int | None], shapes: Mapping[str, Sequence[int | None]]
) -> dict[str, tuple[int | None, ...]]:
    """Return the chunk shapes of a finished layout; open read sizes become those of write chunks.

    Parameters
    ----------
    origin : sequence of int or None
        Hard constraints on the grid origin, one for each dimension.
    shapes : dict
        Hard constraints on the chunk shape for "write", "read" and "codec".

    Raises
    ------
    MetadataError
        If an origin is missing, or write chunks are not whole read chunks.
    """
    for dim, value in enumerate(origin):
        if value is None:
            raise MetadataError(f"No grid_origin hard constraint for dimension {dim}")
    for usage, shape in shapes.items():
        for start, size in zip(origin, shape, strict=True):
            if (start or 0) + (size or 0) > MAX_INDEX:
                raise MetadataError(
                    f"Invalid {usage} chunk grid: Invalid origin/shape: "
                    f"origin={_numbers(origin)}, shape={_numbers(shape)}"
                )
    write = shapes["write"]
    read = [size or w for size, w in zip(shapes["read"], write, strict=True)]
    for read_size, write_size in zip(read, write, strict=True):
        if read_size is not None and (write_size or 0) % read_size:
            raise MetadataError(
                f"write chunk shape {_numbers(write)} is not a multiple of "
                f"read chunk shape {_numbers(read)}"
            )
    return {usage: tuple(shape) for usage, shape in {**shapes, "read": read}.items()}


def _numbers(values: Sequence[int | None]) -> str:
    return shape_text([value or 0 for value in values])
