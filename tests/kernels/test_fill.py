"""kernels/fill.cu against NumPy, run on the host in three orders of threads."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from gpustore.device.kernels import instance
from gpustore.device.kernels.launch import fill_launches
from tests.emulator import host_build
from tests.kernels import execution, views
from tests.matrix import each

pytestmark = [execution.needs_compiler, pytest.mark.matrix]


def fill_view(view, pattern, order="forward"):
    launches = fill_launches(
        [execution.address(view)], np.array(view.shape, np.int64)[:, None], view.strides, pattern
    )
    execution.run(launches, order)


@pytest.mark.parametrize("order", host_build.ORDERS)
@given(case=views.cases(units=False), data=st.data())
def test_fills_equal_numpy(order, case, data):
    part = data.draw(st.sampled_from([p for p in (1, 2, 4, 8, 16) if case.itemsize % p == 0]))
    pattern = data.draw(st.binary(min_size=part, max_size=part)) * (case.itemsize // part)
    dst = execution.aligned(case.dst_nbytes)
    case.src = [(0, shape, (0,) * len(shape)) for _, shape, _ in case.dst]
    expected = case.expected(np.frombuffer(pattern, np.uint8), dst)
    rows = case.rows(0, execution.address(dst))
    execution.run(fill_launches(rows.dst, rows.count, rows.dst_stride, pattern), order)
    assert dst.tobytes() == expected.tobytes()


@each("itemsize", instance.WIDTHS)
@each("rank", [1, 2, 3, 4, 5, 9])
def test_fills_of_every_rank(itemsize, rank):
    pattern = bytes(range(1, itemsize + 1))
    memory = np.zeros((4,) * rank, f"V{itemsize}")
    expected = memory.copy()
    cut = tuple(slice(None, None, 2) for _ in range(rank))
    expected[cut] = np.frombuffer(pattern, memory.dtype)
    fill_view(memory[cut], pattern)
    assert memory.tobytes() == expected.tobytes()


@each("nitems", [1, 255, 256, 257, 1023, 1024, 1025, 4096])
@each("order", host_build.ORDERS)
def test_fill_ends_exactly_at_tile_edges(nitems, order):
    memory = np.full(2 * nitems + 3, 7, np.uint32)
    fill_view(memory[1:-1:2], b"\1\0\0\0", order)
    assert (memory[1:-1:2] == 1).all()
    assert (memory[::2] == 7).all()


def test_fill_offsets_are_64_bit():
    # Two items 5 GiB apart in address space that is reserved but never touched in between.
    memory = np.zeros(5 << 30, np.uint8)
    fill_view(memory[:: (5 << 30) - 1], b"\t")
    assert memory[0] == 9
    assert memory[-1] == 9
