"""Random arrays whose chunks differ in shape: crops, batches and the cache, and the device."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from tests.on_device import emulated, on_host
from tests.pipelines.test_rectilinear_grid import filled, of, selections, stored, view

pytestmark = pytest.mark.long


@given(stored(), st.data())
def test_crops_batches_and_the_cache_are_those_of_numpy(array, data):
    shape, edges, codecs = array
    limit = data.draw(st.sampled_from([0, 1 << 20]))
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": limit}})
    store, values = filled("memory://", shape, edges, codecs, context=context)
    extent = tuple(data.draw(st.integers(0, size)) for size in shape)
    starts = [
        [data.draw(st.integers(0, size - n)) for size, n in zip(shape, extent, strict=True)]
        for _ in range(data.draw(st.integers(0, 5)))
    ]
    crops = store.read_many(np.array(starts, np.int64).reshape(-1, 2), extent).result()
    assert crops.shape == (len(starts), *extent)
    for crop, (y, x) in zip(crops, starts, strict=True):
        np.testing.assert_array_equal(crop, values[y : y + extent[0], x : x + extent[1]])
    indices = [data.draw(selections(shape)) for _ in range(3)]
    with gpustore.Batch() as batch:
        reads = [view(store, index).read(batch=batch) for index in indices]
    for index, read in zip(indices, reads, strict=True):
        np.testing.assert_array_equal(read.result(), of(values, index))
    np.testing.assert_array_equal(store.T.read().result(), values.T)
    np.testing.assert_array_equal(store.T.read().result(), values.T)


@given(stored(), st.data())
def test_the_emulated_device_reads_what_the_host_does(array, data):
    shape, edges, codecs = array
    order = data.draw(st.sampled_from(["lazy", "early_frees", "random"]))
    context = gpustore.Context()
    _, values = filled("memory://", shape, edges, codecs, context=context)
    base = {"driver": "zarr3", "kvstore": "memory://"}
    with emulated(order, seed=data.draw(st.integers(0, 9))) as device:
        store = gpustore.open(base, context=context, device=device.name).result()
        index = data.draw(selections(shape))
        read = view(store, index).read().result()
        np.testing.assert_array_equal(on_host(device, read), of(values, index))
        extent = tuple(size // 2 for size in shape)
        crops = store.read_many([[0, 0], [extent[0] // 2, 1 if shape[1] > 1 else 0]], extent)
        expected = [
            values[: extent[0], : extent[1]],
            values[extent[0] // 2 :, (1 if shape[1] > 1 else 0) :][: extent[0], : extent[1]],
        ]
        np.testing.assert_array_equal(on_host(device, crops.result()), np.stack(expected))
        del read, crops, store
