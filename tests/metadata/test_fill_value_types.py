"""Fill values of every data type, as JSON and back: no bit is lost, and nothing else is taken."""

import base64
import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.data_types.dtype import of_elements
from gpustore.errors import GpustoreError, MetadataError
from gpustore.metadata.data_type import (
    V3_DATA_TYPES,
    data_type_to_json,
    native_dtype,
    parse_v2_dtype,
    parse_v3_data_type,
    v2_dtype_to_json,
)
from gpustore.metadata.fill_value import (
    parse_v2_fill_value,
    parse_v3_fill_value,
    v2_fill_value_to_json,
    v3_fill_value_to_json,
)
from tests.matrix import each
from tests.metadata.test_fill_value import random_bits

MORE = ("uint2", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3")
PARTS = (
    *("bfloat16", "float16", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4"),
    *("float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    "float8_e8m0fnu",
)
MASKS = {"int2": 3, "int4": 15, "uint2": 3, "uint4": 15, "float4_e2m1fn": 15} | {
    name: 63 for name in ("float6_e2m3fn", "float6_e3m2fn")
}
UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")


@st.composite
def times(draw):
    kind = draw(st.sampled_from(["numpy.datetime64", "numpy.timedelta64"]))
    unit = draw(st.sampled_from([*UNITS, "generic"]))
    factor = 1 if unit == "generic" else draw(st.integers(1, 2**31 - 1))
    return {"name": kind, "configuration": {"unit": unit, "scale_factor": factor}}


def sized(name, step):
    return st.integers(1, 5).map(
        lambda n: {"name": name, "configuration": {"length_bytes": step * n}}
    )


LEAVES = st.one_of(
    st.sampled_from([*V3_DATA_TYPES, *MORE, *(f"complex_{part}" for part in PARTS), "r24"]),
    times(),
    sized("fixed_length_utf32", 4),
    sized("null_terminated_bytes", 1),
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3)


def struct(fields):
    members = [{"name": name, "data_type": kind} for name, kind in fields.items()]
    return {"name": "struct", "configuration": {"fields": members}}


POINTS = (0, 0x27, 0x61, 0xE9, 0x3B1)
"""Characters of one and two bytes in UTF-8; half of all are these."""
RANDOM = st.integers(0, 2**32 - 1).map(np.random.default_rng)

DATA_TYPES = st.recursive(
    LEAVES, lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(struct)
)


def element(random, dtype):
    """An element of a NumPy type."""
    if dtype.names is not None:
        found = np.zeros((), dtype)
        for name in dtype.names:
            found[name] = element(random, dtype[name])
        return found
    if dtype.shape:
        parts = [element(random, dtype.base) for _ in range(int(np.prod(dtype.shape)))]
        return np.stack(parts).reshape(dtype.shape)
    if dtype.kind == "U":
        count = random.integers(0, dtype.itemsize // 4 + 1)
        anything = random.integers(0, 0x110000 - 0x800, count)
        points = np.where(random.integers(0, 2, count), anything, random.choice(POINTS, count))
        text = "".join(chr(point + 0x800 * (point >= 0xD800)) for point in points.tolist())
        return np.array(text, dtype)
    bits = bytearray(random_bits(random, dtype.itemsize))
    if dtype == np.bool_ or dtype.name in MASKS:
        bits[0] &= MASKS.get(dtype.name, 1)
    return np.frombuffer(bytes(bits), dtype).reshape(()).copy()


@pytest.mark.matrix
@given(DATA_TYPES, RANDOM)
def test_v3_keeps_every_bit(value, random):
    data_type = parse_v3_data_type(value)
    assert data_type_to_json(data_type) == value
    fill = element(random, native_dtype(data_type))
    written = json.loads(json.dumps(v3_fill_value_to_json(fill, data_type)))
    again = parse_v3_fill_value(written, data_type)
    assert again.tobytes() == fill.tobytes()
    assert again.dtype == fill.dtype
    assert not again.flags.writeable
    assert v3_fill_value_to_json(again, data_type) == written


V2_LEAVES = st.one_of(
    st.sampled_from(["|b1", "|u1", "|i1", "bfloat16", "int4", "float8_e5m2", "|S3", "|V2"]),
    st.builds(
        str.__add__,
        st.sampled_from("<>"),
        st.sampled_from(
            [*("i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16", "U1", "U5", "M8")]
            + [f"{kind}8[{n}{unit}]" for kind in "Mm" for n in ("", 25) for unit in UNITS]
        ),
    ),
)
V2_TYPES = st.recursive(
    V2_LEAVES,
    lambda inner: st.lists(
        st.tuples(NAMES, inner, st.lists(st.integers(1, 3), max_size=2)),
        min_size=1,
        max_size=3,
        unique_by=lambda field: field[0],
    ).map(lambda fields: [[n, t, s] if s else [n, t] for n, t, s in fields]),
)


@pytest.mark.matrix
@given(V2_TYPES, RANDOM)
def test_v2_keeps_every_bit_but_those_of_nans(value, random):
    stored = parse_v2_dtype(value)
    assert v2_dtype_to_json(stored) == value
    fill = element(random, stored)
    opaque = stored.names is not None or stored.type in (np.void, np.bytes_)
    if opaque:
        fill = np.frombuffer(fill.tobytes(), f"V{stored.itemsize}").reshape(())
    else:
        fill = fill.astype(of_elements(stored).array_dtype)
        if stored.kind in "Mm":  # NumPy swaps no bytes of times without a unit.
            fill = np.array(7, np.int64).view(of_elements(stored).array_dtype)
    with np.errstate(invalid="ignore"):
        written = json.loads(json.dumps(v2_fill_value_to_json(fill, stored)))
        again = parse_v2_fill_value(written, stored)
        assert v2_fill_value_to_json(again, stored) == written
        if stored.kind in "fcV" and not opaque and np.isnan(fill.astype(np.complex128)):
            assert np.isnan(again.astype(np.complex128))
        else:
            assert again.tobytes() == fill.tobytes()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(["NaN", "NaT", "Infinity", "0x7f", "0x7fc00001", "AAAA", "AAAAAAAAAAA=", ""])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)


@given(DATA_TYPES, JSON)
def test_any_json_is_a_value_or_a_typed_error(value, fill):
    data_type = parse_v3_data_type(value)
    try:
        found = parse_v3_fill_value(fill, data_type)
    except GpustoreError:
        return
    assert found.nbytes == native_dtype(data_type).itemsize


@given(V2_LEAVES, JSON)
def test_any_json_of_v2_is_a_value_or_a_typed_error(value, fill):
    stored = parse_v2_dtype(value)
    try:
        found = parse_v2_fill_value(fill, stored)
    except GpustoreError:
        return
    assert (found is None) == (fill is None)
    assert found is None or found.nbytes == stored.itemsize


# --------------------------------------------------------------------------- forms in the wild


DATE = parse_v3_data_type(
    {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}
)
TEXT = parse_v3_data_type({"name": "fixed_length_utf32", "configuration": {"length_bytes": 12}})


@each(
    ("value", "data_type", "bits"),
    [
        ("NaT", DATE, -(2**63)),
        (-(2**63), DATE, -(2**63)),
        (-1, DATE, -1),
        (5.0, DATE, 5),
        ("a", TEXT, "a"),
        ("a\0\0", TEXT, "a"),
        ("", TEXT, ""),
        ([1, 2, 255], parse_v3_data_type("r24"), b"\1\2\xff"),
        ("AQL/", parse_v3_data_type("r24"), b"\1\2\xff"),
        ("YWI=", parse_v3_data_type({"name": "null_terminated_bytes",
                                     "configuration": {"length_bytes": 2}}), b"ab"),
        (["0x7e01", "-Infinity"], parse_v3_data_type("complex_float16"), b"\1\x7e\0\xfc"),
    ],
)  # fmt: skip
def test_v3_forms_that_occur(value, data_type, bits):
    found = parse_v3_fill_value(value, data_type)
    expected = np.array(bits, np.int64) if isinstance(bits, int) else bits
    if isinstance(bits, str):
        expected = np.array(bits, "U3")
    assert found.tobytes() == (expected if isinstance(expected, bytes) else expected.tobytes())


@each(
    ("value", "stored", "bits"),
    [
        ("NaT", ">M8[s]", (-(2**63)).to_bytes(8, "little", signed=True)),
        (7, ">m8[D]", (7).to_bytes(8, "little")),
        ("ab", ">U3", "ab\0".encode("utf-32-le")),
        (0, "<U2", bytes(8)),
        (0, "|S2", bytes(2)),
        (0, "|V2", bytes(2)),
        (0, [["x", "<u2"]], bytes(2)),
        (1, "|b1", b"\1"),
    ],
)
def test_v2_forms_that_occur(value, stored, bits):
    assert parse_v2_fill_value(value, parse_v2_dtype(stored)).tobytes() == bits


@each(
    ("value", "data_type", "message"),
    [
        (2**63, DATE, "Expected 64-bit signed integer"),
        (1.5, DATE, "Expected 64-bit signed integer"),
        ("nat", DATE, "Expected 64-bit signed integer"),
        ("abcd", TEXT, "Expected a string of at most 3 characters"),
        (1, TEXT, "Expected string"),
        (None, TEXT, "Expected string"),
        ("0x40", parse_v3_data_type("float6_e2m3fn"), '"0x00" to "0x3f"'),
        (4, parse_v3_data_type("uint2"), r"\[0, 3\]"),
        (-1, parse_v3_data_type("uint4"), r"\[0, 15\]"),
        ("NaN", parse_v3_data_type("float6_e3m2fn"), "Expected value of data type"),
        ([1], parse_v3_data_type("complex_float16"), "should have length 2|of size 2"),
        (1.0, parse_v3_data_type("complex_float16"), "Expected array"),
        ([1, 2], parse_v3_data_type("r24"), "Expected 3 bytes"),
        ([1, 2, 256], parse_v3_data_type("r24"), r"\[0, 255\]"),
        ({"a": 1}, parse_v3_data_type(struct({"a": "int8", "b": "int8"})), '"b"'),
        ({"p": {"x": 300}}, parse_v3_data_type(struct({"p": struct({"x": "int8"})})), '"p".*"x"'),
    ],
)
def test_wrong_values_are_refused_and_located(value, data_type, message):
    with pytest.raises(MetadataError, match=message):
        parse_v3_fill_value(value, data_type)


def test_base64_of_a_record_is_of_its_little_endian_bytes():
    record = parse_v3_data_type(
        struct({"t": data_type_to_json(DATE), "u": data_type_to_json(TEXT)})
    )
    packed = np.array((5, "é"), record).astype(record.newbyteorder("<"))
    encoded = base64.b64encode(packed.tobytes()).decode()
    assert parse_v3_fill_value(encoded, record).tolist() == np.array((5, "é"), record).tolist()


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"u": data_type_to_json(TEXT)}, "abc"),
        ({"t": data_type_to_json(DATE)}, "NaT"),
        ({"x": "float32"}, "0x7fc00001"),
    ],
    ids=["text", "date", "bits"],
)
def test_the_value_of_an_only_field_is_told_from_base64(fields, value):
    record = parse_v3_data_type(struct(fields))
    direct = parse_v3_fill_value(value, record)
    encoded = base64.b64encode(direct.tobytes()).decode()
    name = next(iter(fields))
    assert parse_v3_fill_value(encoded, record).tobytes() == direct.tobytes()
    assert parse_v3_fill_value({name: value}, record).tobytes() == direct.tobytes()


# --------------------------------------------------------------------------- elision


@pytest.mark.parametrize(
    ("metadata", "equal", "other"),
    [
        ({"data_type": "float32", "fill_value": "0x7fc00001"}, 0x7FC00001, 0x7FC00000),
        ({"data_type": "float32", "fill_value": 0.0}, 0, 1 << 31),
        ({"data_type": "float32", "fill_value": "NaN"}, 0x7FC00000, 0xFFC00000),
        (
            {"data_type": data_type_to_json(DATE), "fill_value": "NaT"},
            1 << 63,
            0,
        ),
        ({"data_type": "complex_bfloat16", "fill_value": [0.0, "0x7fc1"]}, 0x7FC1_0000, 1),
    ],
    ids=["NaN bits", "zero", "NaN", "NaT", "pair"],
)  # fmt: skip
def test_chunks_are_left_out_only_if_all_bits_are_those_of_the_fill_value(
    metadata, equal, other, tmp_path
):
    spec = {
        "driver": "zarr3",
        "kvstore": f"file://{tmp_path}/",
        "metadata": {"shape": [4], **metadata},
    }
    store = gpustore.open(spec, create=True).result()
    itemsize = native_dtype(parse_v3_data_type(metadata["data_type"])).itemsize

    def elements(bits):
        one = bits.to_bytes(itemsize, "little")
        return np.frombuffer(4 * one, store.dtype.array_dtype).reshape(store.shape)

    store[...] = elements(equal)
    assert not (tmp_path / "c/0").exists()
    assert store.read().result().tobytes() == elements(equal).tobytes()
    store[...] = elements(other)
    assert (tmp_path / "c/0").exists()
    assert store.read().result().tobytes() == elements(other).tobytes()
    store[...] = elements(equal)
    assert not (tmp_path / "c/0").exists()


def test_every_type_of_ml_dtypes_that_zarr_registers_is_there():
    floats = {n for n in dir(ml_dtypes) if n.startswith(("float", "bfloat"))}
    assert floats <= {*V3_DATA_TYPES, *MORE}
