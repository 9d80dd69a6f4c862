"""Memory of large results, which the next result of the same size gets."""

import threading

import numpy as np
import pytest

import gpustore
from gpustore.backends.host import retained_memory
from gpustore.backends.host.memory import empty
from gpustore.backends.host.retained_memory import SMALLEST_NBYTES, retained

pytestmark = pytest.mark.skipif(retained_memory._MARK is None, reason="no mark for free memory")

SHAPE = (4, SMALLEST_NBYTES // 8)
NBYTES = 2 * SMALLEST_NBYTES
INT32 = np.dtype("int32")


@pytest.fixture(autouse=True)
def nothing_is_kept():
    retained_memory._free.clear()
    yield
    retained_memory._free.clear()


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_result_gets_the_memory_of_one_that_was_dropped(order):
    first = empty(SHAPE, INT32, order)
    first.array[...] = 1
    place = address(first.array)
    del first
    second = empty(SHAPE, INT32, order)
    assert address(second.array) == place
    assert second.array.shape == SHAPE
    assert second.array.flags[f"{order}_CONTIGUOUS"]
    assert second.array.flags.writeable
    assert second.flat.nbytes == NBYTES
    assert second.offset == 0


def test_memory_is_not_used_again_while_a_view_refers_to_it():
    first = empty(SHAPE, INT32).array
    view, exported = first[1:, ::2].T, memoryview(first)
    place = address(first)
    del first
    assert address(empty(SHAPE, INT32).array) != place
    del view
    assert address(empty(SHAPE, INT32).array) != place
    del exported
    assert address(empty(SHAPE, INT32).array) == place


def test_small_results_and_those_of_another_size_get_other_memory():
    assert retained(SMALLEST_NBYTES - 1) is None
    first = empty(SHAPE, INT32).array
    place = address(first)
    del first
    assert address(empty((5, *SHAPE), INT32).array) != place


def test_no_more_than_a_limit_is_kept(monkeypatch):
    monkeypatch.setattr(retained_memory, "MOST_NBYTES", 2 * NBYTES)
    results = [empty(SHAPE, INT32) for _ in range(5)]
    del results
    assert sum(map(len, retained_memory._free)) == 2 * NBYTES
    assert retained(2 * NBYTES + 1) is None


def test_where_memory_cannot_be_marked_as_free_none_is_kept(monkeypatch):
    first = empty(SHAPE, INT32)
    monkeypatch.setattr(retained_memory, "_MARK", 999)
    del first
    assert not retained_memory._free
    monkeypatch.setattr(retained_memory, "_MARK", None)
    assert retained(NBYTES) is None


def test_a_child_process_does_not_wait_for_a_lock_of_its_parent():
    held = retained_memory._lock
    with held:
        retained_memory._after_fork()
        thread = threading.Thread(target=retained, args=[NBYTES])
        thread.start()
        thread.join(100)
    assert not thread.is_alive()


def test_results_of_several_threads_never_share_memory():
    wrong = []

    def work(number):
        for _ in range(20):
            array = empty(SHAPE, INT32).array
            array[:, ::1024] = number
            if not (array[:, ::1024] == number).all():
                wrong.append(number)
            del array

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_read_into_memory_of_another_result_has_its_own_elements(tmp_path):
    store = gpustore.open(
        f"{tmp_path}/a|zarr3:", create=True, dtype="int32", shape=SHAPE, chunks=(3, 1 << 16)
    ).result()
    store[:2] = 7
    other = empty(SHAPE, INT32).array
    other[...] = -1
    place = address(other)
    del other
    found = store.read().result()
    assert address(found) == place
    assert (found[:2] == 7).all()
    assert (found[2:] == 0).all()
