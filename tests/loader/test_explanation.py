"""Explanations of epochs, compared with what the loader counts afterwards."""

import json
import re

import numpy as np
import pytest

import gpustore
from gpustore.loader import GridPatches, PatchLoader, RandomPatches

SHAPE = (40, 36, 32)
WINDOW = 40 * 36 * 32 * 2 // 8

OPTIONS = {
    "chunks": {"chunks": (8, 8, 8), "codec": "zstd"},
    "shards": {"chunks": (4, 4, 4), "shards": (16, 16, 16), "codec": "zstd"},
    "uncompressed": {"chunks": (8, 8, 8), "codec": None},
}


def stored(kind, path="memory://explained/"):
    values = np.random.default_rng(0).integers(0, 4096, SHAPE).astype("uint16")
    return gpustore.create_array(
        path, data=values, context=gpustore.Context(), **OPTIONS[kind]
    ).result()


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize(
    "sampler",
    [
        RandomPatches((9, 8, 7), per_epoch=500, window=WINDOW),
        RandomPatches((16, 16, 16), per_epoch=12, edge="reflect"),
        GridPatches((9, 10, 11), overlap=2, window=WINDOW),
    ],
)
def test_an_epoch_does_what_was_explained(kind, sampler):
    loader = PatchLoader(stored(kind), sampler=sampler, batch_size=5, dist=(1, 2), drop_last=True)
    explained = loader.explain()
    for _ in loader:
        pass
    found = loader.stats()
    assert explained.windows == found["windows"]
    assert explained.patches == found["patches"]
    assert explained.batches == found["batches"]
    assert explained.chunks_decoded == found["chunks_decoded"]
    assert explained.decodes_per_chunk == pytest.approx(found["decodes_per_chunk"])
    # Of uncompressed chunks only the part that is wanted is read. Chunks that two windows under way
    # want are decoded once.
    least = 0.2 if kind == "uncompressed" else 0.8
    assert least * explained.bytes_decoded <= found["bytes_decoded"] <= explained.bytes_decoded
    assert found["bytes_read"] <= explained.bytes_read


def test_texts_and_json_say_the_same():
    loader = PatchLoader(
        {"a": stored("chunks"), "b": gpustore.array(np.zeros(SHAPE, "uint8"))},
        sampler=RandomPatches((8, 8, 8), per_epoch=2000, window=WINDOW),
        batch_size=100,
    )
    explained = loader.explain()
    found = explained.to_json()
    assert json.loads(json.dumps(found)) == found
    assert (found["patches"], found["limited_by"]) == (2000, "window")
    text = str(explained)
    assert text.startswith("epoch        0: 2,000 patches in 20 batches\nwindows      ")
    assert "limited by the sampler's window" in text
    assert f"decoded      {found['decodes_per_chunk']:.3g} times each" in text
    assert "by           a: zstd (host)\nby           b: in memory" in text
    assert found["resident_nbytes"] == 2 * np.prod(SHAPE)
    assert "; 92.2 kB of arrays stay for the epoch\n" in text


def test_advice_is_a_larger_window_that_decodes_less():
    def explained(window, memory):
        sampler = RandomPatches((12, 12, 12), per_epoch=2000, window=window)
        store = stored("chunks")
        return PatchLoader(store, sampler=sampler, batch_size=10, memory=memory).explain()

    small = explained(5000, 260_000)
    assert small.limited_by == "window"
    assert small.decodes_per_chunk > 1.6
    (advice,) = small.advice
    found = re.search(r" window=(\d+) with memory=(\d+) ", advice)
    larger = explained(*map(int, found.groups()))
    assert advice.endswith(f"decodes it {larger.decodes_per_chunk:.3g} times.")
    assert larger.decodes_per_chunk <= 1.6


def test_windows_that_memory_divides_are_named():
    def explained(memory):
        sampler = RandomPatches((12, 12, 12), per_epoch=500)
        loader = PatchLoader(
            stored("chunks"), sampler=sampler, batch_size=2, memory=memory, prefetch=0
        )
        return loader.explain()

    small, whole = explained("60 kB"), explained("1 MiB")
    assert (small.limited_by, whole.limited_by) == ("memory", "arrays")
    assert "some divided, as memory is too small" in str(small)
    assert small.advice[0].endswith(" times an epoch: memory=105984 decodes it 1 times.")
    assert explained(105_984).windows == 1
    assert whole.advice == ()
    assert whole.windows == 1
    assert small.memory_nbytes <= small.memory == 60_000


def test_sparse_patches_are_named():
    sampler = RandomPatches((2, 2, 2), per_epoch=20, window=WINDOW)
    (advice,) = PatchLoader(stored("chunks"), sampler=sampler, batch_size=5).explain().advice
    assert "more patches an epoch use more of each window" in advice
