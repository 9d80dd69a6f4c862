"""Arrays as nested lists; error texts are held against TensorStore in drivers/test_array."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpustore.data_types.dtype import DTYPES, dtype, of_elements
from gpustore.data_types.json_array import array_from_json, array_to_json, object_array
from gpustore.errors import MetadataError
from tests.matrix import each

NUMBERS = [name for name in DTYPES if name not in ("char", "byte", "string", "ustring", "json")]


def random_array(data, wanted):
    """Any bits that are elements; only the low bits of narrow types count."""
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=3))
    count = int(np.prod(shape, dtype=int)) * wanted.itemsize
    raw = np.frombuffer(data.draw(st.binary(min_size=count, max_size=count)), np.uint8)
    if wanted.name in ("int2", "int4"):
        half = {"int2": 2, "int4": 8}[wanted.name]
        return ((raw % (2 * half)).astype(np.int8) - np.int8(half)).reshape(shape).astype(wanted)
    bits = {"bool": 1, "float4_e2m1fn": 15}.get(wanted.name, 255)
    return (raw & bits).view(wanted).reshape(shape)


@each("name", NUMBERS)
@settings(max_examples=10)
@given(data=st.data())
def test_round_trip_keeps_every_bit_but_those_of_nan(name, data):
    array = random_array(data, dtype(name).array_dtype)
    found = array_from_json(array_to_json(array, dtype(name)), dtype(name), rank=array.ndim)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    for a, b in zip(found.reshape(-1), array.reshape(-1), strict=True):
        assert a.tobytes() == b.tobytes() or (a != a and b != b)


@pytest.mark.parametrize("name", ["char", "byte"])
def test_bytes_have_no_json(name):
    with pytest.raises(MetadataError, match=f"from {name} to JSON is not implemented"):
        array_to_json(np.array([b"a"], dtype(name).array_dtype), dtype(name))
    with pytest.raises(MetadataError, match=f"from JSON to {name} is not implemented"):
        array_from_json(["a"], dtype(name))


PARTS = [
    ("x", ">i2"),
    ("raw", "V3"),
    ("text", "S2", (2,)),
    ("pair", "c8", (2, 1)),
    ("when", "M8[D]"),
]
RECORD = np.dtype([("inner", PARTS, (2,)), ("name", "U2"), ("half", dtype("bfloat16").numpy_dtype)])


def test_records_round_trip():
    array = np.zeros((2, 3), RECORD)
    for number, record in enumerate(array.reshape(-1)):
        record["name"], record["half"] = "é", number
        for one in record["inner"]:
            one["x"], one["when"] = -number, number
            one["raw"], one["text"] = b"\0\xff\1", [b"a", b""]
            one["pair"] = [[number + 1j], [np.inf]]
    kind = of_elements(RECORD)
    array = array.astype(kind.array_dtype)
    json = array_to_json(array, kind)
    assert json[0][1]["inner"][0]["x"] == -1
    assert json[0][1]["inner"][0]["raw"] == "AP8B"
    assert json[0][1]["inner"][1]["pair"] == [[[1.0, 1.0]], [[np.inf, 0.0]]]
    found = array_from_json(json, kind, rank=2)
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()
    assert array_from_json(json[1][2], kind).tobytes() == array[1, 2].tobytes()


@each(
    ("value", "words"),
    [
        ({"a": 1}, '"b": Expected array, but member is missing'),
        ({"a": 1, "b": ["AA==", "AA=="], "c": 1}, "extra members"),
        ({"a": 300, "b": ["AA==", "AA=="]}, '"a": Expected integer'),
        ({"a": 1, "b": ["AA=="]}, "of length 1"),
        ({"a": 1, "b": ["AA==", "A"]}, "Expected 1 base64-encoded bytes"),
        ({"a": 1, "b": ["AA==", "AAA="]}, "Expected 1 base64-encoded bytes"),
        (5, "Expected object"),
    ],
)
def test_what_is_no_record_is_refused(value, words):
    record = of_elements(np.dtype([("a", "u1"), ("b", "V1", (2,))]))
    with pytest.raises(MetadataError, match=words):
        array_from_json([value], record)


def test_objects_round_trip():
    json = [[{"a": [1]}, None], ["x", 1.5]]
    array = array_from_json(json, dtype("json"))
    assert array.shape == (2, 2)
    assert array_to_json(array, dtype("json")) == json
    assert array_from_json(["a", "é"], dtype("string")).tolist() == [b"a", "é".encode()]
    assert array_to_json(np.array([b"a"], object), dtype("string")) == ["a"]
    with pytest.raises(MetadataError, match="Expected Unicode"):
        array_from_json(["\ud800"], dtype("string"))


@each(
    ("value", "max_rank", "shape"),
    [
        (5, 2, ()),
        ([1, 2], 0, ()),
        ([1, 2], 1, (2,)),
        ([1, 2], 3, (2,)),
        ([[1, 2], [3, 4]], 1, (2,)),
        (([1, 2], (3, 4)), 2, (2, 2)),
        ([[1, 2], [3]], 2, (2,)),
        ([[1, 2], 3], 2, (2,)),
        ([], 1, (0,)),
        ([[], []], 2, (2, 0)),
        (np.zeros((2, 3)), 1, (2,)),
        ([np.array(1), np.float32(2)], 1, (2,)),
    ],
)
def test_object_array_makes_dimensions_of_even_sequences_only(value, max_rank, shape):
    array = object_array(value, dtype("json"), max_rank=max_rank)
    assert array.shape == shape
    plain = value.tolist() if isinstance(value, np.ndarray) else value
    for index in np.ndindex(shape):
        expected = plain
        for i in index:
            expected = expected[i]
        assert array[index] == expected
        assert type(array[index]) in (int, float, list)


def test_object_array_checks_the_elements():
    with pytest.raises(TypeError, match="expected str, int found"):
        object_array(["a", 3], dtype("ustring"), max_rank=1)
    with pytest.raises(TypeError, match="'object' does not support conversion to JSON"):
        object_array([object()], dtype("json"), max_rank=1)
    assert object_array(np.array("a", object), dtype("ustring"), max_rank=0).item() == "a"


def test_floats_round_to_the_type():
    assert array_from_json([1e300, 0.1], dtype("bfloat16")).tobytes() == (
        np.array([np.inf, 0.1], ml_dtypes.bfloat16).tobytes()
    )
