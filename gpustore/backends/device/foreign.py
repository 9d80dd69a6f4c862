"""Device memory and streams by address, exchanged with other libraries.

Arrays come through ``__cuda_array_interface__`` (version 3) or DLPack. Which device an address lies
on is for the caller to find out.

Source: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpustore.backends import dlpack
from gpustore.codec_chain.layout import ChunkBytes


@dataclass(frozen=True, slots=True)
class ForeignArray:
    """Array of another library; see :class:`gpustore.device.protocol.DeviceArray`.

    Attributes
    ----------
    capsule : object
        DLPack capsule that keeps the memory alive besides the array; None for other protocols.
    """

    array: Any
    address: int
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_read_only: bool = False
    capsule: Any = None


def foreign_array(array: Any, stream: int) -> ForeignArray | None:
    """Return the device memory of an array; None for any other object.

    Parameters
    ----------
    stream : int
        Address of the CUDA stream on which the memory will be used.

    Raises
    ------
    TypeError
        If NumPy and ml_dtypes lack its data type.
    """
    dtype = getattr(array, "dtype", None)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None or (hasattr(array, "__dlpack__") and not isinstance(dtype, np.dtype)):
        # The interface has no text for types like bfloat16, which PyTorch and JAX have.
        if not dlpack.is_on_cuda(array):
            return None
        tensor, capsule = dlpack.tensor_of(array, stream)
        return ForeignArray(array, *tensor, capsule=capsule)
    address, is_read_only = interface["data"]
    shape = tuple(interface["shape"])
    if not isinstance(dtype, np.dtype):
        dtype = np.dtype(interface["typestr"])
    strides = interface.get("strides")
    if strides is None:
        strides = ChunkBytes.contiguous(dtype, shape).strides
    return ForeignArray(array, address or 0, tuple(strides), shape, dtype, is_read_only)


class DeviceBytes:
    """Device memory, exported to other libraries by ``__cuda_array_interface__``."""

    __slots__ = ("__cuda_array_interface__",)

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


@dataclass(frozen=True, slots=True)
class StreamHandle:
    """Stream given by its address, exported by the protocol ``__cuda_stream__``."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.address)


def stream_handle(stream: Any) -> StreamHandle:
    """Return the handle of a CUDA stream of any library.

    Parameters
    ----------
    stream : object
        Address of the stream, an object with ``__cuda_stream__``, or a stream of PyTorch or CuPy,
        whose attribute ``cuda_stream`` or ``ptr`` is the address.

    Raises
    ------
    TypeError
        If it is none of these.

    >>> stream_handle(7)
    StreamHandle(address=7)
    """
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    elif hasattr(stream, "cuda_stream"):
        stream = stream.cuda_stream
    elif hasattr(stream, "ptr"):
        stream = stream.ptr
    if not isinstance(stream, int):
        raise TypeError(f"stream: expected a CUDA stream, got {stream!r}")
    return StreamHandle(stream)
