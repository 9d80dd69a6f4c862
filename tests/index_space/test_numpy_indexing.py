"""NumPy-style indexing against TensorStore, with and without index arrays."""

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore.index_space as gs
from gpustore.errors import OutOfBoundsError
from tests.index_space.parity import outcome
from tests.index_space.strategies import (
    affine_indices,
    array_indices,
    bounds,
    domains,
    number,
    transforms,
)
from tests.matrix import each


def check(oracle, program):
    """Equal outcomes, except where TensorStore refuses to reverse an empty implicit dimension."""
    expected, found = oracle.ask(program), outcome(gs, program)
    if expected is None or found == expected:
        return
    steps = [
        term.step or 1
        for _, index in program[1:]
        for term in (index if isinstance(index, tuple) else (index,))
        if isinstance(term, slice)
    ]
    assert any(step < 0 for step in steps)
    for end in range(1, len(program)):
        domain = gs.IndexDomain(**program[0][1]) if end == 1 else None
        transform = gs.IndexTransform(domain) if domain else transform  # noqa: F821
        if any(d.empty and (d.implicit_lower or d.implicit_upper) for d in transform.domain):
            return
        name, index = program[end]
        transform = transform[index] if name == "index" else getattr(transform, name)[index]
    pytest.fail(f"{program}\n{found}\n{expected}")


@given(domains(), st.lists(affine_indices(number), min_size=1, max_size=3))
def test_affine_indices_match_tensorstore(oracle, domain, indices):
    check(oracle, [("identity", domain)] + [("index", index) for index in indices])


@given(domains(unbounded=False, implicit=False), st.lists(affine_indices(), max_size=3))
def test_affine_indices_on_explicit_bounds_match_tensorstore(same, domain, indices):
    same([("identity", domain)] + [("index", index) for index in indices])


@given(st.data(), domains(unbounded=False), st.sampled_from([0, 1]))
def test_an_index_a_dimension_at_the_bounds_matches_tensorstore(oracle, data, domain, outside):
    index = []
    for dim in gs.IndexDomain(**domain):
        positions = st.integers(dim.inclusive_min - outside, dim.exclusive_max + outside)
        ends = sorted(data.draw(st.tuples(positions, positions)))
        index.append(data.draw(st.sampled_from([slice(*ends), slice(*ends, 1), ends[0]])))
    check(oracle, [("identity", domain), ("index", tuple(index)), ("index", tuple(index))])


@given(
    domains(),
    st.lists(
        st.tuples(st.sampled_from(["index", "oindex", "vindex"]), array_indices()),
        min_size=1,
        max_size=2,
    ),
)
def test_array_indices_match_tensorstore(oracle, domain, operations):
    check(oracle, [("identity", domain), *operations])


@pytest.mark.matrix
@given(transforms(), affine_indices() | array_indices())
def test_indexing_a_transform_matches_tensorstore(same, json, index):
    has_step = [t for t in (index if isinstance(index, tuple) else (index,)) if type(t) is slice]
    if not any((term.step or 1) < 0 for term in has_step):
        same([("json", json), ("index", index)])


@given(bounds(unbounded=False), st.none() | st.integers(-6, 12), st.none() | st.integers(-6, 12))
def test_backward_slice_is_the_same_on_implicit_and_explicit_bounds(pair, start, stop):
    """TensorStore returns all elements for ``[5::-1]`` if the upper bound is implicit."""
    index = slice(start, stop, -1)
    if pair[0] == pair[1]:
        return
    dims = [gs.Dim(*pair), gs.Dim(*pair, implicit_upper=True)]
    explicit, implicit = (gs.IndexTransform(gs.IndexDomain([dim])) for dim in dims)
    try:
        wanted = explicit[index]
    except OutOfBoundsError:
        return
    found = implicit[index]
    assert found.output == wanted.output
    assert found.domain.inclusive_min == wanted.domain.inclusive_min
    assert found.domain.exclusive_max == wanted.domain.exclusive_max
    assert found.domain.implicit_lower_bounds == (start is None,)
    assert found.domain.implicit_upper_bounds == (False,)


def test_reversing_an_empty_resizable_dimension():
    empty = gs.IndexTransform(gs.IndexDomain([gs.Dim(0, implicit_upper=True)]))
    assert empty[::-1].shape == (0,)


@given(st.lists(st.integers(-7, 7), max_size=5), st.integers(0, 2))
def test_index_arrays_select_what_numpy_selects(indices, axis):
    shape = (4, 3, 5)
    index = (slice(None),) * axis + (np.array(indices, dtype=np.int64) % shape[axis],)
    wanted = np.arange(60).reshape(shape)[index]
    transform = gs.IndexTransform(input_shape=shape)[index]
    assert transform.shape == wanted.shape
    for at in np.ndindex(*wanted.shape):
        assert np.ravel_multi_index(transform(at), shape) == wanted[at]


@each(
    "index",
    [
        True,
        False,
        np.True_,
        np.int8(3),
        np.array(3),
        (np.array(1), slice(None), [0, 1]),
        ([0, 1], 1, [0, 1]),
        ([0, 1], slice(None), [0, 1]),
        ([0, 1], None, [0, 1]),
        ([[0], [1]], [0, 1]),
        ([0, 1], [0, 1, 2]),
        [True, False],
        [[True, False], [False, True]],
        np.zeros((4, 5), bool),
        ([], 1),
        (slice([1, 2], [3, 4]), 0),
        slice(np.array([1, 2]), 3, [1, 2]),
        slice([1, 2], [3]),
        slice([1, None], None, 1),
        [1.5],
        np.array([1.5]),
        np.zeros((0,)),
        1.5,
        "a",
        ["a"],
        b"a",
        object(),
        np.array([1], np.uint64),
        2**63,
        2**64,
        -(2**63),
        slice(1.5),
        slice(2**63),
        slice(-(2**63), 3),
        slice(None, None, -(2**63)),
        (1, 2, 3, 4),
        (..., ...),
        (..., [1], ...),
        (None,) * 30,
        (None,) * 29,
        {},
    ],
)
@each("mode", ["index", "oindex", "vindex"])
def test_single_indices_match_tensorstore(mode, index):
    domain = {"shape": [4, 5, 6], "labels": ["x", "y", ""]}
    program = [("identity", domain), (mode, index)]
    found, wanted = outcome(gs, program), outcome(ts, program)
    assert found == wanted


def test_messages_begin_as_tensorstores():
    transform = gs.IndexTransform(input_shape=[2, 3])
    with pytest.raises(OutOfBoundsError) as error:
        transform[5]
    assert str(error.value) == (
        "OUT_OF_RANGE: Checking bounds of constant output index map for dimension 0: "
        "Index 5 is outside valid range [0, 2)"
    )
    with pytest.raises(OutOfBoundsError) as error:
        transform[:, 1:9]
    assert str(error.value) == (
        "OUT_OF_RANGE: Computing interval slice for dimension 1: "
        "Slice interval [1, 9) is not contained within domain [0, 3)"
    )
    with pytest.raises(OutOfBoundsError, match=r"^Only integers, slices"):
        transform[1.5]


def test_index_arrays_are_copied():
    indices = np.array([0, 1])
    transform = gs.IndexTransform(input_shape=[2])[indices]
    indices[0] = 1
    assert transform([0]) == (0,)


@pytest.mark.parametrize("bound", ["a", "", b"a"])
def test_texts_as_bounds_of_slices_are_refused(bound):
    with pytest.raises(TypeError, match="slice indices must be integers or None"):
        gs.IndexTransform(gs.IndexDomain(shape=[5]))[slice(bound, None)]
