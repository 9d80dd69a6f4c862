"""Host memory of the host backend: :class:`HostMemory`, and its making from other objects.

NumPy makes views from a buffer, an offset and strides several times faster than by slicing, but
only over contiguous buffers: so an array goes together with the flat bytes that it lies in.
"""

from __future__ import annotations

import ctypes
import math
import os
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends import dlpack
from gpustore.backends.host.retained_memory import SMALLEST_NBYTES, retained
from gpustore.errors import LimitError, MismatchError
from gpustore.index_space import IndexDomain
from gpustore.strict_json.parsing import quote


def _physical_nbytes() -> int:
    """Return the bytes of memory of this machine; the largest integer if the system hides it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


PHYSICAL_NBYTES = _physical_nbytes()
"""Upper bound, in bytes, of an array read into new memory."""


class HostMemory:
    """A NumPy array and a flat view of the bytes between its first and its last element.

    Parameters
    ----------
    array : ndarray
    flat : ndarray of uint8 or None
        All bytes of the array, whatever its strides; of objects, all references. None for an array
        without gaps, of which the view is made when it is needed.
    offset : int
        Byte in `flat` at which the element of index zero starts.
    strides : tuple of int, optional
        Bytes between neighbours; by default those of the array.
    """

    __slots__ = ("_flat", "_strides", "array", "offset")

    def __init__(
        self,
        array: NDArray[Any],
        flat: NDArray[np.uint8] | None,
        offset: int,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.array = array
        self._flat = flat
        self.offset = offset
        self._strides = strides

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours."""
        strides = self._strides
        return self.array.strides if strides is None else strides

    @property
    def flat(self) -> NDArray[np.uint8]:
        """All bytes of the array."""
        flat = self._flat
        if flat is None:
            flat = self._flat = self.array.ravel("K").view(np.uint8)
        return flat


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], order: str = "C") -> HostMemory:
    """Allocate an array of undefined contents in `order` ``"C"`` or ``"F"``.

    Raises
    ------
    LimitError
        If there is not enough memory.
    """
    array = new_array(shape, dtype, order)
    # NumPy makes no bytes of references.
    return memory_of(array) if dtype.hasobject else HostMemory(array, None, 0)


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any], order: str = "C") -> NDArray[Any]:
    """Allocate an array as :func:`empty` does, which raises the same errors."""
    is_c = order != "F"
    try:
        array: NDArray[Any] = np.empty(shape, dtype) if is_c else np.empty(shape, dtype, "F")
    except (MemoryError, ValueError) as error:
        raise too_large(shape, dtype) from error
    nbytes = array.nbytes
    if nbytes < SMALLEST_NBYTES:
        return array
    if nbytes > PHYSICAL_NBYTES:
        # A kernel that overcommits promises any size and kills whoever fills it.
        raise too_large(shape, dtype)
    if not dtype.hasobject and (memory := retained(nbytes)) is not None:
        array = np.ndarray(shape, dtype, memory, order="C" if is_c else "F")
    return array


def memory_of(array: NDArray[Any]) -> HostMemory:
    """Make the memory of an array of any strides, with the flat bytes that hold it."""
    if array.flags.forc and not array.dtype.hasobject:
        return HostMemory(array, None, 0)
    low, high = np.lib.array_utils.byte_bounds(array)
    if array.dtype.hasobject:
        return _object_memory(array, low, high)
    flat = np.frombuffer(memoryview((ctypes.c_ubyte * (high - low)).from_address(low)), np.uint8)
    return HostMemory(array, flat, array.ctypes.data - low)


def _object_memory(array: NDArray[Any], low: int, high: int) -> HostMemory:
    """Make the memory of an array of objects, of which NumPy makes no views from bytes."""
    itemsize = array.dtype.itemsize
    if any(stride % itemsize for stride in array.strides):
        raise TypeError("references to objects must be whole steps apart, not a field of records")
    if not array.size:
        return HostMemory(array, np.empty(0, object), 0)
    first = array[(*(slice(0, 1) if s >= 0 else slice(-1, None) for s in array.strides), ...)]
    flat = object_view(first.reshape(-1), ((high - low) // itemsize,), 0, (itemsize,))
    return HostMemory(array, flat, array.ctypes.data - low)


def object_view(
    flat: NDArray[Any], shape: tuple[int, ...], start: int, strides: tuple[int, ...]
) -> NDArray[Any]:
    """Make a view of references, from a byte offset and byte strides."""
    first = flat[start // flat.itemsize :]
    view: NDArray[Any] = np.lib.stride_tricks.as_strided(first, shape, strides)
    return view


def too_large(shape: tuple[int, ...], dtype: np.dtype[Any]) -> LimitError:
    """Make the error for an array that there is no memory for."""
    nbytes = math.prod(shape) * dtype.itemsize
    return LimitError(
        f"An array of shape {list(shape)} and {nbytes} bytes does not fit the memory; read it in "
        f"parts"
    )


def viewed(out: Any) -> NDArray[Any]:
    """View the host memory that an object exports as an array; TypeError if it exports none."""
    if hasattr(out, "__array_interface__"):
        return np.asarray(out)
    try:
        return np.asarray(memoryview(out))
    except TypeError:
        if hasattr(out, "__dlpack__"):
            return dlpack.host_view(out)
    raise TypeError(
        f"out must be a NumPy array or offer the buffer protocol, __array_interface__ or DLPack, "
        f"got {type(out).__name__}"
    )


_INTEGERS: Final = ("bool", "int", "uint")


def converted(array: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Cast `array` to `dtype` under NumPy's rule "safe"; Python numbers convert by value.

    Floats are no integers by value either: TensorStore would drop their fraction.
    """
    if type(array) is np.ndarray and array.dtype == dtype:
        return array
    array = dlpack.as_numpy(array)
    by_value = dtype.kind not in "MmUV" or dtype.isbuiltin == 2
    if isinstance(array, np.generic) and by_value:
        array = array.item()  # Converts by value, like the Python number it stands for.
    if not isinstance(array, np.ndarray) and not hasattr(array, "__array__"):
        listed = np.asarray(array)
        # A list of nothing is of floats for NumPy.
        if dtype.name.startswith(_INTEGERS) and listed.dtype.kind == "f" and listed.size:
            raise TypeError(
                f"Cannot cast {array!r:.100} to {dtype!r} according to the rule 'safe'; convert it "
                f"first, for instance by round()"
            )
        if dtype.kind != "U":
            return np.asarray(array, dtype)  # Python scalars and lists convert by value.
        array = np.asarray(array)  # Strings that are too long would be cut.
    found = np.asarray(array)
    if found.dtype.newbyteorder("=") != dtype and not np.can_cast(found.dtype, dtype, "safe"):
        raise TypeError(
            f"Cannot cast array data from {found.dtype!r} to {dtype!r} according to the rule "
            f"'safe'; convert it first, for instance by astype({dtype.name!r})"
        )
    return found.astype(dtype, copy=False)


def broadcast(array: NDArray[Any], domain: IndexDomain) -> NDArray[Any]:
    """Broadcast an array to the shape of `domain`, as a view; MismatchError if it does not fit."""
    shape = tuple(domain.shape)
    if array.shape == shape:
        return array
    extra = array.ndim - len(shape)
    wrong = []
    for i, size in enumerate(array.shape):
        if i < extra:
            if size != 1:
                wrong.append(f"source dimension {i} [0, {size}) has no target dimension")
        elif size not in (1, shape[i - extra]):
            low, high = domain.inclusive_min[i - extra], domain.exclusive_max[i - extra]
            label = domain.labels[i - extra]
            name = f"{i - extra} {quote(label)}:" if label else f"{i - extra}"
            wrong.append(
                f"source dimension {i} [0, {size}) mismatch with target dimension {name} "
                f"[{low}, {high})"
            )
    if wrong:
        raise MismatchError("Error aligning dimensions: " + ", ".join(wrong), status="")
    try:
        return np.broadcast_to(array.reshape(array.shape[max(extra, 0) :]), shape)
    except ValueError as error:
        raise LimitError(
            f"A source cannot be broadcast to {domain.size} elements; write in parts"
        ) from error
