"""Staged writes that are merged, against NumPy: boxes, steps, points; read and committed."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore

SHAPE, CHUNK = (7, 6), (4, 4)
FORMS = {
    "plain": {},
    "big endian": {"codec": [{"name": "bytes", "configuration": {"endian": "big"}}]},
    "F order": {
        "codec": [{"name": "transpose", "configuration": {"order": [1, 0]}}, {"name": "bytes"}]
    },
    "compressed": {"codec": "zstd:1"},
    "shards": {"chunks": (2, 2), "shards": CHUNK},
    "fill value": {"fill_value": 3},
}


def interval(a, b, step):
    low, high = min(a, b), max(a, b)
    if low == high:
        return slice(low, low)
    return slice(low, high, step) if step > 0 else slice(high - 1, low - 1 if low else None, step)


def along(size):
    box = st.tuples(st.integers(0, size), st.integers(0, size), st.sampled_from([1, 1, 1, 2, -1]))
    return st.one_of(
        box.map(lambda x: interval(*x)),
        st.integers(0, size - 1),
        st.lists(st.integers(0, size - 1), min_size=1, max_size=3),
    )


steps = st.one_of(
    st.tuples(st.just("write"), along(7), along(6), st.sampled_from(["full", "row", "scalar"])),
    st.tuples(st.just("write"), st.integers(0, 6), st.integers(0, 5), st.just("scalar")),
    st.tuples(st.just("transposed"), along(7), along(6), st.just("full")),
    st.just(("read",)),
    st.tuples(st.just("outside"), st.integers(0, 6), st.integers(0, 5)),
    st.just(("all",)),
)


def chosen(index):
    """The index of NumPy for one of a store's ``oindex``."""
    axes = [np.arange(n)[i] for i, n in zip(index, SHAPE, strict=True)]
    return np.ix_(*[np.atleast_1d(axis) for axis in axes]), [np.ndim(axis) for axis in axes]


@given(st.sampled_from(list(FORMS)), st.lists(steps, min_size=4, max_size=25))
def test_elements_are_those_written_last(form, program):
    options = {"shape": SHAPE, "chunks": CHUNK, "dtype": "int16", **FORMS[form]}
    store = gpustore.create_array("memory://s", device="cpu", **options).result()
    stored = np.full(SHAPE, options.get("fill_value", 0), "int16")
    written = np.zeros(SHAPE, bool)
    inside = stored.copy()
    number = 100
    with gpustore.Transaction() as transaction:
        staged = store.with_transaction(transaction)
        for kind, *arguments in program:
            number += 50
            if kind == "read":
                assert (staged.read().result() == np.where(written, inside, stored)).all()
            elif kind == "outside":
                store[tuple(arguments)] = stored[tuple(arguments)] = number
            elif kind == "all":
                staged[...] = inside[...] = number
                written[...] = True
            else:
                *index, what = arguments
                places, ranks = chosen(index)
                shape = [
                    len(axis.ravel()) for axis, rank in zip(places, ranks, strict=True) if rank
                ]
                shape = shape[-1:] if what == "row" else [] if what == "scalar" else shape
                values = (number + np.arange(np.prod(shape, dtype=int))).reshape(shape)
                values = values.astype("int16")
                part = staged.oindex[tuple(index)]
                if kind == "transposed":
                    part, values = part.T, values.T
                part.write(values).result()
                whole = np.broadcast_to(values.T if kind == "transposed" else values, [
                    len(axis.ravel()) for axis, rank in zip(places, ranks, strict=True) if rank
                ])  # fmt: skip
                inside[places] = whole.reshape([axis.size for axis in places])
                written[places] = True
    assert (store.read().result() == np.where(written, inside, stored)).all()


def test_writes_of_the_same_elements_take_no_more_memory():
    store = gpustore.create_array(
        "memory://m", shape=(64, 64), chunks=(64, 64), dtype="uint16", device="cpu"
    ).result()
    transaction = gpustore.Transaction()
    staged = store.with_transaction(transaction)
    source = np.ones((8, 8), "uint16")
    tracemalloc.start()
    try:
        for number in range(600):
            if number == 100:
                before, _ = tracemalloc.get_traced_memory()
            staged[8:16, 16:24] = source
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100 * 500
    transaction.abort()


def test_chunk_that_is_written_whole_is_not_read():
    store = gpustore.create_array(
        "memory://w", shape=(4, 6), chunks=(4, 4), dtype="uint8", device="cpu", codec="zstd"
    ).result()
    store.kvstore["c/0/0"] = store.kvstore["c/0/1"] = b"damaged"
    with gpustore.Transaction() as transaction:
        staged = store.with_transaction(transaction)
        for y in range(4):
            for x in range(6):
                staged[y, x] = 6 * y + x
        assert staged.read().result().ravel().tolist() == list(range(24))
    assert store.read().result().ravel().tolist() == list(range(24))


def test_sources_that_do_not_fit_stage_nothing():
    store = gpustore.create_array(
        "memory://n", shape=(4,), chunks=(4,), dtype="uint8", device="cpu"
    ).result()
    with gpustore.Transaction() as transaction:
        staged = store.with_transaction(transaction)
        for number in range(6):
            staged[number % 2] = number
        with pytest.raises(gpustore.MismatchError):
            staged[:2].write(np.zeros(3, "uint8"))
        with pytest.raises(TypeError):
            staged[:2].write(np.zeros(2, "float64"))
        with pytest.raises(gpustore.OutOfBoundsError):
            staged[4] = 1
        assert staged.read().result().tolist() == [4, 5, 0, 0]
    with pytest.raises(gpustore.TransactionError):
        staged[0] = 1
