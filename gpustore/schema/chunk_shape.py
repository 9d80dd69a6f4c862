"""Choice of chunk shapes under constraints, the same as TensorStore's in each bit.

Search for the sizes of dimensions that are not fixed:

1. The target is the number of elements asked for, else 1024 * 1024. A dimension is capped at the
   target and at its extent in the domain.
2. A factor ``f`` gives dimension ``i`` the size ``max(1, trunc(min(ratio[i] * f, cap[i])))``. In
   the read/write search this size is then snapped to a divisor or a multiple of the other chunk.
3. ``f`` is found by bisection, stopped when the bracket is one step wide. The step is half of the
   smallest ``1 / ratio``. A bracket is cut at its geometric mean while its upper end is more than
   four times its lower, then at its middle.
4. The upper end is used only if it meets the target exactly, else the lower end.

The step is coarse, so a larger shape may exist below the target. That is what TensorStore
chooses, and arrays made by both libraries must have the same chunks: do not improve it. All
arithmetic on factors is IEEE double.

Source: TensorStore 0.1.86, whose choice was compared over 190 000 sets of constraints. Older
versions always cut brackets in the middle.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gpustore.errors import MetadataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpustore.index_space import IndexDomain
    from gpustore.schema.chunk_constraint import ConstraintVector, N
    from gpustore.schema.chunk_grid import ChunkGrid

    Snap = Callable[[int, int], int]


DEFAULT_CHUNK_ELEMENTS = 1024 * 1024

_INF = 2**62 - 1
_MAX_TOTAL = 2**63 - 1
_MAX_SIZE = 2.0**62

# Distance from the target within which TensorStore looks for a divisor.
_MAX_DIVISOR_OFFSET = 1_000_000
# Up to here all divisors are found by trial division below 10^6.
_MAX_ENUMERATED = _MAX_DIVISOR_OFFSET**2


def choose_chunk_shape(
    shape: Sequence[int | None] | None,
    aspect_ratio: Sequence[float | None] | None,
    elements: int | None,
    domain_origin: Sequence[int],
    domain_shape: Sequence[int],
) -> tuple[int, ...]:
    """Choose the shape of one level of chunks.

    Parameters
    ----------
    shape : sequence of int or None, length n, optional
        Sizes that are given (hard or soft), in elements. None or 0 leaves the dimension open, -1
        means the full extent of the domain.
    aspect_ratio : sequence of float or None, length n, optional
        Relative sizes of the open dimensions. None and 0 mean 1.
    elements : int, optional
        Target number of elements of a chunk; 1048576 if not given.
    domain_origin, domain_shape : sequence of int, length n
        Origin and shape of the array's domain, in elements. Unbounded dimensions begin at
        ``-(2**62 - 1)`` or end at ``2**62 - 1``.

    Returns
    -------
    tuple of int, length n
        Chunk size of each dimension, at least 1.

    Raises
    ------
    MetadataError
        If a constraint has another rank than the domain, or -1 is given for an unbounded
        dimension.

    Examples
    --------
    >>> choose_chunk_shape(None, None, None, (0, 0, 0), (1000, 2000, 3000))
    (101, 101, 101)
    >>> choose_chunk_shape((None, 50), (1, 2), 1000, (0, 0), (10**6, 10**6))
    (20, 50)
    """
    last = [origin + size - 1 for origin, size in zip(domain_origin, domain_shape, strict=True)]
    extents = _Extents(domain_origin, last)
    fixed = extents.fixed_sizes(shape)
    return _complete(fixed, aspect_ratio, elements, extents, None)


def choose_single_chunk_shape(grid: ChunkGrid, domain: IndexDomain) -> tuple[int, ...]:
    """Choose the shape of the only level of chunks under the constraints of `grid`.

    The rules and errors are those of :func:`choose_chunk_shape`; `grid` is the result of
    :meth:`ChunkLayout.read_write_chunk`.
    """
    return choose_chunk_shape(
        _values(grid.shape_constraint),
        _values(grid.aspect_ratio_constraint),
        grid.elements_constraint,
        domain.origin,
        domain.shape,
    )


def choose_read_write_chunk_shapes(
    read: ChunkGrid, write: ChunkGrid, domain: IndexDomain
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose read and write chunks such that a write chunk consists of whole read chunks.

    Parameters
    ----------
    read, write : ChunkGrid
        Constraints on both levels; their rank is unknown or that of the domain.
    domain : IndexDomain, rank n
        Domain of the array.

    Returns
    -------
    (read, write) : tuple of int, length n, each
        Chunk sizes in elements; ``write[i] % read[i] == 0``.

    Raises
    ------
    MetadataError
        If both sizes of a dimension are hard and do not divide, and for the reasons of
        :func:`choose_chunk_shape`.
    """
    extents = _Extents(domain.inclusive_min, domain.inclusive_max)
    write_sizes = extents.fixed_sizes(_values(write.shape_constraint))
    read_sizes = extents.fixed_sizes(_values(read.shape_constraint))
    for i, (read_size, write_size) in enumerate(zip(read_sizes, write_sizes, strict=True)):
        if not read_size or not write_size or write_size % read_size == 0:
            continue
        # The full extent (-1) is always soft.
        read_is_hard = _is_hard(read, i)
        if read_is_hard and _is_hard(write, i):
            raise MetadataError(
                f"Incompatible chunk size constraints for dimension {i}: "
                f"read size of {read_size}, write size of {write_size}"
            )
        if read_is_hard:
            write_sizes[i] = nearest_multiple(read_size, write_size)
        else:
            read_sizes[i] = nearest_divisor(write_size, read_size)

    def snap_read(i: int, size: int) -> int:
        return nearest_divisor(write_sizes[i], size) if write_sizes[i] else size

    chosen_read = _complete(
        read_sizes,
        _values(read.aspect_ratio_constraint),
        read.elements_constraint,
        extents,
        snap_read,
    )

    def snap_write(i: int, size: int) -> int:
        return nearest_multiple(chosen_read[i], size)

    chosen_write = _complete(
        write_sizes,
        _values(write.aspect_ratio_constraint),
        write.elements_constraint,
        extents,
        snap_write,
    )
    return chosen_read, chosen_write


def nearest_multiple(divisor: int, target: int) -> int:
    """Return the multiple of `divisor` nearest to `target`, the lower of two, not below `divisor`.

    >>> nearest_multiple(4, 10), nearest_multiple(4, 11), nearest_multiple(4, 1)
    (8, 12, 4)
    """
    if target <= divisor:
        return divisor
    below = target - target % divisor
    above = below + divisor
    return above if above - target < target - below else below


@lru_cache(maxsize=4096)
def nearest_divisor(dividend: int, target: int) -> int:
    """Return the divisor of `dividend` nearest to `target`, the lower of two.

    Only divisors at most 10^6 away count, as in TensorStore; the result is `dividend` without one.

    >>> nearest_divisor(12, 5), nearest_divisor(12, 9), nearest_divisor(12, 10)
    (4, 6, 12)
    """
    if target >= dividend:
        return dividend
    if dividend <= _MAX_ENUMERATED:
        divisors = _divisors(dividend)
        at = bisect_left(divisors, target)
        near = divisors[max(0, at - 1) : at + 1]
    else:
        near = _divisors_near(dividend, target)
    near = [d for d in near if abs(d - target) <= _MAX_DIVISOR_OFFSET]
    return min(near, key=lambda d: (abs(d - target), d), default=dividend)


@lru_cache(maxsize=64)
def _divisors(dividend: int) -> list[int]:
    """Return all divisors of `dividend`, which is at most 10^12, in ascending order."""
    candidates = np.arange(1, math.isqrt(dividend) + 1, dtype=np.int64)
    low = candidates[dividend % candidates == 0].tolist()
    return sorted({*low, *(dividend // d for d in low)})


def _divisors_near(dividend: int, target: int) -> list[int]:
    """Return the divisors at most 10^6 away from `target`, in ascending order."""
    start = max(1, target - _MAX_DIVISOR_OFFSET)
    candidates = np.arange(start, target + _MAX_DIVISOR_OFFSET + 1, dtype=np.int64)
    found: list[int] = candidates[dividend % candidates == 0].tolist()
    return found


def _values(vector: ConstraintVector[N] | None) -> tuple[N | None, ...] | None:
    return None if vector is None else vector.values


def _is_hard(grid: ChunkGrid, i: int) -> bool:
    return grid.shape_constraint is not None and grid.shape_constraint.hard[i]


class _Extents:
    """Bounds and extents of a domain for the search; an extent is None if unbounded."""

    def __init__(self, inclusive_min: Sequence[int], inclusive_max: Sequence[int]) -> None:
        self.bounds = tuple(zip(inclusive_min, inclusive_max, strict=True))
        self.rank = len(self.bounds)
        self.extent = [
            high - low + 1 if low > -_INF and high < _INF else None for low, high in self.bounds
        ]

    def check_rank(self, constraint: Sequence[object]) -> None:
        if len(constraint) != self.rank:
            raise MetadataError(
                f"Rank of constraints ({len(constraint)}) does not match rank of domain "
                f"({self.rank})"
            )

    def fixed_sizes(self, shape: Sequence[int | None] | None) -> list[int]:
        """Return the sizes that are given, 0 for open dimensions."""
        if shape is None:
            return [0] * self.rank
        self.check_rank(shape)
        sizes = [size or 0 for size in shape]
        for i, size in enumerate(sizes):
            if size != -1:
                continue
            extent = self.extent[i]
            if extent is None:
                raise MetadataError(
                    f"Cannot match chunk size for dimension {i} to unbounded domain "
                    f"{self.interval(i)}"
                )
            sizes[i] = max(1, extent)
        return sizes

    def interval(self, i: int) -> str:
        low, high = self.bounds[i]
        lower = "(-inf" if low <= -_INF else f"[{low}"
        upper = "+inf" if high >= _INF else f"{high + 1}"
        return f"{lower}, {upper})"

    def caps(self, target: int) -> list[float]:
        """Return the largest size of each dimension that the search tries, as double."""
        return [
            min(float(target), _MAX_SIZE, *([] if n is None else [max(1.0, float(n))]))
            for n in self.extent
        ]


def _complete(
    fixed: Sequence[int],
    aspect_ratio: Sequence[float | None] | None,
    elements: int | None,
    extents: _Extents,
    snap: Snap | None,
) -> tuple[int, ...]:
    """Return chunk sizes: those of `fixed`, and chosen ones where it is 0."""
    if aspect_ratio is not None:
        extents.check_rank(aspect_ratio)
    open_dims = [i for i, size in enumerate(fixed) if size == 0]
    if not open_dims:
        return tuple(fixed)
    target = DEFAULT_CHUNK_ELEMENTS if elements is None else elements
    ratio = [float(r or 1.0) for r in aspect_ratio or [1.0] * extents.rank]
    cap = extents.caps(target)

    def shape_at(factor: float) -> tuple[int, ...]:
        sizes = list(fixed)
        for i in open_dims:
            size = max(1, int(min(ratio[i] * factor, cap[i])))
            sizes[i] = snap(i, size) if snap else size
        return tuple(sizes)

    def total_at(factor: float) -> int:
        return min(math.prod(shape_at(factor)), _MAX_TOTAL)

    step = min(1.0 / ratio[i] for i in open_dims) / 2
    low = step
    high = 2 * max(cap[i] / ratio[i] for i in open_dims)
    high_total = total_at(high)
    while low + step < high:
        wide = high > 4.0 * low
        middle = math.sqrt(low * high) if wide else low + (high - low) / 2.0
        if not low < middle < high:
            # Neighbouring doubles: with extreme ratios the step is below the precision.
            break
        total = total_at(middle)
        if total >= target:
            high, high_total = middle, total
        if total <= target:
            low = middle
    return shape_at(high if high_total == target else low)
