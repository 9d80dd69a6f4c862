"""Chunks in shards of Neuroglancer precomputed volumes."""

import gpustore
from tests.sharding.test_staged_shards import made


def test_a_chunk_that_another_writer_adds_is_found():
    store = made(minishard_bits=0, shard_bits=0)
    again = gpustore.open(store.spec(retain_context=True)).result()
    store[:4] = 1
    assert again[8, 0, 0, 0].read().result() == 0
    store[8:12] = 2
    assert again[8, 0, 0, 0].read().result() == 2
    store[8:12] = 0
    assert again[8, 0, 0, 0].read().result() == 0
    store[:] = 0
    assert again[0, 0, 0, 0].read().result() == 0
