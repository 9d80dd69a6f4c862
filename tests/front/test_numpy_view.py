"""NumPy's words on a store: eager indexing compared with NumPy, sizes, scalars, iteration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices

import gpustore
from tests.on_device import emulated


def stored(values, chunk=3):
    """A store of `values` in memory, with its origin away from zero."""
    store = gpustore.open(
        "memory://numpy|zarr3:",
        create=True,
        device="cpu",
        dtype=gpustore.dtype(values.dtype),
        shape=list(values.shape),
        chunk_layout=gpustore.ChunkLayout(chunk_shape=[chunk] * values.ndim),
    ).result()
    store[...] = values
    return store.translate_by[7] if values.ndim else store


def counted(shape):
    return np.arange(np.prod(shape, dtype=int), dtype="int32").reshape(shape)


@st.composite
def terms(draw, extent):
    """A term for a dimension of `extent` elements: integer, slice, index array or mask."""
    integers = st.integers(-extent, extent - 1)
    kind = draw(st.sampled_from(["slice", "integer", "array", "mask"]))
    if kind == "integer":
        return draw(integers)
    if kind == "array":
        shape = draw(st.sampled_from([(3,), (1,), (2, 3), (2, 1)]))
        count = int(np.prod(shape))
        return np.array(draw(st.lists(integers, min_size=count, max_size=count))).reshape(shape)
    if kind == "mask":
        return np.array(draw(st.lists(st.booleans(), min_size=extent, max_size=extent)))
    return draw(st.slices(extent))


@given(st.data())
def test_basic_indexing_equals_numpy(data):
    shape = data.draw(array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
    index = data.draw(basic_indices(shape, allow_newaxis=True, max_dims=5))
    values = counted(shape)
    found = stored(values).numpy[index]
    expected = values[index]
    assert type(found) is type(expected)
    np.testing.assert_array_equal(found, expected)


@given(st.data())
def test_advanced_indexing_equals_numpy(data):
    shape = data.draw(array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    index = tuple(data.draw(terms(extent)) for extent in shape)
    index = index[: data.draw(st.integers(1, len(index)))]
    if data.draw(st.booleans()) and len(index) < 3:
        place = data.draw(st.integers(0, len(index)))
        index = (*index[:place], data.draw(st.sampled_from([None, ...])), *index[place:])
    values = counted(shape)
    view = stored(values).numpy
    try:
        expected = values[index]
    except IndexError:
        with pytest.raises(IndexError):
            view[index]
        return
    np.testing.assert_array_equal(view[index], expected)
    if expected.size:
        view[index] = -1
        values[index] = -1
        np.testing.assert_array_equal(view[...], values)


def test_oindex_and_vindex():
    values = counted((4, 5, 6))
    view = stored(values).numpy
    np.testing.assert_array_equal(
        view.oindex[[3, -4], 1:, [True] * 3 + [False] * 3], values[[3, 0]][:, 1:, :3]
    )
    np.testing.assert_array_equal(view.vindex[:, [1, -1], [0, 5]], values[:, [1, 4], [0, 5]].T)
    view.oindex[[0, -1], [1]] = 9
    values[np.ix_([0, -1], [1])] = 9
    np.testing.assert_array_equal(view, values)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (4, "index 4 is out of bounds for axis 0 with size 4"),
        ((0, -6), "index -6 is out of bounds for axis 1 with size 5"),
        (([0, 9],), "index 9 is out of bounds for axis 0 with size 4"),
        ((0, 0, 0), "too many indices: the array has 2 dimensions, but 3 are indexed"),
        ((..., ...), "single ellipsis"),
        (1.5, "only integers, slices"),
        ("x", "only integers, slices"),
        ([True], "boolean index did not match the array along axis 0: its size is 4, but that"),
    ],
)
def test_wrong_indices_are_named(index, text):
    with pytest.raises(gpustore.OutOfBoundsError, match=text.replace("(", r"\(")):
        stored(counted((4, 5))).numpy[index]


def test_sizes():
    store = gpustore.open(
        "memory://sizes|zarr3:",
        create=True,
        device="cpu",
        dtype="uint16",
        shape=[100, 50],
        chunk_layout=gpustore.ChunkLayout(write_chunk_shape=[40, 50], read_chunk_shape=[20, 25]),
    ).result()
    assert (store.chunks, store.shards) == ((20, 25), (40, 50))
    assert (store.nbytes, store.nchunks, len(store)) == (10_000, 10, 100)
    assert store[5:25, 3].chunks == (20,)
    assert store[5:25, 3].nchunks == 2
    assert store.numpy.nbytes == 10_000
    assert store.numpy.shape == (100, 50)
    memory = gpustore.array(counted((3, 4)))
    assert (memory.chunks, memory.shards, memory.nchunks) == (None, None, 1)
    scalar = stored(np.array(5))
    assert (scalar.chunks, scalar.shards, scalar.nchunks) == ((), None, 1)


def test_scalars():
    store = stored(np.array([[3, 0]]))[7]
    assert (int(store[7]), float(store[7]), complex(store[7])) == (3, 3.0, 3 + 0j)
    assert [10, 11, 12, 13][store[7]] == 13
    assert (bool(store[7]), bool(store[8]), bool(store), bool(store[7:7])) == (
        (True, False, True, False)
    )
    with pytest.raises(TypeError, match=r"domain \{ \[7, 9\*\) \}; index all dimensions first"):
        int(store)
    with pytest.raises(TypeError, match="len"):
        len(store[7])


def test_iteration_gives_views():
    values = counted((3, 2))
    rows = list(stored(values))
    assert [row.domain.origin for row in rows] == [(7,)] * 3
    np.testing.assert_array_equal(np.stack(rows), values)
    np.testing.assert_array_equal(list(stored(values).numpy), values)
    with pytest.raises(TypeError, match="len"):
        iter(stored(np.array(5)))
    with pytest.raises(TypeError, match="container"):  # It would compare views, not elements.
        _ = 1 in stored(values)


def test_negative_indices_name_the_ways_out():
    store = stored(counted((4, 5)))
    domain = r"the domain is \{ \[7, 11\*\), \[7, 12\*\) \}"
    for index in (-1, slice(0, 3)):
        with pytest.raises(
            gpustore.OutOfBoundsError, match=domain + r".*store\.numpy.*translate_to\[0\]"
        ):
            store[index]


def test_indices_beyond_an_implicit_bound_name_the_ways_out_when_they_are_used():
    store = gpustore.array(counted((4, 5)))
    resizable = gpustore.open(
        "memory://b/|zarr3:", create=True, device="cpu", dtype="uint8", shape=[4, 5]
    ).result()
    ways = r"the domain is \{ \[0, 4\*?\), \[0, 5\*?\) \}.*store\.numpy.*translate_to\[0\]"
    for use in (
        lambda: store[4],
        lambda: resizable[4].read(),
        lambda: resizable[[0, 9]].read(),
        lambda: resizable[4].write(1),
    ):
        with pytest.raises(gpustore.OutOfBoundsError, match=ways):
            use()


def test_a_store_on_a_device_is_no_numpy_array_and_says_what_to_call():
    with emulated() as device:
        store = gpustore.open(
            "memory://d/|zarr3:", create=True, device=device.name, dtype="uint8", shape=[4]
        ).result()
        for use in (np.asarray, np.mean, lambda one: np.asarray(one.numpy)):
            with pytest.raises(
                TypeError, match=rf"read to device {device.name}, .*call read\(\)\.result\(\), or"
            ):
                use(store)
        assert f"device={device.name}" in repr(store)
        del store
