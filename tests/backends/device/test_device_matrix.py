"""Reads into an emulated device equal those of the host, cell by cell.

Each cell is one array (codec, type with its byte order, order of dimensions, field, sharding) and
one selection of it. What a device decodes is counted, so that no cell passes by the fallback alone.
"""

import itertools

import numpy as np
import pytest

import gpustore
from tests.emulator.queue import ORDERS
from tests.on_device import emulated, on_host

pytestmark = pytest.mark.long
"""Half a minute: a stage of its own in .ci/run."""

SHAPE = (37, 41)

V2_CODECS = {
    "raw": None,
    "zlib": {"id": "zlib", "level": 1},
    "gzip": {"id": "gzip", "level": 1},
    "zstd": {"id": "zstd", "level": 1},
    "lz4": {"id": "lz4", "acceleration": 1},
    "blosc-lz4": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "blosc-zstd": {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 2, "blocksize": 0},
    "blosc-blosclz": {"id": "blosc", "cname": "blosclz", "clevel": 5, "shuffle": 0, "blocksize": 0},
    "bz2": {"id": "bz2", "level": 1},
    "shuffle": None,
    "shuffle-zlib": {"id": "zlib", "level": 1},
}
V2_FILTERS = {
    "shuffle": [{"id": "shuffle", "elementsize": 3}],
    "shuffle-zlib": [{"id": "shuffle", "elementsize": 4}],
}
V2_TYPES = [
    ("|u1", "C"),
    ("<i2", "F"),
    (">u4", "C"),
    (">u4", "F"),
    ("<f8", "F"),
    (">c16", "C"),
    ("|b1", "F"),
    ("bfloat16", "C"),
]
RECORD = [["a", "|u1"], ["b", ">f4"], ["c", "<i8", [3]]]
FIELDS = "abc"
FIELD_CODECS = ["raw", "zlib", "zstd", "blosc-lz4"]

V3_BYTES = {
    "raw": [],
    "gzip": [{"name": "gzip", "configuration": {"level": 1}}],
    "zstd": [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
    "zstd-checksum": [{"name": "zstd", "configuration": {"level": 1, "checksum": True}}],
    "crc32c": [{"name": "crc32c"}],
    "zstd-crc32c": [
        {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
        {"name": "crc32c"},
    ],
    "blosc": [
        {
            "name": "blosc",
            "configuration": {
                "cname": "lz4",
                "clevel": 5,
                "shuffle": "shuffle",
                "typesize": 4,
                "blocksize": 0,
            },
        }
    ],
}
V3_ARRAYS = [
    ("uint8", "little", True, False),
    ("uint32", "big", False, False),
    ("uint32", "big", True, True),
    ("float64", "little", False, True),
    ("float64", "little", True, False),
    ("int4", "little", False, False),
    ("uint32", "little", True, "nested"),
]
"""Type, byte order, whether transposed, whether in shards, which may be nested."""

SELECTIONS = {
    "whole": lambda store: store,
    "slice": lambda store: store[3:30, 9:12],
    "steps": lambda store: store[1:36:5, ::3],
    "reversed": lambda store: store[30:2:-1, 40:1:-4],
    "indices": lambda store: store[[36, 2, 2, 17], :],
    "points": lambda store: store.vindex[[36, 2, 17], [40, 0, 8]],
    "outer": lambda store: store.oindex[[5, 36], [7, 0, 39]],
    "edge": lambda store: store[33:, 38:],
    "missing": lambda store: store[20:32, 20:],
    "turned": lambda store: store.T,
}


def in_batch(store, *views):
    batch = gpustore.Batch()
    futures = [view(store).read(batch=batch) for view in views]
    batch.submit()
    return futures


def crops(store, shape, first=(0, 0), **options):
    """Nine crops; those of a field with more dimensions have two elements along the last one."""
    starts = np.random.default_rng(3).integers(0, [16, 17], (9, 2)) + first
    if store.rank == 3:
        starts = np.insert(starts, 2, 1, axis=1)
        shape = (*shape, 2)
    return [store.read_many(starts, shape, **options)]


TOGETHER = {
    "crops": lambda store: crops(store, (15, 24)),
    "crops in F order": lambda store: crops(store, (15, 24), order="F"),
    "small crops": lambda store: crops(store, (2, 3), (9, 9)),
    "crops of steps": lambda store: crops(store[::-1, ::2], (4, 3), (-36, 0)),
    "batch alike": lambda store: in_batch(
        store, *(lambda s, i=i: s[i : i + 4, 3 : 3 + i] for i in (20, 22, 20))
    ),
    "batch unlike": lambda store: in_batch(
        store, lambda s: s[30:2:-3], lambda s: s[3:7, 40], lambda s: s.T[..., 3:9], lambda s: s[:0]
    ),
}
"""Reads that share their chunks."""

CELLS = len(SELECTIONS) + len(TOGETHER)
"""Of one array."""


def store_elements(store):
    random = np.random.default_rng(7)
    elements = random.integers(0, 2 if store.dtype.name in ("bool", "int4") else 100, store.shape)
    elements = elements.astype(store.dtype.numpy_dtype)
    store[:24] = elements[:24]
    store[32:] = elements[32:]


def compare(host, there, device):
    """All selections of one array; returns what was counted."""
    cells = set()
    before = gpustore.statistics.snapshot()
    for selection, select in SELECTIONS.items():
        for order in ("C", "F") if selection == "slice" else ("C",):
            found = select(there).read(order=order).result()
            expected = select(host).read(order=order).result()
            assert found.dtype == expected.dtype
            assert on_host(device, found).tobytes() == np.asarray(expected).tobytes(), selection
        cells.add(selection)
    for together, ask in TOGETHER.items():
        futures = zip(ask(there), ask(host), strict=True)
        for found, expected in [(one.result(), other.result()) for one, other in futures]:
            assert found.dtype == expected.dtype
            assert on_host(device, found).tobytes() == expected.tobytes(), together
        cells.add(together)
    assert len(cells) == CELLS
    after = gpustore.statistics.snapshot()
    return {key: after[key] - before.get(key, 0) for key in after}


def check_counts(codec, dtype, counts):
    if codec == "raw":
        assert not counts.get("host_fallbacks")
        assert not counts.get("chunks_decoded_device")
    elif codec in ("bz2", "zstd-checksum"):
        assert counts["host_fallbacks"]
        assert not counts.get("chunks_decoded_device")
    else:
        assert counts["chunks_decoded_device"]
        assert not counts.get("host_fallbacks")
        assert not counts.get("retries")


@pytest.mark.parametrize("codec", V2_CODECS)
def test_v2(tmp_path, codec):
    orders = itertools.cycle(ORDERS)
    for dtype, order in V2_TYPES:
        path = tmp_path / f"{dtype}{order}".replace("|", "_")
        metadata = {
            "shape": list(SHAPE),
            "chunks": [8, 9],
            "dtype": dtype,
            "order": order,
            "compressor": V2_CODECS[codec],
            "filters": V2_FILTERS.get(codec),
        }
        spec = {"driver": "zarr", "kvstore": f"file://{path}", "metadata": metadata}
        with emulated(next(orders), seed=5) as device:
            host = gpustore.open(spec, create=True).result()
            store_elements(host)
            there = gpustore.open(spec, device=device.name).result()
            check_counts(codec, dtype, compare(host, there, device))
            del there


@pytest.mark.parametrize("codec", FIELD_CODECS)
def test_fields(tmp_path, codec):
    metadata = {
        "shape": list(SHAPE),
        "chunks": [8, 9],
        "dtype": RECORD,
        "compressor": V2_CODECS[codec],
        "fill_value": None,
    }
    for field, order in itertools.product(FIELDS, "CF"):
        path = tmp_path / order
        spec = {
            "driver": "zarr",
            "kvstore": f"file://{path}",
            "metadata": {**metadata, "order": order},
            "field": field,
        }
        with emulated("random", seed=2) as device:
            host = gpustore.open(spec, create=True, open=True).result()
            random = np.random.default_rng(1).integers(0, 99, host.shape)
            host[:24] = random[:24].astype(host.dtype.numpy_dtype)
            there = gpustore.open(spec, device=device.name).result()
            check_counts(codec, "", compare(host, there, device))
            del there


@pytest.mark.parametrize("codec", V3_BYTES)
def test_v3(tmp_path, codec):
    orders = itertools.cycle(ORDERS)
    for dtype, endian, turned, shard in V3_ARRAYS:
        path = tmp_path / f"{dtype}{endian}{turned}{shard}"
        transpose = [{"name": "transpose", "configuration": {"order": [1, 0]}}] if turned else []
        one_byte = dtype in ("uint8", "int4")
        layout = {"name": "bytes", **({} if one_byte else {"configuration": {"endian": endian}})}
        codecs = [*transpose, layout, *V3_BYTES[codec]]
        if shard:
            sharding = {"chunk_shape": [4, 3], "codecs": codecs}
            sharding["index_codecs"] = [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ]
            codecs = [{"name": "sharding_indexed", "configuration": sharding}]
        if shard == "nested":
            sharding = {**sharding, "chunk_shape": [8, 9], "codecs": codecs}
            codecs = [{"name": "sharding_indexed", "configuration": sharding}]
        grid = [24, 18] if shard == "nested" else [8, 9]
        metadata = {
            "shape": list(SHAPE),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": grid}},
            "data_type": dtype,
            "codecs": codecs,
        }
        spec = {"driver": "zarr3", "kvstore": f"file://{path}", "metadata": metadata}
        with emulated(next(orders), seed=5) as device:
            host = gpustore.open(spec, create=True).result()
            store_elements(host)
            there = gpustore.open(spec, device=device.name).result()
            check_counts(codec, dtype, compare(host, there, device))
            del there


def test_there_are_at_least_500_cells():
    v2 = len(V2_CODECS) * len(V2_TYPES)
    fields = len(FIELD_CODECS) * len(FIELDS) * len("CF")
    assert CELLS * (v2 + fields + len(V3_BYTES) * len(V3_ARRAYS)) >= 500
