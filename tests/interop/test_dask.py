"""Lazy arrays of dask and their storing, within one process and on workers of their own."""

import os
import pickle

import numpy as np
import pytest

import gpustore
from tests.emulator.device import EmulatedArray
from tests.kernels.execution import needs_compiler
from tests.matrix import each
from tests.on_device import emulated, on_host

dask_array = pytest.importorskip("dask.array", reason="dask is not installed")

VALUES = np.arange(30 * 20, dtype="int32").reshape(30, 20)


@pytest.fixture
def stored(tmp_path):
    return gpustore.save(tmp_path / "x.zarr", VALUES, chunks=(4, 5), shards=(8, 10))


VIEWS = {
    "whole": (lambda s: s, VALUES),
    "slice": (lambda s: s[8:25], VALUES[8:25]),
    "transposed": (lambda s: s.T, VALUES.T),
    "reversed": (lambda s: s[:, ::-1], VALUES[:, ::-1]),
    "scalar": (lambda s: s[3, 4], VALUES[3, 4]),
    "index array": (lambda s: s.oindex[[5, 2, 9]], VALUES[[5, 2, 9]]),
}


@pytest.mark.matrix("costly")
@each("chunks", ["chunk", "shard", "auto", 7])
@each("view", VIEWS)
def test_lazy_arrays_have_the_values_of_the_store(view, chunks, stored):
    select, expected = VIEWS[view]
    lazy = gpustore.to_dask(select(stored), chunks)
    np.testing.assert_array_equal(lazy.compute(scheduler="threads"), expected)
    assert lazy.dtype == VALUES.dtype
    np.testing.assert_array_equal((lazy + 1).sum().compute(), (expected + 1).sum())


def test_chunks_are_those_of_the_store(stored):
    assert gpustore.to_dask(stored).chunksize == (4, 5)
    assert gpustore.to_dask(stored, "shard").chunksize == (8, 10)
    assert gpustore.to_dask(gpustore.array(VALUES)).chunksize == VALUES.shape
    with pytest.raises(ValueError, match="'chunk', 'shard', 'auto' or sizes, got 'chunky'"):
        gpustore.to_dask(stored, "chunky")


def test_names_follow_from_spec_and_generation(stored):
    again = gpustore.open(stored.kvstore.url).result()
    assert gpustore.to_dask(stored).name == gpustore.to_dask(again).name
    assert gpustore.to_dask(stored).name != gpustore.to_dask(stored[1:]).name
    stored.attrs["changed"] = True
    assert gpustore.to_dask(again).name != gpustore.to_dask(stored, "shard").name
    here = gpustore.array(VALUES)
    assert gpustore.to_dask(here).name != gpustore.to_dask(gpustore.array(VALUES)).name


def test_a_graph_is_small_and_opens_the_store_anew(stored):
    text = pickle.dumps(gpustore.to_dask(stored) + 1)
    assert len(text) < 20_000
    np.testing.assert_array_equal(pickle.loads(text).compute(), VALUES + 1)
    with pytest.raises(gpustore.UnsupportedError, match="stays within its process"):
        pickle.dumps(gpustore.to_dask(gpustore.array(VALUES)))


def test_an_array_that_changed_since_is_an_error(stored, tmp_path):
    text = pickle.dumps(gpustore.to_dask(stored))
    gpustore.save(tmp_path / "x.zarr", VALUES + 1, chunks=(4, 5), overwrite=True)
    with pytest.raises(gpustore.MismatchError, match=r"x\.zarr.* has changed since it was handed"):
        pickle.loads(text)


def test_chunks_of_another_array_are_an_error_that_says_so(stored, tmp_path, monkeypatch):
    monkeypatch.setattr("gpustore.interop.reopened.CHECK_S", 1e9)
    lazy = gpustore.to_dask(stored)
    chunk = next(one for one in (tmp_path / "x.zarr" / "c").rglob("*") if one.is_file())
    whole = chunk.read_bytes()
    chunk.write_bytes(b"?")
    with pytest.raises(gpustore.CorruptChunkError):
        lazy.compute()
    chunk.write_bytes(whole)
    gpustore.save(tmp_path / "x.zarr", VALUES[:9] * 1.0, chunks=(3, 3), overwrite=True)
    with pytest.raises(gpustore.MismatchError, match=r"x\.zarr.* has changed since it was open"):
        lazy.compute()


def test_an_array_that_changes_under_a_graph_is_an_error(stored, tmp_path, monkeypatch):
    monkeypatch.setattr("gpustore.interop.reopened.CHECK_S", 0)
    lazy, path = gpustore.to_dask(stored), tmp_path / "x.zarr"
    stored.attrs["unit"] = "K"
    stored.resize(exclusive_max=(40, 20)).result()
    np.testing.assert_array_equal(lazy.compute(), VALUES)
    text = (path / "zarr.json").read_bytes()
    layout = {"chunks": (4, 5), "shards": (8, 10)}
    for values, other in ((VALUES, {"shards": None}), (VALUES * 1.0, {}), (VALUES[:8], {})):
        gpustore.save(path, values, **{**layout, **other}, overwrite=True)
        with pytest.raises(
            gpustore.MismatchError, match=r"x\.zarr.* has changed since it was open"
        ):
            lazy.compute()
    for damaged in (b"{", b"[]", b'{"zarr_format": 3, "node_type": "group"}'):
        (path / "zarr.json").write_bytes(damaged)
        with pytest.raises(gpustore.MismatchError, match="has changed"):
            lazy.compute()
    (path / "zarr.json").unlink()
    with pytest.raises(gpustore.NotFoundError, match=r"x\.zarr.* was deleted or moved"):
        lazy.compute()
    (path / "zarr.json").write_bytes(text)
    lazy[:1].compute()


def test_other_objects_are_refused(tmp_path):
    group = gpustore.open_group(tmp_path / "g.zarr", create=True).result()
    for wrong in (group, VALUES, str(tmp_path)):
        with pytest.raises(TypeError, match=r"store: expected a gpustore\.TensorStore, got "):
            gpustore.to_dask(wrong)
        with pytest.raises(TypeError, match=r"array: expected a dask\.array\.Array, got "):
            gpustore.store_dask(wrong, tmp_path / "y.zarr")


def test_from_array_takes_a_store(stored):
    lazy = dask_array.from_array(stored)
    np.testing.assert_array_equal(lazy.compute(), VALUES)
    for use in (
        lambda array: array.mean(axis=0),
        lambda array: array.std(),
        lambda array: array.cumsum(axis=1),
        lambda array: array[array > 3].sum(),
        lambda array: np.sqrt(array.T[::2]),
    ):
        np.testing.assert_allclose(use(lazy).compute(), use(VALUES))


@pytest.mark.matrix("costly")
@each("sizes", [(4, 5), (7, 20), (30, 3), (1, 1)])
@each("layout", [{"chunks": (4, 5)}, {"chunks": (4, 5), "shards": (8, 10)}, {}])
def test_no_two_tasks_write_to_one_stored_value(sizes, layout, tmp_path):
    source = dask_array.from_array(VALUES, chunks=sizes)
    before = gpustore.statistics["key_reads"]
    work = gpustore.store_dask(source, tmp_path / "y.zarr", compute=False, **layout)
    made = gpustore.statistics["key_reads"]
    work.compute()
    # A value that a task wrote in part would be read first.
    assert gpustore.statistics["key_reads"] == made == before
    np.testing.assert_array_equal(gpustore.open(tmp_path / "y.zarr").result(), VALUES)


def test_work_can_be_done_later(tmp_path):
    work = gpustore.store_dask(
        dask_array.from_array(VALUES, chunks=8), tmp_path / "y.zarr", compute=False, dims=("y", "x")
    )
    opened = gpustore.open(tmp_path / "y.zarr").result()
    assert opened.domain.labels == ("y", "x")
    assert not np.asarray(opened).any()
    work.compute()
    np.testing.assert_array_equal(opened, VALUES)


@needs_compiler
def test_chunks_of_a_store_on_a_device_are_there(stored):
    with emulated() as device:
        there = gpustore.open(stored.kvstore.url, device=device.name).result()
        lazy = gpustore.to_dask(there[8:16, 10:], "shard")
        assert isinstance(lazy._meta, EmulatedArray)
        assert lazy.numblocks == (1, 1)
        found = lazy.compute(scheduler="synchronous")
        np.testing.assert_array_equal(on_host(device, found), VALUES[8:16, 10:])
        del there, lazy, found


def plus_one_by_the_second_worker(block, begun):
    """Return the block plus one; the process that computes the first block dies."""
    if block.size and not begun.exists():
        begun.touch()
        os._exit(1)
    return block + 1


@pytest.mark.matrix("costly")
def test_workers_in_other_processes(stored, tmp_path):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster),
    ):
        lazy = gpustore.to_dask(stored)
        np.testing.assert_array_equal((lazy * 2).compute(), VALUES * 2)
        lazy = lazy.map_blocks(plus_one_by_the_second_worker, tmp_path / "begun", dtype=lazy.dtype)
        gpustore.store_dask(lazy, tmp_path / "y.zarr", chunks=(4, 5))
    assert (tmp_path / "begun").exists()
    np.testing.assert_array_equal(gpustore.open(tmp_path / "y.zarr").result(), VALUES + 1)
