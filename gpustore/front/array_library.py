"""Array libraries to which reads give their arrays: the values of ``to=``, loaded when given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore import registry
from gpustore.backends.base import Output
from gpustore.drivers.base import Driver
from gpustore.errors import UnsupportedError
from gpustore.runtime.future import Future
from gpustore.runtime.then import then

_ALIGNMENT: Final = 64

_LIBRARIES: Final = ("numpy", "cupy", "torch", "jax")


def given_to(
    to: str, driver: Driver, output: Output, shape: tuple[int, ...]
) -> tuple[Output, Callable[[Future[Any]], Future[Any]]]:
    """Return what a read fills, and a function that gives its array to a library.

    Parameters
    ----------
    to : {"numpy", "cupy", "torch", "jax"}
    driver : Driver
        Driver of the store that is read.
    output : Output
        Array of the caller or a new one.
    shape : tuple of int
        Shape of the array.

    Returns
    -------
    output : Output
        Output for the read.
    hand_over : callable
        Makes a Future of the library's array from the Future of the read.

    Raises
    ------
    UnsupportedError
        If the library lacks the data type of the store, or arrays in its memory.
    LimitError
        If there is not enough memory.
    ModuleNotFoundError
        If the library is not installed.
    ValueError
        If it is not one of these libraries, or `out` is given.
    """
    if to not in _LIBRARIES:
        raise ValueError(f"to: expected one of {', '.join(_LIBRARIES)}, got {to!r}")
    if output.array is not None:
        raise ValueError("give either `out`, which is the array returned, or `to`")
    on_host = driver.device == "cpu"
    if to == "cupy" and on_host:
        raise UnsupportedError(
            'a store in host memory gives no CuPy arrays: open it with device="cuda", so that it '
            "is read to the GPU"
        )
    if to == ("numpy" if on_host else "cupy"):
        return output, lambda future: future
    if to == "numpy":
        return output, lambda future: then(future, driver.backend.to_host, driver.executor)
    convert = registry.guest(to).conversion(driver.dtype)
    if to == "jax" and on_host:  # JAX copies what is not aligned.
        output = output._replace(array=_aligned(driver, shape, output.order))
    return output, lambda future: then(future, convert, driver.executor, on_stream=True)


def _aligned(driver: Driver, shape: tuple[int, ...], order: str) -> NDArray[Any]:
    """Allocate an array in host memory, of undefined contents, at a multiple of 64 bytes."""
    dtype = driver.dtype.array_dtype
    nbytes = math.prod(shape) * dtype.itemsize + _ALIGNMENT
    flat = driver.backend.empty((nbytes,), np.dtype(np.uint8), "C").array
    start = -flat.ctypes.data % _ALIGNMENT
    return np.ndarray(shape, dtype, flat, start, order="F" if order == "F" else "C")
