"""New arrays by path and properties: :func:`create_array` and :func:`save`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gpustore import registry
from gpustore.drivers.base import OpenMode
from gpustore.errors import MetadataError
from gpustore.front.array_words import array_of
from gpustore.front.open import open as open_
from gpustore.front.spec import Spec, SpecLike
from gpustore.front.store import TensorStore
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.context import Context
from gpustore.runtime.future import Future
from gpustore.schema.chunk_layout import ChunkLayout

_CHUNK_NBYTES = 1 << 20
"""Decoded bytes of a chunk that :func:`save` chooses: a few for each thread of a small read, and
enough for a GPU or a file system to work on at once."""


def create_array(
    spec: SpecLike,
    *,
    shape: Any = None,
    dtype: Any = None,
    chunks: Any = None,
    shards: Any = None,
    codec: Any = None,
    fill_value: Any = None,
    dims: Any = None,
    units: Any = None,
    attributes: Mapping[str, Any] | None = None,
    data: Any = None,
    zarr_format: int | None = None,
    overwrite: bool = False,
    device: str | None = None,
    context: Context | Mapping[str, Any] | None = None,
    **constraints: Any,
) -> Future[TensorStore]:
    """Create an array at a place where there is none.

    Parameters
    ----------
    spec : str, os.PathLike, dict, Spec or KvStore
        Path or URL, with or without a format, a spec, or an opened folder.
    shape, dtype
        Shape and data type; those of `data` unless given.
    chunks, shards, codec, fill_value, dims, units, attributes, data, device, context, **constraints
        Properties of the array; see :func:`gpustore.open`. Without them chunks and codecs are
        TensorStore's defaults.
    zarr_format : {2, 3}, optional
        Format if `spec` names none; 3 by default.
    overwrite : bool
        Delete everything at the place first, other arrays and groups included.

    Returns
    -------
    Future of TensorStore
        The new array.

    Raises
    ------
    MetadataError, TypeError
        Immediately, if the arguments are invalid.
    AlreadyExistsError, StoreIOError
        Through the Future.

    Examples
    --------
    >>> store = create_array(
    ...     "memory://made/", shape=(100, 100), dtype="uint16", chunks=(50, 50), codec="zstd:5"
    ... ).result()
    >>> store.chunks
    (50, 50)
    """
    if isinstance(spec, KvStore):
        driver = "zarr" if zarr_format == 2 else "zarr3"
        spec, constraints["kvstore"] = {"driver": driver}, spec
    return open_(
        _with_format(spec, zarr_format),
        open_mode=OpenMode(create=True, delete_existing=overwrite),
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        shards=shards,
        codec=codec,
        fill_value=fill_value,
        dims=dims,
        units=units,
        attributes=attributes,
        data=data,
        device=device,
        context=context,
        **constraints,
    )


def save(
    spec: SpecLike,
    array: Any,
    *,
    chunks: Any = None,
    shards: Any = None,
    codec: Any = "zstd",
    dims: Any = None,
    units: Any = None,
    attributes: Mapping[str, Any] | None = None,
    zarr_format: int | None = None,
    overwrite: bool = False,
    context: Context | Mapping[str, Any] | None = None,
    **constraints: Any,
) -> TensorStore:
    """Store an array in a new place and wait until all of it is there.

    Parameters
    ----------
    spec : str, os.PathLike, dict, Spec or KvStore
        Path or URL, with or without a format, a spec, or an opened folder.
    array : array-like
        Elements in host memory, or in that of a GPU, whose chunks are then encoded there where its
        codecs allow it. Arrays of h5py, zarr-python, dask or xarray and stores are read in regions
        of whole chunks, never whole. :func:`gpustore.copy` takes files, too.
    chunks : int or sequence of int, optional
        Shape of the chunks; of about 1 MiB and as even as possible if neither is given here nor in
        `shards` nor `constraints`.
    codec : optional
        Compression; zstd by default.
    shards, dims, units, attributes, zarr_format, overwrite, context, **constraints
        As those of :func:`create_array`.

    Returns
    -------
    TensorStore
        The new array.

    Raises
    ------
    AlreadyExistsError, MetadataError, StoreIOError, TypeError

    Examples
    --------
    >>> import numpy as np
    >>> store = save("memory://saved/", np.arange(6).reshape(2, 3), dims=("y", "x"))
    >>> store.domain.labels
    ('y', 'x')
    """
    source = array_of(array, constraints.get("dtype"))
    if chunks is None and "chunk_layout" not in constraints and source.dtype.itemsize:
        elements = max(1, _CHUNK_NBYTES // source.dtype.itemsize)
        constraints["chunk_layout"] = ChunkLayout(chunk_elements_soft_constraint=elements)
    return create_array(
        spec,
        chunks=chunks,
        shards=shards,
        codec=codec,
        dims=dims,
        units=units,
        attributes=attributes,
        data=source,
        zarr_format=zarr_format,
        overwrite=overwrite,
        context=context,
        **constraints,
    ).result()


def _with_format(spec: SpecLike, zarr_format: int | None) -> Spec:
    """Return the spec; with the driver of `zarr_format` if it leaves the format to be detected."""
    if zarr_format not in (None, 2, 3):
        raise MetadataError(f"zarr_format: expected 2 or 3, but received: {zarr_format!r:.50}")
    given = Spec(os.fspath(spec) if isinstance(spec, os.PathLike) else spec)
    driver = given._driver
    if driver.id != "auto":
        if zarr_format is not None and driver.id != ("zarr" if zarr_format == 2 else "zarr3"):
            raise MetadataError(f'zarr_format={zarr_format}, but the driver is "{driver.id}"')
        return given
    if driver.kvstore is None:
        raise MetadataError('"kvstore" must be specified')
    kind = registry.find("drivers", f"zarr{zarr_format or 3}")
    made = kind.from_url(driver.kvstore, "").updated(schema=driver.schema)
    return Spec._make(made, given._transform, given._mode, given._context, given._bound)
