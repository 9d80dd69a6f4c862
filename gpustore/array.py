"""Arrays in memory as TensorStores: :func:`array`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpustore.context import Context
from gpustore.drivers.array import wrap
from gpustore.dtype import dtype as dtype_
from gpustore.index_space import IndexTransform
from gpustore.store import TensorStore

__all__ = ["array"]


def array(
    array: ArrayLike,
    dtype: Any = None,
    context: Context | None = None,
    *,
    copy: bool | None = None,
    write: bool | None = None,
) -> TensorStore:
    """Wrap an array in host memory as a TensorStore.

    Parameters
    ----------
    array : array-like
        A NumPy array of a supported data type is wrapped without a copy: writes go to it.
    dtype : dtype, optional
        Data type of the elements; converts if `array` has another.
    context : Context, optional
        Where its thread pool comes from.
    copy : bool, optional
        True copies always, False never (ValueError if that is not possible).
    write : bool, optional
        False makes it read-only; True makes an array that is read-only an error.

    Raises
    ------
    MetadataError
        If the data type is not supported.

    Examples
    --------
    >>> array([[1, 2], [3, 4]], dtype="int8").T.read().result()
    array([[1, 3],
           [2, 4]], dtype=int8)
    """
    given = None if dtype is None else dtype_(dtype).array_dtype
    converted = np.array(array, given, copy=copy)
    native = dtype_(converted.dtype).array_dtype
    if native != converted.dtype:
        converted = np.array(converted, native, copy=copy)
    if write and not converted.flags.writeable:
        raise ValueError("the array is read-only, but write=True was given")
    driver = wrap(converted, context or Context(), writable=write is not False)
    return TensorStore._of(driver, IndexTransform(driver.domain))
