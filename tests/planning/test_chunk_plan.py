"""The plan against brute force: every element by itself. Index arrays: test_index_arrays.py."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustore.errors import LimitError
from gpustore.index_space import IndexDomain, IndexTransform, OutputIndexMap
from gpustore.planning import connected_set
from gpustore.planning.chunk_plan import plan_chunks

ITEMSIZE = 2


@st.composite
def cases(draw):
    """An affine transform into a chunked array, with diagonals, constants and unused inputs."""
    input_rank = draw(st.integers(0, 3))
    output_rank = draw(st.integers(0, 4))
    low = [draw(st.integers(-5, 5)) for _ in range(input_rank)]
    size = [draw(st.integers(0 if draw(st.booleans()) else 1, 9)) for _ in range(input_rank)]
    maps, shape = [], []
    for _ in range(output_rank):
        d = draw(st.integers(0, input_rank)) - 1
        extra = draw(st.integers(0, 3))
        if d < 0:
            offset = draw(st.integers(0, 12))
            maps.append(OutputIndexMap(offset))
            shape.append(offset + 1 + extra)
        else:
            stride = draw(st.sampled_from([1, 1, 1, -1, 2, -2, 3, 5, -7]))
            ends = [stride * low[d], stride * (low[d] + max(size[d], 1) - 1)]
            offset = draw(st.integers(0, 4)) - min(ends)
            maps.append(OutputIndexMap(input_dimension=d, offset=offset, stride=stride))
            shape.append(offset + max(ends) + 1 + extra)
    chunks = [draw(st.integers(1, s + 2)) for s in shape]
    domain = IndexDomain(inclusive_min=low, shape=size)
    return IndexTransform(domain, maps), shape, chunks


def strides(shape, order="C"):
    result, step = [0] * len(shape), ITEMSIZE
    dims = range(len(shape)) if order == "F" else reversed(range(len(shape)))
    for d in dims:
        result[d] = step
        step *= shape[d]
    return result


def plan_of(transform, shape, chunks, *, order="C", max_chunks=10**6):
    return plan_chunks(
        transform,
        shape=shape,
        chunk_shape=chunks,
        src_stride=strides(chunks, order),
        dst_stride=strides(transform.domain.shape),
        key_prefix="c/",
        key_separator="/",
        max_chunks=max_chunks,
    )


def elements(plan, step=1000):
    """Every element of the plan: (cell, source byte, destination byte), and the whole flags."""
    found, whole = [], {}
    for lo in range(0, len(plan), step):
        window = plan.window(lo, min(lo + step, len(plan)))
        src, dst, counts = window.rows()
        for i in range(len(window)):
            cell = tuple(int(column[i]) for column in window.cells)
            assert cell not in whole, "a chunk appears in two rows"
            whole[cell] = bool(window.whole[i])
            assert window.keys[i] == "c/" + "/".join(map(str, cell))
            for index in itertools.product(*map(range, counts[i])):
                found.append(
                    (
                        cell,
                        src[i] + sum(a * b for a, b in zip(index, window.src_stride, strict=True)),
                        dst[i] + sum(a * b for a, b in zip(index, window.dst_stride, strict=True)),
                    )
                )
    return sorted(found), whole


def brute_force(transform, shape, chunks, order="C"):
    domain = transform.domain
    src_stride, dst_stride = strides(chunks, order), strides(domain.shape)
    found, touched = [], {}
    axes = [range(a, b) for a, b in zip(domain.inclusive_min, domain.exclusive_max, strict=True)]
    for index in itertools.product(*axes):
        at = transform(index)
        cell = tuple(i // c for i, c in zip(at, chunks, strict=True))
        src = sum((i % c) * s for i, c, s in zip(at, chunks, src_stride, strict=True))
        dst = sum(
            (i - o) * s for i, o, s in zip(index, domain.inclusive_min, dst_stride, strict=True)
        )
        found.append((cell, src, dst))
        touched.setdefault(cell, set()).add(at)
    whole = {
        cell: len(points)
        == np.prod(
            [min(c, n - i * c) for i, c, n in zip(cell, chunks, shape, strict=True)], dtype=int
        )
        for cell, points in touched.items()
    }
    return sorted(found), whole


@settings(max_examples=300, derandomize=True, deadline=None)
@given(cases(), st.sampled_from("CF"), st.integers(1, 7))
def test_plan_places_every_element_as_brute_force_does(case, order, step):
    transform, shape, chunks = case
    plan = plan_of(transform, shape, chunks, order=order)
    assert elements(plan, step) == brute_force(transform, shape, chunks, order)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(cases())
def test_scalar_and_vector_planner_fill_equal_columns(case):
    transform, shape, chunks = case
    scalar = elements(plan_of(transform, shape, chunks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connected_set, "SCALAR_ROWS", 0)
        plan = plan_of(transform, shape, chunks)
        assert len(plan) < 2 or isinstance(plan.window(0, 1).src_start, np.ndarray)
        assert elements(plan) == scalar


def test_a_plan_of_ten_million_chunks_is_a_few_small_tables():
    transform = IndexTransform(IndexDomain(shape=[1000, 1000, 10]))
    plan = plan_of(transform, [1000, 1000, 10], [1, 1, 1], max_chunks=10**7)
    assert len(plan) == 10**7
    assert plan.sizes == (1000, 1000, 10)
    window = plan.window(10**7 - 2, 10**7)
    assert window.keys == ["c/999/999/8", "c/999/999/9"]


def test_keys_of_a_dimension_with_very_many_chunks_are_made_window_by_window():
    plan = plan_of(IndexTransform(IndexDomain(shape=[200_000])), [200_000], [2])
    assert plan.window(99_998, 100_000).keys == ["c/99998", "c/99999"]
    assert plan.window(0, 2).keys == ["c/0", "c/1"]


def test_rank_32_is_planned():
    transform = IndexTransform(IndexDomain(shape=[1] * 31 + [4]))
    plan = plan_of(transform, [1] * 31 + [4], [1] * 31 + [3])
    assert len(plan) == 2
    assert plan.window(0, 2).keys[1] == "c/" + "0/" * 31 + "1"


@pytest.mark.parametrize("shape", [[2**40], [2**20, 2**20]])
def test_too_many_chunks_are_refused_before_anything_is_built(shape):
    transform = IndexTransform(IndexDomain(shape=shape))
    with pytest.raises(LimitError, match="chunks_per_request"):
        plan_of(transform, shape, [1] * len(shape))


def test_one_chunk_too_many_is_refused():
    # 11 elements from the middle of a chunk touch 3 chunks of 5.
    transform = IndexTransform(IndexDomain(inclusive_min=[4], shape=[7]))
    assert len(plan_of(transform, [20], [5], max_chunks=3)) == 3
    with pytest.raises(LimitError, match="of 3 chunks exceeds the limit"):
        plan_of(transform, [20], [5], max_chunks=2)


@pytest.mark.parametrize(("lo", "hi"), [(-1, 1), (2, 1), (0, 4)])
def test_windows_outside_the_plan_are_refused(lo, hi):
    plan = plan_of(IndexTransform(IndexDomain(shape=[6])), [6], [2])
    with pytest.raises(ValueError, match="window"):
        plan.window(lo, hi)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(cases())
def test_span_bounds_the_bytes_between_the_ends_of_every_row(case):
    plan = plan_of(*case)
    by_cell = {}
    found, whole = elements(plan)
    for cell, src, _ in found:
        by_cell.setdefault(cell, []).append(src)
    spans = {cell: max(at) - min(at) + ITEMSIZE for cell, at in by_cell.items()}
    assert max(spans.values(), default=0) <= plan.span(ITEMSIZE) or not by_cell
    assert +plan.spans(ITEMSIZE) == Counter((spans[cell], whole[cell]) for cell in spans)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(cases(), st.data())
def test_windows_of_keys_have_the_rows_of_each_key_once(case, data):
    transform, shape, chunks = case
    ratio = [data.draw(st.integers(1, 3)) for _ in shape]
    most_keys = data.draw(st.integers(1, 5))
    parts = data.draw(st.integers(1, 3))
    plan = plan_chunks(
        transform,
        shape=shape,
        chunk_shape=chunks,
        src_stride=strides(chunks),
        dst_stride=strides(transform.domain.shape),
        key_prefix="",
        key_separator="/",
        max_chunks=10**6,
        key_ratio=ratio,
    )
    expected, found = {}, {}
    for lo in range(0, len(plan), 100):
        note(plan.window(lo, min(lo + 100, len(plan))), expected)
    for part in range(parts):
        for window in plan.windows(part, parts, 10, most_keys=most_keys):
            keys = [key for key, _ in itertools.groupby(window.keys)]
            assert 1 <= len(keys) <= most_keys
            assert len(keys) == 1 or len(window) <= 10
            if plan.objects >= parts:
                assert not found.keys() & set(keys)
            note(window, found)
    assert {key: sorted(rows) for key, rows in expected.items()} == {
        key: sorted(rows) for key, rows in found.items()
    }
    for key, rows in found.items():
        for cell, *_ in rows:
            assert key == "/".join(str(i // r) for i, r in zip(cell, ratio, strict=True))


def note(window, rows):
    src, dst, counts = window.rows()
    for i, key in enumerate(window.keys):
        cell = tuple(int(column[i]) for column in window.cells)
        rows.setdefault(key, []).append((cell, src[i], dst[i], counts[i], bool(window.whole[i])))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(cases())
def test_the_window_of_a_single_row_is_the_general_one(case):
    transform, shape, chunks = case
    first = tuple(slice(low, low + min(n, 1)) for low, n in zip(transform.origin, transform.shape))
    plan = plan_of(transform[first], shape, chunks)
    assert list(plan.windows(0, 1, 1000)) == [plan.window(i, i + 1) for i in range(len(plan))]
