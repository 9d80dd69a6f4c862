"""Conversions of elements of batches."""

import ml_dtypes
import numpy as np
import pytest

import gpustore
from gpustore.loader import PatchLoader, RandomPatches


@pytest.mark.parametrize("target", ["float16", ml_dtypes.bfloat16, "float32", "float64"])
@pytest.mark.parametrize("source", ["bool", ">u2", "int8", "uint64", ">f4"])
def test_normalised_elements_are_rounded_once(source, target):
    with np.errstate(all="ignore"):
        values = (np.arange(99) * (2**56 + 1)).astype("uint64").astype(source)
    low, high = float(values.min()), float(values.max())
    loader = PatchLoader(
        gpustore.array(values),
        sampler=RandomPatches((99,), per_epoch=1),
        batch_size=1,
        dtype=target,
        normalize=(low, high),
    )
    (batch,) = loader
    exact = (values.astype("float64") - low) * (1 / (high - low))
    if target is ml_dtypes.bfloat16:
        exact = exact.astype("float32")
    assert batch["image"].dtype == target
    assert batch["image"][0].tobytes() == exact.astype(target).tobytes()
    assert batch["image"].min() == 0
    assert target == "float64" or batch["image"].max() == 1


def test_what_is_not_normalised_is_refused_at_once():
    store = gpustore.array(np.ones(9, "complex64"))
    sampler = RandomPatches((9,), per_epoch=1)
    with pytest.raises(gpustore.UnsupportedError, match="'image' of complex64 is not normalised"):
        PatchLoader(store, sampler=sampler, batch_size=1, normalize=(0, 1))
    for low, high in (0, 5e-324), (0, np.inf), (np.nan, 1), (2, 1):
        with pytest.raises(ValueError, match="normalize: expected finite low < high"):
            PatchLoader(store, sampler=sampler, batch_size=1, normalize=(low, high))


def test_what_is_no_data_type_is_named():
    sampler = RandomPatches((9,), per_epoch=1)
    with pytest.raises(TypeError, match="dtype: expected a data type of NumPy, got 'float33'"):
        PatchLoader(gpustore.array(np.ones(9)), sampler=sampler, batch_size=1, dtype="float33")
