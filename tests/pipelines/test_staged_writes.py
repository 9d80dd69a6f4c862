"""Writes in transactions for every kind of plan: many chunks, shards, chunks of several shapes."""

import numpy as np

import gpustore


def staged_and_stored(store, write):
    """Elements that a reader sees in the transaction in which `write` is called, and afterwards."""
    with gpustore.Transaction() as transaction:
        staged = store.with_transaction(transaction)
        write(staged)
        seen = staged.read().result()
    stored = store.read().result()
    assert np.array_equal(seen, stored)
    return stored.tolist()


def test_more_chunks_than_a_window_has(monkeypatch):
    monkeypatch.setattr("gpustore.pipelines.writes_under_way.PLANNED_ROWS", 7)
    options = {"shape": (40,), "dtype": "uint8", "chunks": (1,)}

    def write(store):
        store[...] = 3
        store[20:30] = np.arange(10, dtype="uint8")

    expected = [3] * 20 + [*range(10)] + [3] * 10
    plain = gpustore.create_array("memory://p", **options).result()
    assert staged_and_stored(plain, write) == expected
    sharded = gpustore.create_array("memory://s", **options, shards=(40,)).result()
    assert staged_and_stored(sharded, write) == expected
    assert sharded.kvstore.list().result() == [b"c/0", b"zarr.json"]


def test_chunks_of_several_shapes():
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[3, 3, 4]]}}
    metadata = {"shape": [10], "data_type": "uint8", "chunk_grid": grid}
    spec = {"driver": "zarr3", "kvstore": "memory://r/", "metadata": metadata}
    store = gpustore.open(spec, create=True).result()

    def write(store):
        store[2:9] = 5
        store[0] = 1

    assert staged_and_stored(store, write) == [1, 0, 5, 5, 5, 5, 5, 5, 5, 0]


def test_points_empty_domains_and_rank_0():
    store = gpustore.create_array("memory://p", shape=(6,), dtype="uint8", chunks=(4,)).result()

    def write(store):
        store[[1, 5, 5]] = np.array([1, 2, 3], "uint8")
        store[2:2] = np.zeros(0, "uint8")

    assert staged_and_stored(store, write) == [0, 1, 0, 0, 0, 3]
    scalar = gpustore.create_array("memory://0", shape=(), dtype="uint8").result()
    assert staged_and_stored(scalar, lambda store: store.write(4)) == 4


def test_fields_of_records_keep_each_other():
    metadata = {"dtype": [["x", "<u4"], ["y", "<f8"]], "shape": [6], "chunks": [4]}
    spec = {"driver": "zarr", "kvstore": "memory://f/", "metadata": metadata}
    context = gpustore.Context()
    x, y = (
        gpustore.open({**spec, "field": name}, create=True, open=True, context=context).result()
        for name in "xy"
    )
    with gpustore.Transaction() as transaction:
        for i in range(6):
            x.with_transaction(transaction)[i] = i
            y.with_transaction(transaction)[i] = i / 2
    assert x.read().result().tolist() == [*range(6)]
    assert y.read().result().tolist() == [i / 2 for i in range(6)]


def test_strings():
    store = gpustore.create_array("memory://u", shape=(5,), dtype="ustring", chunks=(3,)).result()

    def write(store):
        store[1:4] = ["a", "b", "c"]

    assert staged_and_stored(store, write) == ["", "a", "b", "c", ""]
