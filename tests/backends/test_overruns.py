"""Decoders that write beyond their outputs: noticed, and no element that is read is wrong.

The emulated device changes bytes around the output of a stream once all streams of the call are
decoded, as a decoder that has gone astray may. All chunks have 3000 bytes, so that there are 40
between their outputs: up to the next multiple of 16, and 32 at the least.
"""

import numpy as np
import pytest

import gpustore
from gpustore.codec_chain.device_streams import destinations
from gpustore.device.command_list import CommandList
from gpustore.device.kernels.block import stream_launches
from tests.device_memory import require_kernels
from tests.device_values import decode_on
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host

pytestmark = needs_compiler

COUNT, NBYTES, GUARD_NBYTES, FRONT_NBYTES = 8, 3000, 40, 32
_BLOSC = {"id": "blosc", "clevel": 5, "blocksize": 0}
CODECS = {
    "zstd": {"id": "zstd", "level": 1},
    "zlib": {"id": "zlib", "level": 1},
    "gzip": {"id": "gzip", "level": 1},
    "lz4": {"id": "lz4", "acceleration": 1},
    "blosc zstd": {**_BLOSC, "cname": "zstd", "shuffle": 0},
    "blosc zlib shuffled": {**_BLOSC, "cname": "zlib", "shuffle": 1},
    "blosc zstd bit-shuffled": {**_BLOSC, "cname": "zstd", "shuffle": 2},
}
SETTINGS = [("early_frees", 0), ("random", 1), ("random", 2)]

# Chunk whose decoder goes astray -> bytes behind (before) its output, chunks that may be damaged.
OVERRUNS = {
    "one byte": (3, 1, {3, 4}),
    "into the guard": (3, 17, {3, 4}),
    "through the guard": (3, GUARD_NBYTES + 1, {3, 4}),
    "to the next guard": (3, GUARD_NBYTES + NBYTES, {3, 4}),
    "into the next guard": (3, GUARD_NBYTES + NBYTES + 1, {3, 4, 5}),
    "across all behind it": (1, 6 * (GUARD_NBYTES + NBYTES) + 5, {1, 2, 3, 4, 5, 6, 7}),
    "behind the last": (7, GUARD_NBYTES, {7}),
    "one byte before": (3, -1, {2, 3}),
    "before the first": (0, -FRONT_NBYTES, {0}),
    "through the guard before": (3, -GUARD_NBYTES - 9, {2, 3}),
}


def created(path, compressor):
    """Chunks that are all compressed; their elements."""
    metadata = {"shape": [COUNT * NBYTES // 2], "chunks": [NBYTES // 2], "dtype": "<u2"}
    spec = {"driver": "zarr", "kvstore": f"file://{path}"}
    store = gpustore.open(
        {**spec, "metadata": {**metadata, "compressor": compressor}}, create=True
    ).result()
    elements = (np.arange(COUNT * NBYTES // 2) // 7 % 50).astype("<u2")
    store[...] = elements
    return elements


def read(device, path):
    """Elements, and what reading them has counted."""
    future = gpustore.open(f"file://{path}", device=device.name).result().read()
    found = on_host(device, future.result())
    return found, future.statistics


def check(tmp_path, name, order, seed):
    elements = created(tmp_path, CODECS[name])
    streams = 2 if name == "blosc zlib shuffled" else 1  # Of each chunk, side by side.
    for chunk, extra, damaged in OVERRUNS.values():
        with emulated(order, seed=seed) as device:
            outermost = chunk * streams + (streams - 1 if extra > 0 else 0)
            device.faults.overruns = {(0, outermost): extra}
            found, statistics = read(device, tmp_path)
            assert device.decompressed == [COUNT * streams]
        assert np.array_equal(found, elements)
        assert statistics["retries"] == statistics["host_fallbacks"] == len(damaged)
        assert statistics["chunks_decoded_device"] == COUNT - len(damaged)


@pytest.mark.matrix("costly")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=() if name in ("zstd", "blosc zlib shuffled") else pytest.mark.long
        )
        for name in CODECS
    ],
)
def test_what_may_be_damaged_is_read_by_the_host(tmp_path, name):
    check(tmp_path, name, "lazy", 0)


@pytest.mark.parametrize(("order", "seed"), SETTINGS[1:2])
def test_in_other_orders(tmp_path, order, seed):
    check(tmp_path, "blosc zlib shuffled", order, seed)


@pytest.mark.long
@pytest.mark.parametrize(("order", "seed"), SETTINGS)
@pytest.mark.parametrize("name", CODECS)
def test_all_codecs_in_other_orders(tmp_path, name, order, seed):
    check(tmp_path, name, order, seed)


def test_two_decoders_at_once(tmp_path):
    elements = created(tmp_path, CODECS["zstd"])
    with emulated() as device:
        device.faults.overruns = {(0, 1): 2, (0, 5): -3}
        found, statistics = read(device, tmp_path)
    assert np.array_equal(found, elements)
    assert statistics["retries"] == 4


def test_a_chunk_that_the_host_cannot_decode_either_is_an_error_and_its_neighbour_is_not(tmp_path):
    elements = created(tmp_path, CODECS["zlib"])
    path = tmp_path / "3"
    value = bytearray(path.read_bytes())
    value[10:14] = bytes(4)
    path.write_bytes(value)
    with emulated() as device:
        device.faults.nonsense = {(0, 3)}
        device.faults.overruns = {(0, 3): GUARD_NBYTES + 1}
        store = gpustore.open(f"file://{tmp_path}", device=device.name).result()
        with pytest.raises(gpustore.CorruptChunkError) as caught:
            store.read().result()
        assert caught.value.key == str(path)
        del caught
        rest = on_host(device, store[4 * NBYTES // 2 :].read().result())
        assert np.array_equal(rest, elements[4 * NBYTES // 2 :])


def test_unseen_damage_is_what_guards_are_for(tmp_path, monkeypatch):
    """Without them the neighbour is wrong, and nobody says so."""
    elements = created(tmp_path, CODECS["zstd"])
    monkeypatch.setattr(CommandList, "guard", lambda *_: None)
    with emulated() as device:
        device.faults.overruns = {(0, 3): GUARD_NBYTES + 1}
        found, statistics = read(device, tmp_path)
    assert (found != elements).tolist().index(True) == 4 * NBYTES // 2
    assert not statistics["retries"]


# What follows also runs on a GPU, where a kernel does what no library is asked to do.


@pytest.mark.parametrize(
    ("begin", "nbytes", "failed"),
    [
        (0, 300, []),
        (0, 301, [1, 2]),
        (-1, 300, [0, 1]),
        (0, 300 + 36 + 1, [1, 2]),
        (0, 2 * 300 + 36 + 1, [1, 2, 3]),
        (-337, 2 * 300 + 36 + 2, [0, 1, 2]),
    ],
)
def test_a_kernel_that_writes_around_its_output_is_noticed(device, begin, nbytes, failed):
    require_kernels(device)

    def record(commands, device):
        dst = destinations(commands, np.full(4, 300), commands.rows)
        start = int(dst.address[1]) + begin
        commands.launch_tables(stream_launches(commands.values.address[:1], [start], [nbytes]))

    found = decode_on(device, record, [bytes(1000)] * 4)
    assert sorted(found.failed) == failed
    assert found.launches == 3
