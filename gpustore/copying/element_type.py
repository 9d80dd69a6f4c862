"""Translation of records, strings and raw bytes between formats, for :func:`gpustore.copy`.

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


def field_metadata(metadata: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return metadata of an array of one field of the records that `metadata` describe.

    A subarray becomes dimensions at the end, not divided into chunks. The fill value is left out.
    """
    part = dict(_parts(_stored(metadata)))[field]
    found = {name: value for name, value in metadata.items() if name != "fill_value"}
    if "data_type" in metadata:
        return {**found, "data_type": _v3_name(part)}
    for name in ("shape", "chunks"):
        found[name] = [*metadata[name], *part.shape]
    return {**found, "dtype": _v2_name(part.base)}


def converted_type(metadata: Mapping[str, Any], fill: bytes | None, after: int) -> dict[str, Any]:
    """Return the data type and fill value of records or raw bytes as the other format's metadata.

    Parameters
    ----------
    metadata : dict
        Metadata of the source.
    fill : bytes, optional
        The fill value as bytes, as in chunks of the source.
    after : int
        The format of the target, 2 or 3; the source's is the other.

    Raises
    ------
    UnsupportedError
        The other format cannot hold such elements; the text names the part and the reason.
    """
    stored = _stored(metadata)
    found: dict[str, Any]
    if after == 2:
        _check_for_v2(stored)
        found = {"dtype": _v2_name(stored)}
    else:
        _check_for_v3(stored)
        found = {"data_type": _v3_name(stored)}
        if fill is not None:  # Here in little endian, whatever the chunks have.
            fill = np.frombuffer(fill, stored).astype(_with_order(stored, "<")).tobytes()
    return found if fill is None else {**found, "fill_value": base64.b64encode(fill).decode()}


def endian_of_records(metadata: Mapping[str, Any]) -> str:
    """Return the byte order of Zarr v3's codec "bytes" for records of Zarr v2."""
    return "big" if ">" in _orders(_stored(metadata)) else "little"


def _check_for_v2(stored: np.dtype[Any]) -> None:
    for name, part in _leaves(stored):
        what = _what(name)
        if part.base.isbuiltin == 2 and part.base.itemsize > 1 and ">" in _orders(stored):
            raise gpustore.UnsupportedError(
                f"{what} {part.base.name}, which Zarr v2 has in little endian only"
            )
        if part.base.name in ("uint2", "uint4", "float8_e4m3") or part.base.name[:7] == "float6_":
            raise gpustore.UnsupportedError(f"{what} {part.base.name}, which Zarr v2 does not have")
        if part.shape and not name:
            raise gpustore.UnsupportedError(
                f"{what} complex_{part.base.name}, which Zarr v2 does not have"
            )


def _check_for_v3(stored: np.dtype[Any]) -> None:
    for name, part in _leaves(stored):
        if part.shape:
            raise gpustore.UnsupportedError(
                f"{_what(name)} a subarray, which Zarr v3 does not have"
            )
        if part.kind == "S":
            raise gpustore.UnsupportedError(
                f"{_what(name)} a string, {part.str}, which Zarr v3 does not have"
            )
    if len(_orders(stored)) > 1:
        raise gpustore.UnsupportedError("fields have different byte orders")


def _what(name: str) -> str:
    return f'field "{name}" is' if name else "an element is"


# --------------------------------------------------------------------------- as NumPy says it


def _stored(metadata: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the data type of elements in chunks; types of ml_dtypes count as native byte order."""
    if "dtype" in metadata:
        return _from_v2(metadata["dtype"])
    order: Literal["<", ">"] = ">" if _endian_of(metadata["codecs"]) == "big" else "<"
    return _with_order(_from_v3(metadata["data_type"]), order)


def _from_v2(kind: Any) -> np.dtype[Any]:
    if isinstance(kind, list):
        return np.dtype([(name, _from_v2(part), *map(tuple, more)) for name, part, *more in kind])
    return np.dtype(kind) if kind[0] in "<>|" else gpustore.dtype(kind).numpy_dtype


def _from_v3(kind: Any) -> np.dtype[Any]:
    """Return the NumPy data type of a data type in Zarr v3 metadata that gpustore wrote."""
    if isinstance(kind, str):
        if kind[0] == "r":
            return np.dtype(f"V{int(kind[1:]) // 8}")
        part = kind.removeprefix("complex_")
        found = gpustore.dtype(part).numpy_dtype
        return found if part == kind else np.dtype((found, (2,)))
    name, options = kind["name"], kind["configuration"]
    if name == "struct":
        return np.dtype([(one["name"], _from_v3(one["data_type"])) for one in options["fields"]])
    if name.startswith("numpy."):
        code = {"numpy.datetime64": "M8", "numpy.timedelta64": "m8"}[name]
        factor = "" if options["scale_factor"] == 1 else options["scale_factor"]
        return np.dtype(f"{code}[{factor}{options['unit']}]")
    if name == "fixed_length_utf32":
        return np.dtype(f"U{options['length_bytes'] // 4}")
    return np.dtype(f"S{options['length_bytes']}")


def _v2_name(part: np.dtype[Any]) -> Any:
    """Return the Zarr v2 name of a data type that is not a subarray."""
    if part.names is not None:
        return [
            [name, _v2_name(field.base), *([list(field.shape)] if field.shape else [])]
            for name, field in _parts(part)
        ]
    return part.name if part.isbuiltin == 2 else part.str  # 2: registered by ml_dtypes


def _v3_name(part: np.dtype[Any]) -> Any:
    if part.names is not None:
        fields = [{"name": name, "data_type": _v3_name(field)} for name, field in _parts(part)]
        return {"name": "struct", "configuration": {"fields": fields}}
    if part.subdtype is not None:
        return f"complex_{part.base.name}"
    if part.kind in "Mm":
        unit, factor = np.datetime_data(part)
        name = "numpy.datetime64" if part.kind == "M" else "numpy.timedelta64"
        return {"name": name, "configuration": {"unit": unit, "scale_factor": factor}}
    if part.kind in "US":
        name = "fixed_length_utf32" if part.kind == "U" else "null_terminated_bytes"
        return {"name": name, "configuration": {"length_bytes": part.itemsize}}
    return f"r{8 * part.itemsize}" if part.kind == "V" and part.isbuiltin != 2 else part.name


def _parts(stored: np.dtype[Any]) -> list[tuple[str, np.dtype[Any]]]:
    """Return names and data types of fields; elements without fields count as one."""
    if stored.names is None or stored.fields is None:
        return [("", stored)]
    return [(name, stored.fields[name][0]) for name in stored.names]


def _leaves(stored: np.dtype[Any]) -> list[tuple[str, np.dtype[Any]]]:
    """Return names and data types of the innermost fields; names of nested fields contain dots."""
    found = []
    for name, part in _parts(stored):
        if part.base.names is None or part.shape:
            found.append((name, part))
        else:
            found += [(f"{name}.{inner}", leaf) for inner, leaf in _leaves(part)]
    return found


def _with_order(stored: np.dtype[Any], order: Literal["<", ">"]) -> np.dtype[Any]:
    """Return the same data type in one byte order."""
    return stored.newbyteorder(order)


def _orders(stored: np.dtype[Any]) -> set[str]:
    """Return all byte orders in an element."""
    found = set()
    for _, part in _parts(stored):
        found |= {_order(part.base)} if part.base.names is None else _orders(part.base)
    return found - {""}


def _order(part: np.dtype[Any]) -> str:
    """Return the byte order of a part, empty for single bytes and bytes without order."""
    if part.itemsize == 1 or (part.kind in "SV" and part.isbuiltin != 2):
        return ""
    return ">" if part.byteorder == ">" else "<"


def _endian_of(codecs: Sequence[Mapping[str, Any]]) -> str:
    """Return the byte order of Zarr v3 chunks, "little" or "big"."""
    for codec in codecs:
        configuration = codec.get("configuration", {})
        if codec["name"] == "sharding_indexed":
            return _endian_of(configuration["codecs"])
        if codec["name"] == "bytes":
            return str(configuration.get("endian", "little"))
    return "little"
