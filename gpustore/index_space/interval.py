"""Intervals of indices: plain ``(lower, stop)`` pairs of Python ints, and their arithmetic.

An interval is half-open, ``lower <= index < stop``. An index lies strictly between ``-inf`` and
``inf = 2**62 - 1``; ``lower == -inf`` means unbounded below and ``stop == inf + 1`` unbounded
above. All results are checked against that range and against int64, so nothing wraps around.

Pairs rather than objects, because slicing a store should cost a few microseconds.
Source: TensorStore ``tensorstore/index_interval.cc``.
"""

from __future__ import annotations

import operator
from typing import Any

from gpustore.errors import MetadataError, OutOfBoundsError

INF = 2**62 - 1
INF_STOP = INF + 1
INF_SIZE = 2**63 - 1
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
MAX_RANK = 32


def fits_int64(value: int) -> bool:
    """Whether `value` is an int64."""
    return INT64_MIN <= value <= INT64_MAX


def index_argument(value: Any, name: str) -> int:
    """Return `value` as an int64, raise TypeError that names the parameter otherwise."""
    try:
        index = operator.index(value)
    except TypeError:
        index = INT64_MAX + 1
    if not INT64_MIN <= index <= INT64_MAX:
        raise TypeError(f"{name}: expected a 64-bit signed integer, got {value!r}")
    return index


def check_rank(rank: int) -> None:
    """Raise MetadataError unless `rank` is a number of dimensions that TensorStore allows."""
    if not 0 <= rank <= MAX_RANK:
        raise MetadataError(f"Rank {rank} is outside valid range [0, {MAX_RANK}]")


def quote(text: str) -> str:
    r"""Return `text` in double quotes with C escapes, as TensorStore prints labels.

    >>> print(quote('a"é'))
    "a\"\xc3\xa9"
    """
    simple = {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 39: "\\'", 92: "\\\\"}
    out = []
    after_hex = False
    for byte in text.encode("utf-8", "surrogatepass"):
        # A hex digit right after a hex escape would be read as a part of it.
        hex_digit = after_hex and chr(byte) in "0123456789abcdefABCDEF"
        after_hex = False
        if byte in simple:
            out.append(simple[byte])
        elif 32 <= byte < 127 and not hex_digit:
            out.append(chr(byte))
        else:
            out.append(f"\\x{byte:02x}")
            after_hex = True
    return '"' + "".join(out) + '"'


def format_interval(
    lower: int, stop: int, implicit_lower: bool = False, implicit_upper: bool = False
) -> str:
    """Format an interval as TensorStore does; a star marks an implicit bound.

    >>> format_interval(0, 5, False, True), format_interval(-INF, INF_STOP)
    ('[0, 5*)', '(-inf, +inf)')
    """
    left = "(-inf" if lower == -INF else f"[{lower}"
    right = "+inf" if stop == INF_STOP else f"{stop}"
    return f"{left}{'*' * implicit_lower}, {right}{'*' * implicit_upper})"


def _valid(lower: int, stop: int) -> bool:
    return -INF <= lower < INF and -INF + 1 < stop <= INF_STOP and lower <= stop


def closed(lower: int, upper: int) -> tuple[int, int]:
    """Return ``[lower, upper]`` as a half-open interval; MetadataError if it is no interval."""
    if not _valid(lower, upper + 1):
        raise MetadataError(f"({lower}, {upper}) do not specify a valid closed index interval")
    return lower, upper + 1


def half_open(lower: int, stop: int) -> tuple[int, int]:
    """Return ``[lower, stop)``; MetadataError if it is no interval."""
    if not _valid(lower, stop):
        raise MetadataError(f"({lower}, {stop}) do not specify a valid half-open index interval")
    return lower, stop


def sized(lower: int, size: int) -> tuple[int, int]:
    """Return the interval of `size` indices from `lower` on; MetadataError if it is none."""
    if size < 0 or not _valid(lower, lower + size):
        raise MetadataError(f"({lower}, {size}) do not specify a valid sized index interval")
    return lower, lower + size


def contains(lower: int, stop: int, inner_lower: int, inner_stop: int) -> bool:
    """Whether the inner interval is empty or part of the other."""
    return inner_lower >= inner_stop or (inner_lower >= lower and inner_stop <= stop)


def check_index(index: int, lower: int, stop: int) -> None:
    """Raise OutOfBoundsError unless `index` is finite and in ``[lower, stop)``."""
    if not (lower <= index < stop and -INF < index < INF):
        raise OutOfBoundsError(
            f"Index {index} is outside valid range {format_interval(lower, stop)}"
        )


def _join(label: str, other: str) -> str:
    if label and other and label != other:
        raise MetadataError("Dimension labels do not match")
    return label or other


Bounds = tuple[int, int, bool, bool, str]
"""Bounds of one dimension: lower, stop, implicit lower, implicit upper, label."""


def hull(a: Bounds, b: Bounds) -> Bounds:
    """Return the smallest interval that contains both; a chosen bound keeps its implicit flag."""
    label = _join(a[4], b[4])
    if a[0] == a[1]:
        lower, stop = b[:2]
    elif b[0] == b[1]:
        lower, stop = a[:2]
    else:
        lower, stop = min(a[0], b[0]), max(a[1], b[1])
    return lower, stop, _flag(a, b, 0, lower), _flag(a, b, 1, stop), label


def intersect(a: Bounds, b: Bounds) -> Bounds:
    """Return the common part, perhaps empty; a chosen bound keeps its implicit flag."""
    label = _join(a[4], b[4])
    lower, stop = max(a[0], b[0]), min(a[1], b[1])
    implicit_lower, implicit_upper = _flag(a, b, 0, lower), _flag(a, b, 1, stop)
    return lower, max(lower, stop), implicit_lower, implicit_upper, label


def _flag(a: Bounds, b: Bounds, side: int, bound: int) -> bool:
    """Whether every interval that has this bound has it implicit."""
    return all(x[2 + side] for x in (a, b) if x[side] == bound)


_FINITE = format_interval(-INF + 1, INF)


def shift(lower: int, stop: int, offset: int) -> tuple[int, int]:
    """Return the interval with `offset` added to its finite bounds."""
    for bound, infinite in ((lower, -INF), (stop - 1, INF)):
        if bound != infinite and not -INF < bound + offset < INF:
            raise MetadataError(f"{bound} + {offset} is outside valid range {_FINITE}")
    return (
        lower if lower == -INF else lower + offset,
        stop if stop == INF_STOP else stop + offset,
    )


def shift_to(lower: int, stop: int, origin: int) -> tuple[int, int]:
    """Return the interval moved so that it begins at `origin`."""
    if not -INF < origin < INF:
        raise OutOfBoundsError(f"Origin {origin} is outside valid range {_FINITE}")
    if lower == -INF:
        raise MetadataError(f"Interval {format_interval(lower, stop)} is not bounded below")
    return shift(lower, stop, origin - lower)


def affine_domain(lower: int, stop: int, offset: int, divisor: int) -> tuple[int, int]:
    """Return the interval of the ``x`` for which ``offset + divisor * x`` is in ``[lower, stop)``.

    >>> affine_domain(0, 10, 1, 3)
    (0, 3)
    """
    if lower == -INF and stop == INF_STOP:
        return lower, stop
    empty = lower == stop
    low, high = lower, stop - 1
    if divisor < 0:
        low, high = (-stop, -lower - 1) if empty else (1 - stop, -lower)
        offset, divisor = -offset, -divisor
    new_low, new_high = low, high
    overflow = divisor > INT64_MAX or offset > INT64_MAX
    if low != -INF:
        overflow = overflow or not fits_int64(low - offset)
        new_low = -((offset - low) // divisor)
        overflow = overflow or not -INF < new_low < INF
    if empty:
        new_high = new_low - 1
    elif high != INF:
        overflow = overflow or not fits_int64(high - offset)
        new_high = (high - offset) // divisor
        overflow = overflow or not -INF < new_high < INF
    if overflow:
        raise MetadataError(
            f"Integer overflow propagating range {format_interval(lower, stop)} through inverse "
            f"affine transform with offset {offset} and multiplier {divisor}"
        )
    return new_low, new_high + 1


def strided_slice(
    bounds: tuple[int, int, bool, bool],
    start: int | None,
    stop: int | None,
    step: int,
) -> tuple[int, int, bool, bool, int]:
    """Apply ``[start:stop:step]`` to an interval.

    Returns
    -------
    tuple of lower, stop, implicit lower, implicit upper, offset
        The new interval, ``lower`` being ``start / step`` rounded towards zero, and the offset:
        old index = offset + step * new index.

    Notes
    -----
    With a negative step `start` makes the upper bound explicit and `stop` the lower one.
    TensorStore 0.1.86 confuses the two: of a resizable array with 10 elements its ``[5::-1]``
    returns all 10. It also refuses ``[::-1]`` of a resizable array with none.

    >>> strided_slice((0, 12, False, False), 3, 9, 2)
    (1, 4, False, False, 1)
    """
    lower, end, implicit_lower, implicit_upper = bounds
    outer_lower = -INF if implicit_lower else lower
    outer_stop = INF_STOP if implicit_upper else end
    if step == 0 or step == INT64_MIN:
        raise MetadataError(f"Invalid stride {step}")
    if start is None:
        start = lower if step > 0 else end - 1
    else:
        if not -INF <= start <= INF:
            raise MetadataError(f"Invalid start index {start}")
        if step > 0:
            implicit_lower = False
        else:
            implicit_upper = False
    if stop is None:
        last = end - 1 if step > 0 else lower
    else:
        if step > 0:
            implicit_upper = False
        else:
            implicit_lower = False
        last = stop if not -INF < stop < INF else stop - 1 if step > 0 else stop + 1
    if step not in (1, -1) and not -INF < start < INF:
        raise MetadataError(f"Slicing with non-unit stride of {step} requires a finite start index")
    if step > 0:
        inner_lower, inner_stop = closed(start, last)
    else:
        inner_lower, inner_stop = closed(last, start)
        implicit_lower, implicit_upper = implicit_upper, implicit_lower
    if inner_lower < inner_stop and not (outer_lower <= inner_lower and inner_stop <= outer_stop):
        raise OutOfBoundsError(
            f"Slice interval {format_interval(inner_lower, inner_stop)} is not contained within "
            f"domain {format_interval(outer_lower, outer_stop)}"
        )
    new_lower = start // step if (start >= 0) == (step > 0) else -(-start // step)
    if last == INF or last == -INF:
        new_stop = INF_STOP
    else:
        new_stop = new_lower - (inner_lower - inner_stop) // abs(step)
    return new_lower, new_stop, implicit_lower, implicit_upper, start - new_lower * step
