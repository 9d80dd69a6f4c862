"""Data sets of HDF5 and netCDF-4 files, read by h5py: ``"file.h5::/group/dataset"``.

Names of dimensions are those of its scales, as netCDF-4 has them, or its labels. Text of fixed and
of any length becomes strings.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import Any, Final

import numpy as np

from gpustore.data_types.dtype import dtype
from gpustore.errors import CopyError, NotFoundError, StoreIOError, UnsupportedError
from gpustore.sources.base import FileFormat, Region, Source, distinct, json_attributes, need

_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_FILL_VALUE: Final = "_FillValue"
_OWN: Final = frozenset(
    {
        *("CLASS", "DIMENSION_LIST", "DIMENSION_LABELS", "NAME", "REFERENCE_LIST", _FILL_VALUE),
        *("_NCProperties", "_Netcdf4Coordinates", "_Netcdf4Dimid", "_nc3_strict"),
    }
)
"""Attributes by which HDF5 and netCDF keep dimensions and the fill value."""

_SHOWN: Final = 10
"""Number of data sets that a message names."""


def _matches(begin: bytes) -> bool:
    # A file may begin with a block of its user's, whose size is a power of two.
    return any(begin[at:].startswith(_SIGNATURE) for at in (0, 512, 1024, 2048))


def _open(path: str, part: str | None) -> Source:
    need("h5py", "hdf5")
    import h5py

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise StoreIOError(f"{path} cannot be opened: {error}", errno=error.errno) from error
    try:
        return replace(of_dataset(_dataset(path, file, part)), close=file.close)
    except BaseException:
        file.close()
        raise


def _dataset(path: str, file: Any, part: str | None) -> Any:
    import h5py

    node = file if part is None else file.get(part)
    if node is None:
        raise NotFoundError(f'{path} has no data set "{part}": {_choice(path, file)}', status="")
    if isinstance(node, h5py.Group):
        names = _datasets(node)
        if part is not None or len(names) != 1:
            raise CopyError(f"{path} is to be copied by data sets: {_choice(path, node)}")
        node = file[names[0]]
    if not isinstance(node, h5py.Dataset):
        raise CopyError(f'{path}: "{part}" is a data type and no data set: {_choice(path, file)}')
    return node


def of_dataset(dataset: Any) -> Source:
    """Return the source of an ``h5py.Dataset``.

    Raises
    ------
    CopyError
        If it is none.
    UnsupportedError
        If there are no elements, or they are references or arrays of any length.
    """
    import h5py

    if not isinstance(dataset, h5py.Dataset):
        raise CopyError(f"{dataset!r} is no data set of h5py: name one, as file[name]")
    if dataset.shape is None:
        raise UnsupportedError(f"{dataset.name} has no elements")
    kind: Any = dataset.dtype
    read: Any = dataset
    fill: Any = None
    if h5py.check_string_dtype(kind) is not None:
        kind, read = dtype("ustring"), dataset.asstr()
    elif kind.hasobject:
        raise UnsupportedError(f"elements of {dataset.name} are {_kind(kind)}: they have no copy")
    elif kind.names is None:
        kind = np.dtype(kind.str)  # Without what h5py notes about it, as of an enumeration.
        fill = np.asarray(dataset.fillvalue, kind)[()]

    def elements(region: Region) -> Any:
        try:
            return np.asarray(read[region])
        except UnicodeDecodeError as error:
            where = f"{dataset.file.filename}::{dataset.name}"
            raise CopyError(f"{where} has text that is not UTF-8: {error}") from error

    return Source(
        dataset.shape,
        kind,
        elements,
        chunks=dataset.chunks,
        is_slow=True,
        dims=_dims(dataset),
        attributes=json_attributes({n: v for n, v in dataset.attrs.items() if n not in _OWN}),
        fill_value=fill,
        masked=_masked(dataset, kind),
    )


def _masked(dataset: Any, kind: Any) -> Any:
    """Return the number that netCDF's ``_FillValue`` names, None without one."""
    value = np.asarray(dataset.attrs.get(_FILL_VALUE))
    if not isinstance(kind, np.dtype) or {kind.kind, value.dtype.kind} - set("fiu"):
        return None
    return value.reshape(-1)[0].astype(kind) if value.size == 1 else None


def _dims(dataset: Any) -> tuple[str, ...] | None:
    """Return the names of the dimensions: labels, or names of scales."""
    if dataset.is_scale and len(dataset.shape) == 1:
        return (posixpath.basename(dataset.name),)
    return distinct(
        dim.label or (posixpath.basename(dim[0].name) if len(dim) else "") for dim in dataset.dims
    )


def _kind(kind: np.dtype[Any]) -> str:
    import h5py

    return "arrays of any length" if h5py.check_vlen_dtype(kind) else "references or objects"


def _datasets(group: Any) -> list[str]:
    """Return the paths of the data sets below a group."""
    import h5py

    found: list[str] = []

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            found.append(node.name)

    group.visititems(visit)
    return found


def _choice(path: str, group: Any) -> str:
    """Return what may be named instead, as the end of a message."""
    names = _datasets(group)
    if not names:
        return "there is none in it"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f'name one as in "{path}::{names[0]}"; there is {", ".join(names[:_SHOWN])}{more}'


FORMAT = FileFormat(_matches, _open)
