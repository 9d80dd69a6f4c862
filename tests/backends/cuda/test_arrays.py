"""Whole arrays and parts of them on a real GPU, and on an emulated one, against the host."""

from types import SimpleNamespace

import numpy as np
import pytest

import gpustore
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host

SHAPE, CHUNK, INNER = (50, 70), (16, 24), (8, 12)
STORED = 32
"""Rows from here on are missing chunks."""


def named(name, **configuration):
    return {"name": name, "configuration": configuration}


LITTLE, BIG = (named("bytes", endian=endian) for endian in ("little", "big"))
ZSTD = named("zstd", level=1, checksum=False)
BLOSC = {"clevel": 5, "blocksize": 0}
INDEX = [LITTLE, {"name": "crc32c"}]
SHARDS = named("sharding_indexed", chunk_shape=INNER, codecs=[LITTLE, ZSTD], index_codecs=INDEX)

CHAINS = {
    "raw": [LITTLE],
    "big endian": [BIG],
    "zstd": [LITTLE, ZSTD],
    "zstd, crc32c": [LITTLE, ZSTD, {"name": "crc32c"}],
    "gzip": [LITTLE, named("gzip", level=1)],
    "blosc lz4": [LITTLE, named("blosc", cname="lz4", shuffle="shuffle", typesize=2, **BLOSC)],
    "blosc zstd": [LITTLE, named("blosc", cname="zstd", shuffle="bitshuffle", typesize=2, **BLOSC)],
    "transposed": [named("transpose", order=[1, 0]), LITTLE, ZSTD],
    "shards": [SHARDS],
}
PARTS = {
    "whole": np.s_[...],
    "crop": np.s_[3:41, 20:65],
    "steps": np.s_[5:45:3, 60:3:-2],
    "element": np.s_[20, 30],
    "missing": np.s_[STORED:, :],
    "nothing": np.s_[40:40],
}


@pytest.fixture(
    params=[
        pytest.param("emulated", marks=needs_compiler),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ]
)
def gpu(request):
    """Name of a device, and how its arrays are copied to the host and back."""
    if request.param == "cuda":
        import cupy  # Only a machine with a GPU has it.

        yield SimpleNamespace(name="cuda", to_host=cupy.asnumpy)
        return
    with emulated() as device:
        yield SimpleNamespace(name=device.name, to_host=lambda array: on_host(device, array))


def create(path, chain, dtype="uint16"):
    """Specification of an array on disk, and what it holds."""
    metadata = {
        "shape": SHAPE,
        "data_type": dtype,
        "fill_value": 7,
        "chunk_grid": named("regular", chunk_shape=CHUNK),
        "codecs": CHAINS[chain],
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{path}/"}
    store = gpustore.open({**spec, "metadata": metadata}, create=True, device="cpu").result()
    elements = np.random.default_rng(0).integers(0, 99, SHAPE).cumsum(1)
    elements = (elements % 50).astype(store.dtype.numpy_dtype)
    elements[STORED:] = 7
    store[:STORED] = elements[:STORED]
    return spec, elements


@pytest.mark.parametrize("chain", CHAINS)
def test_reads_equal_what_was_written(tmp_path, gpu, chain):
    spec, elements = create(tmp_path, chain)
    store = gpustore.open(spec, device=gpu.name).result()
    for name, part in PARTS.items():
        found = gpu.to_host(store[part].read().result())
        assert found.dtype == elements.dtype
        assert np.array_equal(found, elements[part]), name


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "bfloat16", "float32"])
def test_elements_of_every_width_are_read(tmp_path, gpu, dtype):
    spec, elements = create(tmp_path, "zstd", dtype)
    found = gpu.to_host(gpustore.open(spec, device=gpu.name).result().read().result())
    assert found.dtype == elements.dtype
    assert found.tobytes() == elements.tobytes()


@pytest.mark.parametrize("chain", ["raw", "zstd", "shards"])
def test_arrays_of_the_device_are_written(tmp_path, gpu, chain):
    spec, elements = create(tmp_path / "source", chain)
    source = gpustore.open(spec, device=gpu.name).result()
    target, _ = create(tmp_path / "target", chain)
    there = gpustore.open(target, device=gpu.name).result()
    there.write(source.read().result()).result()
    there[10:20, 5:40] = source[20:30, 5:40].read(order="F").result()
    elements[10:20, 5:40] = elements[20:30, 5:40]
    assert np.array_equal(gpu.to_host(there.read().result()), elements)
    assert np.array_equal(gpustore.open(target, device="cpu").result().read().result(), elements)


def test_crops_and_batches_are_read(tmp_path, gpu):
    spec, elements = create(tmp_path, "zstd")
    store = gpustore.open(spec, device=gpu.name).result()
    starts = np.random.default_rng(1).integers(0, 35, (20, 2))
    expected = np.stack([elements[i : i + 10, j : j + 12] for i, j in starts])
    assert np.array_equal(gpu.to_host(store.read_many(starts, (10, 12)).result()), expected)
    batch = gpustore.Batch()
    futures = [store[i : i + 10, j : j + 12].read(batch=batch) for i, j in starts.tolist()]
    batch.submit()
    for future, crop in zip(futures, expected, strict=True):
        assert np.array_equal(gpu.to_host(future.result()), crop)


@pytest.mark.parametrize("chain", ["zstd, crc32c", "gzip", "blosc lz4"])
def test_a_damaged_chunk_is_named(tmp_path, gpu, chain):
    spec, elements = create(tmp_path, chain)
    path = tmp_path / "c/1/2"
    path.write_bytes(path.read_bytes()[:-9])
    store = gpustore.open(spec, device=gpu.name).result()
    with pytest.raises(gpustore.CorruptChunkError, match="c/1/2"):
        store.read().result()
    assert np.array_equal(gpu.to_host(store[:16].read().result()), elements[:16])
