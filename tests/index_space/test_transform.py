"""IndexTransform against TensorStore: constructors, evaluation, translation, transposition."""

import pickle

import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore.index_space as gs
from gpustore.errors import MetadataError, OutOfBoundsError
from tests.index_space.parity import outcome
from tests.index_space.strategies import domains, number, small, transforms

PROPERTIES = [
    "input_rank",
    "output_rank",
    "ndim",
    "origin",
    "shape",
    "size",
    "input_origin",
    "input_labels",
    "input_inclusive_min",
    "input_inclusive_max",
    "input_exclusive_max",
    "input_shape",
    "implicit_lower_bounds",
    "implicit_upper_bounds",
]
FLAG = st.sampled_from([None, True, False])


@given(transforms(), st.lists(small, max_size=3))
def test_evaluation_matches_tensorstore(same, json, indices):
    same([("json", json), ("call", indices)])


@given(
    transforms(numbers=number),
    st.sampled_from(["translate_to", "translate_by", "translate_backward_by"]),
    number | st.lists(number | st.none(), max_size=3),
)
def test_translation_matches_tensorstore(same, json, name, offsets):
    same([("json", json), (name, offsets)])


@given(transforms(), st.none() | st.permutations([0, 1, 2]) | st.lists(st.integers(-3, 3)))
def test_transposition_matches_tensorstore(same, json, axes):
    same([("json", json), ("transpose", axes)])


@given(transforms(), st.booleans() | st.builds(slice, FLAG, FLAG))
def test_implicit_flags_match_tensorstore(same, json, flags):
    same([("json", json), ("mark_bounds_implicit", flags)])


@given(transforms(), domains(max_rank=3))
def test_crop_matches_tensorstore(same, json, crop):
    same([("json", json), ("crop", crop)])


@given(transforms())
def test_properties_match_tensorstore(json):
    if not isinstance(outcome(ts, [("json", json)])[0], dict):
        return
    a, b = gs.IndexTransform(json=json), ts.IndexTransform(json=json)
    for name in PROPERTIES:
        assert getattr(a, name) == getattr(b, name)
    if not any(dim.empty for dim in a.domain):
        # TensorStore shows an array over an empty dimension as empty, though it has one element.
        assert repr(a.output) == repr(b.output)
    assert repr(a.T) == repr(b.T)
    assert gs.IndexTransform(a.domain, a.output) == a
    copy = pickle.loads(pickle.dumps(a))
    assert copy == a
    assert hash(copy) == hash(a)


@pytest.mark.parametrize(
    ("input_rank", "keywords"),
    [
        (None, {}),
        (33, {}),
        (3, {"input_shape": [2, 3]}),
        (None, {"input_shape": [2], "input_exclusive_max": [2]}),
        (None, {"input_shape": [2, 3], "input_labels": ["x", None]}),
        (None, {"input_inclusive_min": [1, 2], "implicit_lower_bounds": [True, False]}),
        (None, {"input_inclusive_max": [4], "implicit_upper_bounds": [True]}),
    ],
)
def test_constructor_matches_tensorstore(input_rank, keywords):
    def call(library):
        try:
            return repr(library.IndexTransform(input_rank, **keywords))
        except ValueError as error:
            return str(error)

    assert call(gs) == call(ts)


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"input_dimension": 1}, r"Input dimension 1 specified for output dimension 0"),
        ({"index_array": [1, 2]}, r"has shape \{2\} which does not match input_shape \{3\}"),
        ({"index_array": [[1]]}, r"has rank 2 but must have rank 1"),
    ],
)
def test_wrong_output_map_is_refused(keywords, text):
    with pytest.raises(MetadataError, match=text):
        gs.IndexTransform(input_shape=[3], output=[gs.OutputIndexMap(**keywords)])


def test_too_many_outputs_are_refused():
    with pytest.raises(MetadataError, match=r"\(33\) exceeds maximum rank of 32"):
        gs.IndexTransform(1, output=[gs.OutputIndexMap(1)] * 33)


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((), {"json": {"input_rank": 1}, "output": []}),
        ((), {"input_sizes": [3]}),
        ((gs.IndexDomain(1),), {"input_shape": [3]}),
        ((1,), {"output": [3]}),
    ],
)
def test_wrong_types_are_type_errors(arguments, keywords):
    with pytest.raises(TypeError):
        gs.IndexTransform(*arguments, **keywords)


def test_labels():
    transform = gs.IndexTransform(input_shape=[2, 3]).label["x", "y"]
    assert transform.input_labels == ("x", "y")
    assert transform[1].input_labels == ("y",)
    assert transform[..., None].input_labels == ("x", "y", "")
    assert repr(transform.oindex).endswith("in[1]\n.oindex")


def test_evaluation_errors():
    transform = gs.IndexTransform(input_shape=[12, 2])
    with pytest.raises(OutOfBoundsError, match=r"^OUT_OF_RANGE: Index 2 is not contained in"):
        transform([1, 2])
    with pytest.raises(MetadataError, match="input indices vector of length 1"):
        transform([1])
    with pytest.raises(TypeError, match="indices"):
        transform([1.5, 2])
    far = gs.IndexTransform(1, output=[gs.OutputIndexMap(0, 0, -3)])
    with pytest.raises(OutOfBoundsError, match="Integer overflow"):
        far([2**62 - 2])


def test_index_array_maps_keep_their_place_when_cropped_and_moved():
    transform = gs.IndexTransform(input_shape=[9])[[2, 3, 5, 7]]
    moved = transform.translate_to[10]
    assert moved([12]) == (5,)
    assert moved[12:]([13]) == (7,)
    assert moved[gs.IndexDomain([gs.Dim(11, 13)])]([12]) == (5,)
    assert moved[12].output[0] == gs.OutputIndexMap(5)


def test_index_arrays_forbid_implicit_bounds():
    transform = gs.IndexTransform(input_shape=[9])[[2, 3]]
    with pytest.raises(MetadataError, match="Cannot mark input dimension 0 as having implicit"):
        transform.mark_bounds_implicit[True]
    assert transform.mark_bounds_implicit[False] == transform


def test_transform_is_immutable_and_not_iterable():
    transform = gs.IndexTransform(input_shape=[3])
    with pytest.raises(AttributeError):
        transform.domain = gs.IndexDomain(1)
    with pytest.raises(TypeError):
        iter(transform)
    assert transform != 3
    assert gs.IndexTransform(domain=gs.IndexDomain(shape=[3])) == transform


def test_constants():
    assert (gs.inf, gs.newaxis) == (ts.inf, ts.newaxis)
