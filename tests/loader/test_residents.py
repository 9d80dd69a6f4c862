"""Arrays that stay in memory for an epoch: each chunk is read once."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.loader import GridPatches, PatchLoader, RandomPatches
from gpustore.loader.residents import Resident, Residents
from gpustore.loader.volume import Volume

SHAPE = (40, 36, 32)
NBYTES = 2 * 40 * 36 * 32
VALUES = np.arange(np.prod(SHAPE), dtype="uint16").reshape(SHAPE)


def stored(values=VALUES, chunks=(8, 8, 8), name="image", **words):
    return gpustore.create_array(
        f"memory://residents/{name}/",
        **{"data": values, "chunks": chunks, "codec": "zstd", "overwrite": True} | words,
        context=CONTEXT,
    ).result()


CONTEXT = gpustore.Context()


@given(
    shape=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    chunks=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    begin=st.integers(0, 3),
    regions=st.lists(st.tuples(*[st.floats(0, 1)] * 4), max_size=5),
)
def test_each_chunk_of_a_region_is_claimed_once(shape, chunks, begin, regions):
    whole = (shape[0] + begin, shape[1])
    store = stored(np.zeros(whole, "u1"), chunks, codec=None)[begin:]
    resident = Resident(Volume({"a": store}, (1, 1), watches=False).arrays[0])
    # Of the chunk of each element the first element along each dimension, counted from the view.
    first = [(np.arange(n) + b) // c * c - b for n, b, c in zip(shape, (begin, 0), chunks)]
    seen = np.zeros(shape, int)
    touched = set()
    for ends in regions:
        low = np.array([int(x * (n - 1)) for x, n in zip(ends[:2], shape)])
        high = low + [1 + int(x * (n - i - 1)) for x, n, i in zip(ends[2:], shape, low)]
        for begin_, end in resident.missing(low, high):
            seen[tuple(map(slice, begin_, end))] += 1
        touched |= set(
            itertools.product(*(set(one[i:j]) for one, i, j in zip(first, low, high, strict=True)))
        )
    expected = [[(y, x) in touched for x in first[1]] for y in first[0]]
    np.testing.assert_array_equal(seen, expected)


def check(loader, values=VALUES):
    seen = 0
    for batch in loader:
        for found, origin in zip(batch["image"], batch["origin"].tolist(), strict=True):
            at = tuple(slice(o, o + n) for o, n in zip(origin, found.shape, strict=True))
            np.testing.assert_array_equal(found, values[at])
            seen += 1
    return seen


@pytest.mark.parametrize("memory", [2 * NBYTES + 200_000, NBYTES])
@pytest.mark.parametrize(
    "sampler",
    [
        RandomPatches((9, 8, 7), per_epoch=1000, window=NBYTES // 8),
        GridPatches((9, 10, 11), overlap=5, window=NBYTES // 8),
    ],
)
def test_each_chunk_is_decoded_once_an_epoch_if_arrays_take_half_of_the_memory(sampler, memory):
    loader = PatchLoader(stored(), sampler=sampler, batch_size=5, memory=memory)
    is_resident = memory > 2 * NBYTES
    for epoch in range(1, 3):
        assert check(loader) > 100
        found = loader.stats()
        assert (found["chunks_decoded"] == epoch * 5 * 5 * 4) == is_resident
        assert (found["decodes_per_chunk"] == 1) == is_resident
    assert loader.explain().decodes_per_chunk == found["decodes_per_chunk"]
    assert NBYTES * is_resident < loader.explain().memory_nbytes <= memory


def test_few_patches_are_read_alone_of_an_array_that_stays():
    sampler = RandomPatches((4, 4, 4), per_epoch=3)
    loader = PatchLoader(stored(), sampler=sampler, batch_size=1)
    assert check(loader) == 3
    assert loader.stats()["chunks_decoded"] <= 3 * 8


def test_ranks_read_what_their_patches_touch():
    sampler = RandomPatches((4, 4, 4), per_epoch=8000, window=NBYTES, seed=1)
    loader = PatchLoader(stored(), sampler=sampler, batch_size=50, dist=(1, 4))
    assert check(loader) == 2000
    assert loader.stats()["decodes_per_chunk"] == 1
    assert loader.stats()["chunks_decoded"] < 60


def test_arrays_that_are_in_memory_anyway_or_have_references_do_not_stay():
    def nbytes(*stores):
        volume = Volume(dict(enumerate(stores)), (4, 4, 4), watches=False)
        return Residents.of([volume], 1 << 40).nbytes

    strings = stored(np.full(SHAPE, b"a", object), name="strings", dtype="string")
    assert strings.dtype.hasobject
    assert nbytes(gpustore.array(VALUES), strings) == 0
    assert nbytes(stored(), gpustore.array(VALUES)) == NBYTES


@pytest.mark.parametrize("on_damage", ["raise", "replace"])
def test_a_damaged_chunk_is_damage_for_each_window_that_has_it(on_damage):
    store = stored()
    store.kvstore.write("c/2/2/2", b"damaged").result()
    sampler = RandomPatches((9, 8, 7), per_epoch=400, window=NBYTES // 8)
    loader = PatchLoader(store, sampler=sampler, batch_size=5, on_damage=on_damage)
    if on_damage == "raise":
        with pytest.raises(gpustore.CorruptChunkError, match=r"of array 'image'.*c/2/2/2"):
            check(loader)
        return
    assert check(loader) == 400
    assert loader.stats()["patches_replaced"] > 5


def test_a_break_leaves_the_memory_to_reads_that_are_under_way():
    loader = PatchLoader(
        stored(),
        sampler=RandomPatches((9, 8, 7), per_epoch=400, window=NBYTES // 8),
        batch_size=5,
    )
    for _ in range(10):
        for _ in loader:
            break
    assert check(loader) == 400
