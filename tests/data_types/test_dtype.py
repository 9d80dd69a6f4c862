"""Data types, case by case against tensorstore.dtype."""

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

from gpustore.data_types import dtype as module
from gpustore.data_types.dtype import DTYPES, dtype, from_json, of_elements
from gpustore.errors import MetadataError
from tests.matrix import each

NAMES = list(DTYPES)


@pytest.fixture(scope="module")
def ts():
    return pytest.importorskip("tensorstore")


def test_all_data_types_of_tensorstore_are_there(ts):
    names = {value.name for value in vars(ts).values() if isinstance(value, ts.dtype)}
    assert set(NAMES) == names


@each("name", NAMES)
def test_constant_is_the_data_type(name):
    assert getattr(module, name) is DTYPES[name]


@each("name", NAMES)
def test_attributes_equal_those_of_tensorstore(name, ts):
    ours, theirs = dtype(name), ts.dtype(name)
    assert ours.name == theirs.name
    assert ours.to_json() == theirs.to_json()
    assert ours.numpy_dtype == theirs.numpy_dtype
    assert ours.type is theirs.type
    assert repr(ours) == repr(theirs)
    assert str(ours) == str(theirs)


SIZES = {"char": 1, "byte": 1, "bool": 1, "int2": 1, "int4": 1, "bfloat16": 2, "complex128": 16}


@each("name", NAMES)
def test_itemsize_is_that_of_an_array(name):
    ours = dtype(name)
    array = np.zeros(3, ours.array_dtype)
    assert array.nbytes == 3 * ours.itemsize
    assert ours.itemsize == SIZES.get(name, ours.numpy_dtype.itemsize)
    if not array.dtype.hasobject:
        assert dtype(array.dtype) is ours


ACCEPTED = [
    *NAMES,
    *(int, float, complex, bool, str, bytes, memoryview),
    *(np.int_, np.intc, np.longlong, np.ulonglong, np.uint8, np.bytes_, np.void, np.bool_),
    *(np.float16, np.double, np.csingle, np.half),
    *(ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.int2, ml_dtypes.float8_e8m0fnu),
    *map(np.dtype, ["V1", "V2", "V", "S", "S1", "S5", "<i4", ">u2", ">c16", "?", "=f8"]),
    np.dtype([("a", "<i4")]),
    np.dtype([("a", "M8[s]")]),
    np.dtype(("i4", (2,))),
    np.str_("int32"),
]


@each("value", ACCEPTED)
def test_conversion_equals_that_of_tensorstore(value, ts):
    assert dtype(value).name == ts.dtype(value).name
    assert dtype(value) == value
    assert dtype(value) is dtype(dtype=value)
    assert dtype(dtype(value)) is dtype(value)


class HasDtype:
    dtype = np.dtype("f4")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_class_with_a_dtype_is_accepted_as_by_tensorstore(ts):
    assert dtype(HasDtype).name == ts.dtype(HasDtype).name == "float32"


UNKNOWN = [
    *("i3", "i16", "f16", "c4", "|M8", "a5", "i4,f4", "(2,)i4", "int1", "float128", "void", "V1"),
    *("S", "S5", "U", "U0", "O", "str", "bytes", "", "Int32", "int32 ", "<int32", "datetime64[xx]"),
    *("datetime64[0s]", "M8[xx]", "M8[0s]", "<U", "\uff55\uff12", "u\u0662"),
    *('foo"bar', "é", "a\nb"),
    *(object, list, dict, set, type(None), bytearray, np.str_, np.object_, np.longdouble),
    *(np.clongdouble, np.dtypes.StringDType()),
    *map(np.dtype, ["U", "O", "float128"]),
]


@each("value", UNKNOWN)
def test_unknown_data_type_is_refused_in_tensorstores_words(value, ts):
    with pytest.raises(ValueError, match=r"^No TensorStore data type ") as theirs:
        ts.dtype(value)
    with pytest.raises(MetadataError) as ours:
        dtype(value)
    assert str(ours.value) == str(theirs.value)
    assert isinstance(ours.value, ValueError)


NOT_NAMES = [
    *(None, 1, 1.5, b"int32", [("a", "i4")], ("i4", 2), {}, object(), np.int32(3), np.arange(2)),
    *(np.generic, np.number, np.integer, np.floating, np.inexact, np.character, np.flexible),
]


@each("value", NOT_NAMES)
@pytest.mark.filterwarnings("ignore:Converting `np:DeprecationWarning")
def test_what_names_no_data_type_is_a_type_error(value, ts):
    with pytest.raises(TypeError):
        ts.dtype(value)
    with pytest.raises(TypeError, match=r"^Expected "):
        dtype(value)


def test_argument_is_required():
    with pytest.raises(TypeError):
        dtype()


def test_equality_follows_the_name(ts):
    for a in NAMES:
        for b in NAMES:
            assert (dtype(a) == b) == (dtype(a) == dtype(b)) == (ts.dtype(a) == b) == (a == b)
            assert (dtype(a) != b) == (a != b)


CODES = [
    *("?", "b1", "|b1", "i1", "|u1", "<i2", ">u4", "=i8", "f2", "f4", ">f8", "c8", "<c16", "int"),
    *("uint", "float", "complex", "half", "single", "double", "M8", "<M8[ns]", ">m8[25s]", ">U3"),
]


@each("code", CODES)
def test_codes_of_numpy_are_taken_but_not_in_json(code):
    assert dtype(code) is dtype(np.dtype(code))
    assert dtype(code) == code
    assert dtype(code) == np.dtype(code).newbyteorder("=")
    with pytest.raises(MetadataError, match=r"^Unsupported data type: "):
        from_json(code)


@pytest.mark.parametrize("value", ["i3", "nope"], ids=repr)
def test_comparing_with_a_wrong_name_raises_as_in_tensorstore(value, ts):
    with pytest.raises(ValueError, match=r"^No TensorStore data type"):
        _ = ts.int32 == value
    with pytest.raises(MetadataError, match=r"^No TensorStore data type"):
        _ = dtype("int32") == value
    with pytest.raises(MetadataError, match=r"^No TensorStore data type"):
        _ = value != dtype("int32")


@pytest.mark.parametrize("value", [None, 5, (), object(), object, np.number, np.dtype("float128")])
def test_anything_else_is_unequal(value):
    assert dtype("int32") != value
    assert value != dtype("int32")
    assert (dtype("int32"),) != (value,)


def test_numpy_dtype_on_the_left():
    """NumPy converts what it compares with, and so compares the byte order too."""
    assert np.dtype("=i4") == dtype("int32")
    assert np.dtype("=i4").newbyteorder() != dtype("int32")
    assert np.dtype("i8") != dtype("int32")


def test_hash_distinguishes_and_survives_pickling():
    assert len({dtype(name) for name in NAMES} | {dtype("int8")}) == len(NAMES)
    for name in NAMES:
        assert pickle.loads(pickle.dumps(dtype(name))) is dtype(name)
        assert copy.deepcopy(dtype(name)) is dtype(name)


def test_it_cannot_be_changed():
    with pytest.raises(AttributeError):
        dtype("int8").name = "int16"
    with pytest.raises(AttributeError):
        dtype("int8").other = 1


def test_it_has_the_words_of_numpy_dtypes():
    for name in NAMES:
        ours, numpys = dtype(name), np.dtype(dtype(name))
        assert (ours.kind, ours.names, ours.hasobject, ours.itemsize) == (
            (numpys.kind, numpys.names, numpys.hasobject, numpys.itemsize)
        )


def test_it_is_no_numpy_dtype():
    assert not isinstance(dtype("int8"), np.dtype)


def test_numpy_takes_it_as_a_data_type():
    for name in NAMES:
        assert np.dtype(dtype(name)) == dtype(name).array_dtype


ARGUMENTS = [1, "1", [1, 2], np.array([1, 0]), 300, 1.5, None, {"a": 1}, "abc", "", 0, True, -1]


@each("name", NAMES)
def test_call_converts_as_tensorstore_does(name, ts):
    crashes = ("abc", "") if dtype(name).type.__module__ == "ml_dtypes" else ()
    for argument in ARGUMENTS:
        if isinstance(argument, str) and argument in crashes:
            with pytest.raises(ValueError, match=r"invalid literal|could not convert"):
                dtype(name)(argument)
            continue
        try:
            theirs = ts.dtype(name)(argument)
        except (TypeError, ValueError, OverflowError) as error:
            with pytest.raises(type(error)):
                dtype(name)(argument)
            continue
        ours = dtype(name)(argument)
        assert type(ours) is type(theirs)
        # Of NaN the text is equal.
        assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("name", ["int4", "bfloat16", "float8_e3m4"])
def test_call_with_text_survives_where_ml_dtypes_crashes(name):
    assert dtype(name)(b"1") == dtype(name)(1)
    for argument in (b"x", "x", b"", ""):
        with pytest.raises(ValueError, match=r"invalid literal|could not convert"):
            dtype(name)(argument)


@pytest.mark.parametrize("name", ["string", "char", "byte"])
def test_call_with_bytes(name, ts):
    assert dtype(name)(b"xy") == ts.dtype(name)(b"xy")


def test_from_json_has_tensorstores_words(ts):
    assert from_json("uint16") is dtype("uint16")
    for value in ("x", 1, None, 'a"'):
        with pytest.raises(ValueError, match=r"Error") as theirs:
            ts.Spec({"driver": "zarr3", "dtype": value})
        with pytest.raises(MetadataError) as ours:
            from_json(value)
        assert str(theirs.value) == f'Error parsing object member "dtype": {ours.value}'


# --------------------------------------------------------------------------- what TensorStore lacks

MORE = {
    "datetime64[ns]": "M8[ns]",
    "datetime64[25s]": ">M8[25s]",
    "datetime64": "M8",
    "timedelta64[us]": "m8[us]",
    "timedelta64": ">m8",
    "U3": ">U3",
    "U536870911": "U536870911",
    "uint2": ml_dtypes.uint2,
    "uint4": ml_dtypes.uint4,
    "float6_e2m3fn": ml_dtypes.float6_e2m3fn,
    "float6_e3m2fn": ml_dtypes.float6_e3m2fn,
    "float8_e4m3": ml_dtypes.float8_e4m3,
}


@each("name", MORE)
def test_types_that_tensorstore_lacks_have_numpys_names(name, ts):
    found = np.dtype(MORE[name])
    with pytest.raises(ValueError, match=r"^No TensorStore data type "):
        ts.dtype(found)
    ours = dtype(name)
    assert ours == dtype(found) == from_json(name)
    assert ours == found
    assert ours == name
    assert (ours.name, ours.to_json(), str(ours)) == (name, name, f'dtype("{name}")')
    assert ours.numpy_dtype == ours.array_dtype == found.newbyteorder("=")
    assert ours.type is found.type
    assert ours.itemsize == found.itemsize
    assert ours != "int32"
    assert {ours, dtype(found), pickle.loads(pickle.dumps(ours))} == {ours}
    with pytest.raises(AttributeError):
        ours.name = "int8"


def test_more_types_convert_as_numpy_does():
    assert dtype("datetime64[D]")("2020-01-02") == np.datetime64("2020-01-02")
    assert dtype("timedelta64[s]")(5) == np.timedelta64(5, "s")
    assert dtype("U2")("ab") == "ab"
    assert dtype("uint4")("0xf") == 15
    with pytest.raises(ValueError, match="could not convert"):
        dtype("float8_e4m3")("x")


RECORD = np.dtype(
    [("x", ">i4"), ("p", [("s", "S3"), ("v", "V2", (2,))], (1, 2)), ("é", "M8[s]"), ("u", "U1")]
)


def test_records_keep_their_fields_where_they_are_asked_for():
    found = of_elements(RECORD)
    assert found.name == (
        '[["x","int32"],["p",[["s","S3"],["v","V2",[2]]],[1,2]],["é","datetime64[s]"],["u","U1"]]'
    )
    assert found.numpy_dtype == found.array_dtype == RECORD.newbyteorder("=")
    assert found.type is np.void
    assert found.itemsize == RECORD.itemsize
    assert dtype(found.name) == from_json(found.to_json()) == found
    assert pickle.loads(pickle.dumps(found)) == found
    # Without being asked, as TensorStore.
    assert dtype(RECORD) == "byte"
    assert found((1, [[(b"a", b"b")] * 2], 3, "x"))["x"] == 1


@pytest.mark.parametrize("dt", ["<i4", "S5", "V2", "M8[s]", "?"])
def test_elements_that_are_no_records_are_the_usual_types(dt):
    assert of_elements(np.dtype(dt)) == dtype(np.dtype(dt))


@each(
    "name",
    [
        *("[]", "[1]", "[[", '[["x"]]', '[["x","i4"]]', '[["x","int8",[0]]]', '[["x","int8",2]]'),
        *('[["x","int8"],["x","int8"]]', '[["x",[]]]', '[["x","int8",[1],1]]', '[["x","S0"]]'),
        *("[" * 40 + "]" * 40, '[["x",' * 33 + '"int8"' + "]]" * 33, "[" * 5000),
    ],
)
def test_what_describes_no_record_is_refused(name):
    with pytest.raises(MetadataError, match=r"^No TensorStore data type with name"):
        dtype(name)
