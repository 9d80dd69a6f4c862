"""Kernels that reduce blocks, against the host's results bit for bit."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.backends.downsampling import Downsampling
from gpustore.backends.host.downsample import downsample
from gpustore.device.kernels.downsample import Blocks, can_downsample, downsample_launches
from gpustore.errors import LimitError
from tests.emulator import host_build
from tests.kernels import execution

pytestmark = execution.needs_compiler

DTYPES = {
    **{name: np.dtype(name) for name in ("bool", "int8", "uint8", "int16", "uint16", "int32")},
    **{name: np.dtype(name) for name in ("uint32", "int64", "uint64", "float16", "float32")},
    **{name: np.dtype(name) for name in ("float64", "complex64", "complex128")},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "int4", "uint2")},
}
METHODS = ("mean", "min", "max", "median", "mode", "gaussian")


def reduced(elements, job, out, order="forward", first=None, step=None):
    """Run the kernel: every `step`-th block from `first` on, into an array of NumPy."""
    first, step = first or (0,) * out.ndim, step or (1,) * out.ndim
    columns = (out.shape, job.factors, elements.shape, first, job.before, step)
    dims = [
        Blocks(cells, factor, size, at * factor - before, by * factor, *strides)
        for cells, factor, size, at, before, by, *strides in zip(
            *columns, elements.strides, out.strides, strict=True
        )
    ]
    places = execution.address(elements), execution.address(out)
    execution.run(
        downsample_launches(*places, dims, (elements.dtype, out.dtype), job.method), order
    )


def values_of(dtype, shape, rng, most):
    kind = DTYPES[dtype]
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in dtype:
        bits = int("".join(c for c in dtype if c.isdigit()))
        signed = dtype.startswith("i")
        low, high = (-(2 ** (bits - 1)) if signed else 0), 2 ** (bits - signed) - 1
        low, high = max(low, -most), min(high, most)
        return rng.integers(low, high, shape, "int64" if signed else "uint64", True).astype(kind)
    real = np.dtype(kind.char.lower()) if kind.kind == "c" else kind
    # Denormal numbers, numbers near the largest one, both zeros, infinities and NaN.
    exponent = {"float16": 24, "float32": 149, "bfloat16": 133, "float64": 1074}[real.name]
    with np.errstate(over="ignore"):
        parts = rng.normal(size=(*shape, 2)) * 2.0 ** rng.integers(-exponent, 127, (*shape, 2))
        parts = np.where(rng.random(parts.shape) < 0.5, rng.integers(-3, 3, parts.shape), parts)
        odd = rng.choice([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 1e308], parts.shape)
        parts = np.where(rng.random(parts.shape) < most % 2 / 3, odd, parts).astype(real)
    if kind.kind != "c":
        return parts[..., 0]
    return parts.view(kind)[..., 0]


@st.composite
def cases(draw):
    dtype, method = draw(st.sampled_from([*DTYPES])), draw(st.sampled_from(METHODS))
    kind = DTYPES[dtype]
    narrow = kind.itemsize < 8 and kind.kind in "iu"
    if method == "gaussian" and not (kind.kind == "f" or narrow):
        kind = DTYPES[dtype := "uint16"]
    if kind.kind == "c":
        method = "mean"
    rank = draw(st.integers(1, 5))
    choices = [1, 2] if method == "gaussian" else [1, 1, 2, 3]
    factors = draw(st.lists(st.sampled_from(choices), min_size=rank, max_size=rank))
    while method == "gaussian" and factors.count(2) > 3:
        factors[factors.index(2)] = 1
    shape = draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank))
    low = -1 if method == "gaussian" else 0
    before = [draw(st.integers(low, f - 1)) if f > 1 else 0 for f in factors]
    before = [b if n > -b else 0 for b, n in zip(before, shape, strict=True)]
    seed, most = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([1, 2, 2**62]))
    elements = values_of(dtype, shape, np.random.default_rng(seed), most)
    # Another order of dimensions, steps, gaps and the other byte order.
    order = draw(st.permutations(range(rank)))
    wide = np.zeros([2 * n + 1 for n in shape], kind).transpose(order)
    step = draw(st.sampled_from([-2, 1, 2]))
    back = np.argsort(order)
    view = wide.transpose(back)[tuple(slice(None, None, step) for _ in shape)]
    view = view[tuple(slice(n) for n in shape)]
    view[...] = elements
    if draw(st.booleans()) and kind.isbuiltin == 1:
        view = view.astype(kind.newbyteorder(">"))
    return view, Downsampling(method, tuple(factors), tuple(before))


@given(case=cases(), order=st.sampled_from(host_build.ORDERS), swapped=st.booleans())
def test_results_are_those_of_the_host_bit_for_bit(case, order, swapped):
    elements, job = case
    along = zip(elements.shape, job.factors, job.before, strict=True)
    cells = [-(-(n + b) // f) for n, f, b in along]
    native = elements.dtype.newbyteorder("=") if elements.dtype.isbuiltin != 2 else elements.dtype
    expected = np.zeros(cells, native)
    downsample(elements.astype(native, order="C"), job, expected)
    target = native.newbyteorder(">") if swapped and native.isbuiltin == 1 else native
    found = np.zeros([2 * n for n in cells], target)[tuple(slice(1, None, 2) for _ in cells)]
    reduced(elements, job, found, order)
    assert found.astype(native).tobytes() == expected.tobytes(), (found, expected)


def test_some_of_the_blocks():
    elements = np.arange(7 * 50, dtype="i4").reshape(7, 50)
    job = Downsampling("mean", (2, 3), (1, 1))
    whole, found = np.zeros((4, 17), "i4"), np.zeros((2, 5), "i4")
    downsample(elements, job, whole)
    reduced(elements, job, found[:, ::-1], first=(1, 2), step=(2, 3))
    assert np.array_equal(found[:, ::-1], whole[1::2, 2::3])


def test_many_tiles_and_dimensions():
    elements = np.random.default_rng(0).integers(0, 256, (2,) * 14, np.uint8)
    job = Downsampling("max", (1,) * 13 + (2,), (0,) * 14)
    found = np.zeros((2,) * 13 + (1,), "u1")
    reduced(elements[::-1], job, found)
    assert np.array_equal(found, elements[::-1].max(axis=-1, keepdims=True))


def test_means_of_the_largest_integers():
    for dtype in ("i8", "u8", "i4", "u4"):
        for value in (np.iinfo(dtype).max, np.iinfo(dtype).min):
            elements, found = np.full(1000, value, dtype), np.zeros(1, dtype)
            job = Downsampling("mean", (1000,), (0,))
            reduced(elements, job, found)
            assert found[0] == value
            expected = found.copy()
            elements[::3] = 7
            reduced(elements, job, found)
            downsample(elements, job, expected)
            assert found == expected


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_zeros_and_nan(dtype):
    blocks = [[1, 1, 1, 0.0, 0.0, -0.0, -0.0], [np.nan, np.nan, 1, 2, 3, 4, 5], [np.nan] * 7]
    elements, found = np.array(blocks, dtype), np.zeros((3, 1), dtype)
    for method, expected in (
        ("mode", [-0.0, 1, np.nan]), ("min", [-0.0, 1, np.nan]), ("max", [1, 5, np.nan]),
        ("median", [0.0, 4, np.nan]), ("mean", [np.float64(3) / 7, np.nan, np.nan]),
    ):  # fmt: skip
        reduced(elements, Downsampling(method, (1, 7), (0, 0)), found)
        assert found[:, 0].tobytes() == np.array(expected, dtype).tobytes(), method


def test_halves_are_rounded_once():
    """As float32, the mean would be halfway between two numbers."""
    elements, found = np.array([2**-24, 1, 1, 2 + 2**-8], "f2"), np.zeros(1, "f2")
    reduced(elements, Downsampling("gaussian", (2,), (-1,)), found)
    assert found[0] == 1 + 2**-10


def test_medians_and_modes_of_the_largest_blocks():
    elements = np.random.default_rng(0).integers(0, 50, 512).astype("f4")
    for method in ("median", "mode"):
        found, expected = np.zeros((2, 1), "f4"), np.zeros((2, 1), "f4")
        job = Downsampling(method, (1, 512), (0, 0))
        assert can_downsample(elements.dtype, method, job.factors)
        both = np.stack([elements, elements[::-1]])
        reduced(both, job, found)
        downsample(both, job, expected)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("dtype", "method", "factors"),
    [
        ("c8", "mode", (2,)),
        ("U3", "mode", (2,)),
        (ml_dtypes.float8_e5m2, "mean", (2,)),
        ("u2", "mode", (513,)),
        ("u2", "mean", (1 << 31,)),
        ("u2", "gaussian", (2, 2, 2, 2)),
    ],
)
def test_others_are_left_to_the_host(dtype, method, factors):
    assert not can_downsample(np.dtype(dtype), method, factors)


def test_a_launch_has_a_largest_size():
    dims = [Blocks(1 << 20, 1, 1 << 20, 0, 1, 2, 1 << 21), Blocks(1 << 20, 1, 1 << 20, 0, 1, 0, 2)]
    with pytest.raises(LimitError):
        downsample_launches(0, 0, dims, (np.dtype("u2"),) * 2, "mean")
