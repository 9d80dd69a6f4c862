"""Documents that are like one that was parsed before."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.strict_json.parsing import parse
from gpustore.strict_json.template import Template

FREE = frozenset({"shape", "fill_value"})
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)  # Those that JSON has.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner),
    max_leaves=5,
)
names = st.sampled_from(["shape", "fill_value", "a", 'b"', ""])
indents = st.sampled_from([None, 0, 2])


def template_of(text):
    return Template.of(text, FREE.__contains__)


@given(st.dictionaries(names, values), st.dictionaries(names, values), indents, indents)
def test_values_are_those_of_parsing(first, second, indent, other):
    one, two = json.dumps(first, indent=indent), json.dumps(second, indent=other)
    found = template_of(one).differing(two, 64)
    if found is not None:
        assert found.keys() <= FREE
        assert repr({**first, **found}) == repr(parse(two.encode(), where=""))
    assert template_of(one).differing(one, 64) == {}


@given(values, values, indents)
def test_free_members_may_differ(first, second, indent):
    def text(value):
        return json.dumps({"a": 1, "shape": value, "b": 2}, indent=indent, ensure_ascii=False)

    found = template_of(text(first)).differing(text(second), 64)
    if "\\" not in text(second):
        assert repr(found) == repr({"shape": second} if text(first) != text(second) else {})


@pytest.mark.parametrize(
    "value",
    [
        *("", "01", "1 2", "1,2", "NaN", "[Infinity]", "1e400", "[1", "1]", '"a', "nul", "'a'"),
        *('{"a": 1, "a": 2}', '"\\ud800"', '"\t"', "9" * 1001, "[[[[1]]]]", "-", "1.", ".5"),
        "[" * 100_000,
    ],
)
def test_what_the_parser_must_judge_is_left_to_it(value):
    template = template_of('{"a": 1, "shape": 3, "b": 2}')
    assert template.differing(f'{{"a": 1, "shape": {value}, "b": 2}}', 4) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", '{"a": 1, "shape": 3, "b": 2', '{"a": 1, "shape": 3, "b": 2} ', "null"),
        *('{"a": 2, "shape": 3, "b": 2}', '{"a": 1, "shape": 3, "b": 2, "shape": 3}'),
        *('{"a": 1, "shape": 3 , "b": 2}', '{"a": 1,"shape": 3, "b": 2}', '{"shape": 3}'),
    ],
)
def test_documents_that_differ_elsewhere_are_told(text):
    assert template_of('{"a": 1, "shape": 3, "b": 2}').differing(text, 64) is None


def test_members_of_inner_objects_are_not_free():
    template = template_of('{"a": {"shape": 1}, "shape": 3}')
    assert template.differing('{"a": {"shape": 2}, "shape": 3}', 64) is None
    assert template.differing('{"a": {"shape": 1}, "shape": 4}', 64) == {"shape": 4}
