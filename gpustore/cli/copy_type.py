"""What ``gpustore copy`` makes of elements that are no numbers, or of one field of records.

Zarr v2 gives each field a byte order, and has strings and subarrays; Zarr v3 has one byte order,
in its codec "bytes", and neither. Records and raw bytes that both can hold keep their bytes.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import gpustore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["converted_type", "endian_of_records", "field_metadata"]


def field_metadata(metadata: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Metadata of an array of one field of the records that `metadata` describe.

    A subarray becomes dimensions at the end, not cut into chunks. The fill value is left out.
    """
    part = dict(_parts(_stored(metadata)))[field]
    found = {name: value for name, value in metadata.items() if name != "fill_value"}
    if "data_type" in metadata:
        return {**found, "data_type": _v3_name(part)}
    for name in ("shape", "chunks"):
        found[name] = [*metadata[name], *part.shape]
    return {**found, "dtype": _v2_name(part.base)}


def converted_type(metadata: Mapping[str, Any], fill: bytes | None, after: int) -> dict[str, Any]:
    """The data type and fill value of records or raw bytes as the other format's metadata.

    Parameters
    ----------
    metadata : dict
        Of the source.
    fill : bytes, optional
        The fill value as it is in chunks of the source.
    after : int
        The format of the target, 2 or 3; the source's is the other.

    Raises
    ------
    UnsupportedError
        The other format cannot hold such elements; the text says which part, and why.
    """
    stored = _stored(metadata)
    found: dict[str, Any]
    if after == 2:
        _check_for_v2(stored)
        fields: list[Any] = [[name, _v2_name(part)] for name, part in _parts(stored)]
        found = {"dtype": fields if stored.names else _v2_name(stored)}
    else:
        _check_for_v3(stored)
        fields = [{"name": name, "data_type": _v3_name(part)} for name, part in _parts(stored)]
        struct = {"name": "struct", "configuration": {"fields": fields}}
        found = {"data_type": struct if stored.names else _v3_name(stored)}
        if fill is not None:  # Here in little endian, whatever the chunks have.
            fill = np.frombuffer(fill, stored).astype(_with_order(stored, "<")).tobytes()
    return found if fill is None else {**found, "fill_value": base64.b64encode(fill).decode()}


def endian_of_records(metadata: Mapping[str, Any]) -> str:
    """The byte order that Zarr v3's codec "bytes" needs for records of Zarr v2."""
    return "big" if ">" in _orders(_stored(metadata)) else "little"


def _check_for_v2(stored: np.dtype[Any]) -> None:
    for name, part in _parts(stored):
        if part.isbuiltin == 2 and part.itemsize > 1 and ">" in _orders(stored):
            raise gpustore.UnsupportedError(
                f'field "{name}" is {part.name}, which Zarr v2 has in little endian only'
            )


def _check_for_v3(stored: np.dtype[Any]) -> None:
    for name, part in _parts(stored):
        what = f'field "{name}" is' if name else "an element is"
        if part.shape:
            raise gpustore.UnsupportedError(f"{what} a subarray, which Zarr v3 does not have")
        if part.kind == "S":
            raise gpustore.UnsupportedError(
                f"{what} a string, {part.str}, which Zarr v3 does not have"
            )
    if len(_orders(stored)) > 1:
        raise gpustore.UnsupportedError("fields have different byte orders")


# --------------------------------------------------------------------------- as NumPy says it


def _stored(metadata: Mapping[str, Any]) -> np.dtype[Any]:
    """The elements in chunks; ml_dtypes's always count as in native byte order."""
    if "dtype" in metadata:
        dtype = metadata["dtype"]
        if isinstance(dtype, str):
            return _from_v2(dtype)
        return np.dtype([(name, _from_v2(kind), *map(tuple, more)) for name, kind, *more in dtype])
    data_type = metadata["data_type"]
    if isinstance(data_type, str):
        return _from_v3(data_type)
    fields = data_type["configuration"]["fields"]
    stored = np.dtype([(one["name"], _from_v3(one["data_type"])) for one in fields])
    return _with_order(stored, ">" if _endian_of(metadata["codecs"]) == "big" else "<")


def _from_v2(name: str) -> np.dtype[Any]:
    return np.dtype(name) if name[0] in "<>|" else gpustore.dtype(name).numpy_dtype


def _from_v3(name: str) -> np.dtype[Any]:
    if name[0] == "r":
        return np.dtype(f"V{int(name[1:]) // 8}")
    return gpustore.dtype(name).numpy_dtype


def _v2_name(part: np.dtype[Any]) -> str:
    return part.name if part.isbuiltin == 2 else part.str  # 2: registered by ml_dtypes


def _v3_name(part: np.dtype[Any]) -> str:
    return f"r{8 * part.itemsize}" if part.kind == "V" and part.isbuiltin != 2 else part.name


def _parts(stored: np.dtype[Any]) -> list[tuple[str, np.dtype[Any]]]:
    """Names and data types of fields; of elements without fields, themselves."""
    if stored.names is None or stored.fields is None:
        return [("", stored)]
    return [(name, stored.fields[name][0]) for name in stored.names]


def _with_order(stored: np.dtype[Any], order: Literal["<", ">"]) -> np.dtype[Any]:
    """The same data type in one byte order."""
    if stored.names is None:
        return stored
    return np.dtype([(name, part.newbyteorder(order)) for name, part in _parts(stored)])


def _orders(stored: np.dtype[Any]) -> set[str]:
    """All byte orders in an element."""
    return {_order(part.base) for _, part in _parts(stored)} - {""}


def _order(part: np.dtype[Any]) -> str:
    """Byte order, empty where there is only one byte, or bytes without order."""
    if part.itemsize == 1 or (part.kind in "SV" and part.isbuiltin != 2):
        return ""
    return ">" if part.byteorder == ">" else "<"


def _endian_of(codecs: Sequence[Mapping[str, Any]]) -> str:
    """The byte order of Zarr v3 chunks, "little" or "big"."""
    for codec in codecs:
        configuration = codec.get("configuration", {})
        if codec["name"] == "sharding_indexed":
            return _endian_of(configuration["codecs"])
        if codec["name"] == "bytes":
            return str(configuration.get("endian", "little"))
    return "little"
