"""Values in memory that the native core decodes, against those that Python decodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.backends.native import array as native
from gpustore.backends.native.library import library
from tests.matrix import each

pytestmark = pytest.mark.skipif(library() is None, reason="needs the native core")

CODECS = {
    "raw": [],
    "blosc": [
        {
            "name": "blosc",
            "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4},
        }
    ],
    "zstd crc32c": [{"name": "zstd", "configuration": {"level": 1}}, {"name": "crc32c"}],
    "crc32c": [{"name": "crc32c"}],
}
SHAPE = (37, 41)


def opened(name, cases):
    """Stores of equal chunks in memory: one that the core decodes, and one that Python decodes."""
    stores = []
    elements = np.random.default_rng(2).integers(0, 9, SHAPE).astype("<u4")
    elements[8:16, 9:18] = 7
    for decodes in (True, False):
        context = gpustore.Context()
        grid = {"name": "regular", "configuration": {"chunk_shape": [8, 9]}}
        endian = {"name": "bytes", "configuration": {"endian": cases}}
        metadata = {"shape": list(SHAPE), "chunk_grid": grid, "codecs": [endian, *CODECS[name]]}
        spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
        store = gpustore.open(
            spec, create=True, dtype="uint32", fill_value=7, context=context
        ).result()
        store[...] = elements
        reader = store._driver.reader
        if not decodes:
            # Of its own: arrays with the same metadata share the others.
            object.__setattr__(reader, "_constants", {("placed", True): None})
        assert (reader.native_values is not None) == decodes
        stores.append(store)
    return stores, elements


slices = st.tuples(st.integers(0, 36), st.integers(0, 37), st.sampled_from([None, 1, 2, 3, 7])).map(
    lambda one: slice(min(one[:2]), max(one[:2]), one[2])
)


@each("name", CODECS)
@each("endian", ["little", "big"])
def test_any_read_of_values_in_memory(name, endian):
    (natively, here), elements = opened(name, endian)

    @given(slices, slices, st.sampled_from("CF"), st.booleans())
    def equal(a, b, order, flipped):
        view = natively[a, b].T if flipped else natively[a, b]
        other = here[a, b].T if flipped else here[a, b]
        found = view.read(order=order).result()
        assert np.array_equal(found, other.read(order=order).result())
        expected = elements[a, b].T if flipped else elements[a, b]
        assert np.array_equal(found, expected)

    equal()


@each("name", CODECS)
def test_errors_are_those_of_python(name):
    stores, _ = opened(name, "little")
    for damage in (b"", b"short", bytes(400)):
        texts = []
        for store in stores:
            kvstore = store.kvstore
            kvstore.write("c/0/1", damage).result()
            with pytest.raises(gpustore.CorruptChunkError) as caught:
                store.read().result()
            texts.append((caught.value.key, str(caught.value)))
        assert texts[0] == texts[1]


def test_constants_do_not_need_files():
    stores, _ = opened("raw", "little")
    assert isinstance(stores[0]._driver.reader.native_values, native.NativeArray)
    assert stores[0]._driver.reader.native is None
