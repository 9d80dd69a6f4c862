"""The canonicaliser: as few dimensions as a row needs, and rows that kernels can count."""

import itertools

import numpy as np
import pytest

from gpustore.device.kernels.launch import Listed, copy_launches, indexed_launches
from gpustore.device.kernels.run import Rows, merged, ordered, packed, widths
from tests.kernels import views

SRC, DST = 3 << 40, 5 << 40
"""Addresses that no machine has."""


def test_a_whole_chunk_in_any_order_is_one_run_of_16_bytes():
    chunk = np.zeros((8, 16, 4), np.uint16)
    copy = chunk.copy()
    for index in (..., (slice(None, None, -1), ..., slice(None, None, -1))):
        for axes in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
            src, dst = (array[index].transpose(axes) for array in (chunk, copy))
            (launch,) = copy_launches(views.rows_of(src, dst), 2)
            assert launch.expression == "gs::copy_strided<gs::u128, 1>"
            assert launch.table["items"].tolist() == [64]


def test_rows_of_a_batch_are_merged_each_by_itself():
    # A whole chunk, a part of one, and one row of it.
    rows = Rows([SRC] * 3, [DST] * 3, [[4, 4, 1], [6, 5, 6]], (12, 2), (12, 2))
    runs = packed(merged(ordered(rows), 2))
    assert runs.extent.tolist() == [[48, 10, 12], [1, 4, 1]]
    assert runs.dst_stride.tolist()[1][1] == 12
    assert widths(runs, 0).tolist() == [16, 2, 4]


def test_dimensions_that_run_backwards_on_both_sides_run_forwards():
    rows = Rows([SRC + 30], [DST + 30], [[4]], [-10], [-10])
    (src,), (dst,) = (column.tolist() for column in (ordered(rows).src, ordered(rows).dst))
    assert (src, dst) == (SRC, DST)
    assert ordered(rows).src_stride.tolist() == [[10]]


@pytest.mark.parametrize(
    ("count", "stride"),
    [
        ((2**33,), (3,)),
        ((5, 2**31), (2**34, 3)),
        ((2**32, 3), (9, 2)),
        ((3, 2**20, 2**18), (2**45, 2**22, 3)),
    ],
)
def test_runs_of_2_to_the_31_items_are_cut(count, stride):
    n = np.array(count)[:, None]
    rows = Rows([SRC], [DST], n, stride, stride)
    launches = copy_launches(rows, 1)
    items, seen = 0, []
    for launch in launches:
        for run in launch.table:
            assert 0 < run["items"] < 2**31
            items += int(run["items"])
            reach = sum((int(d["extent"]) - 1) * int(d["dst_stride"]) for d in run["dim"])
            assert int(run["src"]) - SRC == int(run["dst"]) - DST
            seen.append((int(run["dst"]), int(run["dst"]) + reach))
    assert items == np.prod(n.astype(object))
    seen.sort()
    assert seen[0][0] == DST
    assert seen[-1][1] == DST + sum((c - 1) * s for c, s in zip(count, stride, strict=True))
    if len(count) == 1:
        assert all(a[1] < b[0] for a, b in itertools.pairwise(seen))


def test_listed_rows_of_2_to_the_31_items_are_cut():
    # The one offset is repeated over 2**32 strided elements, for each of 3 listed ones.
    offsets = [np.array([0, 5, 9])]
    rows = Rows([SRC], [DST], [[2**32]], [64], [64])
    (launch,) = indexed_launches(rows, [Listed([3], offsets, offsets)], 1)
    assert int(launch.table["items"].astype(np.int64).sum()) == 3 << 32
    dim = launch.table["dim"]
    assert (dim["indexed"].sum(axis=1) == 3).all()
    listed = dim["indexed"] == 3
    assert (dim["src_stride"][listed] < 3).all()
    reach = dim["src_stride"][listed] + dim["extent"][listed]
    assert set(reach.tolist()) <= {1, 2, 3}
