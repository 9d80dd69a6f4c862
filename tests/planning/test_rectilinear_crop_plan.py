"""Crops of arrays whose chunks differ in shape; against NumPy also in test_rectilinear_plan."""

import numpy as np
import pytest

import gpustore
from tests.planning.test_rectilinear_plan import CODECS, spec


def test_each_chunk_is_fetched_once():
    store = gpustore.open(
        spec("memory://", [60, 60], [[10, 20, 30], [[30, 2]]], CODECS["zstd"]), create=True
    ).result()
    store.write(np.ones((60, 60), "u2")).result()
    starts = np.random.default_rng(0).integers(0, 50, (1000, 2))
    read = store.read_many(starts, (10, 10))
    assert np.all(read.result() == 1)
    assert read.statistics["chunks_planned"] == read.statistics["key_reads"] == 6


def test_regions_have_a_limit_that_counts_what_is_crossed():
    """Before memory is taken for any of them, however long the stride."""
    context = gpustore.Context({"limits": {"chunks_per_request": 1000}})
    edges = [[2**30, 2], [[1, 2**40]]]
    made = spec("memory://", [4, 2**40], [[4], edges[1]], CODECS["raw"])
    store = gpustore.open(made, create=True, context=context).result()
    with pytest.raises(gpustore.LimitError, match="chunks_per_request of 1000"):
        store.read_many([[0, 0]], (1, 2**32)).result()
    with pytest.raises(gpustore.LimitError, match="chunks_per_request"):
        store[:, :: 2**20].read_many([[0, 0]] * 2, (4, 600)).result()
    few = store[:, :: 2**20].read_many([[0, 5], [1, 9]], (3, 200)).result()
    assert few.shape == (2, 3, 200)
    assert np.all(few == 7)
