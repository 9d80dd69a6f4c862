"""Stacks of views, which are read as few reads of the stores below, against NumPy."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore

SHAPE = (12, 5, 6)


@pytest.fixture(scope="module")
def stores():
    elements = np.arange(2 * np.prod(SHAPE), dtype="int32").reshape(2, *SHAPE)
    found = []
    for number in range(2):
        url = f"memory://{number}/|zarr3:"
        found.append(gpustore.open(url, create=True, device="cpu", data=elements[number],
                                   chunks=[4, 2, 6]).result())  # fmt: skip
    return found, elements


numbers = st.one_of(
    st.permutations(range(12)),
    st.integers(0, 3).map(lambda low: list(range(low, 12))),
    st.sampled_from([[*range(11, -1, -1)], [*range(0, 12, 2), *range(1, 12, 2)], [3] * 9]),
)
steps = st.one_of(
    st.just(slice(None)),
    st.sampled_from([slice(None, None, -1), slice(None, None, 2), slice(2, None), slice(1, 3)]),
    st.integers(1, 3),
)


@given(
    numbers,
    st.lists(st.integers(0, 1), min_size=12, max_size=12),
    st.tuples(st.sampled_from([0, 1, 2]), st.integers(0, 2)),
    st.tuples(steps, steps, steps),
    st.sampled_from([None, "C", "F"]),
)
def test_stacks_of_views_have_their_elements(stores, rows, which, axes, index, order):
    stores, elements = stores
    across, axis = axes
    rows = [row % SHAPE[across] for row in rows]
    cut = [(slice(None),) * across + (row,) for row in rows]
    which = [0] * len(rows) if order is None else which
    view = gpustore.stack([stores[n][c] for n, c in zip(which, cut, strict=False)], axis)
    view = view.translate_to[0]
    expected = np.stack([elements[n][c] for n, c in zip(which, cut, strict=False)], axis)
    index = tuple(one if isinstance(one, slice) else one % n
                  for one, n in zip(index, expected.shape, strict=True))  # fmt: skip
    view, expected = view[index], expected[index]
    assert (view.read(order=order or "C").result() == expected).all()
    with gpustore.Batch() as batch:
        future = view.read(batch=batch)
    assert (future.result() == expected).all()


@given(st.lists(st.integers(0, 12), min_size=9, max_size=12), st.booleans())
def test_parts_of_one_store_that_follow_each_other(stores, edges, reverse):
    (store, _), (elements, _) = stores
    edges = sorted({0, 12, *edges})
    cuts = [slice(low, high) for low, high in itertools.pairwise(edges)]
    cuts = cuts[::-1] if reverse else cuts
    view = gpustore.concat([store[cut].translate_to[0] for cut in cuts], axis=0)
    expected = np.concatenate([elements[cut] for cut in cuts])
    assert (view.read().result() == expected).all()
    assert (view[1:11, ::-2].read().result() == expected[1:11, ::-2]).all()


def test_views_of_one_store_are_one_read(stores):
    (store, other), (elements, more) = stores
    future = gpustore.stack([store[row] for row in range(12)]).read()
    assert (future.result() == elements).all()
    assert future.statistics["chunks_planned"] == 9
    future = gpustore.stack([store[:, 0, row % 6] for row in range(30)]).read()
    assert (future.result() == elements[:, 0, np.arange(30) % 6].T).all()
    assert future.statistics["chunks_planned"] == 3
    mixed = [store[row] for row in range(6)] + [other[row] for row in range(6)]
    future = gpustore.stack(mixed).read()
    assert (future.result() == np.concatenate([elements[:6], more[:6]])).all()
    assert future.statistics["chunks_planned"] == 12


def test_one_layer_is_read_by_itself(stores):
    (store, _), (elements, _) = stores
    view = gpustore.stack([store[row] for row in range(12)])
    out = np.zeros((5, 6), "int32", order="F")
    assert view[4].read(out=out).result() is out
    assert (out == elements[4]).all()
    assert view[4:5, ::2].read(order="F").result().flags.f_contiguous
    spec = {"driver": "zarr3", "kvstore": "memory://w/", "create": True}
    hidden = gpustore.open(spec, write=True, dtype="int64", shape=[3]).result()
    with pytest.raises(gpustore.MetadataError, match="Layer 1: Read mode not supported"):
        gpustore.stack([gpustore.array([4, 5, 6]), hidden])[1].read().result()
