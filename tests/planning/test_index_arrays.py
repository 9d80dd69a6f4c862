"""Reading and writing through index arrays, against TensorStore and NumPy."""

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore

SHAPE, CHUNKS = (11, 13, 7), [4, 5, 3]
SHARDED = [{"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 5, 3]}}]
ARRAY = np.random.default_rng(0).integers(0, 1000, SHAPE).astype(np.uint16)

SELECTIONS = {
    "repeated": lambda x: x[[1, 5, 5, 0]],
    "two arrays": lambda x: x[[1, 5], [2, 3]],
    "two arrays apart": lambda x: x[[3, 1], :, [4, 4]],
    "two dimensions": lambda x: x[np.array([[1, 2], [3, 4]]), 3],
    "oindex": lambda x: x.oindex[[1, 5, 0], :, [2, 2, 6]],
    "oindex and a slice": lambda x: x.oindex[[10, 3], [1, 12, 1], 1:5],
    "vindex": lambda x: x.vindex[[1, 5, 0], :, [2, 2, 6]],
    "mask": lambda x: x[:, ARRAY[0, :, 0] > 300],
    "empty mask": lambda x: x[np.zeros(11, np.bool_)],
    "sliced before": lambda x: x[2:9][[3, 4], ::-2],
    "sliced after": lambda x: x[[7, 3, 3, 9]][1:4, 2:5],
    "array of an array": lambda x: x[[7, 3, 9]][[2, 0]],
    "transposed": lambda x: x.T[[0, 6], [1, 2], [3, 3]],
    "one element": lambda x: x[[3]],
}

STORES = {
    "zarr2": lambda lib: lib.open(
        "memory://a|zarr2:",
        create=True,
        dtype="uint16",
        shape=SHAPE,
        chunk_layout=lib.ChunkLayout(chunk_shape=CHUNKS),
    ).result(),
    "zarr3": lambda lib: lib.open(
        "memory://a|zarr3:",
        create=True,
        dtype="uint16",
        shape=SHAPE,
        chunk_layout=lib.ChunkLayout(chunk_shape=CHUNKS, inner_order=[2, 0, 1]),
    ).result(),
    "sharded": lambda lib: lib.open(
        "memory://a|zarr3:",
        create=True,
        dtype="uint16",
        shape=SHAPE,
        chunk_layout=lib.ChunkLayout(write_chunk_shape=[4, 5, 6]),
        codec=lib.CodecSpec({"driver": "zarr3", "codecs": SHARDED}),
    ).result(),
    "array": lambda lib: lib.array(np.zeros(SHAPE, np.uint16)),
}


@pytest.fixture(params=STORES)
def stores(request):
    both = [STORES[request.param](library) for library in (gpustore, ts)]
    for store in both:
        store.write(ARRAY).result()
    return both


@pytest.mark.parametrize("name", SELECTIONS)
def test_reads_are_those_of_tensorstore(stores, name):
    ours, theirs = (SELECTIONS[name](store) for store in stores)
    expected = theirs.read().result()
    assert ours.shape == expected.shape
    assert np.array_equal(ours.read().result(), expected)
    out = np.full(expected.shape, 9, np.uint16)
    assert ours.read(out=out).result() is out
    assert np.array_equal(out, expected)
    reverse = np.zeros(expected.shape, np.uint16)[::-1]
    assert np.array_equal(ours.read(out=reverse).result(), expected)


@pytest.mark.parametrize("name", SELECTIONS)
def test_writes_are_those_of_tensorstore(stores, name):
    rng = np.random.default_rng(1)
    shape = SELECTIONS[name](stores[1]).shape
    new = rng.integers(1000, 2000, shape).astype(np.uint16)
    for store in stores:
        SELECTIONS[name](store).write(new).result()
    ours, theirs = (store.read().result() for store in stores)
    # Also where an element is selected twice: the last one stays.
    assert np.array_equal(ours, theirs)


def test_missing_chunks_read_as_the_fill_value_and_are_not_made_by_it():
    store = STORES["zarr3"](gpustore)
    assert not store[[1, 10], [2, 12]].read().result().any()
    store[[1, 10], [2, 12]] = 0
    assert len(store.kvstore.list().result()) == 1


def test_fields_of_records_are_filled():
    out = np.zeros(4, [("a", "u1"), ("b", "<u2")])
    store = STORES["zarr3"](gpustore)
    store.write(ARRAY).result()
    store[[1, 5, 5, 0], 0, 0].read(out=out["b"]).result()
    assert out["b"].tolist() == ARRAY[[1, 5, 5, 0], 0, 0].tolist()
    assert not out["a"].any()
    out["b"] = [7, 8, 9, 10]
    store[[1, 5, 6, 0], 0, 0] = out["b"]
    assert store[[1, 5, 6, 0], 0, 0].read().result().tolist() == [7, 8, 9, 10]


def test_points_of_a_shard_are_written_together():
    store = STORES["sharded"](gpustore)
    y, x, z = np.unravel_index(np.random.default_rng(2).permutation(ARRAY.size)[:500], SHAPE)
    write = store.vindex[y, x, z].write(ARRAY[y, x, z])
    write.result()
    shards = {(i // 4, j // 5, k // 6) for i, j, k in zip(y, x, z, strict=True)}
    assert write.statistics["key_reads"] == len(shards)
    assert np.array_equal(store.vindex[y, x, z].read().result(), ARRAY[y, x, z])


@pytest.mark.parametrize("index", [[-1], [11], [3, 20]])
def test_indices_outside_are_errors(stores, index):
    for store in stores:
        with pytest.raises((IndexError, ValueError), match="outside valid range"):
            store[index].read().result()


@given(st.data())
def test_random_selections_are_those_of_numpy(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3)))
    chunks = [data.draw(st.integers(1, size)) for size in shape]
    store = gpustore.open(
        "memory://a|zarr3:",
        create=True,
        dtype="int32",
        shape=shape,
        chunk_layout=gpustore.ChunkLayout(chunk_shape=chunks),
    ).result()
    model = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    store.write(model).result()
    model = model.copy()
    arrays = [
        data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=5)) for size in shape
    ]
    outer = np.ix_(*arrays)
    assert np.array_equal(store.oindex[tuple(arrays)].read().result(), model[outer])
    count = min(map(len, arrays))
    points = tuple(array[:count] for array in arrays)
    assert np.array_equal(store.vindex[points].read().result(), model[points])
    new = np.arange(count, dtype=np.int32) - 100
    store.vindex[points] = new
    for i, at in enumerate(zip(*points, strict=True)):
        model[at] = new[i]
    assert np.array_equal(store.read().result(), model)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=shape[0], max_size=shape[0])))
    assert np.array_equal(store[mask].read().result(), model[mask])
