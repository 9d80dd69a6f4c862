"""Metadata of arrays that are opened together are read together, and mean what they say alone."""

import gc
import json
import os
import time

import numpy as np
import pytest

import gpustore
from gpustore.backends.native import library
from gpustore.drivers import _read_ahead
from gpustore.errors import MetadataError, PathNotFoundError, StoreIOError
from tests.matrix import each

needs_core = pytest.mark.skipif(library.library() is None, reason=str(library.why_not()))
NAMES = {"zarr2": ".zarray", "zarr3": "zarr.json"}


@pytest.fixture(autouse=True)
def nothing_waits():
    """Forget what other tests have left."""
    _read_ahead._waiting.clear()


def make(path, driver, extent):
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(path)}}
    store = gpustore.open(spec, create=True, dtype="uint8", shape=[extent]).result()
    store.write(np.full(extent, extent, "uint8")).result()
    return spec


def opened_files(monkeypatch):
    """Names that are read together, a list for each call."""
    calls = []
    read = _read_ahead.read_short_files

    def note(names, *more):
        calls.append(names)
        return read(names, *more)

    monkeypatch.setattr(_read_ahead, "read_short_files", note)
    return calls


@needs_core
@each("driver", NAMES)
def test_arrays_that_wait_are_read_together(driver, tmp_path, monkeypatch):
    specs = [make(tmp_path / str(extent), driver, extent) for extent in range(1, 20)]
    calls = opened_files(monkeypatch)
    futures = [gpustore.open(spec) for spec in specs]
    for extent in (7, *range(1, 20)):
        store = futures[extent - 1].result()
        assert store.shape == (extent,)
        assert store.read().result().tolist() == [extent] * extent
    assert [len(names) for names in calls] == [19]


@each("driver", NAMES)
def test_each_array_raises_its_own_error(driver, tmp_path):
    name = NAMES[driver]
    specs = {key: make(tmp_path / key, driver, 4) for key in ("good", "link", "last")}
    for key in ("missing", "wrong", "fifo", "long", "folder"):
        specs[key] = {**specs["good"], "kvstore": f"file://{tmp_path}/{key}"}
        if key != "missing":
            (tmp_path / key).mkdir()
    (tmp_path / "wrong" / name).write_text("{}")
    os.mkfifo(tmp_path / "fifo" / name)
    text = (tmp_path / "good" / name).read_text()
    (tmp_path / "long" / name).write_text(text.ljust(100_000))
    (tmp_path / "folder" / name).mkdir()
    (tmp_path / "link" / name).unlink()
    (tmp_path / "link" / name).symlink_to(tmp_path / "good" / name)
    specs["invalid"] = {**specs["good"], "kvstore": {"driver": "file", "path": f"{tmp_path}/a\\b/"}}

    def outcome(future):
        try:
            return future.result().shape
        except gpustore.errors.GpustoreError as error:
            return type(error), str(error), error.key

    alone = {key: outcome(gpustore.open(spec)) for key, spec in specs.items()}
    futures = {key: gpustore.open(spec) for key, spec in specs.items()}
    assert {key: outcome(future) for key, future in futures.items()} == alone
    assert {alone[key] for key in ("good", "long", "last")} == {(4,)}
    assert alone["missing"][0] is PathNotFoundError
    assert alone["wrong"][0] is MetadataError
    assert alone["fifo"][0] is StoreIOError


@needs_core
def test_data_that_were_read_ahead_are_as_old_as_they_are(tmp_path):
    """An array that was resized after its metadata were read ahead is not taken for a new one."""
    spec = make(tmp_path / "a", "zarr3", 4)
    futures = [gpustore.open(spec), gpustore.open(spec, recheck_cached_metadata=True)]
    futures.append(gpustore.open(make(tmp_path / "b", "zarr3", 4)))
    futures[2].result()
    read = time.time()
    gpustore.open(spec).result().resize(exclusive_max=[6]).result()
    first, second = (future.result() for future in futures[:2])
    assert first._driver.read_at <= read
    assert (first.shape, second.shape) == ((4,), (4,))
    assert first.resolve().result().shape == (6,)
    assert second.resolve().result().shape == (6,)


def test_arrays_nobody_waits_for_are_let_go(tmp_path):
    spec = make(tmp_path / "a", "zarr3", 4)
    for _ in range(3):
        gpustore.open(spec)
    gc.collect()
    assert [one() for one in _read_ahead._waiting] == [None] * 3
    assert gpustore.open(spec).result().shape == (4,)
    assert _read_ahead._waiting == []


def test_number_of_arrays_that_wait_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(_read_ahead, "TOGETHER", 3)
    monkeypatch.setattr(_read_ahead, "MOST_WAITING", 9)
    spec = make(tmp_path / "a", "zarr3", 4)
    futures = []
    for _ in range(20):
        futures.append(gpustore.open(spec))
        assert len(_read_ahead._waiting) <= 9
    assert {future.result().shape for future in futures} == {(4,)}


@each("cache", [0, 1 << 20])
def test_cached_metadata_are_not_read_ahead(cache, tmp_path, monkeypatch):
    spec = make(tmp_path / "a", "zarr3", 4)
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": cache}})
    calls = opened_files(monkeypatch)
    futures = [gpustore.open(spec, context=context) for _ in range(3)]
    assert {future.result().shape for future in futures} == {(4,)}
    assert len(calls) == (0 if cache else 1)


def test_documents_of_one_opening_do_not_change_another(tmp_path):
    specs = [make(tmp_path / str(i), "zarr3", 4) for i in range(3)]
    for i in range(3):
        path = tmp_path / str(i) / "zarr.json"
        document = {**json.loads(path.read_bytes()), "attributes": {"a": [i]}}
        path.write_text(json.dumps(document))
    stores = [future.result() for future in [gpustore.open(spec) for spec in specs]]
    stores[0].attrs["a"] = 5
    assert [dict(store.attrs) for store in stores] == [{"a": 5}, {"a": [1]}, {"a": [2]}]
