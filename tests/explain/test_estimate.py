"""Estimates bound what reads then count, on the host and on an emulated device."""

import math
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated

SHAPE = (37, 41)
BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
V2 = {
    "raw": None,
    "zlib": {"id": "zlib", "level": 1},
    "zstd": {"id": "zstd", "level": 1},
    "zstd-checksum": {"id": "zstd", "level": 1, "checksum": True},
    "blosc-lz4": BLOSC,
    "blosc-zstd": {**BLOSC, "cname": "zstd", "shuffle": 2},
    "bz2": {"id": "bz2", "level": 1},
}
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
CRC = {"name": "crc32c"}


def sharded(shape, codecs):
    members = {"chunk_shape": shape, "codecs": codecs, "index_codecs": [LITTLE, CRC]}
    return [{"name": "sharding_indexed", "configuration": members}]


V3 = {
    "v3-crc32c": [LITTLE, CRC],
    "v3-transposed": [{"name": "transpose", "configuration": {"order": [1, 0]}}, LITTLE, ZSTD],
    "shards-raw": sharded([4, 3], [LITTLE]),
    "shards-zstd-crc32c": sharded([4, 3], [LITTLE, ZSTD, CRC]),
    "shards-shards": sharded([4, 9], sharded([2, 3], [LITTLE, ZSTD])),
}
CODECS = [*V2, *V3]

PARTS = [np.s_[:, :], np.s_[3:30, 9:12], np.s_[16:33, 20:]]
MORE = [np.s_[5, 7], np.s_[30:2:-1, 40:1:-4], np.s_[[3, 36, 3], :], np.s_[4:4, :]]
STARTS = [[0, 0], [3, 5], [3, 5], [20, 28], [24, 0], [8, 9]]
DENSE = [[i, j] for i in range(0, 20, 2) for j in range(0, 30, 2)]
CROPS = [(STARTS, (9, 13)), (STARTS, (2, 3)), (STARTS[:1], (9, 13)), (DENSE, (12, 11))]


def create(path, name, *, missing=True):
    """An array on disk; chunks of rows 24 to 31 and some inner ones are `missing`."""
    spec = {"driver": "zarr", "kvstore": f"file://{path}"}
    spec["metadata"] = {"shape": list(SHAPE), "chunks": [8, 9], "dtype": "<u4"}
    if name in V2:
        spec["metadata"] |= {"compressor": V2[name]}
    else:
        spec["driver"] = "zarr3"
        grid = {"name": "regular", "configuration": {"chunk_shape": [8, 9]}}
        spec["metadata"] = {"shape": list(SHAPE), "chunk_grid": grid, "data_type": "uint32"}
        spec["metadata"] |= {"codecs": V3[name]}
    store = gpustore.open(spec, create=True).result()
    elements = np.random.default_rng(7).integers(not missing, 3, store.shape).astype("u4")
    if missing:
        elements[4:8, 3:6] = elements[24:32] = 0
    store[...] = elements
    return spec


def check(store):
    """Compare an estimate with the read it is of."""
    explanation = uncounted(store.explain)
    compare(explanation, [store.read()])
    assert explanation.arrays == explanation.together == 1
    return explanation


def check_many(store, starts, shape):
    """The same for crops."""
    explanation = uncounted(lambda: store.explain_many(starts, shape))
    compare(explanation, [store.read_many(starts, shape)])
    assert (explanation.arrays, explanation.together) == (1, len(starts))
    return explanation


def check_batch(views, orders=("C", "F")):
    """The same for the reads of a batch of one array that share their chunks."""
    batch = gpustore.Batch()
    reads = [view.read(batch=batch, order=orders[i % len(orders)]) for i, view in enumerate(views)]
    (explanation,) = uncounted(batch.explain)
    batch.submit()
    compare(explanation, reads)
    assert explanation.arrays == explanation.together == len(views)
    return explanation


def uncounted(explain):
    before = gpustore.statistics.snapshot()
    explanation = explain()
    assert gpustore.statistics.snapshot() == before
    return explanation


def compare(explanation, reads):
    """Compare an estimate with reads that share their statistics."""
    results = [read.result() for read in reads]
    found = reads[0].statistics
    for name, (least, most) in explanation.counts.items():
        assert least <= found[name] <= (math.inf if most is None else most), name
    assert explanation.chunks == found["chunks_planned"]
    assert explanation.values <= explanation.chunks
    assert explanation.bytes_returned == sum(
        math.prod(result.shape) * result.dtype.itemsize for result in results
    )
    (shape, *others) = {tuple(result.shape) for result in results}
    assert explanation.shape == (None if others else shape)
    if explanation.device == "cpu":
        assert not found.snapshot().keys() & {"launches", "copies", "waits"}
    elif explanation.codecs and "cache" not in explanation.refined_by:
        decoded = found["chunks_decoded_device"] + found["host_fallbacks"]
        assert decoded + found["chunks_missing"] == explanation.chunks
    return found


@pytest.mark.parametrize("name", CODECS)
def test_reads_into_host_memory(tmp_path, name):
    store = gpustore.open(create(tmp_path, name), device="cpu").result()
    for part in PARTS + MORE:
        check(store[part])
    for starts, shape in CROPS:
        check_many(store, starts, shape)
    assert check_many(store, np.zeros((0, 2), int), (3, 3)).chunks == 0
    assert check_many(store, STARTS, (0, 3)).bytes_returned == 0
    alike = [store[i : i + 9, j : j + 13] for i, j in STARTS]
    assert check_batch(alike).shape == (9, 13)
    check_batch(alike, orders="C")  # Of one form in one order: planned as crops.
    explanation = check_batch([store, store[:, ::-1], store[::4], store[:8, 8:], store[5, 3:9]])
    assert str(explanation).startswith("read         5 arrays of uint32, ")


@needs_compiler
@pytest.mark.parametrize("name", CODECS)
def test_reads_into_a_device(tmp_path, name):
    spec = create(tmp_path, name)
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        for part in PARTS:
            explanation = check(there[part])
            assert (explanation.host_reason is not None) == (name == "bz2")
            decodes = explanation.counts["chunks_decoded_device"].most == explanation.chunks
            assert decodes == (name not in ("raw", "bz2", "shards-raw"))
            assert decodes == ("whose bytes the device does not take" in str(explanation))
        check_many(there, *CROPS[0])
        check_batch([there[i : i + 9, j : j + 13] for i, j in STARTS])
        del there


CASES = {
    "no library": ("zstd", {}, {"decodes": ()}, "host"),
    "own kernels": ("blosc-lz4", {}, {"decodes": ()}, "own kernels"),
    "not trusted": ("zstd", {"gpu_decode_trust": "never"}, {}, "host"),
    "chosen": ("zstd", {"gpu_decode_choice": "host"}, {}, "host"),
    "cached": ("zstd", {"cache_pool": {"total_bytes_limit": 1 << 20}}, {}, "nvcomp"),
}


@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_other_devices_and_contexts(tmp_path, case):
    name, context, options, decoder = CASES[case]
    spec = create(tmp_path, name)
    with emulated(**options) as device:
        context = gpustore.Context(context)
        there = gpustore.open(spec, device=device.name, context=context).result()
        explanation = check(there[3:30])
        assert [path.decoder for path in explanation.codecs] == [decoder]
        assert (explanation.host_reason is not None) == (decoder == "host")
        assert explanation.host_reason is None or explanation.host_reason in str(explanation)
        del there


@pytest.mark.parametrize("name", ["raw", "shards-raw", "shards-zstd-crc32c"])
def test_of_chunks_that_must_be_stored_is_said_what_is_read(tmp_path, name):
    spec = create(tmp_path, name, missing=False)
    store = gpustore.open({**spec, "fill_missing_data_reads": False}).result()
    for part in (np.s_[:, :], np.s_[:36, 2], np.s_[3:30, 9:12], np.s_[2, 3:40]):
        counts = check(store[part]).counts
        exact = {key for key, (least, most) in counts.items() if least == most}
        assert {"chunks_missing", "bytes_decoded"} <= exact
        if name == "raw":
            assert exact == counts.keys()
    counts = check_many(store, STARTS, (5, 2)).counts
    assert counts["bytes_decoded"].least == counts["bytes_decoded"].most


def test_reads_that_threads_share(tmp_path):
    """Each of them needs the index of the shard, and sees its own chunks at the array's edge."""
    context = gpustore.Context({"data_copy_concurrency": {"limit": 4}})
    elements = np.random.default_rng(3).integers(1, 256, (641, 16384), "u1")
    inner = sharded([4, 16384], [LITTLE, ZSTD])
    for rows, codecs, part in ((4, [LITTLE], np.s_[1:]), (644, inner, np.s_[::8])):
        grid = {"name": "regular", "configuration": {"chunk_shape": [rows, 16384]}}
        spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/{rows}"}
        spec["metadata"] = {"shape": [641, 16384], "chunk_grid": grid, "codecs": codecs}
        store = gpustore.open(spec, create=True, dtype="uint8", context=context).result()
        store[...] = elements
        check(store[part])


spans = st.tuples(*[st.integers(0, n) for n in SHAPE], *[st.integers(0, n) for n in SHAPE])
_opened = {}


@given(
    span=spans,
    starts=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 32)), max_size=12),
    shape=st.tuples(st.integers(0, 7), st.integers(0, 9)),
    name=st.sampled_from(["raw", "zstd", "shards-raw", "shards-shards"]),
)
def test_any_crops(tmp_path_factory, span, starts, shape, name):
    if name not in _opened:
        spec = create(tmp_path_factory.mktemp(name), name, missing=name == "zstd")
        _opened[name] = gpustore.open({**spec, "fill_missing_data_reads": name == "zstd"}).result()
    store = _opened[name]
    a, b, c, d = span
    check(store[min(a, c) : max(a, c), min(b, d) : max(b, d)])
    check_many(store, np.array(starts, int).reshape(-1, 2), shape)


def test_no_stored_value_is_looked_at(tmp_path):
    store = gpustore.open(create(tmp_path, "shards-zstd-crc32c")).result()
    explanation, crops = store.explain(), store.explain_many(STARTS, (2, 3))
    shutil.rmtree(tmp_path)
    assert store.explain() == explanation
    assert store.explain_many(STARTS, (2, 3)) == crops


@pytest.mark.parametrize("name", ["raw", "shards-raw"])
def test_values_of_dense_crops_are_counted_by_key(tmp_path, name):
    """Blocks of several chunks, and keys of several blocks."""
    store = gpustore.open(create(tmp_path, name)).result()
    explanation = check_many(store, DENSE, (12, 11))
    assert explanation.values == 4 * 5  # They cover rows 0 to 29 and columns 0 to 38.
    assert f"each once for all {len(DENSE)}" in str(explanation)


def test_very_many_chunks_are_not_written_down():
    store = gpustore.open(
        {"driver": "zarr3", "kvstore": "memory://"},
        create=True,
        dtype="uint8",
        shape=[6000, 3000],
        chunk_layout=gpustore.ChunkLayout(chunk_shape=[2, 1]),
        device="cpu",
    ).result()
    explanation = store[1:].explain()
    assert explanation.chunks == explanation.values == 9_000_000
    assert explanation.counts["bytes_decoded"] == (0, 18_000_000 - 3000)


def test_strings_have_no_bound(tmp_path):
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}"}
    spec["metadata"] = {"dtype": "|O", "filters": [{"id": "vlen-utf8"}], "shape": [7]}
    store = gpustore.open(spec, create=True).result()
    store[:5] = np.array(["a", "bc", "", "d", "e"], object)
    assert check(store).bytes_fetched is None
    with emulated() as device:
        assert check(gpustore.open(spec, device=device.name).result()).device == "cpu"


FILES = {
    "file": {},
    "deflate": {"driver": "zip", "compression": "deflate"},
    "store": {"driver": "zip", "compression": "store"},
    "database": {"driver": "ocdbt"},
}


@pytest.mark.parametrize("name", FILES)
def test_large_values_may_go_straight_to_the_device(tmp_path, name):
    kvstore = {**FILES[name], "base": f"file://{tmp_path}/x{'/' * (name == 'database')}"}
    spec = {"driver": "zarr3", "kvstore": kvstore["base"] if name == "file" else kvstore}
    gpustore.open(spec, create=True, dtype="uint8", shape=[1 << 20]).result().write(7).result()
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        explanation, read = there.explain(), there.read()
        assert compare(explanation, [read])["bytes_direct"] == (1 << 20) * (name != "deflate")
        assert explanation.counts["bytes_direct"] == (0, 1 << 20)
        assert explanation.direct_reason is None
        assert "straight to the device" in str(explanation)
        assert "a read of less than" in str(check(there[:1000]))
        del there, read


@pytest.mark.parametrize("name", ["zstd", "shards-zstd-crc32c"])
def test_a_cache_is_looked_at_first(tmp_path, name):
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 1 << 20}})
    spec = create(tmp_path, name)
    store = gpustore.open(spec, context=context, recheck_cached_data=True).result()
    explanations = [check(store[3:30]) for _ in range(2)]
    gpustore.open(spec).result()[...] = 7
    explanations += [check(store[3:30])]
    assert explanations[0] == explanations[1] == explanations[2]
    assert explanations[0].refined_by == ("cache", "shard index")[: 1 + (name != "zstd")]
    assert explanations[0].codecs[-1] == ("zstd", "host")
    assert "none of what is cached" in str(explanations[0])
    check_many(store, STARTS, (9, 13))


@pytest.mark.parametrize(("name", "decoder"), [("zstd", "nvcomp"), ("bz2", "host")])
def test_what_a_gpu_would_do_is_said_where_there_is_none(tmp_path, name, decoder):
    explanation = gpustore.open(create(tmp_path, name), device="cpu").result().explain()
    assert (explanation.codecs, explanation.gpu) == (((name, "host"),), ((name, decoder),))
    assert (explanation.gpu_reason is None) == (name == "zstd")
    assert all(missing in str(explanation) for missing in explanation.gpu_missing)


def test_what_has_no_chunks_is_not_explained(tmp_path):
    memory = gpustore.array([1, 2])
    for ask in (memory.explain, lambda: memory.explain_many([[0]], [1])):
        with pytest.raises(gpustore.UnsupportedError, match='"array" driver'):
            ask()
    (tmp_path / "a.json").write_text("3")
    document = gpustore.open({"driver": "json", "kvstore": f"file://{tmp_path}/a.json"}).result()
    with pytest.raises(gpustore.UnsupportedError, match='"json" driver'):
        document.explain()


def test_bounds_and_arguments_are_those_of_the_read(tmp_path):
    spec = create(tmp_path, "zstd")
    store = gpustore.open(spec, recheck_cached_metadata=True).result()
    batch = gpustore.Batch()
    future = store[:8].read(batch=batch)
    store[:20].read(batch=batch)
    assert [one.chunks for one in batch.explain()] == [5, 15]
    gpustore.open(spec).result().resize(exclusive_max=[8, 41]).result()
    assert store.explain().chunks == 5
    assert store.explain_many([[0, 0]], (8, 1)).chunks == 1
    for ask in (store[:20].explain, lambda: store.explain_many([[1, 0]], (8, 1)), batch.explain):
        with pytest.raises(gpustore.OutOfBoundsError):
            ask()
    batch.submit()
    assert np.shape(future.result()) == (8, 41)
    with pytest.raises(gpustore.MetadataError, match="batch was already submitted"):
        batch.explain()
    store = gpustore.open(f"file://{tmp_path}").result()
    for starts, error in (([[30, 0]], gpustore.OutOfBoundsError), ([[0.5, 0]], TypeError)):
        for ask in (store.explain_many, store.read_many):
            with pytest.raises(error):
                ask(starts, (5, 5))


def test_reads_that_share_no_chunks_have_explanations_of_their_own(tmp_path):
    zstd, raw = (gpustore.open(create(tmp_path / n, n)).result() for n in ("zstd", "raw"))
    with gpustore.Batch() as batch:
        first = zstd[:9].read(batch=batch)
        lone = raw[3:].read(batch=batch, order="F")
        points = zstd[[3, 30, 3], :].read(batch=batch)
        second = zstd[2:20].read(batch=batch)
        zstd[3:].read(batch=batch).cancel()
        gpustore.KvStore.open(f"file://{tmp_path}/").result().read("x", batch=batch)
        gpustore.array([1, 2]).read(batch=batch)
        shared, by_itself, other = batch.explain()
    assert (shared.together, by_itself.together, other.together) == (2, 1, 1)
    compare(shared, [first, second])
    compare(by_itself, [points])
    compare(other, [lone])
