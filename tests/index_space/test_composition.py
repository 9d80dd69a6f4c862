"""Composition of transforms: against TensorStore, and against evaluating one after the other."""

import itertools

import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore.index_space as gs
from gpustore.errors import GpustoreError, OutOfBoundsError
from tests.index_space.strategies import domains, number, transforms


@st.composite
def pairs(draw, numbers):
    outer = draw(transforms(numbers=numbers))
    try:
        rank = ts.IndexTransform(json=outer).input_rank
    except ValueError:
        rank = 1
    # Index arrays over empty implicit dimensions crash TensorStore; starting it again takes long.
    return outer, draw(transforms(output_rank=rank, implicit_empty=draw(st.integers(0, 9)) == 0))


@pytest.mark.matrix
@given(pairs(number))
def test_composition_matches_tensorstore(same, pair):
    same([("json", pair[0]), ("compose", pair[1])])


@pytest.mark.matrix
@given(pairs(number), domains(max_rank=3))
def test_cropped_composition_matches_tensorstore(same, pair, crop):
    same([("json", pair[0]), ("crop", crop), ("compose", pair[1])])


@given(pairs(st.integers(-6, 12)))
def test_composition_is_one_after_the_other(pair):
    outer, inner = (gs.IndexTransform(json=json) for json in pair)
    try:
        composed = outer[inner]
    except GpustoreError:
        return
    if not all(dim.finite for dim in composed.domain):
        return
    for at in itertools.islice(itertools.product(*composed.domain), 20):
        try:
            wanted = outer(inner(at))
        except OutOfBoundsError:
            # Bounds of index arrays are checked when the array is used.
            continue
        assert composed(at) == wanted


def test_diagonal_of_an_index_array():
    outer = gs.IndexTransform(
        input_shape=[3, 3],
        output=[gs.OutputIndexMap(index_array=[[0, 1, 2], [3, 4, 5], [6, 7, 8]])],
    )
    maps = [gs.OutputIndexMap(input_dimension=0), gs.OutputIndexMap(2, 0, -1)]
    diagonal = gs.IndexTransform(input_inclusive_min=[0, 5, -2], input_shape=[3, 2, 3], output=maps)
    composed = outer[diagonal]
    assert composed.output[0].index_array.tolist() == [[[2, 1, 0]], [[5, 4, 3]], [[8, 7, 6]]]
    both = gs.IndexTransform(input_shape=[3], output=[gs.OutputIndexMap(input_dimension=0)] * 2)
    assert outer[both].output[0].index_array.tolist() == [0, 4, 8]


def test_ranks_must_agree():
    with pytest.raises(OutOfBoundsError, match=r"^Rank 2 -> 2 transform cannot be composed"):
        gs.IndexTransform(2)[gs.IndexTransform(3)]


@pytest.mark.parametrize("stride", [2**61, -(2**61)])
def test_overflow_is_an_error(stride):
    outer = gs.IndexTransform(1, output=[gs.OutputIndexMap(0, 0, stride)])
    with pytest.raises(OutOfBoundsError, match="Integer overflow computing"):
        outer[gs.IndexTransform(1, output=[gs.OutputIndexMap(0, 1, 8)])]
    with pytest.raises(OutOfBoundsError, match="Integer overflow computing"):
        outer[8]
