"""DLPack capsules: NumPy's own, and made ones of every type and version."""

import gc
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import gpustore
from gpustore.backends import dlpack
from gpustore.backends.device.foreign import ForeignArray
from tests.emulator.dlpack import NARROW, DlpackArray
from tests.matrix import each

VIEW = ForeignArray(None, 4096, (16, -4), (3, 2), np.dtype("<f4"))


class OfNumpy:
    """A NumPy array that takes a stream, as arrays on devices do."""

    def __init__(self, array, *, has_versions):
        self.array = array
        self.has_versions = has_versions

    def __dlpack__(self, *, stream, **more):
        assert stream == 7
        if more and not self.has_versions:
            raise TypeError(f"unexpected keyword arguments {list(more)}")
        return self.array.__dlpack__(**more)


@each("has_versions", [True, False], ids=["version 1", "older"])
@each("dtype", [*"?bBhHiIqQefd", "c8", "c16"])
def test_tensors_of_numpy_are_where_numpy_says(dtype, has_versions):
    whole = np.zeros((5, 6, 7), dtype)
    for array in (whole, whole[1:, ::-2, 3], whole.T, whole[2, 3, 4, ...], whole[:0]):
        tensor, capsule = dlpack.tensor_of(OfNumpy(array, has_versions=has_versions), 7)
        if array.size:
            assert tensor.address == array.ctypes.data
            assert tensor.strides == array.strides
        assert (tensor.shape, tensor.dtype) == (array.shape, array.dtype)
        assert not tensor.is_read_only
        del capsule


def test_memory_that_is_read_only_is_said_so():
    array = np.zeros(3)
    array.flags.writeable = False
    assert dlpack.tensor_of(OfNumpy(array, has_versions=True), 7)[0].is_read_only


@each("version", [0, 1])
@each("dtype", NARROW)
def test_types_of_ml_dtypes_are_known(dtype, version):
    view = replace(VIEW, dtype=dtype, strides=(8, -dtype.itemsize))
    tensor, _ = dlpack.tensor_of(DlpackArray(view, version=version), 0)
    assert tensor == (view.address, view.strides, view.shape, dtype, False)
    assert tensor.dtype == dtype


def test_without_strides_elements_are_in_c_order():
    for shape, strides in (((3, 4, 2), (32, 8, 4)), ((5,), (4,)), ((), ())):
        view = replace(VIEW, shape=shape, strides=strides)
        assert dlpack.tensor_of(DlpackArray(view, dense=True), 0)[0].strides == strides


def test_a_capsule_is_given_back_when_it_goes_and_not_before():
    array = DlpackArray(VIEW)
    tensor, capsule = dlpack.tensor_of(array, 0)
    gc.collect()
    assert array.held == 1
    assert tensor.address == VIEW.address
    del capsule
    assert array.held == 0


def test_the_default_stream_is_named_as_dlpack_wants():
    array = DlpackArray(VIEW)
    dlpack.tensor_of(array, 0)
    dlpack.tensor_of(array, 77)
    assert array.streams == [1, 77]


def test_only_memory_of_cuda_counts():
    assert dlpack.is_on_cuda(DlpackArray(VIEW))
    assert dlpack.is_on_cuda(DlpackArray(VIEW, device_type=13))
    assert not dlpack.is_on_cuda(DlpackArray(VIEW, device_type=3))  # Pinned.
    assert not dlpack.is_on_cuda(np.zeros(3))
    assert not dlpack.is_on_cuda([1])


def test_what_is_not_understood_is_refused():
    with pytest.raises(TypeError, match=r"DLPack 2\.0, expected version 1"):
        dlpack.tensor_of(DlpackArray(VIEW, version=2), 0)
    with pytest.raises(TypeError, match="no type has code 2, 32 bits and 4 lanes"):
        dlpack.tensor_of(DlpackArray(VIEW, lanes=4), 0)
    with pytest.raises(TypeError, match="no type has code 2, 8 bits"):
        dlpack.tensor_of(DlpackArray(replace(VIEW, dtype=OddType())), 0)

    class Strange:
        def __dlpack__(self, **_):
            return None

    with pytest.raises(TypeError, match="expected a capsule with a tensor, got None"):
        dlpack.tensor_of(Strange(), 0)


class OddType:
    """A type of one byte that calls itself a float."""

    kind, itemsize = "f", 1


def test_all_narrow_types_are_those_of_ml_dtypes():
    assert {np.dtype(kind) for kind in dlpack._NARROW.values()} >= {
        np.dtype(getattr(ml_dtypes, name)) for name in dir(ml_dtypes) if name.startswith("float8_")
    }


def on_host(values, **options):
    """A tensor of the host that has DLPack and nothing else."""
    view = ForeignArray(values, values.ctypes.data, values.strides, values.shape, values.dtype)
    return DlpackArray(view, device_type=1, **options)


@pytest.mark.matrix("costly")
@each("dtype", [*NARROW, np.dtype("<u2"), np.dtype("?"), np.dtype("c8")])
def test_tensors_of_the_host_are_arrays_in_the_same_memory(dtype):
    whole = np.arange(1, 49 * dtype.itemsize, dtype=np.uint8)[: 48 * dtype.itemsize]
    values = (whole % 2 if dtype.kind == "b" else whole).view(dtype).reshape(6, 8)[1:, ::-2]
    tensor = on_host(values)
    found = dlpack.as_numpy(tensor)
    assert (found.dtype, found.shape, found.strides) == (dtype, values.shape, values.strides)
    assert found.ctypes.data == values.ctypes.data
    assert tensor.held == 1
    assert tensor.streams == [None]
    target = gpustore.array(np.zeros((5, 4), dtype))
    target.write(tensor).result()
    np.testing.assert_array_equal(target.read().result().view("u1"), values.copy().view("u1"))
    out = on_host(np.zeros((5, 4), dtype))
    assert target.read(out=out).result() is out
    np.testing.assert_array_equal(dlpack.as_numpy(out).view("u1"), values.copy().view("u1"))
    del found
    gc.collect()
    assert tensor.held == 0


def test_tensors_of_no_use_to_the_host_are_refused():
    values = np.zeros(3, "f4")
    store = gpustore.array(values)
    with pytest.raises(TypeError, match="memory of a device"):
        store.write(DlpackArray(replace(VIEW, shape=(3,)), device_type=8))
    with pytest.raises(TypeError, match="device memory"):
        store.write(DlpackArray(replace(VIEW, shape=(3,))))
    with pytest.raises(TypeError, match="read-only"):
        store.read(out=on_host(values, is_read_only=True))
    empty = on_host(np.zeros((0, 3), "f4"))
    assert dlpack.as_numpy(empty).shape == (0, 3)
    assert dlpack.as_numpy(values) is values
