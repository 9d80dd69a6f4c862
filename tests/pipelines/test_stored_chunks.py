"""Tests of the count of stored chunks, compared with TensorStore's statistics of storage."""

import pickle

import numpy as np
import pytest
import tensorstore

import gpustore
from gpustore import TensorStore

SPECS = {
    "zarr2": {"driver": "zarr", "metadata": {"shape": [12, 17], "chunks": [3, 4], "dtype": "|u1"}},
    "sharded": {
        "driver": "zarr3",
        "metadata": {
            "shape": [12, 17],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [6, 8]}},
            "codecs": [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": [3, 4],
                        "codecs": [{"name": "bytes"}, {"name": "zstd"}],
                    },
                }
            ],
        },
    },
}
ASK = {"query_not_stored": True, "query_fully_stored": True}


def answer(store, **asked):
    found = store.storage_statistics(**asked).result()
    return found.not_stored, found.fully_stored


@pytest.fixture(params=SPECS, scope="module")
def stores(request, tmp_path_factory):
    """An array with some chunks, as gpustore and as TensorStore open it."""
    folder = tmp_path_factory.mktemp("stored") / "a"
    spec = SPECS[request.param] | {"kvstore": f"file://{folder}/"}
    ours = gpustore.open(spec, create=True).result()
    ours[0:3, 0:4].write(1).result()
    ours[3:9, 5:12].write(2).result()
    ours[0:3, 12:16].write(3).result()
    return ours, tensorstore.open(spec, open=True).result()


def test_statistics_of_storage_are_those_of_tensorstore(stores):
    ours, theirs = stores
    generator = np.random.default_rng(20)
    indices = [
        (),
        np.s_[0, 0],
        np.s_[5:5],
        np.s_[::5, ::-3],
        np.s_[[0, 3], [0, 5]],
        np.s_[11:, 16:],
    ]
    for _ in range(60):
        first = generator.integers(0, [12, 17])
        size = generator.integers(0, 7, 2)
        indices.append(
            tuple(slice(at, min(at + n, end)) for at, n, end in zip(first, size, [12, 17]))
        )
    seen = set()
    for index in indices:
        found = answer(ours[index], **ASK)
        assert found == answer(theirs[index], **ASK), index
        seen.add(found)
    assert seen == {(True, False), (False, True), (False, False), (True, True)}
    cast = gpustore.cast(ours[:3, :4], "float32")
    assert answer(cast, **ASK) == (False, True)


def test_only_what_is_asked_is_answered(stores):
    for store in stores:
        assert answer(store) == (None, None)
        assert answer(store, query_not_stored=True) == (False, None)
        assert answer(store, query_fully_stored=True) == (None, False)


@pytest.mark.parametrize("api", [gpustore, tensorstore])
def test_statistics_of_storage_are_values(api):
    of = api.TensorStore.StorageStatistics
    found = api.array([1, 2]).storage_statistics(query_not_stored=True).result()
    assert found == of(not_stored=False) != of(not_stored=True)
    assert repr(found) == "TensorStore.StorageStatistics(not_stored=False, fully_stored=None)"
    assert pickle.loads(pickle.dumps(found)) == found
    found.fully_stored = True
    assert found == of(not_stored=False, fully_stored=True)


def test_resized_bounds_count():
    store = gpustore.open(
        {"driver": "zarr3", "kvstore": "memory://", "recheck_cached_metadata": True},
        create=True,
        dtype="uint8",
        shape=[4],
        chunk_layout=[2],
    ).result()
    again = gpustore.open(store.spec(retain_context=True), open=True).result()
    store.write(1).result()
    store.resize(exclusive_max=[8]).result()
    assert answer(again, **ASK) == (False, False)


def test_drivers_that_cannot_tell_say_so():
    store = gpustore.open({"driver": "json", "kvstore": "memory://a.json"}).result()
    with pytest.raises(gpustore.UnsupportedError, match="Storage statistics not supported"):
        store.storage_statistics(query_not_stored=True)
    assert store.storage_statistics().result() == TensorStore.StorageStatistics()


def test_statistics_of_storage_name_a_damaged_index(tmp_path):
    spec = SPECS["sharded"] | {"kvstore": f"file://{tmp_path}/"}
    store = gpustore.open(spec, create=True).result()
    store[0:3, 0:4].write(1).result()
    (tmp_path / "c/0/0").write_bytes(b"short")
    with pytest.raises(gpustore.CorruptChunkError, match="c/0/0"):
        store.storage_statistics(**ASK).result()
