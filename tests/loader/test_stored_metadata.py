"""Arrays that change while a loader reads them."""

import itertools
import pickle
import shutil

import numpy as np
import pytest

import gpustore
from gpustore.loader import PatchLoader, RandomPatches

VALUES = np.zeros((8, 8), "uint8")
NUMBERS = itertools.count(1)


def created(path, values=VALUES, **words):
    return gpustore.create_array(path, data=values, chunks=(4, 4), **words).result()


def loader(path):
    arrays = {"image": gpustore.array(VALUES), "cells": gpustore.open(path).result()}
    return PatchLoader(arrays, sampler=RandomPatches((2, 2), per_epoch=8), batch_size=4)


def create_again(path, **words):
    created(path, overwrite=True, **words)


def create_another(path, **words):
    created(path, VALUES.astype("uint16"), overwrite=True, **words)


def resize(path, **_):
    gpustore.open(path).result().resize(exclusive_max=[8, 6]).result()


def delete(path, **_):
    shutil.rmtree(path)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (create_again, gpustore.ConflictError, "stored anew"),
        (create_another, gpustore.MismatchError, "incompatible"),
        (resize, gpustore.ConflictError, "its domain was"),
        (delete, gpustore.NotFoundError, "does not exist"),
    ],
)
def test_an_array_that_changes_is_an_error_of_the_next_epoch(
    tmp_path, zarr_format, change, error, text
):
    path = str(tmp_path / "a.zarr")
    created(path, zarr_format=zarr_format)
    some = loader(path)
    assert len([*some]) == 2
    change(path, zarr_format=zarr_format)
    with pytest.raises(error, match=f"Array 'cells' is not what was opened any more.*{text}") as e:
        list(some)
    assert e.value.key.endswith({2: ".zarray", 3: "zarr.json"}[zarr_format])


def test_an_array_that_is_deleted_within_an_epoch_is_an_error_of_the_next_window(tmp_path):
    path = str(tmp_path / "a.zarr")
    store = created(path)
    sampler = RandomPatches((2, 2), per_epoch=40, window=16)
    batches = iter(PatchLoader(store, sampler=sampler, batch_size=2, prefetch=0))
    next(batches)
    delete(path)
    with pytest.raises(gpustore.NotFoundError, match="Array 'image' is not what was opened"):
        list(batches)


def test_arrays_whose_cached_data_are_trusted_are_not_checked(tmp_path):
    path = str(tmp_path / "a.zarr")
    created(path)
    store = gpustore.open(path, recheck_cached_data="open").result()
    some = PatchLoader(store, sampler=RandomPatches((2, 2), per_epoch=8), batch_size=4)
    assert len([*some]) == 2
    create_again(path)
    assert len([*some]) == 2


def test_an_array_that_changed_before_the_first_epoch_is_an_error(tmp_path):
    path = str(tmp_path / "a.zarr")
    created(path)
    some = loader(path)
    resize(path)
    with pytest.raises(gpustore.ConflictError, match="its domain was"):
        list(some)


def test_attributes_may_change(tmp_path):
    path = str(tmp_path / "a.zarr")
    created(path)
    some = loader(path)
    assert len([*some]) == 2
    gpustore.open(path).result().attrs["note"] = "seen"
    assert len([*some]) == 2


SAMPLER = RandomPatches((4, 4), per_epoch=16, window=32)


def write(store, **_):
    store[5:6, 5:6].write(7).result()


def remove(store, **_):
    store.kvstore.delete_range(gpustore.KvStore.KeyRange("c/", "d")).result()
    store.kvstore.delete_range(gpustore.KvStore.KeyRange("0", "2")).result()


@pytest.mark.parametrize("change", [write, remove])
@pytest.mark.parametrize(
    "words",
    [
        {"codec": "zstd"},
        {"codec": "zstd", "shards": (8, 8)},
        {"codec": "zstd", "zarr_format": 2},
        {"codec": None},
    ],
    ids=["zstd", "shards", "v2", "raw"],
)
@pytest.mark.parametrize("place", ["file", "memory", "cache"])
def test_a_chunk_that_changes_between_epochs_is_an_error(tmp_path, change, words, place):
    path = "memory://changing/" if place == "memory" else str(tmp_path / "a.zarr")
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 10**6 * (place == "cache")}})
    store = created(path, VALUES + 1, **words, context=context)
    some = PatchLoader({"cells": store}, sampler=SAMPLER, batch_size=4)
    assert len([*some]) == len([*some]) == 4
    change(store)
    with pytest.raises(gpustore.ConflictError, match=r"patches of array 'cells'.*has changed") as e:
        list(some)
    assert e.value.key.startswith(store.kvstore.path)
    with pytest.raises(gpustore.ConflictError):  # Until there is another loader.
        list(some)
    assert len([*PatchLoader(store, sampler=SAMPLER, batch_size=4)]) == 4


def test_a_chunk_that_changes_within_an_epoch_is_an_error_where_it_is_read_again(tmp_path):
    store = created(str(tmp_path / "a.zarr"))
    sampler = RandomPatches((4, 4), per_epoch=40, window=16)
    # Too little memory for what was read to stay.
    batches = iter(PatchLoader(store, sampler=sampler, batch_size=2, prefetch=0, memory=164))
    next(batches)
    store.write(1).result()  # It was missing.
    with pytest.raises(gpustore.ConflictError, match=r"patches of array 'image'.*has changed"):
        list(batches)


def test_chunks_may_change_if_that_is_wanted(tmp_path):
    store = created(str(tmp_path / "a.zarr"))
    some = PatchLoader(store, sampler=SAMPLER, batch_size=4, on_change="ignore")
    assert not any(batch["image"].any() for batch in some)
    store.write(1).result()
    assert all(batch["image"].all() for batch in some)


def test_views_are_watched_also_in_another_process(tmp_path):
    store = created(str(tmp_path / "a.zarr"))
    view = gpustore.cast(store, "float32")[..., 4:]
    some = PatchLoader(view, sampler=RandomPatches((2, 2), per_epoch=8), batch_size=4)
    for one in some, pickle.loads(pickle.dumps(some)):
        list(one)
        store[5, 5].write(next(NUMBERS)).result()
        with pytest.raises(gpustore.ConflictError, match="has changed"):
            list(one)


def test_choices_that_do_not_exist_are_errors():
    with pytest.raises(ValueError, match="on_change: expected"):
        PatchLoader(gpustore.array(VALUES), sampler=SAMPLER, batch_size=4, on_change="skip")
