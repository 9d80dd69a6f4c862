"""The codec ``cast_value``, against a reference in fractions written from its specification."""

import math
from fractions import Fraction

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

import gpustore
from gpustore.codec_chain.resolve import resolve_v3
from gpustore.data_types.dtype import dtype as DataType
from gpustore.errors import CorruptChunkError, LimitError, MetadataError
from gpustore.metadata.named_configuration import NamedConfiguration

INTEGERS = [
    "int2",
    "int4",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
]
FLOATS = [
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float4_e2m1fn",
]
MODES = ["nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"]
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def cast(data_type, **options):
    return {"name": "cast_value", "configuration": {"data_type": data_type, **options}}


def chain(source, codec, count):
    named = NamedConfiguration.list_from_json([codec, LITTLE])
    return resolve_v3(named, DataType(source), (count,))


# --------------------------------------------------------------------------- the reference


def rounded(value, mode):
    """A fraction as an integer."""
    below, rest = divmod(value, 1)
    half = Fraction(1, 2)
    up = {
        "nearest-even": rest > half or (rest == half and below % 2 == 1),
        "nearest-away": rest > half or (rest == half and value > 0),
        "towards-zero": rest > 0 and value < 0,
        "towards-positive": rest > 0,
        "towards-negative": False,
    }[mode]
    return int(below) + up


def expected(value, target, mode, out_of_range):
    """Return the expected value as a fraction or a special float; None for an error."""
    is_integer = target in INTEGERS
    dtype = DataType(target).array_dtype
    if isinstance(value, float) and not math.isfinite(value):
        if is_integer:
            info = ml_dtypes.iinfo(dtype)
            if math.isnan(value) or out_of_range != "clamp":
                return None
            return int(info.max) if value > 0 else int(info.min)
        if math.isnan(value):
            return None if target == "float4_e2m1fn" else value
        if target not in ("float8_e4m3fn", "float4_e2m1fn"):
            return value
        largest = float(ml_dtypes.finfo(dtype).max)
        return math.copysign(largest, value) if out_of_range == "clamp" else None
    exact = Fraction(value)
    if is_integer:
        low, high = (int(x) for x in (ml_dtypes.iinfo(dtype).min, ml_dtypes.iinfo(dtype).max))
        found = rounded(exact, mode)
        if low <= found <= high:
            return found
        if out_of_range == "clamp":
            return min(max(found, low), high)
        return (found - low) % (high - low + 1) + low if out_of_range == "wrap" else None
    info = ml_dtypes.finfo(dtype)
    largest = Fraction(float(info.max))
    exponent = int(info.minexp)
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    quantum = Fraction(2) ** (exponent - int(info.nmant))
    found = rounded(exact / quantum, mode) * quantum
    if abs(found) <= largest:
        return found
    if out_of_range == "clamp":
        return largest if found > 0 else -largest
    return None


def python_number(element):
    if element.dtype.kind in "iu" or "int" in element.dtype.name:
        return int(element)
    return float(element)


def same(found, wanted):
    found = python_number(found)
    if isinstance(wanted, float) and not math.isfinite(wanted):
        return found == wanted or (math.isnan(found) and math.isnan(wanted))
    return math.isfinite(found) and Fraction(found) == wanted


@st.composite
def cases(draw):
    source, target = (
        draw(st.sampled_from(INTEGERS + FLOATS)),
        draw(st.sampled_from(INTEGERS + FLOATS)),
    )
    dtype = DataType(source).array_dtype
    kind, seed = (
        draw(st.sampled_from(["bits", "near", "ties", "ends"])),
        draw(st.integers(0, 10**6)),
    )
    random = np.random.default_rng(seed)
    count = 12
    if kind == "bits":
        size = dtype.itemsize
        data = np.frombuffer(random.bytes(count * size), np.uint8)
        if source in ("int2", "int4", "float4_e2m1fn"):
            data = data & (3 if source == "int2" else 15)
        elements = data.view(dtype)
    elif kind == "ends":
        edges = [2.0 ** random.integers(0, 66) + random.integers(-1, 2) for _ in range(count)]
        with np.errstate(all="ignore"):
            if source in INTEGERS:
                info = ml_dtypes.iinfo(dtype)
                ints = [max(int(info.min), min(int(info.max), int(x))) for x in edges]
                elements = np.array(ints).astype(dtype)
            else:
                elements = np.array(edges).astype(dtype)
    else:
        step = 0.5 if kind == "ties" else 0.37
        low = 0 if source.startswith("uint") else -20
        values = random.integers(low, 40, count) * step
        values = values / random.choice([1, 64, 2.0**12]) if source in FLOATS else np.trunc(values)
        if source in ("int2", "int4"):
            values = values % (2 if source == "int2" else 8)
        elements = values.astype(dtype)
    choices = ["error", "clamp"] + (["wrap"] if target in INTEGERS else [])
    return source, target, elements, draw(st.sampled_from(MODES)), draw(st.sampled_from(choices))


@pytest.mark.matrix
@given(cases())
def test_values_are_those_of_the_reference(case):
    source, target, elements, mode, out_of_range = case
    codec = cast(target, rounding=mode, out_of_range=out_of_range)
    wanted = [expected(python_number(x), target, mode, out_of_range) for x in elements]
    made = chain(source, codec, len(elements))
    if None in wanted:
        with pytest.raises(LimitError) as caught:
            made.encode(memoryview(bytearray(elements.tobytes())))
        assert caught.value.codec == "cast_value"
        for one, value in zip(elements, wanted):
            if value is None:
                with pytest.raises(LimitError):
                    chain(source, codec, 1).encode(one.tobytes())
        return
    encoded = bytes(made.encode(memoryview(bytearray(elements.tobytes()))))
    found = np.frombuffer(encoded, DataType(target).array_dtype)
    assert all(map(same, found, wanted)), (elements, found, wanted)
    # Decoding is the same cast in the other direction.
    back = [
        expected(
            python_number(x),
            source,
            mode,
            "error" if out_of_range == "wrap" and source in FLOATS else out_of_range,
        )
        for x in found
    ]
    if None in back:
        with pytest.raises(CorruptChunkError):
            made.decode(encoded)
    else:
        decoded = np.frombuffer(made.decode(encoded), DataType(source).array_dtype)
        assert all(map(same, decoded, back))


def test_the_map_comes_first():
    pairs = {"encode": [["NaN", 0], [1.5, 7], [1.5, 8], ["Infinity", 255]], "decode": [[0, "NaN"]]}
    made = chain("float32", cast("uint8", scalar_map=pairs), 5)
    elements = np.array([1.5, np.nan, 3, np.inf, 0], "f4")
    encoded = bytes(made.encode(elements.tobytes()))
    assert list(encoded) == [7, 0, 3, 255, 0]
    decoded = np.frombuffer(made.decode(encoded), "f4")
    assert decoded.tolist()[:1] + decoded.tolist()[2:4] == [7, 3, 255]
    assert np.isnan(decoded[[1, 4]]).all()


def test_an_array_is_written_and_read():
    metadata = {
        "shape": [30, 20],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 6]}},
        "data_type": "float64",
        "fill_value": 3,
        "codecs": [
            {"name": "transpose", "configuration": {"order": [1, 0]}},
            cast("int16", rounding="towards-zero", out_of_range="clamp"),
            {"name": "bytes", "configuration": {"endian": "big"}},
        ],
    }
    spec = {"driver": "zarr3", "kvstore": "memory://a/", "metadata": metadata}
    store = gpustore.open(spec, create=True).result()
    written = np.random.default_rng(1).normal(0, 30000, (30, 20))
    store[...] = written
    expected = np.clip(np.trunc(written), -32768, 32767)
    assert np.array_equal(store.read().result(), expected)
    assert np.array_equal(store[3:21:4, ::-1].read().result(), expected[3:21:4, ::-1])
    stored = np.frombuffer(bytes(store.kvstore["c/0/0"]), ">i2").reshape(6, 8)
    assert np.array_equal(stored, expected[:8, :6].T)
    store[8:16, 6:12] = 3
    assert "c/1/1" not in [key.decode() for key in store.kvstore.list().result()]
    store[0, 0] = 1e9
    assert store[0, 0].read().result() == 32767


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "before shards"])
def test_shards_of_cast_values(outside):
    value = cast("uint8", out_of_range="clamp")
    inner = [LITTLE] if outside else [value, LITTLE]
    shards = {"name": "sharding_indexed", "configuration": {"chunk_shape": [4, 3], "codecs": inner}}
    metadata = {
        "shape": [30, 20],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 6]}},
        "data_type": "float32",
        "fill_value": 9,
        "codecs": [value, shards] if outside else [shards],
    }
    spec = {"driver": "zarr3", "kvstore": "memory://a/", "metadata": metadata}
    store = gpustore.open(spec, create=True).result()
    store[2, 3:5] = [7.4, 300]
    assert store[2, 2:6].read().result().tolist() == [9, 7, 255, 9]
    # Two inner chunks of twelve bytes each are never written, only one is; the index follows.
    assert len(bytes(store.kvstore["c/0/0"])) == 12 + 16 * 4 + 4


def test_values_that_do_not_fit_are_refused():
    for source, codec, match in (
        ("uint8", cast("float32", out_of_range="wrap"), "is for integers, not float32"),
        ("uint8", cast("bool"), "data type of real numbers"),
        ("uint8", cast("complex64"), "data type of real numbers"),
        ("uint8", cast("float8_e8m0fnu"), "data type of real numbers"),
        ("bool", cast("uint8"), "no real numbers"),
        ("uint8", cast("uint9"), "uint9"),
        ("uint8", cast("uint16", rounding="up"), '"rounding"'),
        ("uint8", cast("uint16", more=1), '"more"'),
        ("uint8", cast("uint16", scalar_map={"encode": [[1]]}), "length 1"),
        ("uint8", cast("uint16", scalar_map={"encode": [[256, 1]]}), "256"),
        ("uint8", cast("uint16", scalar_map={"other": []}), '"other"'),
        ("uint8", {"name": "cast_value"}, "member is missing"),
    ):
        with pytest.raises(MetadataError, match=match):
            chain(source, codec, 4)


@pytest.mark.parametrize("fill", [1.5, 300, "NaN"])
def test_a_fill_value_that_does_not_come_back_is_refused(fill):
    metadata = {
        "shape": [4],
        "data_type": "float32",
        "fill_value": fill,
        "codecs": [cast("uint8"), LITTLE],
    }
    spec = {"driver": "zarr3", "kvstore": "memory://a/", "metadata": metadata}
    with pytest.raises(MetadataError, match="fill_value"):
        gpustore.open(spec, create=True).result()


def test_errors_of_values_that_do_not_fit_name_value_and_key():
    metadata = {"shape": [4], "data_type": "float32", "codecs": [cast("uint8"), LITTLE]}
    spec = {"driver": "zarr3", "kvstore": "memory://a/", "metadata": metadata}
    store = gpustore.open(spec, create=True).result()
    match = r"256.0 is out of range of type uint8: \[0, 255\]"
    with pytest.raises(LimitError, match=match) as caught:
        store[...] = [1, 2, 256, 3]
    assert caught.value.key == "a/c/0"
    with pytest.raises(LimitError, match="NaN is no value of type uint8"):
        store[1] = np.nan


@pytest.mark.parametrize("mode", MODES)
def test_numbers_rounded_to_zero_keep_their_sign(mode):
    given = np.array([-0.0, -1e-300 if mode != "towards-negative" else -0.0], "f8")
    encoded = bytes(chain("float64", cast("float32", rounding=mode), 2).encode(given.tobytes()))
    assert np.signbit(np.frombuffer(encoded, "f4")).all()
    assert not np.frombuffer(encoded, "f4").any()
