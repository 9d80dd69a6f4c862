"""Reads of one array in a batch share their chunks, and give what they give alone."""

from asyncio import CancelledError
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.backends.base import Output
from gpustore.errors import CorruptChunkError, LimitError, NotFoundError, OutOfBoundsError
from gpustore.pipelines import merged_reads
from gpustore.pipelines.read import read
from gpustore.pipelines.read_batch import read_in_batch
from gpustore.pipelines.write import write
from gpustore.planning import crop_plan
from gpustore.runtime.batch import Batch
from gpustore.runtime.limits import Limits
from gpustore.runtime.statistics import STATISTICS
from tests.kvstores.faulty import Fault, Rule
from tests.pipelines.arrays import BYTES, GZIP, make_array, put, whole
from tests.pipelines.test_read_many import FORMS, counted, spec_of


@st.composite
def indices(draw, shape):
    """An index expression, sometimes through index arrays."""
    index = []
    for size in shape:
        kind = draw(st.sampled_from(["slice", "slice", "integer", "array", "newaxis"]))
        low = draw(st.integers(0, size - 1))
        high = draw(st.integers(low, size))
        if kind == "newaxis":
            index.append(None)
        if kind == "integer":
            index.append(low)
        elif kind == "array":
            index.append(draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4)))
        elif draw(st.booleans()):
            index.append(slice(low, high, draw(st.integers(1, 3))))
        else:
            index.append(slice(None, None, -draw(st.integers(1, 3))))
    return tuple(index)


@pytest.mark.matrix
@given(data=st.data(), form=st.sampled_from(FORMS))
def test_a_batch_gives_what_single_reads_give(data, form):
    shape = [data.draw(st.integers(1, 9)) for _ in range(data.draw(st.integers(0, 3)))]
    chunks = [data.draw(st.integers(1, 5)) for _ in shape]
    store = gpustore.open(spec_of(form, shape, chunks, "int16"), create=True).result()
    model = np.arange(1, np.prod(shape, dtype=int) + 1, dtype="i2").reshape(shape)
    if data.draw(st.integers(0, 9)):
        store[...] = model
    views = [store.oindex[data.draw(indices(shape))] for _ in range(data.draw(st.integers(1, 6)))]
    orders = [data.draw(st.sampled_from("CF")) for _ in views]
    with Batch() as batch:
        futures = [
            view.read(batch=batch, order=order) for view, order in zip(views, orders, strict=True)
        ]
    for view, order, future in zip(views, orders, futures, strict=True):
        found, expected = future.result(), view.read(order=order).result()
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert np.array_equal(found, expected)
        assert found.flags.f_contiguous if order == "F" else found.flags.c_contiguous


@pytest.mark.matrix
@given(data=st.data(), form=st.sampled_from(FORMS))
def test_crops_of_one_shape_are_what_single_reads_give(data, form):
    shape = [data.draw(st.integers(2, 12)) for _ in range(data.draw(st.integers(1, 3)))]
    chunks = [data.draw(st.integers(1, 4)) for _ in shape]
    store = gpustore.open(spec_of(form, shape, chunks, "int16"), create=True).result()
    store[...] = np.arange(1, np.prod(shape, dtype=int) + 1, dtype="i2").reshape(shape)
    view = store[::-1] if data.draw(st.booleans()) else store.T
    extent = [data.draw(st.integers(1, size)) for size in view.shape]
    corners = [
        [
            data.draw(st.integers(low, high - size))
            for low, high, size in zip(view.origin, view.domain.exclusive_max, extent, strict=True)
        ]
        for _ in range(data.draw(st.integers(2, 5)))
    ]
    boxes = [
        tuple(slice(at, at + size) for at, size in zip(corner, extent, strict=True))
        for corner in corners
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crop_plan, "REGION_NS", data.draw(st.sampled_from([0, 10**9])))
        with Batch() as batch:
            futures = [view[box].read(batch=batch) for box in boxes]
    for box, future in zip(boxes, futures, strict=True):
        assert np.array_equal(future.result(), view[box].read().result())


@pytest.mark.parametrize("form", ["zarr3 gzip", "zarr3 shard", "zarr3 raw"])
def test_chunks_and_indices_are_fetched_and_decoded_once(form):
    array, model = counted(form, (64, 64), (16, 16))
    boxes = [np.s_[:40, 3:60], np.s_[1:2], np.s_[5, ::-2], np.s_[30:34, 30:34], np.s_[:, :]]
    STATISTICS.reset()
    out = np.zeros((64, 64), "u2")
    with Batch() as batch:
        outs = [None] * 4 + [out]
        futures = [
            read_in_batch(array, whole(array)[box], batch, Output(one))
            for box, one in zip(boxes, outs, strict=True)
        ]
        assert array.store.reads == []
    for box, future in zip(boxes, futures, strict=True):
        assert np.array_equal(future.result(), model[box])
    assert futures[-1].result() is out
    assert STATISTICS["reads"] == 5
    assert STATISTICS["chunks_planned"] == 16
    assert len(array.store.reads) == len(set(array.store.reads))
    if form == "zarr3 gzip":
        assert len(array.store.reads) == array.chain.decoded == 16
    if form == "zarr3 shard":
        assert len([at for _, at in array.store.reads if at < 0]) == 4


def test_an_error_fails_only_the_reads_that_meet_it():
    array = make_array((8, 8), (4, 4), codecs=(BYTES, GZIP))
    model = np.arange(1, 65, dtype="u2").reshape(8, 8)
    write(array, whole(array), model).result()
    put(array, "c/1/1", b"junk")
    with Batch() as batch:
        first = read_in_batch(array, whole(array)[:4], batch)
        second = read_in_batch(array, whole(array)[3:6], batch)
        third = read_in_batch(array, whole(array)[:, 1:3], batch)
    with pytest.raises(CorruptChunkError, match="c/1/1") as info:
        second.result()
    assert info.value.key == "c/1/1"
    assert np.array_equal(first.result(), model[:4])
    assert np.array_equal(third.result(), model[:, 1:3])


def test_a_failure_that_passes_is_not_seen():
    array = make_array((8,), (4,), codecs=(BYTES, GZIP))
    write(array, whole(array), np.arange(8, dtype="u2")).result()
    array.store.rules.append(Rule(Fault.ERROR, key="c/1"))
    with Batch() as batch:
        futures = [read_in_batch(array, whole(array)[i:], batch) for i in range(3)]
    assert [future.result().tolist() for future in futures] == [list(range(i, 8)) for i in range(3)]


def test_missing_chunks_are_an_error_if_asked_for():
    array = make_array((8,), (4,), fill_missing=False)
    write(array, whole(array)[:4], np.full(4, 5, "u2")).result()
    with Batch() as batch:
        good = read_in_batch(array, whole(array)[:3], batch)
        bad = read_in_batch(array, whole(array)[3:], batch)
    assert good.result().tolist() == [5, 5, 5]
    with pytest.raises(NotFoundError, match="is missing"):
        bad.result()


def test_bounds_are_errors_at_once_and_limits_of_their_read():
    array = make_array((100,), (1,), limits=Limits(chunks_per_request=50))
    with Batch() as batch:
        with pytest.raises(OutOfBoundsError):
            read_in_batch(replace(array, shape=(90,)), whole(array), batch)
        large = read_in_batch(array, whole(array), batch)
        future = read_in_batch(array, whole(array)[:50], batch)
    with pytest.raises(LimitError, match="chunks_per_request"):
        large.result()
    assert future.result().shape == (50,)


def test_a_cancelled_read_is_left_out():
    array, model = counted("zarr3 gzip", (64,), (16,))
    with Batch() as batch:
        futures = [
            read_in_batch(array, whole(array)[16 * i : 16 * i + 20], batch) for i in range(3)
        ]
        assert futures[0].cancel()
    with pytest.raises(CancelledError):
        futures[0].result()
    assert np.array_equal(futures[1].result(), model[16:36])
    assert np.array_equal(futures[2].result(), model[32:52])
    assert not any(key == "c/0" for key, _ in array.store.reads)


def test_what_is_too_large_to_join_is_read_alone(monkeypatch):
    monkeypatch.setattr(merged_reads, "MOST_ROWS", 5)
    array, model = counted("zarr3 gzip", (64,), (16,))
    with Batch() as batch:
        futures = [read_in_batch(array, whole(array), batch) for _ in range(3)]
    for future in futures:
        assert np.array_equal(future.result(), model)
    assert np.array_equal(read(array, whole(array)).result(), model)
