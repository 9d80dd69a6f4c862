"""Damaged chunks: errors, or other patches of the same epoch."""

import numpy as np
import pytest

import gpustore
from gpustore.loader import GridPatches, PatchLoader, RandomPatches

SHAPE = (20, 24)
VALUES = np.arange(np.prod(SHAPE), dtype="uint16").reshape(SHAPE)
CONTEXT = gpustore.Context()
CHUNKS = [(i, j) for i in range(5) for j in range(6)]


def stored(damaged=(), *, missing=(), **words):
    """Return an array of 4 by 4 elements a chunk, some of which do not decode."""
    store = gpustore.create_array(
        "memory://damage/",
        overwrite=True,
        **{"data": VALUES, "chunks": (4, 4), "codec": "zstd", "context": CONTEXT} | words,
    ).result()
    for i, j in damaged:
        store.kvstore.write(f"c/{i}/{j}", b"damaged").result()
    for i, j in missing:
        store.kvstore.write(f"c/{i}/{j}", None).result()
    return store


def rows(loader):
    return [
        (batch["origin"].tolist(), {name: np.array(one) for name, one in batch.items()})
        for batch in loader
    ]


def touches(origin, patch, chunks):
    return any(
        all(o < 4 * (c + 1) and o + p > 4 * c for o, p, c in zip(origin, patch, one, strict=True))
        for one in chunks
    )


@pytest.mark.matrix("costly")
@pytest.mark.parametrize(
    ("damaged", "patch", "edge", "window"),
    [
        ([(1, 1)], (3, 3), "shift", 200),
        ([(0, 0), (4, 5)], (5, 2), "shift", 10_000),
        ([(2, 3)], (1, 1), "shift", 1),
        ([(0, 2), (3, 0)], (6, 7), "fill", 400),
        ([(0, 1), (4, 4)], (7, 5), "reflect", 10_000),
    ],
)
def test_damaged_patches_are_replaced_the_same_on_any_ranks(damaged, patch, edge, window):
    words = {"per_epoch": 24, "seed": 3, "window": window, "edge": edge}
    sampler = RandomPatches(patch, **words)
    whole = gpustore.array(VALUES)
    sound = PatchLoader({"image": stored(), "same": whole}, sampler=sampler, batch_size=6)
    planned = [tuple(o) for origins, _ in rows(sound) for o in origins]
    store = stored(damaged)
    found = {}
    for world in (1, 2, 3):
        loaders = [
            PatchLoader(
                {"image": store, "same": whole},
                sampler=sampler,
                batch_size=6 // world,
                dist=(rank, world),
                on_damage="replace",
            )
            for rank in range(world)
        ]
        found[world] = [
            tuple(o)
            for batches in zip(*map(rows, loaders), strict=True)
            for origins, batch in batches
            for o in origins
            if (batch["image"] == batch["same"]).all() and len(origins) == 6 // world
        ]
    assert found[1] == found[2] == found[3]
    assert len(found[1]) == 24
    # An element that stands for one outside may be in a damaged chunk that the patch lies beside.
    inside = edge != "reflect"
    for was, now in zip(planned, found[1], strict=True):
        assert not touches(now, patch, damaged)
        assert not inside or was == now or touches(was, patch, damaged)


def test_replacements_are_counted_and_few_chunks_are_decoded_for_them():
    sampler = RandomPatches((4, 4), per_epoch=200, window=400)
    planned = PatchLoader(stored(), sampler=sampler, batch_size=10)
    wanted = sum(touches(o, (4, 4), [(2, 3)]) for origins, _ in rows(planned) for o in origins)
    loader = PatchLoader(stored([(2, 3)]), sampler=sampler, batch_size=10, on_damage="replace")
    assert len(rows(loader)) == 20
    assert loader.stats()["patches_replaced"] == wanted > 0
    # Chunks of each window are decoded once more, and four for each patch that is read alone.
    assert loader.stats()["chunks_decoded"] <= 2 * 1.6 * 30 + 10 * wanted


def test_a_damaged_chunk_is_an_error_with_array_origin_and_key():
    loader = PatchLoader(
        {"label": gpustore.array(VALUES), "cells": stored([(1, 1)]).translate_to[100, 200]},
        sampler=RandomPatches((18, 20), per_epoch=4),
        batch_size=2,
    )
    with pytest.raises(
        gpustore.CorruptChunkError, match=r"the patch of array 'cells' at \[10\d, 20\d\].*c/1/1"
    ) as caught:
        rows(loader)
    assert caught.value.key == "damage/c/1/1"


def test_damage_beside_all_patches_is_no_error():
    loader = PatchLoader(
        stored([(4, 5)]), sampler=RandomPatches((2, 2), per_epoch=3, seed=1), batch_size=1
    )
    assert not any(touches(o[0], (2, 2), [(4, 5)]) for o, _ in rows(loader))


def test_missing_chunks_are_damage_where_none_may_be_missing():
    store = gpustore.open(
        {**stored(missing=[(0, 0)]).spec().to_json(), "fill_missing_data_reads": False},
        context=CONTEXT,
    ).result()
    sampler = RandomPatches((16, 16), per_epoch=40)
    with pytest.raises(gpustore.NotFoundError, match=r"patch of array 'image' at \[[0-3], [0-3]\]"):
        rows(PatchLoader(store, sampler=sampler, batch_size=4))
    found = rows(PatchLoader(store, sampler=sampler, batch_size=4, on_damage="replace"))
    assert all(max(o) > 3 for origins, _ in found for o in origins)


def test_an_array_without_sound_patches_is_an_error():
    store = stored(CHUNKS)
    sampler = RandomPatches((4, 4), per_epoch=4)
    with pytest.raises(gpustore.CorruptChunkError, match="the patch of array 'image'"):
        rows(PatchLoader(store, sampler=sampler, batch_size=2, on_damage="replace"))


def test_damaged_shards_are_replaced():
    store = stored(shards=(8, 8))
    store.kvstore.write("c/1/1", b"damaged").result()
    sampler = RandomPatches((3, 3), per_epoch=60)
    loader = PatchLoader(store, sampler=sampler, batch_size=6, on_damage="replace")
    shard = [(2, 2), (2, 3), (3, 2), (3, 3)]
    assert not any(touches(o, (3, 3), shard) for origins, _ in rows(loader) for o in origins)
    assert loader.stats()["patches_replaced"] > 0


@pytest.mark.parametrize(
    ("sampler", "on_damage"),
    [(RandomPatches((2, 2), per_epoch=2), "skip"), (GridPatches((2, 2)), "replace")],
)
def test_what_has_no_replacement_is_refused(sampler, on_damage):
    with pytest.raises(ValueError, match="on_damage"):
        PatchLoader(gpustore.array(VALUES), sampler=sampler, batch_size=1, on_damage=on_damage)
