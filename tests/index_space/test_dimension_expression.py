"""Dimension expressions give what those of TensorStore give: value, text, kind of error."""

import copy
import pickle
import random
import re

import numpy as np
import pytest
import tensorstore as ts

import gpustore
from gpustore import d
from gpustore.errors import OutOfBoundsError
from tests.index_space.expressions import OPERATIONS, expression, start
from tests.index_space.parity import expression as made
from tests.index_space.parity import outcome
from tests.matrix import each, share

SAME_TIME = 50
"""Programs that are sent to TensorStore at once."""


def evaluated(text):
    return eval(text, {"d": d, "array": np.array, "int64": np.int64})


def without_brackets(found):
    """The same outcome as ours prints it: TensorStore's text of an empty index is no Python."""
    return tuple(re.sub(r"(?<=[\]\w])\[\]", "[()]", part) for part in found)


@pytest.mark.matrix
def test_expressions_match_tensorstore(oracle):
    legal = dict.fromkeys(OPERATIONS, 0)
    for name in OPERATIONS:
        draw = random.Random(name)
        programs = []
        for _ in range(share(2000)):
            before = start(draw)
            chosen = expression(draw, name, before[0][1]["labels"])
            programs.append([*before, ("expression", chosen)])
        for at in range(0, len(programs), SAME_TIME):
            some = programs[at : at + SAME_TIME]
            for program, expected in zip(some, oracle.ask_all(some)):
                if expected is not None:
                    assert outcome(gpustore, program) == expected, program
                    legal[name] += isinstance(expected[0], dict)
    assert all(count > 0.2 * share(2000) for count in legal.values()), legal


@pytest.mark.matrix
def test_texts_match_tensorstore_and_are_python(oracle):
    programs = []
    for name in OPERATIONS:
        draw = random.Random(f"text of {name}")
        programs += [
            [("expression", expression(draw, name, ["x", "y", "it's"]))] for _ in range(share(300))
        ]
    for at in range(0, len(programs), SAME_TIME):
        some = programs[at : at + SAME_TIME]
        for program, expected in zip(some, oracle.ask_all(some)):
            found = outcome(gpustore, program)
            assert found == without_brackets(expected), program
            if found[0].startswith("d["):
                value = made(gpustore, *program[0][1])
                assert evaluated(found[0]) == value
                assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.matrix
def test_equality_is_that_of_tensorstore(oracle):
    draw = random.Random("equality")
    pairs = []
    for _ in range(share(1200)):
        selected, operations = expression(draw, draw.choice(OPERATIONS), ["x", "y", "z"])
        other = list(operations)
        if draw.random() < 0.6:
            _, (one, *_) = expression(draw, operations[-1][0], ["x", "y", "z"])
            other[-1] = one
        pairs.append([("equal", ((selected, operations), (selected, other)))])
    equal = 0
    for at in range(0, len(pairs), SAME_TIME):
        some = pairs[at : at + SAME_TIME]
        for program, expected in zip(some, oracle.ask_all(some)):
            assert outcome(gpustore, program) == expected, program
            equal += expected[0] == "True"
    assert 0.2 < equal / len(pairs) < 0.9


@each(
    "selection",
    [
        (),
        [],
        "x",
        "",
        -1,
        np.int64(3),
        True,
        b"x",
        range(3),
        {"x": 1},
        ([0, 1], [[2]], "y"),
        slice(None),
        slice(1, None, 1),
        slice(None, 2**63),
        slice(None, None, -(2**63)),
        1.5,
        None,
        ...,
        (0, 1.5),
        object(),
    ],
)
def test_selections_match_tensorstore(selection):
    assert outcome(gpustore, [("expression", (selection, []))])[0] == _shown(selection)


def _shown(selection):
    if isinstance(selection, slice) and selection.step == -(2**63):
        return f"d[::{selection.step}]"  # TensorStore has one more, what Python keeps.
    return outcome(ts, [("expression", (selection, []))])[0]


def test_selections_contain_selections():
    assert d[d[0, 1], "x"] == d[0, 1, "x"]
    assert isinstance(d[0], gpustore.DimSelection)
    assert isinstance(d[0], gpustore.DimExpression)
    assert not isinstance(d[0].diagonal, gpustore.DimSelection)
    with pytest.raises(TypeError, match="without operations"):
        d[d[0].diagonal]


@each(
    "name, index",
    [
        ("label", 1),
        ("label", "é"),
        ("label", ()),
        ("label", ["a", 1]),
        ("translate_by", 1.5),
        ("translate_by", "a"),
        ("translate_by", 2**63),
        ("translate_by", np.array([1, 2])),
        ("translate_by", (None,)),
        ("translate_to", -(2**63)),
        ("stride", slice(1, 2)),
        ("transpose", 1.5),
        ("mark_bounds_implicit", 1),
        ("mark_bounds_implicit", slice(0, 1)),
        ("mark_bounds_implicit", slice(True, True, True)),
        ("index", 1.5),
        ("index", "a"),
        ("index", (..., ...)),
        ("index", slice((1, 2), (7, 8, 9))),
        ("index", slice((1, None), (7, 8), (9,))),
        ("index", slice("a", 3)),
        ("index", slice([1], None)),
        ("index", [[True, False], [False, False]]),
        ("index", np.array(3)),
        ("index", True),
        ("index", np.False_),
        ("index", []),
        ("oindex", True),
        ("vindex", ([1, 2], [3, 4, 5])),
    ],
)
def test_single_operations_match_tensorstore(name, index):
    program = [("expression", ("x", [(name, index)]))]
    found, expected = outcome(gpustore, program), outcome(ts, program)
    if isinstance(index, str) and index == "é":
        assert expected[0] == r"d['x'].label['\xc3\xa9']"
        expected = ("d['x'].label['é']",) * 2
    assert found == without_brackets(expected)


def test_a_stride_of_none_leaves_a_dimension_as_it_is():
    """As TensorStore documents it; there it is an integer overflow."""
    transform = gpustore.IndexTransform(input_shape=[9, 9])
    assert transform[d[0, 1].stride[None, 2]] == transform[d[1].stride[2]]


def test_a_later_ellipsis_stands_for_dimensions():
    """In TensorStore 0.1.86 it makes transforms of a wrong rank, and crashes."""
    domain = gpustore.IndexDomain(shape=[2, 3, 4, 5], labels=["x", "y", "z", "t"])
    found = domain[d["t", "x", "z"].translate_by[10][12, ...].label["a", "b"]]
    assert str(found) == '{ "a": [10, 12), "y": [0, 3), "b": [10, 14) }'


@each("subject", ["IndexTransform", "IndexDomain", "TensorStore", "Spec", "Schema"])
def test_a_selection_alone_is_no_index(subject):
    domain = gpustore.IndexDomain(shape=[4, 5], labels=["x", "y"])
    store = gpustore.array(np.zeros((4, 5)))
    of = {
        "IndexDomain": domain,
        "IndexTransform": gpustore.IndexTransform(domain),
        "TensorStore": store,
        "Spec": store.spec(),
        "Schema": store.schema,
    }[subject]
    if subject == "IndexDomain":
        assert of[d["y"]] == gpustore.IndexDomain(shape=[5], labels=["y"])
        assert of[d["y"], 0] == of[1, 0]
        return
    with pytest.raises(OutOfBoundsError, match=r"^Must specify at least one operation"):
        of[d[0]]
    with pytest.raises(OutOfBoundsError, match=r"^Only integers"):
        of[d[0][1], 2]
    with pytest.raises(OutOfBoundsError, match=r'^Label "q" does not match one of {"[^;]*$'):
        of[d["q"][1]]


def test_an_index_is_applied_to_stores_specs_and_schemas():
    values = np.arange(60).reshape(3, 4, 5)
    found = gpustore.array(values)[d[:].label["x", "y", "z"]]
    found = found[d["z", "x"][1:4, [2, 0]].translate_to[0]]
    assert found.domain.labels == ("", "y", "z")
    assert np.array_equal(found.read().result(), values[[2, 0], :, 1:4])
    assert found.schema.domain == found.domain
    json = {"driver": "zarr3", "kvstore": "memory://", "schema": {"rank": 3}}
    index = (slice(None), [("index", (1, slice(2, 5), ...)), ("transpose", slice(None, None, -1))])
    for name in ("Spec", "Schema"):
        pair = []
        for library in (gpustore, ts):
            subject = library.Spec(json) if name == "Spec" else library.Schema(rank=3)
            pair.append(subject[made(library, *index)].to_json())
        assert pair[0] == pair[1]


def test_an_index_is_written_through():
    store = gpustore.array(np.zeros((2, 3), np.int64))
    store[d[1][2]] = 7
    assert store.read().result().tolist() == [[0, 0, 7], [0, 0, 7]]


def test_dimensions_are_transposed_to_a_selection():
    transform = gpustore.IndexTransform(input_labels=["x", "y", "z"])
    assert transform.transpose(d["y", ::2]).input_labels == ("y", "x", "z")
    assert transform.domain.transpose([d["z"], d["y", "x"]]).labels == ("z", "y", "x")


def test_expressions_are_values():
    index = d["x", 1:3].label["a", "b"].oindex[[1, 2], ...]
    assert copy.copy(index) == copy.deepcopy(index) == index
    assert index != d["x", 1:3] != 5
    assert pickle.loads(pickle.dumps(d)) is d
    for unhashable in (d[0], index):
        with pytest.raises(TypeError, match="unhashable"):
            hash(unhashable)
    for endless in (d, d[0], index):
        with pytest.raises(TypeError, match="not iterable"):
            iter(endless)
    for kind in (gpustore.DimSelection, gpustore.DimExpression):
        with pytest.raises(TypeError, match=r"gpustore\.d"):
            kind(0)


def test_members_are_those_of_tensorstore():
    for name in ("DimSelection", "DimExpression"):
        theirs = {one for one in dir(getattr(ts, name)) if not one.startswith("_")}
        ours = {one for one in dir(getattr(gpustore, name)) if not one.startswith("_")}
        assert ours == theirs


def test_accessors_print_as_in_tensorstore():
    for name in sorted(set(OPERATIONS) - {"index", "diagonal"}):
        assert repr(getattr(d[0], name)) == repr(getattr(ts.d[0], name))


def test_ranks_have_a_limit():
    wide = gpustore.IndexTransform(32)
    for index in (d[()].diagonal, d[-1][None], d[0].oindex[[[0]]]):
        with pytest.raises(OutOfBoundsError, match=r"^Rank 33 is outside valid range \[0, 32\]$"):
            wide[index]
