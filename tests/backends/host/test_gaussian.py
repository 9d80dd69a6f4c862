"""Halves of arrays: weighed means of blocks and their neighbours."""

import itertools

import numpy as np
import pytest

from gpustore.backends.downsampling import Downsampling
from gpustore.backends.host import gaussian

RNG = np.random.default_rng(5)


def smoothed(values, factors):
    """The mean with the weights 1, 3, 3, 1 of each block and its neighbours; exact."""
    shape = [-(-n // f) for n, f in zip(values.shape, factors, strict=True)]
    weights = [((-1, 1), (0, 3), (1, 3), (2, 1)) if f == 2 else ((0, 1),) for f in factors]
    total, of = np.zeros(shape, "int64"), 0
    for taps in itertools.product(*weights):
        index = [
            np.clip(np.arange(m) * f + tap, 0, n - 1)
            for m, f, (tap, _), n in zip(shape, factors, taps, values.shape, strict=True)
        ]
        weight = int(np.prod([w for _, w in taps]))
        total += weight * values[np.ix_(*index)].astype("int64")
        of += weight
    quotient, rest = np.divmod(total, of)
    up = (2 * rest > of) | ((2 * rest == of) & (quotient % 2 == 1))
    return (quotient + up).astype(values.dtype)


@pytest.mark.parametrize("cells", [1, 20, 1 << 20])
@pytest.mark.parametrize("factors", [(2, 1, 2), (1, 2, 2), (1, 1, 1)])
def test_parts_of_any_size(cells, factors, monkeypatch):
    monkeypatch.setattr(gaussian, "_CELLS_AT_ONCE", cells)
    values = RNG.integers(-(2**15), 2**15, (3, 9, 11)).astype("int16")
    expected = smoothed(values, factors)
    for start, stop in ((0, None), (1, 2), (1, None)):
        index = [slice(start, n if stop is None else stop) for n in expected.shape]
        first = [max(0, i.start * f - (f == 2)) for i, f in zip(index, factors, strict=True)]
        end = [i.stop * f + (f == 2) for i, f in zip(index, factors, strict=True)]
        elements = values[tuple(map(slice, first, end))]
        before = [at - i.start * f for at, i, f in zip(first, index, factors, strict=True)]
        out = np.zeros([i.stop - i.start for i in index], "int16")
        gaussian.smooth(elements, Downsampling("gaussian", factors, tuple(before)), out)
        assert np.array_equal(out, expected[tuple(index)])
