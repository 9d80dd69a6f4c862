"""The array driver and ``gpustore.array`` against TensorStore's."""

import copy
import gc
import pickle

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.errors import MismatchError, OutOfBoundsError, UnsupportedError
from tests.drivers.parity import LIBRARIES, agree, description, outcome
from tests.matrix import each


def opened(library, array, **members):
    """Read an array spec; return the elements as text, or the error."""
    spec = {"driver": "array", "array": copy.deepcopy(array), **members}
    return outcome(lambda: library.open(spec).result().read().result())


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@each(
    ("array", "dtype"),
    [
        (5, "uint8"),
        ([1, 2], "int8"),
        ([[1, 2], [3, 4]], "int32"),
        ([[1, 2], [3]], "int32"),
        ([[1, 2], 3], "int32"),
        ([1, [2]], "int32"),
        ([1, [2, 3]], "int32"),
        ([[1, []]], "int8"),
        ([[1], []], "int8"),
        ([], "uint8"),
        ([[], []], "uint8"),
        ([1, "x"], "int32"),
        ([1, 300], "uint8"),
        ([1, -9], "int4"),
        ([1, -8], "int4"),
        ([1, "3", 3.0], "uint8"),
        ([2**64 - 1], "uint64"),
        ([-(2**63)], "int64"),
        (None, "int8"),
        ({}, "int8"),
        ([1.5, "NaN", "-Infinity", "1.5"], "float32"),
        ([1.5, "0x7fc00000"], "float32"),
        ([1, 2.5], "bfloat16"),
        ([0.3], "float8_e4m3fn"),
        ([1e300], "float16"),
        ([True, "true", "false"], "bool"),
        ([True, 0], "bool"),
        ([1, {"a": [None]}], "json"),
        ([[1, 2], {"a": 1}], "json"),
        ([1, [2, 3]], "json"),
        ("x", "json"),
        (["a", "é"], "string"),
        (["a", "é"], "ustring"),
        (["a", 1], "ustring"),
        ([1], "char"),
        (["a"], "byte"),
        (nested(32), "int8"),
        (nested(33), "int8"),
    ],
)
def test_elements_are_parsed_as_in_tensorstore(array, dtype):
    assert agree(opened(gpustore, array, dtype=dtype), opened(ts, array, dtype=dtype))


@each(
    "members",
    [
        {},
        {"dtype": "foo"},
        {"dtype": "int8", "foo": 1},
        {"dtype": "int8", "kvstore": "memory://"},
        {"dtype": "int8", "rank": 1},
        {"dtype": "int8", "rank": 2},
        {"dtype": "int8", "schema": {"dtype": "int8", "rank": 1}},
        {"dtype": "int8", "schema": {"dtype": "int16"}},
        {"dtype": "int8", "schema": {"rank": 2}},
        {"dtype": "int8", "schema": {"domain": {"shape": [2]}}},
        {"dtype": "int8", "schema": {"domain": {"shape": [3]}}},
        {"dtype": "int8", "schema": {"domain": {"labels": ["x"], "shape": [2]}}},
        {"dtype": "int8", "schema": {"domain": {"labels": ["x"]}}},
        {"dtype": "int8", "schema": {"fill_value": 1}},
        {"dtype": "int8", "schema": {"codec": {"driver": "zarr3"}}},
        {"dtype": "int8", "schema": {"dimension_units": ["4nm"]}},
        {"dtype": "int8", "schema": {"chunk_layout": {"chunk": {"shape": [1]}}}},
        {"dtype": "int8", "schema": {"chunk_layout": {"grid_origin": [1]}}},
        {"dtype": "int8", "schema": {"chunk_layout": {"inner_order": [0]}}},
        {"dtype": "int8", "transform": {"input_rank": 1}},
        {"dtype": "int8", "transform": {"input_rank": 2}},
        {"dtype": "int8", "transform": {"input_shape": [2]}},
        {"dtype": "int8", "create": True},
        {"dtype": "int8", "open": True},
        {"dtype": "int8", "create": True, "delete_existing": True},
    ],
)
def test_members_are_checked_as_in_tensorstore(members):
    assert agree(opened(gpustore, [1, 2], **members), opened(ts, [1, 2], **members))


@pytest.mark.parametrize(
    ("shape", "offset"), [([1], 1), ([2], 0), ([3], 0), ([2], 1), ([1], -1), ([5], 10**15)]
)
def test_a_transform_of_the_spec_must_stay_inside(shape, offset):
    transform = {"input_shape": shape, "output": [{"input_dimension": 0, "offset": offset}]}
    found, expected = (
        opened(library, [1, 2], dtype="int8", transform=transform) for library in LIBRARIES
    )
    assert agree(found, expected)


def test_the_inner_order_of_a_spec_cannot_be_changed():
    schema = {"chunk_layout": {"inner_order": [1, 0]}}
    found, expected = (opened(lib, [[1, 2]], dtype="int8", schema=schema) for lib in LIBRARIES)
    assert agree(found, expected)


@pytest.mark.parametrize("array", [[[1, 2], [3, 4]], [[0.5]], 3.5])
def test_opened_stores_describe_themselves_as_in_tensorstore(array):
    spec = {"driver": "array", "array": array, "dtype": "float32"}
    found, expected = (description(library.open(spec).result()) for library in LIBRARIES)
    if array == [[0.5]]:
        # TensorStore writes dimensions of size 1 as broadcast ones.
        for values in (found, expected):
            del values["spec"]
    assert found == expected
    assert str(gpustore.Spec(spec)) == repr(ts.Spec(spec))


def test_dimension_units_of_a_spec_are_kept():
    spec = {"driver": "array", "array": [1, 2], "dtype": "int8"}
    spec["schema"] = {"dimension_units": [[4, "nm"]]}
    stores = [library.open(spec).result() for library in LIBRARIES]
    assert repr(stores[0].dimension_units) == repr(stores[1].dimension_units)
    again = gpustore.open(stores[0].spec()).result()
    assert again.dimension_units == stores[0].dimension_units


@pytest.mark.parametrize(
    "update",
    [
        {"create": True},
        {"open": True},
        {"fill_value": 3},
        {"shape": [2]},
        {"shape": [1]},
        {"minimal_spec": True},
        {"dimension_units": ["3nm"]},
    ],
)
def test_specs_are_updated_as_in_tensorstore(update):
    texts = []
    for library in LIBRARIES:
        spec = library.Spec({"driver": "array", "array": [1], "dtype": "int8"})
        spec.update(**update)
        opening = outcome(lambda spec=spec, library=library: library.open(spec).result().mode)
        texts.append((repr(spec.to_json()), repr(spec.open_mode), opening))
    assert texts[0][:2] == texts[1][:2]
    assert agree(texts[0][2], texts[1][2])


@pytest.mark.parametrize("access", [{}, {"read": True}, {"write": True}])
def test_access_asked_for(access):
    spec = {"driver": "array", "array": [1], "dtype": "int8"}
    found, expected = (library.open(spec, **access).result() for library in LIBRARIES)
    assert found.mode == expected.mode
    for operation in (lambda s: s.read().result(), lambda s: s.write(1).result()):
        a, b = (outcome(lambda s=s, f=operation: f(s)) for s in (found, expected))
        assert agree(a, b)


# ---- gpustore.array


SOURCES = {
    "C": np.arange(6.0).reshape(2, 3),
    "F": np.arange(6).reshape(3, 2).T,
    "negative": np.arange(24).reshape(4, 6)[::-2, ::-3],
    "broadcast": np.broadcast_to(np.arange(3), (2, 3)),
    "transposed": np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0)[:, 1:3],
    "empty": np.zeros((0, 2)),
    "scalar": np.array(5),
    "complex": np.array([1 + 2j, np.nan]),
    "bfloat16": np.arange(4, dtype=ml_dtypes.bfloat16),
    "float8_e5m2": np.arange(8, dtype=ml_dtypes.float8_e5m2)[::-3],
    "bool": np.array([True, False]),
}


@each("name", SOURCES)
def test_wrapped_arrays_are_as_in_tensorstore(name):
    source = SOURCES[name]
    found, expected = (library.array(source) for library in LIBRARIES)
    properties = ("dtype", "shape", "domain", "chunk_layout", "mode", "rank", "size", "origin")
    for prop in properties:
        a, b = (outcome(lambda s=s, p=prop: getattr(s, p)) for s in (found, expected))
        assert agree(a, b), prop
    for order in "CF":
        a = found.read(order=order).result()
        b = expected.read(order=order).result()
        assert a.strides == b.strides or not a.size
        assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())


@given(st.data())
def test_affine_views_of_strided_arrays_read_and_write_as_numpy(data):
    rank = data.draw(st.integers(0, 3))
    base = np.arange(7**rank, dtype=data.draw(st.sampled_from(["u1", "i4", "c16"])))
    array = base.reshape((7,) * rank).copy()
    steps = [data.draw(st.sampled_from([1, -1, 2, -3])) for _ in range(rank)]
    array = array[(*(slice(None, None, step) for step in steps), ...)].transpose(
        data.draw(st.permutations(range(rank)))
    )
    index = []
    for size in array.shape:
        low = data.draw(st.integers(0, size - 1))
        high = data.draw(st.integers(low, size))
        step = data.draw(st.sampled_from([1, 2, -1]))
        if step < 0 and high > low:
            index.append(slice(high - 1, low - 1 if low else None, -1))
        else:
            index.append(slice(low, high, max(step, 1)))
    store = gpustore.array(array)[tuple(index)]
    expected = array[(*index, ...)]
    assert np.array_equal(store.read().result(), expected)
    out = np.zeros(expected.shape[::-1], expected.dtype).T
    assert store.read(out=out).result() is out
    assert np.array_equal(out, expected)
    new = (expected + 1).copy()
    store.write(new).result()
    assert np.array_equal(array[(*index, ...)], new)


def test_an_array_is_wrapped_without_a_copy_and_kept_alive():
    array = np.zeros((2, 3), "i4")
    store = gpustore.array(array)
    store[1, ::2] = 7
    assert array.tolist() == [[0, 0, 0], [7, 0, 7]]
    array[0, 0] = 1
    assert store.read().result()[0, 0] == 1
    part = gpustore.array(np.arange(10**6))[500_000]
    gc.collect()
    assert part.read().result() == 500_000


def test_read_only_arrays_can_be_read_but_not_written():
    array = np.arange(3)
    array.flags.writeable = False
    store = gpustore.array(array)
    assert store.mode == ts.array(array).mode == "r"
    assert store[1:].read().result().tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"Destination does not support writing\."):
        store.write(1)
    for library in LIBRARIES:
        copied = library.array(array, write=True)
        copied[0] = 5
        assert copied[0].read().result() == 5
        assert array[0] == 0
        with pytest.raises(ValueError, match="Unable to avoid copy while creating an array"):
            library.array(array, write=True, copy=False)
    assert gpustore.array(array, copy=True).mode == "rw"
    assert gpustore.array(np.arange(3), write=False).mode == "r"


def test_implicit_bounds_do_not_lead_outside_the_array():
    store = gpustore.array(np.arange(6).reshape(2, 3)).mark_bounds_implicit[True]
    for outside in ((slice(0, 100), 0), (slice(-1, 1), 0), (0, 3), (-1, 0)):
        with pytest.raises(OutOfBoundsError):
            store[outside].read().result()
        with pytest.raises(OutOfBoundsError):
            store[outside].write(1).result()


def test_diagonals_are_read():
    spec = {"driver": "array", "array": [[1, 2], [3, 4]], "dtype": "int8"}
    diagonal = [{"input_dimension": 0}, {"input_dimension": 0}]
    spec["transform"] = {"input_shape": [2], "output": diagonal}
    assert gpustore.open(spec).result().read().result().tolist() == [1, 4]


@pytest.mark.parametrize(
    "part",
    [
        lambda store: store,
        lambda store: store.T,
        lambda store: store[0],
        lambda store: store[:, 1:2],
        lambda store: store[1:2, ::-1],
        lambda store: store[:, ::2].translate_to[5],
        lambda store: store[None],
        lambda store: store[:, 0:0],
        lambda store: store[1, 2],
        lambda store: store.mark_bounds_implicit[True],
    ],
)
def test_specs_of_views_have_the_elements_of_the_part_alone(part):
    arrays = (
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.broadcast_to(np.arange(3), (2, 3)),
        np.broadcast_to(np.int64(5), (2, 3)),
    )
    for array in arrays:
        ours, theirs = (part(library.array(array)).spec() for library in LIBRARIES)
        assert ours.to_json() == theirs.to_json()
        again = gpustore.open(ours).result()
        assert np.array_equal(again.read().result(), part(gpustore.array(array)).read().result())


@pytest.mark.parametrize(
    "part",
    [
        lambda store: store[:, [0, 2, 2]],
        lambda store: store.vindex[[0, 1], [1, 2]],
        lambda store: store.oindex[[1, 0], [0, 0]].label["x", "y"],
    ],
)
def test_specs_of_picked_elements_have_them_alone(part):
    for order in "CF":
        array = np.arange(6).reshape(2, 3, order=order)
        ours, theirs = (part(library.array(array)).spec() for library in LIBRARIES)
        assert ours.to_json() == theirs.to_json()


@pytest.mark.parametrize("shape", [(0,), (0, 3), (1, 3), (1, 1)])
def test_specs_of_small_arrays_are_those_of_tensorstore(shape):
    ours, theirs = (library.array(np.zeros(shape)).spec() for library in LIBRARIES)
    assert ours.to_json() == theirs.to_json()


def test_index_arrays_select_elements():
    store = gpustore.array(np.arange(3)).oindex[[0, 2]]
    assert store.read().result().tolist() == [0, 2]


def test_other_byte_orders_are_copied():
    # TensorStore 0.1.86 reads their bytes the wrong way round.
    array = np.arange(3).astype(">i4")
    store = gpustore.array(array)
    assert store.read().result().tolist() == [0, 1, 2]
    store[0] = 9
    assert array[0] == 0
    with pytest.raises(ValueError, match="copy"):
        gpustore.array(array, copy=False)


@each(
    ("source", "dtype"),
    [
        ([1, 2], None),
        ([1.5, 2], "int8"),
        ([[1], [2]], "float32"),
        (np.arange(3), "int8"),
        (np.arange(3, dtype="i1"), "int16"),
        (np.zeros(1), "bool"),
        (["a", "b"], "ustring"),
        (["a", 3], "json"),
        ([{"a": 1}, 2], "json"),
        (np.array([{"a": 1}, 2]), None),
        ([object()], "json"),
        (np.zeros(2, "float128"), None),
    ],
)
def test_sources_are_converted_as_in_tensorstore(source, dtype):
    results = []
    for library in LIBRARIES:
        wanted = None if dtype is None else library.dtype(dtype)
        results.append(
            outcome(lambda a=library.array, w=wanted: a(source, dtype=w).read().result())
        )
    assert agree(*results)


@pytest.mark.parametrize("values", [["a", "bcd"], np.array(["NaT", "2020-01-01"], ">M8[s]")])
def test_types_that_tensorstore_lacks_are_those_of_numpy(values):
    with pytest.raises(ValueError, match="No TensorStore data type"):
        ts.array(values)
    store = gpustore.array(values)
    assert store.dtype == np.asarray(values).dtype
    found = store.read().result()
    assert found.tolist() == np.asarray(values).tolist()
    assert found.dtype.isnative
    store[0] = found[1]
    assert store[0].read().result() == found[1]


def test_strings_are_not_cut():
    store = gpustore.array(["a", "bcd"])
    for too_long in ("abcd", ["abcd"], np.array("abcd")):
        with pytest.raises(TypeError, match="Cannot cast array data"):
            store[0] = too_long


def test_objects_are_checked_when_written():
    store = gpustore.array(["a", "b"], dtype="ustring")
    store[1] = "x"
    assert store.read().result().tolist() == ["a", "x"]
    for wrong in (3, b"x", ["a", None]):
        with pytest.raises(TypeError):
            store.write(wrong)
    lists = gpustore.array([[1], [2, 3]], dtype="json")
    assert lists.shape == (2,)
    lists[0] = {"a": (1,)}
    assert lists.read().result().tolist() == [{"a": [1]}, [2, 3]]


def test_wrong_sources_are_refused():
    store = gpustore.array(np.zeros((2, 3), "u1"))
    with pytest.raises(MismatchError, match=r"source dimension 0 \[0, 2\) mismatch"):
        store.write([1, 2])
    with pytest.raises(TypeError, match="rule 'safe'"):
        store.write(np.zeros((2, 3)))
    with pytest.raises(OverflowError):
        store.write(300)
    with pytest.raises(MismatchError, match="out has shape"):
        store.read(out=np.zeros((3, 2), "u1"))


def test_there_is_nothing_to_resize_and_no_url():
    store = gpustore.array([1])
    with pytest.raises(UnsupportedError, match="URL representation not supported"):
        store.url  # noqa: B018
    with pytest.raises(UnsupportedError, match="Resize not supported"):
        store.resize(exclusive_max=[2]).result()
    assert store.kvstore is None
    assert store.resolve().result().shape == (1,)
    with pytest.raises(ValueError, match="dtype must be specified"):
        gpustore.Spec({"driver": "array", "array": [1]})


def test_what_is_written_is_not_in_the_spec():
    found = []
    for library in (gpustore, ts):
        spec = library.array(np.arange(3)).spec()
        store = library.open(spec).result()
        store[0] = 9
        view = library.overlay([spec])
        view[1] = 9
        seen = store, library.open(spec).result(), view
        found.append([one.read().result().tolist() for one in seen])
        found[-1].append(spec.to_json()["array"])
    assert found[0] == found[1]


def test_stores_and_specs_survive_pickling():
    store = gpustore.array(np.arange(6.0).reshape(2, 3))[1, 1:]
    again = pickle.loads(pickle.dumps(store))
    assert repr(again) == repr(store)
    assert again.read().result().tolist() == [4, 5]
    spec = store.spec()
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert gpustore.open(gpustore.Spec(spec.to_json())).result().read().result().tolist() == [4, 5]
