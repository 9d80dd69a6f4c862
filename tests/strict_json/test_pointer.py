"""JSON pointers: the examples of RFC 6901, and TensorStore's json driver as oracle."""

import json

import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from gpustore.errors import GpustoreError, MetadataError, MismatchError
from gpustore.strict_json.pointer import MISSING, dereference, parse_pointer, replaced
from tests.matrix import each

# RFC 6901, section 5.
RFC = {
    "foo": ["bar", "baz"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "e^f": 3,
    "g|h": 4,
    "i\\j": 5,
    'k"l': 6,
    " ": 7,
    "m~n": 8,
}

RFC_VALUES = {
    "": RFC,
    "/foo": ["bar", "baz"],
    "/foo/0": "bar",
    "/": 0,
    "/a~1b": 1,
    "/c%d": 2,
    "/e^f": 3,
    "/g|h": 4,
    "/i\\j": 5,
    '/k"l': 6,
    "/ ": 7,
    "/m~0n": 8,
}

DOCUMENT = {**RFC, "null": None, "true": True, "empty": {"list": [], "object": {}}, "é": [[1.5]]}

POINTERS = [
    *RFC_VALUES,
    *("/foo/1", "/foo/2", "/foo/3", "/foo/-", "/foo/01", "/foo/x", "/foo/-1", "/foo/1e0"),
    *("/foo/", "/foo/+1", "/foo/٣", "/foo/0/x", "/null/x", "/true/x", "//x", "/nope", "/nope/a/0"),
    *("/empty/list/0", "/empty/list/-", "/empty/list/-/0", "/empty/list/0/y", "/empty/object/-"),
    *("/foo/18446744073709551615", "/foo/18446744073709551616", "/foo/" + "9" * 50),
    *("/é/0/0", "/é/0/0/x", "/é/x", "/é/0/-/a~0b/c~1d"),
]


def oracle(document, pointer, new=None):
    """What TensorStore reads, or the document it leaves after a write of `new`; or its error."""
    context = ts.Context()
    kvstore = ts.KvStore.open("memory://d", context=context).result()
    if document is not MISSING:
        kvstore.write("", json.dumps(document).encode()).result()
    spec = {"driver": "json", "kvstore": "memory://d", "json_pointer": pointer}
    store = ts.open(spec, context=context).result()
    try:
        if new is None:
            return store.read().result().item()
        store.write(new).result()
    except ValueError as error:
        status, text = str(error).split(" [")[0].split(": ", 1)
        return status, text.split(": ", 1)[1]
    return json.loads(kvstore.read("").result().value)


def ours(document, pointer, new=None):
    tokens = parse_pointer(pointer)
    try:
        return dereference(document, tokens) if new is None else replaced(document, tokens, new)
    except GpustoreError as error:
        return error.status, error.text


@each("pointer", RFC_VALUES)
def test_examples_of_the_rfc(pointer):
    assert dereference(RFC, parse_pointer(pointer)) == RFC_VALUES[pointer]


@each("pointer", POINTERS)
def test_reading_is_as_in_tensorstore(pointer):
    assert ours(DOCUMENT, pointer) == oracle(DOCUMENT, pointer)


@each("pointer", POINTERS)
def test_writing_is_as_in_tensorstore(pointer):
    before = json.dumps(DOCUMENT)
    assert ours(DOCUMENT, pointer, {"new": 1}) == oracle(DOCUMENT, pointer, {"new": 1})
    assert json.dumps(DOCUMENT) == before, "the document itself is unchanged"


@each("pointer", ["", "/a", "/a/0", "/0", "/-", "/-/-"])
@each("document", [MISSING, None, [], {}, 3], ids=["missing", "null", "[]", "{}", "3"])
def test_parents_are_created_as_in_tensorstore(document, pointer):
    assert ours(document, pointer, 1) == oracle(document, pointer, 1)


TOKENS = st.sampled_from(["a", "b", "", "0", "1", "2", "-", "00", "~", "/", "~1"])
DOCUMENTS = st.recursive(
    st.sampled_from([None, True, 1, 1.5, "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TOKENS, inner, max_size=3),
    max_leaves=6,
)


@given(DOCUMENTS, st.lists(TOKENS, max_size=4), st.booleans())
def test_random_pointers_into_random_documents(document, tokens, write):
    pointer = "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)
    assert list(parse_pointer(pointer)) == tokens
    new = [7] if write else None
    assert ours(document, pointer, new) == oracle(document, pointer, new)


def test_an_index_of_thousands_of_digits_is_refused():
    with pytest.raises(MismatchError, match="is invalid for array value"):
        dereference([1], parse_pointer("/" + "9" * 5000))


@pytest.mark.parametrize(
    ("pointer", "text"),
    [
        ("a", "JSON Pointer does not start with '/': \"a\""),
        ("#/a", "JSON Pointer does not start with '/': \"#/a\""),
        ("/~", "JSON Pointer requires '~' to be followed by '0' or '1': \"/~\""),
        ("/a~2b", "JSON Pointer requires '~' to be followed by '0' or '1': \"/a~2b\""),
        ("/~01~", "JSON Pointer requires '~' to be followed by '0' or '1': \"/~01~\""),
    ],
)
def test_malformed_pointers_are_refused_in_the_same_words(pointer, text):
    with pytest.raises(MetadataError) as caught:
        parse_pointer(pointer)
    assert str(caught.value) == text
    with pytest.raises(ValueError, match="JSON Pointer") as expected:
        ts.Spec({"driver": "json", "kvstore": "memory://", "json_pointer": pointer})
    assert str(expected.value).endswith(text)
