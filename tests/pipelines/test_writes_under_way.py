"""Writes that are under way take effect in order, and share what they do to one chunk."""

import threading
from asyncio import CancelledError
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustore
from gpustore.backends.host import BACKEND
from gpustore.errors import CorruptChunkError, StoreIOError
from gpustore.pipelines import writes_under_way as module
from gpustore.pipelines.read import read
from gpustore.pipelines.write import write
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.executor import Executor
from gpustore.runtime.statistics import STATISTICS, operation
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.matrix import share
from tests.pipelines.arrays import BYTES, GZIP, make_array, memory, put, stored, whole
from tests.pipelines.test_read_batch import indices
from tests.pipelines.test_read_many import FORMS, counted
from tests.pipelines.test_reads_under_way import busy, settle
from tests.runtime.test_executor import run_python


class Watched(FaultyKvStore):
    """Counts reads and writes of each key; writes may be held back."""

    def __init__(self, base, rules=()):
        super().__init__(base, rules)
        self.reads, self.writes = Counter(), Counter()
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self.go_on.set()

    def read_many(self, request):
        self.reads.update(request.keys)
        return super().read_many(request)

    def write_many(self, request):
        self.writes.update(request.keys)
        self.begun.release()
        self.go_on.wait()
        return super().write_many(request)


def watched(shape, chunks, *, threads=1, codecs=(BYTES, GZIP), **changes):
    """An array over a store that is watched, and numbers of its shape that are stored in it."""
    array = make_array(
        shape, chunks, codecs=codecs, store=Watched(memory()), executor=Executor(threads), **changes
    )
    model = np.arange(1, np.prod(shape) + 1, dtype="u2").reshape(shape)
    write(array, whole(array), model).result()
    settle(array)
    array.store.reads.clear()
    array.store.writes.clear()
    array.store.begun = threading.Semaphore(0)
    return array, model


def ask(array, *parts):
    """Begin writes of (index, value); the futures."""
    return [
        operation(lambda at=at, value=value: write(array, whole(array)[at], value))
        for at, value in [(at, np.asarray(value, array.dtype)) for at, value in parts]
    ]


@pytest.mark.matrix
@given(data=st.data(), form=st.sampled_from(FORMS))
@settings(max_examples=share(150))
def test_writes_take_effect_in_the_order_in_which_they_are_asked_for(data, form):
    shape = [data.draw(st.integers(1, 9)) for _ in range(data.draw(st.integers(0, 3)))]
    chunks = [data.draw(st.integers(1, 5)) for _ in shape]
    array, model = counted(form, shape, chunks)
    array = replace(array, executor=Executor(data.draw(st.sampled_from([1, 3]))))
    array.store.write_nbytes = data.draw(st.sampled_from([0, 1 << 20]))
    expected = gpustore.array(model.copy())
    parts = [data.draw(indices(shape)) for _ in range(data.draw(st.integers(1, 8)))]
    waits = data.draw(st.booleans())
    futures = []
    with busy(array) if waits else busy(replace(array, executor=Executor(1))):
        for number, index in enumerate(parts):
            view = expected.oindex[index]
            values = np.arange(1, view.size + 1, dtype="u2").reshape(view.shape)
            values += np.uint16(1000 * number)
            if data.draw(st.integers(0, 4)) == 0:
                values[...] = 0  # The fill value.
            view.write(values).result()
            futures.append(write(array, whole(array).oindex[index], values))
    for future in futures:
        future.result()
        assert future.copy.done()
    assert np.array_equal(read(array, whole(array)).result(), expected.read().result())
    if array.executor.limit == 1:
        settle(array)
        settle(array)
        assert module._arrays == {}


@pytest.mark.parametrize("write_nbytes", [0, 1 << 20])
def test_writes_that_wait_for_one_chunk_read_and_store_it_once(write_nbytes):
    array, model = watched((100, 8), (50, 8))
    array.store.write_nbytes = write_nbytes
    with busy(array):
        futures = ask(array, *[(i, np.full(8, i)) for i in range(100)])
    for i, future in enumerate(futures):
        future.result()
        model[i] = i
    assert np.array_equal(read(array, whole(array)).result(), model)
    # The first write of each chunk begins at once.
    assert array.store.writes == {"c/0/0": 2, "c/1/0": 2}


def test_a_chunk_that_is_covered_whole_at_last_is_not_read():
    array, _ = watched((8,), (4,))
    put(array, "c/1", b"junk")
    with busy(array):
        first, *futures = ask(
            array, (0, 1), (np.s_[2:6], 7), (np.s_[3:], np.arange(5)), (np.s_[7:], 9)
        )
    assert first.exception() is None
    for future in futures:
        future.result()
    assert array.store.reads == {"c/0": 2}
    assert read(array, whole(array)).result().tolist() == [1, 2, 7, 0, 1, 2, 3, 9]


def test_shards_that_several_writes_touch_are_stored_once():
    array, model = counted("zarr3 shard", (32, 32), (8, 8))
    store = Watched(array.store)
    array = replace(array, store=store, executor=Executor(1))
    parts = [(np.s_[i : i + 5, 3 : 3 + i], i) for i in range(1, 20)]
    with busy(array):
        futures = ask(array, *parts)
    for (index, value), future in zip(parts, futures, strict=True):
        future.result()
        model[index] = value
    assert np.array_equal(read(array, whole(array)).result(), model)
    assert max(store.writes.values()) <= 2


def test_writes_of_other_chunks_do_not_wait():
    array, _ = watched((8,), (4,), threads=2)
    array.store.go_on.clear()
    [first] = ask(array, (np.s_[1:3], 5))
    array.store.begun.acquire()
    waits, other = ask(array, (np.s_[2:4], 6), (np.s_[5:7], 7))
    array.store.begun.acquire()  # The write of the other chunk has come as far.
    assert array.store.writes == {"c/0": 1, "c/1": 1}
    array.store.go_on.set()
    for future in (first, waits, other):
        future.result()
    assert read(array, whole(array)).result().tolist() == [1, 5, 6, 6, 5, 7, 7, 8]


def test_a_write_waits_for_a_cancelled_one_that_still_stores():
    array, _ = watched((4,), (4,), threads=2)
    array.store.go_on.clear()
    [first] = ask(array, (np.s_[:], 5))
    array.store.begun.acquire()
    assert first.cancel()
    [second] = ask(array, (np.s_[:], 6))
    assert module._arrays[id(array)].waiting
    array.store.go_on.set()
    second.result()
    assert read(array, whole(array)).result().tolist() == [6] * 4
    with pytest.raises(CancelledError):
        first.result()


def test_an_error_fails_only_the_writes_that_meet_it():
    array, model = watched((12,), (4,))
    put(array, "c/1", b"junk")
    with busy(array):
        futures = ask(array, (0, 50), (np.s_[1:3], 51), (np.s_[3:6], 52), (np.s_[2:4], 53))
    assert isinstance(futures[2].exception(), CorruptChunkError)
    assert futures[2].exception().key == "c/1"
    for one in (0, 1, 3):
        futures[one].result()
    assert all(future.copy.done() for future in futures)
    put(array, "c/1", None)
    found = read(array, whole(array)).result()
    assert found[:4].tolist() == [50, 51, 53, 53]
    assert np.array_equal(found[8:], model[8:])


def test_writes_that_begin_together_fail_with_the_error_of_their_first_chunk(monkeypatch):
    """Also if another thread has found a later one wrong before it."""
    array, _ = watched((8,), (4,), threads=2)
    for key in ("c/0", "c/1"):
        put(array, key, b"junk")
    later, read_many = threading.Event(), array.store.read_many

    def in_turn(request):
        columns = read_many(request)
        if array.store.reads["c/1"] == 3:  # For both, and again for each.
            later.set()
        if request.keys == ["c/0"] and array.store.reads["c/0"] > 1:
            assert later.wait(20)
            token, stopped = CancelToken.current(), threading.Event()
            stopped.wait(0.2 if not token.cancelled else 0)
            assert not token.cancelled
        return columns

    monkeypatch.setattr(array.store, "read_many", in_turn)
    with busy(array), busy(array):
        _, *futures = ask(array, (np.s_[2:4], 1), (np.s_[3:5], 2), (np.s_[2:6], 3))
    assert [future.exception().key for future in futures] == ["c/0", "c/0"]


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST_REPLY])
@pytest.mark.parametrize("times", [1, 100])
def test_writes_that_fail_together_are_repeated_one_by_one(fault, times):
    array, _ = watched((4,), (4,))
    with busy(array):
        first, *futures = ask(array, *[(np.s_[i:], 60 + i) for i in range(4)])
        array.store.rules.append(Rule(fault, "write", key="c/0", skip=1, times=times))
    first.result()
    for future in futures:
        if times == 1:
            future.result()
        else:
            with pytest.raises(StoreIOError, match="c/0"):
                future.result()
    array.store.rules.clear()
    if times == 1:
        assert read(array, whole(array)).result().tolist() == [60, 61, 62, 63]


def test_an_element_that_cannot_be_encoded_fails_its_write_only():
    store = gpustore.open(
        {
            "driver": "zarr3",
            "kvstore": "memory://",
            "metadata": {
                "shape": [4],
                "data_type": "string",
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
                "codecs": [{"name": "vlen-utf8"}],
            },
        },
        create=True,
    ).result()
    array = replace(store._driver.array, executor=Executor(1))
    with busy(array):
        parts = [(0, "a"), (1, "b"), (2, "\ud800"), (np.s_[1:2], ["c"])]
        futures = ask(array, *parts)
    assert [future.exception() is None for future in futures] == [True, True, False, True]
    assert store.read().result().tolist() == ["a", "c", "", ""]


def test_a_cancelled_write_that_waits_is_left_out():
    array, _ = watched((4,), (4,))
    with busy(array):
        futures = ask(array, *[(np.s_[i:], 60 + i) for i in range(4)])
        assert futures[2].cancel()
        assert futures[2].copy.done()
    for one in (0, 1, 3):
        futures[one].result()
    assert read(array, whole(array)).result().tolist() == [60, 61, 61, 63]
    with busy(array):
        futures = ask(array, *[(np.s_[i:], 70 + i) for i in range(4)])
        assert all(future.cancel() for future in futures)
    settle(array)
    settle(array)
    assert read(array, whole(array)).result().tolist() == [60, 61, 61, 63]
    assert module._arrays == {}


def test_the_source_may_change_once_copy_is_ready():
    array, _ = watched((64,), (16,))
    sources = [np.full(40, i, "u2") for i in range(10)]
    with busy(array):
        futures = ask(array, *[(np.s_[i : i + 40], source) for i, source in enumerate(sources)])
        assert not any(future.copy.done() for future in futures)
    for source, future in zip(sources, futures, strict=True):
        future.copy.result()
        source[:] = 99
    for future in futures:
        future.result()
    expected = [*range(10), *[9] * 39, *range(50, 65)]
    assert read(array, whole(array)).result().tolist() == expected


def test_work_that_is_shared_is_divided():
    array, _ = watched((8,), (8,), codecs=(BYTES,))
    STATISTICS.reset()
    with busy(array):
        futures = ask(array, *[(i, i + 50) for i in range(5)])
    for future in futures:
        future.result()
    assert [future.statistics["writes"] for future in futures] == [1] * 5
    assert [future.statistics["bytes_stored"] for future in futures] == [16, 4, 4, 4, 4]
    assert STATISTICS["writes"] == 5
    assert STATISTICS["bytes_stored"] == 32


def test_writes_that_are_too_many_begin_in_turn(monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 4)
    array, model = watched((16,), (4,))
    with busy(array):
        futures = ask(array, *[(np.s_[i:], i) for i in range(10)])
    for i, future in enumerate(futures):
        future.result()
        model[i:] = i
    assert read(array, whole(array)).result().tolist() == model.tolist()


def test_many_threads_write_parts_of_the_same_chunks():
    array, _ = watched((8, 40), (8, 16), threads=3)

    def use(row):
        futures = []
        for number in range(1, 11):
            futures += ask(array, (np.s_[row, number:], number + 10 * row))
        for future in futures:
            future.result()

    threads = [threading.Thread(target=use, args=(row,)) for row in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read(array, whole(array)).result()
    for row in range(8):
        expected = [i + 10 * row for i in range(1, 11)]
        assert found[row, 1:].tolist() == expected + [expected[-1]] * 29


def test_the_only_thread_of_a_pool_may_wait_for_writes():
    array, _ = watched((8,), (8,))
    done = threading.Event()

    def use(_):
        for future in ask(array, *[(i, i + 20) for i in range(5)]):
            future.result()
        done.set()

    with busy(array):
        first, second = ask(array, (0, 3), (7, 4))
        first.commit.add_done_callback(use)
    assert done.wait(60)
    second.result()
    assert read(array, whole(array)).result().tolist() == [20, 21, 22, 23, 24, 6, 7, 4]


def test_a_child_process_does_not_wait_for_the_writes_of_its_parent():
    code = """
        import os, threading
        import gpustore
        from gpustore.errors import ForkError

        context = gpustore.Context({"data_copy_concurrency": {"limit": 1}})
        store = gpustore.open(
            "memory://|zarr3:", create=True, dtype="uint16", shape=[8], context=context
        ).result()
        release = threading.Event()
        store._driver.array.executor.execute(release.wait)
        futures = [store[i:].write(i) for i in range(5)]
        child = os.fork()
        if child == 0:
            status = 0
            for future in futures:
                try:
                    future.result()
                    status = 1
                except ForkError:
                    future.cancel()
            for future in [store[i:].write(10 + i) for i in range(5)]:
                future.result(timeout=60)
            if store.read().result().tolist() != [10, 11, 12, 13, 14, 14, 14, 14]:
                status = 2
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        release.set()
        for future in futures:
            future.result()
        print(store.read().result().tolist())
    """
    assert run_python(code).stdout.splitlines() == ["0", "[0, 1, 2, 3, 4, 4, 4, 4]"]


def test_writes_that_wait_are_done_before_the_interpreter_ends(tmp_path):
    code = """
        import sys
        import gpustore

        store = gpustore.open(
            sys.argv[1] + "|zarr3:", create=True, dtype="uint16", shape=[64]
        ).result()
        for i in range(64):
            store[i].write(i)
    """
    assert run_python(code, str(tmp_path / "a")).stderr == ""
    assert gpustore.open(str(tmp_path / "a")).result().read().result().tolist() == list(range(64))
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".tmp", ".__lock"))]


def test_boxes_of_keys_decide_which_writes_meet():
    array = make_array((100, 100), (10, 10), codecs=(BYTES,))

    def pending(index):
        transform = whole(array)[index]
        source = BACKEND.source(np.uint16(1), transform.domain, array.dtype)
        return module.PendingWrite(array, array.plans(transform, source.strides), source)

    first = pending(np.s_[12:18, 5:25])
    assert first.box == [(1, 1), (0, 2)]
    assert first.meets(pending(np.s_[19, 29]))
    assert not first.meets(pending(np.s_[19, 30]))
    assert not first.meets(pending(np.s_[20:, :]))
    assert first.meets(pending(np.s_[[95, 3, 17], :]))
    assert stored(array) == {}
