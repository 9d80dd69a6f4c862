"""Sizes of submissions, chosen from the figures of an H100 as the emulated device has them."""

import pytest

from gpustore.backends.base import Chunks
from gpustore.backends.selection import select_backend
from gpustore.device.protocol import MemoryInfo
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.resources.device import parse_device
from gpustore.runtime.limits import Limits
from tests.matrix import each
from tests.on_device import emulated
from tests.pipelines.arrays import BYTES, make_array

GIB = 1 << 30

BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0}
CODECS = {
    "raw": (),
    "zstd": (NamedConfiguration("zstd", {"level": 1, "checksum": False}),),
    "zstd crc32c": (
        NamedConfiguration("zstd", {"level": 1, "checksum": False}),
        NamedConfiguration("crc32c"),
    ),
    "gzip": (NamedConfiguration("gzip", {"level": 1}),),
    "blosc": (NamedConfiguration("blosc", BLOSC),),
}


@pytest.fixture
def device():
    with emulated() as device:
        yield device


def sink_of(device, codec, chunk_nbytes, chunks=10**6, **limits):
    """Sink of a read of many chunks, and their chain."""
    backend = select_backend(parse_device(device.name))
    shape = (chunk_nbytes // 2,)
    array = make_array(shape, shape, codecs=(BYTES, *CODECS[codec]), dtype="uint16")
    some = [Chunks(array.chain, chunks, chunks)]
    return backend.sink(some, 0, [], Limits(**limits), lambda *_: None), array.chain


def extent_of(device, codec, chunk_nbytes, **limits):
    """Sizes of the submissions of a read of many chunks."""
    return sink_of(device, codec, chunk_nbytes, **limits)[0].extent


@each("codec", CODECS)
def test_submissions_have_4096_streams_or_256_mib(device, codec):
    assert device.memory().free_nbytes > 70 * GIB
    for chunk_nbytes in (1 << 10, 16 << 10, 64 << 10):
        extent = extent_of(device, codec, chunk_nbytes)
        assert extent.buffer_rows >= 4096, chunk_nbytes
        assert extent.rows >= extent.buffer_rows
    for chunk_nbytes in (1 << 20, 8 << 20):
        extent = extent_of(device, codec, chunk_nbytes)
        assert extent.buffer_rows * chunk_nbytes == 256 << 20


@each("codec", CODECS)
@each("free_nbytes, budget", [(2 * GIB, 4 * GIB), (70 * GIB, GIB), (100 << 20, 64 << 20)])
def test_they_are_smaller_where_memory_is_short(device, monkeypatch, codec, free_nbytes, budget):
    memory = MemoryInfo(80 * GIB, free_nbytes)
    monkeypatch.setattr(type(device), "memory", lambda self: memory)
    extent = extent_of(device, codec, 1 << 20, device_in_flight_nbytes=budget)
    rows = extent.buffer_rows
    share = min(budget, free_nbytes // 2) / 3
    outputs = {"raw": 1, "gzip": 2, "blosc": 3}.get(codec, 2 + 3.0625)
    assert rows == pytest.approx(min(256, share / (outputs * (1 << 20))), rel=0.05, abs=1)


def test_a_chunk_that_does_not_fit_is_tried_alone(device):
    assert extent_of(device, "zstd", 1 << 20, device_in_flight_nbytes=1).buffer_rows == 1


def test_files_too_short_to_go_straight_to_the_device_are_fetched_by_the_core(device):
    sink, chain = sink_of(device, "raw", 128 << 10)
    assert sink.staging_parts(chain, lambda: None, 128 << 10) is not None
    assert sink.staging_parts(chain, lambda: None, None) is None, "in a shard, they may go"
    sink, chain = sink_of(device, "raw", 1 << 20)
    assert sink.staging_parts(chain, lambda: None, 1 << 20) is None
