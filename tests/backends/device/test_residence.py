"""Reads of arrays whose chunks stay in the memory of an emulated device."""

import gc
import json
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.backends.device import slab
from tests.emulator import host_build
from tests.matrix import each
from tests.on_device import emulated, on_host
from tests.pipelines.test_cached import BYTES, CHAINS, OTHERS, OWN, check_steps, steps
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(host_build.COMPILER is None, reason="no C++ compiler")

METADATA = {
    "data_type": "int16",
    "shape": [9, 10],
    "fill_value": 7,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 6]}},
}


def opened(path, device, chain="gzip", *, limit=10**6, stored=6, pool=(), **options):
    """An array in files, without a cache on the host, and with one on a device."""
    url = f"file://{path}/a|zarr3:"
    host = gpustore.open(
        {**gpustore.Spec(url).to_json(), "metadata": {**METADATA, "codecs": CHAINS[chain]}},
        create=True,
        device="cpu",
    ).result()
    host[:stored] = np.arange(stored * 10, dtype=np.int16).reshape(stored, 10)
    context = gpustore.Context({"device_cache_pool": {"total_bytes_limit": limit, **dict(pool)}})
    options = {"recheck_cached_data": False, **options}
    spec = {**gpustore.Spec(url).to_json(), **options}
    return host, gpustore.open(spec, context=context, device=device.name).result()


def cache_of(store):
    return next(iter(store._driver.resources["device_cache_pool"].value.caches.values()))


def counted(device, store):
    """Elements of a read, and what it counted."""
    future = store.read()
    return on_host(device, future.result()), future.statistics.snapshot()


ELSEWHERE = (
    *(np.s_[3:8, 2:], np.s_[::-1, ::3], np.s_[5], np.s_[..., 7], np.s_[8, 9], np.s_[:, np.newaxis]),
    gpustore.d[0, 1].transpose[1, 0],
)


NOTHING = {
    "copies",
    "key_reads",
    "bytes_fetched",
    "bytes_decoded",
    "bytes_to_device",
    "bytes_to_host",
    "device_cache_misses",
    "device_cache_bytes",
}


@each("chain", CHAINS)
def test_second_epoch_asks_for_nothing_and_copies_nothing(tmp_path, chain):
    with emulated() as device:
        host, there = opened(tmp_path, device, chain)
        expected = host.read().result()
        found, first = counted(device, there)
        assert np.array_equal(found, expected)
        chunks, missing = (20, 8) if chain == "shards" else (6, 2)
        assert first["device_cache_misses"] == chunks
        nbytes = there._driver.array.chain.layout.nbytes
        assert first["device_cache_bytes"] == (chunks - missing) * nbytes
        found, second = counted(device, there)
        assert np.array_equal(found, expected)
        assert second["device_cache_hits"] == chunks
        assert second["chunks_missing"] == missing
        for part in ELSEWHERE:  # Nor do reads of which there was none before.
            found, counts = counted(device, there[part])
            assert np.array_equal(found, host[part].read().result())
            second |= counts
        assert not second.keys() & {*NOTHING, "chunks_decoded_device"}
        there._driver.array.backend.release()
        assert len(cache_of(there)) == 0


def blosc(cname, shuffle, **options):
    return {"id": "blosc", "cname": cname, "shuffle": shuffle, "clevel": 5, **options}


ZSTD = {"name": "zstd", "configuration": {"level": 1}}
SHUFFLE = {"id": "shuffle", "elementsize": 4}
COMPRESSED = {
    "zstd": {"codecs": [BYTES, ZSTD]},
    "zstd-crc32c": {"codecs": [BYTES, ZSTD, "crc32c"]},
    "shards": {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [80, 60]}},
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {"chunk_shape": [40, 60], "codecs": [BYTES, ZSTD, "crc32c"]},
            }
        ],
    },
    "raw": {"codecs": [BYTES]},
    "gzip": {"compressor": {"id": "gzip", "level": 1}},
    "zlib": {"compressor": {"id": "zlib", "level": 1}},
    "lz4": {"compressor": {"id": "lz4"}},
    "shuffle-zstd": {"compressor": {"id": "zstd", "level": 1}, "filters": [SHUFFLE]},
    "blosc-lz4": {"compressor": blosc("lz4", 1)},
    "blosc-lz4-blocks": {"compressor": blosc("lz4", 2, blocksize=1024)},
    "blosc-zstd": {"compressor": blosc("zstd", 0)},
    "blosc-zstd-bits": {"compressor": blosc("zstd", 2, blocksize=1 << 12)},
    "blosc-zlib": {"compressor": blosc("zlib", 1)},
    "blosclz": {"compressor": blosc("blosclz", 1)},
    # For these tables are uploaded all the same:
    "n5-raw": {"compression": {"type": "raw"}},
    "delta": {"compressor": {"id": "zstd"}, "filters": [{"id": "delta", "dtype": "<u4"}]},
    "python-zstd": {"codecs": [BYTES, ZSTD]},
}


def compressed(path, chain):
    """Array of 25 chunks: of every kind of values, of which two are not stored."""
    metadata = COMPRESSED[chain]
    driver = "zarr3" if "codecs" in metadata else "n5" if "compression" in metadata else "zarr2"
    common = {"shape": [190, 290], "fill_value": 7}
    if driver == "n5":
        shapes = {"dimensions": [190, 290], "blockSize": [40, 60]}
        metadata = {**shapes, "dataType": "uint32", **metadata}
    elif driver == "zarr3":
        grid = {"name": "regular", "configuration": {"chunk_shape": [40, 60]}}
        metadata = {**common, "data_type": "uint32", "chunk_grid": grid, **metadata}
    else:
        metadata = {**common, "dtype": "<u4", "chunks": [40, 60], "filters": None, **metadata}
    spec = {"driver": driver, "kvstore": f"file://{path}/a", "metadata": metadata}
    store = gpustore.open(spec, create=True, device="cpu").result()
    rng = np.random.default_rng(0)
    values = np.add.outer(np.arange(190, dtype=np.uint32), np.arange(290, dtype=np.uint32) // 7)
    values[:90, 70:150] = rng.integers(0, 2**32, (90, 80), np.uint32)
    values[100:] += rng.integers(0, 5, (90, 290), np.uint32)
    values[:80, 240:] = 7
    store[...] = values
    if chain == "zstd":  # In two frames, which the host decodes.
        value = path / "a/c/0/0"
        decoded = zstandard.decompress(value.read_bytes())
        value.write_bytes(b"".join(map(zstandard.compress, (decoded[:500], decoded[500:]))))
    return store


@pytest.mark.matrix
@each("chain", COMPRESSED)
def test_second_epoch_of_encoded_chunks_copies_nothing(tmp_path, chain):
    host = compressed(tmp_path, chain)
    expected = host.read().result()
    with emulated(reads_tables=chain != "python-zstd") as device:
        context = gpustore.Context(
            {"device_cache_pool": {"total_bytes_limit": 10**7, "content": "encoded"}}
        )
        there = gpustore.open(
            host.url, context=context, device=device.name, recheck_cached_data=False
        ).result()
        assert np.array_equal(counted(device, there)[0], expected)
        found, second = counted(device, there)
        assert np.array_equal(found, expected)
        assert second["device_cache_hits"] == 25
        decoded = {"raw": 0, "zstd": 22, "n5-raw": 25}.get(chain, 23)
        assert second.get("chunks_decoded_device", 0) == decoded
        for part in (np.s_[30:170, 50:260], np.s_[::-1, ::3], np.s_[7, 5], np.s_[:, 100:110]):
            found, counts = counted(device, there[part])
            assert np.array_equal(found, host[part].read().result())
            second |= counts
        if chain in ("n5-raw", "delta", "python-zstd"):
            assert second.keys() & NOTHING == {"copies", "bytes_to_device", "bytes_to_host"}
        else:
            assert not second.keys() & NOTHING
            assert second["launches"] <= 13
            # Others send numbers of chunks and copies, those of fill values apart.
            starts, shape = [[3, 5], [100, 200], [5, 3]], (50, 60)
            for future, wanted in (
                (there.oindex[[170, 3, 60], :].read(), expected[[170, 3, 60]]),
                (there.read_many(starts, shape), host.read_many(starts, shape).result()),
            ):
                assert np.array_equal(on_host(device, future.result()), wanted)
                counts = future.statistics.snapshot()
                assert counts.keys() & NOTHING == {"copies", "bytes_to_device"}
                assert counts["copies"] <= 2
            del future
        there._driver.array.backend.release()
        assert len(cache_of(there)) == 0


@each("content", ["decoded", "encoded"])
@each("chain", CHAINS)
def test_second_epoch_from_pinned_memory_is_one_upload_of_what_was_kept(tmp_path, chain, content):
    """Beside that of the tables; the kvstore is asked for nothing."""
    with emulated() as device:
        pool = {"content": content, "memory": "pinned"}
        host, there = opened(tmp_path, device, chain, pool=pool)
        expected = host.read().result()
        found, first = counted(device, there)
        assert np.array_equal(found, expected)
        found, second = counted(device, there)
        assert np.array_equal(found, expected)
        assert second["device_cache_hits"] == first["device_cache_misses"]
        # Missing chunks have tables of their own, and decoding results.
        assert second["copies"] == (2 if content == "decoded" or chain == "raw" else 4)
        kept = first["device_cache_bytes"]
        assert kept <= second["bytes_to_device"] < kept + 4096
        assert second.get("bytes_to_host", 0) < 4096
        assert not second.keys() & {
            "key_reads",
            "bytes_fetched",
            "device_cache_misses",
            "device_cache_bytes",
        }
        assert device._memory.live_nbytes < kept + (8 << 20)  # Nothing but a staging buffer.
        there._driver.array.backend.release()
        assert len(cache_of(there)) == 0


def test_chunks_that_lie_apart_are_uploaded_apart(tmp_path, monkeypatch):
    with emulated() as device:
        host, there = opened(tmp_path, device, pool={"memory": "pinned"}, stored=9)
        there.preload().result()
        for gap_nbytes, copies in ((slab._GAP_NBYTES, 1), (15, 3)):
            monkeypatch.setattr(slab, "_GAP_NBYTES", gap_nbytes)
            for part, uploads in ((np.s_[:, 6:], copies), (np.s_[:8], 1), (np.s_[:], 1)):
                future = there[part].read()
                assert np.array_equal(on_host(device, future.result()), host[part].read().result())
                assert future.statistics["copies"] == 1 + uploads
        del there, future


@each("chain", ["gzip", "shards"])
def test_a_resized_array_keeps_the_chunks_it_has(tmp_path, chain):
    with emulated() as device:
        _, there = opened(tmp_path, device, chain, stored=9)
        counted(device, there)
        rows, columns = (2, 3) if chain == "shards" else (4, 6)
        for shape in ((14, 10), (9, 17), (6, 10), (9, 10)):
            before = there.shape
            there = there.resize(exclusive_max=shape).result()
            found, counts = counted(device, there)
            plain = gpustore.open(there.url, device="cpu").result()
            assert np.array_equal(found, plain.read().result())
            kept, every = (
                np.prod([-(-size // chunk) for size, chunk in zip(sizes, (rows, columns))])
                for sizes in (np.minimum(before, shape), shape)
            )
            assert counts["device_cache_hits"] >= kept
            assert counts.get("device_cache_misses", 0) <= every - kept
        del there


def pair(device, limit, chain, pool, url="memory://a|zarr3:", **options):
    """The same array twice: on the device with a cache, and on the host without."""
    values = gpustore.Context()
    context = gpustore.Context({"device_cache_pool": {"total_bytes_limit": limit, **pool}}, values)
    values["memory_key_value_store"]
    spec = {**gpustore.Spec(url).to_json(), **options}
    metadata = {**METADATA, "codecs": CHAINS[chain]}
    keywords = {"create": True, "delete_existing": True, "device": "cpu"}
    plain = gpustore.open({**spec, "metadata": metadata}, context=values, **keywords).result()
    return gpustore.open(spec, context=context, device=device.name).result(), plain


class OnHost:
    """A store on a device whose reads give arrays of the host."""

    def __init__(self, device, store):
        self.device = device
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)

    def __getitem__(self, index):
        return OnHost(self.device, self.store[index])

    @property
    def oindex(self):
        return OnHost(self.device, self.store.oindex)

    def read(self, **options):
        return _Read(self.device, self.store.read(**options))

    def read_many(self, *arguments):
        return _Read(self.device, self.store.read_many(*arguments))

    def resolve(self):
        return _Resolved(self.device, self.store.resolve())


class _Read:
    def __init__(self, device, future):
        self.device = device
        self.future = future

    def result(self):
        return on_host(self.device, self.future.result())


class _Resolved(_Read):
    def result(self):
        return OnHost(self.device, self.future.result())


POOLS = [
    {"content": content, "memory": memory}
    for content in ("decoded", "encoded")
    for memory in ("device", "pinned")
]
LIMITS = {"less than a chunk": 4000, "some chunks": 4300, "all": 10**6}


@pytest.mark.matrix
@given(
    steps(OWN + OTHERS),
    st.sampled_from(list(LIMITS)),
    st.sampled_from(list(CHAINS)),
    st.sampled_from(POOLS),
)
def test_reads_are_those_without_a_cache(steps, limit, chain, pool):
    with emulated() as device:
        there, plain = pair(device, LIMITS[limit], chain, pool)
        plain.write(np.arange(90, dtype=np.int16).reshape(9, 10)).result()
        check_steps(OnHost(device, there), plain, steps)
        del there


@pytest.mark.matrix
@given(
    steps(OWN),
    st.sampled_from(["some chunks", "all"]),
    st.sampled_from(list(CHAINS)),
    st.sampled_from(POOLS),
    st.booleans(),
)
def test_own_changes_are_seen_without_rechecks(steps, limit, chain, pool, is_file):
    """Nobody else writes: a cache that is never compared with what is stored is right, too.

    Chunks in files are fetched by the native core, those in memory in Python.
    """
    with emulated() as device, TemporaryDirectory() as path:
        url = f"file://{path}/a|zarr3:" if is_file else "memory://a|zarr3:"
        there, plain = pair(device, LIMITS[limit], chain, pool, url, recheck_cached_data=False)
        check_steps(OnHost(device, there), plain, steps)
        del there


@pytest.mark.parametrize("driver", ["zarr2", "zarr3"])
@pytest.mark.parametrize("pool", ["device_cache_pool", "cache_pool"])
def test_changes_by_stores_opened_with_other_attributes_are_seen(tmp_path, driver, pool):
    url = f"file://{tmp_path}/a|{driver}:"
    document, member = {
        "zarr2": (".zarray", {"note": 1}),
        "zarr3": ("zarr.json", {"attributes": {"note": 1}}),
    }[driver]
    with emulated() as device:
        host = gpustore.open(
            url, create=True, device="cpu", dtype="int16", shape=[8], chunks=[8]
        ).result()
        host[...] = 1
        context = gpustore.Context({pool: {"total_bytes_limit": 10**6}})
        options = {"context": context, "device": device.name, "recheck_cached_data": False}
        before = gpustore.open(url, **options).result()
        assert set(on_host(device, before.read().result())) == {1}
        path = tmp_path / "a" / document
        path.write_text(json.dumps({**json.loads(path.read_text()), **member}))
        after = gpustore.open(url, **options).result()
        after[...] = np.full(8, 5, np.int16)
        assert set(on_host(device, before.read().result())) == {5}
        del before, after


@each("chain", ["gzip", "shards"])
def test_changes_elsewhere_are_seen_by_generation(tmp_path, chain):
    with emulated() as device:
        host, there = opened(tmp_path, device, chain, recheck_cached_data=True)
        counted(device, there)
        found, counts = counted(device, there)
        chunks, keys = (20, 6) if chain == "shards" else (6, 6)
        assert counts["device_cache_hits"] == chunks
        assert counts["key_reads"] == keys
        assert "bytes_fetched" not in counts
        host[0, 0] = -1
        found, counts = counted(device, there)
        assert np.array_equal(found, host.read().result())
        assert counts["device_cache_misses"] == (4 if chain == "shards" else 1)
        del there


def test_writers_drop_what_they_change(tmp_path):
    """Also those of a store in host memory, if they have the pool."""
    with emulated() as device:
        host, _ = opened(tmp_path, device)
        context = gpustore.Context({"device_cache_pool": {"total_bytes_limit": 10**6}})
        there, writer = (
            gpustore.open(
                host.url, context=context, device=name, recheck_cached_data=False
            ).result()
            for name in (device.name, "cpu")
        )
        for value, store in enumerate((there, writer)):
            counted(device, there)
            store[:4] = value
            found, counts = counted(device, there)
            assert (found[:4] == value).all()
            assert counts["device_cache_misses"] == 2
        gpustore.open(
            {"driver": "zarr3", "kvstore": host.kvstore.url, "metadata": METADATA},
            context=context,
            create=True,
            delete_existing=True,
            device="cpu",
        ).result()
        assert len(cache_of(there)) == 0
        del there, store


def test_a_group_drops_the_chunks_of_what_it_deletes(tmp_path):
    with emulated() as device:
        context = gpustore.Context({"device_cache_pool": {"total_bytes_limit": 10**6}})
        url = f"file://{tmp_path}/g|zarr3:"
        group = gpustore.open_group(url, create=True, context=context, device=device.name).result()
        for value in (1, 2):
            host = gpustore.open(
                {
                    **gpustore.Spec(f"file://{tmp_path}/g/b/a|zarr3:").to_json(),
                    "metadata": METADATA,
                },
                create=True,
                device="cpu",
            ).result()
            host[...] = value
            there = gpustore.open(
                host.url, context=context, device=device.name, recheck_cached_data=False
            ).result()
            found, _ = counted(device, there)
            assert (found == value).all()
            assert len(cache_of(there)) > 0
            del group["b/a"]
            assert len(cache_of(there)) == 0
        del there


@each("chain", CHAINS)
def test_preload_brings_all_chunks_and_places_none(tmp_path, chain):
    with emulated() as device:
        host, there = opened(tmp_path, device, chain)
        future = there[:5].preload()
        assert future.result() is None
        chunks = 12 if chain == "shards" else 4
        counts = future.statistics.snapshot()
        assert counts["chunks_planned"] == counts["device_cache_misses"] == chunks
        assert len(cache_of(there)) == chunks
        assert there.preload().result() is None
        assert len(cache_of(there)) == (20 if chain == "shards" else 6)
        found, counts = counted(device, there)
        assert np.array_equal(found, host.read().result())
        assert "device_cache_misses" not in counts
        again = there.preload()
        assert again.result() is None
        assert not again.statistics.snapshot().keys() & {"copies", "launches", "key_reads"}
        del there


def test_preload_of_a_cast_loads_its_base(tmp_path):
    with emulated() as device:
        _, there = opened(tmp_path, device)
        gpustore.cast(there, "float32").preload().result()
        assert len(cache_of(there)) == 6
        del there


def test_preload_needs_a_pool_and_a_device(tmp_path):
    with emulated() as device:
        host, there = opened(tmp_path, device, limit=4000)
        for store in (host, there, gpustore.open(host.url, device=device.name).result()):
            with pytest.raises(gpustore.UnsupportedError, match="preload needs a store"):
                store.preload()
        assert np.array_equal(counted(device, there)[0], host.read().result())
        del there, store
    with pytest.raises(gpustore.UnsupportedError, match='not supported by the "array" driver'):
        gpustore.array(np.arange(3)).preload()


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: "-".join(pool.values()))
def test_reads_of_chunks_that_are_there_stage_tables_only(tmp_path, pool):
    url = f"file://{tmp_path}/s|zarr3:"
    with emulated() as device:
        host = gpustore.open(
            url, create=True, device="cpu", dtype="uint8", shape=[24, 1 << 18],
            chunk_layout=gpustore.ChunkLayout(chunk_shape=[1, 1 << 18]),
        ).result()  # fmt: skip
        elements = np.random.default_rng(0).integers(0, 3, (24, 1 << 18), np.uint8)
        host[...] = elements
        context = gpustore.Context({"device_cache_pool": {"total_bytes_limit": 10**9, **pool}})
        there = gpustore.open(
            url, context=context, device=device.name, recheck_cached_data=False
        ).result()
        there.preload().result()
        there._driver.array.backend.buffers.free()
        pinned = sum([len(one.view) for one in device._pinned])
        before = device._memory.live_nbytes
        found = there.read().result()
        staged = device._memory.live_nbytes - before - elements.nbytes
        assert 0 < staged == sum([len(one.view) for one in device._pinned]) - pinned <= 2 << 20
        assert np.array_equal(on_host(device, found), elements)
        del there, found


def test_parts_that_are_there_and_parts_that_are_not_are_read_together(tmp_path):
    with emulated() as device:
        host, there = opened(tmp_path, device, stored=9)
        there[:4, 6:].preload().result()
        found, counts = counted(device, there)
        assert (counts["device_cache_hits"], counts["device_cache_misses"]) == (1, 5)
        assert np.array_equal(found, host.read().result())
        del there


def test_crops_and_batches_use_what_is_there(tmp_path):
    with emulated() as device:
        host, there = opened(tmp_path, device, "shards")
        starts = np.random.default_rng(0).integers(0, 6, (20, 2))
        for shape in ((3, 4), (1, 2)):
            for misses in (True, False):
                future = there.read_many(starts, shape)
                expected = host.read_many(starts, shape).result()
                assert np.array_equal(on_host(device, future.result()), expected)
                counts = future.statistics
                assert counts["device_cache_hits"] + counts["device_cache_misses"] > 0
                assert (counts["device_cache_misses"] > 0) == misses
            there._driver.array.backend.release()
        with gpustore.Batch() as batch:
            futures = [there[i : i + 3].read(batch=batch) for i in range(6)]
        for i, future in enumerate(futures):
            assert np.array_equal(on_host(device, future.result()), host[i : i + 3].read().result())
        del there, futures, future


@pytest.mark.matrix("costly")
@each("pool", POOLS)
def test_reads_that_lack_memory_get_that_of_chunks_back(tmp_path, pool):
    is_pinned = pool["memory"] == "pinned"
    kind, name = ("pinned", "allocate_pinned") if is_pinned else ("allocations", "allocations")
    with emulated() as device:
        host, there = opened(tmp_path, device, pool=pool)
        expected = host.read().result()
        counted(device, there)
        assert len(cache_of(there)) == 6
        there._driver.array.backend.buffers.free()
        for number in range(12):
            first = device.counts[name]
            setattr(device.faults, kind, {first + number, first + number + 1})
            found = there.read().result()
            assert number or device.counts[name] > first + 2
            setattr(device.faults, kind, set())
            assert np.array_equal(on_host(device, found), expected)
            if number:
                there._driver.array.backend.release()
        del there, found


@each("kind", ["allocations", "pinned"])
@each("memory", ["device", "pinned"])
def test_copies_of_arrays_get_memory_of_their_kind_back(tmp_path, memory, kind):
    """Those of arrays that are not in C order, and of elements that the host has converted."""
    with emulated() as device:
        host, there = opened(tmp_path, device, pool={"memory": memory})
        backend = there._driver.array.backend
        expected = host.read().result()
        name = "allocations" if kind == "allocations" else "allocate_pinned"
        array = there.read(order="F").result()
        memory_of = backend.destination(array, (9, 10), expected.dtype)
        works = ((backend.to_host, [array]), (backend.transfers.upload, [expected, memory_of]))
        for work, arguments in works:
            calls = number = 0
            while number <= calls:
                backend.release()
                there.preload().result()
                before = len(cache_of(there))
                backend.buffers.free()
                first = device.counts[name]
                lacking = {first + number - 1, first + number} if number else set()
                setattr(device.faults, kind, lacking)
                if not lacking:
                    work(*arguments)
                    calls = device.counts[name] - first
                elif (kind == "pinned") == (memory == "pinned"):
                    work(*arguments)
                    assert len(cache_of(there)) < before
                else:
                    with pytest.raises(gpustore.LimitError):
                        work(*arguments)
                    assert len(cache_of(there)) == before
                setattr(device.faults, kind, set())
                number += 1
            assert calls
        assert np.array_equal(backend.to_host(array), expected)
        del there, array, memory_of, works, work, arguments


@pytest.mark.matrix("costly")
def test_a_device_full_of_chunks_has_room_for_reads_and_writes(tmp_path):
    """The cache may take more than there is; it gives back before a read or a write fails."""
    url = f"file://{tmp_path}/b|zarr3:"
    with emulated(total_nbytes=24 << 20) as device:
        context = gpustore.Context({"device_cache_pool": {"total_bytes_limit": 1 << 30}})
        host = gpustore.open(
            url,
            create=True,
            device="cpu",
            dtype="uint8",
            shape=[20, 1 << 20],
            chunk_layout=gpustore.ChunkLayout(chunk_shape=[1, 1 << 20]),
        ).result()
        elements = np.random.default_rng(0).integers(0, 3, (20, 1 << 20), np.uint8)
        host[...] = elements
        there = gpustore.open(
            url, context=context, device=device.name, recheck_cached_data=False
        ).result()
        for row in range(20):
            assert np.array_equal(on_host(device, there[row].read().result()), elements[row])
        cache = cache_of(there)
        assert 4 << 20 < cache.nbytes < 24 << 20
        found = there[:10].read().result()
        assert np.array_equal(on_host(device, found), elements[:10])
        del found
        source = there[0].read().result()
        for row in range(20):
            on_host(device, there[row].read().result())
        there._driver.array.backend.buffers.free()
        stream = device.caller_stream()
        others = device.empty((device.memory().free_nbytes - (1 << 16),), np.uint8, "C", stream)
        before = cache.nbytes
        assert before > 4 << 20
        there[3:5].write(source).result()
        assert cache.nbytes < before
        assert np.array_equal(host[3:5].read().result(), elements[[0, 0]])
        del there, source, others, cache


def test_damaged_chunks_are_no_entries(tmp_path):
    with emulated() as device:
        host, there = opened(tmp_path, device, "gzip", stored=9)
        path = tmp_path / "a/c/1/1"
        good = path.read_bytes()
        for bad in (good[:-1], good[:30] + b"x" + good[31:], b""):
            path.write_bytes(bad)
            with pytest.raises(gpustore.CorruptChunkError, match="c/1/1"):
                there.read().result()
            path.write_bytes(good)
            assert np.array_equal(counted(device, there)[0], host.read().result())
            there._driver.array.backend.release()
        # What the device has decoded wrongly the host decodes, and it stays all the same.
        device.faults.statuses = {(device.counts["decompress"], 1): 12}
        found, counts = counted(device, there)
        assert counts["retries"] == counts["host_fallbacks"] == 1
        assert np.array_equal(found, host.read().result())
        found, counts = counted(device, there)
        assert counts["device_cache_hits"] == 6
        assert np.array_equal(found, host.read().result())
        del there


def test_fields_of_records_share_their_chunks():
    context = gpustore.Context({"device_cache_pool": {"total_bytes_limit": 10**6}})
    metadata = {
        "dtype": [["x", "<i2"], ["y", ">f4", [2]]],
        "shape": [5, 3],
        "chunks": [2, 2],
        "compressor": {"id": "zlib", "level": 1},
        "fill_value": None,
    }
    spec = {"driver": "zarr", "kvstore": "memory://r", "metadata": metadata}
    with emulated() as device:
        plain = gpustore.open(
            {**spec, "field": "x"}, context=context, create=True, device="cpu"
        ).result()
        plain[:4] = np.arange(12, dtype=np.int16).reshape(4, 3)
        for field, hits in (("x", 0), ("y", 6)):
            host, there = (
                gpustore.open(
                    {**spec, "field": field},
                    context=context,
                    device=name,
                    recheck_cached_data=False,
                ).result()
                for name in ("cpu", device.name)
            )
            found, counts = counted(device, there)
            assert np.array_equal(found, host.read().result())
            assert counts.get("device_cache_hits", 0) == hits
        del there


def test_memory_goes_with_the_pool(tmp_path):
    with emulated() as device:
        _, there = opened(tmp_path, device)
        backend = there._driver.array.backend
        there.preload().result()
        backend.buffers.free()
        assert device._memory.live()
        del there

        def is_free():
            gc.collect()
            backend.caches.free_orphans()
            device.memory()  # Any operation frees dropped arrays.
            return not device._memory.live()

        wait_until(is_free)  # A thread that has ended its work may still know the array.


def test_a_cache_on_the_host_is_below_that_of_the_device(tmp_path):
    with emulated() as device:
        host, _ = opened(tmp_path, device)
        limit = {"total_bytes_limit": 10**6}
        context = gpustore.Context({"device_cache_pool": limit, "cache_pool": limit})
        there = gpustore.open(
            host.url, context=context, device=device.name, recheck_cached_data=False
        ).result()
        expected = host.read().result()
        for hits, fetches in ((0, True), (6, False)):
            found, counts = counted(device, there)
            assert np.array_equal(found, expected)
            assert counts.get("cache_hits", 0) == hits
            assert ("bytes_fetched" in counts) == fetches
            there._driver.array.backend.release()
        del there


def test_chunks_that_must_be_stored_are_missed(tmp_path):
    with emulated() as device:
        _, there = opened(tmp_path, device, fill_missing_data_reads=False)
        for _ in range(2):
            with pytest.raises(gpustore.NotFoundError, match=r"chunk \{2, 0\}"):
                there.read().result()
            there[:8].read().result()
        del there


@each("pool", POOLS)
def test_explain_says_what_stays(tmp_path, pool):
    with emulated() as device:
        _, there = opened(tmp_path, device, pool=pool)
        for _ in range(2):
            explanation = there.explain()
            assert explanation.refined_by == ("device cache",)
            assert "none of what stays on the device" in str(explanation)
            counts = there.read().statistics
            for name, (least, most) in explanation.counts.items():
                assert least <= counts[name] <= most or most is None, name
        del there, counts


ENCODED = {
    **{chain: CHAINS[chain] for chain in ("gzip", "checksum", "transposed", "shards")},
    "zstd and crc32c": [BYTES, "zstd", "crc32c"],
    **{
        f"blosc {cname}": [
            BYTES,
            {
                "name": "blosc",
                "configuration": {
                    "cname": cname,
                    "clevel": 5,
                    "shuffle": "shuffle",
                    "typesize": 2,
                    "blocksize": 0,
                },
            },
        ]
        for cname in ("lz4", "zlib", "zstd", "blosclz")
    },
}


@pytest.mark.matrix
@each("memory", ["device", "pinned"])
@each("chain", ENCODED)
def test_encoded_chunks_are_decoded_where_they_are(tmp_path, chain, memory):
    url = f"file://{tmp_path}/e|zarr3:"
    shape = [40, 60]
    grid = {"name": "regular", "configuration": {"chunk_shape": [16, 24]}}
    metadata = {**METADATA, "shape": shape, "chunk_grid": grid, "codecs": ENCODED[chain]}
    with emulated() as device:
        host = gpustore.open(
            {**gpustore.Spec(url).to_json(), "metadata": metadata}, create=True, device="cpu"
        ).result()
        elements = np.random.default_rng(0).integers(0, 9, shape).astype(np.int16)
        elements[:16, :24] = 3
        host[:32] = elements[:32]
        pool = {"total_bytes_limit": 10**7, "content": "encoded", "memory": memory}
        context = gpustore.Context({"device_cache_pool": pool})
        there = gpustore.open(
            {**gpustore.Spec(url).to_json(), "recheck_cached_data": False},
            context=context,
            device=device.name,
        ).result()
        _, first = counted(device, there)
        there[:16].read().result()
        expected = host.read().result()
        for part in (there, there[3:30, 5:59][::-1, ::2], there.oindex[[30, 2, 30], :]):
            found, counts = counted(device, part)
            same = host[part.domain] if part is there else None
            if same is not None:
                assert np.array_equal(found, expected)
                assert counts["chunks_decoded_device"] == first["chunks_decoded_device"]
            assert not counts.keys() & {"key_reads", "bytes_fetched", "device_cache_misses"}
        found = on_host(device, there.oindex[[30, 2, 30], :].read().result())
        assert np.array_equal(found, expected[[30, 2, 30]])
        assert first["device_cache_bytes"] <= first["bytes_fetched"]
        # A failure is mended by the host, from the bytes on the device. Results are looked at until
        # all chunks are there.
        there._driver.array.backend.release()
        counted(device, there[:16])
        if device.counts["decompress"]:
            device.faults.statuses = {(device.counts["decompress"], 0): 12}
            found, counts = counted(device, there[:16])
            assert counts["retries"] == counts["host_fallbacks"] == 1
            assert "bytes_fetched" not in counts
            assert np.array_equal(found, expected[:16])
        del there, part, same


@pytest.mark.matrix("costly")
@each("memory", ["device", "pinned"])
@each("cause", ["choice", "failure"])
def test_the_host_decodes_large_chunks_that_are_kept_encoded(tmp_path, cause, memory):
    """Reads of chunks that are there have staging memory for tables only, until then."""
    url = f"file://{tmp_path}/l|zarr3:"
    elements = (np.arange(6 << 20) % 251).astype(np.uint8)
    with emulated() as device:
        host = gpustore.open(
            url, create=True, device="cpu", dtype="uint8", shape=[6 << 20], codec="gzip",
            chunks=[2 << 20],
        ).result()  # fmt: skip
        host[...] = elements
        pool = {"total_bytes_limit": 10**9, "content": "encoded", "memory": memory}
        choice = {"min_streams": 2, "long_stream_nbytes": 1000}
        context = gpustore.Context({"device_cache_pool": pool, "gpu_decode_choice": choice})
        there = gpustore.open(
            url, context=context, device=device.name, recheck_cached_data=False
        ).result()
        # Of chunks that are all there the device would look at no results.
        (there if cause == "choice" else there[: 4 << 20]).preload().result()
        there._driver.array.backend.buffers.free()
        part, expected = there[: 2 << 20], elements[: 2 << 20]
        if cause == "failure":
            part, expected = there[: 4 << 20], elements[: 4 << 20]
            device.faults.statuses = {(device.counts["decompress"], 0): 12}
        found, counts = counted(device, part)
        assert np.array_equal(found, expected)
        assert counts["host_fallbacks"] == 1
        assert "bytes_fetched" not in counts
        del there, part


@each("kind", ["once", "from then on"])
def test_a_download_that_lacks_memory_is_repeated_or_an_error_by_key(tmp_path, kind):
    with emulated() as device:
        host, there = opened(tmp_path, device, pool={"content": "encoded"})
        there, expected = there[:4], host[:4]
        counted(device, there)
        device.faults.statuses = {(device.counts["decompress"], 0): 12}
        first = device.counts["download"] + 1  # Behind that of the results.
        more = range(first, first + (1 if kind == "once" else 1000))
        device.faults.lacking = {("download", number) for number in more}
        if kind == "once":
            assert np.array_equal(counted(device, there)[0], expected)
        else:
            with pytest.raises(gpustore.LimitError, match=r"a/c/0/0.*does not fit in the free"):
                there.read().result()
        device.faults.lacking = set()
        assert np.array_equal(counted(device, there)[0], expected)
        del there


def test_chunks_that_the_host_decodes_are_kept_decoded(tmp_path):
    with emulated(decodes=()) as device:
        host, there = opened(tmp_path, device, "gzip", pool={"content": "encoded"})
        counted(device, there)
        found, counts = counted(device, there)
        assert np.array_equal(found, host.read().result())
        assert "host_fallbacks" not in counts
        assert counts["device_cache_hits"] == 6
        del there


@pytest.mark.matrix
@each("pool", POOLS)
@each("operation", ["launch", "allocate", "upload", "download", "record", "fill"])
def test_a_failed_operation_leaves_no_memory_behind(tmp_path, pool, operation):
    """The emulated device finds what is not freed, and what is freed while it is used."""
    failures = 0
    for number in range(3):
        with emulated() as device:
            host, there = opened(tmp_path / str(number), device, pool=pool)
            there[:4].preload().result()
            at = device.counts[operation] + number
            device.faults.failing = {(operation, at): False}
            try:
                there.read().result()
            except gpustore.DeviceError:
                failures += 1
            device.faults.failing = {}
            for _ in range(2):
                assert np.array_equal(counted(device, there)[0], host.read().result())
            del there
    assert failures


@each("chain", CHAINS)
@each("url", ["file", "memory"])
def test_preload_tells_its_progress(tmp_path, chain, url):
    """In decoded bytes, whoever fetches the chunks: the native core those in files."""
    with emulated() as device:
        url = f"file://{tmp_path}/a|zarr3:" if url == "file" else "memory://a|zarr3:"
        there, plain = pair(device, 10**6, chain, {}, url, recheck_cached_data=False)
        plain[:9] = 1
        nbytes = there._driver.array.chain.layout.nbytes
        for part, before in ((np.s_[:4], 0), (np.s_[:], 1), (np.s_[:], 2)):
            told = []
            tell = told.append
            there[part].preload(progress=lambda *one, tell=tell: tell(one)).result()
            total = nbytes * len(cache_of(there))
            assert told[0] == (0, total)
            assert told[-1] == (total, total)
            assert told == sorted(told)
            assert len({total for _, total in told}) == 1
            assert len(told) == 2 or before < 2
        with pytest.raises(ZeroDivisionError):
            there.preload(progress=lambda done, total: done // 0).result()
        del there


@each("pool", POOLS)
def test_cancelled_reads_leave_no_memory_behind(tmp_path, pool):
    with emulated() as device:
        host, there = opened(tmp_path, device, pool=pool)
        for part in (there[:4], there, there[2:]):
            part.read().cancel()
            part.preload().cancel()
        assert np.array_equal(counted(device, there)[0], host.read().result())
        del there, part


def test_a_lost_device_is_one_error(tmp_path):
    with emulated() as device:
        _, there = opened(tmp_path, device)
        there.preload().result()
        device.faults.lost_at = device.counts["calls"]
        for _ in range(2):
            with pytest.raises(gpustore.DeviceError):
                there.read().result()
        del there
