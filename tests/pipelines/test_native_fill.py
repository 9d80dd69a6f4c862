"""Chunks that the native core fetches for a device, against those of the host."""

import threading

import numpy as np
import pytest

import gpustore
from gpustore.backends.device.sink_part import DevicePart
from gpustore.backends.native.library import library
from gpustore.pipelines import native_fill, resident
from tests.emulator.queue import ORDERS
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated, on_host

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(library() is None, reason="needs the native core"),
    pytest.mark.matrix,
]

SHAPE = (40, 60)
CHUNK = 2 << 20
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}


def shard(chunk, *codecs):
    index = [LITTLE, {"name": "crc32c"}]
    configuration = {"chunk_shape": chunk, "codecs": [*codecs], "index_codecs": index}
    return {"name": "sharding_indexed", "configuration": configuration}


FORMATS = {
    "files": ([4, 6], [LITTLE, ZSTD]),
    "raw files": ([4, 6], [LITTLE]),
    "shards": ([8, 12], [shard([4, 6], LITTLE, ZSTD)]),
    "nested shards": ([8, 24], [shard([8, 12], shard([4, 6], LITTLE, ZSTD))]),
}


def blosc(cname, shuffle="shuffle"):
    options = {"cname": cname, "clevel": 5, "shuffle": shuffle, "typesize": 4, "blocksize": 0}
    return {"name": "blosc", "configuration": options}


CRC = {"name": "crc32c"}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
DECODED = {
    "zstd": ([4, 6], [LITTLE, ZSTD]),
    "zstd crc32c": ([4, 6], [LITTLE, ZSTD, CRC]),
    "crc32c": ([4, 6], [LITTLE, CRC]),
    "gzip": ([4, 6], [LITTLE, {"name": "gzip", "configuration": {"level": 1}}]),
    "blosc": ([8, 30], [LITTLE, blosc("lz4")]),
    "transposed": (
        [4, 6],
        [{"name": "transpose", "configuration": {"order": [1, 0]}}, BIG, blosc("zstd")],
    ),
    "shards of zstd": ([8, 12], [shard([4, 6], LITTLE, ZSTD, CRC)]),
    "nested shards of blosc": ([8, 24], [shard([8, 12], shard([4, 6], BIG, blosc("zlib")))]),
}
"""Chunks that the native core decodes."""


def created(path, name, stored=32, dtype="uint32"):
    chunk, codecs = {**FORMATS, **DECODED}[name]
    metadata = {
        "shape": [*SHAPE],
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "codecs": codecs,
        "fill_value": True if dtype == "bool" else 7,
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{path}", "metadata": metadata}
    host = gpustore.open(spec, create=True, device="cpu").result()
    elements = np.random.default_rng(0).integers(0, 9, (stored, 60))
    host[:stored] = elements.astype(dtype)
    return host


def opened(path, device, **options):
    return gpustore.open(f"file://{path}", device=device.name, **options).result()


class Fetches:
    """Counts the rows of reads into a device that are fetched in Python."""

    def __init__(self, monkeypatch):
        self.rows = 0
        self._fetched_batches = resident.fetched_batches
        monkeypatch.setattr(resident, "fetched_batches", self)

    def __call__(self, array, window, *options):
        self.rows += len(window) * (array.backend.device != "cpu")
        return self._fetched_batches(array, window, *options)


PARTS = (np.s_[:], np.s_[3:37:2, 50:1:-1], np.s_[[3, 31, 7], :], np.s_[9, 9])
STARTS = [(0, 0), (3, 50), (30, 7), (17, 20), (5, 50)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("budget", [1 << 30, 20_000], ids=["one submission", "many"])
def test_reads_and_crops_equal_those_of_the_host(tmp_path, monkeypatch, name, order, budget):
    host = created(tmp_path, name)
    monkeypatch.setattr(native_fill, "PIECE_ROWS", (2, 7))
    fetches = Fetches(monkeypatch)
    limits = {"limits": {"device_in_flight_nbytes": budget}}
    with emulated(order, seed=4) as device:
        there = opened(tmp_path, device, context=gpustore.Context(limits))
        for part in PARTS:
            found, expected = there[part].read().result(), host[part].read().result()
            assert np.array_equal(on_host(device, found), expected)
        for extent in ((9, 10), (2, 2)):
            found = there.read_many(STARTS, extent).result()
            assert np.array_equal(on_host(device, found), host.read_many(STARTS, extent).result())
        batch = gpustore.Batch()
        futures = [there[i : i + 9, j::2].read(batch=batch) for i, j in STARTS]
        batch.submit()
        for (i, j), future in zip(STARTS, futures, strict=True):
            found = on_host(device, future.result())
            assert np.array_equal(found, host[i : i + 9, j::2].read().result())
        del future, futures, batch
    assert fetches.rows == 0 or name == "raw files"


def test_rows_that_the_core_leaves_alone_are_fetched_in_python(tmp_path, monkeypatch):
    host = created(tmp_path, "files")
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "c" / "2" / "3").rename(elsewhere)
    (tmp_path / "c" / "2" / "3").symlink_to(elsewhere)
    fetches = Fetches(monkeypatch)
    with emulated() as device:
        there = opened(tmp_path, device)
        found = there.read().result()
        assert np.array_equal(on_host(device, found), host.read().result())
        del found
    assert fetches.rows == 1


CROPS = [(9, 20), (1, 1)]
"""Starts of small crops, one in chunk 2/3 and one elsewhere."""


def test_rows_of_small_crops_that_the_core_leaves_alone_join_the_others(tmp_path, monkeypatch):
    host = created(tmp_path, "files")
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "c" / "2" / "3").rename(elsewhere)
    (tmp_path / "c" / "2" / "3").symlink_to(elsewhere)
    fetches = Fetches(monkeypatch)
    with emulated() as device:
        there = opened(tmp_path, device)
        for starts in (CROPS, CROPS[::-1], [*CROPS, (8, 19), (31, 58)]):
            found = there.read_many(starts, (2, 2)).result()
            assert np.array_equal(on_host(device, found), host.read_many(starts, (2, 2)).result())
        del found
    assert fetches.rows == 4


def test_a_damaged_raw_chunk_of_small_crops_is_named_by_its_key(tmp_path):
    created(tmp_path, "raw files")
    path = tmp_path / "c" / "2" / "3"
    path.write_bytes(path.read_bytes()[:-3])
    with emulated() as device:
        there = opened(tmp_path, device)
        with pytest.raises(gpustore.CorruptChunkError, match=r"c/2/3.*chunk is 93 bytes"):
            there.read_many(CROPS, (2, 2)).result()


@pytest.mark.parametrize("name", ["files", "shards"])
def test_missing_chunks_may_be_an_error(tmp_path, name):
    created(tmp_path, name)
    with emulated() as device:
        spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}"}
        spec["fill_missing_data_reads"] = False
        there = gpustore.open(spec, device=device.name).result()
        there[:32].read().result()
        with pytest.raises(gpustore.NotFoundError, match=r"chunk \{8, 0\} stored at .* is missing"):
            there.read().result()


def test_damaged_chunks_are_named_by_their_keys(tmp_path):
    created(tmp_path, "files")
    for key in ("c/1/2", "c/5/0"):
        path = tmp_path / key
        path.write_bytes(path.read_bytes()[:-3])
    path = tmp_path / "c" / "3" / "3"
    with emulated() as device:
        there = opened(tmp_path, device)
        with pytest.raises(gpustore.CorruptChunkError, match=r"c/1/2.*2 chunks are wrong.*c/5/0"):
            there.read().result()
        path.write_bytes(path.read_bytes() * 10)
        with pytest.raises(gpustore.CorruptChunkError, match="c/3/3"):
            there[12:16].read().result()


def test_parts_of_raw_chunks_are_read_as_such(tmp_path, monkeypatch):
    """Of a long chunk of which less than half is wanted only the span that holds it is fetched."""
    monkeypatch.setattr(native_fill, "WHOLE_NBYTES", 0)
    host = created(tmp_path, "raw files")
    fetches = Fetches(monkeypatch)
    with emulated() as device:
        there = opened(tmp_path, device)
        future = there[3:32, :].read()
        assert np.array_equal(on_host(device, future.result()), host[3:32].read().result())
        assert future.statistics["bytes_fetched"] == 29 * 60 * 4
        del future
    assert fetches.rows == 10


def test_short_raw_chunks_are_fetched_whole_by_the_core(tmp_path, monkeypatch):
    host = created(tmp_path, "raw files")
    fetches = Fetches(monkeypatch)
    with emulated() as device:
        there = opened(tmp_path, device)[3:5, :]
        explanation, future = there.explain(), there.read()
        assert np.array_equal(on_host(device, future.result()), host[3:5].read().result())
        least, most = explanation.counts["bytes_fetched"]
        assert least <= future.statistics["bytes_fetched"] <= most
        assert future.statistics["bytes_fetched"] == explanation.chunks * explanation.chunk_nbytes
        assert future.statistics["key_reads"] == explanation.chunks
        del there, future
    assert fetches.rows == 0


# --------------------------------------------------------------------------- decoded chunks


HOST = {"gpu_decode_choice": "host"}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", DECODED)
@pytest.mark.parametrize("budget", [1 << 30, 20_000], ids=["one submission", "many"])
def test_the_core_decodes_what_the_host_has_to(tmp_path, monkeypatch, name, order, budget):
    dtype = "bool" if name == "shards of zstd" else "uint32"
    host = created(tmp_path, name, dtype=dtype)
    monkeypatch.setattr(native_fill, "PIECE_ROWS", (2, 7))
    fetches = Fetches(monkeypatch)
    context = gpustore.Context({**HOST, "limits": {"device_in_flight_nbytes": budget}})
    with emulated(order, seed=4) as device:
        there = opened(tmp_path, device, context=context)
        for part in PARTS:
            future, expected = there[part].read(), host[part].read().result()
            assert np.array_equal(on_host(device, future.result()), expected)
            counts = future.statistics
            assert counts["chunks_decoded_device"] == counts["retries"] == 0
            stored = counts["chunks_planned"] - counts["chunks_missing"]
            assert counts["host_fallbacks"] == stored
        for extent in ((9, 10), (2, 2)):
            found = there.read_many(STARTS, extent).result()
            assert np.array_equal(on_host(device, found), host.read_many(STARTS, extent).result())
        del future, found
    assert fetches.rows == 0


def test_what_the_core_cannot_decode_is_decoded_in_python(tmp_path, monkeypatch):
    host = created(tmp_path, "zstd")
    for key in ("c/1/2", "c/5/0"):
        path = tmp_path / key
        elsewhere = tmp_path / key.replace("/", "-")
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
    fetches = Fetches(monkeypatch)
    with emulated() as device:
        there = opened(tmp_path, device, context=gpustore.Context(HOST))
        future = there.read()
        assert np.array_equal(on_host(device, future.result()), host.read().result())
        assert future.statistics["host_fallbacks"] == 80
        del future
    assert fetches.rows == 2


def outcome(read):
    """The elements, or key and text of the error."""
    try:
        return read()
    except gpustore.CorruptChunkError as error:
        return [error.key, str(error)]


@pytest.mark.parametrize("name", ["zstd", "zstd crc32c", "blosc", "shards of zstd"])
def test_errors_are_those_of_the_host(tmp_path, name):
    host = created(tmp_path, name)
    path = tmp_path / "c" / "1" / "1"
    value = path.read_bytes()
    with emulated() as device:
        there = opened(tmp_path, device, context=gpustore.Context(HOST))
        for damaged in (value[:-3], value[:20] + b"??" + value[22:], value * 10, b""):
            path.write_bytes(damaged)
            expected = outcome(lambda: host.read().result())
            found = outcome(lambda: on_host(device, there.read().result()))
            assert np.array_equal(found, expected)


def test_decoded_chunks_that_must_be_stored_are_named(tmp_path):
    created(tmp_path, "zstd")
    with emulated() as device:
        spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}"}
        spec["fill_missing_data_reads"] = False
        there = gpustore.open(spec, device=device.name, context=gpustore.Context(HOST)).result()
        with pytest.raises(gpustore.NotFoundError, match=r"chunk \{8, 0\} stored at .* is missing"):
            there.read().result()


def test_a_few_long_chunks_are_divided_among_all_threads(tmp_path, monkeypatch):
    """Chunks that decode in a millisecond each: the host decodes them because they are few."""
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}"}
    layout = gpustore.ChunkLayout(chunk_shape=[1, 2 << 20])
    codec = gpustore.CodecSpec({"driver": "zarr3", "codecs": [ZSTD]})
    host = gpustore.open(
        spec, create=True, dtype="uint8", shape=[8, 2 << 20], chunk_layout=layout, codec=codec
    ).result()
    host[...] = np.arange(8, dtype="u1")[:, None]
    pieces, both = [], threading.Barrier(2, timeout=20)
    fill = DevicePart.fill

    def noted(part, files, lo, hi, *cached):
        pieces.append(hi - lo)
        if len(pieces) <= 2:
            both.wait()
        return fill(part, files, lo, hi, *cached)

    monkeypatch.setattr(DevicePart, "fill", noted)
    context = gpustore.Context({"data_copy_concurrency": {"limit": 4}})
    with emulated() as device:
        future = opened(tmp_path, device, context=context).read()
        assert (on_host(device, future.result()) == np.arange(8, dtype="u1")[:, None]).all()
        assert future.statistics["few_stream_reads"] == 1
        del future
    assert pieces == [1] * 8


def test_the_error_of_the_first_chunk_that_fails_is_raised(tmp_path, monkeypatch):
    """Also where the thread that has it is slower than one that fails at a later chunk."""
    monkeypatch.setattr(native_fill, "PIECE_ROWS", (1, 1))
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/"}
    spec["metadata"] = {"shape": [8, CHUNK], "chunks": [1, CHUNK], "dtype": "|u1"}
    spec["metadata"]["compressor"] = {"id": "zstd", "level": 1}
    gpustore.open(spec, create=True, device="cpu").result()[:4] = 1
    later = threading.Event()
    fill, note = DevicePart.fill, native_fill.NativeFill._note

    def slow(part, files, lo, hi, *cached):
        if lo == 4:
            assert later.wait(60)
        return fill(part, files, lo, hi, *cached)

    def noted(filling, number, error):
        note(filling, number, error)
        later.set()

    monkeypatch.setattr(DevicePart, "fill", slow)
    monkeypatch.setattr(native_fill.NativeFill, "_note", noted)
    context = gpustore.Context({"data_copy_concurrency": {"limit": 4}})
    with emulated() as device:
        spec["fill_missing_data_reads"] = False
        store = gpustore.open(spec, device=device.name, context=context).result()
        with pytest.raises(gpustore.NotFoundError) as caught:
            store.read().result()
        assert later.is_set()
        assert caught.value.key.endswith("/4.0")
        del caught, store
