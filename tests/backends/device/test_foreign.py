"""Arrays of other libraries, by whichever of their two faces says more."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from gpustore.backends.device.foreign import (
    DeviceBytes,
    ForeignArray,
    StreamHandle,
    foreign_array,
    stream_handle,
)
from tests.emulator.dlpack import DlpackArray, TorchLikeArray

VIEW = ForeignArray(None, 4096, (16, -4), (3, 2), np.dtype("<f4"))


class Interface:
    """A thing with ``__cuda_array_interface__``, and a NumPy dtype if one is given."""

    def __init__(self, dtype=None, **interface):
        self.__cuda_array_interface__ = {"version": 3, "data": (4096, False), **interface}
        if dtype is not None:
            self.dtype = dtype


def test_the_interface_says_where_elements_are():
    array = Interface(shape=(3, 2), typestr="<f4", strides=(16, -4))
    assert foreign_array(array, 0) == replace(VIEW, array=array)
    dense = foreign_array(Interface(shape=(3, 2), typestr="<f4"), 0)
    assert dense.strides == (8, 4)
    assert foreign_array(Interface(shape=(3,), typestr="|u1", data=(1, True)), 0).is_read_only
    assert foreign_array(Interface(shape=(0,), typestr="|u1", data=(None, False)), 0).address == 0


def test_a_numpy_dtype_says_more_than_the_text():
    array = Interface(np.dtype(ml_dtypes.bfloat16), shape=(3,), typestr="<V2")
    assert foreign_array(array, 0).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("made_by", [DlpackArray, TorchLikeArray])
def test_dlpack_says_more_than_the_text(made_by):
    view = replace(VIEW, dtype=np.dtype(ml_dtypes.bfloat16), strides=(8, 2))
    array = made_by(view, is_read_only=True)
    found = foreign_array(array, 5)
    assert replace(found, capsule=None) == replace(view, array=array, is_read_only=True)
    assert array.streams == [5]
    assert array.held == 1
    del found
    assert array.held == 0


def test_memory_of_the_host_is_none():
    assert foreign_array(np.zeros(3), 0) is None
    assert foreign_array([1, 2], 0) is None
    assert foreign_array(DlpackArray(VIEW, device_type=1), 0) is None


def test_what_others_take_is_by_address():
    found = foreign_array(DeviceBytes(512, 10), 0)
    assert (found.address, found.shape, found.strides, found.dtype) == (512, (10,), (1,), "u1")
    assert StreamHandle(7).__cuda_stream__() == (0, 7)


@pytest.mark.parametrize("stream", ["7", None, 1.5, TorchLikeArray(VIEW)])
def test_other_objects_are_no_streams(stream):
    with pytest.raises(TypeError, match="expected a CUDA stream"):
        stream_handle(stream)
