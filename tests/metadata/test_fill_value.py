"""Fill values: JSON to bits and back."""

import base64
import json

import numpy as np
import pytest
import tensorstore

import gpustore
from gpustore.data_types.dtype import DTYPES
from gpustore.errors import MetadataError
from gpustore.metadata.data_type import V3_DATA_TYPES, parse_v2_dtype
from gpustore.metadata.fill_value import (
    fill_value_array,
    parse_v2_fill_value,
    parse_v3_fill_value,
    v2_fill_value_to_json,
    v3_fill_value_to_json,
)
from tests.matrix import each, share

V2_DTYPES = (
    *("|b1", "|i1", "|u1", "<i2", ">i2", "<u2", ">u4", "<i8", ">u8", "<f2", ">f2", "<f4", ">f4"),
    *("<f8", ">f8", "<c8", ">c8", "<c16", ">c16", "bfloat16", "int2", "int4", "float8_e3m4"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
)

# The bits that an element of these types can have, where not all bytes are elements.
LEGAL_BYTES = {
    "bool": [0, 1],
    "int2": [0, 1, 2, 3],
    "int4": list(range(16)),
    "float4_e2m1fn": list(range(16)),
}


def element(bits, data_type):
    """Read-only array of rank 0 with these bits."""
    return fill_value_array(np.frombuffer(bits, dtype=data_type.array_dtype).reshape(()), data_type)


def all_elements(data_type):
    """Every element of a type of one byte."""
    for byte in LEGAL_BYTES.get(data_type.name, range(256)):
        yield element(bytes([byte]), data_type)


def random_bits(random, nbytes):
    """Bits of which every other byte is one that zeros, infinities and NaNs have."""
    special = random.choice(np.frombuffer(b"\0\1\x7f\x80\xf0\xf8\xff", np.uint8), nbytes)
    anything = random.integers(0, 256, nbytes, np.uint8)
    return np.where(random.integers(0, 2, nbytes), special, anything).tobytes()


def elements(data_type, count):
    """So many elements of a type of several bytes."""
    n, random = data_type.itemsize, np.random.default_rng(0)
    alike = [bytes([byte]) * n for byte in (0xFF, 0, 0x7F)]
    for bits in alike + [random_bits(random, n) for _ in range(count - len(alike))]:
        yield element(bits, data_type)


def through_json(value):
    return json.loads(json.dumps(value, allow_nan=False))


def check_v3(value, data_type):
    parsed = parse_v3_fill_value(through_json(v3_fill_value_to_json(value, data_type)), data_type)
    assert parsed.dtype == data_type.array_dtype
    assert parsed.tobytes() == value.tobytes()


@each("name", [n for n in V3_DATA_TYPES if DTYPES[n].itemsize == 1])
def test_v3_fill_value_of_one_byte_keeps_every_bit(name):
    for value in all_elements(DTYPES[name]):
        check_v3(value, DTYPES[name])


@pytest.mark.matrix
@each("name", [n for n in V3_DATA_TYPES if DTYPES[n].itemsize > 1])
def test_v3_fill_value_keeps_every_bit(name):
    for value in elements(DTYPES[name], share(200)):
        check_v3(value, DTYPES[name])


def check_v2(value, stored):
    data_type = DTYPES[stored.name]
    written = through_json(v2_fill_value_to_json(value, stored))
    parsed = parse_v2_fill_value(written, stored)
    assert parsed.dtype == data_type.array_dtype
    if "NaN" not in (written if isinstance(written, list) else [written]):
        assert parsed.tobytes() == value.tobytes()
    assert through_json(v2_fill_value_to_json(parsed, stored)) == written


@each("typestr", [t for t in V2_DTYPES if parse_v2_dtype(t).itemsize == 1])
def test_v2_fill_value_of_one_byte_keeps_every_bit_but_those_of_nan(typestr):
    stored = parse_v2_dtype(typestr)
    for value in all_elements(DTYPES[stored.name]):
        check_v2(value, stored)


@pytest.mark.matrix
@each("typestr", [t for t in V2_DTYPES if parse_v2_dtype(t).itemsize > 1])
def test_v2_fill_value_keeps_every_bit_but_those_of_nan(typestr):
    stored = parse_v2_dtype(typestr)
    for value in elements(DTYPES[stored.name], share(200)):
        check_v2(value, stored)


@each("name", [n for n in V3_DATA_TYPES if "float" in n])
def test_nan_and_infinities_are_those_of_numpy_or_refused(name):
    data_type = DTYPES[name]
    for text, number in (("NaN", np.nan), ("Infinity", np.inf), ("-Infinity", -np.inf)):
        expected = np.float64(number).astype(data_type.array_dtype)
        if str(expected.astype(np.float64)) == str(np.float64(number)):
            parsed = parse_v3_fill_value(text, data_type)
            assert parsed.tobytes() == expected.tobytes()
            assert v3_fill_value_to_json(parsed, data_type) == text
        else:
            with pytest.raises(MetadataError, match=name):
                parse_v3_fill_value(text, data_type)


def test_fill_value_is_read_only_copy():
    source = np.array(3, dtype=np.uint16)
    value = fill_value_array(source, DTYPES["uint16"])
    source[...] = 4
    assert value == 3
    with pytest.raises(ValueError, match="read-only"):
        value[...] = 5


def test_signalling_nan_is_kept():
    bits = np.array(0x7F800001, dtype=np.uint32).view(np.float32)
    value = fill_value_array(bits, DTYPES["float32"])
    assert value.tobytes() == bits.tobytes()
    assert v3_fill_value_to_json(value, DTYPES["float32"]) == "0x7f800001"


def test_fill_value_of_rank_1_is_refused():
    with pytest.raises(MetadataError, match="Expected fill value of rank 0"):
        fill_value_array([1, 2], DTYPES["uint8"])


@pytest.mark.parametrize(("text", "value"), [("", b""), ("YWI=", b"ab"), ("YWJjZGU=", b"abcde")])
def test_v2_strings_may_lack_zeros_at_their_end(text, value):
    parsed = parse_v2_fill_value(text, np.dtype("S5"))
    assert parsed.tobytes() == value.ljust(5, b"\0")
    assert v2_fill_value_to_json(parsed, np.dtype("S5")) == base64_of(value.ljust(5, b"\0"))


@pytest.mark.parametrize(
    ("text", "stored"), [("YWJjZGVm", "S5"), ("YWI", "S1"), ("YWI=", "V3"), ("?", "S5"), (1, "S5")]
)
def test_v2_bytes_of_another_length_are_refused(text, stored):
    with pytest.raises(MetadataError, match="base64-encoded bytes, but received"):
        parse_v2_fill_value(text, np.dtype(stored))


@pytest.mark.parametrize(
    ("data", "written"), [(b"\5\5\5", 5), (b"\0\0\0", 0), (b"abc", "YWJj")], ids=str
)
def test_v3_raw_bytes_in_records_are_one_number_if_equal(data, written):
    records = np.dtype([("x", "i2"), ("r", "V3")])
    element = np.array((1, data), records)
    found = v3_fill_value_to_json(element, records)
    assert found == {"x": 1, "r": written}
    assert parse_v3_fill_value(found, records).tobytes() == element.tobytes()
    alone = np.dtype([("r", "V3")])
    assert v3_fill_value_to_json(np.array((data,), alone), alone) == base64_of(data)


@pytest.mark.parametrize("number", [-1, 256, True, 1.5])
def test_v3_raw_bytes_are_no_other_number(number):
    with pytest.raises(MetadataError):
        parse_v3_fill_value({"x": 1, "r": number}, np.dtype([("x", "i2"), ("r", "V3")]))


@pytest.mark.parametrize("fill", [None, {"x": 1, "r": 5, "y": 0.5}], ids=str)
@pytest.mark.parametrize("maker", [tensorstore, gpustore], ids=["tensorstore", "gpustore"])
def test_v3_records_with_raw_bytes_are_read_by_both(maker, fill, tmp_path):
    names = [("x", "int16"), ("r", "r24"), ("y", "float32")]
    fields = [{"name": name, "data_type": data_type} for name, data_type in names]
    metadata = {
        "shape": [2],
        "data_type": {"name": "struct", "configuration": {"fields": fields}},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        **({} if fill is None else {"fill_value": fill}),
    }
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/"}, "field": "x"}
    maker.open({**spec, "metadata": metadata}, create=True).result()[:1].write([9]).result()
    reader = gpustore if maker is tensorstore else tensorstore
    other = reader.open(spec).result()
    assert other.fill_value == (0 if fill is None else 1)
    assert list(other.read().result()) == [9, other.fill_value]
    raw = gpustore.open({**spec, "field": "r"}).result()
    expected = bytes([0 if fill is None else 5]) * 3
    assert raw.fill_value.tobytes() == expected
    assert raw.read().result().tobytes() == 2 * expected


def base64_of(data):
    return base64.b64encode(data).decode()
