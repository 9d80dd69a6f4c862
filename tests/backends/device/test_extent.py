"""Sizes of submissions, chosen from the figures of an H100 as the emulated device has them."""

import numpy as np
import pytest

import gpustore
from gpustore.backends.base import Chunks
from gpustore.backends.selection import select_backend
from gpustore.device.protocol import MemoryInfo
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.resources.device import parse_device
from gpustore.runtime.limits import Limits
from tests.matrix import each
from tests.on_device import emulated, on_host
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


ROWS = {
    "raw": (8192, 4096, 256, 32),
    "zstd": (4096, 4096, 272, 34),
    "zstd crc32c": (4096, 4096, 272, 34),
    "gzip": (4096, 4096, 1099, 137),
    "blosc": (2048, 2048, 512, 64),
}
"""Most chunks of a submission with the defaults, for the sizes of chunks in SIZES."""

SIZES = (16 << 10, 64 << 10, 1 << 20, 8 << 20)


@each("codec", CODECS)
def test_submissions_have_256_mib_stored_or_4096_streams_or_their_share_of_the_memory(
    device, codec
):
    assert device.memory().free_nbytes > 70 * GIB
    for chunk_nbytes, rows in zip(SIZES, ROWS[codec]):
        sink, chain = sink_of(device, codec, chunk_nbytes)
        extent = sink.extent
        assert extent.buffer_rows == pytest.approx(rows, rel=0.02), chunk_nbytes
        assert extent.values_nbytes == 256 << 20
        assert extent.device_nbytes <= 4 * GIB // 3
        if codec == "raw":
            assert extent.buffer_rows in (8192, (256 << 20) // chunk_nbytes)
            continue
        streams = sum(one.number for one in chain.device_streams(extent.buffer_rows))
        assert streams >= 4096 or extent.device_nbytes > 0.98 * 4 * GIB / 3


@each("codec", CODECS)
def test_all_memory_is_admitted_together(device, codec):
    for chunk_nbytes in SIZES:
        extent = extent_of(device, codec, chunk_nbytes)
        rows, outputs = extent.buffer_rows, {"raw": 0, "gzip": 1, "blosc": 2}.get(codec, 1 + 3.0625)
        buffer_nbytes = extent.buffer_nbytes(rows)
        decoded_nbytes = int(outputs * rows * chunk_nbytes)
        assert extent.device_nbytes == pytest.approx(buffer_nbytes + decoded_nbytes, rel=0.01)


def test_a_read_is_divided_among_the_submissions_that_run_at_once(device):
    for chunks, rows in ((100, 100), (300, 256), (900, 300), (3000, 512)):
        sink, _ = sink_of(device, "blosc", 1 << 20, chunks)
        assert sink.extent.buffer_rows == rows


@each("codec", CODECS)
@each("free_nbytes, budget", [(2 * GIB, 4 * GIB), (70 * GIB, GIB), (100 << 20, 64 << 20)])
def test_they_are_smaller_where_memory_is_short(device, monkeypatch, codec, free_nbytes, budget):
    memory = MemoryInfo(80 * GIB, free_nbytes)
    monkeypatch.setattr(type(device), "memory", lambda self: memory)
    extent = extent_of(device, codec, 1 << 20, device_in_flight_nbytes=budget)
    rows = extent.buffer_rows
    share = min(budget, free_nbytes // 2) / 3
    assert extent.device_nbytes <= share
    outputs = {"raw": 0, "gzip": 1, "blosc": 2}.get(codec, 1 + 3.0625)
    staged = min(1.0, 256 / rows)  # Mebibytes of the staging buffer for each chunk.
    most = 256 if codec == "raw" else 512
    assert rows == pytest.approx(
        min(most, share / ((outputs + staged) * (1 << 20))), rel=0.05, abs=1
    )


def test_explain_says_how_large_submissions_are(device, tmp_path):
    spec = {"driver": "zarr2", "kvstore": f"file://{tmp_path}/"}
    metadata = {"dtype": "<u2", "shape": (1 << 30,), "chunks": (1 << 19,)}
    metadata["compressor"] = {"id": "blosc", "cname": "lz4"}
    gpustore.open({**spec, "metadata": metadata}, create=True, device="cpu").result()
    for budget, chunks in ((4 * GIB, 512), (GIB, 113)):
        context = gpustore.Context({"limits": {"device_in_flight_nbytes": budget}})
        explanation = gpustore.open(spec, context=context, device=device.name).result().explain()
        found = explanation.submission
        assert found.chunks == chunks
        assert found.stored_nbytes == pytest.approx(min(chunks << 20, 256 << 20), rel=0.001)
        assert found.device_nbytes <= budget // 3
        line = f"submissions  up to {chunks} chunks and {found.stored_nbytes:,} stored bytes each, "
        assert line in str(explanation)
        assert explanation.to_json()["submission"]["chunks"] == chunks
    assert gpustore.open(spec, device="cpu").result().explain().submission is None
    assert gpustore.open(spec, device=device.name).result()[3:3].explain().submission is None


@pytest.mark.matrix("costly")
@each("codec", ("zstd", "blosc"))
def test_chunks_that_are_stored_as_next_to_nothing_are_bounded_by_what_they_decode_to(
    device, monkeypatch, tmp_path, codec
):
    shape, chunk = (64, 32768), (1, 32768)
    compressor = {"id": "zstd", "level": 1} if codec == "zstd" else {"id": "blosc", "cname": "lz4"}
    create = {"dtype": "<u2", "shape": shape, "chunks": chunk, "compressor": compressor}
    spec = {"driver": "zarr2", "kvstore": f"file://{tmp_path}/", "metadata": create}
    zeros = gpustore.open(
        {**spec, "store_data_equal_to_fill_value": True}, create=True, device="cpu"
    )
    zeros.result().write(np.zeros(shape, "<u2")).result()
    budget = 3 << 20
    context = gpustore.Context({"limits": {"device_in_flight_nbytes": budget}})
    store = gpustore.open(spec, context=context, device=device.name).result()
    assert not on_host(device, store.read().result()).any()
    taken, allocate = [], type(device).allocate

    def noted(self, nbytes, stream):
        found = allocate(self, nbytes, stream)
        taken.append(self._memory.live_nbytes)
        return found

    monkeypatch.setattr(type(device), "allocate", noted)
    future = store.read()
    elements = future.result()
    assert not on_host(device, elements).any()
    assert future.statistics["chunks_decoded_device"] == 64
    buffers = 3 * (1 << 20)  # The least that staging buffers have.
    assert max(taken) <= np.prod(shape) * 2 + budget + buffers


def test_a_chunk_that_does_not_fit_is_tried_alone(device):
    assert extent_of(device, "zstd", 1 << 20, device_in_flight_nbytes=1).buffer_rows == 1


def test_files_too_short_to_go_straight_to_the_device_are_fetched_by_the_core(device):
    sink, chain = sink_of(device, "raw", 128 << 10)
    assert sink.staging_parts(chain, lambda: None, 128 << 10) is not None
    assert sink.staging_parts(chain, lambda: None, None) is None, "in a shard, they may go"
    sink, chain = sink_of(device, "raw", 1 << 20)
    assert sink.staging_parts(chain, lambda: None, 1 << 20) is None
