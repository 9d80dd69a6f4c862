"""kernels/cast.cu against NumPy and ml_dtypes, run on the host."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.device.kernels import instance
from gpustore.device.kernels.launch import cast_launches
from gpustore.device.kernels.patch import Patches, can_cut, patch_launches
from gpustore.device.kernels.run import Rows
from gpustore.errors import LimitError
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


@pytest.mark.matrix("costly")
@each(("source", "target"), PAIRS)
def test_every_kind_of_value_is_converted_as_numpy_does(source, target):
    values = values_of(source, target)
    expected = numpy_cast(values, target)
    for count in (len(values) // 4 * 4, len(values) // 4 * 4 - 1):
        got = np.zeros(count, target)
        (expression,) = cast(values[:count].copy(), got)
        assert f", {1 if count % 4 else 4}, 2>" in expression
        assert_equal(got, expected[:count])


@pytest.mark.matrix("costly")
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


@pytest.mark.matrix("costly")
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
    whole = np.zeros([size + 1 for size in values[cut].shape], "f4")
    got = whole[tuple(slice(size) for size in values[cut].shape)]
    (expression,) = cast(values[cut], got)
    assert expression == "gs::cast_tiled<gs::u16, gs::f32, 32>"
    assert (got == values[cut]).all()
    assert np.count_nonzero(whole) == np.count_nonzero(values[cut])


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


# Patches: cut_patches.

OTHERS = [np.dtype(text) for text in ("c8", "c16", "M8[s]", "S3", "V24")]
OTHERS += [np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.int4)]
PATCH_PAIRS = [
    *((a, a) for a in INTEGERS + FLOATS + OTHERS),
    *itertools.permutations(INTEGERS, 2),
    *((a, b) for a, b in itertools.product(INTEGERS + FLOATS, FLOATS) if a != b),
]
SCALED = [*itertools.product(INTEGERS + FLOATS, FLOATS)]


def patches_of(array, out, first, *, offset=None, scale=None, fill=None, low=None, size=None):
    """Patches of an array, or of the region of a larger one, into the rows of another."""
    src_stride = np.array(array.strides, np.int64)
    zero = execution.address(array.view(np.uint8) if array.flags.c_contiguous else array)
    zero -= int(src_stride @ np.array([0] * array.ndim if low is None else low))
    return Patches(
        src=np.full(len(out), zero),
        src_stride=array.strides,
        first=np.array(first, np.int64),
        size=array.shape if size is None else size,
        shape=out.shape[1:],
        dst=execution.address(out) + np.arange(len(out)) * out.strides[0],
        dst_stride=out.strides[1:],
        src_dtype=array.dtype,
        dst_dtype=out.dtype,
        fill=None if fill is None else np.array(fill, array.dtype).tobytes(),
        offset=offset,
        scale=scale,
    )


def taken(values, first, shape, fill):
    """A patch, by NumPy's padding."""
    for d, (start, n) in enumerate(zip(first, shape, strict=True)):
        size = values.shape[d]
        before, behind = max(0, -start), max(0, start + n - size)
        pad = [(0, 0)] * values.ndim
        pad[d] = before, behind
        if fill is None:
            index = np.pad(np.arange(size), (before, behind), mode="reflect")
            values = values.take(index, axis=d)
        else:
            values = np.pad(values, pad, constant_values=np.array(fill, values.dtype))
        values = values.take(np.arange(start + before, start + before + n), axis=d)
    return values


def converted(values, target, offset, scale):
    if scale is None:
        return numpy_cast(values, target)
    with np.errstate(all="ignore"):
        return numpy_cast((values.astype("f8") - offset) * scale, target)


def cut_patches(batch, order="forward"):
    launches = patch_launches(batch)
    assert len(launches) == 1
    execution.run(launches, order)
    return launches[0].expression


@pytest.mark.matrix("costly")
@each(("source", "target"), PATCH_PAIRS)
def test_every_kind_of_element_is_converted_as_numpy_does(source, target):
    assert can_cut(source, target, is_scaled=False)
    if source in OTHERS:
        noise = np.random.default_rng(0).integers(0, 8, 2048 * source.itemsize, np.uint8)
        values = noise.view(source)
        expected = values
    else:
        values = values_of(source, np.dtype("f4"))
        expected = numpy_cast(values, target)
    out = np.zeros((1, len(values)), target)
    cut_patches([patches_of(values, out, [[0]])])
    if source == target or target.kind in "biu":
        assert out[0].tobytes() == expected.tobytes()
    else:
        assert_equal(out[0].astype(target), expected)


@pytest.mark.matrix("costly")
@each(("source", "target"), SCALED)
def test_numbers_are_normalised_in_float64(source, target):
    values = values_of(source, np.dtype("f4"))
    for low, high in ((0, 255), (-3.7, 1e9), (1e-310, 2e-310)):
        out = np.zeros((1, len(values)), target)
        scale = 1 / (high - low)
        if not np.isfinite(scale):
            continue
        cut_patches([patches_of(values, out, [[0]], offset=low, scale=scale)])
        assert_equal(out[0], converted(values, target, low, scale))


def test_denormal_and_special_floats_are_widened_exactly():
    bits = np.concatenate(
        [np.uint32(1) << np.arange(23, dtype=np.uint32), np.arange(1, 1 << 23, 7919)]
    ).astype(np.uint32)
    values = np.concatenate([bits.view("f4"), [0, -0.0, np.inf, -np.inf, np.nan]]).astype("f4")
    values = np.concatenate([values, -values])
    out = np.zeros((1, len(values)), "f8")
    cut_patches([patches_of(values, out, [[0]])])
    assert_equal(out[0], values.astype("f8"))


@given(data=st.data())
def test_patches_of_several_arrays_are_cut_in_one_launch(data):
    """Regions of larger arrays, patches beyond them, orders of axes, gaps on both sides."""
    draw = data.draw
    batch, expected = [], []
    for number in range(draw(st.integers(1, 3))):
        rank = draw(st.integers(1, 5))
        size = [draw(st.integers(1, 6)) for _ in range(rank)]
        source = draw(st.sampled_from([np.dtype("u2"), np.dtype("f4"), np.dtype("c16")]))
        fill = draw(st.sampled_from([None, 3]))
        is_scaled = draw(st.booleans()) and source.kind != "c"
        target = np.dtype("f2") if is_scaled else source
        offset, scale = (1.5, 0.37) if is_scaled else (None, None)
        whole = np.arange(number, number + np.prod(size)).astype(source).reshape(size)
        shape = [draw(st.integers(1, 9)) for _ in range(rank)]
        first = [[draw(st.integers(-7, 7)) for _ in range(rank)] for _ in range(3)]
        # The region of the elements that are taken, which alone is in memory.
        low, high = [], []
        for d, n in enumerate(size):
            at = np.concatenate([np.arange(o[d], o[d] + shape[d]) for o in first])
            at = at[(at >= 0) & (at < n)]
            whole_dim = fill is None or len(at) == 0
            low.append(0 if whole_dim else int(at.min()))
            high.append(n if whole_dim else int(at.max()) + 1)
        region = whole[tuple(slice(a, b) for a, b in zip(low, high, strict=True))].copy()
        axes = draw(st.permutations(range(rank)))
        room = np.zeros((3, *(shape[d] for d in axes)), target)
        out = room.transpose(0, *(1 + np.argsort(axes)))
        batch.append(
            patches_of(
                region, out, first, offset=offset, scale=scale, fill=fill, low=low, size=size
            )
        )
        values = np.stack([taken(whole, one, shape, fill) for one in first])
        expected.append((out, converted(values, target, offset, scale), room, region))
    cut_patches(batch, draw(st.sampled_from(host_build.ORDERS)))
    for out, values, *_ in expected:
        np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize("items", [1, 1023, 1024, 1025, 4097])
def test_patches_end_exactly_at_their_edges(items):
    values = np.arange(3 * items).astype("u2")
    out = np.zeros((3, items + 2), "f4")
    inner = out[:, 1:-1]
    cut_patches([patches_of(values, inner, [[0], [items], [2 * items]])], "shuffled")
    assert (inner == values.reshape(3, items)).all()
    assert not out[:, [0, -1]].any()


@pytest.mark.parametrize(("rank", "used"), [(1, 4), (4, 4), (5, 8), (9, 32)])
def test_patches_of_every_rank(rank, used):
    values = np.arange(3**rank).astype("u2").reshape([3] * rank)
    out = np.zeros((2, *[2] * rank), "u2")
    expression = cut_patches([patches_of(values, out, [[0] * rank, [1] * rank])])
    assert expression == f"gs::cut_patches<{used}>"
    for i in range(2):
        assert (out[i] == values[(slice(i, i + 2),) * rank]).all()


def test_batches_that_no_kernel_cuts_are_errors():
    values, out = np.zeros(4, "f4"), np.zeros((1, 4), "i4")
    with pytest.raises(ValueError, match="no kernel"):
        patch_launches([patches_of(values, out, [[0]])])
    for pair in (("f4", "i4"), ("c8", "f4"), ("M8[s]", "i8"), ("u1", "c8"), (">i2", "f4")):
        assert not can_cut(*map(np.dtype, pair), is_scaled=False)
    assert not can_cut(np.dtype("u1"), np.dtype("i4"), is_scaled=True)
    huge = np.broadcast_to(np.zeros(1, "u1"), (1, 1 << 16, 1 << 15))
    with pytest.raises(LimitError, match="elements"):
        patch_launches([patches_of(np.zeros((1, 1), "u1"), huge, [[0, 0]])])
    assert patch_launches([]) == []
