"""Writes of small arrays: what is stored, byte for byte, and what happens to other writers."""

import gc
import threading
from dataclasses import replace

import numpy as np
import pytest

from gpustore.errors import (
    ConflictError,
    CorruptChunkError,
    LimitError,
    MismatchError,
    OutOfBoundsError,
    StoreIOError,
)
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.kvstores.columns import WriteRequest
from gpustore.pipelines import value_change
from gpustore.pipelines.read import read
from gpustore.pipelines.write import write
from gpustore.runtime.executor import Executor
from gpustore.runtime.limits import Limits
from gpustore.runtime.statistics import STATISTICS
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.pipelines.arrays import BYTES, GZIP, make_array, memory, put, stored, whole
from tests.waiting import wait_until

CHAINS = {"raw": (BYTES,), "gzip": (BYTES, GZIP)}


def elements(array):
    """The elements of every stored chunk, by key, the ones beyond the edge included."""
    layout = array.chain.layout
    return {
        key: np.ndarray(layout.shape, layout.dtype, bytes(array.chain.decode(value))).tolist()
        for key, value in stored(array).items()
    }


# ---- what is stored


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_cells_beyond_the_edge_hold_the_fill_value(codecs):
    array = make_array((3, 3), (2, 2), codecs=codecs, fill_value=np.array(9, "u2"))
    write(array, whole(array), np.arange(9, dtype="u2").reshape(3, 3)).result()
    assert elements(array) == {
        "c/0/0": [[0, 1], [3, 4]],
        "c/0/1": [[2, 9], [5, 9]],
        "c/1/0": [[6, 7], [9, 9]],
        "c/1/1": [[8, 9], [9, 9]],
    }


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_a_partial_write_keeps_what_is_beyond_the_edge(codecs):
    """A larger array may have been there before; TensorStore keeps those bytes too."""
    array = make_array((3, 3), (2, 2), codecs=codecs)
    chunk = np.array([[1, 2], [3, 4]], "u2")
    put(array, "c/0/1", bytes(array.chain.encode(chunk.tobytes())))
    write(array, whole(array)[0, 2], 7).result()
    assert elements(array) == {"c/0/1": [[7, 2], [3, 4]]}
    write(array, whole(array)[:2, 2], [5, 6]).result()
    assert elements(array) == {"c/0/1": [[5, 0], [6, 0]]}, "a write of all of it lays it out anew"


def test_a_partial_write_of_a_missing_chunk_fills_the_rest():
    array = make_array((4,), (4,), fill_value=np.array(9, "u2"))
    write(array, whole(array)[1:3], [1, 2]).result()
    assert elements(array) == {"c/0": [9, 1, 2, 9]}


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_chunks_that_equal_the_fill_value_are_deleted(codecs):
    array = make_array((6,), (2,), codecs=codecs)
    write(array, whole(array), [1, 2, 0, 0, 5, 0]).result()
    assert list(stored(array)) == ["c/0", "c/2"]
    write(array, whole(array)[0:2], 0).result()
    assert list(stored(array)) == ["c/2"]
    write(array, whole(array)[4], 0).result()
    assert stored(array) == {}
    assert read(array, whole(array)).result().tolist() == [0] * 6


def test_an_edge_chunk_is_only_deleted_if_it_is_fill_beyond_the_edge_too():
    array = make_array((3,), (2,))
    put(array, "c/1", b"\1\0\2\0")
    write(array, whole(array)[2:2], []).result()
    assert list(stored(array)) == ["c/1"]
    write(array, whole(array)[2], 0).result()
    assert stored(array) == {}, "it is covered whole, so laid out anew"


def test_negative_zero_is_not_the_fill_value():
    array = make_array((2,), (1,), dtype="float32")
    write(array, whole(array), [0.0, -0.0]).result()
    assert list(stored(array)) == ["c/1"]
    assert np.signbit(read(array, whole(array)).result()).tolist() == [False, True]


def test_keep_fill_stores_them_all():
    array = make_array((6,), (2,), keep_fill=True)
    write(array, whole(array), 0).result()
    assert elements(array) == {"c/0": [0, 0], "c/1": [0, 0], "c/2": [0, 0]}


def test_zero_sized_writes_touch_nothing():
    array = make_array((6,), (2,), store=(Rule(Fault.ERROR, "write", times=9),))
    futures = write(array, whole(array)[3:3], [])
    futures.copy.result()
    futures.result()
    assert stored(array) == {}


def test_sources_of_any_layout_are_written():
    array = make_array((5, 7), (2, 3))
    model = np.arange(35, dtype="u2").reshape(5, 7)
    for source in (model[::-1, ::-1], np.asfortranarray(model), model.astype(">u2"), model[:1]):
        write(array, whole(array), source).result()
        expected = np.broadcast_to(source, (5, 7))
        assert np.array_equal(read(array, whole(array)).result(), expected)


def test_bad_requests_are_refused_before_any_io():
    array = make_array((8,), (2,), store=(Rule(Fault.ERROR, "write", times=9),))
    with pytest.raises(OutOfBoundsError):
        write(array, IndexTransform(IndexDomain(shape=[9])), 1)
    with pytest.raises(LimitError):
        write(replace(array, limits=Limits(chunks_per_request=3)), whole(array), 1)
    with pytest.raises(MismatchError):
        write(array, whole(array), [1, 2])
    with pytest.raises(TypeError):
        write(array, whole(array), np.zeros(8))
    assert array.store.rules[0].injected == 0


# ---- futures


class GatedStore(FaultyKvStore):
    """Begins to write when `gate` is set, and counts."""

    def __init__(self, base, rules=()):
        super().__init__(base, rules)
        self.gate = threading.Event()
        self.landed = threading.Semaphore(0)
        self.written = []

    def write_many(self, request):
        assert self.gate.wait(30)
        self.written.extend(request.keys)
        written = super().write_many(request)
        self.landed.release(len(request.keys))
        return written


@pytest.mark.parametrize("index", [np.s_[:], np.s_[1:119_999]], ids=["whole", "part"])
def test_copy_is_ready_no_later_than_commit(index):
    store = GatedStore(memory())
    array = make_array((120_000,), (20_000,), store=store)
    futures = write(array, whole(array)[index], 1)
    order = []
    futures.commit.add_done_callback(lambda _: order.append(("commit", futures.copy.done())))
    futures.copy.add_done_callback(lambda _: order.append("copy"))
    store.gate.set()
    futures.result()
    futures.copy.result()
    wait_until(lambda: len(order) == 2)  # Callbacks may run behind result().
    assert sorted(map(str, order)) == ["('commit', True)", "copy"]


def test_the_source_may_change_once_copy_is_ready():
    array = make_array((120_000,), (20_000,))
    source = np.ones(120_000, "u2")
    futures = write(array, whole(array), source)
    futures.copy.result()
    source[:] = 7
    futures.result()
    assert (read(array, whole(array)).result() == 1).all()


def test_writes_nobody_waits_for_are_done_all_the_same():
    store = GatedStore(memory())
    array = make_array((120_000,), (20_000,), store=store)
    write(array, whole(array), np.ones(120_000, "u2"))
    gc.collect()
    store.gate.set()
    assert all(store.landed.acquire(timeout=30) for _ in range(6))
    assert len(stored(array)) == 6


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST_REPLY])
@pytest.mark.parametrize("index", [np.s_[:], np.s_[1:5]], ids=["whole", "part"])
def test_an_injected_error_names_the_key_and_is_the_error_of_the_future(fault, index):
    array = make_array((6,), (2,), store=(Rule(fault, "write", key="c/2"),))
    futures = write(array, whole(array)[index], 1)
    error = futures.exception()
    assert isinstance(error, StoreIOError)
    assert 'injected failure to write "c/2"' in str(error)
    assert error.key == "c/2"
    assert isinstance(futures.commit.exception(), StoreIOError)
    futures.copy.result()
    kept = fault is Fault.LOST_REPLY
    assert ("c/2" in stored(array)) == kept, "chunks hold their old or their new contents"


def test_a_failure_to_read_what_a_partial_write_changes_is_named():
    array = make_array((6,), (2,), store=(Rule(Fault.ERROR, "read", key="c/0"),))
    with pytest.raises(StoreIOError, match='injected failure to read "c/0"'):
        write(array, whole(array)[1:4], 1).result()
    write(array, whole(array)[1:4], 1).result()


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_a_corrupt_chunk_is_not_overwritten_in_part(codecs):
    array = make_array((2,), (2,), codecs=codecs)
    put(array, "c/0", b"abc")
    with pytest.raises(CorruptChunkError, match="c/0") as caught:
        write(array, whole(array)[0], 1).result()
    assert caught.value.key == "c/0"
    assert stored(array) == {"c/0": b"abc"}
    write(array, whole(array), 1).result()
    assert elements(array) == {"c/0": [1, 1]}


def test_no_task_is_begun_after_a_failure():
    store = GatedStore(memory(), [Rule(Fault.ERROR, "write", key="c/0")])
    store.gate.set()
    array = make_array((40 * 20_000,), (20_000,), store=store, executor=Executor(1))
    assert isinstance(write(array, whole(array), 1).exception(), StoreIOError)
    array.executor.submit(lambda: None).result()
    assert len(store.written) < 40


# ---- other writers


class Racing(FaultyKvStore):
    """Another writer changes a chunk just before each of the first `times` conditional writes."""

    def __init__(self, base, change, times):
        super().__init__(base)
        self.change, self.times = change, times
        self.lost = 0

    def write_many(self, request):
        if request.if_equal is not None and self.lost < self.times:
            self.lost += 1
            value = self.change(self.lost)
            self.driver.write_many(WriteRequest(request.keys, [value] * len(request.keys)))
        return super().write_many(request)


@pytest.mark.parametrize("times", [0, 1, 5])
def test_a_lost_conditional_write_is_repeated_with_what_the_winner_wrote(times):
    def change(number):
        return np.array([number, 100, 100, number], "<u2").tobytes()

    array = make_array((4,), (4,), store=Racing(memory(), change, times))
    STATISTICS.reset()
    write(array, whole(array)[1:3], [7, 8]).result()
    assert elements(array) == {"c/0": [times, 7, 8, times]}
    assert STATISTICS["retries"] == times
    assert STATISTICS["bytes_stored"] == 8


def test_a_chunk_that_is_deleted_meanwhile_is_written_anew():
    array = make_array((4,), (4,), store=Racing(memory(), lambda _: None, 1))
    put(array, "c/0", np.array([1, 2, 3, 4], "<u2").tobytes())
    write(array, whole(array)[1], 9).result()
    assert elements(array) == {"c/0": [0, 9, 0, 0]}


def test_a_writer_that_is_never_fast_enough_gives_up(monkeypatch):
    monkeypatch.setattr(value_change, "ATTEMPTS", 4)
    store = Racing(memory(), lambda number: bytes([number, 0] * 4), 100)
    array = make_array((4,), (4,), store=store)
    with pytest.raises(ConflictError, match="another writer was faster 4 times") as caught:
        write(array, whole(array)[1], 9).result()
    assert caught.value.key == "c/0"
    assert store.lost == 4


def test_writers_of_parts_of_one_chunk_lose_nothing():
    array = make_array((8,), (8,))
    threads = []

    def increase(i):
        for number in range(1, 21):
            write(array, whole(array)[i], number).result()

    for i in range(8):
        threads.append(threading.Thread(target=increase, args=(i,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert read(array, whole(array)).result().tolist() == [20] * 8


# ---- counting


def test_counters_of_a_write():
    array = make_array((7,), (2,))
    STATISTICS.reset()
    write(array, whole(array)[1:], [1, 0, 0, 3, 4, 5]).result()
    counts = STATISTICS.snapshot()
    assert (counts["writes"], counts["chunks_planned"]) == (1, 4)
    assert counts["bytes_stored"] == 3 * 4, "one chunk equals the fill value"
    assert "retries" not in counts
