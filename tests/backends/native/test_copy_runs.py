"""Descriptors of copies that the native core writes, against those in Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.backends.native import copy_runs
from gpustore.backends.native.copy_runs import core_copy_launches, core_table_launches
from gpustore.backends.native.library import library
from gpustore.device.kernels import launch
from gpustore.device.kernels.descriptor import run_dtype
from gpustore.device.kernels.run import Rows
from gpustore.planning.row_table import RowTable

pytestmark = pytest.mark.skipif(library() is None, reason="needs the native core")

SRC, DST = 1 << 40, 1 << 41

EXTENTS = st.sampled_from([1, 1, 2, 3, 7, 8, 9, 16, 33, 64, 100])


@st.composite
def rectangles(draw):
    """Rows with the layouts of chunks and arrays: any order of dimensions, gaps and steps."""
    rank = draw(st.integers(0, 4))
    itemsize = draw(st.sampled_from([1, 2, 3, 4, 8, 12, 16]))
    n = draw(st.integers(1, 5))
    count = [[draw(EXTENTS) for _ in range(n)] for _ in range(rank)]
    most = [max(column) for column in count]
    strides = []
    for _ in range(2):
        order, stride, reach = draw(st.permutations(range(rank))), [0] * rank, itemsize
        for d in order:
            gap = draw(st.sampled_from([1, 1, 1, 2, 3]))
            stride[d] = reach * gap * draw(st.sampled_from([1, 1, -1]))
            reach *= most[d] * gap
        strides.append(tuple(stride))
    shifts = st.sampled_from([0, 0, 16, 64, 8, 2, 1])
    src, dst = (
        np.array([base + (i << 30) + draw(shifts) for i in range(n)], np.uint64)
        for base in (SRC, DST)
    )
    count = np.array(count, np.int64).reshape(rank, n)
    if draw(st.booleans()):  # Several that are alike, one behind the other.
        again = np.repeat(np.arange(n), draw(st.lists(st.integers(1, 3), min_size=n, max_size=n)))
        apart = (np.arange(len(again), dtype=np.uint64) * np.uint64(n)) << np.uint64(30)
        src, dst, count = src[again] + apart, dst[again] + apart, count[:, again]
    return Rows(src, dst, count, *strides), itemsize


def descriptors(one):
    """Descriptors of a launch, of which the core gives the bytes."""
    if one.length is None:
        return one.table
    table = one.table.view(run_dtype(int(one.expression[-2])))
    assert len(table) == one.length
    return table


def plain(launches):
    """Launches as values; strides of a single item mean nothing."""
    found = []
    for one in launches:
        table = descriptors(one).copy()
        for side in ("src_stride", "dst_stride"):
            table["dim"][side][table["dim"]["extent"] == 1] = 0
        arguments = [argument.tobytes() for argument in one.arguments]
        found.append(
            (one.family, one.expression, one.blocks, arguments, table.dtype, table.tobytes())
        )
    return found


@pytest.mark.matrix
@given(case=rectangles(), unit=st.sampled_from([1, 1, 2, 4, 8]))
def test_descriptors_are_those_in_python(case, unit):
    rows, itemsize = case
    unit = unit if itemsize % unit == 0 else 1
    written = copy_runs._written(rows, itemsize, unit)
    expected = plain(launch._copy_launches(rows, itemsize, unit))
    assert written is None or plain(written) == expected
    assert written is not None or unit > 1
    assert plain(core_copy_launches(rows, itemsize, unit=unit)) == expected or written is None


@pytest.mark.matrix
@given(case=rectangles(), unit=st.sampled_from([1, 1, 2, 8]), lo=st.integers(0, 4))
def test_descriptors_of_a_table_are_those_of_its_regions(case, unit, lo):
    rows, itemsize = case
    unit = unit if itemsize % unit == 0 else 1
    n, base = len(rows.src), 48
    lo = min(lo, n - 1)
    src_start = 16 * np.arange(n) % 64
    dst_start = rows.dst.astype(np.int64) - DST
    columns = np.arange(n + 1), src_start, dst_start, rows.count.ravel()
    table = RowTable(np.concatenate(columns), n, n, n, 0, len(rows.src_stride))
    chunks = rows.src - (src_start + base).astype(np.uint64)
    strides = rows.src_stride, rows.dst_stride
    found = core_table_launches(
        table, lo, n, chunks[lo:], strides, (base, DST), itemsize, unit=unit
    )
    some = Rows(rows.src[lo:], rows.dst[lo:], rows.count[:, lo:], *strides)
    expected = copy_runs._written(some, itemsize, unit)
    assert (found is None) == (expected is None)
    assert found is None or plain(found) == plain(expected)


def test_rows_of_several_regions_or_arrays_are_left_to_python():
    words = np.array([0, 1, 0, 1, 0, 0, 2, 0])
    chunks = np.array([SRC], np.uint64)
    for has_first, has_target in ((True, False), (False, True)):
        table = RowTable(words, 1, 1, 1, 0, 1, has_first=has_first, has_target=has_target)
        assert core_table_launches(table, 0, 1, chunks, ((1,), (1,)), (0, DST), 1) is None


@pytest.mark.parametrize(
    ("rows", "itemsize"),
    [
        (Rows([SRC], [DST], [[0], [3]], (3, 1), (3, 1)), 1),
        (Rows([SRC], [DST], [[1 << 20], [1 << 13]], (1 << 16, 3), (1 << 16, 3)), 1),
        (Rows([SRC], [DST], [[2]], [1], [1]), 1),
        (Rows([SRC], [DST], np.ones((8, 1), np.int64), (1,) * 8, (1,) * 8), 1),
        (Rows([SRC], [DST], [[1 << 62], [1 << 62]], (1 << 62, 1), (1 << 62, 1)), 1),
    ],
    ids=["empty", "cut", "strides by row", "rank", "overflow"],
)
def test_other_rows_are_left_to_python(rows, itemsize):
    assert copy_runs._written(rows, itemsize, 1) is None


def test_elements_on_each_other_are_an_error():
    with pytest.raises(ValueError, match="lie on each other"):
        core_copy_launches(Rows([SRC], [DST], [[2]], (1,), (0,)), 1)


def test_a_long_launch_is_numbered_through():
    n = 1000
    at = np.arange(n, dtype=np.uint64) << np.uint64(30)
    rows = Rows(SRC + at, DST + at, np.full((1, n), 5000), (3,), (1,))
    (one,) = copy_runs._written(rows, 1, 1)
    assert one.blocks == 5000
    assert descriptors(one)["first_tile"].tolist() == [*range(0, 5000, 5)]
    assert descriptors(one)["row"].tolist() == [*range(n)]
