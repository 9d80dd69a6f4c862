"""Reads through the cache in host memory: the same as without, and fewer of them."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.resources.cache_pool import cache_of
from gpustore.runtime.cache import OVERHEAD_NBYTES
from gpustore.runtime.statistics import STATISTICS
from tests.emulator import host_build
from tests.matrix import each
from tests.on_device import emulated, on_host

needs_compiler = pytest.mark.skipif(host_build.COMPILER is None, reason="no C++ compiler")

BYTES = {"name": "bytes", "configuration": {"endian": "big"}}
CHAINS = {
    "raw": [BYTES],
    "gzip": [BYTES, "gzip"],
    "checksum": [BYTES, "crc32c"],
    "transposed": [{"name": "transpose", "configuration": {"order": [1, 0]}}, BYTES, "zstd"],
    "shards": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [2, 3],
                "codecs": [BYTES, "gzip"],
                "index_codecs": [{"name": "bytes"}, "crc32c"],
            },
        }
    ],
}
LIMITS = {"none": 0, "less than a chunk": 100, "some chunks": 2000, "all": 10**7}


def pair(limit, chain="gzip", url="memory://a|zarr3:", **options):
    """The same array twice: with a cache of its own, and without."""
    values = gpustore.Context()
    cached, plain = (
        gpustore.Context({"cache_pool": {"total_bytes_limit": limit}}, values)
        for limit in (limit, 0)
    )
    # The values of the memory kvstore are those of the common parent.
    values["memory_key_value_store"]
    spec = {**gpustore.Spec(url).to_json(), **options}
    metadata = {
        "data_type": "int16",
        "shape": [9, 10],
        "fill_value": 7,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 6]}},
        "codecs": CHAINS[chain],
    }
    new = gpustore.open(
        {**spec, "metadata": metadata}, context=plain, create=True, delete_existing=True
    ).result()
    return gpustore.open(spec, context=cached).result(), new


def cache(store):
    return cache_of(store._driver.resources["cache_pool"].value)


def interval(size):
    return st.tuples(st.integers(0, size - 1), st.integers(1, size)).map(
        lambda pair: slice(min(pair), max(pair) + (pair[0] >= pair[1]))
    )


BOXES = st.tuples(interval(9), interval(10))
READS = ("read", "read many", "batch", "index array", "strided")
OWN = ("write", "resize")
OTHERS = ("write elsewhere", "delete elsewhere", "resize elsewhere")


def inside(store, box):
    """The box, cut at the bounds of the store."""
    return tuple(slice(min(b.start, n), min(b.stop, n)) for b, n in zip(box, store.shape))


def read(store, what, box):
    box = inside(store, box)
    part = store[box]
    if what == "batch":
        with gpustore.Batch() as batch:
            futures = [store[box].read(batch=batch), store.read(batch=batch)]
        return [future.result() for future in futures]
    if what == "read many" and part.size:
        starts = [part.origin, (0, 0), part.origin]
        extent = [min(2, size) for size in part.shape]
        return [store.read_many(starts, extent).result()]
    if what == "index array" and part.size:
        rows, columns = part.origin
        return [store.oindex[[rows, 0, rows], [columns, columns, 0]].read().result()]
    if what == "strided":
        return [store[box][::2, ::-1].read(order="F").result()]
    return [part.read().result()]


def steps(changes):
    """Some reads, then a change, and so on."""
    kinds = st.tuples(st.sampled_from(READS), st.sampled_from(changes))
    return st.lists(st.tuples(kinds, BOXES, BOXES), min_size=1, max_size=5)


def check_steps(cached, plain, steps):
    """After each step the arrays are equal, whole and in the part that was read."""
    for value, ((kind, changed), box, changed_box) in enumerate(steps):
        for what in (kind, "read", kind):
            found, expected = (read(store, what, box) for store in (cached, plain))
            for one, other in zip(found, expected, strict=True):
                assert np.array_equal(one, other)
        cached, plain = change(cached, plain, changed, changed_box, value)
        assert np.array_equal(cached.read().result(), plain.read().result())
        held = cache(cached)
        assert held is None or held.nbytes <= held.limit


def change(cached, plain, what, box, value):
    """Both stores, with bounds as they are stored then."""
    if what.startswith("resize"):
        store = cached if what == "resize" else plain
        bounds = [max(1, size.stop) for size in box]
        store.resize(exclusive_max=bounds).result()
    elif what == "delete elsewhere":
        for key in plain.kvstore.list().result():
            if key != b"zarr.json" and sum(key) % 2 == value % 2:
                del plain.kvstore[key]
    else:
        store = cached if what == "write" else plain
        part = store[inside(store, box)]
        elements = np.arange(part.size, dtype=np.int16) % 3 + value
        part.write(elements.reshape(part.shape)).result()
    return cached.resolve().result(), plain.resolve().result()


@pytest.mark.matrix
@given(steps(OWN + OTHERS), st.sampled_from(list(LIMITS)), st.sampled_from(list(CHAINS)))
def test_reads_are_those_without_a_cache(steps, limit, chain):
    cached, plain = pair(LIMITS[limit], chain)
    plain.write(np.arange(90, dtype=np.int16).reshape(9, 10)).result()
    check_steps(cached, plain, steps)


@pytest.mark.matrix
@given(steps(OWN), st.sampled_from(["some chunks", "all"]), st.sampled_from(list(CHAINS)))
def test_own_changes_are_seen_without_rechecks(steps, limit, chain):
    """Nobody else writes: a cache that is never compared with what is stored is right, too."""
    cached, plain = pair(LIMITS[limit], chain, recheck_cached_data=False)
    check_steps(cached, plain, steps)


def counted(function):
    before = STATISTICS.snapshot()
    function()
    after = STATISTICS.snapshot()
    names = ("cache_hits", "bytes_fetched", "chunks_missing")
    return [after.get(name, 0) - before.get(name, 0) for name in names]


@each("chain", CHAINS)
@each("recheck", [True, False])
def test_second_read_fetches_nothing(chain, recheck):
    cached, plain = pair(10**7, chain, recheck_cached_data=recheck)
    plain[:6] = 1
    chunks, empty = (6, 2) if chain != "shards" else (20, 8)
    hits, fetched, missing = counted(lambda: cached.read().result())
    assert (hits, missing) == (0, empty)
    assert fetched > 0
    assert len(cache(cached)) == chunks + 1  # The metadata are one.
    assert counted(lambda: cached.read().result()) == [chunks, 0, empty]
    assert counted(lambda: cached[0, 0].read().result()) == [1, 0, 0]
    plain[0, 0] = 2  # Of a shard, all chunks are checked by the one generation.
    stale = 0 if not recheck else 1 if chain != "shards" else 4
    assert counted(lambda: cached.read().result())[0] == chunks - stale


def test_missing_chunks_are_entries():
    cached, plain = pair(10**7)
    assert (cached.read().result() == 7).all()
    assert counted(lambda: cached.read().result()) == [6, 0, 6]
    plain[...] = 1
    assert (cached.read().result() == 1).all()


def test_missing_chunk_that_must_not_be():
    cached, plain = pair(10**7, fill_missing_data_reads=False)
    plain[:4, :6] = 1
    for _ in range(2):
        assert (cached[:4, :6].read().result() == 1).all()
        with pytest.raises(gpustore.NotFoundError, match=r'chunk \{0, 1\} stored at "a/c/0/1"'):
            cached.read().result()


@pytest.mark.parametrize("chain", CHAINS)
def test_damaged_chunk_is_the_error_it_is_without_a_cache(chain):
    cached, plain = pair(10**7, chain)
    plain[...] = 1
    cached.read().result()
    for damage in (b"", b"x", plain.kvstore["c/1/1"][:-1]):
        plain.kvstore["c/1/1"] = damage
        errors = []
        for store in (cached, plain):
            with pytest.raises(gpustore.CorruptChunkError) as caught:
                store.read().result()
            errors.append((str(caught.value), caught.value.key))
        assert errors[0] == errors[1]
    assert (cached[:4].read().result() == 1).all()


def test_a_chunk_larger_than_the_cache_is_read_as_without_one():
    """In parts, if it is not compressed."""
    nbytes = 2 * 4 * 6
    for limit, whole in ((nbytes + OVERHEAD_NBYTES - 1, False), (nbytes + OVERHEAD_NBYTES, True)):
        cached, plain = pair(limit, "raw")
        plain[...] = 1
        fetched = counted(lambda store=cached: store[0, 0].read().result())[1]
        assert fetched == (nbytes if whole else 2)


def test_stores_of_one_pool_share_their_chunks():
    context = gpustore.Context({"cache_pool#big": {"total_bytes_limit": 10**7}})
    spec = {"driver": "zarr3", "kvstore": "memory://x", "cache_pool": "cache_pool#big"}
    new = {"create": True, "open": True, "dtype": "uint8", "shape": [4]}
    first, second = (gpustore.open(spec, context=context, **new).result() for _ in range(2))
    other = gpustore.open({**spec, "cache_pool": {}}, context=context).result()
    first.read().result()
    assert counted(lambda: second.read().result())[0] == 1
    assert counted(lambda: other.read().result())[0] == 0
    assert cache(other) is None


def test_stores_in_memory_with_equal_keys_are_told_apart():
    """One pool, two sets of values."""
    context = gpustore.Context(
        {
            "cache_pool": {"total_bytes_limit": 10**7},
            "memory_key_value_store#a": {},
            "memory_key_value_store#b": {},
        }
    )
    for value, name in enumerate("ab"):
        kvstore = {
            "driver": "memory",
            "path": "x/",
            "memory_key_value_store": f"memory_key_value_store#{name}",
        }
        store = gpustore.open(
            {"driver": "zarr3", "kvstore": kvstore, "recheck_cached_data": False},
            context=context,
            create=True,
            dtype="uint8",
            shape=[4],
        ).result()
        store[...] = value
        assert store.read().result().tolist() == [value] * 4
        assert store.read().result().tolist() == [value] * 4


def test_relative_paths_mean_other_files_elsewhere(tmp_path, monkeypatch):
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 10**7}})
    for value in (1, 2):
        folder = tmp_path / str(value)
        folder.mkdir()
        monkeypatch.chdir(folder)
        store = gpustore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": "x/"}},
            context=context,
            create=True,
            dtype="uint8",
            shape=[4],
            recheck_cached_data=False,
        ).result()
        store[...] = value
        store.read().result()
        assert store.read().result().tolist() == [value] * 4


def test_an_array_made_anew_has_none_of_the_old_chunks():
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 10**7}})
    new = {"create": True, "delete_existing": True, "dtype": "uint8", "shape": [4]}
    keywords = {"context": context, "recheck_cached": False}
    old = gpustore.open("memory://x|zarr3:", **new, **keywords).result()
    old[...] = 1
    old.read().result()
    store = gpustore.open("memory://x|zarr3:", **new, **keywords).result()
    assert store.read().result().tolist() == [0] * 4


def test_write_during_a_read_is_not_lost():
    """A value fetched before a write and decoded after it does not stay."""
    cached, _ = pair(10**7, recheck_cached_data=False)
    cached[...] = 1
    store = cached._driver.array.store
    fetched, written = threading.Event(), threading.Event()
    original = type(store).read_many

    def slow(self, request):
        columns = original(self, request)
        if threading.current_thread().name == "reader":
            fetched.set()
            assert written.wait(100)
        return columns

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store), "read_many", slow)
        thread = threading.Thread(target=lambda: cached[0, 0].read().result(), name="reader")
        thread.start()
        assert fetched.wait(100)
        cached[...] = 2
        written.set()
        thread.join()
    assert (cached.read().result() == 2).all()


def test_a_write_that_fails_is_forgotten(tmp_path):
    """Some of its chunks are new, nobody knows which."""
    cached, _ = pair(10**7, url=f"file://{tmp_path}/a|zarr3:", recheck_cached_data=False)
    cached[...] = 1
    cached.read().result()
    (tmp_path / "a/c/1/0").unlink()
    (tmp_path / "a/c/1/0").mkdir()
    with pytest.raises(gpustore.StoreIOError):
        cached.write(2).result()
    plain = gpustore.open(f"file://{tmp_path}/a|zarr3:").result()
    for rows in (slice(4), slice(8, 9)):
        assert np.array_equal(cached[rows].read().result(), plain[rows].read().result())


def test_files_replaced_by_another_process_are_seen(tmp_path):
    cached, plain = pair(10**7, "raw", url=f"file://{tmp_path}/a|zarr3:")
    for value in range(50):
        plain[0, 0] = value
        assert cached[0, 0].read().result() == value
        assert cached[0, 0].read().result() == value


@pytest.mark.parametrize("compressor", [None, {"id": "zlib", "level": 1}], ids=str)
def test_fields_of_records_share_their_chunks(compressor):
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 10**7}})
    plain = gpustore.Context({"cache_pool": {}}, context)
    context["memory_key_value_store"]
    spec = {
        "driver": "zarr",
        "kvstore": "memory://r",
        "metadata": {
            "dtype": [["x", "<i2"], ["b", "|b1"], ["y", ">f4", [2]]],
            "shape": [5, 3],
            "chunks": [2, 2],
            "compressor": compressor,
            "fill_value": None,
        },
    }

    def open(field, context, **keywords):
        return gpustore.open({**spec, "field": field}, context=context, **keywords).result()

    x = open("x", context, create=True, recheck_cached_data=False)
    x[:4] = np.arange(12, dtype=np.int16).reshape(4, 3)
    b, y = (open(field, context, recheck_cached_data=False) for field in "by")
    hits = [counted(lambda store=store: store.read().result())[0] for store in (x, b, y, y)]
    assert hits == [0, 6, 6, 6]
    y[1:3, :, 1] = 2.5
    b[1] = True
    for field, store in (("x", x), ("b", b), ("y", y)):
        for index in (..., np.s_[1:, ::-1], np.s_[0]):
            expected = open(field, plain)[index].read().result()
            for _ in range(2):
                assert np.array_equal(store[index].read().result(), expected)
        picked = store.oindex[[3, 1, 3]].read().result()
        assert np.array_equal(picked, open(field, plain).oindex[[3, 1, 3]].read().result())


def test_fields_of_records_in_shards():
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 10**7}})
    plain = gpustore.Context({"cache_pool": {}}, context)
    context["memory_key_value_store"]
    fields = [{"name": "x", "data_type": "int16"}, {"name": "y", "data_type": "float32"}]
    sharding = {
        "chunk_shape": [2, 2],
        "codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}}, BYTES, "gzip"],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    metadata = {
        "data_type": {"name": "struct", "configuration": {"fields": fields}},
        "shape": [5, 6],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }
    spec = {"driver": "zarr3", "kvstore": "memory://r", "metadata": metadata}

    def open(context, **members):
        keywords = {"create": True, "open": True, "recheck_cached_data": False}
        return gpustore.open({**spec, **members}, context=context, **keywords).result()

    views = ({"field": "x"}, {"field": "y"}, {"open_as_void": True})
    x, y, void = (open(context, **view) for view in views)
    for value in range(3):
        x[value : value + 2] = np.arange(12, dtype=np.int16).reshape(2, 6) + value
        y[:, value] = value + 0.5
        for view, store in zip(views, (x, y, void)):
            expected = open(plain, **view).read().result()
            assert np.array_equal(store.read().result(), expected)
            assert counted(lambda store=store: store.read().result())[:2] == [9, 0]


def devices_pair(device, tmp_path, chain):
    """An array in files, opened on a device and on the host with one pool, and without a cache."""
    _, plain = pair(0, chain, url=f"file://{tmp_path}/a|zarr3:")
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 10**7}})
    url = f"file://{tmp_path}/a|zarr3:"
    stores = [
        gpustore.open(url, context=context, device=name, recheck_cached_data=False).result()
        for name in (device.name, "cpu")
    ]
    return *stores, plain


@needs_compiler
@each("chain", CHAINS)
def test_a_device_decodes_cached_chunks(tmp_path, chain):
    """They are kept as they are stored, beside the decoded ones of a store in host memory."""
    with emulated() as device:
        there, host, plain = devices_pair(device, tmp_path, chain)
        plain[:6] = 1
        expected = plain.read().result()
        for fetches in (True, False):
            assert np.array_equal(host.read().result(), expected)
            future = there.read()
            assert np.array_equal(on_host(device, future.result()), expected)
            counts = future.statistics
            assert (counts["bytes_fetched"] > 0) == fetches
            assert counts["host_fallbacks"] == 0
            stored = 12 if chain == "shards" else 4
            assert counts["chunks_decoded_device"] == (0 if chain == "raw" else stored)
        del future
        host[...] = 2  # What a writer changes is dropped in either form.
        assert (on_host(device, there.read().result()) == 2).all()
        assert (host.read().result() == 2).all()


@needs_compiler
def test_a_damaged_chunk_does_not_stay_for_a_device(tmp_path):
    with emulated() as device:
        there, _, plain = devices_pair(device, tmp_path, "gzip")
        plain[...] = 1
        good = plain.kvstore["c/1/1"]
        plain.kvstore["c/1/1"] = good[:-1]
        with pytest.raises(gpustore.CorruptChunkError, match="c/1/1"):
            there.read().result()
        plain.kvstore["c/1/1"] = good
        assert (on_host(device, there.read().result()) == 1).all()


@pytest.mark.parametrize("recheck", [True, False])
def test_threads_see_what_they_wrote(recheck):
    """Each writes and reads rows of its own; chunks and a small cache are shared."""
    cached, plain = pair(1500, recheck_cached_data=recheck)
    failures = []

    def work(row):
        for value in range(60):
            cached[row].write(np.int16(value)).result()
            found = cached[row].read().result()
            if (found != value).any():
                failures.append((row, value, found.tolist()))

    threads = [threading.Thread(target=work, args=(row,)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert np.array_equal(cached.read().result(), plain.read().result())
