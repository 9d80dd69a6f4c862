"""What the elements of an array are, for commands that show or copy all of it.

A record cannot be read without naming one of its fields. Commands take whole records: they open
them as their bytes, which adds an inner dimension, and speak of the fields.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gpustore
from gpustore.cli.failure import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record: its name, data type as stored, and the extents of a subarray.

    Without a name, the whole element.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        extents = f" ({' x '.join(map(str, self.shape))})" if self.shape else ""
        return f"{self.name}{': ' * bool(self.name)}{self.dtype}{extents}"


@dataclass(frozen=True, slots=True)
class Elements:
    """What an opened array has at each of its places.

    Attributes
    ----------
    nbytes : int
        Bytes of one, decoded.
    rank : int
        Number of dimensions that are cut into chunks.
    inner : tuple of int
        Extents of the inner dimensions behind those, but for records opened as their bytes.
    dtype : str
        Data type of what is inside, or what records are.
    fields : tuple of Field
        Of records opened as their bytes, otherwise empty.
    """

    nbytes: int
    rank: int
    inner: tuple[int, ...]
    dtype: str
    fields: tuple[Field, ...]

    @classmethod
    def of(cls, store: gpustore.TensorStore) -> Elements:
        """Those of an array that was opened whole."""
        read: dict[str, Any] = store.spec().to_json()
        metadata: Mapping[str, Any] = read.get("metadata") or {}
        rank = len(metadata.get("shape", store.shape))
        inner = tuple(int(n) for n in store.shape[rank:])
        nbytes = math.prod(inner) * store.dtype.array_dtype.itemsize
        fields = fields_of(metadata) if read.get("open_as_void") else ()
        if fields:
            return cls(nbytes, rank, (), f"record of {nbytes} bytes", fields)
        return cls(nbytes, rank, inner, store.dtype.name, ())

    def __str__(self) -> str:
        return "\n".join(map(str, (Field("", self.dtype, self.inner), *self.fields)))


def open_whole(
    name: str | dict[str, Any], *, field: str | None = None, **keywords: Any
) -> gpustore.TensorStore:
    """Open an array, records as their bytes unless one field is asked for.

    Parameters
    ----------
    name : str or dict
        URL, path or JSON.
    field : str, optional
    **keywords
        For :func:`gpustore.open`.

    Raises
    ------
    CommandError
        A field is asked for and the array is no Zarr array.
    GpustoreError
        As :func:`gpustore.open`.
    """
    spec: dict[str, Any] = gpustore.Spec(name).to_json()
    try:
        store = gpustore.open(name, **keywords).result()
    except gpustore.MismatchError as error:
        if 'Must specify a "field"' not in str(error):
            raise
        drivers = ["zarr2", "zarr3"] if spec["driver"] == "auto" else [spec["driver"]]
    else:
        opened = store.spec().to_json()
        if field is None and "field" not in opened:  # It is there where records have but one.
            return store
        drivers = [str(opened["driver"])]
        if drivers[0] not in ("zarr", "zarr2", "zarr3"):
            raise CommandError(f"{name} is {drivers[0]}: only Zarr arrays have fields")
    component = {"open_as_void": True} if field is None else {"field": field}
    while True:
        try:
            return gpustore.open(
                {**spec, "driver": drivers.pop(0), **component}, **keywords
            ).result()
        except gpustore.NotFoundError:
            if not drivers:
                raise


def fields_of(metadata: Mapping[str, Any]) -> tuple[Field, ...]:
    """The fields as the metadata of either format list them."""
    dtype = metadata.get("dtype")
    if isinstance(dtype, list):
        return tuple(Field(f[0], str(f[1]), tuple(f[2]) if len(f) > 2 else ()) for f in dtype)
    data_type = metadata.get("data_type")
    if not isinstance(data_type, dict):
        return ()
    fields = []
    for one in data_type.get("configuration", {}).get("fields", ()):
        name, kind = (one["name"], one["data_type"]) if isinstance(one, dict) else one
        fields.append(Field(name, kind if isinstance(kind, str) else str(kind.get("name"))))
    return tuple(fields)
