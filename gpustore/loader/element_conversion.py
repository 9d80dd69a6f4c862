"""Conversions of elements: from those of an array to those of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpustore
from gpustore import registry
from gpustore.loader.parameters import listed
from gpustore.loader.volume import PairedArray


@dataclass(frozen=True)
class ElementConversion:
    """Conversion of the elements of one array, the same in host memory and on a device.

    Without `scale` it is that of ``astype`` of NumPy and ml_dtypes. With it an element becomes
    ``(x - offset) * scale``, both steps in float64, and is then rounded once to the data type of
    the batch, to bfloat16 by way of float32.

    Attributes
    ----------
    dtype : numpy.dtype
        Data type of the elements in batches.
    offset, scale : float or None
        Value that becomes 0, and reciprocal of its distance from the one that becomes 1.
    """

    dtype: np.dtype[Any]
    offset: float | None = None
    scale: float | None = None

    @classmethod
    def of(cls, array: PairedArray, dtype: Any, normalize: Any) -> ElementConversion:
        """Return the conversion of an array, from parameters of the loader.

        Raises
        ------
        TypeError, ValueError, UnsupportedError
            If the range is none, empty or infinite, the data type has no fractions, or elements
            are no numbers that become those of the data type.
        """
        if isinstance(dtype, Mapping):
            dtype = dtype.get(array.name)
        if isinstance(normalize, Mapping):
            normalize = normalize.get(array.name)
        found = array.dtype if dtype is None else _element_type(dtype)
        if normalize is None:
            return cls(found)
        low, high = map(float, listed(normalize, "normalize", "(low, high)", 2))
        scale = 1 / (high - low) if low < high else 0.0
        if not 0 < scale < np.inf:
            raise ValueError(f"normalize: expected finite low < high, got {low} and {high}")
        if dtype is None:
            found = np.dtype(np.float32)
        if found.kind not in "fcV":
            raise ValueError(
                f"normalize: array {array.name!r} becomes {found}, which has no fractions; choose "
                "a dtype of floating-point numbers"
            )
        made = cls(found, low, scale)
        try:
            made(np.empty(0, array.dtype), np.empty(0, found))
        except TypeError as error:
            raise gpustore.UnsupportedError(
                f"normalize: array {array.name!r} of {array.store.dtype.name} is not normalised "
                f"to {found}"
            ) from error
        return made

    def is_copy(self, dtype: np.dtype[Any]) -> bool:
        """Whether elements of a data type stay what they are."""
        return self.scale is None and self.dtype == dtype

    def __call__(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """Write converted `values` to `out`, of the same shape and :attr:`dtype`."""
        if self.offset is None or self.scale is None:
            if values.dtype == self.dtype:
                registry.public("backends.host.boxes", "copy_rows")(values, out)
            else:
                np.copyto(out, _gathered(values), casting="unsafe")
            return
        exact: Any = np.complex128 if self.dtype.kind == "c" else np.float64
        room = out if self.dtype == exact else np.empty(out.shape, exact)
        np.subtract(values, self.offset, out=room, dtype=exact)
        room *= self.scale
        if room is not out:
            np.copyto(out, room, casting="unsafe")


def _element_type(given: Any) -> np.dtype[Any]:
    """Return the data type of NumPy that a parameter names; those of PyTorch have its names."""
    name = str(given).removeprefix("torch.") if type(given).__module__ == "torch" else given
    try:
        return np.dtype(name)
    except TypeError as error:
        raise TypeError(f"dtype: expected a data type of NumPy, got {given!r}") from error


def _gathered(values: NDArray[Any]) -> NDArray[Any]:
    """Return contiguous elements, which convert faster than rows of a larger array."""
    if values.flags.c_contiguous:
        return values
    found = np.empty(values.shape, values.dtype)
    registry.public("backends.host.boxes", "copy_rows")(values, found)
    return found


def library_arrays(library: str, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], Any]:
    """Return a function that makes arrays of a library from those of NumPy."""
    if library == "numpy":
        return lambda array: array
    convert: Callable[[NDArray[Any]], Any] = registry.guest(library).conversion(
        gpustore.dtype(dtype)
    )
    return convert
