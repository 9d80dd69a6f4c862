"""JSON of domains and transforms, both ways, and the messages for what is wrong in it."""

import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore.index_space as gs
from gpustore.errors import MetadataError
from tests.index_space.parity import outcome
from tests.index_space.strategies import domains, number, transforms
from tests.matrix import each

BOUND = st.one_of(number, st.sampled_from(["-inf", "+inf"]))
BOUNDS = st.lists(BOUND | BOUND.map(lambda b: [b]), max_size=2)


@given(transforms(numbers=number))
def test_transform_round_trip_matches_tensorstore(json):
    found = outcome(gs, [("json", json)])
    assert found == outcome(ts, [("json", json)])
    if isinstance(found[0], dict):
        ours, theirs = gs.IndexTransform(json=json), ts.IndexTransform(json=json)
        # Bounds that hold for all elements of an index array are not written.
        again = gs.IndexTransform(json=theirs.to_json()), ts.IndexTransform(json=ours.to_json())
        assert again[0].to_json() == again[1].to_json() == ours.to_json()


@given(domains())
def test_domain_round_trip_matches_tensorstore(arguments):
    ours, theirs = gs.IndexDomain(**arguments), ts.IndexDomain(**arguments)
    assert gs.IndexDomain(json=theirs.to_json()) == ours
    assert ts.IndexDomain(json=ours.to_json()) == theirs


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "rank": st.sampled_from([0, 1, 2, 2.0, 1.5, 33, 1e300, "2", True]),
            "inclusive_min": BOUNDS,
            "exclusive_max": BOUNDS,
            "inclusive_max": BOUNDS,
            "shape": BOUNDS,
            "labels": st.lists(st.sampled_from(["x", "y", ""]), max_size=2),
            "extra": st.just(1),
        },
    )
)
def test_domain_members_match_tensorstore(json):
    program = [("domain_json", json)]
    assert outcome(gs, program) == outcome(ts, program)


@each(
    "json",
    [
        3,
        [],
        {},
        {"rank": 40},
        {"shape": 3},
        {"shape": [2.0]},
        {"shape": [2.5]},
        {"shape": ["a"]},
        {"shape": [[2, 3]]},
        {"shape": [-3]},
        {"inclusive_min": ["+inf"]},
        {"inclusive_min": [3], "inclusive_max": [1]},
        {"labels": ["x", "x"]},
        {"labels": ["x", 3]},
        {"labels": ["x"], "shape": [1, 2]},
        {"rank": 1, "b": 1, "a": 2},
    ],
)
def test_wrong_domain_has_tensorstores_message(json):
    program = [("domain_json", json)]
    assert outcome(gs, program) == outcome(ts, program)


@each(
    "output",
    [
        3,
        [3],
        [{"foo": 1.5}],
        [{"offset": 1.5}],
        [{"offset": 2**63}],
        [{"input_dimension": 2}],
        [{"input_dimension": -1}],
        [{"input_dimension": 1.5}],
        [{"stride": -1}],
        [{"index_array_bounds": [2, 3]}],
        [{"input_dimension": 0, "index_array": [3]}],
        [{"input_dimension": 0, "stride": 0, "offset": 4}],
        [{"index_array": 3}],
        [{"index_array": [[2, 3], [4]]}],
        [{"index_array": [["x"]]}],
        [{"index_array": [[2, 3], [4, 5]]}],
        [{"index_array": [[2, 3], 4]}],
        [{"index_array": [[1]], "index_array_bounds": [2, 3]}],
        [{"index_array": [[1]], "index_array_bounds": [2]}],
        [{"index_array": [[1]], "index_array_bounds": ["-inf", 3]}],
        [{"index_array": [[1]], "index_array_bounds": [3, 1]}],
        [{"index_array": [[], []]}],
        [{}],
        [],
    ],
)
@each("shape", [[2, 2], [[2], 2], [0, 2]])
def test_wrong_output_has_tensorstores_message(shape, output):
    program = [("json", {"input_shape": shape, "output": output})]
    assert outcome(gs, program) == outcome(ts, program)


def test_defaults_are_left_out():
    assert gs.IndexTransform(2).to_json() == {"input_rank": 2}
    assert gs.IndexDomain([gs.Dim(), gs.Dim(5, implicit_upper=True)]).to_json() == {
        "exclusive_max": [["+inf"], [5]],
        "inclusive_min": [["-inf"], 0],
    }


def test_the_error_is_typed():
    with pytest.raises(MetadataError, match=r"^Error parsing index transform from JSON: "):
        gs.IndexTransform(json={"input_rank": 2, "outputs": []})
