"""kernels/cast.cu against NumPy and ml_dtypes, run on the host."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from gpustore.device.kernels import instance
from gpustore.device.kernels.launch import cast_launches
from gpustore.device.kernels.run import Rows
from tests.emulator import host_build
from tests.kernels import execution
from tests.matrix import each

pytestmark = execution.needs_compiler

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = [np.dtype(text) for text in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]
FLOATS = [np.dtype("f2"), BFLOAT16, np.dtype("f4"), np.dtype("f8")]
TARGETS = [np.dtype("f2"), BFLOAT16, np.dtype("f4")]
PAIRS = [(a, b) for a, b in itertools.product(INTEGERS + FLOATS, TARGETS) if a != b]


def all_of(dtype):
    """Every value of a 16-bit type."""
    return np.arange(1 << 16).astype(np.uint16).view(dtype)


def midpoints(dtype, wide):
    """Every value of a float type of 16 bits, every midpoint, and their neighbours in `wide`."""
    values = all_of(dtype).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    largest = values[-1] + (values[-1] - values[-2])
    values = np.concatenate((values, [largest, -largest]))
    values.sort()
    between = (values[1:] + values[:-1]) / 2  # Exact: float64 has many more bits.
    points = np.concatenate((values, between)).astype(wide)
    up, down = np.nextafter(points, wide.type(np.inf)), np.nextafter(points, wide.type(-np.inf))
    return np.concatenate((points, up, down))


def float32_midpoints():
    rng = np.random.default_rng(0)
    low = np.concatenate(
        (
            rng.integers(0, 0x7F800000, 20000),
            np.arange(300),  # denormal numbers
            0x00800000 + np.arange(-100, 100),
            0x7F800000 - 1 - np.arange(100),
        )
    ).astype(np.uint32)
    values = low.view(np.float32).astype(np.float64)
    above = (low + 1).view(np.float32).astype(np.float64)
    above[np.isinf(above)] = 2.0**128
    points = np.concatenate((values, (values + above) / 2))
    points = np.concatenate((points, np.nextafter(points, np.inf), np.nextafter(points, 0)))
    return np.concatenate((points, -points))


def values_of(dtype, target):
    """What is converted: all values, or boundaries and noise."""
    rng = np.random.default_rng(dtype.itemsize)
    if dtype.kind == "b":
        return np.array([False, True] * 8)
    if dtype.itemsize == 1:
        return np.arange(256).astype(np.uint8).view(dtype)
    if dtype.itemsize == 2:
        return all_of(dtype)
    noise = rng.integers(0, 256, 20000 * dtype.itemsize, np.uint8).view(dtype)
    if dtype.kind in "iu":
        # Near every power of two and every tie of the narrow types.
        edges = [s * (1 << k) + d for k in range(64) for s in (-1, 1, 3, 5) for d in (-1, 0, 1)]
        ties = [
            (2 * k + 1 << shift) + d
            for k in range(64, 512)
            for shift in range(20)
            for d in (-1, 0, 1)
        ]
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        kept = [value for value in edges + ties if low <= value <= high]
        return np.concatenate((np.array(kept, dtype), noise))
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, np.finfo(dtype).max], dtype)
    payload = np.array([np.inf, -np.inf], dtype).view(f"u{dtype.itemsize}") + 1  # Still no number.
    special = np.concatenate((special, payload.view(dtype)))
    with np.errstate(all="ignore"):
        if target == np.float32:
            points = float32_midpoints()
        else:
            points = midpoints(target, dtype)
            # What goes through float32 has ties of that as well.
            points = np.concatenate((points, midpoints(np.dtype("f2"), dtype)))
        scaled = (rng.standard_normal(20000) * 10.0 ** rng.integers(-42, 38, 20000)).astype(dtype)
        return np.concatenate((special, points.astype(dtype), noise, scaled))


def cast(src, dst, order="forward"):
    rows = Rows(
        [execution.address(src.view(np.uint8) if src.flags.c_contiguous else src)],
        [execution.address(dst)],
        np.array(src.shape, np.int64)[:, None],
        src.strides,
        dst.strides,
    )
    launches = cast_launches(rows, src.dtype, dst.dtype)
    execution.run(launches, order)
    return [launch.expression for launch in launches]


def assert_equal(got, expected):
    """Bit for bit, but any NaN will do."""
    got, expected = np.ascontiguousarray(got), np.ascontiguousarray(expected)
    with np.errstate(all="ignore"):
        wide_got, wide_expected = got.astype(np.float32), expected.astype(np.float32)
    assert (np.isnan(wide_got) == np.isnan(wide_expected)).all()
    bits = f"u{got.dtype.itemsize}"
    different = (got.view(bits) != expected.view(bits)) & ~np.isnan(wide_got)
    assert not different.any(), (got[different][:5], expected[different][:5])


def numpy_cast(values, target):
    with np.errstate(all="ignore"):
        return values.astype(target)


def name(value):
    return value.name


@each(("source", "target"), PAIRS)
def test_every_kind_of_value_is_converted_as_numpy_does(source, target):
    values = values_of(source, target)
    expected = numpy_cast(values, target)
    for count in (len(values) // 4 * 4, len(values) // 4 * 4 - 1):
        got = np.zeros(count, target)
        (expression,) = cast(values[:count].copy(), got)
        assert f", {1 if count % 4 else 4}, 2>" in expression
        assert_equal(got, expected[:count])


@each("order", host_build.ORDERS)
@each(("source", "target"), PAIRS)
def test_swapped_strided_and_unaligned_elements_are_converted(source, target, order):
    rng = np.random.default_rng(0)
    values = rng.choice(values_of(source, target), (6, 10, 7))
    expected = numpy_cast(values, target)
    swapped = values.astype(source.newbyteorder())
    got = np.zeros((7, 10, 6), target).T
    cast(swapped, got, order)
    assert_equal(got, expected)
    # A field of records, at an odd place.
    record = np.zeros(values.shape, np.dtype([("a", "u1"), ("b", swapped.dtype), ("c", "u2")]))
    record["b"] = swapped
    got = np.zeros(values.shape, target)
    cast(record["b"][::-1], got[::-1], order)
    assert_equal(got, expected)
    whole = np.zeros(values.size * target.itemsize + 1, np.uint8)
    unaligned = whole[1:].view(target).reshape(values.shape)
    cast(values, unaligned, order)
    assert_equal(unaligned, expected)


@each("order", host_build.ORDERS)
@each(("source", "target"), PAIRS)
def test_tiles_are_converted(source, target, order):
    rng = np.random.default_rng(1)
    values = rng.choice(values_of(source, target), (2, 67, 70)).swapaxes(1, 2)
    expected = numpy_cast(values, target)
    for dtype in (source, source.newbyteorder()):
        whole = np.zeros((2, 72, 69), target)
        stored = np.zeros((2, 67, 70), dtype).swapaxes(1, 2)
        stored[...] = values.astype(dtype)
        (expression,) = cast(stored, whole[:, 1:-1, 1:-1], order)
        assert "cast_tiled" in expression
        assert_equal(whole[:, 1:-1, 1:-1], expected)
        whole[:, 1:-1, 1:-1] = 0
        assert not whole.any()


@pytest.mark.parametrize("nitems", [1, 1023, 1024, 1025])
def test_runs_end_exactly_at_their_edges(nitems):
    values = np.arange(nitems).astype("u2")
    got = np.zeros(nitems + 2, "f4")
    cast(values[::-1], got[1:-1], "shuffled")
    assert (got == [0, *values[::-1], 0]).all()


@pytest.mark.parametrize("rank", [4, 9])
def test_tiles_of_every_rank(rank):
    shape = (*[3] * (rank - 2), 9, 8)
    values = np.arange(np.prod(shape)).astype("u2").reshape(shape).swapaxes(-1, -2)
    cut = (*[slice(0, 2)] * (rank - 2), slice(None), slice(None))
    got = np.zeros(values[cut].shape, "f4")
    (expression,) = cast(values[cut], got)
    assert expression == "gs::cast_tiled<gs::u16, gs::f32, 32>"
    assert (got == values[cut]).all()


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5, 9])
def test_casts_of_every_rank(rank):
    values = np.arange(4 * 3 ** (rank - 1)).astype("u2").reshape(*[3] * (rank - 1), 4)
    cut = (*[slice(0, 2)] * (rank - 1), slice(None))
    got = np.zeros(values[cut].shape, "f4")
    cast(values[cut], got)
    assert (got == values[cut]).all()


@each(("source", "target"), PAIRS)
def test_every_pair_has_its_instances(source, target):
    rows = Rows([4096], [8192], [[64]], [source.itemsize], [target.itemsize])
    for dtype in (source, source.newbyteorder()):
        (launch,) = cast_launches(rows, dtype, target)
        assert launch.expression in instance.INSTANCES["cast"]


@pytest.mark.parametrize(
    ("source", "target"), [("f4", "f4"), ("f4", "f8"), ("c8", "f4"), ("M8[s]", "f4"), ("f4", "i4")]
)
def test_other_pairs_are_refused(source, target):
    with pytest.raises(ValueError, match="no kernel casts"):
        cast_launches(Rows([0], [0], [[1]], [4], [4]), np.dtype(source), np.dtype(target))
