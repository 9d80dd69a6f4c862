"""Halves of NumPy arrays: means of blocks and their neighbours with the weights 1, 3, 3, 1.

Elements beyond the edges are those at the edges. Sums go along the first halved axis, then the next
one: of integers they are exact, and the mean is rounded to the nearest, halves to the even number;
floats are added as float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.downsampling import Downsampling

_CELLS_AT_ONCE: Final = 1 << 15
"""Elements of the result that are made at once."""


def smooth(elements: NDArray[Any], job: Downsampling, out: NDArray[Any]) -> None:
    """Write the weighed mean of each block and its neighbours.

    Parameters
    ----------
    elements : ndarray
        Elements with a weight, as far as there are any.
    job : Downsampling
        Blocks of 1 or 2 elements along each axis.
    out : ndarray
        Array of the shape of the blocks and of the same data type.
    """
    along = int(np.argmax(out.shape))
    # Parts whose sums stay in the cache; the whole would take several times its memory.
    step = max(1, _CELLS_AT_ONCE * out.shape[along] // max(1, out.size))
    for low in range(0, out.shape[along], step):
        place = [slice(0, n) for n in out.shape]
        place[along] = slice(low, min(low + step, out.shape[along]))
        part = elements
        # First the axis that is cut: less is copied along the others then.
        for axis in sorted(range(out.ndim), key=lambda axis: axis != along):
            begin, end = place[axis].start, place[axis].stop
            if job.factors[axis] == 2:
                begin, end = (2 * at - job.before[axis] for at in (begin, end))
                begin, end = begin - 1, end + 1
            if begin >= 0 and end <= elements.shape[axis]:
                part = part[(*[slice(None)] * axis, slice(begin, end))]
            else:
                indices = np.arange(begin, end).clip(0, elements.shape[axis] - 1)
                part = part.take(indices, axis)
        out[tuple(place)] = _halved(part, job.factors)


def _halved(elements: NDArray[Any], factors: Sequence[int]) -> NDArray[Any]:
    """Return halves of an array that has one more element on each side of halved axes."""
    dtype, bits = elements.dtype, 3 * list(factors).count(2)
    sums: Any = np.float64
    if dtype.kind in "iu":
        sums = np.int32 if 8 * dtype.itemsize + bits < 31 else np.int64
    found: NDArray[Any] = elements.astype(sums)
    for axis, factor in enumerate(factors):
        if factor == 2:
            lines = np.moveaxis(found, axis, 0)
            inner = lines[1:-2:2] + lines[2:-1:2]
            inner *= 3
            inner += lines[:-3:2] + lines[3::2]
            found = np.moveaxis(inner, 0, axis)
    if dtype.kind == "f":
        found /= 1 << bits
        found[np.isnan(found)] = np.nan
    elif bits:
        # Half of the weight, less one where the quotient is even: halves go to the even number.
        found += ((found >> bits) & 1) + ((1 << (bits - 1)) - 1)
        found >>= bits
    return found.astype(dtype)
