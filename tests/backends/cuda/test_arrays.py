"""Whole arrays and parts of them on a real GPU, and on an emulated one, against the host.

Damage that only nvcomp would see, and promises nothing about, is left out: after it the device may
be lost. A damaged value is cut, has a wrong checksum, or is LZ4's, whose decoder checks all bounds.
"""

from types import SimpleNamespace

import numpy as np
import pytest

import gpustore
from gpustore.loader import PatchLoader, RandomPatches
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

CRC32C = {"name": "crc32c"}


def blosc(cname, shuffle):
    return named("blosc", cname=cname, shuffle=shuffle, typesize=2, **BLOSC)


CHAINS = {
    "raw": [LITTLE],
    "raw, crc32c": [LITTLE, CRC32C],
    "big endian": [BIG],
    "zstd": [LITTLE, ZSTD],
    "zstd, crc32c": [LITTLE, ZSTD, CRC32C],
    "gzip": [LITTLE, named("gzip", level=1)],
    "blosc lz4": [LITTLE, blosc("lz4", "shuffle")],
    "blosc zstd": [LITTLE, blosc("zstd", "bitshuffle")],
    "blosc zlib": [LITTLE, blosc("zlib", "noshuffle")],
    "blosclz": [LITTLE, blosc("blosclz", "shuffle")],
    "transposed": [named("transpose", order=[1, 0]), LITTLE, ZSTD],
    "shards": [SHARDS],
    "shards of blosc": [
        named(
            "sharding_indexed",
            chunk_shape=INNER,
            codecs=[LITTLE, blosc("lz4", "shuffle"), CRC32C],
            index_codecs=INDEX,
        )
    ],
}
LZ4 = {"id": "lz4", "acceleration": 1}
FILTERS = {
    "lz4": ([], LZ4),
    "zlib": ([], {"id": "zlib", "level": 1}),
    "delta": ([{"id": "delta", "dtype": "<u2"}], LZ4),
    "shuffle": ([{"id": "shuffle", "elementsize": 2}], LZ4),
    "scaled": ([{"id": "fixedscaleoffset", "scale": 1, "offset": 3, "dtype": "<u2"}], LZ4),
    "astype": ([{"id": "astype", "encode_dtype": "|u1", "decode_dtype": "<u2"}], LZ4),
    "delta, shuffle": (
        [{"id": "delta", "dtype": "<u2"}, {"id": "shuffle", "elementsize": 2}],
        {"id": "zlib", "level": 1},
    ),
}
"""Filters and compressor of arrays of Zarr v2."""

PARTS = {
    "whole": np.s_[...],
    "crop": np.s_[3:41, 20:65],
    "steps": np.s_[5:45:3, 60:3:-2],
    "backwards": np.s_[::-1, ::-7],
    "rows": [31, 2, 2, 49, 17],
    "mask": np.arange(SHAPE[0]) % 7 == 3,
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

        # Copies on the current stream, which is that of reads too.
        yield SimpleNamespace(name="cuda", to_host=cupy.asnumpy, on_stream=cupy.asnumpy)
        return
    with emulated() as device:
        yield SimpleNamespace(
            name=device.name,
            to_host=lambda array: on_host(device, array),
            on_stream=lambda array: on_host(device, array, device.caller_stream()),
        )


def create(path, chain, dtype="uint16"):
    """Specification of an array on disk, and what it holds."""
    metadata = {
        "shape": SHAPE,
        "data_type": dtype,
        "fill_value": 7,
        "chunk_grid": named("regular", chunk_shape=CHUNK),
        "codecs": CHAINS[chain],
    }
    return write({"driver": "zarr3", "kvstore": f"file://{path}/"}, metadata)


def create_filtered(path, chain):
    """The same of Zarr v2, by the name of its filters."""
    filters, compressor = FILTERS[chain]
    metadata = {
        "shape": SHAPE,
        "chunks": CHUNK,
        "dtype": "<u2",
        "fill_value": 7,
        "order": "F",
        "filters": filters or None,
        "compressor": compressor,
    }
    return write({"driver": "zarr", "kvstore": f"file://{path}/"}, metadata)


def write(spec, metadata):
    store = gpustore.open({**spec, "metadata": metadata}, create=True, device="cpu").result()
    elements = np.random.default_rng(0).integers(0, 99, SHAPE).cumsum(1)
    elements = (elements % 50).astype(store.dtype.numpy_dtype)
    elements[STORED:] = 7
    store[:STORED] = elements[:STORED]
    return spec, elements


def check_parts(store, elements, gpu):
    for name, part in PARTS.items():
        found = gpu.to_host(store[part].read().result())
        assert found.dtype == elements.dtype
        assert np.array_equal(found, elements[part]), name


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("chain", CHAINS)
def test_reads_equal_what_was_written(tmp_path, gpu, chain):
    spec, elements = create(tmp_path, chain)
    check_parts(gpustore.open(spec, device=gpu.name).result(), elements, gpu)


@pytest.mark.parametrize("chain", FILTERS)
def test_filters_are_undone(tmp_path, gpu, chain):
    spec, elements = create_filtered(tmp_path, chain)
    check_parts(gpustore.open(spec, device=gpu.name).result(), elements, gpu)


@pytest.mark.parametrize("chain", ["raw", "zstd", "blosc lz4", "shards"])
def test_elements_are_selected_by_index_arrays(tmp_path, gpu, chain):
    spec, elements = create(tmp_path, chain)
    store = gpustore.open(spec, device=gpu.name).result()
    rng = np.random.default_rng(2)
    rows, columns = rng.integers(0, SHAPE[0], 90), rng.integers(0, SHAPE[1], 90)
    found = gpu.to_host(store.vindex[rows, columns].read().result())
    assert np.array_equal(found, elements[rows, columns])
    found = gpu.to_host(store.oindex[rows, columns].read().result())
    assert np.array_equal(found, elements[np.ix_(rows, columns)])
    found = gpu.to_host(store.oindex[rows, 60:3:-2].read().result())
    assert np.array_equal(found, elements[rows, 60:3:-2])


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_elements_are_cast(tmp_path, gpu, dtype):
    spec, elements = create(tmp_path, "zstd")
    store = gpustore.cast(gpustore.open(spec, device=gpu.name).result(), dtype)
    found = gpu.to_host(store[3:41, 60:3:-2].read().result())
    assert np.array_equal(found.astype(np.uint16), elements[3:41, 60:3:-2])


def test_reads_of_whole_chunks_are_right_at_the_first_attempt(tmp_path, gpu):
    for chain in CHAINS:
        spec, _ = create(tmp_path / chain, chain)
        future = gpustore.open(spec, device=gpu.name).result().read()
        future.result()
        assert future.statistics["retries"] == 0, chain


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "bfloat16", "float32"])
def test_elements_of_every_width_are_read(tmp_path, gpu, dtype):
    spec, elements = create(tmp_path, "zstd", dtype)
    found = gpu.to_host(gpustore.open(spec, device=gpu.name).result().read().result())
    assert found.dtype == elements.dtype
    assert found.tobytes() == elements.tobytes()


@pytest.mark.parametrize("chain", ["raw", "zstd", "blosc lz4", "shards"])
def test_arrays_are_used_on_their_stream_before_the_host_has_waited(tmp_path, gpu, chain):
    spec, elements = create(tmp_path, chain)
    store = gpustore.open(spec, device=gpu.name).result()
    for part in (np.s_[...], np.s_[3:41, 20:65]):
        future = store[part].read()
        assert np.array_equal(gpu.on_stream(future.on_stream()), elements[part])
        assert np.array_equal(gpu.to_host(future.result()), elements[part])


@pytest.mark.parametrize("content", ["decoded", "encoded"])
@pytest.mark.parametrize("chain", ["raw", "zstd", "gzip", "blosc lz4", "shards"])
def test_chunks_that_stay_on_the_device_are_fetched_once(tmp_path, gpu, chain, content):
    spec, elements = create(tmp_path, chain)
    pool = {"total_bytes_limit": 10**6, "content": content}
    context = gpustore.Context({"device_cache_pool": pool})
    spec = {**spec, "recheck_cached_data": False}
    store = gpustore.open(spec, context=context, device=gpu.name).result()
    store.preload().result()
    for part in (np.s_[...], np.s_[5:45:3, 60:3:-2]):
        future = store[part].read()
        assert np.array_equal(gpu.to_host(future.result()), elements[part])
        assert future.statistics["key_reads"] == future.statistics["device_cache_misses"] == 0
        assert future.statistics["device_cache_hits"] > 0
        assert future.statistics["copies"] == 0


@pytest.mark.parametrize(
    "chain",
    ["raw", "big endian", "zstd", "zstd, crc32c", "gzip", "blosc lz4", "transposed", "shards"],
)
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


@pytest.mark.parametrize("chain", FILTERS)
def test_filtered_arrays_of_the_device_are_written(tmp_path, gpu, chain):
    spec, elements = create_filtered(tmp_path / "source", chain)
    source = gpustore.open(spec, device=gpu.name).result()
    target, _ = create_filtered(tmp_path / "target", chain)
    there = gpustore.open(target, device=gpu.name).result()
    there[5:45:3, 60:3:-2] = source[4:44:3, 60:3:-2].read().result()
    elements[5:45:3, 60:3:-2] = elements[4:44:3, 60:3:-2].copy()
    assert np.array_equal(gpu.to_host(there.read().result()), elements)
    assert np.array_equal(gpustore.open(target, device="cpu").result().read().result(), elements)


def check_damage(spec, elements, gpu):
    """The chunk of indices 1, 2 is damaged, and no other."""
    store = gpustore.open(spec, device=gpu.name).result()
    for part in (np.s_[...], np.s_[20:30, 50:60], np.s_[31:2:-3, 69:2:-1]):
        with pytest.raises(gpustore.CorruptChunkError, match=r"\b1[/.]2\b"):
            store[part].read().result()
    assert np.array_equal(gpu.to_host(store[:16].read().result()), elements[:16])
    assert np.array_equal(gpu.to_host(store[:, :48].read().result()), elements[:, :48])


@pytest.mark.parametrize("chain", [name for name in CHAINS if not name.startswith("shards")])
def test_a_chunk_cut_short_is_named(tmp_path, gpu, chain):
    spec, elements = create(tmp_path, chain)
    path = tmp_path / "c/1/2"
    path.write_bytes(path.read_bytes()[:-9])
    check_damage(spec, elements, gpu)


@pytest.mark.parametrize("chain", ["raw, crc32c", "zstd, crc32c"])
@pytest.mark.parametrize("place", [0, 40, -1])
def test_a_chunk_with_a_wrong_checksum_is_named(tmp_path, gpu, chain, place):
    spec, elements = create(tmp_path, chain)
    path = tmp_path / "c/1/2"
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 4
    path.write_bytes(damaged)
    check_damage(spec, elements, gpu)


@pytest.mark.parametrize("chain", FILTERS)
def test_a_filtered_chunk_cut_short_is_named(tmp_path, gpu, chain):
    spec, elements = create_filtered(tmp_path, chain)
    path = tmp_path / "1.2"
    path.write_bytes(path.read_bytes()[:-9])
    check_damage(spec, elements, gpu)


def test_bits_of_lz4_that_were_turned_over_stay_in_their_chunk(tmp_path, gpu):
    spec, elements = create_filtered(tmp_path, "lz4")
    path = tmp_path / "1.2"
    whole = path.read_bytes()
    store = gpustore.open(spec, device=gpu.name).result()
    for place in range(4, len(whole), len(whole) // 12):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        future = store.read()
        error = future.exception()
        if error is not None:
            assert isinstance(error, gpustore.CorruptChunkError)
            assert "1.2" in str(error)
            continue
        found = gpu.to_host(future.result())
        found[16:32, 48:] = elements[16:32, 48:]
        assert np.array_equal(found, elements), place
    path.write_bytes(whole)
    assert np.array_equal(gpu.to_host(store.read().result()), elements)


def test_a_damaged_shard_is_named(tmp_path, gpu):
    spec, elements = create(tmp_path, "shards")
    path = tmp_path / "c/1/2"
    path.write_bytes(path.read_bytes()[:-9])
    check_damage(spec, elements, gpu)


@pytest.mark.parametrize("edge", ["reflect", "fill"])
@pytest.mark.parametrize("chain", ["raw", "zstd", "shards"])
def test_batches_of_a_loader_are_those_of_the_host(gpu, tmp_path, chain, edge):
    """In the order of the caller's stream: all are held until the end, then copied."""
    spec, _ = create(tmp_path, chain)
    host = gpustore.open(spec, device="cpu").result()
    there = gpustore.open(spec, device=gpu.name).result()
    sampler = RandomPatches((9, 14), per_epoch=50, window=4000, edge=edge)
    options = {"sampler": sampler, "batch_size": 8, "layout": "xcy"}
    for more in ({}, {"dtype": "float16"}, {"normalize": (7, 3000)}):
        expected = [*PatchLoader(host, **options, **more)]
        with PatchLoader(there, to="cupy", **options, **more) as loader:
            found = [*loader]
        for one, other in zip(found, expected, strict=True):
            image = gpu.on_stream(one["image"])
            assert image.dtype == other["image"].dtype
            assert image.tobytes() == other["image"].tobytes()
            assert np.array_equal(one["origin"], other["origin"])
        del found, one
    del there, loader
