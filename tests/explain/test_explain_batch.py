"""What a batch explains is what its reads then count, on an emulated device and on the host."""

import numpy as np
import pytest

import gpustore
from tests.explain.explained import check_batch, compare, create
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated

NAMES = ["raw", "zstd", "shards-v3-zstd-crc32c", "bz2"]


def alike(store):
    return [store[i : i + 9, j : j + 13] for i, j in ((0, 0), (3, 5), (20, 28), (24, 0))]


def unlike(store):
    return [store, store[:, ::-1], store[::4], store[:8, 8:], store[5, 3:9]]


@pytest.mark.parametrize("name", NAMES)
def test_batches_of_the_host(tmp_path, name):
    store = gpustore.open(create(tmp_path, name)).result()
    assert check_batch(alike(store)).shape == (9, 13)
    # Of one form in one order: planned as crops.
    check_batch(alike(store), orders="C")
    explanation = check_batch(unlike(store))
    assert explanation.shape is None
    assert str(explanation).startswith("read         5 arrays of uint32, ")


@needs_compiler
@pytest.mark.parametrize("name", NAMES)
def test_batches_of_a_device(tmp_path, name):
    spec = create(tmp_path, name)
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        for views in (alike(there), unlike(there)):
            explanation = check_batch(views)
            assert (explanation.host_reason is not None) == (name == "bz2")
        check_batch(alike(there), orders="C")
        del there, views


@needs_compiler
def test_reads_of_other_arrays_and_reads_by_themselves_have_explanations_of_their_own(tmp_path):
    specs = [create(tmp_path / name, name) for name in ("zstd", "raw")]
    with emulated() as device:
        zstd, raw = (gpustore.open(spec, device=device.name).result() for spec in specs)
        with gpustore.Batch() as batch:
            first = zstd[:9].read(batch=batch)
            lone = raw[3:].read(batch=batch, order="F")
            points = zstd[[3, 30, 3], :].read(batch=batch)
            second = zstd[2:20].read(batch=batch)
            gpustore.KvStore.open(f"file://{tmp_path}/").result().read("x", batch=batch)
            shared, by_itself, other = batch.explain()
        assert (shared.together, by_itself.together, other.together) == (2, 1, 1)
        compare(shared, [first, second], device.name)
        compare(by_itself, [points], device.name)
        compare(other, [lone], device.name)
        del zstd, raw, first, second, lone, points


def test_a_cancelled_read_is_not_among_them(tmp_path):
    store = gpustore.open(create(tmp_path, "zstd")).result()
    batch = gpustore.Batch()
    reads = [store[i : i + 5].read(batch=batch) for i in range(3)]
    reads[1].cancel()
    (explanation,) = batch.explain()
    assert explanation.arrays == 2
    batch.submit()


def test_bounds_that_are_to_be_rechecked(tmp_path):
    spec = create(tmp_path, "zstd")
    store = gpustore.open(spec, recheck_cached_metadata=True).result()
    batch = gpustore.Batch()
    futures = [store[:8].read(batch=batch), store[:20].read(batch=batch)]
    assert [one.chunks for one in batch.explain()] == [5, 15]
    gpustore.open(spec).result().resize(exclusive_max=[8, 41]).result()
    with pytest.raises(gpustore.OutOfBoundsError):
        batch.explain()
    batch.submit()
    assert np.shape(futures[0].result()) == (8, 41)


def test_a_batch_that_was_submitted_or_reads_nothing_with_chunks(tmp_path):
    batch = gpustore.Batch()
    gpustore.array([1, 2]).read(batch=batch)
    assert batch.explain() == []
    batch.submit()
    with pytest.raises(gpustore.MetadataError, match="batch was already submitted"):
        batch.explain()
