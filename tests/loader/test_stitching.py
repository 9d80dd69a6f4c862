"""Predictions of overlapping patches, put together."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.loader import GridPatches, PatchLoader, RandomPatches, stitch


def created(shape, chunks, dtype="float32", **words):
    return gpustore.create_array(
        "memory://stitch/", shape=shape, dtype=dtype, chunks=chunks, overwrite=True, **words
    ).result()


@given(data=st.data(), rank=st.integers(1, 3), leading=st.sampled_from([(), (2,)]))
def test_the_mean_of_equal_patches_is_the_array(data, rank, leading):
    patch = data.draw(st.tuples(*[st.integers(1, 6)] * rank))
    shape = tuple(p + data.draw(st.integers(0, 9)) for p in patch)
    overlap = [data.draw(st.integers(0, p - 1)) for p in patch]
    chunks = data.draw(st.tuples(*[st.integers(1, 7)] * (rank + len(leading))))
    values = np.arange(math.prod((*leading, *shape)), dtype="float32").reshape(*leading, *shape)
    grid = GridPatches(patch, overlap=overlap, window=data.draw(st.integers(1, 500)))
    result = created(values.shape, chunks)
    with stitch(result, grid) as stitched:
        for batch in PatchLoader(gpustore.array(values), sampler=grid, batch_size=5):
            stitched.add(batch["origin"], batch["image"])
    np.testing.assert_allclose(result.read().result(), values, rtol=1e-5)


@pytest.mark.parametrize("weights", ["gaussian", "uniform", "array"])
def test_means_are_weighted(weights):
    given_weights = np.linspace(1, 2, 12).reshape(3, 4) if weights == "array" else weights
    grid = GridPatches((3, 4), overlap=(2, 1))
    shape = (7, 9)
    result = created(shape, (4, 4), "float64")
    random = np.random.default_rng(0)
    sums, total = np.zeros(shape), np.zeros(shape)
    if weights == "gaussian":
        y, x = np.arange(3) - 1, np.arange(4) - 1.5
        weight = np.exp(-32 * ((y[:, None] / 3) ** 2 + (x / 4) ** 2))
    else:
        weight = np.ones((3, 4)) if weights == "uniform" else given_weights
    with stitch(result, grid, weights=given_weights) as stitched:
        loader = PatchLoader(gpustore.array(np.zeros(shape)), sampler=grid, batch_size=4)
        for batch in [*loader][::-1]:
            patches = random.normal(size=batch["image"].shape)
            stitched.add(batch["origin"], patches)
            for (i, j), one in zip(batch["origin"].tolist(), patches, strict=True):
                sums[i : i + 3, j : j + 4] += weight * one
                total[i : i + 3, j : j + 4] += weight
    np.testing.assert_allclose(result.read().result(), sums / total, atol=1e-5)


def test_means_of_integers_are_rounded_and_stay_in_range():
    grid = GridPatches((2,), overlap=1)
    result = created((3,), (3,), "uint8")
    with stitch(result, grid, weights="uniform") as stitched:
        stitched.add([[0], [1]], [[300, 10], [13, -7]])
    assert result.read().result().tolist() == [255, 12, 0]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int32", 2**31 - 1), ("uint32", 2**32 - 1), ("int32", 100000001), ("float64", 1 / 3)],
)
def test_numbers_of_wide_types_stay_as_they_are(dtype, value):
    result = created((2,), (2,), dtype)
    with stitch(result, GridPatches((2,)), weights="uniform") as stitched:
        stitched.add([[0]], np.full((1, 2), value, dtype))
    assert result.read().result().tolist() == [value, value]


def test_stores_with_another_origin_keep_their_coordinates():
    grid = GridPatches((2,), overlap=1)
    result = created((6,), (2,))
    with stitch(result.translate_to[10], grid) as stitched:
        for origin in range(10, 15):
            stitched.add([[origin]], [[origin, origin + 1]])
    np.testing.assert_allclose(result.read().result(), np.arange(10, 16), rtol=1e-6)


@pytest.mark.matrix("costly")
def test_only_unfinished_chunks_take_memory():
    grid = GridPatches((4, 4), overlap=2, window=1)
    result = created((64, 64), (4, 4))
    stitched = stitch(result, grid)
    most = 0
    for batch in PatchLoader(gpustore.array(np.ones((64, 64))), sampler=grid, batch_size=1):
        stitched.add(batch["origin"], batch["image"])
        most = max(most, len(stitched._sums))
    stitched.close()
    assert stitched._sums == {}
    assert most <= 2 * 16 + 2
    assert (result.read().result() == 1).all()


def test_what_does_not_fit_is_an_error():
    grid = GridPatches((4, 4), overlap=2)
    result = created((8, 8), (4, 4))
    with (
        pytest.raises(gpustore.MismatchError, match="8 patches are missing"),
        stitch(result, grid) as stitched,
    ):
        stitched.add([[0, 0]], np.ones((1, 4, 4)))
    with pytest.raises(gpustore.MismatchError, match="came before"):
        stitched.add([[0, 0]], np.ones((1, 4, 4)))
    with pytest.raises(gpustore.MismatchError, match="expected shape"):
        stitched.add([[0, 0]], np.ones((1, 4, 5)))
    with pytest.raises(gpustore.MismatchError, match="no patch"):
        stitched.add([[0, 6]], np.ones((1, 4, 4)))
    with pytest.raises(gpustore.MismatchError, match="smaller"):
        stitch(created((3, 8), (3, 8)), grid)
    with pytest.raises(gpustore.MismatchError, match="dimensions"):
        stitch(created((8,), (8,)), grid)
    for dtype in ("bool", "int64", "int4"):
        with pytest.raises(gpustore.MismatchError, match=dtype):
            stitch(created((8, 8), (4, 4), dtype), grid)
    whole = stitch(created((4, 4), (4, 4), "uint8"), GridPatches((4, 4)))
    with pytest.raises(gpustore.MismatchError, match="NaN"):
        whole.add([[0, 0]], np.full((1, 4, 4), np.nan))
    for wrong in ("linear", np.zeros((4, 4)), np.ones((4, 5))):
        with pytest.raises(ValueError, match="weights"):
            stitch(result, grid, weights=wrong)


def test_nothing_is_added_behind_a_block_that_has_failed():
    result = created((8, 8), (4, 4))
    with pytest.raises(ZeroDivisionError), stitch(result, GridPatches((4, 4))) as stitched:
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="has ended with an error"):
        stitched.add([[0, 0]], np.ones((1, 4, 4)))


@pytest.mark.parametrize(
    ("origins", "patches", "text"),
    [
        ([[0.5, 0.0]], np.ones((1, 4, 4)), "origins: expected integers .* got float64"),
        ([0, 0], np.ones((2, 4, 4)), r"origins: expected integers of shape \(2, 2\)"),
        ([[0, 0, 0]], np.ones((1, 4, 4)), r"got int64 of shape \(1, 3\)"),
        ([[0, 0]], np.ones((2, 4, 4)), r"patches: expected shape \(1, 4, 4\)"),
        ([[0, 0]], np.ones((1, 4, 4), complex), "patches: expected real numbers, got complex128"),
    ],
)
def test_patches_of_wrong_kinds_are_errors_and_not_added(origins, patches, text):
    result = created((4, 4), (4, 4))
    stitched = stitch(result, GridPatches((4, 4)))
    with pytest.raises(gpustore.MismatchError, match=text):
        stitched.add(origins, patches)
    stitched.add([[0, 0]], np.ones((1, 4, 4), ml_dtypes.bfloat16))
    stitched.close()
    assert (result.read().result() == 1).all()


def test_what_is_no_store_or_grid_is_an_error():
    with pytest.raises(TypeError, match="store: expected a TensorStore, got ndarray"):
        stitch(np.zeros((4, 4)), GridPatches((4, 4)))
    with pytest.raises(TypeError, match="sampler: expected GridPatches, got RandomPatches"):
        stitch(created((4, 4), (4, 4)), RandomPatches((4, 4), per_epoch=1))
