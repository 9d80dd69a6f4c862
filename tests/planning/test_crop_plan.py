"""Plans of crops: what is decided before anything is read."""

import itertools

import numpy as np
import pytest

import gpustore
from gpustore.errors import LimitError
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.planning import copy_plan, crop_plan
from gpustore.planning.block import Block
from gpustore.planning.chunk_format import ChunkFormat
from gpustore.planning.chunk_grid import ChunkGrid
from gpustore.planning.crop_plan import plan_crops
from tests.pipelines.test_rectilinear_grid import CODECS, spec


def single(shape, chunk_shape, key_ratio=None, *, itemsize=2, partial=False):
    """Blocks of one chunk in C order."""
    ratio = key_ratio or (1,) * len(shape)
    strides = tuple(itertools.accumulate((itemsize, *chunk_shape[:0:-1]), int.__mul__))[::-1]
    form = ChunkFormat(strides, "c/", "/", ratio, len(shape))
    return Block(shape, chunk_shape, (1,) * len(shape), form, itemsize, partial)


def planned(block, starts, extent, **changes):
    transform = IndexTransform(IndexDomain(shape=block.shape))
    options = {
        "dst_stride": [0] * (1 + len(extent)),
        "max_chunks": 10**6,
        "block_nbytes": 1 << 20,
    }
    starts = np.array(starts, np.int64).reshape(-1, len(extent))
    ((chunk_shape, plan),) = plan_crops(
        transform,
        starts,
        extent,
        grid=ChunkGrid(block.shape, block.chunk_shape),
        block_of=lambda _: block,
        **{**options, **changes},
    )
    assert chunk_shape == block.chunk_shape
    return plan


def test_dense_crops_share_blocks_of_several_chunks():
    block = single((64, 512, 512), (32, 32, 32))
    rng = np.random.default_rng(0)
    starts = rng.integers(0, (48, 448, 448), (1000, 3))
    plan = planned(block, starts, (16, 64, 64))
    assert plan.block.factor[0] == 1  # The crops are shorter than a chunk along it.
    assert plan.block.factor[1] > 1
    assert plan.block.nbytes <= 1 << 20
    assert len(plan.order) < 3000
    single_plan = planned(block, starts, (16, 64, 64), block_nbytes=0)
    assert single_plan.block is block
    assert len(single_plan.order) > 10_000
    assert len(plan) == len(single_plan)


def test_few_or_small_crops_are_copied_from_single_chunks():
    block = single((64, 512, 512), (32, 32, 32))
    rng = np.random.default_rng(0)
    starts = rng.integers(0, (48, 448, 448), (1000, 3))
    assert planned(block, starts[:3], (16, 64, 64)).block is block
    assert planned(block, starts, (4, 4, 4)).block is block


def test_blocks_divide_shards_or_are_made_of_them(monkeypatch):
    monkeypatch.setattr(crop_plan, "REGION_NS", 10**9)
    rng = np.random.default_rng(0)
    for ratio in (1, 2, 3, 6, 7, 12):
        block = single((2400,), (10,), (ratio,))
        for most in (100, 300, 1000, 10_000):
            plan = planned(block, rng.integers(0, 1400, (50, 1)), (1000,), block_nbytes=most)
            factor = plan.block.factor[0]
            assert factor % ratio == 0 or ratio % factor == 0
            assert plan.block.nbytes <= max(most, 20)


def test_all_chunks_of_a_key_are_in_one_window(monkeypatch):
    monkeypatch.setattr(copy_plan, "WINDOW_CHUNKS", 1)
    block = single((64, 64), (4, 4), (4, 2))
    rng = np.random.default_rng(0)
    for extent, nbytes in (((3, 3), 0), ((30, 30), 4096)):
        starts = rng.integers(0, np.subtract(64, extent), (40, 2))
        plan = planned(block, starts, extent, block_nbytes=nbytes)
        seen = {}
        chunks = 0
        for part in range(3):
            for number, window in enumerate(plan.windows(part, 3, slots=3)):
                chunks += len(window.chunks)
                assert window.first_chunk[-1] == len(window.chunks)
                assert window.first[-1] == len(window.src_start)
                for key in window.chunks.keys:
                    assert seen.setdefault(key, (part, number)) == (part, number)
        touched = {
            (i, j)
            for y, x in starts.tolist()
            for i in range(y // 4, (y + extent[0] - 1) // 4 + 1)
            for j in range(x // 4, (x + extent[1] - 1) // 4 + 1)
        }
        assert chunks == len(plan) == len(touched)
        assert len(seen) == plan.objects == len({(i // 4, j // 2) for i, j in touched})


def test_windows_have_as_many_keys_as_wanted():
    block = single((64, 64), (4, 4), (4, 2))
    starts = np.random.default_rng(0).integers(0, 61, (200, 2))
    plan = planned(block, starts, (3, 3), block_nbytes=0)
    keys = [len(set(window.chunks.keys)) for window in plan.windows(0, 1, 1, most_units=3)]
    assert plan.units == 32
    assert keys == [3] * 10 + [2]


def test_too_many_regions_are_refused_before_they_are_written_down():
    block = single((10**15,), (1,))
    with pytest.raises(LimitError, match="regions of chunks exceeds the limit"):
        planned(block, np.zeros(10**4, int), (10**14,))
    block = single((4,) * 32, (3,) * 32)
    with pytest.raises(LimitError, match="regions of chunks exceeds the limit"):
        planned(block, np.zeros((5, 32), int), (4,) * 32)


def test_only_the_box_that_is_needed_is_decoded_of_a_chunk_with_parts():
    block = single((8, 8), (8, 8), partial=True)
    plan = planned(block, [[1, 2], [3, 1]], (2, 3))
    (window,) = plan.windows(0, 1, 1)
    assert plan.spans(2) == {(2 * (3 * 8 + 4), False): 1}
    assert [column[0] for column in window.chunks.count] == [4, 4]
    assert window.chunks.src_start == [2 * (8 + 1)]
    assert window.chunks.whole == [False]
    (window,) = planned(single((8, 8), (8, 8)), [[1, 2], [3, 1]], (2, 3)).windows(0, 1, 1)
    assert window.chunks.whole == [True]


def test_each_chunk_of_a_rectilinear_grid_is_fetched_once():
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
