"""Conversions of elements: from those of an array to those of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpustore
from gpustore import registry
from gpustore.loader.volume import PairedArray


class ElementConversion:
    """Conversion of the elements of one array.

    Attributes
    ----------
    dtype : numpy.dtype
        Data type of the elements in batches.
    scale : (low, high) or None
        Values that become 0 and 1.
    """

    def __init__(self, dtype: np.dtype[Any], scale: tuple[float, float] | None) -> None:
        self.dtype = dtype
        self.scale = scale

    @classmethod
    def of(cls, array: PairedArray, dtype: Any, normalize: Any) -> ElementConversion:
        """Return the conversion of an array, from parameters of the loader."""
        if isinstance(dtype, Mapping):
            dtype = dtype.get(array.name)
        if isinstance(normalize, Mapping):
            normalize = normalize.get(array.name)
        scale = None
        if normalize is not None:
            low, high = (float(n) for n in normalize)
            if not low < high:
                raise ValueError(f"normalize: expected low < high, got {low} and {high}")
            scale = low, high
        found = np.dtype(dtype) if dtype is not None else array.dtype
        if scale is not None and dtype is None:
            found = np.dtype(np.float32)
        if scale is not None and found.kind not in "fcV":
            raise ValueError(
                f"normalize: array {array.name!r} becomes {found}, which has no fractions; choose "
                "a dtype of floating-point numbers"
            )
        return cls(found, scale)

    def __call__(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """Write converted `values` to `out`, of the same shape and :attr:`dtype`."""
        if self.scale is None:
            np.copyto(out, values, casting="unsafe")
            return
        low, high = self.scale
        exact: Any = self.dtype if self.dtype.itemsize >= 4 else np.float32
        room = out if self.dtype == exact else np.empty(out.shape, exact)
        np.subtract(values, low, out=room, dtype=exact)
        room *= room.dtype.type(1 / (high - low))
        if room is not out:
            np.copyto(out, room, casting="unsafe")


def library_arrays(library: str, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], Any]:
    """Return a function that makes arrays of a library from those of NumPy."""
    if library == "numpy":
        return lambda array: array
    convert: Callable[[NDArray[Any]], Any] = registry.guest(library).conversion(
        gpustore.dtype(dtype)
    )
    return convert
