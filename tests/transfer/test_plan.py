"""Regions: they tile the array, are whole chunks of the target, and bounded."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.transfer.plan import Plan, plan_regions


@st.composite
def tasks(draw):
    """Arguments of :func:`plan_regions`; arrays small enough to be written down."""
    rank = draw(st.integers(0, 4))
    longest = {0: 1, 1: 300, 2: 40, 3: 14, 4: 8}[rank]
    extents = st.integers(1, longest + 3)
    return {
        "shape": tuple(draw(st.integers(0, longest)) for _ in range(rank)),
        "itemsize": draw(st.sampled_from([1, 2, 16])),
        "source_chunk": [draw(extents) for _ in range(rank)],
        "target_chunk": [draw(extents) for _ in range(rank)],
        "memory_nbytes": draw(st.integers(1, 20_000)),
        "workers": draw(st.integers(1, 20)),
    }


def one_chunk_nbytes(task):
    extents = zip(task["target_chunk"], task["shape"], strict=True)
    return math.prod(max(1, min(c, n)) for c, n in extents) * task["itemsize"]


@given(task=tasks())
def test_regions_tile_the_array_once_in_whole_chunks(task):
    plan = plan_regions(**task)
    covered = np.zeros(task["shape"], int)
    for place in plan.regions():
        assert all(part.start < part.stop for part in place)
        covered[place] += 1
        for part, c, n in zip(place, task["target_chunk"], task["shape"], strict=True):
            assert part.start % c == 0
            assert part.stop % c == 0 or part.stop == n
    assert (covered == 1).all()


@given(task=tasks())
def test_regions_in_flight_fit_in_memory(task):
    plan = plan_regions(**task)
    largest = max(
        (math.prod(p.stop - p.start for p in place) for place in plan.regions()), default=0
    )
    assert largest * task["itemsize"] <= plan.region_nbytes
    bound = max(task["memory_nbytes"], one_chunk_nbytes(task))
    assert plan.region_nbytes * plan.in_flight <= bound
    assert 1 <= plan.in_flight <= max(3, task["workers"] + 1)


@given(task=tasks())
def test_decodes_are_counted_exactly(task):
    plan = plan_regions(**task)
    chunks = touched = 1
    for n, c, r in zip(task["shape"], task["source_chunk"], plan.region, strict=True):
        chunks *= len({i // c for i in range(n)})
        touched *= len({(i // c, i // r) for i in range(n)})
    if chunks:
        assert plan.reads_per_chunk == pytest.approx(touched / chunks)
    else:
        assert list(plan.regions()) == []


@given(task=tasks())
def test_enough_memory_means_that_everything_is_decoded_once(task):
    plan = plan_regions(**{**task, "memory_nbytes": 1 << 30})
    assert plan.reads_per_chunk == 1


def plan_for(shape, source, target, mebibytes, itemsize=2):
    return plan_regions(
        shape,
        itemsize,
        source_chunk=source,
        target_chunk=target,
        memory_nbytes=mebibytes << 20,
        workers=2,
    )


def test_slices_become_bricks_with_each_slice_decoded_once():
    plan = plan_for((2000, 2000, 2000), (1, 2000, 2000), (64, 64, 64), 2048)
    assert plan.region == (64, 2000, 2000)
    assert plan.reads_per_chunk == 1


def test_less_memory_costs_decodes_not_correctness():
    few, many = (plan_for((512,) * 3, (1, 512, 512), (64, 64, 64), m) for m in (1, 512))
    assert few.reads_per_chunk == 32
    assert many.reads_per_chunk == 1
    assert few.region_nbytes <= 1 << 20


def test_a_chunk_beyond_the_memory_is_a_region_of_its_own():
    plan = plan_for((1024, 1024), (64, 64), (1024, 1024), 1)
    assert plan.region == (1024, 1024)
    assert plan.in_flight == 1


def test_regions_are_no_larger_than_of_use():
    plan = plan_for((1 << 20, 1 << 10), (64, 64), (64, 64), 1 << 14)
    assert plan.region_nbytes <= 128 << 20
    assert plan.in_flight == 3


def test_regions_of_tiny_chunks_have_plans_of_bounded_size():
    plan = plan_for((1 << 40,), (1,), (3,), 1024)
    assert plan.region[0] <= 1 << 16


def test_a_huge_array_is_cut_without_a_list_of_its_regions():
    plan = Plan((1 << 50, 1 << 10), (1, 1 << 10), itemsize=1, in_flight=1, reads_per_chunk=1.0)
    tracemalloc.start()
    try:
        first = list(itertools.islice(plan.regions(), 3))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [place[0].start for place in first] == [0, 1, 2]
    assert peak < 100_000


def test_rank_32():
    plan = plan_for((2,) * 32, (1,) * 32, (1,) * 32, 1)
    assert plan.region_nbytes <= 1 << 20
    assert len(next(plan.regions())) == 32
