"""Elements of one data type as elements of another, with TensorStore as oracle."""

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.data_types.conversion import converter
from gpustore.data_types.dtype import DTYPES
from gpustore.errors import GpustoreError
from tests.matrix import each

NAMES = sorted(DTYPES)
NUMBERS = [name for name in NAMES if name not in ("char", "byte", "string", "ustring", "json")]
# What TensorStore converts wrongly.
WRONG = "float8_e8m0fnu"

EDGES = [
    *(0.0, -0.0, 0.5, 1.0, 1.5, 2.5, -0.5, -1.0, -1.5, 3.7, 7.0, 8.0, 15.0, 16.0, 100.0, 127.5),
    *(128.0, -128.0, -129.0, 255.0, 256.0, 300.7, -300.7, 448.0, 464.0, 480.0, 57344.0, 61440.0),
    *(65504.0, 65519.0, 65520.0, 65535.0, 65536.0, 70000.0, 2.0**31 - 1, 2.0**31, 2.0**31 + 1),
    *(-(2.0**31), -(2.0**31) - 1, 2.0**32 - 1, 2.0**32, 1e10, -1e10, 2.0**53 + 1, 2.0**62),
    *(2.0**63 - 1025, 2.0**63, 2.0**63 + 3000, -(2.0**63), -(2.0**63) - 3000, 2.0**64 - 3000),
    *(2.0**64, 1e20, -1e20, 3.4e38, 3.5e38, 1e300, -1e300, 1e-8, 6e-8, 1e-40, 5e-324),
    *(np.inf, -np.inf, np.nan),
]


@np.errstate(all="ignore")
def elements(name):
    """Elements of a data type that are at the edges of others."""
    dtype = gpustore.dtype(name).array_dtype
    if name == "bool":
        return np.array([False, True])
    if name.startswith("complex"):
        parts = np.array(EDGES)
        return np.concatenate([parts + 1j * parts[::-1], parts.astype("c16")]).astype(dtype)
    if dtype.itemsize == 1 and dtype.kind not in "iu":
        every = np.arange(256, dtype=np.uint8)
        if name in ("int2", "int4"):
            info = ml_dtypes.iinfo(dtype)
            return np.arange(info.min, info.max + 1, dtype=np.int8).astype(dtype)
        return (every[:16] if name == "float4_e2m1fn" else every).view(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        near = [*range(-3, 4), 100, 255, 256, 65535, 65536, 2**24 + 1, 2**31, 2**53 + 1]
        low, high = int(info.min), int(info.max)
        values = [low, low + 1, high - 1, high, *near]
        return np.array([value for value in values if low <= value <= high], dtype)
    return np.array(EDGES).astype(dtype)


def theirs(array, source, target):
    """What TensorStore makes of it, one element at a time: of many it converts some otherwise."""
    store = ts.cast(ts.array(array, dtype=getattr(ts, source)), getattr(ts, target))
    if target != "uint32" or ("float" not in source and "complex" not in source):
        return store.read().result()
    return np.array([store[i].read().result() for i in range(len(array))], np.uint32)


def same(a, b):
    """Whether two arrays hold the same values, NaNs and zeros of either sign told apart."""
    if a.dtype == object:
        return [repr(x) for x in a] == [repr(x) for x in b]
    assert a.dtype == b.dtype
    if a.dtype.kind == "c":
        return same(a.real, b.real) and same(a.imag, b.imag)
    if a.dtype in (np.dtype(ml_dtypes.int2), np.dtype(ml_dtypes.int4)):
        return np.array_equal(a.astype(np.int8), b.astype(np.int8))
    if a.dtype.kind in "iub":
        return np.array_equal(a, b)
    a, b = a.astype(np.float64), b.astype(np.float64)
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(
        np.signbit(a)[a == a], np.signbit(b)[b == b]
    )


@each("source", [name for name in NUMBERS if name != WRONG])
def test_numbers_are_converted_as_by_tensorstore(source):
    array = elements(source)
    for target in NUMBERS:
        convert = converter(gpustore.dtype(source), gpustore.dtype(target))
        if convert is None:
            assert (source[:7], target) == ("complex", "bool")
        elif target != WRONG:
            assert same(convert(array), theirs(array, source, target)), (source, target)


def test_powers_of_two_are_numbers_too():
    array = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)
    convert = converter(gpustore.dtype(WRONG), gpustore.float64)
    values = convert(array)
    assert values[127] == 1.0
    assert np.array_equal(values[:255], 2.0 ** np.arange(-127, 128))
    assert np.isnan(values[255])
    back = converter(gpustore.float64, gpustore.dtype(WRONG))(values)
    assert np.array_equal(back.view(np.uint8), array.view(np.uint8))
    whole = converter(gpustore.dtype(WRONG), gpustore.int16)
    assert whole(array[127:141]).tolist() == [2**i for i in range(14)]


@given(
    st.lists(st.floats(width=64) | st.integers(-(2**65), 2**65).map(float), max_size=12),
    st.sampled_from(["float64", "float32", "float16", "bfloat16", "complex128"]),
    st.sampled_from([name for name in NUMBERS if name != WRONG]),
)
def test_floats_are_converted_as_by_tensorstore(values, source, target):
    convert = converter(gpustore.dtype(source), gpustore.dtype(target))
    if convert is not None:
        with np.errstate(all="ignore"):
            array = np.array(values, np.float64).astype(gpustore.dtype(source).array_dtype)
        assert same(convert(array), theirs(array, source, target))


@given(
    st.lists(st.integers(-(2**63), 2**64 - 1), max_size=12),
    st.sampled_from(["int8", "uint16", "int32", "uint32", "int64", "uint64"]),
    st.sampled_from([name for name in NUMBERS if name != WRONG]),
)
def test_integers_are_converted_as_by_tensorstore(values, source, target):
    wrapped = np.array([value % 2**64 for value in values], np.uint64)
    array = wrapped.astype(gpustore.dtype(source).array_dtype)
    convert = converter(gpustore.dtype(source), gpustore.dtype(target))
    assert same(convert(array), theirs(array, source, target))


@each("source", NAMES)
def test_what_tensorstore_converts_can_be_converted(source):
    array = np.zeros(1, gpustore.dtype(source).array_dtype)
    if source in ("string", "ustring"):
        array[0] = gpustore.dtype(source).type()
    base = ts.array(array, dtype=getattr(ts, source))
    for target in NAMES:
        possible = converter(gpustore.dtype(source), gpustore.dtype(target)) is not None
        back = converter(gpustore.dtype(target), gpustore.dtype(source)) is not None
        if possible or back:
            assert possible == ts.cast(base, getattr(ts, target)).readable, target
        else:
            with pytest.raises(ValueError, match=f"Cannot convert {source} <-> {target}"):
                ts.cast(base, getattr(ts, target))


TEXTS = [name for name in NUMBERS if name not in ("bool", WRONG)]


@each("source", TEXTS)
def test_numbers_are_printed_as_by_tensorstore(source):
    array = elements(source)
    for target in ("string", "ustring"):
        convert = converter(gpustore.dtype(source), gpustore.dtype(target))
        assert same(convert(array), theirs(array, source, target))


@each("source", [name for name in NUMBERS if name != WRONG])
def test_numbers_are_json_as_by_tensorstore(source):
    array = elements(source)
    convert = converter(gpustore.dtype(source), gpustore.json)
    assert same(convert(array), theirs(array, source, "json"))


JSON = [
    *(0, 1, -1, 7, 8, 300, 2.0, 1.5, 1e10, 1e300, 2**63, 2**64 - 1, -(2**63), True, False, None),
    *("", "x", "12", "1.5", "-1", "true", "nan", "Infinity", "\xe9", [1], {"a": 1}),
]


@each("target", [*NUMBERS, "string", "ustring", "json"])
def test_json_is_converted_as_by_tensorstore(target):
    convert = converter(gpustore.json, gpustore.dtype(target))
    if convert is None:
        assert target in ("complex64", "complex128")
        return
    for value in JSON:
        array = np.empty(1, object)
        array[0] = value
        store = ts.cast(ts.array(array, dtype=ts.json), getattr(ts, target))
        expected = store.read()
        if expected.exception() is None:
            assert target == WRONG or same(convert(array), expected.result()), value
            continue
        with pytest.raises(GpustoreError) as caught:
            convert(array)
        assert str(caught.value) == str(expected.exception())


@pytest.mark.parametrize(
    ("source", "target", "values"),
    [
        ("string", "ustring", [b"abc", b"", b"\xc3\xa9"]),
        ("ustring", "string", ["abc", "", "\xe9"]),
        ("string", "json", [b"abc", b"\xc3\xa9"]),
        ("ustring", "json", ["abc", "\xe9"]),
    ],
)
def test_texts_are_converted_as_by_tensorstore(source, target, values):
    array = np.array(values, object).reshape(-1, 1)
    convert = converter(gpustore.dtype(source), gpustore.dtype(target))
    expected = ts.cast(ts.array(array, dtype=getattr(ts, source)), getattr(ts, target))
    assert convert(array).tolist() == expected.read().result().tolist()


@pytest.mark.parametrize("target", ["ustring", "json"])
def test_bytes_that_are_no_text_are_an_error(target):
    array = np.array([b"abc", b"\xff"], object)
    with pytest.raises(GpustoreError, match=r"^Invalid UTF-8 sequence encountered$"):
        converter(gpustore.string, gpustore.dtype(target))(array)


@pytest.mark.parametrize(("source", "target"), [("char", "byte"), ("byte", "char")])
def test_characters_are_bytes(source, target):
    array = np.array([[b"a", b"\0"], [b"c", b"\xff"]], gpustore.dtype(source).array_dtype)
    found = converter(gpustore.dtype(source), gpustore.dtype(target))(array.T)
    assert found.dtype == gpustore.dtype(target).array_dtype
    assert found.tobytes() == b"ac\0\xff"


def test_other_data_types_are_only_themselves():
    record = gpustore.dtype('[["x","int32"]]')
    array = np.zeros(3, record.array_dtype)
    assert converter(record, record)(array) is array
    assert converter(record, gpustore.int32) is None
    assert converter(gpustore.dtype("datetime64[s]"), gpustore.int64) is None
    assert converter(gpustore.dtype("uint4"), gpustore.float32)(
        np.arange(16, dtype=np.uint8).astype(ml_dtypes.uint4)
    ).tolist() == list(range(16))
