"""The ``shuffle`` filter: against numcodecs and zarr, on the host and on an emulated device."""

import json

import hypothesis.strategies as st
import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given

import gpustore
from gpustore.errors import CorruptChunkError, MetadataError, MismatchError, UnsupportedError
from tests.codecs.contract import check_sizes, make_payload, stage
from tests.device_memory import require_kernels
from tests.device_values import decode_on
from tests.emulator.device import EmulatedDevice
from tests.emulator.queue import ORDERS
from tests.on_device import emulated, on_host

SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 16, 17, 255, 1000])


def shuffle(elementsize):
    return stage("shuffle", "filter", elementsize=elementsize)


@given(elementsize=SIZES, count=st.integers(0, 300), seed=st.integers(0, 99))
def test_bytes_are_those_of_numcodecs(elementsize, count, seed):
    payload = make_payload(max(1, elementsize) * count, "noise", seed)
    ours, theirs = shuffle(elementsize), numcodecs.Shuffle(elementsize)
    encoded = bytes(ours.encode(payload))
    assert encoded == bytes(theirs.encode(payload))
    assert bytes(ours.decode(encoded, len(payload), exact=True)) == payload
    out = memoryview(bytearray(len(payload) + 5))
    found = ours.decode(encoded, len(out), exact=False, out=out)
    assert bytes(found) == bytes(out[: len(payload)]) == payload


def test_wrong_sizes_are_refused():
    check_sizes(shuffle(4), make_payload(2000, "steps"))
    with pytest.raises(CorruptChunkError, match="10 bytes are no elements of 4 bytes"):
        shuffle(4).decode(bytes(10), 12, exact=False)
    with pytest.raises(ValueError, match="integer multiple"):
        numcodecs.Shuffle(4).decode(bytes(10))


@pytest.mark.matrix
@given(
    elementsize=SIZES,
    counts=st.lists(st.integers(0, 700), min_size=1, max_size=4),
    order=st.sampled_from(ORDERS),
    offset=st.sampled_from([0, 1, 4, 7]),
)
def test_a_device_decodes_writes_of_the_host(elementsize, counts, order, offset):
    device = EmulatedDevice(order, seed=1)
    require_kernels(device)
    codec = shuffle(elementsize)
    payloads = [make_payload(max(1, elementsize) * n, "noise", n) for n in counts]

    def record(batch, device):
        codec.decode_device(batch, device, 700_000, exact=False)

    encoded = [bytes(codec.encode(payload)) for payload in payloads]
    found = decode_on(device, record, encoded, offset=offset, seen=False)
    device.close()
    assert (found.fallbacks, found.failed) == ({}, {})
    assert list(found.values.values()) == payloads


@pytest.mark.parametrize("order", ORDERS)
def test_a_device_refuses_values_that_are_no_chunk(order):
    device = EmulatedDevice(order, seed=1)
    require_kernels(device)

    def record(batch, device):
        shuffle(4).decode_device(batch, device, 400, exact=True)

    found = decode_on(device, record, [bytes(sizes) for sizes in (400, 0, 399, 401, 404)])
    device.close()
    assert list(found.values) == [0]
    assert found.fallbacks == {row: "shuffle: not 400 bytes" for row in (1, 2, 3, 4)}


# --------------------------------------------------------------------------- arrays

FILTERS = {
    "shuffle": [{"id": "shuffle", "elementsize": 4}],
    "default": [{"id": "shuffle"}],
    "bytes": [{"id": "shuffle", "elementsize": 1}],
    "two": [{"id": "shuffle", "elementsize": 2}, {"id": "shuffle", "elementsize": 8}],
}
COMPRESSORS = [None, {"id": "zlib", "level": 1}, {"id": "blosc", "cname": "zstd"}]


def spec_of(path, filters, compressor=None, **metadata):
    metadata = {
        "shape": [30, 20],
        "chunks": [8, 6],
        "dtype": "<u4",
        "compressor": compressor,
        "filters": filters,
        **metadata,
    }
    return {"driver": "zarr", "kvstore": f"file://{path}", "metadata": metadata}


@pytest.mark.matrix
@pytest.mark.parametrize("filters", FILTERS.values(), ids=list(FILTERS))
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: c["id"] if c else "raw")
def test_zarr_reads_our_writes_and_the_reverse(tmp_path, filters, compressor):
    written = np.arange(600, dtype="<u4").reshape(30, 20)
    store = gpustore.open(spec_of(tmp_path, filters, compressor), create=True).result()
    store[...] = written
    store[3:5, 2:9] = written[3:5, 2:9]
    array = zarr.open_array(str(tmp_path), mode="r+")
    assert np.array_equal(array[...], written)
    assert [f.get_config()["id"] for f in array.filters] == ["shuffle"] * len(filters)
    array[...] = written + 1
    assert np.array_equal(store.read().result(), written + 1)
    assert np.array_equal(store[7:20:3, 5].read().result(), written[7:20:3, 5] + 1)
    with emulated() as device:
        require_kernels(device)
        there = gpustore.open(f"file://{tmp_path}", device=device.name).result()
        found = there[5:].read().result()
        assert np.array_equal(on_host(device, found), written[5:] + 1)
        del there, found


def test_an_array_that_zarr_made_is_opened(tmp_path):
    array = zarr.create_array(
        str(tmp_path),
        shape=(10, 10),
        chunks=(5, 5),
        dtype=">f8",
        zarr_format=2,
        filters=[numcodecs.Shuffle(8)],
        compressors=numcodecs.Zstd(1),
    )
    array[...] = np.arange(100.0).reshape(10, 10)
    store = gpustore.open(f"file://{tmp_path}").result()
    assert np.array_equal(store.read().result(), array[...])
    codec = {
        "driver": "zarr",
        "compressor": {"id": "zstd", "level": 1, "checksum": False},
        "filters": [{"id": "shuffle", "elementsize": 8}],
    }
    found = store.codec.to_json()
    assert {**found, "compressor": None} == {**codec, "compressor": None}


def test_stored_filters_must_be_those_of_the_spec(tmp_path):
    gpustore.open(spec_of(tmp_path / "a", [{"id": "shuffle"}]), create=True).result()
    gpustore.open(spec_of(tmp_path / "b", None), create=True).result()
    for filters in (FILTERS["shuffle"], FILTERS["default"]):
        assert gpustore.open(spec_of(tmp_path / "a", filters)).result().shape == (30, 20)
    for name, filters in (("a", None), ("a", FILTERS["bytes"]), ("b", FILTERS["shuffle"])):
        with pytest.raises(MismatchError, match='Expected "filters" of'):
            gpustore.open(spec_of(tmp_path / name, filters)).result()
    for name, filters in (("a", FILTERS["bytes"]), ("b", FILTERS["shuffle"])):
        codec = {"driver": "zarr", "filters": filters}
        with pytest.raises(MismatchError, match='"filters" does not match'):
            gpustore.open(f"file://{tmp_path / name}", codec=gpustore.CodecSpec(codec)).result()
    codec = gpustore.CodecSpec({"driver": "zarr", "filters": FILTERS["default"]})
    opened = gpustore.open(f"file://{tmp_path / 'a'}", codec=codec).result()
    again = gpustore.open(opened.spec().to_json()).result()
    assert again.codec == opened.codec


def test_new_arrays_take_filters_from_metadata_and_from_the_codec(tmp_path):
    codec = gpustore.CodecSpec({"driver": "zarr", "filters": FILTERS["two"]})
    spec = spec_of(tmp_path / "a", None)
    del spec["metadata"]["filters"]
    gpustore.open(spec, create=True, codec=codec).result()
    stored = json.loads((tmp_path / "a/.zarray").read_text())
    assert stored["filters"] == FILTERS["two"]
    with pytest.raises(MismatchError, match='"filters" does not match'):
        gpustore.open(spec_of(tmp_path / "b", None), create=True, codec=codec).result()
    with pytest.raises(MismatchError, match='"filters" does not match'):
        gpustore.open(spec_of(tmp_path / "b", FILTERS["bytes"]), create=True, codec=codec).result()
    none = gpustore.CodecSpec({"driver": "zarr", "filters": []})
    gpustore.open(spec, open=True, create=True)
    with pytest.raises(MismatchError):
        gpustore.open(spec, codec=none).result()


def test_codec_specs_merge_as_those_of_tensorstore():
    """Null is no constraint there; it reads no filters, we do."""
    a, b = ({"driver": "zarr", "filters": filters} for filters in (FILTERS["shuffle"], None))
    for first, second in ((a, b), (b, a), (a, a)):
        schema = gpustore.Schema(codec=gpustore.CodecSpec(first))
        schema.update(codec=gpustore.CodecSpec(second))
        assert schema.codec.to_json() == a
    assert gpustore.CodecSpec({"driver": "zarr", "filters": []}).to_json()["filters"] == []


def test_codecs_that_are_no_filters_are_refused_by_name(tmp_path):
    for filters, error, match in (
        ([{"id": "lzo"}], UnsupportedError, 'except "adler32", .*, "zstd": "lzo"'),
        ([{"id": "shuffle"}, {"id": "pickle"}], UnsupportedError, '"pickle" is not supported: it'),
        ([{"id": "shuffle", "elementsize": -1}], MetadataError, '"elementsize"'),
        ([{"id": "shuffle", "size": 4}], MetadataError, '"size"'),
        ([{"id": "shuffle", "elementsize": 5}], MetadataError, "does not divide chunks of 192"),
    ):
        with pytest.raises(error, match=match) as caught:
            gpustore.open(spec_of(tmp_path, filters), create=True).result()
        assert '"filters"' in str(caught.value)
    assert not (tmp_path / ".zarray").exists()


def test_damaged_chunks_name_their_key(tmp_path):
    store = gpustore.open(spec_of(tmp_path, FILTERS["shuffle"]), create=True).result()
    store[...] = 3
    (tmp_path / "0.0").write_bytes(bytes(191))
    with pytest.raises(CorruptChunkError) as caught:
        store.read().result()
    assert caught.value.key == f"{tmp_path}/0.0"
