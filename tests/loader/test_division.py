"""Divisions of an epoch into batches, and of batches among ranks."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpustore.loader.division import Division
from gpustore.loader.order import Window


def keys_of(numbers):
    return numbers * 7919 % 31


@given(
    total=st.integers(1, 90),
    batch_size=st.integers(1, 5),
    world=st.integers(1, 5),
    drop_last=st.booleans(),
    cuts=st.sets(st.integers(1, 89), max_size=4),
    step=st.integers(1, 3),
    data=st.data(),
)
def test_ranks_have_each_batch_sorted_and_divided(
    total, batch_size, world, drop_last, cuts, step, data
):
    size = batch_size * world
    left = total % size
    assume(total >= size if drop_last else not 0 < left < world)
    ranks = [Division.of(total, batch_size, r, world, drop_last=drop_last) for r in range(world)]
    batches = range(data.draw(st.integers(0, ranks[0].batches)), ranks[0].batches, step)
    edges = [0, *sorted(c for c in cuts if c < total), total]
    windows = [Window(lo, 0, np.zeros((hi - lo, 1), int)) for lo, hi in itertools.pairwise(edges)]
    found = {batch: [] for batch in batches}
    for one in ranks:
        rows = {batch: {} for batch in batches}
        for window in windows:
            at, row = one.chosen(window, batches, keys_of)
            assert (np.diff(at) > 0).all()
            for number, r in zip((at + window.first).tolist(), row.tolist(), strict=True):
                rows[number // size][r] = number
        for batch, some in rows.items():
            assert sorted(some) == list(range(one.part_size(batch)))
            found[batch] += [some[r] for r in range(len(some))]
    for batch, numbers in found.items():
        whole = np.arange(batch * size, min((batch + 1) * size, total))
        assert numbers == whole[np.argsort(keys_of(whole), kind="stable")].tolist()


@pytest.mark.parametrize(
    ("total", "drop_last", "text"), [(7, True, "no batch of 8"), (9, False, "some ranks have none")]
)
def test_batches_that_some_ranks_miss_are_errors(total, drop_last, text):
    with pytest.raises(ValueError, match=text):
        Division.of(total, 4, 0, 2, drop_last=drop_last)
