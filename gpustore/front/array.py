"""Arrays in memory as TensorStores: :func:`array`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpustore.backends.dlpack import as_numpy
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.json_array import object_array
from gpustore.drivers.array import wrap
from gpustore.front.create_array import create_array
from gpustore.front.open import open as open_
from gpustore.front.store import TensorStore
from gpustore.index_space import IndexTransform
from gpustore.runtime.context import Context


def array(
    array: ArrayLike,
    dtype: Any = None,
    context: Context | None = None,
    *,
    copy: bool | None = None,
    write: bool | None = None,
    chunks: Any = None,
    shards: Any = None,
    codec: Any = None,
    dims: Any = None,
    units: Any = None,
    attributes: Mapping[str, Any] | None = None,
) -> TensorStore:
    """Wrap an array in host memory as a TensorStore, or encode it in chunks in memory.

    Parameters
    ----------
    array : array-like
        A NumPy array of numbers in native byte order is wrapped without a copy, and writes change
        it.
    dtype : dtype, optional
        Data type of the elements; converts if `array` has another. Objects without one are json.
    context : Context, optional
        Context of the thread pool.
    copy : bool, optional
        True always copies, False never (ValueError if a copy is necessary).
    write : bool, optional
        False makes the store read-only; True copies a read-only array.
    dims : sequence of str or None, optional
        Names of the dimensions.
    chunks, shards, codec, units, attributes
        Properties of a Zarr v3 array; see :func:`gpustore.open`. Any of them gives one in the
        memory of the process, made of a copy.

    Raises
    ------
    MetadataError
        If the data type or a property is not supported.
    TypeError
        If a NumPy array does not cast to `dtype` under NumPy's rule "safe", or an object is not of
        that type. Lists convert by value.

    Examples
    --------
    >>> array([[1, 2], [3, 4]], dtype="int8").T.read().result()
    array([[1, 3],
           [2, 4]], dtype=int8)
    """
    words = {"chunks": chunks, "shards": shards, "codec": codec, "units": units}
    data_type, converted = _converted(array, None if dtype is None else dtype_(dtype), copy)
    if attributes is not None or any(value is not None for value in words.values()):
        if copy is False:
            raise ValueError("an array is encoded as a copy, but copy=False was given")
        # A kvstore of its own: the memory of a context that no other array has.
        resources = context or Context()
        made = create_array(
            {"driver": "zarr3", "kvstore": {"driver": "memory", "path": "array/"}},
            data=converted,
            dtype=data_type,
            dims=dims,
            attributes=attributes,
            context=Context({"memory_key_value_store": {}}, resources),
            device="cpu",
            **words,
        ).result()
        if write is not False:
            return made
        return open_(made.spec(retain_context=True), read=True, write=False).result()
    if write and not converted.flags.writeable:
        if copy is False:
            raise ValueError(
                "Unable to avoid copy while creating an array: it is read-only, but write=True and "
                "copy=False were given"
            )
        converted = converted.copy()
    driver = wrap(converted, context or Context(), dtype=data_type, writable=write is not False)
    store = TensorStore._of(driver, IndexTransform(driver.domain))
    return store if dims is None else store.label[tuple(name or "" for name in dims)]


def _converted(
    array: ArrayLike, data_type: dtype_ | None, copy: bool | None
) -> tuple[dtype_, NDArray[Any]]:
    """Return the array to be wrapped, in native byte order, and its data type."""
    array = as_numpy(array)
    if data_type is None:
        found = np.asarray(array)
        data_type = dtype_("json") if found.dtype == object else dtype_(found.dtype)
    wanted = data_type.array_dtype
    if wanted.kind == "O":
        if copy is False:
            raise ValueError("an array of objects is checked and copied, but copy=False was given")
        return data_type, object_array(array, data_type, max_rank=32)
    if isinstance(array, np.ndarray) and not np.can_cast(array.dtype, wanted, "safe"):
        raise TypeError(
            f"Cannot cast array data from {array.dtype!r} to {wanted!r} according to the rule "
            f"'safe'; convert it first, for instance by astype({wanted.name!r})"
        )
    return data_type, np.array(array, wanted, copy=copy)
