"""Writes of arrays on an emulated device: every reader finds the elements, little is copied."""

import numpy as np
import pytest

import gpustore
from tests.emulator.queue import ORDERS
from tests.on_device import emulated, on_host

pytestmark = pytest.mark.matrix

SHAPE = (50, 70)

CODECS = {
    "raw": None,
    "zstd": {"id": "zstd", "level": 1},
    "lz4": {"id": "lz4", "acceleration": 1},
    "zlib": {"id": "zlib", "level": 1},
    "gzip": {"id": "gzip", "level": 6},
    "blosc lz4": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "blosc zlib": {"id": "blosc", "cname": "zlib", "clevel": 6, "shuffle": 2, "blocksize": 0},
    "blosc zstd": {"id": "blosc", "cname": "zstd", "clevel": 1, "shuffle": 0, "blocksize": 256},
}


@pytest.fixture(params=ORDERS)
def device(request):
    with emulated(request.param, seed=5) as device:
        yield device


@pytest.fixture
def lazy():
    with emulated() as device:
        yield device


def elements(dtype, shape=SHAPE, seed=0):
    return np.random.default_rng(seed).integers(0, 9, shape).astype(dtype)


def create(path, device, **metadata):
    """A new array, opened on the host and on the device."""
    metadata = {"shape": list(SHAPE), "chunks": [16, 16], "dtype": "<u4", **metadata}
    metadata.setdefault("compressor", None)
    metadata.setdefault("fill_value", None if "c" in metadata["dtype"] else 0)
    spec = {"driver": "zarr", "kvstore": f"file://{path}", "metadata": metadata}
    host = gpustore.open(spec, create=True).result()
    return host, gpustore.open(f"file://{path}", device=device.name).result()


def put(device, array, order="C"):
    """An array on the device with these elements."""
    array = np.asarray(array)
    stream = device.caller_stream()
    view = device.empty(array.shape, array.dtype, order, stream)
    data = array.tobytes(order)
    pinned = device.allocate_pinned(max(1, len(data)))
    if data:
        pinned.view[: len(data)] = data
        device.upload(pinned, 0, view.address, len(data), stream)
        device.synchronize(device.record(stream))
    device.free_pinned(pinned)
    return view.array


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("dtype", "order"), [("<u4", "C"), (">u4", "F"), (">c16", "F"), ("|u1", "C")]
)
def test_other_readers_find_what_is_written(tmp_path, device, codec, dtype, order):
    host, there = create(tmp_path, device, compressor=CODECS[codec], dtype=dtype, order=order)
    native = np.dtype(dtype).newbyteorder("=")
    expected = elements(native)
    written = there.write(put(device, expected, "F"))
    written.result()
    counts = written.commit.statistics.snapshot()
    assert host.read().result().tobytes() == expected.tobytes()
    assert on_host(device, there.read().result()).tobytes() == expected.tobytes()
    assert counts.get("host_encodings", 0) == 0
    assert counts.get("chunks_encoded_device", 0) == (0 if codec == "raw" else 20)
    assert counts["waits"] == 2


def written(device, store, part, array, order="C"):
    """What a write of an array on the device counted."""
    futures = store[part].write(put(device, array, order))
    futures.result()
    return futures.commit.statistics.snapshot()


@pytest.mark.parametrize("codec", CODECS)
def test_parts_of_chunks_are_laid_over_what_is_stored(tmp_path, device, codec):
    host, there = create(tmp_path, device, compressor=CODECS[codec], fill_value=3)
    expected = np.full(SHAPE, 3, "u4")
    for number, part in enumerate(
        [
            np.s_[5:40, 7:33],
            np.s_[10:30, 60:3:-2],
            np.s_[::3, 5],
            np.s_[gpustore.newaxis, 20:21, :],
            np.s_[40:, 65:],
            np.s_[7, 8],
        ]
    ):
        found = expected[part]
        array = elements("u4", np.shape(found), seed=number) + 10
        counts = written(device, there, part, array, "F" if number % 2 else "C")
        expected[part] = array
        assert np.array_equal(host.read().result(), expected)
        assert counts.get("host_encodings", 0) == counts.get("host_fallbacks", 0) == 0
        assert counts["waits"] == 2


def test_sources_are_broadcast(tmp_path, device):
    host, there = create(tmp_path, device, compressor=CODECS["zstd"])
    row = elements("u4", (1, 70))
    written(device, there, np.s_[...], row)
    assert np.array_equal(host.read().result(), np.broadcast_to(row, SHAPE))
    written(device, there, np.s_[3:20], np.uint32(9))
    assert (host[3:20].read().result() == 9).all()
    with pytest.raises(gpustore.MismatchError, match="Error aligning dimensions"):
        there.write(put(device, elements("u4", (3, 70))))


def test_elements_that_index_arrays_select_are_written(tmp_path, device):
    host, there = create(tmp_path, device, compressor=CODECS["lz4"], dtype=">u2")
    expected = elements("u2")
    written(device, there, np.s_[...], expected)
    rows, columns = np.array([3, 44, 7, 3, 44]), np.array([1, 69, 2, 1, 68])
    array = np.arange(5, dtype="u2") + 100
    written(device, there.vindex, (rows, columns), array)
    expected[rows, columns] = array
    assert np.array_equal(host.read().result(), expected)
    block = elements("u2", (3, 70), seed=1)
    written(device, there.oindex, ([9, 8, 30], slice(None)), block)
    expected[[9, 8, 30]] = block
    assert np.array_equal(host.read().result(), expected)


@pytest.mark.parametrize("codec", CODECS)
def test_chunks_of_the_fill_value_are_deleted(tmp_path, device, codec):
    host, there = create(tmp_path, device, compressor=CODECS[codec], fill_value=7)
    written(device, there, np.s_[...], np.ones(SHAPE, "u4"))
    array = np.full(SHAPE, 7, "u4")
    array[20, 20] = 1
    counts = written(device, there, np.s_[...], array)
    assert [path.name for path in tmp_path.iterdir() if path.name[0].isdigit()] == ["1.1"]
    assert np.array_equal(host.read().result(), array)
    assert counts["bytes_to_host"] < 3000
    there[20, 20].write(7).result()
    assert [path.name for path in tmp_path.iterdir() if path.name[0].isdigit()] == []


@pytest.mark.parametrize("shape", [(8, 4), (1, 4)])
def test_chunks_that_elements_for_one_place_do_not_cover_are_filled(tmp_path, device, shape):
    """As many elements as the chunk has, all for its first row."""
    create(tmp_path, device, shape=list(shape), chunks=[4, 4], fill_value=7)
    spec = {
        "driver": "zarr",
        "kvstore": f"file://{tmp_path}",
        "transform": {"input_shape": [4, 4], "output": [{"offset": 0}, {"input_dimension": 1}]},
    }
    there = gpustore.open(spec, device=device.name).result()
    array = elements("u4", (4, 4))
    written(device, there, np.s_[...], array)
    expected = np.full((4, 4), 7, "u4")
    expected[0] = array[-1]
    assert np.array_equal(np.fromfile(tmp_path / "0.0", "<u4").reshape(4, 4), expected)


def test_chunks_of_the_fill_value_are_kept_on_request(tmp_path, device):
    create(tmp_path, device, compressor=CODECS["zstd"])
    spec = {
        "driver": "zarr",
        "kvstore": f"file://{tmp_path}",
        "store_data_equal_to_fill_value": True,
    }
    there = gpustore.open(spec, device=device.name).result()
    written(device, there, np.s_[:16, :16], np.zeros((16, 16), "u4"))
    assert (tmp_path / "0.0").exists()


def test_encoded_bytes_alone_come_to_the_host(tmp_path, lazy):
    host, there = create(
        tmp_path, lazy, shape=[512, 512], chunks=[64, 64], compressor=CODECS["zstd"]
    )
    array = np.repeat(np.arange(512, dtype="u4"), 512).reshape(512, 512)
    counts = written(lazy, there, np.s_[...], array)
    assert np.array_equal(host.read().result(), array)
    stored = sum(path.stat().st_size for path in tmp_path.iterdir() if path.name[0].isdigit())
    assert counts["bytes_stored"] == stored
    # Sizes, statuses and comparisons: 16 bytes a chunk; and values begin at multiples of 16.
    assert stored < counts["bytes_to_host"] < stored + 64 * 40
    assert counts["bytes_to_device"] < 64 * 400
    assert counts["waits"] == 2
    assert counts["copies"] <= 5


def test_batches_have_as_many_chunks_as_the_budget(tmp_path, lazy):
    host, _ = create(tmp_path, lazy, shape=[512, 512], chunks=[64, 64], compressor=CODECS["zstd"])
    context = gpustore.Context({"limits": {"device_in_flight_nbytes": 16 * 10 * 16384}})
    there = gpustore.open(f"file://{tmp_path}", device=lazy.name, context=context).result()
    array = elements("u4", (512, 512))
    counts = written(lazy, there, np.s_[...], array)
    assert np.array_equal(host.read().result(), array)
    assert 2 * 7 <= counts["waits"] <= 2 * 10


@pytest.mark.parametrize(
    ("compressor", "filters"),
    [
        ({"id": "zstd", "level": 22}, None),
        ({"id": "zstd", "level": 1, "checksum": True}, None),
        ({"id": "bz2", "level": 1}, None),
        ({"id": "zstd", "level": 1}, [{"id": "delta", "dtype": "<u4"}]),
    ],
)
def test_the_host_encodes_what_the_device_cannot(tmp_path, device, compressor, filters):
    host, there = create(tmp_path, device, compressor=compressor, filters=filters)
    array = elements("u4")
    array[:16] = 0
    counts = written(device, there, np.s_[...], array)
    assert np.array_equal(host.read().result(), array)
    assert counts["host_encodings"] == 15
    assert counts.get("chunks_encoded_device", 0) == 0
    written(device, there, np.s_[3:40, 5:10], array[3:40, 5:10] + 1)
    array[3:40, 5:10] += 1
    assert np.array_equal(host.read().result(), array)


def test_the_host_encodes_without_a_library(tmp_path):
    with emulated(decodes=()) as device:
        host, there = create(tmp_path, device, compressor=CODECS["zstd"])
        counts = written(device, there, np.s_[...], elements("u4") + 1)
        assert counts["host_encodings"] == 20
        written(device, there, np.s_[3:5], np.full((2, 70), 9, "u4"))
        assert (host[3:5].read().result() == 9).all()


@pytest.mark.parametrize("filters", [None, [{"id": "shuffle", "elementsize": 4}]])
def test_the_host_encodes_streams_the_device_fails_at(tmp_path, lazy, filters):
    host, there = create(tmp_path, lazy, compressor=CODECS["zstd"], filters=filters)
    lazy.faults.compressions = {(1, 3): 10, (1, 7): 1000}  # The first call is the test.
    array = elements("u4") + 1
    counts = written(lazy, there, np.s_[...], array)
    assert np.array_equal(host.read().result(), array)
    assert counts["host_encodings"] == 2
    assert counts["chunks_encoded_device"] == 18


def test_the_host_decodes_stored_chunks_that_the_device_cannot(tmp_path, lazy):
    host, there = create(tmp_path, lazy, compressor=CODECS["zstd"])
    array = elements("u4") + 1
    host.write(array).result()
    lazy.faults.statuses = {(0, 1): 12}
    counts = written(lazy, there, np.s_[:, 3:7], array[:, 3:7] + 5)
    array[:, 3:7] += 5
    assert np.array_equal(host.read().result(), array)
    assert counts["host_fallbacks"] == counts["retries"] == 1


@pytest.mark.parametrize("codec", ["raw", "zstd", "lz4"])
def test_damaged_stored_chunks_are_named(tmp_path, device, codec):
    host, there = create(tmp_path, device, compressor=CODECS[codec])
    host.write(elements("u4") + 1).result()
    path = tmp_path / "1.2"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(gpustore.CorruptChunkError, match=r'Error reading ".*1\.2"') as caught:
        there[17:20, 30:40].write(put(device, np.ones((3, 10), "u4"))).result()
    assert caught.value.key == str(path)
    written(device, there, np.s_[16:32, 32:48], np.ones((16, 16), "u4"))
    assert (host[16:32, 32:48].read().result() == 1).all()


def test_writes_of_both_memories_take_effect_in_order(tmp_path, lazy):
    host, there = create(tmp_path, lazy, compressor=CODECS["zstd"])
    expected = np.zeros(SHAPE, "u4")
    futures = []
    for row in range(40):
        array = elements("u4", (3, 70), seed=row)
        source = array if row % 3 == 0 else put(lazy, array, "F" if row % 2 else "C")
        futures.append(there[row : row + 3].write(source))
        expected[row : row + 3] = array
    for future in futures:
        future.result()
    assert np.array_equal(host.read().result(), expected)


def test_arrays_of_another_type_are_cast_by_the_host(tmp_path, device):
    host, there = create(tmp_path, device, dtype="<f8")
    array = elements("f4")
    written(device, there, np.s_[...], array)
    assert np.array_equal(host.read().result(), array)
    with pytest.raises(TypeError, match="according to the rule 'safe'"):
        there.write(put(device, elements("c8")))


@pytest.mark.parametrize("dtype", ["bool", "int4", "bfloat16", "complex64"])
def test_types_are_written_as_the_host_writes_them(tmp_path, device, dtype):
    codecs = [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1}}]
    if dtype in ("bfloat16", "complex64"):
        codecs[0]["configuration"] = {"endian": "big"}
    spec = {
        "driver": "zarr3",
        "kvstore": f"file://{tmp_path}",
        "metadata": {
            "shape": list(SHAPE),
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [16, 16]}},
            "codecs": codecs,
        },
    }
    host = gpustore.open(spec, create=True).result()
    there = gpustore.open(spec, open=True, device=device.name).result()
    array = elements("u1").astype(host.dtype.numpy_dtype)
    counts = written(device, there, np.s_[...], array)
    assert host.read().result().tobytes() == array.tobytes()
    assert counts["chunks_encoded_device"] == 20


def test_records_are_written_field_by_field(tmp_path, device):
    dtype = np.dtype([("a", ">u2"), ("b", "<f4", (2,)), ("c", "|S3")])
    metadata = {"dtype": [["a", ">u2"], ["b", "<f4", [2]], ["c", "|S3"]], "fill_value": None}
    made = {"shape": [50, 70], "chunks": [16, 16], "compressor": CODECS["zstd"], **metadata}
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}", "metadata": made, "field": "a"}
    gpustore.open(spec, create=True).result()
    for field in "ab":
        spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}", "field": field}
        there = gpustore.open(spec, device=device.name).result()
        reader = gpustore.open(spec).result()
        array = elements(dtype[field].base.newbyteorder("="), reader.shape)
        written(device, there, np.s_[...], array)
        assert np.array_equal(reader.read().result(), array)


def sharded(path, device, inner):
    """An array of shards of 4 inner chunks, on the host and on the device."""
    configuration = {
        "chunk_shape": [8, 8],
        "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}, *inner],
        "index_codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "crc32c"},
        ],
    }
    metadata = {
        "shape": [64, 64],
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [16, 16]}},
        "codecs": [{"name": "sharding_indexed", "configuration": configuration}],
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{path}", "metadata": metadata}
    host = gpustore.open(spec, create=True).result()
    return host, gpustore.open(spec, device=device.name).result()


ZSTD_V3 = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}


@pytest.mark.parametrize("inner", [[], [ZSTD_V3], [ZSTD_V3, {"name": "crc32c"}]])
def test_shards_are_encoded_together(tmp_path, device, inner):
    host, there = sharded(tmp_path, device, inner)
    expected = elements("u2", (64, 64)) + 1
    counts = written(device, there, np.s_[...], expected)
    assert counts["waits"] == 2
    assert np.array_equal(host.read().result(), expected)
    part = elements("u2", (50, 3), seed=1)
    counts = written(device, there, np.s_[5:55, 30:33], part)
    expected[5:55, 30:33] = part
    assert counts["waits"] == 2
    assert counts.get("host_fallbacks", 0) == counts.get("host_encodings", 0) == 0
    assert np.array_equal(host.read().result(), expected)
    assert on_host(device, there.read().result()).tobytes() == expected.tobytes()


def test_a_damaged_inner_chunk_is_named_and_the_shard_stays(tmp_path, device):
    host, there = sharded(tmp_path, device, [ZSTD_V3, {"name": "crc32c"}])
    host.write(elements("u2", (64, 64)) + 1).result()
    path = tmp_path / "c" / "0" / "1"
    damaged = path.read_bytes()
    damaged = damaged[:3] + bytes([damaged[3] ^ 1]) + damaged[4:]
    path.write_bytes(damaged)
    with pytest.raises(gpustore.CorruptChunkError, match="Digest mismatch") as caught:
        there[3:5, 17:20].write(put(device, np.ones((2, 3), "u2"))).result()
    assert caught.value.key == str(path)
    assert path.read_bytes() == damaged


def test_a_cancelled_write_leaves_nothing(tmp_path, lazy):
    _, there = create(tmp_path, lazy, shape=[512, 512], chunks=[8, 8], compressor=CODECS["zstd"])
    context = gpustore.Context({"limits": {"device_in_flight_nbytes": 16 * 10 * 256}})
    there = gpustore.open(f"file://{tmp_path}", device=lazy.name, context=context).result()
    source = put(lazy, elements("u4", (512, 512)) + 1)
    futures = there.write(source)
    futures.commit.cancel()
    futures.copy.exception(timeout=20)
    part = written(lazy, there, np.s_[:8, :8], np.ones((8, 8), "u4"))
    assert part["chunks_encoded_device"] == 1


# --------------------------------------------------------------------------- stored chunks


@pytest.mark.parametrize(
    ("choice", "by_host"),
    [("auto", False), ("host", True), ({"min_streams": 9, "long_stream_nbytes": 100}, True)],
)
def test_who_decodes_stored_chunks_is_chosen_as_for_a_read(tmp_path, lazy, choice, by_host):
    host, _ = create(tmp_path, lazy, compressor=CODECS["zstd"])
    expected = elements("u4")
    host[...] = expected
    context = gpustore.Context({"gpu_decode_choice": choice})
    there = gpustore.open(f"file://{tmp_path}", context=context, device=lazy.name).result()
    expected[5:20, 10:30] = 77
    decompressed = len(lazy.decompressed)
    counts = written(lazy, there, np.s_[5:20, 10:30], np.full((15, 20), 77, "u4"))
    assert np.array_equal(host.read().result(), expected)
    assert (len(lazy.decompressed) == decompressed) is by_host
    assert counts.get("host_fallbacks", 0) == (4 if by_host else 0)
    assert counts.get("few_stream_reads", 0) == by_host
    assert counts["chunks_encoded_device"] == 4


def test_a_write_that_keeps_nothing_stored_chooses_no_decoder(tmp_path, lazy):
    _, there = create(tmp_path, lazy, compressor=CODECS["zstd"])
    context = gpustore.Context({"gpu_decode_choice": "host"})
    there = gpustore.open(f"file://{tmp_path}", context=context, device=lazy.name).result()
    counts = written(lazy, there, np.s_[...], elements("u4"))
    assert counts.get("few_stream_reads", 0) == 0


def test_a_full_cache_gives_back_memory_for_whole_submissions(tmp_path):
    """Else a device without free memory encodes chunk by chunk."""
    with emulated(total_nbytes=24 << 20) as device:
        shape, chunk = (512, 1 << 12), (1, 1 << 12)
        host, _ = create(tmp_path, device, shape=shape, chunks=chunk, compressor=CODECS["zstd"])
        first = elements("u4", shape)
        host[...] = first
        context = gpustore.Context({"device_cache_pool": {"total_bytes_limit": 1 << 30}})
        there = gpustore.open(f"file://{tmp_path}", context=context, device=device.name).result()
        for row in range(0, 512, 64):
            there[row : row + 64].read().result()
        backend = there._driver.array.backend
        cache = backend.chunk_cache(there._driver.array.residence.pool)
        assert cache.nbytes >= first.nbytes
        source = put(device, first[:8] + 1)
        backend.buffers.free()
        stream = device.caller_stream()
        others = device.empty((device.memory().free_nbytes - (1 << 16),), np.uint8, "C", stream)
        before = cache.nbytes
        futures = there[:8].write(source)
        futures.result()
        counts = futures.commit.statistics.snapshot()
        assert np.array_equal(host[:8].read().result(), first[:8] + 1)
        assert counts["chunks_encoded_device"] == 8
        assert counts["waits"] == 2
        assert before // 4 < cache.nbytes < before
        del there, source, others, cache, backend
