"""Arrays that show their device memory by DLPack, as those of PyTorch and JAX do."""

import ctypes

import numpy as np

from gpustore.backends import dlpack

CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
NARROW = {np.dtype(kind): code for (code, _), kind in dlpack._NARROW.items()}

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class DlpackArray:
    """A view of device memory that has DLPack and nothing else, as arrays of JAX.

    Parameters
    ----------
    view : DeviceArray
        Its strides are multiples of the item size.
    device, stream : EmulatedDevice and EmulatedStream, optional
        Whose last work on the memory runs on this stream.
    version : int
        1, or 0 for what producers made before there were versions.

    Attributes
    ----------
    streams : list of int
        What each ``__dlpack__`` was asked with.
    held : int
        Capsules that are not gone yet.
    """

    def __init__(
        self,
        view,
        device=None,
        stream=None,
        *,
        version=1,
        is_read_only=False,
        device_type=2,
        dense=False,
        lanes=1,
    ):
        self._view = view
        self._order = (device, stream)
        self._version = version
        self._is_read_only = is_read_only
        self._device_type = device_type
        self._dense = dense
        self._lanes = lanes
        self._kept = {}
        self.streams = []

    @property
    def held(self):
        return len(self._kept)

    def __dlpack_device__(self):
        return (self._device_type, 0)

    def __dlpack__(self, *, stream=None, **more):
        if self._version == 0 and more:
            raise TypeError(f"unexpected keyword arguments {list(more)}")
        self.streams.append(stream)
        device, own = self._order
        if device is not None:
            device.wait(device.caller_stream(stream), device.record(own))
        managed, tensor = self._managed()
        shape = (ctypes.c_int64 * len(self._view.shape))(*self._view.shape)
        itemsize = self._view.dtype.itemsize
        strides = (ctypes.c_int64 * len(shape))(*(s // itemsize for s in self._view.strides))
        # Some bytes before the first element, as slices have.
        tensor.data, tensor.byte_offset = self._view.address - 8, 8
        tensor.device_type, tensor.ndim, tensor.lanes = self._device_type, len(shape), self._lanes
        dtype = self._view.dtype
        tensor.code = NARROW[dtype] if dtype in NARROW else CODES[dtype.kind]
        tensor.bits = 8 * itemsize
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        if not self._dense:
            tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
        address = ctypes.addressof(managed)
        kept = self._kept
        destructor = _Destructor(lambda _: kept.pop(address, None) and None)
        self._kept[address] = (managed, shape, strides)
        _DESTRUCTORS.append(destructor)
        name = b"dltensor_versioned" if self._version else b"dltensor"
        return _new(address, name, ctypes.cast(destructor, ctypes.c_void_p))

    def _managed(self):
        if not self._version:
            managed = dlpack._Managed()
        else:
            managed = dlpack._Versioned()
            managed.major, managed.flags = self._version, int(self._is_read_only)
        return managed, managed.tensor


_DESTRUCTORS = []
"""They must outlive their capsules."""


class TorchLikeArray(DlpackArray):
    """The same with a second face and a type of its own, as tensors of PyTorch."""

    dtype = "torch.bfloat16"

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self._view.shape,
            "typestr": f"<V{self._view.dtype.itemsize}",
            "data": (self._view.address, False),
            "strides": self._view.strides,
            "version": 3,
        }
