"""TensorStore and zarr-python read what is written from an emulated device, in every layout."""

import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustore
from tests.backends.device.test_encoding import elements, put
from tests.emulator.queue import ORDERS
from tests.kernels.execution import needs_compiler
from tests.matrix import share
from tests.on_device import emulated, on_host

pytestmark = needs_compiler

CRC = {"name": "crc32c"}
COMPRESSORS_V3 = [
    [],
    [{"name": "zstd", "configuration": {"level": 3, "checksum": False}}],
    [{"name": "gzip", "configuration": {"level": 5}}],
    *(
        [
            {
                "name": "blosc",
                "configuration": {
                    "cname": cname,
                    "clevel": 5,
                    "shuffle": shuffle,
                    "typesize": 4,
                    "blocksize": 0,
                },
            }
        ]
        for cname, shuffle in [("lz4", "shuffle"), ("zstd", "bitshuffle"), ("zlib", "noshuffle")]
    ),
]
COMPRESSORS_V2 = [
    None,
    {"id": "zstd", "level": 1},
    {"id": "lz4", "acceleration": 1},
    {"id": "zlib", "level": 1},
    {"id": "gzip", "level": 1},
    {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 2, "blocksize": 0},
]


SHAPES = st.lists(st.integers(1, 40), min_size=1, max_size=3)


def chunk_of(draw, shape):
    """A chunk shape of which at most eight lie along a dimension: each is a file."""
    return [draw(st.integers(-(-size // 8), 12)) for size in shape]


@st.composite
def metadata_v3(draw):
    """Metadata of an array that a device encodes."""
    shape = draw(SHAPES)
    chunk = chunk_of(draw, shape)
    dtype = draw(st.sampled_from(["uint8", "int16", "float32", "float64", "complex64", "bool"]))
    codecs = [{"name": "bytes"}]
    if dtype not in ("uint8", "bool"):
        codecs[0]["configuration"] = {"endian": draw(st.sampled_from(["little", "big"]))}
    if draw(st.booleans()):
        order = draw(st.permutations(range(len(shape))))
        codecs.insert(0, {"name": "transpose", "configuration": {"order": list(order)}})
    codecs += draw(st.sampled_from(COMPRESSORS_V3)) + draw(st.sampled_from([[], [CRC]]))
    grid = chunk
    if draw(st.booleans()):
        grid = [size * draw(st.integers(1, 4)) for size in chunk]
        index = [{"name": "bytes", "configuration": {"endian": "little"}}, CRC]
        configuration = {
            "chunk_shape": chunk,
            "codecs": codecs,
            "index_codecs": index,
            "index_location": draw(st.sampled_from(["start", "end"])),
        }
        codecs = [{"name": "sharding_indexed", "configuration": configuration}]
    fill = {"bool": False, "complex64": [0.0, 0.0]}.get(dtype, 0)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": grid}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": codecs,
    }


@st.composite
def metadata_v2(draw):
    """Metadata of a Zarr v2 array that a device encodes."""
    shape = draw(SHAPES)
    dtype = draw(st.sampled_from(["|u1", "<i2", ">i4", "<f4", ">f8", "<c8", "|b1"]))
    filters = draw(st.sampled_from([None, [{"id": "shuffle", "elementsize": 1}]]))
    return {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunk_of(draw, shape),
        "dtype": dtype,
        "order": draw(st.sampled_from("CF")),
        "compressor": draw(st.sampled_from(COMPRESSORS_V2)),
        "filters": filters,
        "fill_value": None if dtype == "<c8" else 0,
    }


def check(tmp_path, data, driver, metadata, device):
    """Write all of an array, then parts; read it by everybody."""
    path = tmp_path / "array"
    spec = {"driver": driver, "kvstore": f"file://{path}", "metadata": metadata}
    store = gpustore.open(spec, open=False, create=True, delete_existing=True).result()
    there = gpustore.open(spec, device=device.name).result()
    shape, dtype = tuple(metadata["shape"]), store.dtype.numpy_dtype
    expected = np.zeros(shape, dtype)
    parts = [tuple(slice(None) for _ in shape)]
    for _ in range(data.draw(st.integers(0, 2), label="partial writes")):
        bounds = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in shape]
        steps = [data.draw(st.sampled_from([1, 1, 2])) for _ in shape]
        parts.append(tuple(slice(lo, hi, step) for (lo, hi), step in zip(bounds, steps)))
    if data.draw(st.booleans(), label="parts alone"):
        parts = parts[1:]
    counts = {}
    for seed, part in enumerate(parts):
        array = elements(dtype, expected[part].shape, seed)
        if data.draw(st.booleans(), label="few elements"):
            array *= np.arange(array.size).reshape(array.shape) % 50 == 0
        futures = there[part].write(put(device, array, data.draw(st.sampled_from("CF"))))
        futures.result()
        for name, count in futures.commit.statistics.snapshot().items():
            counts[name] = counts.get(name, 0) + count
        expected[part] = array
    assert counts.get("host_encodings", 0) == counts.get("host_fallbacks", 0) == 0
    assert on_host(device, there.read().result()).tobytes() == expected.tobytes()
    check_readers(path, driver, metadata, expected)


def check_readers(path, driver, metadata, expected):
    """What gpustore on the host, zarr-python and TensorStore read is `expected`."""
    dtype = expected.dtype
    store = gpustore.open({"driver": driver, "kvstore": f"file://{path}"}, device="cpu").result()
    assert store.read().result().tobytes() == expected.tobytes()
    found = np.asarray(zarr.open_array(path, mode="r")[...])
    assert found.astype(dtype).tobytes() == expected.tobytes()
    if not metadata.get("filters") and (metadata.get("compressor") or {}).get("id") != "lz4":
        other = {"driver": driver, "kvstore": {"driver": "file", "path": str(path)}}
        found = tensorstore.open(other).result().read().result()
        assert np.asarray(found).astype(dtype).tobytes() == expected.tobytes()


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=share(60))
@given(metadata=metadata_v3(), data=st.data())
def test_all_read_zarr3(tmp_path_factory, order, metadata, data):
    with emulated(order, seed=1) as device:
        check(tmp_path_factory.mktemp("array"), data, "zarr3", metadata, device)


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=share(60))
@given(metadata=metadata_v2(), data=st.data())
def test_all_read_zarr2(tmp_path_factory, order, metadata, data):
    with emulated(order, seed=1) as device:
        check(tmp_path_factory.mktemp("array"), data, "zarr", metadata, device)


@pytest.mark.parametrize("number", range(len(COMPRESSORS_V3)))
def test_all_read_every_compressor_of_zarr3(tmp_path, number):
    """Of shards, transposed, with a checksum; the property tries few examples of each."""
    big = {"name": "bytes", "configuration": {"endian": "big"}}
    turned = {"name": "transpose", "configuration": {"order": [1, 0]}}
    index = [{"name": "bytes", "configuration": {"endian": "little"}}, CRC]
    inner = [turned, big, *COMPRESSORS_V3[number], CRC]
    configuration = {"chunk_shape": [50, 40], "codecs": inner, "index_codecs": index}
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [230, 170],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [100, 120]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [{"name": "sharding_indexed", "configuration": configuration}],
    }
    check_whole_and_part(tmp_path, "zarr3", metadata, np.dtype("f4"))


@pytest.mark.parametrize("number", range(len(COMPRESSORS_V2)))
def test_all_read_every_compressor_of_zarr2(tmp_path, number):
    metadata = {
        "zarr_format": 2,
        "shape": [230, 170],
        "chunks": [50, 40],
        "dtype": ">i4",
        "order": "F",
        "compressor": COMPRESSORS_V2[number],
        "filters": None,
        "fill_value": 0,
    }
    check_whole_and_part(tmp_path, "zarr", metadata, np.dtype("i4"))


def check_whole_and_part(path, driver, metadata, dtype):
    """Write all of an array, then a part of stored chunks; read it by everybody."""
    spec = {"driver": driver, "kvstore": f"file://{path}", "metadata": metadata}
    gpustore.open(spec, create=True).result()
    expected = elements(dtype, (230, 170), 0)
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        for part in (np.s_[...], np.s_[30:140, 7:90]):
            expected[part] = array = elements(dtype, expected[part].shape, 1) + expected[part]
            futures = there[part].write(put(device, array, "F"))
            futures.result()
            counts = futures.commit.statistics
            assert counts["host_encodings"] == counts["host_fallbacks"] == 0
        del there, futures
    check_readers(path, driver, metadata, expected)
