"""What a rehearsal counts is what reads into an emulated device count: a table of both."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustore
from tests.explain.explained import (
    CODECS,
    SELECTIONS,
    SHAPE,
    check,
    check_batch,
    check_many,
    create,
    crop_of,
    metadata_of,
    opened,
    path_of,
)
from tests.on_device import emulated

pytestmark = pytest.mark.long
"""A stage of its own in .ci/run; tests/explain/test_explain.py has a part of it."""

FIXED = ("v3-raw", "v3-crc32c", "shards-v3-raw", "shards-v3-crc32c")
"""What a device is asked for does not depend on the stored bytes."""


@pytest.mark.parametrize("name", CODECS)
def test_explanations_of_a_device_are_what_reads_count(tmp_path, name):
    spec = create(tmp_path, name)
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        for part in SELECTIONS.values():
            explanation = check(there[part])
            by_headers = {"launches", "copies", "waits"} & set(explanation.expected)
            assert bool(by_headers) == (name not in ("raw", "bz2", *FIXED))
            assert (explanation.host_reason is not None) == (name == "bz2")
        del there


CASES = {
    "small memory": ("zstd", {"limits": {"device_in_flight_nbytes": 24 * 3 * 288}}, {}),
    "small memory, shards": (
        "shards-v3-zstd-crc32c",
        {"limits": {"device_in_flight_nbytes": 24 * 5 * 48}},
        {},
    ),
    "small memory, host decodes": ("bz2", {"limits": {"device_in_flight_nbytes": 20_000}}, {}),
    "no library": ("zstd", {}, {"decodes": ()}),
    "own kernels": ("blosc-lz4", {}, {"decodes": ()}),
    "not trusted": ("zstd", {"gpu_decode_trust": "never"}, {}),
    "trusted behind a checksum": ("v3-zstd-crc32c", {"gpu_decode_trust": "verified"}, {}),
    "one thread": ("shards-v3-raw", {"data_copy_concurrency": {"limit": 1}}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_explanations_of_other_devices_and_contexts(tmp_path, case):
    name, context, settings = CASES[case]
    spec = create(tmp_path, name)
    with emulated(**settings) as device:
        context = gpustore.Context(context)
        there = gpustore.open(spec, device=device.name, context=context).result()
        for part in ("whole", "crop", "partly missing"):
            explanation = check(there[SELECTIONS[part]])
        if case.startswith("small"):
            assert there.explain().sub_batches > 4
        if case in ("no library", "not trusted"):
            assert explanation.codecs == (path_of("zstd", "host"),)
            assert explanation.host_reason in str(explanation)
        if case == "own kernels":
            assert explanation.codecs == (path_of("blosc", "own kernels"),)
        del there


@pytest.mark.parametrize("dtype", ["|b1", ">c16", "bfloat16", "|u1"])
@pytest.mark.parametrize("name", ["raw", "zstd"])
def test_explanations_of_other_types(tmp_path, name, dtype):
    driver, metadata = metadata_of(name, dtype)
    metadata["fill_value"] = None if dtype == ">c16" else 1 if dtype == "|u1" else 0
    spec = {"driver": driver, "kvstore": f"file://{tmp_path}", "metadata": metadata}
    store = gpustore.open(spec, create=True, device="cpu").result()
    store[:20] = np.ones((20, 41), store.dtype.numpy_dtype)
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        for part in ("whole", "crop", "partly missing"):
            check(there[SELECTIONS[part]])
        del there


spans = st.tuples(*[st.integers(0, n) for n in SHAPE], *[st.integers(0, n) for n in SHAPE])


def test_any_crop_of_a_device(tmp_path_factory):
    with emulated() as device:
        there = {}

        @settings(max_examples=200)
        @given(span=spans, name=st.sampled_from(sorted(set(CODECS) - {"bz2"})))
        def compare(span, name):
            if name not in there:
                spec = opened(tmp_path_factory, name).spec()
                there[name] = gpustore.open(spec, device=device.name).result()
            check(there[name][crop_of(span)])

        compare()
        there.clear()


crops = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 32)), min_size=2, max_size=12)


def test_any_crops_and_batches_of_a_device(tmp_path_factory):
    with emulated() as device:
        there = {}

        @settings(max_examples=200)
        @given(
            starts=crops,
            shape=st.tuples(st.integers(1, 7), st.integers(1, 9)),
            name=st.sampled_from(sorted(set(CODECS) - {"bz2"})),
        )
        def compare(starts, shape, name):
            if name not in there:
                spec = opened(tmp_path_factory, name).spec()
                there[name] = gpustore.open(spec, device=device.name).result()
            store = there[name]
            check_many(store, starts, shape)
            check_batch([store[i : i + shape[0], j : j + shape[1]] for i, j in starts])

        compare()
        there.clear()


RECORD = [["a", "|u1"], ["b", ">f4"], ["c", "<i8", [3]]]


@pytest.mark.parametrize("codec", [None, "zstd", "blosc-lz4"])
@pytest.mark.parametrize("field", ["a", "b", "c"])
def test_explanations_of_fields(tmp_path, field, codec):
    metadata = {
        "shape": list(SHAPE),
        "chunks": [8, 9],
        "dtype": RECORD,
        "compressor": CODECS["raw" if codec is None else codec],
        "fill_value": None,
    }
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}", "metadata": metadata}
    host = gpustore.open({**spec, "field": field}, create=True).result()
    host[:24] = np.ones(host[:24].shape, host.dtype.numpy_dtype)
    with emulated() as device:
        for what in ({"field": field}, {"open_as_void": True}):
            there = gpustore.open({**spec, **what}, device=device.name).result()
            for part in ("whole", "crop", "row"):
                check(there[SELECTIONS[part]])
            del there


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_explanations_of_filters_and_of_shards_in_shards(tmp_path, codec):
    filtered = {
        "shape": list(SHAPE),
        "chunks": [8, 9],
        "dtype": "<u4",
        "filters": [{"id": "shuffle", "elementsize": 4}],
        "compressor": CODECS["raw" if codec is None else codec],
    }
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    index = {"index_codecs": [little, {"name": "crc32c"}]}
    zstd = [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]
    inner = {"chunk_shape": [2, 4], "codecs": [little, *(zstd if codec else [])], **index}
    outer = {
        "chunk_shape": [4, 8],
        "codecs": [{"name": "sharding_indexed", "configuration": inner}],
        **index,
    }
    nested = {
        "shape": list(SHAPE),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 16]}},
        "data_type": "uint32",
        "codecs": [{"name": "sharding_indexed", "configuration": outer}],
    }
    for driver, metadata in (("zarr", filtered), ("zarr3", nested)):
        kvstore = f"file://{tmp_path / driver}/"
        spec = {"driver": driver, "kvstore": kvstore, "metadata": metadata}
        host = gpustore.open(spec, create=True).result()
        host[:24, 3:] = np.random.default_rng(1).integers(0, 99, (24, 38)).astype("u4")
        with emulated() as device:
            there = gpustore.open(spec, device=device.name).result()
            for part in SELECTIONS.values():
                check(there[part])
            del there
