"""Arrays of other libraries as sources: what NumPy takes, and what is indexed like its arrays.

Such are data sets of h5py, arrays of zarr-python and dask, variables of xarray, tensors of torch in
host memory, arrays of CuPy and JAX. Regions are read one by one, so that lazy ones never are whole
in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpustore.backends.dlpack import as_numpy
from gpustore.front.array_words import check_mask
from gpustore.front.store import TensorStore
from gpustore.sources import hdf5
from gpustore.sources.base import Region, Source, distinct, json_attributes, places_of


def of_object(array: Any) -> Source:
    """Return the source of any array.

    Parameters
    ----------
    array : Source, TensorStore or array-like
        Something with ``shape``, ``dtype`` and ``[]``; or ``__array__``, ``__array_interface__`` or
        ``__dlpack__``; or nested lists.

    Raises
    ------
    UnsupportedError
        If its elements have no copy.
    """
    if isinstance(array, Source):
        return array
    if isinstance(array, TensorStore):
        return _of_store(array)
    if type(array).__module__.partition(".")[0] == "h5py":
        return hdf5.of_dataset(array)
    if not all(hasattr(array, name) for name in ("shape", "dtype", "__getitem__")):
        array = _elements(array)
    shape = tuple(int(n) for n in array.shape)

    def read(region: Region) -> Any:
        # pandas knows no tuples.
        return _elements(array[region[0] if len(region) == 1 else region])

    names = getattr(array, "dims", None)  # xarray
    if names is None:
        names = getattr(getattr(array, "metadata", None), "dimension_names", None)  # zarr-python
    attributes = getattr(array, "attrs", None)
    return Source(
        shape,
        _dtype(array, lambda: read((slice(0, 0),) * len(shape))),
        read,
        chunks=_chunks(array, len(shape)),
        dims=distinct(names) if isinstance(names, tuple) and len(names) == len(shape) else None,
        attributes=json_attributes(attributes) if isinstance(attributes, Mapping) else {},
    )


def store_reader(store: TensorStore) -> Callable[[Region], Any]:
    """Return a function that begins to read a region of a store, whose domain begins anywhere."""

    def read(region: Region) -> Any:
        begin = zip(store.origin, region, strict=True)
        return store[tuple(slice(o + p.start, o + p.stop) for o, p in begin)].read()

    return read


def _of_store(store: TensorStore) -> Source:
    units = tuple(None if unit is None else str(unit) for unit in store.dimension_units)
    places = places_of(store.kvstore)
    json = store.spec().to_json()
    attributes = dict(store.attrs) if json["driver"] in _WITH_ATTRIBUTES else {}
    return Source(
        tuple(int(n) for n in store.shape),
        store.dtype,
        store_reader(store),
        chunks=store.chunks,
        keeps_chunks=json["driver"] in _OTHER_FORMATS,
        dims=distinct(store.domain.labels),
        units=units if any(units) else None,
        attributes={name: v for name, v in attributes.items() if name not in _OF_DIMENSIONS},
        fill_value=store.fill_value,
        identity=[json, places] if places else None,
        places=places,
    )


_OTHER_FORMATS = ("n5", "neuroglancer_precomputed")
"""Drivers of formats like Zarr, whose arrays are copied as Zarr's own are."""

_WITH_ATTRIBUTES = ("zarr", "zarr2", "zarr3", *_OTHER_FORMATS)
_OF_DIMENSIONS = ("_ARRAY_DIMENSIONS", "dimension_units")
"""Attributes that describe the dimensions of the whole array."""


def _elements(array: Any) -> Any:
    """Return elements in host memory as an ndarray; those in the memory of a GPU unchanged."""
    if hasattr(array, "__cuda_array_interface__"):
        return array
    check_mask(array)
    return np.asarray(as_numpy(array))


def _dtype(array: Any, none: Callable[[], Any]) -> Any:
    """Return the data type of elements, as NumPy names it; `none` reads no element."""
    try:
        return np.dtype(array.dtype)
    except TypeError:  # A tensor's own.
        return none().dtype


def _chunks(array: Any, rank: int) -> tuple[int, ...] | None:
    """Return the shape of the chunks, the largest where they differ."""
    chunks = getattr(array, "chunks", None)
    if not isinstance(chunks, tuple) or len(chunks) != rank:
        return None
    largest = (max(one, default=1) if isinstance(one, tuple) else one for one in chunks)
    return tuple(max(1, int(n)) for n in largest)
