"""Dim: constructors, set operations, printing, as in TensorStore."""

import copy
import pickle

import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore.index_space as gs
from gpustore.errors import MetadataError
from tests.index_space.strategies import number
from tests.matrix import each

ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "inclusive_min": number | st.none(),
        "label": st.sampled_from(["", "x", "y's", "é1"]),
        "implicit_lower": st.booleans(),
        "implicit_upper": st.booleans(),
    },
).flatmap(
    lambda d: st.sampled_from(["", "size", "exclusive_max", "inclusive_max"]).flatmap(
        lambda name: (number | st.none()).map(lambda value: d | {name: value} if name else d)
    )
)


@given(ARGUMENTS)
def test_constructor_matches_tensorstore(same, arguments):
    same([("dim", arguments)])


@given(ARGUMENTS, ARGUMENTS, st.sampled_from(["hull", "intersect"]))
def test_set_operation_matches_tensorstore(same, a, b, operation):
    same([("dim", a), (operation, b)])


@each(
    "arguments",
    [(), (5,), (None,), (None, "x"), ("x",), (5, "x"), (3, 7), (3, None), (None, 5), (None, None)],
)
def test_positional_arguments_match_tensorstore(arguments):
    assert repr(gs.Dim(*arguments)) == repr(ts.Dim(*arguments))


@each(
    ("arguments", "keywords"),
    [
        ((1.5,), {}),
        ((), {"inclusive_min": 1.5}),
        ((), {"inclusive_max": 3, "exclusive_max": 4}),
        ((), {"size": 3, "inclusive_max": 4}),
        ((3, 7, "z"), {}),
        (("x", 3), {}),
        ((2**64,), {}),
        ((), {"length": 3}),
        ((), {"label": 3}),
    ],
)
def test_arguments_of_no_constructor_are_type_errors(arguments, keywords):
    for library in (ts, gs):
        with pytest.raises(TypeError):
            library.Dim(*arguments, **keywords)


def test_properties():
    dim = gs.Dim(inclusive_min=2, exclusive_max=5)
    assert (dim.exclusive_min, dim.inclusive_min, dim.inclusive_max, dim.exclusive_max) == (
        1,
        2,
        4,
        5,
    )
    assert (dim.size, len(dim), list(dim)) == (3, 3, [2, 3, 4])
    assert (dim.finite, dim.empty, bool(gs.Dim(0))) == (True, False, False)
    assert gs.Dim().size == 2**63 - 1


def test_contains_matches_tensorstore():
    for library in (ts, gs):
        dim = library.Dim(5)
        assert 4 in dim
        assert 5 not in dim
        assert library.Dim(3) in dim
        assert library.Dim(6) not in dim
        assert library.Dim(inclusive_min=9, size=0) in dim
        assert library.inf not in library.Dim()
        with pytest.raises(TypeError):
            _ = 1.0 in dim


def test_iteration_over_an_infinite_interval_is_refused():
    with pytest.raises(MetadataError, match="Cannot iterate over infinite interval"):
        iter(gs.Dim())


def test_label_and_flags_are_assignable_but_not_the_interval():
    dim = gs.Dim(5)
    dim.label, dim.implicit_upper = "x", True
    assert repr(dim) == 'Dim(inclusive_min=0, exclusive_max=5, implicit_upper=True, label="x")'
    with pytest.raises(AttributeError):
        dim.inclusive_min = 3
    with pytest.raises(TypeError):
        hash(dim)


def test_copies_are_equal():
    dim = gs.Dim(5, "x", implicit_upper=True)
    assert pickle.loads(pickle.dumps(dim)) == copy.deepcopy(dim) == dim
    assert dim != gs.Dim(5)
    assert dim != 5
