"""OutputIndexMap and OutputIndexMaps: constructors, comparison, printing."""

import pickle

import numpy as np
import pytest
import tensorstore as ts

import gpustore.index_space as gs
from gpustore.errors import OutOfBoundsError


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((), {}),
        ((3,), {}),
        ((1, 2, 3), {}),
        ((1,), {"stride": 3}),
        ((1,), {"offset": 3}),
        (([1], 2), {}),
        ((), {"offset": 5}),
        ((), {"input_dimension": 3, "stride": 0}),
        ((), {"index_array": [[1, 2], [3, 4]], "offset": 1, "stride": -2}),
        ((), {"index_array": np.zeros((2, 30), "i2")}),
        ((), {"index_array": np.arange(1001)}),
        ((), {"index_array": np.zeros((40, 40), "i8")}),
        ((), {"index_array": 3}),
        ((np.array([7, 8]),), {}),
    ],
)
def test_constructor_matches_tensorstore(arguments, keywords):
    found, wanted = (lib.OutputIndexMap(*arguments, **keywords) for lib in (gs, ts))
    assert repr(found) == repr(wanted)
    for name in ("offset", "stride", "input_dimension"):
        assert getattr(found, name) == getattr(wanted, name)
    assert found.method.name == wanted.method.name
    assert repr(found.index_range) == repr(wanted.index_range)
    assert np.array_equal(found.index_array, wanted.index_array)
    copy = pickle.loads(pickle.dumps(found))
    assert copy == found
    assert hash(copy) == hash(found)


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((), {"offset": 3, "stride": 2}),
        ((), {"index_array": "a"}),
        ((), {"input_dimension": 1, "index_array": [1]}),
        ((), {"offset": 2**63}),
        ((1, 2, 3, 4), {}),
    ],
)
def test_arguments_of_no_constructor_are_type_errors(arguments, keywords):
    for library in (ts, gs):
        with pytest.raises(TypeError):
            library.OutputIndexMap(*arguments, **keywords)


def test_floats_as_index_array_are_refused():
    # TensorStore truncates them.
    with pytest.raises(TypeError, match="index_array: expected integers"):
        gs.OutputIndexMap(index_array=[1.5])


def test_index_array_is_a_read_only_copy():
    values = np.array([1, 2])
    mapping = gs.OutputIndexMap(index_array=values)
    values[0] = 7
    assert mapping.index_array.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        mapping.index_array[0] = 3
    with pytest.raises(AttributeError):
        mapping.offset = 3
    assert not pickle.loads(pickle.dumps(mapping)).index_array.flags.writeable


def test_repeated_elements_are_stored_once():
    mapping = gs.OutputIndexMap(index_array=np.broadcast_to(np.array([[3], [4]]), (2, 5)))
    assert mapping.index_array.tolist() == [[3], [4]]
    found = gs.IndexTransform(input_shape=[2, 5], output=[mapping])
    wanted = ts.IndexTransform(
        input_shape=[2, 5], output=[ts.OutputIndexMap(index_array=[[3], [4]])]
    )
    assert found.to_json() == wanted.to_json()


def test_maps_are_a_sequence():
    maps = gs.IndexTransform(3).output
    assert (maps.rank, len(maps)) == (3, 3)
    assert maps[-1] == gs.OutputIndexMap(input_dimension=2)
    assert maps[1:] == [gs.OutputIndexMap(1, 0, 1), gs.OutputIndexMap(input_dimension=2)]
    assert maps != [1]
    assert maps != 3
    assert repr(maps[:1]) == "[OutputIndexMap(offset=0, stride=1, input_dimension=0)]"
    assert hash(maps) == hash(gs.IndexTransform(3).output)
    with pytest.raises(OutOfBoundsError, match=r"Index 3 is outside valid range \[-3, 3\)"):
        maps[3]


def test_comparison_looks_into_arrays():
    a = gs.OutputIndexMap(index_array=[1, 2])
    assert a == gs.OutputIndexMap(index_array=[1, 2])
    assert a != gs.OutputIndexMap(index_array=[1, 3])
    assert a != gs.OutputIndexMap(index_array=[1, 2], index_range=gs.Dim(5))
    assert a != 3


def test_methods_are_numbers_as_in_tensorstore():
    for theirs in ts.OutputIndexMethod.__members__.values():
        ours = gs.OutputIndexMethod(int(theirs))
        assert (int(ours), str(ours), repr(ours)) == (int(theirs), str(theirs), repr(theirs))
