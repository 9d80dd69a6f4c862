"""Parts of an array that ``--index`` names, with NumPy's rules: from zero, negative, clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustore.cli.failure import CommandError

if TYPE_CHECKING:
    from collections.abc import Sequence


def element_ranges(index: Sequence[int | slice], shape: Sequence[int]) -> list[range]:
    """Return the indices that an index expression selects along each dimension.

    Dimensions at the end that have no index are taken whole; a number selects a range of one.

    Raises
    ------
    CommandError
        There are more indices than dimensions, or a number is outside the array.

    Examples
    --------
    >>> element_ranges((-1, slice(None, None, 2)), (3, 4, 5))
    [range(2, 3), range(0, 4, 2), range(0, 5)]
    """
    if len(index) > len(shape):
        raise CommandError(
            f"--index has {len(index)} indices, but the array has {len(shape)} dimensions"
        )
    ranges = []
    for axis, extent in enumerate(shape):
        one = index[axis] if axis < len(index) else slice(None)
        if isinstance(one, slice):
            ranges.append(range(int(extent))[one])
            continue
        if not -extent <= one < extent:
            raise CommandError(
                f"index {one} is outside dimension {axis}, which has {extent} elements"
            )
        ranges.append(range(one % extent, one % extent + 1))
    return ranges


def format_index(index: Sequence[int | range], shape: Sequence[int]) -> str:
    """Format an index as ``--index`` takes it.

    >>> format_index([3, range(0, 8), range(2, 6, 2), range(4, -1, -1)], [9, 8, 7, 5])
    '3,:,2:6:2,::-1'
    """
    return ",".join(_word(one, extent) for one, extent in zip(index, shape, strict=True))


def _word(one: int | range, extent: int) -> str:
    if isinstance(one, int):
        return str(one)
    first, end = (0, extent) if one.step > 0 else (extent - 1, -1)
    start = "" if one.start == first else str(one.start)
    stop = "" if one.stop == end else str(one.stop)
    return f"{start}:{stop}" + (f":{one.step}" if one.step != 1 else "")
