"""Descriptor layouts and division by multiplication."""

import numpy as np
import pytest

from gpustore.device.kernels.descriptor import division, first_tiles, layouts
from gpustore.errors import LimitError


def test_division_is_exact():
    rng = np.random.default_rng(0)
    extents = [2, 3, 5, 7, 255, 256, 257, 641, 65535, 65536, 65537, 2**30 - 1, 2**30, 2**31 - 1]
    extents = np.array([*extents, *rng.integers(2, 2**31, 500)])
    magics, shifts = division(extents)
    for extent, magic, shift in zip(extents.tolist(), magics.tolist(), shifts.tolist()):
        assert 0 < magic < 2**32
        assert 0 <= shift < 32
        multiples = np.arange(1, 50, dtype=np.uint64) * np.uint64(extent)
        edges = np.concatenate([multiples - 1, multiples, multiples + 1])
        random = rng.integers(0, 2**31, 200, dtype=np.uint64)
        last = np.array([0, 2**31 - 1], np.uint64)
        dividend = np.concatenate([edges[edges < 2**31], random, last])
        got = (dividend * np.uint64(magic) >> np.uint64(32)) >> np.uint64(shift)
        assert (got == dividend // np.uint64(extent)).all()


def test_an_extent_of_1_needs_no_division():
    assert [part.tolist() for part in division(np.array([1]))] == [[0], [0]]


def test_tables_of_descriptors_stay_aligned():
    for layout in layouts().values():
        assert layout.itemsize % 8 == 0


def test_first_tiles_count_the_tiles_before():
    first, blocks = first_tiles(np.array([3, 1, 5]))
    assert first.tolist() == [0, 3, 4]
    assert blocks == 9
    with pytest.raises(LimitError, match="at most 2147483647"):
        first_tiles(np.array([2**30, 2**30]))
