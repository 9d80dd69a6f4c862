"""What is explained beforehand is what reads then count, on an emulated device and on the host."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustore
from tests.explain.explained import SELECTIONS, SHAPE, V2, check, create, crop_of, opened, path_of
from tests.on_device import emulated

PARTS = [SELECTIONS[name] for name in ("whole", "crop", "partly missing")]


@pytest.mark.parametrize("name", ["raw", "blosc-zstd", "shards-v3-zstd-crc32c", "bz2"])
def test_explanations_of_a_device_are_what_reads_count(tmp_path, name):
    """A part of the table of tests/backends/device/test_null_device.py."""
    spec = create(tmp_path, name)
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        for part in PARTS:
            explanation = check(there[part])
            assert (explanation.host_reason is not None) == (name == "bz2")
            assert ("launches" in explanation.expected) == (name not in ("raw", "bz2"))
        del there


@pytest.mark.parametrize("name", ["raw", "zstd", "blosc-lz4", "v3-raw", "shards-v3-zstd-crc32c"])
def test_explanations_of_the_host_are_what_reads_count(tmp_path, name):
    store = gpustore.open(create(tmp_path, name)).result()
    for part in SELECTIONS.values():
        assert check(store[part]).expected == ()


def test_few_large_streams_are_left_to_the_host(tmp_path):
    metadata = {
        "shape": [3 << 20],
        "chunks": [3 << 19],
        "dtype": "|u1",
        "compressor": V2["zstd"],
    }
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}", "metadata": metadata}
    gpustore.open(spec, create=True).result().write(5).result()
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        explanation = check(there)
        assert explanation.counts["host_fallbacks"] == 2
        ((reason, count),) = explanation.left_to_host
        assert reason.endswith("are too few")
        assert count == 2
        assert reason in str(explanation)
        del there


def test_files_that_may_go_straight_to_the_device(tmp_path):
    metadata = {"shape": [1 << 20], "chunks": [1 << 19], "dtype": "|u1", "compressor": None}
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}", "metadata": metadata}
    gpustore.open(spec, create=True).result().write(5).result()
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        explanation = there.explain()
        assert explanation.direct_nbytes == 1 << 20
        assert {"copies", "waits"} <= set(explanation.expected)
        assert "straight to the device" in str(explanation)
        read = there.read()
        read.result()
        assert read.statistics["bytes_direct"] == explanation.direct_nbytes
        for name in ("launches", "bytes_decoded", "bytes_fetched", "key_reads"):
            assert read.statistics[name] == explanation.counts.get(name, 0)
        del there, read
    with emulated(file_alignment=1) as device:
        there = gpustore.open(spec, device=device.name).result()
        there.read().result()
        explanation = there.explain()
        read = there.read()
        read.result()
        assert read.statistics["launches"] == explanation.counts["launches"]
        del there, read


def test_a_cache_is_explained_as_if_it_were_empty(tmp_path):
    spec = create(tmp_path, "shards-v3-zstd-crc32c")
    for device in ("host", "device"):
        context = gpustore.Context({"cache_pool": {"total_bytes_limit": 1 << 20}})
        with emulated() as there:
            name = "cpu" if device == "host" else there.name
            store = gpustore.open(spec, context=context, device=name).result()
            explanation = check(store[3:30])
            assert "bytes_fetched" in explanation.expected
            assert store.explain().codecs[-1] == path_of("zstd", "host")
            store[3:30].read().result()
            assert store[3:30].explain().counts == explanation.counts
            del store


spans = st.tuples(*[st.integers(0, n) for n in SHAPE], *[st.integers(0, n) for n in SHAPE])


@settings(max_examples=200)
@given(span=spans, name=st.sampled_from(["raw", "zstd", "shards-v3-raw"]))
def test_any_crop_of_the_host(tmp_path_factory, span, name):
    check(opened(tmp_path_factory, name)[crop_of(span)])


def test_no_chunk_is_looked_at(tmp_path):
    spec = create(tmp_path, "zstd")
    store = gpustore.open(spec).result()
    for path in tmp_path.iterdir():
        if not path.name.startswith("."):
            path.write_bytes(b"\xff" * path.stat().st_size)
    assert store.explain().bytes_decoded == 20 * 288
    assert store.read().exception() is not None


def test_damaged_indices_of_shards_are_an_error(tmp_path):
    spec = create(tmp_path, "shards-v3-raw")
    store = gpustore.open(spec).result()
    (path,) = tmp_path.glob("c/0/0")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(gpustore.CorruptChunkError, match="c/0/0"):
        store.explain()


def test_missing_chunks_are_an_error_if_they_are_to_be_there(tmp_path):
    spec = {**create(tmp_path, "zstd"), "fill_missing_data_reads": False}
    store = gpustore.open(spec).result()
    with pytest.raises(gpustore.NotFoundError, match="is missing"):
        store.explain()
    assert store[:20].explain().counts.get("chunks_missing", 0) == 0


def test_a_read_of_very_many_chunks_is_not_looked_at_in_detail():
    store = gpustore.open(
        {"driver": "zarr3", "kvstore": "memory://"},
        create=True,
        dtype="uint8",
        shape=[200, 200],
        chunk_layout=gpustore.ChunkLayout(chunk_shape=[1, 1]),
        device="cpu",
    ).result()
    explanation = store.explain()
    assert (explanation.chunks, explanation.values) == (40_000, 40_000)
    assert explanation.counts is explanation.bytes_fetched is explanation.decoded_per_byte is None
    assert "at most 40,000 bytes" in str(explanation)
    assert store[:10].explain().counts is not None


def test_amplified_reads_get_advice(tmp_path):
    store = gpustore.open(create(tmp_path, "zstd")).result()
    assert store.explain().advice is None
    explanation = store[:, 3].explain()
    assert explanation.decoded_per_byte > 4
    assert "read_many" in explanation.advice
    assert "smaller chunks than 8 x 9" in explanation.advice
    assert explanation.advice in str(explanation)


def test_what_a_gpu_would_do_is_said_where_there_is_none(tmp_path):
    for name in ("zstd", "bz2"):
        explanation = gpustore.open(create(tmp_path / name, name), device="cpu").result().explain()
        assert explanation.codecs == (path_of(name, "host"),)
        expected = "nvcomp" if name == "zstd" else "host"
        assert explanation.gpu == (path_of(name, expected),)
        assert (explanation.gpu_reason is None) == (name == "zstd")
        for missing in explanation.gpu_missing:
            assert missing in str(explanation)


def test_json_and_text(tmp_path):
    store = gpustore.open(create(tmp_path, "zstd")).result()
    explanation = store.explain()
    members = explanation.to_json()
    assert json.loads(json.dumps(members)) == members
    fields = itertools.chain(explanation.__slots__, ["advice", "bytes_decoded", "bytes_fetched"])
    assert set(fields) <= members.keys()
    with pytest.raises(AttributeError):
        explanation.chunks = 3
    lines = str(explanation).split("\n")
    assert lines[0] == "read         37 x 41 of uint32, 6,068 bytes, into host memory"
    assert lines[1] == "chunks       25 of 8 x 9, in 25 stored values; 5 are not stored"


def test_what_has_no_chunks_is_not_explained(tmp_path):
    with pytest.raises(gpustore.UnsupportedError, match='"array" driver'):
        gpustore.array([1, 2]).explain()
    (tmp_path / "a.json").write_text("3")
    document = gpustore.open({"driver": "json", "kvstore": f"file://{tmp_path}/a.json"}).result()
    with pytest.raises(gpustore.UnsupportedError, match='"json" driver'):
        document.explain()


def test_bounds_are_those_that_are_stored_if_they_are_to_be_rechecked(tmp_path):
    spec = create(tmp_path, "zstd")
    store = gpustore.open(spec, recheck_cached_metadata=True).result()
    gpustore.open(spec).result().resize(exclusive_max=[8, 41]).result()
    assert store.explain().chunks == 5
    with pytest.raises(gpustore.OutOfBoundsError):
        store[:20].explain()


ADAPTERS = {
    "deflate": {"driver": "zip", "compression": "deflate"},
    "store": {"driver": "zip", "compression": "store"},
    "database": {"driver": "ocdbt"},
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_values_that_lie_in_files_of_adapters_go_straight_to_the_device(tmp_path, name):
    """What is compressed there does not, and both is known beforehand."""
    kvstore = {**ADAPTERS[name], "base": f"file://{tmp_path}/x{'/' * (name == 'database')}"}
    spec = {"driver": "zarr3", "kvstore": kvstore, "dtype": "uint8"}
    gpustore.open(spec, create=True, shape=[1 << 20]).result().write(7).result()
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        explanation, read = there.explain(), there.read()
        read.result()
        assert explanation.direct_nbytes == (0 if name == "deflate" else 1 << 20)
        assert read.statistics["bytes_direct"] == explanation.direct_nbytes
        del there, read
