"""DLPack: the memory of an array on the host or on a CUDA device, read from its capsule.

The capsule is looked into and kept, never consumed: when it goes, whoever made it gets the memory
back. The readers of NumPy and CuPy know fewer types.

Source: https://dmlc.github.io/dlpack/latest/ (1.1), ``dlpack.h`` and the Python specification.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_DEFAULT_STREAM = 1
"""CUDA's legacy default stream; 0, its address, is not allowed."""

_READ_ONLY = 1


class _Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """``DLManagedTensor``, of producers older than version 1."""

    _fields_ = (
        ("tensor", _Tensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_NARROW: dict[tuple[int, int], type] = {
    (4, 16): ml_dtypes.bfloat16,
    (7, 8): ml_dtypes.float8_e3m4,
    (8, 8): ml_dtypes.float8_e4m3,
    (9, 8): ml_dtypes.float8_e4m3b11fnuz,
    (10, 8): ml_dtypes.float8_e4m3fn,
    (11, 8): ml_dtypes.float8_e4m3fnuz,
    (12, 8): ml_dtypes.float8_e5m2,
    (13, 8): ml_dtypes.float8_e5m2fnuz,
    (14, 8): ml_dtypes.float8_e8m0fnu,
}
"""Data types by DLPack code and bits."""

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class Tensor(NamedTuple):
    """Address, shape, data type and byte strides of an array."""

    address: int
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_read_only: bool


class _Exported:
    """Host memory of a tensor, in the words of NumPy."""

    __slots__ = ("__array_interface__", "_kept")

    def __init__(self, tensor: Tensor, kept: Any) -> None:
        self._kept = kept
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.address, tensor.is_read_only),
            "shape": tensor.shape,
            "strides": tensor.strides,
            "typestr": f"|V{tensor.dtype.itemsize}",
        }


def is_on_cuda(array: Any) -> bool:
    """Whether an object exports DLPack with memory of a CUDA device."""
    device = getattr(array, "__dlpack_device__", None)
    return device is not None and int(device()[0]) in (_CUDA, _CUDA_MANAGED)


def as_numpy(array: Any) -> Any:
    """Return a NumPy array in the memory of a tensor on the host; anything else unchanged.

    A tensor has a data type that is not one of NumPy, to which those of PyTorch convert themselves
    only if NumPy has the same.

    Raises
    ------
    TypeError
        If its memory is that of a device, or NumPy and ml_dtypes lack its data type.
    """
    dtype = getattr(array, "dtype", None)
    is_tensor = hasattr(array, "__dlpack__") and not isinstance(dtype, np.dtype)
    if dtype is None and hasattr(array, "__array__"):  # It may hold what DLPack has no words for.
        return array
    return host_view(array) if is_tensor else array


def host_view(array: Any) -> NDArray[Any]:
    """Return a NumPy array in the host memory that an object exports by DLPack.

    Raises
    ------
    TypeError
        If its memory is that of a device, NumPy and ml_dtypes lack its data type, or it exports
        none.
    """
    kind = int(array.__dlpack_device__()[0])
    if kind not in (_CPU, _CUDA_HOST):
        raise TypeError(
            f"{type(array).__name__} is in the memory of a device (DLPack's type {kind}), but host "
            "memory is needed: copy it there first"
        )
    try:
        tensor, capsule = tensor_of(array, None)
    except BufferError as error:
        raise TypeError(f"{type(array).__name__} exports no memory by DLPack: {error}") from error
    if 0 in tensor.shape:
        return np.empty(tensor.shape, tensor.dtype)
    return np.asarray(_Exported(tensor, (array, capsule))).view(tensor.dtype)


def tensor_of(array: Any, stream: int | None) -> tuple[Tensor, Any]:
    """Return the tensor of an array, and the capsule to keep as long as the tensor is used.

    Parameters
    ----------
    stream : int or None
        Address of the CUDA stream on which the memory will be used. The exporter orders its work
        so far before later work of this stream. None for host memory.

    Raises
    ------
    TypeError
        If NumPy and ml_dtypes lack its data type, or the capsule is not of DLPack.
    """
    if stream == 0:
        stream = _DEFAULT_STREAM
    try:
        capsule = array.__dlpack__(stream=stream, max_version=(1, 1))
    except TypeError:  # Before DLPack 1.0 there was no `max_version`.
        capsule = array.__dlpack__(stream=stream)
    is_read_only = False
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise TypeError(f"DLPack {versioned.major}.{versioned.minor}, expected version 1")
        is_read_only = bool(versioned.flags & _READ_ONLY)
        tensor = versioned.tensor
    elif _is_valid(capsule, b"dltensor"):
        tensor = _Managed.from_address(_pointer(capsule, b"dltensor")).tensor
    else:
        raise TypeError(f"DLPack: expected a capsule with a tensor, got {capsule!r}")
    dtype = _dtype(tensor)
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides:
        strides = tuple(dtype.itemsize * step for step in tensor.strides[: tensor.ndim])
    else:
        sizes = [dtype.itemsize]
        for extent in shape[:0:-1]:
            sizes.insert(0, sizes[0] * extent)
        strides = tuple(sizes[: len(shape)])
    address = (tensor.data or 0) + tensor.byte_offset
    return Tensor(address, strides, shape, dtype, is_read_only), capsule


def _dtype(tensor: _Tensor) -> np.dtype[Any]:
    found: Any = _NARROW.get((tensor.code, tensor.bits))
    if found is None and tensor.code in _KINDS and tensor.bits % 8 == 0:
        found = f"{_KINDS[tensor.code]}{tensor.bits // 8}"
    try:
        if found is not None and tensor.lanes == 1:
            dtype: np.dtype[Any] = np.dtype(found)
            return dtype
    except TypeError:
        pass
    raise TypeError(
        f"DLPack: no type has code {tensor.code}, {tensor.bits} bits and {tensor.lanes} lanes"
    )
