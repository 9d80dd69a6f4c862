"""The native core reduces blocks of elements as NumPy does."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.backends.downsampling import Downsampling
from gpustore.backends.host.downsample import downsample
from gpustore.backends.native import library
from gpustore.backends.native.blocks import KINDS, METHODS, core_downsample

needs_core = pytest.mark.skipif(library.library() is None, reason=str(library.why_not()))


def apart(elements):
    """An equal array whose elements do not lie side by side, which the core leaves to NumPy."""
    wide = np.zeros((*elements.shape, 2), elements.dtype)
    wide[..., 0] = elements
    return wide[..., 0]


@st.composite
def blocks(draw):
    dtype = np.dtype(draw(st.sampled_from((*KINDS, "?"))))
    rank = draw(st.integers(1, 4))
    factors = draw(st.tuples(*[st.sampled_from([1, 2, 2, 3, 4, 5])] * rank))
    before = tuple(draw(st.integers(0, factor - 1)) for factor in factors)
    shape = draw(st.tuples(*[st.integers(1, 9)] * rank))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype.kind == "f":
        values = rng.normal(size=shape) * 10.0 ** rng.integers(-9, 9, shape)
        odd = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 0.1])
        replaced = rng.random(shape) < draw(st.sampled_from([0, 0.2, 1]))
        values[replaced] = rng.choice(odd, int(replaced.sum()))
    elif dtype.kind == "b":
        values = rng.integers(0, 2, shape)
    else:
        info = np.iinfo(dtype)
        low, high = draw(st.sampled_from([(info.min, info.max), (0, 2), (info.max - 3, info.max)]))
        values = rng.integers(low, high, shape, dtype, endpoint=True)
    steps = tuple(slice(None, None, draw(st.sampled_from([1, -1]))) for _ in shape[:-1])
    return values.astype(dtype)[(*steps, ...)], factors, before


@needs_core
@given(case=blocks(), data=st.data())
def test_halves_are_those_of_numpy_bit_for_bit(case, data):
    elements, _, _ = case
    factors = data.draw(st.tuples(*[st.sampled_from([1, 2, 2])] * elements.ndim))
    before = [data.draw(st.sampled_from([-1, 0, 1])) if f == 2 else 0 for f in factors]
    before = [b if n > -b else 0 for b, n in zip(before, elements.shape, strict=True)]
    cells = [-(-(n + b) // f) for n, f, b in zip(elements.shape, factors, before, strict=True)]
    found, expected = (np.full(cells, 7).astype(elements.dtype) for _ in range(2))
    job = Downsampling("gaussian", factors, tuple(before))
    done = core_downsample(elements, job, found)
    wide = elements.dtype.kind in "iu" and elements.dtype.itemsize == 8
    if elements.shape[-1] > 1 and elements.strides[-1] == elements.itemsize:
        assert done == (not wide)
    if done:
        if elements.dtype.kind == "b":
            elements, expected = elements.view("u1"), expected.view("u1")
        downsample(apart(elements), job, expected)
        assert found.tobytes() == expected.tobytes(), (found, expected)


@needs_core
@given(case=blocks(), method=st.sampled_from(METHODS[:-1]))
def test_results_are_those_of_numpy_bit_for_bit(case, method):
    elements, factors, before = case
    cells = [-(-(n + b) // f) for n, f, b in zip(elements.shape, factors, before, strict=True)]
    job = Downsampling(method, factors, before)
    found, expected = (np.full(cells, 7).astype(elements.dtype) for _ in range(2))
    done = core_downsample(elements, job, found)
    if elements.shape[-1] > 1 and elements.strides[-1] == elements.itemsize:
        assert done
    if done:
        downsample(apart(elements), job, expected)
        assert found.tobytes() == expected.tobytes(), (found, expected)


@needs_core
@pytest.mark.parametrize(
    ("elements", "factor", "method"),
    [
        (np.ones(8, "f2"), 2, "mean"),
        (np.ones(8, "c8"), 2, "mean"),
        (np.ones(8, ">u2"), 2, "mean"),
        (np.ones(90, "u1"), 1 << 15, "mean"),
        (np.ones(9, "u1")[1:].view("u2"), 2, "mean"),
        (apart(np.ones(8, "u2")), 2, "mean"),
        (np.ones(0, "u2"), 2, "mean"),
    ],
)
def test_others_are_left_to_numpy(elements, factor, method):
    out = np.full(-(-len(elements) // factor), 7).astype(elements.dtype)
    assert not core_downsample(elements, Downsampling(method, (factor,), (0,)), out)
    assert (out == 7).all()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "bfloat16"])
@pytest.mark.parametrize("core", [True, False])
def test_zeros_and_nan_have_one_result(core, dtype):
    kind = np.dtype(dtype if dtype != "bfloat16" else ml_dtypes.bfloat16)
    nan = np.array([-np.nan], kind)
    blocks = np.array([[0.0, -0.0, 0.0], [nan[0], -1.0, 2.0], [nan[0]] * 3], kind)
    elements = blocks if core else apart(blocks)
    for method, expected in (
        ("min", [-0.0, -1, np.nan]), ("max", [0.0, 2, np.nan]), ("mean", [0.0, np.nan, np.nan]),
        ("median", [0.0, 2, np.nan]), ("mode", [-0.0, -1, np.nan]),
    ):  # fmt: skip
        out = np.zeros((3, 1), kind)
        downsample(elements, Downsampling(method, (1, 3), (0, 0)), out)
        assert out.tobytes() == np.array(expected, kind).tobytes(), (method, out)


@needs_core
@pytest.mark.parametrize("method", ["mode", "median"])
def test_large_blocks_of_floats(method):
    elements = np.random.default_rng(0).integers(0, 9, (20, 30, 3)).astype("f4")
    found, expected = (np.zeros((2, 3, 1), "f4") for _ in range(2))
    job = Downsampling(method, (10, 10, 10), (0, 0, 0))
    assert core_downsample(elements, job, found)
    downsample(apart(elements), job, expected)
    assert found.tobytes() == expected.tobytes()


def test_sums_beyond_the_largest_float_do_not_warn():
    elements = apart(np.array([3e38, 3e38, np.inf, -np.inf], "f4"))
    out = np.zeros(2, "f4")
    downsample(elements, Downsampling("mean", (2,), (0,)), out)
    assert out[0] == np.inf
    assert np.isnan(out[1])
