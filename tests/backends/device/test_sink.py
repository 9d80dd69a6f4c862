"""Sinks of a device: what they hold when the Future of a read resolves."""

import bz2
import gc
import itertools
import threading

import numpy as np
import pytest

import gpustore
from gpustore.backends.device.staging_buffer import SMALL as SMALL_BUFFERS
from gpustore.backends.selection import select_backend
from gpustore.errors import DeviceError
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.pipelines.read import read
from gpustore.resources.device import parse_device
from gpustore.runtime.executor import Executor
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host
from tests.pipelines.arrays import BYTES, make_array, put, whole
from tests.waiting import wait_until

pytestmark = [needs_compiler, pytest.mark.matrix]

TIMEOUT_S = 60

ITEMS = 1 << 20
"""Elements of a chunk that fills a staging buffer, so that its task begins the submission."""


class Late(Executor):
    """Executor that tells a fan-out of its end when `is_over` is set, if it has a parent."""

    def __init__(self, limit):
        super().__init__(limit)
        self.is_over = threading.Event()

    def run_all(self, tasks, then, *, parent=None, ended=None, **options):
        def late():
            assert self.is_over.wait(TIMEOUT_S)
            ended()

        told = ended if parent is None else late
        return super().run_all(tasks, then, parent=parent, ended=told, **options)


def test_a_task_that_decodes_on_the_host_fails_after_all_is_given_back():
    """The tasks before it may end later."""
    with emulated() as device:
        backend = select_backend(parse_device(device.name))
        executor = Late(2)
        codecs = (BYTES, NamedConfiguration("crc32c", {}))
        array = make_array((ITEMS,), (ITEMS,), codecs=codecs, backend=backend, executor=executor)
        put(array, "c/0", bytes(2 * ITEMS + 4))
        device.faults.failing = {("wait", 1): False}  # When the host has decoded the chunk.
        future = read(array, whole(array))
        error = future.exception(timeout=TIMEOUT_S)
        taken = backend.buffers.taken
        executor.is_over.set()
        assert isinstance(error, DeviceError)
        assert taken == 0
        del array, executor, future, error


SMALL = {
    "driver": "zarr",
    "metadata": {
        "shape": [64, 64],
        "chunks": [16, 16],
        "dtype": "<u2",
        "compressor": {"id": "zstd", "level": 1},
    },
}


@pytest.fixture
def small(tmp_path):
    """A device, a store on it, and the store's elements."""
    spec = {**SMALL, "kvstore": f"file://{tmp_path}"}
    elements = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    gpustore.open(spec, create=True, device="cpu").result()[...] = elements
    with emulated() as device:
        yield device, gpustore.open(spec, device=device.name).result(), elements


PART = np.s_[8:40, 8:40]
"""Nine chunks."""


def test_a_small_read_is_one_submission_of_the_thread_that_asks(small):
    device, store, elements = small
    store[PART].read().result()  # The first read takes the memory that is kept.
    waiting = []
    device.faults.before_wait = lambda: waiting.append(threading.current_thread())
    threads = set(threading.enumerate())
    device.counts.clear()
    future = store[PART].read()
    assert future.is_deferred
    assert device.counts["upload"] == 0
    found = future.result()
    assert set(threading.enumerate()) <= threads  # Those of other tests may end.
    assert waiting == [threading.current_thread()]
    names = ("upload", "download", "decompress", "synchronize")
    assert {name: device.counts[name] for name in names} == dict.fromkeys(names, 1)
    assert device.counts["allocate_pinned"] == device.counts["memory"] == 0
    assert future.statistics["waits"] == 1
    device.faults.before_wait = None
    assert np.array_equal(on_host(device, found), elements[PART])


def test_reads_begun_before_the_first_is_asked_for_run_on_the_pool(small):
    device, store, elements = small
    first, second = store[PART].read(), store[PART].read()
    assert not second.is_deferred
    for future in (second, first):
        assert np.array_equal(on_host(device, future.result()), elements[PART])


def test_a_read_for_a_stream_begins_at_once(small):
    device, store, elements = small
    future = store[PART].read(stream=device.stream())
    assert not future.is_deferred
    assert np.array_equal(on_host(device, future.result()), elements[PART])


def test_ctrl_c_ends_a_small_read_and_leaves_nothing_behind(small):
    device, store, elements = small
    backend = select_backend(parse_device(device.name))

    def interrupted():
        device.faults.before_wait = None
        raise KeyboardInterrupt

    for _ in range(SMALL_BUFFERS + 1):
        device.faults.before_wait = interrupted
        future = store[PART].read()
        with pytest.raises(KeyboardInterrupt):
            future.result()
        assert future.cancelled()
        assert backend.buffers.taken == 0
    assert np.array_equal(on_host(device, store[PART].read().result()), elements[PART])


def test_ctrl_c_while_a_small_read_gives_back_leaves_that_to_a_worker(small):
    device, store, elements = small
    backend = select_backend(parse_device(device.name))
    context = gpustore.Context({"device_cache_pool": {"total_bytes_limit": 1 << 20}})
    store = gpustore.open(store.spec(), device=device.name, context=context).result()
    presses, given_back = itertools.count(), threading.Event()

    def interrupted():
        if threading.current_thread() is not threading.main_thread():
            given_back.set()
        elif next(presses) < 2:
            raise KeyboardInterrupt

    device.faults.before_wait = interrupted
    future = store[PART].read()
    with pytest.raises(KeyboardInterrupt):
        future.result()
    assert next(presses) == 2
    assert given_back.wait(TIMEOUT_S)
    device.faults.before_wait = None
    del future
    assert np.array_equal(on_host(device, store[PART].read().result()), elements[PART])
    wait_until(lambda: not backend.buffers.taken)
    backend.release()
    gc.collect()  # The error and its frames hold the array of the first read.
    device.memory()  # Any operation frees dropped arrays.
    assert not device._memory.live()


def test_a_small_read_without_an_idle_buffer_begins_when_one_is_put_back(small):
    device, store, elements = small
    buffers = select_backend(parse_device(device.name)).buffers
    taken = [buffers.take(buffers, is_small=True) for _ in range(SMALL_BUFFERS)]
    future = store[PART].read()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    for buffer in taken:
        buffers.put(buffer)
    assert np.array_equal(on_host(device, future.result(timeout=TIMEOUT_S)), elements[PART])


def test_chunks_of_a_small_read_that_the_host_decodes_are_placed_by_it(small):
    device, store, elements = small
    device.faults.statuses = {(0, 2): 12}
    future = store[PART].read()
    assert np.array_equal(on_host(device, future.result()), elements[PART])
    assert future.statistics["retries"] == 1
    assert future.statistics["waits"] == 2


def test_several_tasks_decode_at_once_what_the_host_has_to(tmp_path, monkeypatch):
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}"}
    spec["metadata"] = {"shape": [1024, 1024], "chunks": [256, 256], "dtype": "<u4"}
    spec["metadata"]["compressor"] = {"id": "bz2", "level": 1}
    host = gpustore.open(spec, create=True).result()
    host[...] = np.arange(1024, dtype="u4")
    expected = host.read().result()
    calls, both = itertools.count(), threading.Barrier(2, timeout=20)
    decompressor = bz2.BZ2Decompressor

    def together():
        if next(calls) < 2:
            both.wait()
        return decompressor()

    monkeypatch.setattr(bz2, "BZ2Decompressor", together)
    context = gpustore.Context({"data_copy_concurrency": {"limit": 2}})
    with emulated() as device:
        there = gpustore.open(spec, device=device.name, context=context).result()
        future = there.read()
        assert np.array_equal(on_host(device, future.result()), expected)
        assert future.statistics["host_fallbacks"] == 16
        assert future.statistics["waits"] == 1
        del future, there
    assert next(calls) == 16
