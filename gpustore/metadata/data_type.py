"""Names of data types in stored metadata: Zarr v3's ``data_type``, Zarr v2's ``dtype``.

A v3 name of numbers is TensorStore's name. A v2 name is NumPy's type string with a byte order, or,
as TensorStore's extension, the bare name of a type that NumPy has no string for.

Types of Zarr v3 with several names are read by all of them and written by one:

====================================  ===================================================
read                                  written
====================================  ===================================================
``complex_float32``                   ``complex64``, also for ``complex_float64``
``r24``, ``raw_bytes``                ``r24``
``struct``, ``structured``, a list    ``struct``
====================================  ===================================================

The complex types narrower than those, which NumPy lacks, are pairs: a subarray of two.
Source: Zarr v3 core specification, "Data types", and the extension registry; Zarr v2
specification, "Data type encoding"; TensorStore's zarr2 and zarr3 driver pages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from gpustore.data_types.dtype import DTYPES, MORE_NUMBERS, dtype
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.metadata.component import is_opaque
from gpustore.metadata.object_type import V3_NAMES, V3_OBJECTS, is_object, object_dtype
from gpustore.strict_json.parsing import (
    JsonValue,
    Members,
    at_position,
    expect_int,
    expect_list,
    expect_object,
    expect_str,
    in_member,
    quote,
    text,
)

# In the order in which TensorStore's error message lists them.
V3_DATA_TYPES: Final = (
    *("bool", "int2", "int4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"),
    *("uint64", "float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn", "float16", "bfloat16"),
    *("float32", "float64", "complex64", "complex128"),
)
"""Data types that Zarr v3 arrays and TensorStore share, by name."""

_MAX_NBYTES: Final = 2**31 - 1

# Second registered name -> the name of the same type that is written.
_V3_ALIASES: Final = {"complex_float32": "complex64", "complex_float64": "complex128"}

_V3_PAIRS: Final = {
    f"complex_{part}": part
    for part in (
        *("bfloat16", "float16", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
        *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
}
"""Complex types that NumPy lacks, and the type of their parts."""

_TIMES: Final = {"numpy.datetime64": "M8", "numpy.timedelta64": "m8"}
_STRINGS: Final = {"fixed_length_utf32": "U", "null_terminated_bytes": "S", "raw_bytes": "V"}
_RECORDS: Final = ("struct", "structured")
_UNITS: Final = (
    *("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as", "generic"),
)

_V3_RAW: Final = re.compile(r"r(0|[1-9][0-9]{0,11})", re.ASCII)

V3DataType: TypeAlias = "dtype | np.dtype[Any]"
"""Data type of Zarr v3: NumPy's type (native order) for records, bytes and pairs, else a dtype."""


def native_dtype(data_type: V3DataType) -> np.dtype[Any]:
    """Return the NumPy type of stored elements, in native byte order."""
    if not isinstance(data_type, dtype):
        return data_type
    return object_dtype(data_type) if is_object(data_type) else data_type.array_dtype


def parse_v3_data_type(value: JsonValue) -> V3DataType:
    """Parse the value of ``data_type``: a name, or an object with a name and options.

    Returns
    -------
    dtype or numpy.dtype
        A packed structured type for ``struct``, the older ``structured`` and a bare list of
        fields; ``V<n>`` for ``r<N>`` and ``raw_bytes``, ``S<n>`` for ``null_terminated_bytes``, a
        subarray of two for the complex types that NumPy lacks.

    Raises
    ------
    UnsupportedError
        For a type whose elements have no fixed length.
    MetadataError
        For anything else.
    """
    if isinstance(value, list):
        return _v3_record(value, "structured")
    if not isinstance(value, dict):
        return _v3_data_type(expect_str(value))
    if "name" not in value:
        raise MetadataError(
            f"Expected string, array, or object with 'name' and 'configuration', but received: "
            f"{text(value)}"
        )
    members = Members(value)
    name = members.take_str("name")
    found: V3DataType
    if name in (*_RECORDS, *_TIMES, *_STRINGS):
        options = members.take_object("configuration")
        if name in _RECORDS:
            found = options.take_with(
                "fields", lambda fields: _v3_record(expect_list(fields), name)
            )
        elif name in _TIMES:
            unit = options.take_str("unit", choices=_UNITS)
            factor = options.take_int("scale_factor", 1, 2**31 - 1)
            found = dtype(np.dtype(f"{_TIMES[name]}[{_scaled(unit, factor)}]"))
        else:
            found = _v3_string(_STRINGS[name], options.take_int("length_bytes", 1, _MAX_NBYTES))
        options.finish()
    else:
        found = _v3_data_type(name)
        given = members.take_with("configuration", expect_object, {})
        if given:
            names = ",".join(map(quote, given))
            raise members.error(f"data type {quote(name)} has no options, but received: {names}")
    members.finish()
    return found


def _scaled(unit: str, factor: int) -> str:
    """Return a time unit with its factor as NumPy writes it; ``generic`` takes no factor."""
    if unit == "generic" and factor != 1:
        raise MetadataError(f'unit "generic" has scale_factor 1, but received: {factor}')
    return unit if factor == 1 else f"{factor}{unit}"


def _v3_string(kind: str, nbytes: int) -> V3DataType:
    if kind != "U":
        return np.dtype(f"{kind}{nbytes}")
    if nbytes % 4:
        raise MetadataError(f"Expected length_bytes to be a multiple of 4, but received: {nbytes}")
    return dtype(f"U{nbytes // 4}")


def _v3_record(fields: list[JsonValue], kind: str) -> np.dtype[Any]:
    """Parse the fields of a record; `kind` is its word for messages."""
    if not fields:
        raise MetadataError(f"{kind} data type requires at least one field")
    parsed: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
    for index, field in enumerate(fields):
        with at_position(index):
            if isinstance(field, list):
                name, data_type = expect_list(field, length=2)
            elif not isinstance(field, dict):
                form = "objects" if kind == "struct" else "arrays"
                raise MetadataError(
                    f"{kind} dtype requires fields as {form}, but received: {text(field)}"
                )
            else:
                members = Members(field)
                name, data_type = members.take("name"), members.take("data_type")
                members.finish()
            if not isinstance(name, str) or not name:
                raise MetadataError(f"Expected non-empty string, but received: {text(name)}")
            if isinstance(data_type, dict):
                with in_member("data_type"):
                    base = parse_v3_data_type(data_type)
            else:
                base = _v3_data_type(expect_str(data_type))
            if native_dtype(base).hasobject:
                raise UnsupportedError(
                    f"Field {quote(name)} has elements of any length: those are only supported "
                    f"outside of structures"
                )
        if any(name == other for other, _, _ in parsed):
            raise MetadataError(f"Field name {quote(name)} occurs more than once")
        parsed.append((name, native_dtype(base), ()))
    return record(parsed, sum(base.itemsize for _, base, _ in parsed))


def _v3_data_type(name: str) -> V3DataType:
    name = _V3_ALIASES.get(name, name)
    if name in V3_OBJECTS:
        return V3_OBJECTS[name]
    raw = _V3_RAW.fullmatch(name)
    if raw is not None:
        nbits = int(raw[1])
        if nbits == 0 or nbits % 8 or nbits // 8 > _MAX_NBYTES:
            raise MetadataError(
                f"{name} data type is invalid; expected r<N> where N is a positive multiple of 8"
            )
        return np.dtype(f"V{nbits // 8}")
    if name in V3_DATA_TYPES or name in MORE_NUMBERS:
        return dtype(name)
    if name in _V3_PAIRS:
        return np.dtype((dtype(_V3_PAIRS[name]).array_dtype, (2,)))
    more = ("r<N>", *MORE_NUMBERS, *_V3_PAIRS, *_TIMES, "fixed_length_utf32", "struct")
    message = (
        f"{text(name)[1:-1]} data type is not one of the supported data types: "
        f"{', '.join((*V3_DATA_TYPES, *more, *V3_OBJECTS))}"
    )
    if name in (*_TIMES, *_STRINGS, *_RECORDS):
        raise MetadataError(f"{message} (it needs a configuration)")
    raise MetadataError(message)


def data_type_to_json(data_type: V3DataType) -> JsonValue:
    """Return the value of ``data_type`` in Zarr v3 metadata.

    Raises
    ------
    MetadataError
        For a data type that Zarr v3 arrays cannot have.
    """
    native = native_dtype(data_type)
    if native.names is not None:
        fields = [
            {"name": name, "data_type": data_type_to_json(native[name])} for name in native.names
        ]
        return {"name": "struct", "configuration": {"fields": fields}}
    if native.subdtype is not None:
        return f"complex_{native.base.name}"
    if native.type in (np.datetime64, np.timedelta64):
        unit, factor = np.datetime_data(native)
        name = "numpy.datetime64" if native.kind == "M" else "numpy.timedelta64"
        return {"name": name, "configuration": {"unit": unit, "scale_factor": factor}}
    if native.type is np.str_:
        return _with_length("fixed_length_utf32", native)
    if isinstance(data_type, dtype):
        return data_type_to_json_name(data_type)
    if native.type is np.bytes_:
        return _with_length("null_terminated_bytes", native)
    if native.type is np.void:
        return f"r{8 * native.itemsize}"
    return data_type_to_json_name(dtype(native))


def _with_length(name: str, native: np.dtype[Any]) -> JsonValue:
    return {"name": name, "configuration": {"length_bytes": native.itemsize}}


def data_type_to_json_name(data_type: dtype) -> str:
    """Return the name of a number type in Zarr v3 metadata."""
    if is_object(data_type):
        return V3_NAMES[data_type.name]
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
"""Bare names that are TensorStore's extension: little endian, narrow types in one byte."""

_V2_TYPESTR: Final = re.compile(r"([<>|])([a-zA-Z])([0-9]{0,9})(\[[0-9a-zA-Zμ]{1,20}\])?")
_V2_ITEMSIZES: Final = {
    "b": ("1",),
    "i": ("1", "2", "4", "8"),
    "u": ("1", "2", "4", "8"),
    "f": ("2", "4", "8"),
    "c": ("8", "16"),
}
_V2_UNIT: Final = re.compile(r"\[([0-9]{1,10})?([a-zμ]+|[YMWD])\]")
_V2_STRINGS: Final = "SVU"
# Types that Zarr v2 allows and gpustore does not read: objects, and floats whose bits depend on the
# machine that wrote them.
_V2_KNOWN: Final = ("f12", "f16", "c24", "c32")


def parse_v2_dtype(value: JsonValue) -> np.dtype[Any]:
    """Parse the value of ``dtype`` into the NumPy type of the stored elements.

    Returns
    -------
    numpy.dtype
        Type with the stored byte order; an ml_dtypes type for TensorStore's bare names, a packed
        structured type for a list of fields.

    Raises
    ------
    UnsupportedError
        For a type that exists but cannot be read: objects, and floats of more than 8 bytes, which
        mean different bits on different machines.
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
    if unit is None and kind in _V2_STRINGS and itemsize:
        return _v2_string(order, kind, int(itemsize), message)
    if kind in "Mm" and itemsize == "8":
        return _v2_time(order, kind, unit, message)
    if kind == "O" or kind + itemsize in _V2_KNOWN:
        raise UnsupportedError(f"{message} (it is known, but not supported)")
    raise MetadataError(message)


def _v2_string(order: str, kind: str, length: int, message: str) -> np.dtype[Any]:
    if not length:
        raise UnsupportedError(f"{message} (elements without bytes are not supported)")
    if kind != "U":
        return np.dtype(f"{kind}{length}")
    if order == "|":
        raise MetadataError(f"{message} (a byte order is needed: < or >)")
    if 4 * length > _MAX_NBYTES:
        raise MetadataError(f"{message} (at most {_MAX_NBYTES // 4} characters are possible)")
    return np.dtype(f"{order}U{length}")


def _v2_time(order: str, kind: str, unit: str | None, message: str) -> np.dtype[Any]:
    """Return a date or duration type; zarr-python writes those of no unit without one."""
    if order == "|":
        raise MetadataError(f"{message} (a byte order is needed: < or >)")
    parts = _V2_UNIT.fullmatch(unit or "[generic]")
    factor = int(parts[1] or 1) if parts else 0
    if parts is None or parts[2] not in _UNITS or not 1 <= factor < 2**31:
        raise MetadataError(f"{message} (expected a unit, one of: {', '.join(_UNITS)})")
    return np.dtype(f"{order}{kind}8[{_scaled(parts[2], factor)}]")


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
        base = parse_v2_dtype(parts[1])
    shape: list[int] = []
    with at_position(2):
        for index, extent in enumerate(expect_list(parts[2]) if len(parts) == 3 else []):
            with at_position(index):
                shape.append(expect_int(extent, 1, 2**62 - 1))
    return parts[0], base, tuple(shape)


def record(
    fields: Sequence[tuple[str, np.dtype[Any], tuple[int, ...]]], nbytes: int
) -> np.dtype[Any]:
    """Return a packed structured type of `nbytes` bytes.

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
    if nbytes > _MAX_NBYTES:
        raise MetadataError(
            f"A record of {nbytes} bytes is too large: at most {_MAX_NBYTES} are possible"
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
    if is_object(stored):
        return "|O"
    name = stored.name
    if name in _V2_BARE:
        return name
    if stored.kind not in "MmU" and str(stored.itemsize) not in _V2_ITEMSIZES.get(stored.kind, ()):
        written = name if stored.kind == "V" else stored.str
        raise UnsupportedError(f"Unsupported zarr dtype: {quote(written)}")
    return stored.str
