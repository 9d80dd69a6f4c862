"""Who decodes a read: the table, and that reads into a device heed it with all streams in view."""

import numpy as np
import pytest

import gpustore
from gpustore.codec_chain.decoder_choice import TABLE, Streams, choose, joined
from gpustore.resources.gpu_decode_choice import AUTO, DecodeRule
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host

H100 = 132


@pytest.mark.parametrize("codec", TABLE)
def test_few_long_streams_are_for_the_host_and_many_or_short_ones_for_the_device(codec):
    assert choose((Streams(codec, 1, 1 << 30),), H100, AUTO).by_host
    assert not choose((Streams(codec, 10_000, 1 << 30),), H100, AUTO).by_host
    assert not choose((Streams(codec, 1, 1000),), H100, AUTO).by_host
    assert not choose((Streams(codec, 0, 0),), H100, AUTO).by_host


def test_the_number_of_streams_is_compared_with_the_multiprocessors():
    streams = (Streams("zstd", 40, 4 << 20),)
    assert choose(streams, 132, AUTO).by_host
    assert not choose(streams, 80, AUTO).by_host


def test_one_codec_of_few_long_streams_is_enough_for_the_host():
    few, many = Streams("zstd", 3, 4 << 20), Streams("lz4", 3000, 64 << 10)
    choice = choose(
        (
            many,
            few,
        ),
        H100,
        AUTO,
    )
    assert choice.by_host
    assert choice.reason.startswith("zstd: 3 streams of up to 4194304 bytes")


def test_streams_of_several_chunk_shapes_count_together():
    found = joined([Streams("zstd", 40, 4 << 20), Streams("lz4", 1, 1), Streams("zstd", 40, 99)])
    assert found == [Streams("zstd", 80, 4 << 20), Streams("lz4", 1, 1)]


@pytest.mark.parametrize("side", ["device", "host"])
def test_the_rule_may_name_a_side(side):
    for streams in (Streams("zstd", 1, 1 << 30), Streams("zstd", 10_000, 1000)):
        choice = choose((streams,), H100, DecodeRule(side))
        assert choice.by_host == (side == "host")
        assert choice.reason == f'gpu_decode_choice is "{side}"'


def test_thresholds_of_the_rule_replace_those_of_the_table():
    streams = (Streams("zstd", 100, 200_000),)
    assert not choose(streams, H100, AUTO).by_host
    assert not choose(streams, H100, DecodeRule(min_streams=101)).by_host
    assert not choose(streams, H100, DecodeRule(long_stream_nbytes=100_000)).by_host
    assert choose(streams, H100, DecodeRule(min_streams=101, long_stream_nbytes=100_000)).by_host


# --------------------------------------------------------------------------- reads

ROWS, CHUNK = 66, 5 << 18
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
BLOSC = {
    "name": "blosc",
    "configuration": {
        "cname": "lz4",
        "clevel": 5,
        "shuffle": "shuffle",
        "typesize": 4,
        "blocksize": 0,
    },
}


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    """66 chunks of 1.25 MiB, all but the first elements zeros, as zstd and as Blosc frames."""
    folder = tmp_path_factory.mktemp("volume")
    elements = np.zeros((ROWS, CHUNK // 4), "u4")
    elements[:, :1000] = np.arange(1000)
    for name, codec in (("zstd", ZSTD), ("blosc", BLOSC)):
        create(folder / name, elements.shape, [1, CHUNK // 4], codec)[...] = elements
    return folder


def create(path, shape, chunk, codec):
    return gpustore.open(
        {
            "driver": "zarr3",
            "kvstore": f"file://{path}",
            "metadata": {
                "shape": list(shape),
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
                "data_type": "uint32",
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, codec],
            },
        },
        create=True,
        device="cpu",
    ).result()


def read(path, device, part, rule="auto"):
    """Read a part into a device; return statistics and explanation, which must agree."""
    context = gpustore.Context({"gpu_decode_choice": rule})
    store = gpustore.open(f"file://{path}", device=device.name, context=context).result()[part]
    explanation, future = store.explain(), store.read()
    found = on_host(device, future.result())
    expected = gpustore.open(f"file://{path}", device="cpu").result()[part].read().result()
    assert np.array_equal(found, expected)
    for name in ("few_stream_reads", "chunks_decoded_device", "host_fallbacks"):
        least, most = explanation.counts[name]
        assert least <= future.statistics[name] <= most, name
    assert (explanation.host_reason is None) == (explanation.device_reason is not None)
    assert (explanation.host_reason or explanation.device_reason) in str(explanation)
    return future.statistics, explanation


@pytest.mark.matrix("costly")
@needs_compiler
def test_all_streams_of_a_read_are_in_view(volume):
    """Submissions may have fewer than 66 streams, and threads fewer still."""
    with emulated() as device:
        statistics, explanation = read(volume / "zstd", device, np.s_[:, 900:1100])
        assert device.counts["memory"] == 2  # A slow question: of the explanation, and of the read.
        assert statistics["chunks_decoded_device"] == ROWS
        assert statistics["host_fallbacks"] == statistics["few_stream_reads"] == 0
        assert explanation.device_reason == "zstd: 66 streams of up to 1310720 bytes, at least 66"


@needs_compiler
def test_a_read_of_few_long_streams_is_decoded_by_the_host(volume):
    with emulated() as device:
        statistics, explanation = read(volume / "zstd", device, np.s_[:5])
        assert statistics["chunks_decoded_device"] == 0
        assert statistics["host_fallbacks"] == 5
        assert statistics["few_stream_reads"] == 1
        assert explanation.host_reason == (
            "zstd: 5 streams of up to 1310720 bytes, fewer than 66 of more than 1048576 bytes"
        )
        assert [one.decoder for one in explanation.codecs] == ["host"]


@needs_compiler
def test_blocks_of_frames_are_streams(volume):
    with emulated() as device:
        statistics, explanation = read(volume / "blosc", device, np.s_[:5])
        assert statistics["chunks_decoded_device"] == 5
        # Of a chunk two blocks of four streams, and one that is too short to be split.
        assert explanation.device_reason == (
            "lz4: 45 streams of up to 262144 bytes, none of more than 1048576 bytes"
        )


@needs_compiler
@pytest.mark.parametrize(
    ("rule", "by_host"),
    [
        ("device", False),
        ("host", True),
        ({"min_streams": 3}, False),
        ({"min_streams": 6}, True),
        ({"long_stream_nbytes": CHUNK}, False),
    ],
)
def test_the_context_resource_decides(volume, rule, by_host):
    with emulated() as device:
        statistics, _ = read(volume / "zstd", device, np.s_[:5], rule)
        assert statistics["host_fallbacks"] == (5 if by_host else 0)
        assert statistics["few_stream_reads"] == by_host


@pytest.mark.matrix("costly")
@needs_compiler
def test_crops_and_batches_are_chosen_for_together(volume):
    with emulated() as device:
        store = gpustore.open(f"file://{volume}/zstd", device=device.name).result()
        crops = store.read_many([[i, 0] for i in range(70) if i < ROWS], (1, 8))
        assert crops.result().shape == (ROWS, 1, 8)
        assert crops.statistics["chunks_decoded_device"] == ROWS
        few = store.read_many([[0, 0], [1, 0]], (1, 8))
        few.result()
        assert few.statistics["few_stream_reads"] == 1
        batch = gpustore.Batch()
        reads = [store[i].read(batch=batch) for i in range(2)]
        (explanation,) = batch.explain()
        assert explanation.counts["few_stream_reads"] == (1, 1)
        batch.submit()
        assert [one.result().shape for one in reads] == [(CHUNK // 4,)] * 2
        assert sum(one.statistics["few_stream_reads"] for one in reads) >= 1
        del store, crops, few, reads


def test_nothing_is_chosen_where_nothing_is_decoded(tmp_path):
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}"}
    store = gpustore.open(spec, create=True, dtype="uint8", shape=[100]).result()
    store[...] = 3
    with emulated() as device:
        context = gpustore.Context({"gpu_decode_choice": "host"})
        there = gpustore.open(f"file://{tmp_path}", device=device.name, context=context).result()
        future = there.read()
        assert on_host(device, future.result()).sum() == 300
        assert future.statistics["few_stream_reads"] == 0
        assert there.explain().device_reason is None
        del there, future
