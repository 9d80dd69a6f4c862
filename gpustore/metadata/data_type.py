"""Names of data types in stored metadata: Zarr v3's ``data_type``, Zarr v2's ``dtype``.

A v3 name is TensorStore's name. A v2 name is NumPy's type string with a byte order, or, as
TensorStore's extension, the bare name of a type that NumPy has no string for.
Source: Zarr v3 core specification, "Data types", and the extension registry; Zarr v2
specification, "Data type encoding"; TensorStore's zarr2 and zarr3 driver pages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from gpustore._json import (
    JsonValue,
    Members,
    at_position,
    expect_int,
    expect_list,
    expect_object,
    expect_str,
    quote,
    text,
)
from gpustore.dtype import DTYPES, dtype
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.metadata.component import is_opaque

__all__ = [
    "V3_DATA_TYPES",
    "V3DataType",
    "data_type_to_json",
    "native_dtype",
    "parse_v2_dtype",
    "parse_v3_data_type",
    "record",
    "v2_dtype_to_json",
]

# In the order of TensorStore's message.
V3_DATA_TYPES: Final = (
    *("bool", "int2", "int4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"),
    *("uint64", "float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn", "float16", "bfloat16"),
    *("float32", "float64", "complex64", "complex128"),
)
"""The data types of Zarr v3 arrays that can be read and written."""

_MAX_RECORD_NBYTES: Final = 2**31 - 1

# Same type, other registered name.
_V3_ALIASES: Final = {"complex_float32": "complex64", "complex_float64": "complex128"}

# Registered or written by zarr-python, but without an implementation here.
_V3_KNOWN: Final = frozenset(
    {
        *("uint2", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3"),
        *("complex_bfloat16", "complex_float16", "complex_float4_e2m1fn", "complex_float6_e2m3fn"),
        *("complex_float6_e3m2fn", "complex_float8_e3m4", "complex_float8_e4m3"),
        *("complex_float8_e4m3b11fnuz", "complex_float8_e4m3fnuz", "complex_float8_e5m2"),
        *("complex_float8_e5m2fnuz", "complex_float8_e8m0fnu"),
        *("string", "bytes", "fixed_length_utf32", "null_terminated_bytes"),
        *("variable_length_bytes", "numpy.datetime64", "numpy.timedelta64"),
    }
)
_V3_RAW: Final = re.compile(r"r(0|[1-9][0-9]{0,11})", re.ASCII)

V3DataType: TypeAlias = "dtype | np.dtype[Any]"
"""Of Zarr v3: of numbers by TensorStore's name, of records and raw bits NumPy's, native order."""


def native_dtype(data_type: V3DataType) -> np.dtype[Any]:
    """The NumPy type of stored elements, in native byte order."""
    return data_type.array_dtype if isinstance(data_type, dtype) else data_type


def parse_v3_data_type(value: JsonValue) -> V3DataType:
    """Parse the value of ``data_type``: a name, or an object with a name and options.

    ``struct``, the older ``structured`` and a bare list of fields make a packed structured type,
    ``r<N>`` and ``raw_bytes`` bytes ``V<n>``.

    Raises
    ------
    UnsupportedError
        For a type that exists but cannot be read yet: strings, times, nested structures.
    MetadataError
        For anything else.
    """
    if isinstance(value, list):
        return _v3_record(value)
    if isinstance(value, str):
        return _v3_data_type(value)
    if not isinstance(value, dict):
        expect_str(value)
    members = Members(value)
    name = members.take_str("name")
    found: V3DataType
    if name in ("struct", "structured"):
        configuration = members.take_object("configuration")
        found = configuration.take_with("fields", lambda fields: _v3_record(expect_list(fields)))
        configuration.finish()
    elif name == "raw_bytes":
        configuration = members.take_object("configuration")
        found = np.dtype(f"V{configuration.take_int('length_bytes', 1, _MAX_RECORD_NBYTES)}")
        configuration.finish()
    else:
        found = _v3_data_type(name)
        options = members.take_with("configuration", expect_object, {})
        if options:
            names = ",".join(map(quote, options))
            raise members.error(f"data type {quote(name)} has no options, but received: {names}")
    members.finish()
    return found


def _v3_record(fields: list[JsonValue]) -> np.dtype[Any]:
    if not fields:
        raise MetadataError("struct data type requires at least one field")
    parsed: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
    for index, field in enumerate(fields):
        with at_position(index):
            if isinstance(field, list):
                name, data_type = expect_list(field, length=2)
            else:
                members = Members(field)
                name, data_type = members.take("name"), members.take("data_type")
                members.finish()
            if not isinstance(name, str) or not name:
                raise MetadataError(f"Expected non-empty string, but received: {text(name)}")
            if isinstance(data_type, dict | list):
                raise UnsupportedError(
                    f"The data type of field {quote(name)} has options: nested structures and such "
                    f"are not supported yet"
                )
            base = _v3_data_type(expect_str(data_type))
        if any(name == other for other, _, _ in parsed):
            raise MetadataError(f"Field name {quote(name)} occurs more than once")
        parsed.append((name, base if isinstance(base, np.dtype) else base.array_dtype, ()))
    return record(parsed, sum(base.itemsize for _, base, _ in parsed))


def _v3_data_type(name: str) -> V3DataType:
    name = _V3_ALIASES.get(name, name)
    raw = _V3_RAW.fullmatch(name)
    if raw is not None:
        nbits = int(raw[1])
        if nbits == 0 or nbits % 8 or nbits // 8 > _MAX_RECORD_NBYTES:
            raise MetadataError(
                f"{name} data type is invalid; expected r<N> where N is a positive multiple of 8"
            )
        return np.dtype(f"V{nbits // 8}")
    if name in V3_DATA_TYPES:
        return DTYPES[name]
    message = (
        f"{text(name)[1:-1]} data type is not one of the supported data types: "
        f"{', '.join(V3_DATA_TYPES)}"
    )
    if name in _V3_KNOWN:
        raise UnsupportedError(f"{message} (it is known, but not supported yet)")
    raise MetadataError(message)


def data_type_to_json(data_type: V3DataType) -> JsonValue:
    """Return the value of ``data_type`` in Zarr v3 metadata.

    Raises
    ------
    MetadataError
        For a TensorStore data type that Zarr v3 arrays cannot have.
    """
    if isinstance(data_type, dtype):
        return data_type_to_json_name(data_type)
    if data_type.names is None or data_type.fields is None:
        if data_type.type is np.void:
            return f"r{8 * data_type.itemsize}"
        return data_type_to_json_name(DTYPES[data_type.name])
    fields = [
        {"name": name, "data_type": data_type_to_json(data_type.fields[name][0])}
        for name in data_type.names
    ]
    return {"name": "struct", "configuration": {"fields": fields}}


def data_type_to_json_name(data_type: dtype) -> str:
    """The name of a type of numbers."""
    found = _v3_data_type(data_type.name)
    assert isinstance(found, dtype)
    return found.name


# --------------------------------------------------------------------------- Zarr v2

_V2_BARE: Final = frozenset(
    {
        *("int2", "int4", "bfloat16", "float4_e2m1fn"),
        *(name for name in V3_DATA_TYPES if name.startswith("float8")),
    }
)
"""TensorStore's extension: little endian, one byte for the types narrower than that."""

_V2_TYPESTR: Final = re.compile(r"([<>|])([a-zA-Z])([0-9]{0,9})(\[[0-9a-zA-Zμ]{1,20}\])?")
_V2_ITEMSIZES: Final = {
    "b": ("1",),
    "i": ("1", "2", "4", "8"),
    "u": ("1", "2", "4", "8"),
    "f": ("2", "4", "8"),
    "c": ("8", "16"),
}
_V2_OPAQUE_KINDS: Final = "SV"
# What NumPy knows and Zarr v2 arrays may have: wide strings, times, objects, long floats.
_V2_KNOWN_KINDS: Final = "UMmO"
_V2_KNOWN: Final = ("f12", "f16", "c24", "c32")


def parse_v2_dtype(value: JsonValue) -> np.dtype[Any]:
    """Parse the value of ``dtype`` into the NumPy type of the stored elements.

    Returns
    -------
    numpy.dtype
        With the stored byte order; an ml_dtypes type for TensorStore's bare names, a packed
        structured type for a list of fields.

    Raises
    ------
    UnsupportedError
        For a type that exists but cannot be read yet: nested structures, wide strings, times,
        objects.
    MetadataError
        For anything else.
    """
    if not isinstance(value, str):
        return _v2_record(expect_list(value))
    if value in _V2_BARE:
        return DTYPES[value].numpy_dtype
    message = f"Unsupported zarr dtype: {text(value)}"
    match = _V2_TYPESTR.fullmatch(value)
    if match is None:
        raise MetadataError(f"{message}{_hint(value)}")
    order, kind, itemsize, unit = match.groups()
    if unit is None and itemsize in _V2_ITEMSIZES.get(kind, ()):
        if order == "|" and itemsize != "1":
            raise MetadataError(f"{message} (a byte order is needed: < or >)")
        return np.dtype("bool" if kind == "b" else f"{order}{kind}{itemsize}")
    if unit is None and kind in _V2_OPAQUE_KINDS and itemsize:
        if not int(itemsize):
            raise UnsupportedError(f"{message} (elements without bytes are not supported)")
        return np.dtype(f"{kind}{int(itemsize)}")
    if kind in _V2_KNOWN_KINDS or kind + itemsize in _V2_KNOWN:
        raise UnsupportedError(f"{message} (it is known, but not supported yet)")
    raise MetadataError(message)


def _v2_record(fields: list[JsonValue]) -> np.dtype[Any]:
    """Parse a list of fields: name, type, and possibly the shape of a subarray."""
    if not fields:
        raise MetadataError("structured data type without fields")
    parsed: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
    nbytes = 0
    for index, field in enumerate(fields):
        with at_position(index):
            parsed.append(_v2_field(field))
        name, base, shape = parsed[-1]
        if any(name == other for other, _, _ in parsed[:-1]):
            raise MetadataError(f"Field name {quote(name)} occurs more than once")
        nbytes += base.itemsize * math.prod(shape)
    return record(parsed, nbytes)


def _v2_field(field: JsonValue) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    parts = expect_list(field)
    if len(parts) not in (2, 3):
        raise MetadataError(f"Expected array of size 2 or 3, but received: {text(field)}")
    with at_position(0):
        if not isinstance(parts[0], str) or not parts[0]:
            raise MetadataError(f"Expected non-empty string, but received: {text(parts[0])}")
    with at_position(1):
        if isinstance(parts[1], list) and parts[1]:
            raise UnsupportedError(
                f"Expected string, but received: {text(parts[1])} (nested structures are not "
                f"supported yet)"
            )
        base = parse_v2_dtype(expect_str(parts[1]))
    shape: list[int] = []
    with at_position(2):
        for index, extent in enumerate(expect_list(parts[2]) if len(parts) == 3 else []):
            with at_position(index):
                shape.append(expect_int(extent, 1, 2**62 - 1))
    return parts[0], base, tuple(shape)


def record(
    fields: Sequence[tuple[str, np.dtype[Any], tuple[int, ...]]], nbytes: int
) -> np.dtype[Any]:
    """A packed structured type of `nbytes` bytes.

    Raises
    ------
    MetadataError
        If NumPy has no records so large, or a field has too many dimensions.
    """
    for name, _, shape in fields:
        if len(shape) > 32:
            raise MetadataError(
                f"Field {quote(name)} has {len(shape)} dimensions, more than 32 of an array"
            )
    if nbytes > _MAX_RECORD_NBYTES:
        raise MetadataError(
            f"A record of {nbytes} bytes is too large: at most {_MAX_RECORD_NBYTES} are possible"
        )
    return np.dtype(
        [(name, base, shape) if shape else (name, base) for name, base, shape in fields]
    )


def _hint(value: str) -> str:
    for order in "<|":
        if _V2_TYPESTR.fullmatch(order + value.removeprefix("=")):
            return " (it must begin with a byte order: <, > or |)"
    return ""


def v2_dtype_to_json(stored: np.dtype[Any]) -> JsonValue:
    """Return the value of ``dtype`` in Zarr v2 metadata.

    >>> v2_dtype_to_json(np.dtype(">u2")), v2_dtype_to_json(np.dtype("bool"))
    ('>u2', '|b1')
    """
    if stored.names is not None and stored.fields is not None:
        fields = []
        for field in stored.names:
            part = stored.fields[field][0]
            shape = [list(part.shape)] if part.shape else []
            fields.append([field, v2_dtype_to_json(part.base), *shape])
        return fields
    if is_opaque(stored):
        return f"|{stored.kind}{stored.itemsize}"
    name = stored.name
    if name in _V2_BARE:
        return name
    if stored.kind not in _V2_ITEMSIZES:
        raise UnsupportedError(f"Unsupported zarr dtype: {quote(stored.str)}")
    return stored.str
