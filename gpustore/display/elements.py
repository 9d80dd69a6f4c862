"""Elements of an array: data type, fields of records, extents of inner dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record: its name, data type as stored, and the extents of a subarray.

    A field without a name is the whole element.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        extents = f" ({' x '.join(map(str, self.shape))})" if self.shape else ""
        return f"{self.name}{': ' * bool(self.name)}{self.dtype}{extents}"


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of an opened array.

    Attributes
    ----------
    nbytes : int
        Bytes of a decoded element.
    rank : int
        Number of dimensions that are divided into chunks.
    inner : tuple of int
        Extents of the inner dimensions behind those; empty for records opened as bytes.
    dtype : str
        Name of the data type, or a description of the records.
    fields : tuple of Field
        Fields of records opened as bytes; otherwise empty.
    """

    nbytes: int
    rank: int
    inner: tuple[int, ...]
    dtype: str
    fields: tuple[Field, ...]

    @classmethod
    def of(cls, store: Any) -> Elements:
        """Describe the elements of a TensorStore that was opened whole."""
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


def fields_of(metadata: Mapping[str, Any]) -> tuple[Field, ...]:
    """Return the fields in the metadata of either format."""
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
