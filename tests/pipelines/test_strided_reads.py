"""Reads that the native core plans: alone, or together with others that wait."""

import asyncio
import contextlib
import gc
import itertools
import linecache
import sys
import threading
import weakref
from asyncio import CancelledError
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustore.backends.base import NEW
from gpustore.backends.native import library
from gpustore.backends.native.request import Request
from gpustore.errors import CorruptChunkError
from gpustore.pipelines import strided_reads
from gpustore.pipelines.read import StridedReads
from gpustore.runtime.claimed import claim_all, finish_all
from gpustore.runtime.statistics import STATISTICS
from tests.backends.native.stored_arrays import (
    chunk_files,
    created,
    in_python,
    named,
    open_at,
    outcome,
    selections,
    specs,
    stored,
    windows_of,
)
from tests.matrix import each, share
from tests.runtime.test_executor import run_python

pytestmark = pytest.mark.skipif(library.library() is None, reason=str(library.why_not()))

ZLIB = named("gzip", level=1)
LITTLE = named("bytes", endian="little")


@pytest.fixture
def array(tmp_path):
    """A store of 64 x 64 elements in chunks of 16 x 16 on a pool of one thread."""
    store = created(tmp_path, [64, 64], [16, 16], "uint16", [LITTLE, ZLIB])
    store[...] = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    return open_at(tmp_path, {}, data_copy_concurrency={"limit": 1})


MODEL = np.arange(64 * 64, dtype="u2").reshape(64, 64)


@pytest.fixture
def passes(monkeypatch):
    """Numbers of the reads that were planned together, pass by pass."""
    found = []
    plan = Request.plan

    def planned(request):
        found.append(len(request._kept[1]))
        return plan(request)

    monkeypatch.setattr(Request, "plan", planned)
    return found


class busy:
    """Keeps the only thread of the store's pool from working; it goes on afterwards."""

    def __init__(self, store):
        self.executor = store._driver.reader.executor
        self.begun, self.release = threading.Event(), threading.Event()

    def __enter__(self):
        self.executor.execute(self.wait)
        # A worker that was called before could still take reads of the test, and begin them on the
        # thread that is busy for as long as the test waits for them.
        assert self.begun.wait(60)

    def wait(self):
        self.begun.set()
        self.release.wait()

    def __exit__(self, *_):
        self.release.set()


def settle(store):
    """Let the only thread end what it does."""
    store._driver.reader.executor.submit(lambda: None).result()


@given(
    st.data(),
    specs(),
    st.integers(0, 999),
    st.sampled_from([0.0, 0.4]),
    st.booleans(),
    st.integers(1, 4),
)
@settings(max_examples=share(150))
def test_reads_that_wait_together_give_what_they_give_alone(
    data, spec, seed, missing, pooled, threads
):
    with stored(spec, seed, missing=missing) as folder:
        members = {name: spec[name] for name in ("driver", "field") if name in spec}
        store = open_at(folder, members, data_copy_concurrency={"limit": threads})
        views = [
            data.draw(selections(store.shape))(store) for _ in range(data.draw(st.integers(2, 6)))
        ]
        orders = [data.draw(st.sampled_from("CF")) for _ in views]
        with windows_of(65_536, 64, pooled=pooled, planned=True):
            futures = [view.read(order=order) for view, order in zip(views, orders)]
            found = [outcome(future.result) for future in futures]
        for view, order, one in zip(views, orders, found):
            with in_python():
                assert one == outcome(view.read(order=order).result)


@pytest.mark.parametrize(
    ("index", "span"),
    [
        (np.s_[:, :, 5], 15 * 512 + 15 * 32 + 2),
        (np.s_[:, 3, :], 15 * 512 + 15 * 2 + 2),
        (np.s_[::3, ::-2, :9], 15 * 512 + 15 * 32 + 8 * 2 + 2),
        (np.s_[2, ::2, ::4], 15 * 32 + 15 * 2 + 2),
        (np.s_[4:9, :, 60:], 4 * 512 + 15 * 32 + 3 * 2 + 2),
    ],
)
def test_reads_of_many_raw_chunks_are_as_long_as_what_is_fetched(index, span, tmp_path):
    """Two bytes of each line of a chunk are all of its pages."""
    store = created(tmp_path, (64, 64, 64), (16, 16, 16), "uint16")
    array = store._driver.reader
    one = StridedReads.of(array).one(store[index]._transform, NEW)
    assert one.seconds == pytest.approx(one.rows * array.chain.byte_s * span)


@each("kind", ["uint16", "bool", "float64"])
@each("endian", ["little", "big"])
def test_regions_of_a_raw_chunk_that_lie_far_apart_are_fetched_alone(kind, endian, tmp_path):
    values = np.random.default_rng(0).integers(0, 2, (64, 64, 128)).astype(kind)
    store = created(tmp_path, values.shape, values.shape, kind, [named("bytes", endian=endian)])
    store[...] = values
    store = open_at(tmp_path, {}, data_copy_concurrency={"limit": 1})
    boxes = [
        np.s_[3, 5, 7],
        np.s_[60:63, 9, 100:],
        np.s_[40:50, 20:22, 31],
        np.s_[20:22, 60:64:3, 60:50:-2],
        np.s_[33, 40:20:-7, 5:9],
    ]
    with busy(store):
        futures = [store[box].read() for box in boxes]
        futures += [store[:, 1:3, 1:3].transpose([2, 0, 1])[:, 2:4].read(order="F")]
        found = [future.result() for future in futures]
    expected = [values[box] for box in boxes] + [values[2:4, 1:3, 1:3].transpose(2, 0, 1)]
    assert all(map(np.array_equal, found, expected))
    assert sum(future.statistics["key_reads"] for future in futures) == 1
    assert sum(future.statistics["bytes_fetched"] for future in futures) < values.nbytes / 8
    assert sum(future.statistics["bytes_decoded"] for future in futures) == values.nbytes


@given(st.data(), specs(), st.integers(0, 999))
@settings(max_examples=share(60))
def test_a_damaged_chunk_fails_the_reads_that_meet_it(data, spec, seed):
    with stored(spec, seed) as folder:
        members = {name: spec[name] for name in ("driver", "field") if name in spec}
        files = chunk_files(folder)
        if files:
            files[seed % len(files)].write_bytes(b"damaged")
        store = open_at(folder, members)
        views = [data.draw(selections(store.shape))(store) for _ in range(4)]
        futures = [view.read() for view in views]
        found = [outcome(future.result) for future in futures]
        for view, one in zip(views, found):
            with in_python():
                assert one == outcome(view.read().result)


def test_whoever_asks_first_reads_all_that_wait_in_one_pass(array, passes):
    boxes = [np.s_[i : i + 10, i : i + 10] for i in range(0, 50, 5)]
    with busy(array):
        futures = [array[box].read() for box in boxes]
        assert np.array_equal(futures[3].result(), MODEL[boxes[3]])
        assert passes == [10]
        assert all(future.done() for future in futures)
    for box, future in zip(boxes, futures):
        assert np.array_equal(future.result(), MODEL[box])
    assert passes == [10]


def test_a_read_that_waits_alone_runs_in_the_thread_that_asks(array, passes):
    with busy(array):
        future = array[3:40, 5:40].read()
        assert future.is_deferred
        assert np.array_equal(future.result(), MODEL[3:40, 5:40])
    assert passes == []


def test_chunks_that_several_reads_want_are_decoded_once_and_their_work_is_divided(array):
    STATISTICS.reset()
    with busy(array):
        futures = [array[:20, :16].read() for _ in range(5)]
        counters = [future.statistics for future in futures[:3]]
        futures[0].result()
    counters += [future.statistics for future in futures[3:]]  # Nobody has looked at them before.
    assert all(future.statistics is one for future, one in zip(futures, counters))
    assert STATISTICS["reads"] == 5
    assert STATISTICS["chunks_planned"] == 10
    assert STATISTICS["key_reads"] == 2
    assert STATISTICS["bytes_decoded"] == 2 * 512
    assert [one["reads"] for one in counters] == [1] * 5
    assert sum(one["key_reads"] for one in counters) == 2
    assert sum(one["bytes_decoded"] for one in counters) == 2 * 512


def test_a_second_read_that_is_not_tiny_begins_on_the_pool(array):
    first, second = array[:60, :60].read(), array[1:60, 1:60].read()
    settle(array)
    assert not second.is_deferred
    settle(array)
    assert second._done
    assert first._done
    assert np.array_equal(second.result(), MODEL[1:60, 1:60])


def test_many_tiny_reads_begin_on_the_pool(array, monkeypatch):
    monkeypatch.setattr(strided_reads, "MANY", 5)
    futures = [array[i, :3].read() for i in range(5)]
    settle(array)
    settle(array)
    assert all(future._done for future in futures)


def test_reads_that_are_awaited_or_polled_are_read_together(array, passes):
    async def gather():
        futures = [array[i, :3].read() for i in range(6)]
        return await asyncio.gather(*[wait(future) for future in futures])

    async def wait(future):
        return await future

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        task = loop.create_task(gather())
        with busy(array):
            for _ in range(3):  # All await before the worker is free.
                loop.run_until_complete(asyncio.sleep(0))
        found = loop.run_until_complete(task)
    assert [one.tolist() for one in found] == [MODEL[i, :3].tolist() for i in range(6)]
    assert passes == [6]


def test_a_callback_begins_a_read(array):
    done = threading.Event()
    future = array[5, 6].read()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(60)
    assert future.result() == MODEL[5, 6]


def test_the_result_of_a_forced_read_is_there_although_others_are_asked_for(array):
    with busy(array):
        first, second = array[0, :3].read(), array[1, :3].read()
        first.force()
        assert not first.is_deferred
        assert second.result().tolist() == MODEL[1, :3].tolist()
        assert first.result().tolist() == MODEL[0, :3].tolist()


def test_cancelled_and_dropped_reads_are_left_out(array, passes):
    with busy(array):
        futures = [array[i, :3].read() for i in range(6)]
        assert futures[1].cancel()
        dropped = weakref.ref(futures.pop(2))
        assert dropped() is None
        futures[0].result()
    assert passes == [4]
    with pytest.raises(CancelledError):
        futures[1].result()


def test_what_a_dropped_read_held_is_released(array):
    future = array[:3, :3].read()
    memory = weakref.ref(future._deferred.memory.array)
    del future
    gc.collect()
    assert memory() is None


def test_an_error_fails_only_the_reads_that_meet_it(array, tmp_path):
    (tmp_path / "c" / "1" / "0").write_bytes(b"junk")
    with busy(array):
        good, bad, last = array[:16, :9].read(), array[10:20, :9].read(), array[32:, :9].read()
        good.result()
    with pytest.raises(CorruptChunkError) as caught:
        bad.result()
    assert caught.value.key.endswith("c/1/0")
    assert np.array_equal(good.result(), MODEL[:16, :9])
    assert np.array_equal(last.result(), MODEL[32:, :9])


def test_long_reads_that_share_no_chunk_are_begun_by_themselves(array, passes, monkeypatch):
    monkeypatch.setattr(strided_reads, "LONG_S", 0)
    with busy(array):
        futures = [array[16 * i : 16 * i + 16].read() for i in range(4)]
    for i, future in enumerate(futures):
        assert np.array_equal(future.result(), MODEL[16 * i : 16 * i + 16])
    assert passes == [4, 1, 1, 1, 1]


def test_what_is_too_large_to_be_read_together_is_read_alone(array, passes, monkeypatch):
    monkeypatch.setattr(strided_reads, "MOST_TOGETHER", 5)
    with busy(array):
        futures = [array[i:].read() for i in range(3)]
    for i, future in enumerate(futures):
        assert np.array_equal(future.result(), MODEL[i:])
        assert future.statistics["key_reads"] == 16


def test_if_all_are_cancelled_the_pass_ends(array, monkeypatch):
    read, begun, go_on = Request.read, threading.Event(), threading.Event()

    def again(request, wanted):
        begun.set()
        assert go_on.wait(60)
        return True

    monkeypatch.setattr(Request, "read", again)
    futures = [array[i:].read() for i in range(3)]
    assert begun.wait(60)
    for future in futures:
        assert future.cancel()
    go_on.set()
    settle(array)
    monkeypatch.setattr(Request, "read", read)
    assert np.array_equal(array[1:].read().result(), MODEL[1:])


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_an_error_before_the_pass_begins_is_that_of_all(error, array, monkeypatch):
    def fail(request):
        raise error

    with busy(array):
        futures = [array[i, :3].read() for i in range(3)]
        monkeypatch.setattr(Request, "plan", fail)
        with pytest.raises(error):
            futures[0].result()
    expected = MemoryError if error is MemoryError else CancelledError
    for future in futures[1:]:
        with pytest.raises(expected):
            future.result()


def test_after_ctrl_c_reads_are_repeated_once_no_thread_works_on_them(
    tmp_path, passes, monkeypatch
):
    created(tmp_path, [64, 64], [16, 16], "uint16", [LITTLE, ZLIB])[...] = MODEL
    array = open_at(tmp_path, {}, data_copy_concurrency={"limit": 2})
    read, this_thread = Request.read, threading.get_ident()
    begun, go_on = threading.Event(), threading.Event()

    def interrupted(request, wanted):
        if threading.get_ident() == this_thread:
            assert begun.wait(60)
            raise KeyboardInterrupt
        begun.set()
        assert go_on.wait(60)
        return read(request, wanted)

    monkeypatch.setattr(Request, "read", interrupted)
    monkeypatch.setattr(strided_reads, "SPLIT_S", 1e-9)
    with busy(array):
        futures = [array[i, :3].read() for i in range(3)]
        with pytest.raises(KeyboardInterrupt):
            futures[0].result()
        assert passes == [3]
        monkeypatch.setattr(Request, "read", read)
        go_on.set()
        assert [one.result().tolist() for one in futures[1:]] == MODEL[1:3, :3].tolist()
    assert futures[0].cancelled()
    assert passes == [3]


def test_after_ctrl_c_reads_that_are_done_are_not_repeated(array, passes):
    def interrupt(_):
        raise KeyboardInterrupt

    with busy(array):
        futures = [array[i, :3].read() for i in range(4)]
        futures[1].add_done_callback(interrupt)
        futures[2].add_done_callback(lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            futures[0].result()
    assert [one.result().tolist() for one in futures] == MODEL[:4, :3].tolist()
    assert passes == [4]


@contextlib.contextmanager
def interrupted_at(line):
    """Ctrl-C at the n-th line of the module, or of what claims and finishes reads, that runs here.

    The line of a ``with`` is met once more when it ends. There it could leave a lock held, which
    signals do not: they are handled behind calls, and where loops begin anew.
    """
    before, file = sys.gettrace(), strided_reads.__file__
    others = claim_all.__code__, finish_all.__code__
    count = itertools.count(1)

    def of_function(frame, event, _):
        is_ours = frame.f_code.co_filename == file or frame.f_code in others
        return interrupt_at if is_ours else None

    def interrupt_at(frame, event, _):
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not text.startswith("with ") and next(count) == line:
            raise KeyboardInterrupt
        return interrupt_at

    sys.settrace(of_function)
    try:
        yield
    finally:
        sys.settrace(before)


def test_ctrl_c_at_any_line_leaves_no_read_unfinished(array):
    # Where a trace function raises at the end of a handler, CPython 3.11 goes on taking what was
    # handled for the context of later errors of the thread, which would be those of other tests.
    thread = ThreadPoolExecutor(1)
    try:
        thread.submit(interrupt_at_each_line, array).result()
    finally:  # Not by `with`, which waits without end for a thread that hangs.
        thread.shutdown(wait=False)
    assert sys.exception() is None


def interrupt_at_each_line(array):
    for line in itertools.count(1):
        with busy(array):
            futures = [array[i, :3].read() for i in range(4)]
            futures[2].force()
            try:
                with interrupted_at(line):
                    futures[0].result()
                interrupted = False
            except KeyboardInterrupt:
                interrupted = True
        for i, future in enumerate(futures):
            try:
                assert future.result(timeout=20).tolist() == MODEL[i, :3].tolist()
            except CancelledError:
                assert interrupted
        if not interrupted:
            break
    assert line > 20  # Of about 80; fewer run here if a worker takes the reads first.


def test_a_read_into_an_array_of_the_caller_waits_with_others(array):
    out = np.zeros((3, 3), "u2")
    with busy(array):
        first, second = array[:2].read(), array[:3, :3].read(out=out)
        assert second.result() is out
        assert np.array_equal(out, MODEL[:3, :3])
        assert np.array_equal(first.result(), MODEL[:2])


@pytest.mark.matrix("costly")
def test_a_child_process_reads_what_waits_and_can_call_a_worker(tmp_path):
    store = created(tmp_path, [200], [1], "uint16")
    store[...] = np.arange(200, dtype="u2")
    code = f"""
        import os, threading
        import gpustore
        from gpustore.errors import ForkError

        context = gpustore.Context({{"data_copy_concurrency": {{"limit": 1}}}})
        store = gpustore.open({str(tmp_path)!r}, context=context).result()
        release = threading.Event()
        store._driver.reader.executor.execute(release.wait)
        futures = [store[i:].read() for i in range(5)]
        child = os.fork()
        if child == 0:
            status = 0
            for i, future in enumerate(futures):
                if future.result(timeout=60).tolist() != list(range(i, 200)):
                    status = 1
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


@pytest.mark.matrix("costly")
def test_a_batch_submitted_before_a_fork_fails_in_the_child(tmp_path):
    store = created(tmp_path, [200], [1], "uint16")
    store[...] = np.arange(200, dtype="u2")
    code = f"""
        import os, threading
        import gpustore
        from gpustore.errors import ForkError

        context = gpustore.Context({{"data_copy_concurrency": {{"limit": 1}}}})
        store = gpustore.open({str(tmp_path)!r}, context=context).result()
        release = threading.Event()
        store._driver.reader.executor.execute(release.wait)
        views = [store[i:] for i in range(3)] + [store.oindex[[i, 7]] for i in range(3)]
        with gpustore.Batch() as batch:
            futures = [view.read(batch=batch) for view in views]
        child = os.fork()
        if child == 0:
            failed = 0
            for future in futures:
                try:
                    future.result(timeout=1)
                except ForkError:
                    failed += 1
                except TimeoutError:
                    pass
            os._exit(failed)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        release.set()
        print([future.result()[0] == i % 3 for i, future in enumerate(futures)].count(True))
    """
    assert run_python(code).stdout.splitlines() == ["6", "6"]


@pytest.mark.parametrize("reads", [1, 2])
def test_bytes_are_counted_while_the_core_reads(tmp_path, monkeypatch, reads):
    """Each slice of time ends after a quarter of the chunks; reads that share a pass share it."""
    created(tmp_path, [128, 64], [8, 8], "uint16", [LITTLE, ZLIB])[...] = 1
    monkeypatch.setattr("gpustore.backends.native.request.SLICE_NS", 1)
    monkeypatch.setattr(strided_reads, "LONG_S", 0)
    futures, seen = [], []
    read = Request.read

    def slice_read(request, wanted):
        more = read(request, wanted)
        seen.append([future.statistics["bytes_decoded"] for future in futures])
        return more

    monkeypatch.setattr(Request, "read", slice_read)
    store = open_at(tmp_path, {}, data_copy_concurrency={"limit": 1})
    with busy(store):
        futures += [store.read() for _ in range(reads)]
        for future in futures:
            future.force()
    for future in futures:
        assert (future.result() == 1).all()
    nbytes = 128 * 64 * 2
    assert seen == [[nbytes * i // (4 * reads)] * reads for i in range(1, 5)]
    assert sum(future.statistics["bytes_decoded"] for future in futures) == nbytes
