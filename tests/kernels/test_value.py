"""kernels/value.cu against the codecs of the host and NumPy, run on the host in three orders."""

import itertools
from types import SimpleNamespace

import ml_dtypes
import numcodecs
import numpy as np
import pytest

from gpustore import registry
from gpustore.codec_chain.value import Elements
from gpustore.data_types.conversion import converter
from gpustore.data_types.dtype import dtype as DataType
from gpustore.device.kernels.value import (
    Conversion,
    Side,
    number_format,
    steps_and_words,
    value_runs,
)
from gpustore.errors import CorruptChunkError
from tests.emulator import host_build
from tests.kernels import execution
from tests.matrix import each

pytestmark = [execution.needs_compiler, pytest.mark.matrix]

INTEGERS = ["|i1", "|u1", "<i2", ">u2", "<i4", ">u4", "<i8", ">u8"]
FLOATS = ["<f2", ">f4", "<f8"]
TYPES = ["|b1", *INTEGERS, *FLOATS]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def stage(name, variant, decoded, **options):
    """The stage of a codec for chunks of such elements."""
    variant = getattr(registry.find("codecs", name), variant)
    decoded, encoded = variant.types(options, np.dtype(decoded))
    return variant.prepare(options, Elements(decoded, (1,)), Elements(encoded, (1,)))


def numbers(dtype):
    """Some of a type: the ends of its range and of others, ties of narrower types, all specials."""
    dtype = np.dtype(dtype)
    random = np.random.default_rng(dtype.itemsize)
    powers = [2.0**k for k in (0, 1, 7, 8, 10, 11, 15, 16, 23, 24, 31, 32, 53, 62, 63, 64, 100)]
    if number_format(dtype)[0] < 3:
        if dtype.kind == "b":
            return np.array([False, True])
        info = ml_dtypes.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        near = {int(p) // q + d for p in powers for q in (1, 2, 3) for d in (-2, -1, 0, 1, 2)}
        near |= {-n for n in near} | {low, low + 1, high, high - 1}
        some = sorted(n for n in near if low <= n <= high)
        more = random.integers(max(low, -(2**63)), min(high, 2**63 - 1), 30, endpoint=True)
        return np.array([*some, *more.tolist()], object).astype(dtype)
    # Halves between neighbours of narrower types, and what lies next to them.
    ties = [
        m * 2.0**e
        for m in (1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 2.0**-24, 1 + 3 * 2.0**-24)
        for e in (0, 14, 15, -14, -16, -24, -25, 127, -126, -130, -149, -150)
    ]
    values = [0.0, 0.5, 1.5, 2.5, 0.3, 0.7, 65504.0, 65519.0, 65520.0, 3.4e38, *ties, *powers]
    values += [n + d for n in powers[:12] for d in (-1.0, -0.5, 0.5)]
    near = np.array(values, np.float64)
    near = np.concatenate([near, np.nextafter(near, 0), np.nextafter(near, np.inf)])
    with np.errstate(all="ignore"):
        near = np.concatenate([near, -near]).astype(dtype)
        info = ml_dtypes.finfo(dtype)
        ends = [info.max, info.smallest_normal, info.smallest_subnormal, np.inf, np.nan]
        ends = np.array([*map(float, ends), *(-float(end) for end in ends)]).astype(dtype)
        scattered = (random.standard_normal(40) * 1000).astype(dtype)
    return np.concatenate([near, ends, scattered]).astype(dtype)


def run(stage, elements, *, order="forward", alone=False, offset=0):
    """What a stage's conversions make of elements, and which runs have failed.

    They are one run, or each is one.
    """
    decoded, encoded = stage.parts
    src, dst = Side.of(encoded), Side.of(decoded)
    data = np.frombuffer(elements.tobytes(), np.uint8)
    count = len(data) // src.stride
    given = execution.aligned(len(data), offset=offset)
    given[:] = data
    found = execution.aligned(count * dst.stride, offset=offset)
    found[:] = 0xEE
    each = np.arange(count) if alone else np.zeros(1, int)
    sizes = np.ones(count, int) if alone else [count]
    runs, blocks_each, blocks = value_runs(
        execution.address(given) + each * src.stride,
        execution.address(found) + each * dst.stride,
        sizes,
    )
    failed = launch(stage, runs, blocks, blocks_each, src, dst, order)
    return found.tobytes(), failed


def launch(stage, runs, blocks, blocks_each, src, dst, order, table=None):
    """Convert all runs; which of them have failed."""
    steps, words = steps_and_words(() if table else stage.conversions(), table)
    result = np.full(len(runs), 0xFFFFFFFF, np.uint32)
    arguments = [np.uint64(execution.address(runs)), np.uint32(len(runs))]
    arguments += [*src.arguments, *dst.arguments]
    arguments += [np.uint64(execution.address(steps)), np.uint32(len(steps))]
    arguments += [np.uint64(execution.address(words)), np.uint64(execution.address(result))]
    host_build.load("value").launch("gs::convert_values", blocks, arguments, order=order)
    return result + np.uint32(1) != blocks_each


@each("target", ["i4", "i8", "u8"])
@each("source", ["f2", BFLOAT16, "f4", "f8"])
def test_floats_become_integers_as_on_x86(source, target):
    source, target = np.dtype(source), np.dtype(target)
    values = numbers(source)
    conversion = Conversion(source, target, "towards-zero", "least")
    stage = SimpleNamespace(parts=(target, source), conversions=lambda: [conversion])
    found, _ = run(stage, values)
    expected = converter(DataType(source.name), DataType(target.name))(values)
    assert np.array_equal(np.frombuffer(found, target), expected)


def decoded_by_host(stage, elements):
    """Decoded bytes and which elements are legal; those of illegal ones are missing."""
    encoded = elements.tobytes()
    try:
        nbytes = len(encoded) // stage.encoded.itemsize * stage.decoded.itemsize
        with np.errstate(all="ignore"):
            decoded = bytes(stage.decode(encoded, nbytes, exact=True))
        return decoded, np.ones(len(elements), bool)
    except CorruptChunkError:
        if len(elements) == 1:
            return b"", np.zeros(1, bool)
    half = len(elements) // 2
    parts = [decoded_by_host(stage, part) for part in (elements[:half], elements[half:])]
    return parts[0][0] + parts[1][0], np.concatenate([parts[0][1], parts[1][1]])


def check(stage, elements, left=None):
    """The kernel gives what the host gives, and fails where that does, or where it is `left` to it.

    Errors are tried one by one, as one makes a whole run fail.
    """
    refused = np.zeros(len(elements), bool) if left is None else left
    expected, legal = decoded_by_host(stage, elements[~refused])
    refused = refused.copy()
    refused[~refused] = ~legal
    order = host_build.ORDERS[len(expected) % 3]
    found, failed = run(stage, elements[~refused], order=order)
    assert not failed.any(), stage
    if found != expected:
        itemsize = stage.decoded.itemsize
        each = [range(0, len(expected), itemsize), elements[~refused].tolist()]
        wrong = [x for i, x in zip(*each) if found[i : i + itemsize] != expected[i : i + itemsize]]
        pytest.fail(f"{stage}: {wrong[:9]}")
    if refused.any():
        some = elements[refused][:: 1 + refused.sum() // 12]
        _, failed = run(stage, some, alone=True)
        assert failed.all(), (stage, some[~failed])


def undefined(elements, target):
    """Which floats C does not convert to integers, or only rounded towards zero."""
    info = np.iinfo(target)
    with np.errstate(all="ignore"):
        whole = np.trunc(elements.astype(np.float64))
    return ~((whole >= float(info.min)) & (whole < float(int(info.max) + 1)))


@each("source", [*TYPES[1:], "<c8", ">c16"])
def test_numbers_are_converted_as_numpy_does(source):
    if source[1] != "c":
        elements = numbers(source)
    else:
        parts = numbers(np.dtype(f"f{int(source[2:]) // 2}"))
        elements = np.zeros(len(parts), source)
        elements.real, elements.imag = parts, parts[::-1]
    for target in [*TYPES, "<c8", ">c16"]:
        if source[1] == "c" and target == "|b1":
            continue
        one = stage("astype", "filter", target, encode_dtype=source, decode_dtype=target)
        left = None
        if target[1] in "iu" and source[1] in "fc":
            left = undefined(elements.real, target)
        check(one, elements, left)


@pytest.mark.parametrize("source", [*INTEGERS[2:], *FLOATS])
def test_numbers_are_scaled_as_numcodecs_does(source):
    elements = numbers(source)
    for target, (scale, offset) in itertools.product(
        ["|u1", "<i2", *INTEGERS[4:], *FLOATS], [(10, 1000), (0.1, -3.5), (3, 7), (-7, 0.25)]
    ):
        options = {"dtype": target, "astype": source, "scale": scale, "offset": offset}
        if target == "|u1" and not 0 <= offset < 256:
            continue
        one = stage("fixedscaleoffset", "filter", target, **options)
        left = None
        if target[1] in "iu":
            with np.errstate(all="ignore"):
                dtype = np.true_divide(elements[:0], 1.0).dtype
                left = undefined(
                    (elements / dtype.type(scale)).astype(dtype) + dtype.type(offset), target
                )
        check(one, elements, left)


CAST = ["uint16", "int16", "uint32", "int32", "uint64", "int64"]
CAST += ["bfloat16", "float16", "float32", "float64"]
MODES = ["nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"]


@pytest.mark.parametrize("source", CAST)
def test_numbers_are_cast_in_every_mode(source):
    elements = numbers(DataType(source).array_dtype)
    ranges = itertools.cycle(["error", "clamp", "wrap", "clamp"])
    parts = itertools.cycle([elements[first::4] for first in range(4)])
    for target in [*CAST, "int8", "uint4", "int4"]:
        if target == source:
            continue
        for mode in MODES:
            options = {"data_type": source, "rounding": mode, "out_of_range": next(ranges)}
            if options["out_of_range"] == "wrap" and source.startswith(("float", "bfloat")):
                options["out_of_range"] = "error"
            decoded = DataType(target).array_dtype
            check(stage("cast_value", "v3", decoded, **options), next(parts))


@pytest.mark.parametrize("source", ["int16", "uint64", "float16", "float32", "float64"])
def test_integers_wrap_around_and_maps_come_first(source):
    elements = numbers(DataType(source).array_dtype)
    keys = [0, 255, 7] if "int" in source else ["NaN", 0, "Infinity", -2.5, 0.5, 0]
    for target in ("float32", "int32", "int64"):
        values = [3, -1, 0, "NaN", 12, 13] if target == "float32" else [3, -1, 0, 5, 12, 13]
        pairs = [list(pair) for pair in zip(keys, values)]
        for beyond, some in (("clamp", pairs), ("error", pairs), ("clamp", pairs[1:])):
            options = {"data_type": source, "out_of_range": beyond}
            options["scalar_map"] = {"decode": some}
            one = stage("cast_value", "v3", DataType(target).array_dtype, **options)
            assert len(one.conversions()[0].pairs) == len(some)
            check(one, elements)


@pytest.mark.parametrize("dtype", [*CAST[:6], "int8", "uint8"])
def test_integers_are_scaled_or_left_to_the_host(dtype):
    decoded = DataType(dtype).array_dtype
    info = np.iinfo(decoded)
    elements = numbers(decoded)
    for scale, offset in [
        (1, 5),
        (3, 1),
        (2, int(info.max) // 2 + 3),
        (1, int(info.max)),
        (-1, 0),
        (-1, -1),
        (-7, 100),
        (1, int(info.min)),
        (int(info.max), 2),
    ]:
        if info.min == 0 and min(scale, offset) < 0:
            continue
        check(stage("scale_offset", "v3", decoded, scale=scale, offset=offset), elements)


@pytest.mark.parametrize("dtype", CAST[6:])
def test_floats_are_scaled_in_their_type(dtype):
    elements = numbers(DataType(dtype).array_dtype)
    for scale, offset in [(10, 3), (0.1, -5), (3, 0), (1e-4, 1e4), (-7, -0.0), (300, -65000)]:
        check(
            stage("scale_offset", "v3", DataType(dtype).array_dtype, scale=scale, offset=offset),
            elements,
        )


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f8"])
def test_nans_with_bits_are_kept_if_they_are_quiet(dtype):
    unsigned = dtype.replace("f", "u")
    bits = 8 * np.dtype(dtype).itemsize
    mantissa = {16: 10, 32: 23, 64: 52}[bits]
    infinity = (1 << (bits - 1)) - (1 << mantissa)
    quiet = [
        infinity | 1 << (mantissa - 1) | payload
        for payload in (0, 1, 0x155 & (1 << mantissa - 1) - 1)
    ]
    words = np.array([w | s for w in quiet for s in (0, 1 << (bits - 1))], "u8").astype(unsigned)
    elements = np.concatenate([words.view(dtype), np.array([1], dtype)]).astype(dtype)
    for target in FLOATS:
        check(stage("astype", "filter", target, encode_dtype=dtype, decode_dtype=target), elements)
    options = {"dtype": dtype, "astype": dtype, "scale": 3, "offset": 5}
    check(stage("fixedscaleoffset", "filter", dtype, **options), elements)
    noisy = np.array([infinity | 1, infinity | 1 << (mantissa - 2)], "u8").astype(unsigned)
    _, failed = run(
        stage("fixedscaleoffset", "filter", dtype, **options), noisy.view(dtype), alone=True
    )
    assert failed.all()


@each("order", host_build.ORDERS)
@each("offset", [0, 1, 4])
def test_runs_of_many_tiles_write_their_bytes_alone(order, offset):
    sizes = [0, 1, 255, 1023, 1024, 1025, 5000]
    for source, target in (("<i2", ">f8"), (">f4", "|i1"), ("<u8", "<c8"), (">c8", "<f2")):
        one = stage("astype", "filter", target, encode_dtype=source, decode_dtype=target)
        decoded, encoded = one.parts
        src, dst = Side.of(encoded), Side.of(decoded)
        elements = [(np.arange(size) % 120).astype(encoded) for size in sizes]
        given = execution.aligned(sum(map(len, elements)) * src.stride, offset=offset)
        given[:] = np.frombuffer(b"".join(e.tobytes() for e in elements), np.uint8)
        pitch = np.array(sizes) * dst.stride + 24
        found = np.full(int(pitch.sum()) + offset, 0xEE, np.uint8)
        starts = np.cumsum(pitch) - pitch + offset
        begins = (np.cumsum(sizes) - sizes) * src.stride
        runs, each, blocks = value_runs(
            execution.address(given) + begins, execution.address(found) + starts, sizes
        )
        launch(one, runs, blocks, each, src, dst, order)
        expected = np.full(len(found), 0xEE, np.uint8)
        for start, part in zip(starts.tolist(), elements):
            there = part.real.astype(target).tobytes()
            expected[start : start + len(there)] = np.frombuffer(there, np.uint8)
        assert np.array_equal(found, expected), (source, target)


@pytest.mark.parametrize("order", host_build.ORDERS)
def test_bytes_are_looked_up_and_illegal_ones_fail(order):
    table = np.arange(256, dtype="<i8") ** 3 - 7
    legal = np.ones(256, bool)
    legal[[0, 63, 64, 200, 255]] = False
    data = np.random.default_rng(0).permutation(256).astype("u1")
    found = np.zeros(256, ">i8")
    src, dst = Side.of(data.dtype), Side.of(found.dtype)
    runs, each, blocks = value_runs(
        execution.address(data) + np.arange(256),
        execution.address(found) + 8 * np.arange(256),
        np.ones(256, int),
    )
    failed = launch(None, runs, blocks, each, src, dst, order, (table, legal))
    assert np.array_equal(failed, ~legal[data])
    assert np.array_equal(found, table[data])


def test_a_run_fails_for_one_element_of_any_thread():
    one = stage("cast_value", "v3", "i2", data_type="int32")
    for place in (0, 1, 31, 32, 255, 256, 1023, 1024, 2047, 2500):
        elements = np.zeros(2501, "i4")
        assert not run(one, elements)[1].any()
        elements[place] = 40_000
        assert run(one, elements, order="shuffled")[1].all(), place


# --------------------------------------------------------------------------- sums


def summed(arrays, order, *, offset=0):
    """Running sums of arrays of one type, and which have failed."""
    dtype = arrays[0].dtype
    components = 2 if dtype.kind == "c" else 1
    side = (
        np.dtype(f"f{dtype.itemsize // 2}").newbyteorder(dtype.byteorder)
        if components > 1
        else dtype
    )
    data = execution.aligned(sum(a.nbytes for a in arrays), offset=offset)
    data[:] = np.frombuffer(b"".join(a.tobytes() for a in arrays), np.uint8)
    found = execution.aligned(len(data), offset=offset)
    sizes = np.array([len(a) for a in arrays])
    begins = (np.cumsum(sizes) - sizes) * dtype.itemsize
    runs, each, blocks = value_runs(
        execution.address(data) + begins,
        execution.address(found) + begins,
        sizes * components,
        blocks_each=components,
    )
    result = np.full(len(runs), 0xFFFFFFFF, np.uint32)
    arguments = [np.uint64(execution.address(runs)), np.uint32(len(runs))]
    arguments += [np.uint32(n) for n in (side.itemsize, not dtype.isnative, components)]
    arguments += [*map(np.uint32, number_format(side)), np.uint64(execution.address(result))]
    host_build.load("value").launch("gs::sum_values", blocks, arguments, order=order)
    parts = np.split(found, (begins + sizes * dtype.itemsize)[:-1])
    return [part.tobytes() for part in parts], result + np.uint32(1) != each


SIZES = [1, 2, 3, 4, 5, 31, 33, 127, 129, 255, 256, 257, 1023, 1024, 1025, 4100]


@each("order", host_build.ORDERS)
@each("offset", [0, 3])
@each("dtype", [*INTEGERS, *FLOATS, "<c8", ">c16"])
def test_sums_are_those_of_numpy(dtype, order, offset):
    random = np.random.default_rng(0)
    arrays = []
    for size in SIZES[:: 1 if order == "forward" else 3]:
        if dtype[1] in "iu":
            array = random.integers(0, 256, size * np.dtype(dtype).itemsize, np.uint8).view(dtype)
        else:
            array = (random.standard_normal(size) * 10.0 ** random.integers(-8, 4, size)).astype(
                dtype
            )
            if dtype[1] == "c":
                array.imag = random.standard_normal(size) * 3
        arrays.append(array)
    found, failed = summed(arrays, order, offset=offset)
    assert not failed.any()
    for size, array, part in zip(SIZES, arrays, found):
        assert part == np.cumsum(array, dtype=dtype).astype(dtype).tobytes(), size


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_extremes(dtype):
    """Each pair by itself: ties, denormal numbers, overflow; what is no number stays or fails."""
    elements = numbers(dtype)
    elements = elements[:: 1 + len(elements) // 24]
    pairs = [np.array(pair, dtype) for pair in itertools.product(elements, repeat=2)]
    found, failed = summed(pairs, "shuffled")
    both = np.array([np.isnan(pair).all() for pair in pairs])
    opposite = np.array([np.isinf(p).all() and p[0] != p[1] for p in pairs])
    assert np.array_equal(failed, both | opposite)
    with np.errstate(all="ignore"):
        for pair, part, fails in zip(pairs, found, failed):
            assert fails or part == np.cumsum(pair).astype(dtype).tobytes(), pair


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_beyond_the_largest_number_stay_infinite(dtype):
    largest = float(np.finfo(dtype).max)
    for start in (largest, -largest):
        array = np.array([start, start, -start, -start], dtype)
        (found,), failed = summed([array], "forward")
        assert not failed.any()
        sums = np.frombuffer(found, dtype)
        assert np.isinf(sums).tolist() == [False, True, True, True]
        with np.errstate(all="ignore"):
            assert found == np.cumsum(array, dtype=dtype).astype(dtype).tobytes()


# --------------------------------------------------------------------------- packed bits


def unpacked(stage, values, order, *, offset=0):
    """What values unpack to, and which have failed."""
    given = execution.aligned(sum(map(len, values)), offset=offset)
    given[:] = np.frombuffer(b"".join(values), np.uint8)
    sizes = np.array([len(value) for value in values])
    nbytes = stage.count * stage.itemsize
    found = np.full(len(values) * (nbytes + 16), 0xEE, np.uint8)
    starts = np.arange(len(values)) * (nbytes + 16)
    runs, each, blocks = value_runs(
        execution.address(given) + np.cumsum(sizes) - sizes,
        execution.address(found) + starts,
        np.full(len(values), stage.count),
    )
    result = np.full(len(runs), 0xFFFFFFFF, np.uint32)
    padding = ["none", "first_byte", "last_byte"].index(stage.padding)
    arguments = [np.uint64(execution.address(runs)), np.uint32(len(runs))]
    arguments += [
        np.uint32(n)
        for n in (
            stage.itemsize,
            stage.nbits,
            stage.first,
            stage.sign,
            stage.order == "big",
            padding,
        )
    ]
    arguments.append(np.uint64(execution.address(result)))
    host_build.load("value").launch("gs::unpack_bits", blocks, arguments, order=order)
    rows = found.reshape(len(values), -1)
    assert (rows[:, nbytes:] == 0xEE).all()
    return [row[:nbytes].tobytes() for row in rows], result + np.uint32(1) != each


PACKED = [
    (dtype, first, last, padding)
    for dtype, padding in zip(
        [
            "bool",
            "int4",
            "uint2",
            "int8",
            "uint8",
            "int16",
            "uint16",
            "int32",
            "uint32",
            "int64",
            "uint64",
            "float32",
            "complex64",
            "float64",
        ],
        itertools.cycle(["none", "first_byte", "last_byte"]),
    )
    for first, last in [(None, None), (1, None), (None, 0), (0, 2), (3, 9), (5, 36), (1, 62)]
]


@pytest.mark.parametrize("order", host_build.ORDERS)
def test_bits_are_unpacked_as_by_the_host(order):
    random = np.random.default_rng(0)
    variant = registry.find("codecs", "packbits").v3
    tried = 0
    for dtype, first, last, padding in PACKED:
        for count in (1, 7, 1500):
            options = {"padding_encoding": padding, "first_bit": first, "last_bit": last}
            elements = Elements(DataType(dtype).array_dtype, (count,))
            try:
                one = variant.prepare(options, elements, elements)
            except ValueError:
                continue  # There are no such bits.
            tried += 1
            nbytes = count * elements.dtype.itemsize
            values = []
            for _ in range(2):
                value = bytearray(random.bytes(one.encoded_bound(nbytes)))
                if padding != "none":
                    value[0 if padding == "first_byte" else -1] = one._unused
                values.append(bytes(value))
            found, failed = unpacked(one, values, order, offset=tried % 3)
            assert not failed.any()
            for value, part in zip(values, found):
                assert part == bytes(one.decode(value, nbytes, exact=True)), (one, count)
            if padding != "none":
                values[1] = bytes([9, *value[1:-1], 9])
                assert unpacked(one, values, order)[1].tolist() == [False, True]
    assert tried > 100


@pytest.mark.parametrize("count", [1, 8, 9, 1024, 3001])
def test_bools_are_unpacked_as_by_numcodecs(count):
    one = registry.find("codecs", "packbits").filter.prepare(
        {}, Elements(np.dtype(bool), (count,)), Elements(np.dtype("u1"), (1 + -(-count // 8),))
    )
    values = np.random.default_rng(count).random((3, count)) < 0.3
    encoded = [bytes(numcodecs.PackBits().encode(value)) for value in values]
    found, failed = unpacked(one, encoded, host_build.ORDERS[count % 3])
    assert not failed.any()
    assert found == [value.tobytes() for value in values]
