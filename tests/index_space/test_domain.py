"""IndexDomain against TensorStore."""

import pickle

import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore.index_space as gs
from gpustore.errors import MetadataError, OutOfBoundsError
from tests.index_space.parity import outcome
from tests.index_space.strategies import domains, number, small
from tests.matrix import each

PROPERTIES = [
    "rank",
    "ndim",
    "origin",
    "shape",
    "inclusive_min",
    "inclusive_max",
    "exclusive_max",
    "labels",
    "size",
    "implicit_lower_bounds",
    "implicit_upper_bounds",
]
SELECTION = st.one_of(
    st.integers(-4, 4),
    st.sampled_from(["x", "y", "q", ""]),
    st.builds(slice, *[st.none() | st.integers(-4, 4)] * 2, st.sampled_from([None, 1, 2])),
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "rank": st.sampled_from([0, 1, 2, 33, -1]),
            "inclusive_min": st.lists(number, max_size=2),
            "exclusive_max": st.lists(number, max_size=2),
            "inclusive_max": st.lists(number, max_size=2),
            "shape": st.lists(number, max_size=2),
            "implicit_lower_bounds": st.lists(st.booleans(), max_size=2),
            "implicit_upper_bounds": st.lists(st.booleans(), max_size=2),
            "labels": st.lists(st.sampled_from(["x", "y", "", None]), max_size=2),
        },
    )
)
def test_constructor_matches_tensorstore(same, arguments):
    same([("domain", arguments)])


@given(domains(), SELECTION | st.lists(SELECTION, max_size=3).map(tuple))
def test_selection_matches_tensorstore(same, domain, selection):
    same([("domain", domain), ("index", selection)])


@given(domains(max_rank=2), domains(max_rank=2), st.sampled_from(["hull", "intersect"]))
def test_set_operation_matches_tensorstore(oracle, a, b, operation):
    program = [("domain", a), (operation, b)]
    expected, found = oracle.ask(program), outcome(gs, program)
    if found[0] == "ValueError" and "not unique" in found[1]:
        # TensorStore returns a domain in which a label occurs twice.
        assert expected[0]["labels"][0] == expected[0]["labels"][1]
    else:
        assert found == expected


@given(domains(max_rank=3), domains(max_rank=3))
def test_crop_matches_tensorstore(same, domain, crop):
    same([("domain", domain), ("crop", crop)])


@given(
    domains(max_rank=3),
    st.sampled_from(["translate_to", "translate_by", "translate_backward_by"]),
    number | st.lists(number | st.none(), max_size=3),
)
def test_translation_matches_tensorstore(same, domain, name, offsets):
    same([("domain", domain), (name, offsets)])


@given(domains(max_rank=3), st.none() | st.permutations([0, 1, 2]) | st.lists(SELECTION))
def test_transposition_matches_tensorstore(same, domain, axes):
    same([("domain", domain), ("transpose", axes)])


@given(domains(max_rank=3))
def test_properties_match_tensorstore(domain):
    a, b = gs.IndexDomain(**domain), ts.IndexDomain(**domain)
    for name in PROPERTIES:
        assert getattr(a, name) == getattr(b, name)
    if all(low in (-gs.inf, 0) for low in a.origin) and all(stop >= 0 for stop in a.exclusive_max):
        assert a.index_exp == b.index_exp
    assert [repr(dim) for dim in a] == [repr(dim) for dim in b]
    assert len(a) == len(b)
    assert repr(a.T) == repr(b.T)
    assert gs.IndexDomain(list(a)) == a
    assert pickle.loads(pickle.dumps(a)) == a
    assert hash(gs.IndexDomain(**domain)) == hash(a)


@given(domains(max_rank=2), st.lists(small, max_size=2))
def test_domain_of_a_transform_is_applied(domain, index):
    found = outcome(gs, [("identity", domain), ("index", tuple(index))])
    if isinstance(found[0], dict):
        start = gs.IndexDomain(**domain)
        transform = gs.IndexTransform(start)[tuple(index)]
        assert start[transform] == transform.domain


def test_labels_flags_and_errors():
    domain = gs.IndexDomain(shape=[2, 3])
    assert repr(domain.label["x", "y"]) == '{ "x": [0, 2), "y": [0, 3) }'
    assert domain.label[["x", ""]].labels == ("x", "")
    assert repr(domain.mark_bounds_implicit[:True]) == "{ [0, 2*), [0, 3*) }"
    assert repr(domain.mark_bounds_implicit[True:False]) == "{ [0*, 2), [0*, 3) }"
    assert domain.mark_bounds_implicit[None] == domain
    assert repr(domain.label) == "{ [0, 2), [0, 3) }.label"
    with pytest.raises(MetadataError, match=r'Dimension label\(s\) "x" not unique'):
        domain.label["x", "x"]
    with pytest.raises(MetadataError, match=r"Number of dimensions \(2\) does not match"):
        domain.label["x"]
    with pytest.raises(TypeError, match="mark_bounds_implicit"):
        domain.mark_bounds_implicit["x"]
    with pytest.raises(TypeError, match="step"):
        domain.mark_bounds_implicit[True:True:1]
    with pytest.raises(TypeError, match="label: expected"):
        domain.label[3]
    with pytest.raises(OutOfBoundsError, match=r"Dimension index 2 is outside valid range"):
        domain[2]
    with pytest.raises(TypeError, match="dimension index, label or slice"):
        domain[None,]


@each(
    ("arguments", "keywords"),
    [
        ((), {"shape": 3}),
        ((), {"shape": "ab"}),
        ((), {"shape": [1.5]}),
        ((), {"shape": [2**63]}),
        ((), {"labels": "ab"}),
        ((), {"labels": [3]}),
        ((), {"sizes": [3]}),
        (([5],), {}),
        (([gs.Dim(5)],), {"labels": ["x"]}),
        ((2,), {"json": {"rank": 2}}),
        ((1.0,), {}),
    ],
)
def test_wrong_types_are_type_errors(arguments, keywords):
    with pytest.raises(TypeError):
        gs.IndexDomain(*arguments, **keywords)


def test_too_many_dims_are_refused():
    # TensorStore aborts the process.
    with pytest.raises(MetadataError, match=r"Rank 33 is outside valid range \[0, 32\]"):
        gs.IndexDomain([gs.Dim(1)] * 33)


def test_index_exp_of_negative_bounds_is_refused():
    for library in (gs, ts):
        with pytest.raises(ValueError, match="with negative bounds to index expression"):
            _ = library.IndexDomain(inclusive_min=[-1]).index_exp


def test_domain_is_immutable():
    with pytest.raises(AttributeError):
        gs.IndexDomain(2).labels = ("x", "y")
    assert gs.IndexDomain(2) != gs.IndexDomain(3)
    assert gs.IndexDomain(2) != 2
    assert gs.IndexDomain(dimensions=[gs.Dim(2)]) == gs.IndexDomain(shape=[2])
