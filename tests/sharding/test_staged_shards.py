"""Writes to shards in transactions, compared with arrays of NumPy."""

import numpy as np
import pytest

import gpustore
from tests.matrix import each

SHARDING = {
    **{"@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 2, "minishard_bits": 1},
    **{"shard_bits": 2, "hash": "murmurhash3_x86_128", "data_encoding": "gzip"},
}
SHAPE = (17, 9, 6, 2)


def made(**sharding):
    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": "memory://a/",
        "multiscale_metadata": {"data_type": "uint16", "num_channels": 2, "type": "image"},
        "scale_metadata": {
            **{"size": SHAPE[:3], "chunk_size": [4, 4, 4], "resolution": [1, 1, 1]},
            "sharding": {**SHARDING, **sharding},
        },
    }
    return gpustore.open(spec, create=True, context=gpustore.Context()).result()


def box(random):
    low = [random.integers(n) for n in SHAPE]
    high = [random.integers(a, n) + 1 for a, n in zip(low, SHAPE)]
    return tuple(map(slice, low, high))


@each("seed", range(12))
def test_random_transactions(seed):
    random = np.random.default_rng(seed)
    store = made(minishard_bits=int(random.integers(3)), shard_bits=int(random.integers(3)))
    stored = np.zeros(SHAPE, np.uint16)
    for _ in range(3):
        transaction, layers = gpustore.Transaction(), []
        staged = store.with_transaction(transaction)
        for _ in range(random.integers(1, 6)):
            region, value = box(random), int(random.choice([0, 5, 9]))
            match random.choice(["stage", "stage", "see", "read", "write"]):
                case "stage":
                    staged[region] = value
                    layers.append((region, value))
                case "see":
                    seen = stored.copy()
                    for where, what in layers:
                        seen[where] = what
                    assert np.array_equal(staged[region].read().result(), seen[region])
                case "read":
                    assert np.array_equal(store[region].read().result(), stored[region])
                case "write":
                    store[region] = stored[region] = 77
        if random.random() < 0.2:
            transaction.abort()
        else:
            transaction.commit_sync()
            for where, what in layers:
                stored[where] = what
        assert np.array_equal(store.read().result(), stored)


def test_a_shard_is_stored_once():
    store = made(shard_bits=0)
    with gpustore.Transaction() as transaction:
        staged = store.with_transaction(transaction)
        for x in range(17):
            staged[x] = x + 1
    assert transaction.future.done()
    assert store.kvstore.list().result() == [b"1_1_1/0.shard", b"info"]
    assert store[:, 0, 0, 0].read().result().tolist() == list(range(1, 18))


def test_atomic_over_one_shard():
    store = made(shard_bits=0)
    with gpustore.Transaction(atomic=True) as transaction:
        store.with_transaction(transaction)[...] = 3
    assert store.read().result().min() == 3


def test_shards_in_files_are_not_changed_together(tmp_path):
    spec = made().spec().to_json() | {"kvstore": f"file://{tmp_path}/"}
    store = gpustore.open(spec, create=True).result()
    transaction = gpustore.Transaction(atomic=True)
    with pytest.raises(gpustore.GpustoreError, match="single atomic transaction"):
        store.with_transaction(transaction)[...] = 3
    assert [path.name for path in tmp_path.iterdir()] == ["info"]


def test_a_shard_without_chunks_is_deleted():
    store = made()
    store[...] = 1
    with gpustore.Transaction() as transaction:
        store.with_transaction(transaction)[...] = 0
    assert store.kvstore.list().result() == [b"info"]
