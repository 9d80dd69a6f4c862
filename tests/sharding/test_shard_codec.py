"""Shards that later codecs encode as a whole: read and written as zarr-python does."""

import itertools
import json

import google_crc32c
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from tests.on_device import emulated, on_host

pytestmark = pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed`")

GZIP = {"name": "gzip", "configuration": {"level": 1}}
CRC = {"name": "crc32c"}


def endian(order):
    return {"name": "bytes", "configuration": {"endian": order}}


def shards(chunk_shape, codecs, at="end"):
    configuration = {
        "chunk_shape": chunk_shape,
        "codecs": codecs,
        "index_codecs": [endian("little"), CRC],
        "index_location": at,
    }
    return {"name": "sharding_indexed", "configuration": configuration}


def sealed(value):
    """With the checksum behind it that the codec crc32c puts there."""
    return value + google_crc32c.value(value).to_bytes(4, "little")


def stored(path, codecs, *, shape, chunk_shape, data_type="uint16", fill_value=7):
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": codecs,
        "fill_value": fill_value,
        "attributes": {},
    }
    path.mkdir(exist_ok=True)
    (path / "zarr.json").write_text(json.dumps(document))
    return gpustore.open(path).result()


CHAINS = {
    "gzip": [shards([2, 3], [endian("little")]), GZIP],
    "big endian, crc32c, zstd": [
        shards([2, 3], [endian("big"), CRC], "start"),
        {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
        CRC,
    ],
    "transpose inside": [
        shards([2, 3], [{"name": "transpose", "configuration": {"order": [1, 0]}}, endian("big")]),
        GZIP,
    ],
    "shards in shards": [shards([4, 6], [shards([2, 3], [endian("little"), GZIP])]), GZIP],
    "only the inner ones": [shards([4, 6], [shards([2, 3], [endian("little")]), GZIP])],
}


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_exchanged_with_zarr(tmp_path, codecs):
    data = np.arange(9 * 13, dtype="uint16").reshape(9, 13) + 100
    data[:4, :6] = 7  # inner chunks that zarr-python leaves out
    theirs = tmp_path / "theirs"
    store = stored(theirs, codecs, shape=[9, 13], chunk_shape=[8, 12])
    zarr.open_array(theirs)[...] = data
    assert store.chunk_layout.write_chunk.shape == (8, 12)
    assert np.array_equal(store.read().result(), data)
    assert np.array_equal(store[3:7, 5:13:2].read().result(), data[3:7, 5:13:2])

    ours = tmp_path / "ours"
    store = stored(ours, codecs, shape=[9, 13], chunk_shape=[8, 12])
    store.write(data).result()
    store[2:5, 3].write(9).result()
    data[2:5, 3] = 9
    assert np.array_equal(store.read().result(), data)
    assert np.array_equal(zarr.open_array(ours, mode="r")[...], data)
    again = gpustore.open(store.spec(), open=True).result()
    assert again.spec() == store.spec()
    assert np.array_equal(again.read().result(), data)


def test_transpose_before(tmp_path):
    """zarr-python 3.1 cannot: what the codec would see is transposed by hand."""
    data = np.arange(24, dtype="uint16").reshape(4, 6)
    plain = [shards([3, 2], [endian("little")]), GZIP]
    by_hand = stored(tmp_path / "a", plain, shape=[6, 4], chunk_shape=[6, 4])
    zarr.open_array(tmp_path / "a")[...] = data.T
    assert np.array_equal(by_hand.read().result(), data.T)
    order = {"name": "transpose", "configuration": {"order": [1, 0]}}
    store = stored(tmp_path / "b", [order, *plain], shape=[4, 6], chunk_shape=[4, 6])
    (tmp_path / "b/c/0").mkdir(parents=True)
    (tmp_path / "b/c/0/0").write_bytes((tmp_path / "a/c/0/0").read_bytes())
    assert np.array_equal(store.read().result(), data)
    store[1].write(data[1] + 1000).result()
    data[1] += 1000
    assert np.array_equal(zarr.open_array(tmp_path / "a")[...], zarr.array(by_hand.read().result()))
    (tmp_path / "a/c/0/0").write_bytes((tmp_path / "b/c/0/0").read_bytes())
    assert np.array_equal(zarr.open_array(tmp_path / "a")[...], data.T)


def test_records(tmp_path):
    fields = [
        {"name": "x", "data_type": "uint8"},
        {"name": "y", "data_type": "float32"},
    ]
    data_type = {"name": "struct", "configuration": {"fields": fields}}
    options = {"data_type": data_type, "fill_value": {"x": 3, "y": 2.5}}
    codecs = [shards([2], [endian("big")]), GZIP]
    with pytest.raises(gpustore.MismatchError):
        stored(tmp_path / "a", codecs, shape=[7], chunk_shape=[6], **options)
    whole = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/"}
    x, y = (gpustore.open({**whole, "field": name}).result() for name in "xy")
    assert y.read().result().tolist() == [2.5] * 7
    y[1:3].write([1.5, -1]).result()
    x[2:].write([1, 2, 3, 4, 5]).result()
    assert y.read().result().tolist() == [2.5, 1.5, -1, 2.5, 2.5, 2.5, 2.5]
    assert x.read().result().tolist() == [3, 3, 1, 2, 3, 4, 5]


def test_missing_inner_chunks_hold_the_fill_value(tmp_path):
    codecs = [shards([2], [endian("big")]), CRC]
    data = np.array([7, 7, 1, 2, 7, 7], "uint16")
    store = stored(tmp_path, codecs, shape=[6], chunk_shape=[6])
    zarr.open_array(tmp_path)[...] = data
    assert (tmp_path / "c/0").stat().st_size < 2 * 6 + 3 * 16 + 8
    assert store.read().result().tolist() == data.tolist()


shapes = st.tuples(st.integers(1, 3), st.integers(1, 3))


@pytest.mark.matrix
@given(shapes, shapes, shapes, st.permutations(range(2)), st.permutations(range(2)), st.data())
def test_any_shape_and_order(inner, counts, grid, outer_order, inner_order, data):
    """Whole shards are those that are written and read inner chunk by inner chunk."""
    encoded = [a * b for a, b in zip(inner, counts, strict=True)]
    chunk_shape = [0, 0]
    for d, extent in zip(outer_order, encoded, strict=True):
        chunk_shape[d] = extent
    shape = [max(1, n * g - data.draw(st.integers(0, 1))) for n, g in zip(chunk_shape, grid)]
    transposes = [
        {"name": "transpose", "configuration": {"order": list(order)}}
        for order in (outer_order, inner_order)
    ]
    codecs = [transposes[0], shards(list(inner), [transposes[1], endian("big")])]
    values = np.arange(np.prod(shape), dtype="uint16").reshape(shape) * 7
    stores, arrays = [], []
    for behind in ([], [CRC]):
        metadata = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
            "chunk_key_encoding": {"name": "default"},
            "codecs": codecs + behind,
            "fill_value": 7,
        }
        context = gpustore.Context()
        store = gpustore.KvStore.open("memory://", context=context).result()
        store.write("zarr.json", json.dumps(metadata).encode()).result()
        array = gpustore.open("memory://|zarr3:", context=context).result()
        array.write(values).result()
        assert np.array_equal(array.read().result(), values)
        stores.append(store)
        arrays.append(array)
    plain, behind = (
        {key: store.read(key).result().value for key in store.list().result() if key[:1] == b"c"}
        for store in stores
    )
    for key in plain:  # One chunk of nothing but the fill value may be missing.
        stores[0].write(key, behind[key][:-4]).result()
        stores[1].write(key, sealed(plain[key])).result()
    for array in arrays:
        assert np.array_equal(array.read().result(), values)


def test_damage_names_the_key_and_the_inner_chunk(tmp_path):
    codecs = [shards([2], [endian("big"), CRC]), CRC]
    store = stored(tmp_path, codecs, shape=[6], chunk_shape=[6])
    store.write(np.arange(6, dtype="uint16")).result()
    path = tmp_path / "c/0"
    good = path.read_bytes()

    def refused(value):
        path.write_bytes(value)
        with pytest.raises(gpustore.CorruptChunkError) as caught:
            store.read().result()
        assert "c/0" in str(caught.value)
        return str(caught.value)

    assert "Digest mismatch" in refused(good[:-1])
    for cut in range(0, len(good) - 4):
        refused(sealed(good[:cut]))
    damaged = bytearray(good[:-4])
    damaged[9] ^= 1
    assert "inner chunk {1} of the shard" in refused(sealed(bytes(damaged)))
    for position, flip in itertools.product(range(len(good) - 4), (1, 0x80)):
        damaged = bytearray(good[:-4])
        damaged[position] ^= flip
        refused(sealed(bytes(damaged)))
    assert "no legal encoding of a chunk" in refused(sealed(bytes(10_000)))


def test_on_a_device(tmp_path):
    store = stored(tmp_path, CHAINS["gzip"], shape=[9, 13], chunk_shape=[8, 12])
    data = np.arange(9 * 13, dtype="uint16").reshape(9, 13)
    store.write(data).result()
    with emulated() as device:
        there = gpustore.open(tmp_path, device=device.name).result()
        assert "sharding_indexed is not decoded on a device" in str(there.explain())
        future = there[2:7].read()
        assert np.array_equal(on_host(device, future.result()), data[2:7])
        assert future.statistics["host_fallbacks"] == 2
        del there, future


def test_creation_is_refused_as_by_tensorstore(tmp_path):
    import tensorstore

    spec = {
        "driver": "zarr3",
        "kvstore": f"file://{tmp_path}/",
        "metadata": {
            "shape": [6],
            "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [6]}},
            "codecs": [shards([2], [endian("big")]), GZIP],
        },
    }
    with pytest.raises(ValueError, match="not compatible with subsequent"):
        tensorstore.open(spec, create=True).result()
    with pytest.raises(gpustore.UnsupportedError, match="not compatible with subsequent"):
        gpustore.open(spec, create=True).result()
