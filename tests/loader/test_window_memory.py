"""Memory of windows: used again, and bounded."""

import mmap
import pickle

import numpy as np
import pytest

from gpustore.loader.window_memory import KeptMemory, WindowMemory

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="No such memory here")
MIB = 1 << 20
BYTE = np.dtype("u1")


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_also_by_the_next_iteration():
    kept = KeptMemory()
    memory = WindowMemory(8 * MIB, kept)
    first, second = memory.take((2 * MIB,), BYTE), memory.take((MIB,), BYTE)
    first[:] = 1
    memory.give(first)
    third = memory.take((2, MIB), BYTE)
    assert address(third) == address(first) != address(second)
    memory.give(third)
    memory.end(kept)
    assert address(WindowMemory(8 * MIB, kept).take((MIB,), np.dtype("u2"))) == address(first)
    assert pickle.loads(pickle.dumps(kept)).take() == kept.take() == []


def test_memory_in_use_is_not_given_to_another_iteration():
    kept = KeptMemory()
    memory = WindowMemory(8 * MIB, kept)
    array = memory.take((MIB,), BYTE)
    memory.end(kept)
    array[:] = 1
    assert address(WindowMemory(8 * MIB, kept).take((MIB,), BYTE)) != address(array)


def test_memory_of_large_arrays_goes_back_when_small_ones_use_it():
    memory = WindowMemory(5 * MIB, KeptMemory())
    large = memory.take((4 * MIB,), BYTE)
    large[:] = 1
    memory.give(large)
    small, other = memory.take((2 * MIB,), BYTE), memory.take((3 * MIB,), BYTE)
    assert address(small) == address(large) != address(other)
    pages = np.frombuffer(small.base, BYTE)
    assert pages[: 2 * MIB].all()
    assert not pages[2 * MIB :].any()  # Cleared: the kernel has had them.


@pytest.mark.parametrize(
    ("shape", "dtype"), [((10,), BYTE), ((MIB,), np.dtype(object)), ((1 << 60,), BYTE)]
)
def test_other_arrays_are_left_to_the_reads(shape, dtype):
    assert WindowMemory(8 * MIB, KeptMemory()).take(shape, dtype) is None
