"""Templates give the launches that a plan of all rows gives, also when they were kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.device.kernels import template
from gpustore.device.kernels.launch import copy_launches, fill_launches
from gpustore.device.kernels.run import Rows
from gpustore.device.kernels.template import templated
from tests.kernels import reference

COUNTS = np.array([[4, 3, 1], [2, 5, 0]])
SRC, DST = 1 << 40, 2 << 40


@pytest.fixture
def kept(monkeypatch):
    """Templates that are kept, at first none."""
    found = {}
    monkeypatch.setattr(template, "_kept", found)
    return found


def rows_of(kinds, moved=0):
    """Rows of counts that kinds tell, each in 64 bytes of its own, some a byte further."""
    kinds = np.array(kinds)
    at = 64 * np.arange(len(kinds)) + moved
    odd = kinds % 2
    return Rows(SRC + at + odd, DST + at, COUNTS[:, kinds % 3], (10, 2), (-12, 2))


def copied(launches, nbytes):
    src = (np.arange(nbytes) % 251).astype(np.uint8)
    dst = np.zeros(nbytes, np.uint8)
    memory = reference.Memory()
    memory.add(src, SRC)
    memory.add(dst, DST)
    reference.replay(launches, memory)
    return dst.tobytes()


def one_by_one(rows):
    """Launches of each row by itself."""
    for i in range(len(rows.src)):
        row = slice(i, i + 1)
        strides = rows.src_stride, rows.dst_stride
        yield from copy_launches(
            Rows(rows.src[row], rows.dst[row], rows.count[:, row], *strides), 2
        )


@given(st.lists(st.integers(0, 5), min_size=1, max_size=90), st.sampled_from([64, 128, 65]))
def test_rows_are_copied_as_one_by_one(kinds, moved):
    nbytes = 64 * (len(kinds) + 5)
    for shift in (64, moved):
        rows = rows_of(kinds, shift)
        assert copied(copy_launches(rows, 2), nbytes) == copied(one_by_one(rows), nbytes)


@pytest.mark.parametrize("moved", [0, 1, 2, 4])
def test_patterns_that_repeat_bytes_are_filled_wherever_they_lie(moved):
    pattern = bytes([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0])
    at = 64 * np.arange(4) + moved
    dst = np.full(64 * 5, 255, np.uint8)
    memory = reference.Memory()
    memory.add(dst, DST)
    launches = fill_launches(DST + at.astype(np.uint64), np.full((1, 4), 3), (16,), pattern)
    reference.replay(launches, memory)
    filled = dst[:256].tobytes()[moved:]
    assert [filled[64 * row :][:48] for row in range(4)] == [pattern * 3] * 4
    assert (dst == 255).sum() == len(dst) - 4 * 48


def test_rows_alike_are_planned_once(kept):
    planned = []

    def plan(rows):
        planned.append(len(rows.src))
        return copy_launches(rows, 2)

    for moved in (64, 128, 1024):
        launches = templated(rows_of([0, 1, 4] * 40, moved), plan, ("copy", 2, 1))
        assert sum(len(launch.table) for launch in launches) == 120
    templated(rows_of([1, 1, 4] * 20), plan, ("copy", 2, 1))
    assert planned == [3]
    templated(rows_of([0, 1, 4] * 40), plan, ("another plan",))
    assert planned == [3, 3]
    templated(rows_of([0, 1, 4, 2]), plan, ("rows that differ",))
    assert planned == [3, 3, 4]


def test_a_few_templates_are_kept(kept, monkeypatch):
    monkeypatch.setattr(template, "_KEPT", 5)
    for number in range(20):
        templated(rows_of([0] * 2), lambda rows: copy_launches(rows, 2), (number,))
        assert len(kept) <= 5


def test_rows_that_are_cut_are_planned_each_time(kept):
    """More items than one descriptor has."""
    rows = Rows([SRC] * 3, [DST] * 3, np.full((2, 3), 1 << 17), (3 << 17, 3), (1 << 17, 1))
    launches = copy_launches(rows, 1)
    assert sum(len(launch.table) for launch in launches) > 3
    assert not kept
