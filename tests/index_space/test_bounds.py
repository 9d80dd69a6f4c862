"""Propagation of bounds: examples (the comparisons with TensorStore are in test_composition)."""

import pytest

import gpustore.index_space as gs
from gpustore.errors import OutOfBoundsError


def test_explicit_bounds_must_contain_the_inner_domain():
    outer, inner = gs.IndexTransform(input_shape=[2]), gs.IndexTransform(input_shape=[3])
    with pytest.raises(OutOfBoundsError) as error:
        outer[inner]
    assert str(error.value) == (
        "OUT_OF_RANGE: Propagated bounds [0, 2), with size=2, for dimension 0 are incompatible "
        "with existing bounds [0, 3), with size=3."
    )


def test_implicit_bounds_follow_from_the_outer_domain():
    outer = gs.IndexTransform(gs.IndexDomain([gs.Dim(10, implicit_upper=True)]))
    inner = gs.IndexTransform(1, output=[gs.OutputIndexMap(0, 1, 2)])
    assert str(outer[inner].domain[0]) == "[0, 5*)"


def test_implicit_outer_bounds_are_not_checked():
    outer = gs.IndexTransform(gs.IndexDomain([gs.Dim(10, implicit_upper=True)]))
    assert outer[99].output[0] == gs.OutputIndexMap(99)
    with pytest.raises(OutOfBoundsError, match="Index -1 is outside valid range"):
        outer[-1]


def test_an_empty_domain_is_not_checked():
    assert gs.IndexTransform(input_shape=[2, 3])[1:1, 99].shape == (0,)


def test_diagonal_takes_the_smaller_bounds():
    outer = gs.IndexTransform(input_shape=[4, 3])
    both = gs.IndexTransform(1, output=[gs.OutputIndexMap(input_dimension=0)] * 2)
    assert str(outer[both].domain[0]) == "[0, 3)"
