"""Arrays of reads that the caller's stream may use before the host knows that they are right."""

import asyncio
import threading
from contextlib import contextmanager

import numcodecs
import numpy as np
import pytest

import gpustore
from tests.emulator.queue import ORDERS
from tests.on_device import emulated, on_host

SHAPE = (64, 48)


@pytest.fixture(params=ORDERS)
def device(request):
    with emulated(request.param, seed=5) as device:
        yield device


@pytest.fixture
def lazy():
    with emulated() as device:
        yield device


def create(path, device):
    metadata = {
        "shape": list(SHAPE),
        "chunks": [16, 16],
        "dtype": "<u2",
        "compressor": {"id": "zstd", "level": 1},
    }
    spec = {"driver": "zarr", "kvstore": f"file://{path}", "metadata": metadata}
    host = gpustore.open(spec, create=True).result()
    elements = np.random.default_rng(1).integers(0, 99, SHAPE).astype(np.uint16)
    host[...] = elements
    there = gpustore.open(f"file://{path}", device=device.name).result()
    return elements, there


@contextmanager
def busy(device):
    """A device whose work the threads of a read do not see the end of."""
    end = threading.Event()
    own = threading.current_thread()

    def wait():
        if threading.current_thread() is not own:
            assert end.wait(60)

    device.faults.before_wait = wait
    try:
        yield end
    finally:
        end.set()
        device.faults.before_wait = None


def test_the_stream_of_a_read_uses_the_array_before_the_host_has_verified_it(tmp_path, device):
    elements, there = create(tmp_path, device)
    stream = device.stream()
    with busy(device) as end:
        future = there.read(stream=stream)
        found = future.on_stream()
        assert not future.done()
        assert np.array_equal(on_host(device, found, stream), elements)
        assert not future.done()
        end.set()
        assert future.result() is found
        assert future.on_stream() is found


def test_the_current_stream_is_the_default(tmp_path, lazy):
    elements, there = create(tmp_path, lazy)
    with busy(lazy):
        future = there.read()
        found = future.on_stream()
        assert not future.done()
        assert np.array_equal(on_host(lazy, found, lazy.caller_stream()), elements)


def test_crops_and_arrays_of_the_caller_are_early_too(tmp_path, lazy):
    elements, there = create(tmp_path, lazy)
    out = there[:16].read().result()
    stream = lazy.stream()
    with busy(lazy):
        first = there[16:32].read(out=out, stream=stream)
        assert first.on_stream() is out
        assert np.array_equal(on_host(lazy, out, stream), elements[16:32])
        second = there.read_many([[3, 4], [20, 30]], [8, 9], stream=stream)
        crops = on_host(lazy, second.on_stream(), stream)
        assert np.array_equal(crops[1], elements[20:28, 30:39])
        assert not first.done()
        assert not second.done()


def test_streams_that_the_device_did_not_decode_are_an_error_afterwards(tmp_path, lazy):
    elements, there = create(tmp_path, lazy)
    lazy.faults.statuses = {(lazy.counts["decompress"], 2): 12}
    stream = lazy.stream()
    with busy(lazy) as end:
        future = there.read(stream=stream)
        found = future.on_stream()
        end.set()
        with pytest.raises(
            gpustore.DeviceError, match=r"did not decode 1 chunks.*repeat that work"
        ):
            future.result()
    assert future.statistics["retries"] == 1
    assert np.array_equal(on_host(lazy, found), elements)


def test_failures_that_are_known_are_repaired_before_the_array_is_given_out(tmp_path, lazy):
    elements, there = create(tmp_path, lazy)
    lazy.faults.statuses = {(lazy.counts["decompress"], 2): 12}
    future = there.read(stream=lazy.stream())
    future.exception()
    assert np.array_equal(on_host(lazy, future.on_stream()), elements)


def test_values_that_the_host_decodes_are_waited_for(tmp_path, lazy):
    """Of several frames, which the headers tell."""
    elements, there = create(tmp_path, lazy)
    codec = numcodecs.Zstd()
    half = elements[:16, :16].tobytes()
    frames = codec.encode(half[:256]) + codec.encode(half[256:])
    (tmp_path / "0.0").write_bytes(frames)
    stream = lazy.stream()
    found = there.read(stream=stream).on_stream()
    assert np.array_equal(on_host(lazy, found, stream), elements)


def test_errors_before_the_device_has_the_work_are_raised_at_once(tmp_path, lazy):
    create(tmp_path, lazy)
    spec = {
        "driver": "zarr",
        "kvstore": f"file://{tmp_path}",
        "fill_missing_data_reads": False,
        "context": {"device": lazy.name},
    }
    there = gpustore.open(spec).result()
    (tmp_path / "1.1").unlink()
    with pytest.raises(gpustore.NotFoundError, match=r"1[.]1"):
        there.read().on_stream()


def test_a_damaged_chunk_is_its_own_error(tmp_path, lazy):
    _, there = create(tmp_path, lazy)
    (tmp_path / "1.1").write_bytes(b"not zstd")
    future = there.read()
    with pytest.raises(gpustore.CorruptChunkError, match=r"1[.]1"):
        future.on_stream()
    with pytest.raises(gpustore.CorruptChunkError, match=r"1[.]1"):
        future.result()


def test_cancelled_reads_and_reads_of_a_batch_have_no_early_array(tmp_path, lazy):
    elements, there = create(tmp_path, lazy)
    future = there.read()
    future.cancel()
    with pytest.raises(asyncio.CancelledError):
        future.on_stream()
    batch = gpustore.Batch()
    later = there.read(batch=batch)
    batch.submit()
    assert np.array_equal(on_host(lazy, later.on_stream()), elements)


def test_host_memory_has_no_streams(tmp_path, lazy):
    elements, _ = create(tmp_path, lazy)
    store = gpustore.open(f"file://{tmp_path}").result()
    assert np.array_equal(store.read().on_stream(), elements)
    assert gpustore.Future(3).on_stream() == 3
