"""Loaders over all kvstores and formats, compared with crops of the whole array in NumPy."""

import numpy as np
import pytest

import gpustore
from gpustore.loader import GridPatches, PatchLoader, RandomPatches
from tests.kvstores.places import PLACES
from tests.matrix import each

SHAPE = (13, 10)
VALUES = np.arange(np.prod(SHAPE), dtype="uint16").reshape(SHAPE)
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1}}
V2 = {
    **{"zarr_format": 2, "shape": SHAPE, "chunks": [4, 4], "dtype": "<u2", "fill_value": 7},
    **{"compressor": {"id": "zlib", "level": 1}, "filters": None, "order": "C"},
}
V3 = {
    "shape": SHAPE,
    "data_type": "uint16",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
    "fill_value": 7,
    "codecs": [LITTLE, ZSTD],
}
SHARDS = {
    "name": "sharding_indexed",
    "configuration": {"chunk_shape": [4, 2], "codecs": [LITTLE, ZSTD]},
}
TRANSPOSED = {"name": "transpose", "configuration": {"order": [1, 0]}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
FORMATS = {
    "v2": ("zarr2", V2),
    "v2, F order, big-endian": ("zarr2", {**V2, "order": "F", "dtype": ">u2"}),
    "v3": ("zarr3", V3),
    "shards": (
        "zarr3",
        {
            **V3,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 8]}},
            "codecs": [SHARDS],
        },
    ),
    "transposed, big-endian": ("zarr3", {**V3, "codecs": [TRANSPOSED, BIG]}),
    "edges": (
        "zarr3",
        {
            **V3,
            "chunk_grid": {
                "name": "rectilinear",
                "configuration": {"kind": "inline", "chunk_shapes": [[2, 5, 6], [3, 3, 4]]},
            },
        },
    ),
}


def stored(kvstore, kind="v3", context=None, values=VALUES):
    driver, metadata = FORMATS[kind]
    store = gpustore.open(
        {"driver": driver, "kvstore": kvstore, "metadata": metadata},
        create=True,
        context=context,
    ).result()
    store[:8].write(values[:8]).result()  # Other chunks are missing, and have the fill value.
    expected = values.copy()
    expected[8:] = store[8:].read().result()
    return store, expected


def check(store, values, edge="shift", **options):
    sampler = RandomPatches((5, 3), per_epoch=20, window=100, edge=edge)
    before = (0, 0) if edge == "shift" else (2, 1)
    mode = {"mode": "reflect"} if edge == "reflect" else {"constant_values": 7}
    padded = np.pad(values, [(2, 5), (1, 3)] if edge != "shift" else 0, **mode)
    loader = PatchLoader(store, sampler=sampler, batch_size=4, **options)
    seen = 0
    for batch in loader:
        for patch, origin in zip(batch["image"], batch["origin"].tolist(), strict=True):
            y, x = (o + b for o, b in zip(origin, before, strict=True))
            np.testing.assert_array_equal(patch, padded[y : y + 5, x : x + 3])
            seen += 1
    assert seen == 20
    return loader


@pytest.mark.matrix("costly")
@each("edge", ["shift", "fill", "reflect"])
@each("kind", FORMATS)
def test_formats_have_the_patches_of_their_elements(kind, edge, tmp_path):
    store, values = stored({"driver": "file", "path": f"{tmp_path}/"}, kind)
    check(store, values, edge)


@pytest.mark.matrix("costly")
@each("name", PLACES)
def test_kvstores_have_the_patches_of_their_elements(name, tmp_path, monkeypatch):
    model, expected = stored({"driver": "memory", "path": "model/"}, "shards", gpustore.Context())
    values = {key.decode(): bytes(model.kvstore[key]) for key in model.kvstore.list().result()}
    with PLACES[name](tmp_path, monkeypatch) as make:
        place = make()
        place.fill(values)
        spec = {"driver": "zarr3", "kvstore": place.json}
        store = gpustore.open(spec, context=place.context, read=True).result()
        check(store, expected)


def test_errors_of_storage_are_raised_with_array_and_key_and_nothing_is_replaced(tmp_path):
    store, _ = stored({"driver": "file", "path": f"{tmp_path}/"})
    (tmp_path / "c/1/1").unlink()
    (tmp_path / "c/1/1").mkdir()
    loader = PatchLoader(
        {"cells": store},
        sampler=RandomPatches((5, 3), per_epoch=20),
        batch_size=4,
        on_damage="replace",
    )
    with pytest.raises(gpustore.StoreIOError, match=r"array 'cells' from .*c/1/1"):
        list(loader)
    (tmp_path / "c/1/1").rmdir()
    assert len(list(loader)) == 5


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_arrays_of_any_rank_have_patches(rank):
    shape = (7, 6, 5, 4, 3)[:rank]
    values = np.arange(np.prod(shape), dtype="int16").reshape(shape)
    store = gpustore.create_array(
        "memory://rank/", data=values, chunks=(3,) * rank, overwrite=True
    ).result()
    patch = (2, 3, 1, 2, 2)[:rank]
    for sampler in (RandomPatches(patch, per_epoch=11, window=60), GridPatches(patch)):
        loader = PatchLoader(store, sampler=sampler, batch_size=4)
        for batch in loader:
            for found, origin in zip(batch["image"], batch["origin"].tolist(), strict=True):
                at = tuple(slice(o, o + n) for o, n in zip(origin, patch, strict=True))
                np.testing.assert_array_equal(found, values[at])


def test_arrays_without_dimensions_are_refused():
    with pytest.raises(gpustore.MismatchError, match="'image' has 0 dimensions, its patches 1"):
        PatchLoader(gpustore.array(3), sampler=RandomPatches((1,), per_epoch=1), batch_size=1)


def test_fields_of_structured_arrays_have_patches(tmp_path):
    values = np.zeros((6, 6), [("a", "<u2"), ("b", "<f4")])
    values["b"] = np.arange(36).reshape(6, 6)
    metadata = {**V2, "shape": [6, 6], "dtype": [["a", "<u2"], ["b", "<f4"]], "fill_value": None}
    spec = {"driver": "zarr2", "kvstore": f"file://{tmp_path}/", "metadata": metadata}
    for field in "ab":
        store = gpustore.open({**spec, "field": field}, create=field == "a", open=True).result()
        store.write(values[field]).result()
    (batch,) = PatchLoader(store, sampler=GridPatches((3, 6)), batch_size=2)
    np.testing.assert_array_equal(batch["image"].reshape(6, 6), values["b"])


def test_an_epoch_smaller_than_a_batch_is_one_batch():
    store = gpustore.array(VALUES)
    loader = PatchLoader(store, sampler=RandomPatches((2, 2), per_epoch=3), batch_size=8)
    assert [batch["image"].shape for batch in loader] == [(3, 2, 2)]
    with pytest.raises(ValueError, match="no batch of 8"):
        PatchLoader(store, sampler=RandomPatches((2, 2), per_epoch=3), batch_size=8, drop_last=True)
