"""gpustore.strict_json.parsing: what it refuses and how it words errors."""

import contextlib
import enum
import json
import math
import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.errors import CorruptChunkError, GpustoreError, MetadataError
from gpustore.strict_json import parsing
from gpustore.strict_json.parsing import Members, at_position, in_member
from tests.matrix import each

unicode_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | unicode_text
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(unicode_text, inner, max_size=5),
    max_leaves=20,
)


def parse(data, **options):
    return parsing.parse(data, where="the test", **options)


REFUSED = {
    "empty": (b"", "Expecting value at line 1 column 1"),
    "blank": (b" \n", "Expecting value"),
    "latin1": (b'"\xe9"', "not UTF-8 at byte 1"),
    "utf16": ('{"a": 1}'.encode("utf-16"), "not UTF-8 at byte 0"),
    "overlong": (b'"\xc0\xaf"', "not UTF-8 at byte 1"),
    "encoded surrogate": (b'"\xed\xa0\x80"', "not UTF-8 at byte 1"),
    "bom": (b"\xef\xbb\xbf{}", "byte order mark at byte 0"),
    "nul": (b"\0", "Expecting value"),
    "trailing nul": (b"{}\0", "Extra data at line 1 column 3"),
    "nul in a string": (b'"\0"', "Invalid control character"),
    "newline in a string": (b'"\n"', "Invalid control character"),
    "trailing garbage": (b"{}x", "Extra data at line 1 column 3"),
    "two documents": (b"{}\n{}", "Extra data at line 2 column 1"),
    "truncated": (b'{"a": [1, 2', "Expecting ',' delimiter"),
    "unterminated string": (b'{"a', "Unterminated string"),
    "trailing comma": (b"[1,]", "at line 1 column"),
    "comment": (b"[1] // one", "Extra data"),
    "single quotes": (b"{'a': 1}", "at line 1 column 2"),
    "bare word": (b"[True]", "Expecting value"),
    "nan": (b'{"a": NaN}', "not a finite float64: NaN"),
    "infinity": (b"[-Infinity]", "not a finite float64: -Infinity"),
    "overflow": (b"[1e400]", "not a finite float64: 1e400"),
    "duplicate": (b'{"a": 1, "b": 2, "a": 1}', 'duplicate member "a"'),
    "inner duplicate": (b'[{"b": {"c": 1, "c": 2}}]', 'duplicate member "c"'),
    "duplicate by escape": (b'{"a": 1, "\\u0061": 2}', 'duplicate member "a"'),
    "leading zero": (b"[01]", "at line 1 column"),
    "plus": (b"[+1]", "Expecting value"),
    "hexadecimal": (b"[0x10]", "at line 1 column"),
    "other digits": ("[\u0664]".encode(), "Expecting value"),
    "absurd integer": (b"1" * 5000, "integer of 5000 digits"),
    "lone surrogate": (b'["\\ud800"]', "lone surrogate \\ud800"),
    "lone surrogate as name": (b'{"\\uDC00a": 1}', "lone surrogate \\udc00"),
    "reversed pair": (b'["\\ude00\\ud83d"]', "lone surrogate \\ude00"),
    "wrong escape": (b'["\\x41"]', "at line 1 column"),
    "deep array": (b"[" * 65 + b"]" * 65, "values nested 65 deep, the limit is 64"),
    "deep object": (b'{"a":' * 65 + b"1" + b"}" * 65, "values nested 65 deep"),
    "deep and unclosed": (b"[" * 100_000, "values nested 100000 deep"),
    "deep behind an escaped quote": (b'["\\"",' + b"[" * 70 + b"]" * 71, "values nested 71 deep"),
}


@each(("data", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_parse_refuses(data, reason):
    with pytest.raises(MetadataError) as caught:
        parse(data)
    message = str(caught.value)
    assert message.startswith("Invalid JSON: ")
    assert reason in message
    assert message.endswith(" (in the test)")
    assert len(message) < 300


def test_parse_refuses_more_bytes_than_the_limit_before_looking_at_them():
    assert parse(b"[1]", max_nbytes=3) == [1]
    with pytest.raises(MetadataError, match="4 bytes, the limit is 3 bytes"):
        parse(b"\xff\xff\xff\xff", max_nbytes=3)
    with pytest.raises(MetadataError, match="16777217 bytes, the limit is 16777216 bytes"):
        parse(b" " * (16 * 2**20 + 1))


def test_parse_error_has_the_status_asked_for():
    with pytest.raises(MetadataError, match=r"^DATA_LOSS: Invalid JSON: ") as caught:
        parse(b"{", status="DATA_LOSS")
    assert caught.value.kind == "metadata"


ACCEPTED = {
    "depth 64": (b"[" * 64 + b"]" * 64, json.loads("[" * 64 + "]" * 64)),
    "brackets in strings": (b'["' + b"[{" * 100 + b'"]', ["[{" * 100]),
    "brackets after escapes": (b'["\\\\", "\\"[[[[", "' + b"[" * 80 + b'"]', None),
    "many siblings": (b"[" + b"[]," * 1000 + b"[]]", [[]] * 1001),
    "big integers": (b"[18446744073709551615, 123456789012345678901234567890]", None),
    "negative zero": (b"-0.0", -0.0),
    "subnormal": (b"5e-324", 5e-324),
    "escaped nul": (b'"\\u0000"', "\0"),
    "pair": (b'"\\ud83d\\ude00"', "\U0001f600"),
    "escaped backslash before u": (b'"\\\\ud800"', "\\ud800"),
    "whitespace": (b" \t\r\n1 \n", 1),
}


@each(("data", "value"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_parse_accepts(data, value):
    assert parse(data) == (json.loads(data) if value is None else value)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_parse_takes_any_buffer(kind):
    assert parse(kind(b'{"a": "\xc3\xa9"}')) == {"a": "é"}


def test_parse_keeps_integers_and_floats_apart():
    assert [type(v) for v in parse(b"[1, 1.0, 1e0, true, -1]")] == [int, float, float, bool, int]


@given(json_values)
def test_parse_is_the_inverse_of_dump(value):
    assert parse(parsing.dump(value)) == value
    assert parse(parsing.dump(value, indent=2, sort_keys=True)) == value


@given(
    st.binary(max_size=40) | st.text('[]{}":,\\u0d8a1 eE.-tn\ufeff', max_size=30).map(str.encode)
)
def test_parse_raises_nothing_but_metadata_errors_and_accepts_only_json(data):
    try:
        value = parse(data)
    except MetadataError:
        return
    assert json.loads(data) == value


@pytest.mark.parametrize(
    "data",
    [b"[" * 2**22, b'"\\' * 2**21, b'["\\\\"' * 2**19, b'{"":' * 2**20, b"[]," * 2**20],
    ids=["arrays", "escapes", "strings", "objects", "siblings"],
)
def test_parse_refuses_a_hostile_document_quickly(data):
    start = time.process_time()
    with pytest.raises(MetadataError):
        parse(data)
    assert time.process_time() - start < 2


def test_dump_is_compact_utf8():
    assert parsing.dump({"é": [1, None, True]}) == '{"é":[1,null,true]}'.encode()
    assert parsing.dump({"b": 1, "a": [2]}, indent=1, sort_keys=True) == (
        b'{\n "a": [\n  2\n ],\n "b": 1\n}'
    )


@pytest.mark.parametrize(
    "value",
    [math.nan, [math.inf], {"a": -math.inf}, {1j: 2}, object(), b"x", "\ud800"],
    ids=["nan", "inf", "-inf", "complex name", "object", "bytes", "surrogate"],
)
def test_dump_refuses(value):
    with pytest.raises(MetadataError, match=r"^Cannot be written as JSON: "):
        parsing.dump(value)


def test_dump_refuses_a_cycle():
    cycle = []
    cycle.append(cycle)
    with pytest.raises(MetadataError, match="Circular"):
        parsing.dump(cycle)


def test_text_is_cut_and_never_fails():
    assert parsing.text({"b": "é", "a": [1.5]}) == '{"a":[1.5],"b":"é"}'
    assert parsing.text("x" * 5000) == '"' + "x" * 999 + "... (5002 characters)"
    assert parsing.text(object()).startswith('"<object object')
    assert parsing.text({1: 2, "a": 3}) == "<dict>"
    assert parsing.text(10**5000) == "<int>"
    assert parsing.text(math.nan) == "NaN"


def test_quote_is_cut():
    assert parsing.quote("x" * 5000) == '"' + "x" * 1000 + '"... (5000 characters)'


class Colour(enum.IntEnum):
    RED = 1


class HasJson:
    def to_json(self):
        return [1, ("a",)]

    def __repr__(self):
        return "HasJson()"


@each(
    ("value", "expected"),
    [
        ({"a": (1, 2.5)}, {"a": [1, 2.5]}),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (range(3), [0, 1, 2]),
        ({"a": HasJson()}, {"a": [1, ["a"]]}),
        (Colour.RED, 1),
        (None, None),
    ],
)
def test_from_python_converts(value, expected):
    converted = parsing.from_python(value)
    assert converted == expected
    assert json.loads(json.dumps(converted)) == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize("value", [{3}, object(), b"x", 1j, HasJson, {1: 2}, np.datetime64(1, "s")])
def test_from_python_refuses(value):
    with pytest.raises(TypeError, match=r"conversion to JSON|members must be strings"):
        parsing.from_python({"a": [value]})


def test_from_python_shares_nothing():
    value = {"a": [1]}
    converted = parsing.from_python(value)
    converted["a"].append(2)
    assert value == {"a": [1]}


# The texts below are TensorStore's, see test_messages_are_those_of_tensorstore.
LEVEL = "Expected integer in the range [0, 9], but received: "
FLOAT = "Expected 64-bit floating-point number, but received: "
EXPECTATIONS = {
    "int": (lambda m: m.take_int("a", 0, 9), 40, LEVEL + "40"),
    "int as str": (lambda m: m.take_int("a", 0, 9), "4", LEVEL + '"4"'),
    "int as bool": (lambda m: m.take_int("a", 0, 9), True, LEVEL + "true"),
    "int as float": (lambda m: m.take_int("a", 0, 9), 4.0, LEVEL + "4.0"),
    "int as null": (lambda m: m.take_int("a", 0, 9), None, LEVEL + "null"),
    "int64": (
        lambda m: m.take_int("a"),
        2**63,
        "Expected 64-bit signed integer, but received: 9223372036854775808",
    ),
    "uint64": (
        lambda m: m.take_int("a", 0, 2**64 - 1),
        -1,
        "Expected 64-bit unsigned integer, but received: -1",
    ),
    "float": (lambda m: m.take_with("a", parsing.expect_float), "x", FLOAT + '"x"'),
    "float as bool": (lambda m: m.take_with("a", parsing.expect_float), False, FLOAT + "false"),
    "float too big": (lambda m: m.take_with("a", parsing.expect_float), 10**310, FLOAT + "1000"),
    "bool": (lambda m: m.take_bool("a"), 1, "Expected boolean, but received: 1"),
    "str": (lambda m: m.take_str("a"), 1, "Expected string, but received: 1"),
    "one choice": (
        lambda m: m.take_str("a", choices=["x"]),
        "y",
        'Expected "x", but received: "y"',
    ),
    "choices": (
        lambda m: m.take_str("a", choices=["x", "z"]),
        5,
        'Expected one of "x", "z", but received: 5',
    ),
    "list": (
        lambda m: m.take_with("a", parsing.expect_list),
        {"b": 1},
        'Expected array, but received: {"b":1}',
    ),
    "object": (lambda m: m.take_object("a"), [1], "Expected object, but received: [1]"),
    "member": (
        lambda m: m.take_object("a").take_str("b/~"),
        {"b/~": 1},
        'Error parsing object member "b/~": Expected string, but received: 1',
    ),
    "missing member": (
        lambda m: m.take_object("a").take_bool("b"),
        {},
        'Error parsing object member "b": Expected boolean, but member is missing',
    ),
    "extra member": (
        lambda m: m.take_object("a").finish(),
        {"b": 1},
        'Object includes extra members: "b"',
    ),
}


@each(("take", "value", "message"), EXPECTATIONS.values(), ids=EXPECTATIONS)
def test_members_say_what_was_expected(take, value, message):
    members = Members({"a": value})
    with pytest.raises(MetadataError) as caught:
        take(members)
    assert str(caught.value).startswith(f'Error parsing object member "a": {message}')
    assert len(str(caught.value)) < 500


def test_members_take_what_is_as_expected():
    value = {"i": 3, "f": 2, "b": False, "s": "x", "l": [1, "a"], "o": {"k": None}}
    members = Members(value)
    assert "i" in members
    assert members.take_int("i", 0, 3) == 3
    assert "i" not in members
    assert members.take_with("f", parsing.expect_float) == 2.0
    assert members.take_bool("b") is False
    assert members.take_str("s", choices=["x", "y"]) == "x"
    assert members.take_with("l", parsing.expect_list) == [1, "a"]
    inner = members.take_object("o")
    assert inner.take("k") is None
    assert inner.names() == ()
    inner.finish()
    members.finish()
    assert value["i"] == 3


def test_members_give_the_default_of_a_missing_member_only():
    members = Members({"null": None})
    assert members.take("a", 1) == 1
    assert members.take_int("a", 0, 1, 7) == 7
    assert members.take_int("a", default=None) is None
    assert members.take_bool("a", True) is True
    assert members.take_str("a", "d") == "d"
    assert members.take_object("a", None) is None
    assert members.take_with("a", int, None) is None
    with pytest.raises(MetadataError, match="but received: null"):
        members.take_int("null", 0, 1, 7)


@pytest.mark.parametrize(
    ("take", "expected"),
    [
        (lambda m: m.take("a"), "value"),
        (lambda m: m.take_with("a", repr), "value"),
        (lambda m: m.take_int("a"), "64-bit signed integer"),
        (lambda m: m.take_bool("a"), "boolean"),
        (lambda m: m.take_str("a"), "string"),
        (lambda m: m.take_object("a"), "object"),
    ],
    ids=["take", "with", "int", "bool", "str", "object"],
)
def test_members_say_what_is_missing(take, expected):
    message = f'Error parsing object member "a": Expected {expected}, but member is missing'
    with pytest.raises(MetadataError) as caught:
        take(Members({}))
    assert str(caught.value) == message


def test_members_accept_integral_floats_only_when_asked():
    members = Members({"a": {"b": 3.0, "c": 3.5}}, integral_floats=True).take_object("a")
    assert members.take_int("b", 0, 9) == 3
    assert type(Members({"b": 3.0}, integral_floats=True).take_int("b")) is int
    with pytest.raises(MetadataError, match=r"received: 3\.5"):
        members.take_int("c", 0, 9)


def test_members_name_their_place_outside_in():
    members = Members({"level": 40}, "zarr.json", "/codecs/0/a~1b", status="FAILED_PRECONDITION")
    with pytest.raises(MetadataError) as caught:
        members.take_int("level", 0, 9)
    assert str(caught.value) == (
        'FAILED_PRECONDITION: Error parsing object member "codecs": Error parsing value at '
        'position 0: Error parsing object member "a/b": Error parsing object member "level": '
        "Expected integer in the range [0, 9], but received: 40 (in zarr.json)"
    )


def test_members_tell_a_member_named_by_a_number_from_a_position():
    inner = Members({"0": {}}).take_object("0")
    assert inner.pointer == "/0"
    with pytest.raises(MetadataError, match=r'^Error parsing object member "0": Error parsing obj'):
        inner.take("x")


def test_members_refuse_what_is_no_object():
    with pytest.raises(MetadataError, match=r"^Expected object, but received: \[1\]$"):
        Members([1])
    with pytest.raises(MetadataError, match=r"^DATA_LOSS: Error parsing object member \"a\": Exp"):
        Members(None, "", "/a", status="DATA_LOSS")


def test_finish_lists_extra_members_sorted_and_escaped():
    members = Members({"foo": 1, "bar": 2, "é": 3, 'a"': 4})
    members.take("foo")
    with pytest.raises(MetadataError) as caught:
        members.finish()
    assert str(caught.value) == 'Object includes extra members: "a\\"","bar","\\xc3\\xa9"'


def test_members_error_keeps_class_cause_and_attributes():
    cause = OSError("disk")

    def convert(value):
        raise CorruptChunkError("bad", key="c/0", codec="zstd") from cause

    with pytest.raises(CorruptChunkError) as caught:
        Members({"a": 1}).take_with("a", convert)
    assert str(caught.value) == 'FAILED_PRECONDITION: Error parsing object member "a": bad'
    assert (caught.value.key, caught.value.codec) == ("c/0", "zstd")
    assert caught.value.__cause__ is cause
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_contexts_prefix_only_gpustore_errors():
    prefix = r'^Error parsing object member "a": Error parsing value at position 3: x$'
    with pytest.raises(GpustoreError, match=prefix), in_member("a"), at_position(3):
        raise MetadataError("x")
    with pytest.raises(KeyError, match=r"^'x'$"), in_member("a"):
        raise KeyError("x")


# ---------------------------------------------------------------- TensorStore as the oracle


def tensorstore_error(ts, spec):
    with pytest.raises(ValueError, match=r"Error|Expected") as caught:
        ts.Spec({"driver": "zarr3", **spec})
    return str(caught.value)


@each("rank", [40, -5, "3", 3.5, True, None, [1], {"b": 1, "a": "é\n"}, 1e300])
def test_messages_are_those_of_tensorstore(rank):
    ts = pytest.importorskip("tensorstore")
    expected = tensorstore_error(ts, {"rank": rank})
    with pytest.raises(MetadataError) as caught:
        Members({"rank": rank}).take_int("rank", 0, 32)
    assert str(caught.value) == expected


def test_nested_messages_are_those_of_tensorstore():
    ts = pytest.importorskip("tensorstore")
    codecs = [{"name": "gzip", "configuration": {"level": 40}}]
    expected = tensorstore_error(ts, {"metadata": {"codecs": codecs}})
    metadata = Members({"metadata": {"codecs": codecs}}).take_object("metadata")

    def convert(codecs):
        with parsing.at_position(0):
            Members(codecs[0]).take_object("configuration").take_int("level", 0, 9)

    with pytest.raises(MetadataError) as caught:
        metadata.take_with("codecs", convert)
    assert str(caught.value) == expected


@given(st.dictionaries(unicode_text, st.none(), min_size=1, max_size=4))
def test_extra_members_are_reported_as_by_tensorstore(extra):
    ts = pytest.importorskip("tensorstore")
    with contextlib.suppress(TypeError):
        expected = tensorstore_error(ts, {"schema": extra})
    members = Members({"schema": extra})
    with pytest.raises(MetadataError) as caught:
        members.take_object("schema").finish()
    if not set(extra) & {"rank", "dtype", "domain", "codec", "chunk_layout"}:
        assert str(caught.value) == expected
