"""Launches by themselves: descriptors replayed in NumPy, every access checked."""

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from gpustore.device.kernels import instance
from gpustore.device.kernels.launch import (
    Listed,
    cast_launches,
    copy_launches,
    fill_launches,
    indexed_launches,
    repeated,
)
from gpustore.device.kernels.run import Rows
from tests.kernels import reference, views

SRC, DST = 3 << 40, 5 << 40
"""Addresses that no machine has."""


def check_instances(launches):
    for launch in launches:
        assert launch.expression in instance.INSTANCES[launch.family]
        assert launch.table.dtype.itemsize % 16 == 0
    assert len({launch.expression for launch in launches}) == len(launches)


@pytest.mark.matrix
@given(views.cases(), st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 4, 8]))
def test_copies_equal_numpy_and_write_each_byte_once(case, seed, offset):
    rng = np.random.default_rng(seed)
    src = rng.integers(0, 256, case.src_nbytes, np.uint8)
    dst = rng.integers(0, 256, case.dst_nbytes, np.uint8)
    expected = case.expected(src, dst)
    memory = reference.Memory()
    memory.add(src, SRC + offset)
    memory.add(dst, DST)
    launches = copy_launches(case.rows(SRC + offset, DST), case.itemsize, unit=case.unit)
    check_instances(launches)
    reference.replay(launches, memory)
    assert dst.tobytes() == expected.tobytes()


PAIRS = [
    (np.dtype(source), np.dtype(target))
    for source in ("u1", ">i2", "<u4", ">i8", "<f2", ml_dtypes.bfloat16, ">f4", "<f8")
    for target in ("f2", ml_dtypes.bfloat16, "f4")
    if np.dtype(source).newbyteorder("=") != target
]


@pytest.mark.matrix
@given(st.data(), st.sampled_from(PAIRS), st.sampled_from([0, 0, 0, 1, 4, 8]))
def test_casts_equal_numpy_and_write_each_byte_once(data, pair, offset):
    source, target = pair
    case = data.draw(views.cases(units=False, sizes=(source.itemsize, target.itemsize)))
    rng = np.random.default_rng(case.src_nbytes)
    src = rng.integers(0, 60, case.src_nbytes, np.uint8)  # No bytes of a NaN, of which some differ.
    dst = rng.integers(0, 256, case.dst_nbytes, np.uint8)
    expected = dst.copy()
    for (start, shape, strides), (first, _, steps) in zip(case.dst, case.src, strict=True):
        to = np.ndarray(shape, target, expected, start, strides)
        with np.errstate(all="ignore"):
            to[...] = np.ndarray(shape, source, src, first, steps).astype(target)
    memory = reference.Memory()
    memory.add(src, SRC + offset)
    memory.add(dst, DST)
    launches = cast_launches(case.rows(SRC + offset, DST), source, target)
    aligned = [launch for launch in launches if launch.arguments[1:] != (1,)]
    check_instances(aligned)
    check_instances([launch for launch in launches if launch.arguments[1:] == (1,)])
    reference.replay(launches, memory)
    assert dst.tobytes() == expected.tobytes()


@pytest.mark.matrix
@given(views.cases(units=False), st.data())
def test_fills_equal_numpy_and_write_each_byte_once(case, data):
    part = data.draw(st.sampled_from([p for p in (1, 2, 4, 8, 16) if case.itemsize % p == 0]))
    pattern = data.draw(st.binary(min_size=part, max_size=part)) * (case.itemsize // part)
    dst = np.zeros(case.dst_nbytes, np.uint8)
    case.src = [(0, shape, (0,) * len(shape)) for _, shape, _ in case.dst]
    expected = case.expected(np.frombuffer(pattern, np.uint8), dst)
    memory = reference.Memory()
    memory.add(dst, DST)
    rows = case.rows(SRC, DST)
    launches = fill_launches(rows.dst, rows.count, rows.dst_stride, pattern)
    reference.replay(launches, memory)
    assert dst.tobytes() == expected.tobytes()


@pytest.mark.matrix
@given(views.cases(max_items=200), st.data())
def test_many_rows_alike_equal_numpy(case, data):
    # The same few rows again and again, at places that lie alike and at others.
    case.per_row = False
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    apart = rng.integers(0, 41, rng.integers(70, 91)).tolist()  # Drawn one by one they take longer.
    here = there = 0
    rows, places = [], []
    pick = data.draw(st.integers(0, len(case.dst) - 1))
    for i, gap in enumerate(apart):
        row = (pick + i) % len(case.dst)
        if case.src[row][2] != case.src[pick][2] or case.dst[row][2] != case.dst[pick][2]:
            row = pick
        rows.append((case.src[row], case.dst[row]))
        places.append((here, there))
        here += case.src_nbytes + gap
        there += case.dst_nbytes + gap // 3
    case.src = [(s + at, *rest) for ((s, *rest), _), (at, _) in zip(rows, places, strict=True)]
    case.dst = [(s + at, *rest) for (_, (s, *rest)), (_, at) in zip(rows, places, strict=True)]
    src = rng.integers(0, 256, here, np.uint8)
    dst = rng.integers(0, 256, there, np.uint8)
    expected = case.expected(src, dst)
    memory = reference.Memory()
    memory.add(src, SRC)
    memory.add(dst, DST)
    launches = copy_launches(case.rows(SRC, DST), case.itemsize, unit=case.unit)
    check_instances(launches)
    reference.replay(launches, memory)
    assert dst.tobytes() == expected.tobytes()
    found = sorted(row for launch in launches for row in launch.table["row"].tolist())
    assert found == list(range(len(apart)))


@pytest.mark.parametrize("n", [10, 1000])
def test_each_run_names_its_row(n):
    count = np.full((2, n), 4)
    count[0, ::3] = 0
    count[1, 1] = 3
    rows = Rows(SRC + 64 * np.arange(n), DST + 64 * np.arange(n), count, (12, 2), (16, 2))
    for launch in copy_launches(rows, 2):
        row = launch.table["row"].astype(np.int64)
        assert (count[:, row] > 0).all()
        assert (launch.table["src"] == SRC + 64 * row).all()
        assert (launch.table["dst"] == DST + 64 * row).all()


def test_a_transpose_goes_through_tiles():
    a, b = np.zeros((40, 50), np.uint32), np.zeros((50, 40), np.uint32).T
    (launch,) = copy_launches(views.rows_of(a, b), 4)
    assert launch.expression == "gs::copy_tiled<gs::u32, 2>"
    assert launch.blocks == 4


def test_a_transpose_that_converts_goes_through_tiles():
    a, b = np.zeros((40, 50), np.uint8), np.zeros((50, 40), np.float32).T
    (launch,) = cast_launches(views.rows_of(a, b), a.dtype, b.dtype)
    assert launch.expression == "gs::cast_tiled<gs::u8, gs::f32, 3>"
    assert launch.blocks == 4
    (launch,) = cast_launches(views.rows_of(a, b), a.dtype, np.dtype("f2").newbyteorder("="))
    assert "cast_strided" in launch.expression  # dst is not of neighbours.


def test_rows_of_all_strides_are_as_many_launches_as_instances():
    rng = np.random.default_rng(0)
    n = 5000
    rows = Rows(
        src=SRC + 1024 * np.arange(n),
        dst=DST + 4096 * np.arange(n),
        count=rng.integers(1, 9, (3, n)),
        src_stride=(128, 16, 2),
        dst_stride=(2, 20, 200),
    )
    launches = copy_launches(rows, 2)
    assert len(launches) <= 4
    assert sum(len(launch.table) for launch in launches) == n


def test_a_window_without_elements_is_no_launch():
    assert copy_launches(Rows([], [], np.zeros((2, 0)), (4, 4), (4, 4)), 4) == []
    empty = Rows([SRC], [DST], [[0], [3]], (4, 4), (12, 4))
    assert copy_launches(empty, 4) == []
    assert fill_launches([DST], [[0]], [4], b"abcd") == []


def test_elements_that_lie_on_each_other_are_refused():
    with pytest.raises(ValueError, match="stride is 0"):
        copy_launches(Rows([SRC], [DST], [[3]], [4], [0]), 4)
    with pytest.raises(ValueError, match="stride is 0"):
        fill_launches([DST], [[3]], [0], b"a")


def test_what_cannot_be_swapped_or_filled_is_refused():
    with pytest.raises(ValueError, match="6 bytes cannot be swapped by 4"):
        copy_launches(Rows([SRC], [DST], [[3]], [6], [6]), 6, unit=4)
    with pytest.raises(ValueError, match="a pattern of 3 bytes"):
        fill_launches([DST], [[3]], [3], b"abc")


@pytest.mark.matrix
@given(views.listed_cases(), st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 4, 8]))
def test_listed_elements_equal_numpy_and_are_written_once(case, seed, offset):
    rng = np.random.default_rng(seed)
    src = rng.integers(0, 256, case.src_nbytes, np.uint8)
    dst = rng.integers(0, 256, case.dst_nbytes, np.uint8)
    expected = case.expected(src, dst)
    memory = reference.Memory()
    memory.add(src, SRC + offset)
    memory.add(dst, DST)
    launches = indexed_launches(
        case.rows(SRC + offset, DST), case.listed(), case.itemsize, unit=case.unit
    )
    check_instances(launches)
    reference.replay(launches, memory)
    assert dst.tobytes() == expected.tobytes()


def test_listed_elements_of_an_empty_row_are_refused():
    listed = Listed([0], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)])
    with pytest.raises(ValueError, match="a row without elements"):
        indexed_launches(Rows([SRC], [DST], [[2]], [4], [4]), [listed], 4)


@given(st.binary(min_size=1, max_size=4), st.integers(1, 6))
def test_repeated_is_the_shortest_beginning(part, times):
    pattern = part * times
    n = repeated(pattern)
    assert pattern[:n] * (len(pattern) // n) == pattern
    assert all(pattern[:m] * -(-len(pattern) // m) != pattern for m in range(1, n))
