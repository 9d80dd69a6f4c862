"""Reads asked for while others of their array are under way share their chunks."""

import threading
from asyncio import CancelledError
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustore
from gpustore.backends.base import NEW, Output
from gpustore.errors import CorruptChunkError, LimitError, OutOfBoundsError, StoreIOError
from gpustore.pipelines import merged_reads
from gpustore.pipelines import reads_under_way as module
from gpustore.pipelines.read import read
from gpustore.pipelines.reads_under_way import wait_with_others
from gpustore.runtime.executor import Executor
from gpustore.runtime.limits import Limits
from gpustore.runtime.statistics import STATISTICS, operation
from tests.kvstores.faulty import Fault, Rule
from tests.matrix import share
from tests.pipelines.arrays import put, whole
from tests.pipelines.test_read_batch import indices
from tests.pipelines.test_read_many import FORMS, counted
from tests.runtime.test_executor import run_python


def pooled(form, shape, chunks, **changes):
    """A counting array whose reads all run on a pool of one thread, and its elements."""
    array, model = counted(form, shape, chunks)
    array.store.is_local = False
    return replace(array, executor=Executor(1), **changes), model


@contextmanager
def busy(array):
    """Keep the only thread of the array's pool from working; it goes on afterwards.

    A thread that stood in for one that waited, and sleeps since, takes a task as well: each thread
    has one to wait in before it comes to those of the test.
    """
    release = threading.Event()
    for _ in range(array.executor._crew._threads + 1):
        array.executor.execute(release.wait)
    try:
        yield
    finally:
        release.set()


def settle(array):
    """Let the only thread end what it does after a result is there."""
    array.executor.submit(lambda: None).result()


def begin(array, transform, output=NEW):
    return read(array, transform, output, wait=wait_with_others)


def ask(array, *boxes):
    return [operation(lambda box=box: begin(array, whole(array)[box])) for box in boxes]


@pytest.mark.matrix
@given(data=st.data(), form=st.sampled_from(FORMS), crops=st.booleans())
@settings(max_examples=share(150))
def test_reads_under_way_give_what_they_give_alone(data, form, crops):
    shape = [data.draw(st.integers(1, 9)) for _ in range(data.draw(st.integers(0, 3)))]
    chunks = [data.draw(st.integers(1, 5)) for _ in shape]
    array, model = pooled(form, shape, chunks)
    count = data.draw(st.integers(1, 8))
    if crops:
        extent = [data.draw(st.integers(1, size)) for size in shape]
        starts = [
            [data.draw(st.integers(0, n - e)) for n, e in zip(shape, extent, strict=True)]
            for _ in range(count)
        ]
        boxes = [
            tuple(slice(a, a + e) for a, e in zip(start, extent, strict=True)) for start in starts
        ]
    else:
        boxes = [data.draw(indices(shape)) for _ in range(count)]
    orders = [data.draw(st.sampled_from("CF")) for _ in boxes]
    with busy(array):
        array.store.reads.clear()
        views = [whole(array).oindex[box] for box in boxes]
        futures = [
            begin(array, view, Output(order=order))
            for view, order in zip(views, orders, strict=True)
        ]
        assert array.store.reads == []
    store = gpustore.array(model)
    for box, order, future in zip(boxes, orders, futures, strict=True):
        found, expected = future.result(), store.oindex[box].read(order=order).result()
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert np.array_equal(found, expected)
        assert found.flags.f_contiguous if order == "F" else found.flags.c_contiguous
    settle(array)
    assert module._arrays == {}


@pytest.mark.parametrize("form", ["zarr3 gzip", "zarr3 shard", "zarr2 C-zlib"])
def test_chunks_wanted_by_several_reads_are_read_once_a_pass(form):
    array, model = pooled(form, (64, 64), (16, 16))
    rng = np.random.default_rng(0)
    boxes = [np.s_[y : y + 20, x : x + 20] for y, x in rng.integers(0, 44, (100, 2))]
    array.store.reads.clear()
    with busy(array):
        futures = ask(array, *boxes)
    for box, future in zip(boxes, futures, strict=True):
        assert np.array_equal(future.result(), model[box])
    # The first read is one pass, all others are another.
    assert max(Counter(array.store.reads).values()) <= 2
    assert len(array.store.reads) <= (40 if form.endswith("shard") else 16 + 4)


def test_many_threads_ask_for_overlapping_reads():
    array, model = counted("zarr3 gzip", (64, 64), (16, 16))
    array.store.is_local = False
    array = replace(array, executor=Executor(3))
    wrong = []

    def use(seed):
        rng = np.random.default_rng(seed)
        for _ in range(10):
            boxes = [np.s_[y : y + 20, x : x + 20] for y, x in rng.integers(0, 44, (10, 2))]
            for box, future in zip(boxes, ask(array, *boxes), strict=True):
                if not np.array_equal(future.result(), model[box]):
                    wrong.append(box)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_read_sees_what_was_stored_before_it_was_asked_for():
    array, _ = pooled("zarr3 raw", (16,), (4,))
    found = []
    with busy(array):
        for value in range(5):
            put(array, "c/1", np.full(4, value, "<u2").tobytes())
            found += ask(array, np.s_[2:10])
    assert [future.result()[2:6].min() >= value for value, future in enumerate(found)] == [True] * 5
    assert found[-1].result()[2:6].tolist() == [4] * 4


def test_reads_that_share_no_chunk_are_begun_by_themselves():
    array, model = pooled("zarr3 gzip", (64,), (16,))
    with busy(array):
        futures = ask(array, *[np.s_[16 * i : 16 * i + 16] for i in range(4)])
    for i, future in enumerate(futures):
        assert np.array_equal(future.result(), model[16 * i : 16 * i + 16])
        assert future.statistics["key_reads"] == 1


def test_work_that_is_shared_is_divided():
    array, _ = pooled("zarr3 gzip", (64,), (16,))
    STATISTICS.reset()
    with busy(array):
        futures = ask(array, np.s_[:16], np.s_[:20], np.s_[10:40], np.s_[30:])
        counters = [future.statistics for future in futures]
    for future in futures:
        future.result()
    assert [future.statistics for future in futures] == counters
    assert [one["reads"] for one in counters] == [1] * 4
    assert [one["chunks_planned"] for one in counters] == [1, 2, 3, 3]
    assert [one["key_reads"] for one in counters] == [1, 1, 1, 2]
    assert STATISTICS["reads"] == 4
    assert STATISTICS["key_reads"] == 5


def test_an_error_fails_only_the_reads_that_meet_it():
    array, model = pooled("zarr3 gzip", (64,), (16,))
    put(array, "c/2", b"junk")
    with busy(array):
        _, good, bad, last = ask(array, np.s_[:1], np.s_[:30], np.s_[20:40], np.s_[48:])
    with pytest.raises(CorruptChunkError, match="c/2") as info:
        bad.result()
    assert info.value.key == "c/2"
    assert np.array_equal(good.result(), model[:30])
    assert np.array_equal(last.result(), model[48:])


def test_a_failure_that_passes_is_not_seen():
    array, model = pooled("zarr3 gzip", (64,), (16,))
    with busy(array):
        futures = ask(array, *[np.s_[i:] for i in range(4)])
        array.store.rules.append(Rule(Fault.ERROR, key="c/1", skip=1))
    for i, future in enumerate(futures):
        assert np.array_equal(future.result(), model[i:])


def test_a_failure_that_stays_is_that_of_each():
    array, _ = pooled("zarr3 gzip", (64,), (16,))
    with busy(array):
        futures = ask(array, *[np.s_[i:] for i in range(3)])
        array.store.rules.append(Rule(Fault.ERROR, key="c/3", times=100))
    for future in futures:
        with pytest.raises(StoreIOError, match="c/3"):
            future.result()


def test_a_cancelled_read_is_left_out():
    array, model = pooled("zarr3 gzip", (64,), (16,))
    array.store.reads.clear()
    with busy(array):
        first, *futures = ask(array, np.s_[:1], np.s_[:8], np.s_[4:12], np.s_[40:50], np.s_[56:])
        assert futures[2].cancel()
        assert futures[3].cancel()
    assert np.array_equal(first.result(), model[:1])
    assert np.array_equal(futures[0].result(), model[:8])
    assert np.array_equal(futures[1].result(), model[4:12])
    with pytest.raises(CancelledError):
        futures[2].result()
    assert {key for key, _ in array.store.reads} == {"c/0"}


def test_if_all_are_cancelled_no_further_chunk_is_read():
    array, _ = pooled("zarr3 gzip", (64,), (16,))
    array.store.batch_nbytes = 1
    with busy(array):
        first, *futures = ask(array, *[np.s_[i:] for i in range(3)])
    first.result()
    read_many, begun, go_on = array.store.read_many, threading.Event(), threading.Event()

    def wait(request):
        begun.set()
        go_on.wait()
        return read_many(request)

    for future in futures:
        future.exception()
    with busy(array):
        first, *futures = ask(array, *[np.s_[i:] for i in range(3)])
        first.cancel()
        array.store.reads.clear()
        array.store.read_many = wait
    begun.wait()
    for future in futures:
        assert future.cancel()
    go_on.set()
    array.executor.submit(lambda: None).result()
    assert [key for key, _ in array.store.reads] == ["c/0"]


def test_errors_of_the_request_are_raised_at_once():
    array, model = pooled("zarr3 gzip", (64,), (16,), limits=Limits(chunks_per_request=3))
    with busy(array):
        futures = ask(array, np.s_[:40], np.s_[1:40])
        with pytest.raises(LimitError):
            begin(array, whole(array))
        with pytest.raises(OutOfBoundsError):
            begin(replace(array, shape=(3,)), whole(array))
    assert np.array_equal(futures[1].result(), model[1:40])
    settle(array)
    assert module._arrays == {}


def test_what_is_too_large_to_merge_is_read_alone(monkeypatch):
    monkeypatch.setattr(merged_reads, "MOST_ROWS", 5)
    array, model = pooled("zarr3 gzip", (64,), (16,))
    with busy(array):
        futures = ask(array, *[np.s_[:]] * 3)
    for future in futures:
        assert np.array_equal(future.result(), model)
        assert future.statistics["key_reads"] == 4


def test_reads_into_an_array_of_the_caller_and_by_index_arrays_are_begun_by_themselves():
    array, model = pooled("zarr3 gzip", (64,), (16,))
    out = np.zeros(20, "u2")
    with busy(array):
        ask(array, np.s_[:], np.s_[:])
        waiting = len(module._arrays[id(array)].waiting)
        filled = begin(array, whole(array)[:20], Output(out))
        picked = begin(array, whole(array).oindex[[3, 60]])
        assert len(module._arrays[id(array)].waiting) == waiting
    assert filled.result() is out
    assert np.array_equal(out, model[:20])
    assert picked.result().tolist() == [model[3], model[60]]


def test_a_small_read_alone_still_runs_in_the_thread_that_asks():
    array, model = counted("zarr3 gzip", (64,), (16,))
    future = begin(array, whole(array)[:20])
    assert future.is_deferred
    assert np.array_equal(future.result(), model[:20])
    assert array.store.threads == {threading.get_ident()}


def test_the_only_thread_of_a_pool_may_wait_for_reads():
    array, model = pooled("zarr3 gzip", (64,), (16,))
    found = []
    with busy(array):
        futures = ask(array, np.s_[:], np.s_[:], np.s_[1:])
        done = threading.Event()

        def use(_):
            found.extend(one.result() for one in ask(array, *[np.s_[i:] for i in range(5)]))
            done.set()

        futures[0].add_done_callback(use)
    assert done.wait(60)
    assert all(np.array_equal(one, model[i:]) for i, one in enumerate(found))
    assert len(found) == 5


@pytest.mark.matrix("costly")
def test_a_child_process_does_not_wait_for_the_queue_of_its_parent():
    code = """
        import os, threading
        import numpy as np
        import gpustore
        from gpustore.errors import ForkError

        context = gpustore.Context({"data_copy_concurrency": {"limit": 1}})
        store = gpustore.open(
            {"driver": "zarr3", "kvstore": "memory://", "schema": {"chunk_layout": {
                "read_chunk": {"shape": [1]}}}},
            create=True, dtype="uint16", shape=[200], context=context,
        ).result()
        store[...] = np.arange(200, dtype="u2")
        release = threading.Event()
        array = store._driver.reader
        array.executor.execute(release.wait)
        futures = [store[i:].read() for i in range(5)]
        child = os.fork()
        if child == 0:
            status = 0
            for future in futures:
                try:
                    future.result()
                    status = 1
                except ForkError:
                    future.cancel()
            again = [store[i:].read() for i in range(5)]
            for i, future in enumerate(again):
                if future.result(timeout=60).tolist() != list(range(i, 200)):
                    status = 2
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        release.set()
        print(all(f.result().tolist() == list(range(i, 200)) for i, f in enumerate(futures)))
    """
    assert run_python(code).stdout.splitlines() == ["0", "True"]
