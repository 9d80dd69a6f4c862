"""Copies of arrays and groups: :func:`copy`; :mod:`gpustore.copying` is imported on use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpustore import registry
from gpustore.front.group import Group
from gpustore.front.spec import SpecLike
from gpustore.front.store import TensorStore
from gpustore.runtime.context import Context


def copy(
    source: Any,
    target: SpecLike,
    *,
    chunks: Any = None,
    shards: Any = None,
    codec: Any = None,
    checksum: bool | None = None,
    dims: Sequence[str | None] | None = None,
    units: Sequence[Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
    zarr_format: int | None = None,
    ome_version: str | None = None,
    field: str | None = None,
    overwrite: bool = False,
    memory: int = 256 << 20,
    context: Context | Mapping[str, Any] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> TensorStore | Group:
    """Copy an array or a group to another place, in bounded memory, and wait until it is there.

    A copy that ended with an error, Ctrl-C or a kill can be opened and holds whole chunks only; the
    same call continues it, unless the source is an array of this process.

    Parameters
    ----------
    source : str, os.PathLike, dict, Spec, KvStore, TensorStore, Group or array-like
        A Zarr array or group by path, URL, spec or folder, or opened; a file of NumPy
        (``"a.npy"``), TIFF (``"a.tif"``, extra ``tiff``) or HDF5 and netCDF-4
        (``"a.h5::/group/dataset"``, extra ``hdf5``), or a stack of files (``"planes/*.tif"``); or
        an array of NumPy, h5py, zarr-python, dask, xarray, CuPy, JAX or torch. It is read in
        regions of whole chunks of the copy.
    target : str, os.PathLike, dict, Spec or KvStore
        Path or URL of the copy, with or without a format.
    chunks, shards : int or sequence of int, optional
        Shape of chunks and of shards. Without them a Zarr array keeps its own, and other arrays get
        chunks of about 1 MiB; with `chunks` alone there are no shards. In an image of OME-Zarr they
        may be those of the last dimensions.
    codec : optional
        Compression, as in :func:`gpustore.open`; by default that of a Zarr array, zstd for others.
    checksum : bool, optional
        Whether each chunk ends with a crc32c; Zarr v3 only.
    dims, units : sequence, optional
        Names of the dimensions, and sizes of a step along each, instead of those of the source.
    attributes : mapping, optional
        User attributes, beside those of the source that have other names.
    zarr_format : {2, 3}, optional
        Format of the copy; by default that of `target`, or of a Zarr array, or 3.
    ome_version : {"0.4", "0.5", "0.6"}, optional
        Version of OME-Zarr of the copy of a group, and with it its format: 0.4 is Zarr v2, 0.5 and
        0.6 are v3. By default images keep theirs, or become 0.4 or 0.5 with another format.
    field : str, optional
        Field of records to copy alone, to an array of its own.
    overwrite : bool
        Replace an array by an array and a group by a group. A place with other contents is refused
        in any case.
    memory : int
        Most bytes of decoded elements in memory at once, unless a chunk has more.
    context : Context or dict, optional
        Context of source and target, or its JSON.
    progress : callable, optional
        ``progress(done, total)`` is called in this thread several times a second while something
        moves, in decoded bytes. What is read and not yet stored counts half. It is called at the
        beginning, with what an earlier call copied, and with ``done == total`` at the end.

    Returns
    -------
    TensorStore or Group
        The copy.

    Raises
    ------
    CopyError
        If the arguments do not fit the source or the target, or `ome_version` cannot express its
        metadata; or members of a group could not be copied, all others are there then.
    AlreadyExistsError
        If there is an array or group at the target, unless `overwrite`.
    NotFoundError, MismatchError, CorruptChunkError, StoreIOError, UnsupportedError
        From reading and writing; after the beginning the text says how much was copied.
    ModuleNotFoundError
        If the library that reads a file is not installed; the text has the command that installs
        it.
    KeyboardInterrupt
        After Ctrl-C; the text says how much was copied.

    Warns
    -----
    CopyWarning
        For each property that the copy does not keep, and if `memory` is little.

    Examples
    --------
    >>> import numpy as np
    >>> context = Context()
    >>> copied = copy(
    ...     np.arange(6).reshape(2, 3), "memory://copied/", dims=("y", "x"), context=context
    ... )
    >>> copied.domain.labels
    ('y', 'x')
    >>> copy("memory://copied/", "memory://again/", chunks=(1, 3), context=context).chunks
    (1, 3)
    """
    copied: TensorStore | Group = registry.public("copying.copy", "copy")(
        source,
        target,
        chunks=chunks,
        shards=shards,
        codec=codec,
        checksum=checksum,
        dims=dims,
        units=units,
        attributes=attributes,
        zarr_format=zarr_format,
        ome_version=ome_version,
        field=field,
        overwrite=overwrite,
        memory=memory,
        context=context,
        progress=progress,
    )
    return copied
