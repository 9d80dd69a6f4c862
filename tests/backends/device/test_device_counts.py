"""Launches, copies and waits of a read do not grow with its chunks, whatever the array looks like.

Each read is done of an array of 4 chunks and of one of 64, which both fit in one submission; the
counts must be the same, to the last one.
"""

import itertools

import numpy as np
import pytest

import gpustore
from tests.on_device import emulated, on_host

pytestmark = pytest.mark.long
"""Ten seconds: a stage of its own in .ci/run."""

CHUNK = 16
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
CRC32C = {"name": "crc32c"}


def v2(compressor, **metadata):
    return {"chunks": [CHUNK, CHUNK], "dtype": "<u4", "compressor": compressor, **metadata}


def v3(*codecs, chunk=CHUNK, dtype="uint32"):
    grid = {"name": "regular", "configuration": {"chunk_shape": [chunk, chunk]}}
    return {"chunk_grid": grid, "data_type": dtype, "codecs": [*codecs]}


def shard(chunk, *codecs):
    configuration = {
        "chunk_shape": [chunk, chunk],
        "codecs": [*codecs],
        "index_codecs": [LITTLE, CRC32C],
    }
    return {"name": "sharding_indexed", "configuration": configuration}


def blosc(cname, shuffle):
    return {"id": "blosc", "cname": cname, "clevel": 5, "shuffle": shuffle, "blocksize": 0}


TURNED = {"name": "transpose", "configuration": {"order": [1, 0]}}

ARRAYS = {
    "raw": v2(None),
    "raw F": v2(None, order="F"),
    "raw big-endian": v2(None, dtype=">u4"),
    "zlib": v2({"id": "zlib", "level": 1}),
    "gzip": v2({"id": "gzip", "level": 1}),
    "zstd": v2({"id": "zstd", "level": 1}),
    "zstd F": v2({"id": "zstd", "level": 1}, order="F"),
    "lz4": v2({"id": "lz4", "acceleration": 1}),
    **{
        f"blosc-{cname}-{shuffle}": v2(blosc(cname, shuffle))
        for cname in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
        for shuffle in (0, 1, 2)
    },
    "zstd bool": v2({"id": "zstd", "level": 1}, dtype="|b1"),
    "zstd int4": v3({"name": "bytes"}, ZSTD, dtype="int4"),
    "crc32c": v3(LITTLE, CRC32C),
    "zstd crc32c": v3(LITTLE, ZSTD, CRC32C),
    "transpose zstd": v3(TURNED, LITTLE, ZSTD),
    "shards of one chunk": v3(shard(CHUNK, LITTLE, ZSTD)),
    "shards": v3(shard(CHUNK, LITTLE, ZSTD), chunk=2 * CHUNK),
    "shards of raw": v3(shard(CHUNK, LITTLE), chunk=2 * CHUNK),
    "nested shards": v3(shard(CHUNK, shard(CHUNK // 2, LITTLE, ZSTD)), chunk=2 * CHUNK),
}


def ask_alone(store):
    return [store.read()]


def ask_f(store):
    return [store.read(order="F")]


def ask_crops(store):
    n = store.shape[0] // CHUNK - 1
    starts = [(CHUNK * i + 4, CHUNK * j + 8) for i, j in itertools.product(range(n), repeat=2)]
    return [store.read_many(starts, (CHUNK, CHUNK))]


def ask_small(store):
    starts = range(2, store.shape[0] - 8, CHUNK)
    return [store.read_many(list(itertools.product(starts, repeat=2)), (3, 3))]


def ask_batch(store):
    batch = gpustore.Batch()
    views = [
        store[i : i + CHUNK, j : j + CHUNK]
        for i, j in itertools.product(range(0, store.shape[0], CHUNK), repeat=2)
    ]
    futures = [view.read(batch=batch) for view in views]
    batch.submit()
    return futures


def ask_unlike(store):
    batch = gpustore.Batch()
    views = [store, store[:, ::-1], store[::4], store[:8, 8:]]
    futures = [view.read(batch=batch) for view in views]
    batch.submit()
    return futures


READS = {
    "alone": ask_alone,
    "F": ask_f,
    "crops": ask_crops,
    "small": ask_small,
    "batch": ask_batch,
    "unlike": ask_unlike,
}


def created(path, chunks_a_side, metadata):
    """An array of so many chunks along both dimensions, in a folder named by its size."""
    size = CHUNK * chunks_a_side
    path = path / str(size)
    driver = "zarr" if "chunks" in metadata else "zarr3"
    spec = {"driver": driver, "kvstore": f"file://{path}"}
    metadata = {"shape": [size, size], **metadata}
    store = gpustore.open({**spec, "metadata": metadata}, create=True).result()
    # Chunks differ by one number, so that all of them are encoded alike.
    tile = np.arange(CHUNK**2).reshape(CHUNK, CHUNK) // 5 % 7
    elements = np.tile(tile, (chunks_a_side, chunks_a_side))
    elements[::CHUNK, ::CHUNK] += np.arange(chunks_a_side**2).reshape(chunks_a_side, -1)
    store[...] = elements.astype(store.dtype.numpy_dtype)
    return store


def counted(path, device, ask, *, by_host=False):
    """What a read of the device counts; it is right, and the device decodes all or nothing."""
    there = gpustore.open(f"file://{path}", device=device.name).result()
    host = gpustore.open(f"file://{path}", device="cpu").result()
    before = gpustore.statistics.snapshot()
    found = [future.result() for future in ask(there)]
    after = gpustore.statistics.snapshot()
    for one, other in zip(found, ask(host), strict=True):
        assert np.array_equal(on_host(device, one), other.result())
    counts = {name: after[name] - before.get(name, 0) for name in after}
    assert bool(counts.get("host_fallbacks")) == by_host
    assert not counts.get("retries")
    return counts


NAMES = ("launches", "copies", "waits")


@pytest.mark.parametrize("array", ARRAYS)
def test_counts_are_those_of_few_chunks(tmp_path, array):
    for chunks_a_side in (2, 8):
        created(tmp_path, chunks_a_side, ARRAYS[array])
    with emulated() as device:
        for read, ask in READS.items():
            few, many = (
                counted(tmp_path / str(size), device, ask) for size in (2 * CHUNK, 8 * CHUNK)
            )
            assert {n: few.get(n) for n in NAMES} == {n: many.get(n) for n in NAMES}, read
            assert many["waits"] == 1, read
            assert many["copies"] == (1 if "raw" in array else 2), read
            assert many["launches"] > 0
            if read != "small" and "raw" not in array:
                assert many["chunks_decoded_device"] >= 64


@pytest.mark.parametrize("codec", ["zlib", "bz2"])
def test_chunks_that_the_host_decodes_share_a_submission_too(tmp_path, codec):
    """Several tasks decode them, and fill one staging buffer."""
    metadata = {"shape": [1024, 1024], "chunks": [256, 256], "dtype": "<u4"}
    crops = [(0, 0), (700, 700), (500, 300), (70, 100), (300, 700), (0, 500), (720, 0)]
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}"}
    compressor = {"id": codec, "level": 1}
    spec["metadata"] = {**metadata, "compressor": compressor}
    store = gpustore.open(spec, create=True).result()
    store[...] = np.arange(1024, dtype="u4")
    with emulated() as device:
        for ask in (ask_alone, lambda store: [store.read_many(crops, (300, 300))]):
            counts = counted(tmp_path, device, ask, by_host=codec == "bz2")
            assert counts["waits"] == 1
