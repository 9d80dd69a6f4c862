"""Strata: parts of a window over which consecutive patches are spread."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpustore.loader.strata import LEVELS, halvings, order_by, placed, strata


@given(key=st.integers(0, 2**64 - 1), levels=st.integers(0, LEVELS), run=st.integers(0, 1000))
def test_a_run_of_patches_has_one_in_each_part(key, levels, run):
    found = strata(key, (run << levels) + np.arange(1 << levels)) >> (LEVELS - levels)
    assert sorted(found.tolist()) == list(range(1 << levels))


def test_all_strata_are_equally_likely():
    found = [int(strata(key, np.array([6]))[0]) >> (LEVELS - 2) for key in range(400)]
    assert abs(np.bincount(found, minlength=4) - 100).max() < 45  # five standard deviations


@given(key=st.integers(0, 99), first=st.integers(0, 99), count=st.integers(1, 60))
def test_patches_keep_their_places_and_halves_lie_apart(key, first, count):
    origins = np.random.default_rng(key).integers(0, 50, (count, 2))
    stratum = strata(key, first + np.arange(count))
    found = placed(origins, stratum, [1, 0] * (LEVELS // 2))
    assert sorted(found.tolist()) == sorted(origins.tolist())
    half = stratum >> (LEVELS - 1)
    if 0 < half.sum() < count:
        assert found[half == 0, 1].max() <= found[half == 1, 1].min()


def test_regions_are_halved_where_that_saves_chunks():
    assert halvings([0, 0], [192, 96], (8, 8), (32, 32), (384, 384))[:3] == [0, 0, 1]
    # All patches need the one chunk along the second dimension.
    assert halvings([0, 0], [64, 64], (8, 8), (1, 71), (71, 71))[:5] == [0] * 5
    assert halvings([0, 3], [64, 4], (8, 8), (1, 1), (71, 71))[:5] == [0] * 5


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=20),
    most=st.sampled_from([0, 1 << 30, 1 << 62]),
)
def test_rows_are_ordered_by_their_keys_and_alike_ones_stay(rows, most):
    first, second = np.array(rows, np.int64).reshape(-1, 2).T
    second = second + most * (second > 4)
    assert order_by(first, second).tolist() == np.lexsort((second, first)).tolist()
