"""Arrays whose reads are explained, and the comparison with what reads count, for tests."""

import math

import numpy as np

import gpustore
from gpustore.explain.explanation import CodecPath
from gpustore.runtime.statistics import COUNTERS

SHAPE = (37, 41)
BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
V2 = {
    "raw": None,
    "zlib": {"id": "zlib", "level": 1},
    "gzip": {"id": "gzip", "level": 1},
    "zstd": {"id": "zstd", "level": 1},
    "lz4": {"id": "lz4", "acceleration": 1},
    "blosc-lz4": BLOSC,
    "blosc-zstd": {**BLOSC, "cname": "zstd", "shuffle": 2},
    "blosc-blosclz": {**BLOSC, "cname": "blosclz", "shuffle": 0},
    "bz2": {"id": "bz2", "level": 1},
}
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
CRC = {"name": "crc32c"}
V3 = {
    "v3-raw": [LITTLE],
    "v3-crc32c": [LITTLE, CRC],
    "v3-zstd-crc32c": [LITTLE, ZSTD, CRC],
    "v3-transposed": [{"name": "transpose", "configuration": {"order": [1, 0]}}, LITTLE, ZSTD],
}
SHARDED = {f"shards-{name}": codecs for name, codecs in V3.items()}
CODECS = {**V2, **V3, **SHARDED}

SELECTIONS = {
    "whole": np.s_[:, :],
    "row": np.s_[5, :],
    "element": np.s_[5, 7],
    "crop": np.s_[3:30, 9:12],
    "steps": np.s_[30:2:-1, 40:1:-4],
    "points": np.s_[[3, 36, 3], :],
    "missing": np.s_[25:32, :],
    "partly missing": np.s_[16:33, 20:],
    "empty": np.s_[4:4, :],
}


def metadata_of(name, dtype="<u4"):
    if name in V2:
        return "zarr", {
            "shape": list(SHAPE),
            "chunks": [8, 9],
            "dtype": dtype,
            "compressor": V2[name],
        }
    codecs = CODECS[name]
    if name in SHARDED:
        sharding = {"chunk_shape": [4, 3], "codecs": codecs, "index_codecs": [LITTLE, CRC]}
        codecs = [{"name": "sharding_indexed", "configuration": sharding}]
    return "zarr3", {
        "shape": list(SHAPE),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 9]}},
        "data_type": "uint32",
        "codecs": codecs,
    }


def create(path, name, dtype="<u4"):
    """An array on disk; the chunks of rows 24 to 31 are missing, and some inner ones."""
    driver, metadata = metadata_of(name, dtype)
    spec = {"driver": driver, "kvstore": f"file://{path}", "metadata": metadata}
    store = gpustore.open(spec, create=True).result()
    elements = np.random.default_rng(7).integers(0, 2, SHAPE).astype(dtype)
    elements[4:8, 3:6] = 0
    store[:24] = elements[:24]
    store[32:] = elements[32:]
    return spec


def check(store):
    """Compare an explanation with the read it is of."""
    explanation = uncounted(store.explain)
    compare(explanation, [store.read()], store.device)
    assert explanation.arrays == explanation.together == 1
    return explanation


def check_many(store, starts, shape):
    """The same for crops."""
    explanation = uncounted(lambda: store.explain_many(starts, shape))
    compare(explanation, [store.read_many(starts, shape)], store.device)
    assert (explanation.arrays, explanation.together) == (1, len(starts))
    return explanation


def check_batch(views, orders=("C", "F")):
    """The same for the reads of a batch of one array that share their chunks."""
    batch = gpustore.Batch()
    reads = [view.read(batch=batch, order=orders[i % len(orders)]) for i, view in enumerate(views)]
    (explanation,) = uncounted(batch.explain)
    batch.submit()
    compare(explanation, reads, views[0].device)
    assert explanation.arrays == explanation.together == len(views)
    return explanation


def uncounted(explain):
    before = gpustore.statistics.snapshot()
    explanation = explain()
    assert gpustore.statistics.snapshot() == before
    return explanation


def compare(explanation, reads, device):
    """Compare an explanation with reads that share their statistics."""
    results = [read.result() for read in reads]
    found = reads[0].statistics
    assert explanation.counts is not None
    assert explanation.unknown == ()
    for name in COUNTERS:
        assert explanation.counts.get(name, 0) == found[name], name
    assert explanation.chunks == found["chunks_planned"]
    assert explanation.bytes_decoded == found["bytes_decoded"]
    assert explanation.bytes_fetched == found["bytes_fetched"]
    assert explanation.bytes_returned == sum(
        math.prod(result.shape) * result.dtype.itemsize for result in results
    )
    shapes = {tuple(result.shape) for result in results}
    assert explanation.shape == (shapes.pop() if len(shapes) == 1 else None)
    if device == "cpu":
        assert explanation.sub_batches == explanation.launches_at_most == 0
        assert not explanation.counts.keys() & {"launches", "copies", "waits"}
    else:
        assert explanation.sub_batches == found["waits"]
        assert explanation.launches_at_most <= found["launches"]
        assert explanation.launches_at_most * explanation.sub_batches >= found["launches"]


def path_of(codec, decoder):
    return CodecPath(codec, decoder)


def crop_of(span):
    """Slices between the corners of a hypothesis example."""
    a, b, c, d = span
    return slice(min(a, c), max(a, c)), slice(min(b, d), max(b, d))


_opened = {}


def opened(factory, name):
    """An array that all examples share."""
    if name not in _opened:
        path = factory.mktemp(name)
        _opened[name] = gpustore.open(create(path, name)).result()
    return _opened[name]
