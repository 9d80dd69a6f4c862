"""Parts of an array: what ``--index`` names, with NumPy's rules, and the slice of a picture."""

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


def choose(
    index: Sequence[int | slice] | None, shape: Sequence[int], dtype: str
) -> list[int | range]:
    """Choose a slice of two dimensions, or of three of which the last is red, green, blue.

    Parameters
    ----------
    index : sequence of int or slice, or None
        Indices of the user; None chooses the middle of the leading dimensions.
    shape : sequence of int
    dtype : str
        Name of the data type; three or four bytes are a colour.

    Returns
    -------
    list of int or range
        An int for each dimension that is not shown.

    Raises
    ------
    CommandError
        The slice has no elements, or not two dimensions.

    Examples
    --------
    >>> choose(None, (9, 4, 6), "uint16")
    [4, range(0, 4), range(0, 6)]
    >>> choose((2,), (9, 4, 6), "uint16")
    [2, range(0, 4), range(0, 6)]
    """
    is_colour = dtype == "uint8" and len(shape) > 2 and shape[-1] in (3, 4)
    if index is None:
        leading = len(shape) - (3 if is_colour else 2)
        index = [int(extent) // 2 for extent in shape[: max(0, leading)]]
    ranges = element_ranges(index, shape)
    if not all(ranges):
        axis = next(axis for axis, along in enumerate(ranges) if not along)
        raise CommandError(f"the slice has no elements along dimension {axis}")
    chosen: list[int | range] = [
        along[0] if axis < len(index) and isinstance(index[axis], int) else along
        for axis, along in enumerate(ranges)
    ]
    kept = [one for one in chosen if isinstance(one, range)]
    if len(kept) == 3 and is_colour and kept[-1] == range(int(shape[-1])):
        return chosen
    if len(kept) > 2:
        raise CommandError(
            f"the slice has {len(kept)} dimensions of a picture's 2: give --index numbers for "
            f"{len(kept) - 2} more of the {len(shape)} dimensions"
        )
    return chosen


def strided(chosen: Sequence[int | range], width: int, height: int) -> list[int | range]:
    """Take every n-th element of the two dimensions of the picture: no fewer than its pixels."""
    shown = [n for n, one in enumerate(chosen) if isinstance(one, range)][:2]
    limits = dict(zip(shown, (height, width)[2 - len(shown) :], strict=True))
    sizes = {n: len(one) for n, one in enumerate(chosen) if isinstance(one, range)}
    step = max([1, *(sizes[n] // limit for n, limit in limits.items())])
    return [
        one[::step] if isinstance(one, range) and n in limits else one
        for n, one in enumerate(chosen)
    ]


def subscripts(chosen: Sequence[int | range]) -> tuple[int | slice, ...]:
    """Return an index expression of NumPy."""
    return tuple(
        one
        if isinstance(one, int)
        else slice(one.start, None if one.stop < 0 else one.stop, one.step)
        for one in chosen
    )
