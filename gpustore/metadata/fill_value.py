"""Fill values as JSON and as the exact bits of one element.

Zarr v3 floats are numbers, ``"NaN"``, ``"Infinity"``, ``"-Infinity"`` or ``"0x..."``, the bits
as a big-endian hexadecimal number of full width; every NaN but the default one is written as bits.
Zarr v2 has no notation for such a NaN: there all NaNs are the default one.

Dates and durations are integers, or ``"NaT"``, the least one; NaT is written as an integer, which
all readers take. Strings are text; in Zarr v3 it is padded with zeros to its full length.

A parsed fill value is a read-only array of rank 0 in native byte order, since that keeps every
bit of a NaN, which a NumPy scalar on its way through Python's float does not. Only that of a pair
of numbers (see :mod:`gpustore.metadata.data_type`) has the rank 1.
Source: Zarr v3 core specification, "Fill value"; Zarr v2 specification, "Fill value encoding".
"""

from __future__ import annotations

import base64
import math
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, Literal, NoReturn, TypeAlias

import numpy as np

from gpustore.data_types.dtype import DTYPES, dtype, of_elements
from gpustore.errors import MetadataError
from gpustore.metadata.component import is_opaque
from gpustore.metadata.data_type import V3_DATA_TYPES
from gpustore.metadata.object_type import (
    is_object,
    object_fill_to_json,
    object_type,
    parse_object_fill,
)
from gpustore.strict_json.parsing import (
    JsonValue,
    Members,
    at_position,
    expect_bool,
    expect_int,
    expect_list,
    expect_str,
    text,
)

FillValue: TypeAlias = np.ndarray[Any, Any]

_HEX: Final = re.compile(r"0x[0-9a-fA-F]+", re.ASCII)
_DECIMAL: Final = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)
# Longest text that is matched: the expression takes quadratic time to refuse many digits.
_DECIMAL_MAX: Final = 100
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_PART: Final = {"complex64": DTYPES["float32"], "complex128": DTYPES["float64"]}
_SUB_BYTE_INT: Final = {"int2": (-2, 1), "int4": (-8, 7), "uint2": (0, 3), "uint4": (0, 15)}
_SUB_BYTE_FLOAT: Final = {"float4_e2m1fn": 0x0F, "float6_e2m3fn": 0x3F, "float6_e3m2fn": 0x3F}
_TIMES: Final = (np.datetime64, np.timedelta64)
_NAT: Final = -(2**63)


def fill_value_array(value: object, data_type: dtype) -> FillValue:
    """Return `value` as a read-only array of rank 0 with the NumPy dtype of `data_type`.

    Parameters
    ----------
    value : array-like of rank 0
        Any value that NumPy converts; an array of the same type keeps its bits.
    data_type : dtype
        Data type of the result, in native byte order.

    Raises
    ------
    MetadataError
        If `value` is not of rank 0.
    """
    if is_object(data_type):
        return parse_object_fill(
            object_fill_to_json(np.asarray(value, object), data_type), data_type
        )
    with np.errstate(all="ignore"):
        array = np.array(value, dtype=data_type.array_dtype)
    if array.ndim != 0:
        raise MetadataError(f"Expected fill value of rank 0, but received: {value!r:.200}")
    array.flags.writeable = False
    return array


# --------------------------------------------------------------------------- Zarr v3


def parse_v3_fill_value(value: JsonValue, data_type: dtype | np.dtype[Any]) -> FillValue:
    """Parse the ``fill_value`` of Zarr v3 metadata.

    The fill value of a record is an object with every field, or the value of its only field; a list
    of the values of the fields and the base64 of its little endian bytes are also read. A field of
    raw bytes may have one number, which stands for each byte. Raw bytes are base64 or a list of
    numbers, dates ``"NaT"`` or a number.

    Returns
    -------
    numpy.ndarray
        Host array of rank 0, read-only, of ``data_type.numpy_dtype`` or of the NumPy type.

    Raises
    ------
    MetadataError
        If `value` is no value of that type: out of range, a fraction, a special value that the
        type does not have, bits of another width.

    Examples
    --------
    >>> parse_v3_fill_value("0x7fc00001", DTYPES["float32"]).tobytes().hex()
    '0100c07f'
    """
    if isinstance(data_type, np.dtype):
        return _opaque(value, data_type)
    if is_object(data_type):
        return parse_object_fill(value, data_type)
    if data_type.name in _PART:
        return _from_parts(value, data_type, parse_v3_fill_value)
    if data_type.type is np.str_:
        return _string(value, data_type)
    if not _is_float(data_type):
        return _exact(value, data_type)
    if isinstance(value, str):
        return (_special if value in _SPECIAL else _from_hex)(value, data_type)
    if not _is_number(value):
        raise MetadataError(f"Expected floating-point number, but received: {text(value)}")
    return _number(value, data_type)


def _opaque(value: JsonValue, data_type: np.dtype[Any]) -> FillValue:
    """Parse the fill value of a record, raw bits or a pair."""
    if data_type.subdtype is not None:
        return _pair(value, of_elements(data_type.base), parse_v3_fill_value)
    if data_type.names is None:
        if not is_opaque(data_type):
            return parse_v3_fill_value(value, of_elements(data_type))
        if isinstance(value, list):
            data = bytes(expect_int(byte, 0, 255) for byte in expect_list(value))
            if len(data) != data_type.itemsize:
                raise MetadataError(
                    f"Expected {data_type.itemsize} bytes, but received: {text(value)}"
                )
        else:
            # zarr-python leaves out the zeros at the end of strings.
            data = _base64_bytes(value, data_type.itemsize, padded=data_type.kind == "S")
        return np.frombuffer(data.ljust(data_type.itemsize, b"\0"), data_type).reshape(())
    if isinstance(value, str) and not _is_only_field(value, data_type):
        data = _base64_bytes(value, data_type.itemsize)
        return _read_only(np.frombuffer(data, data_type.newbyteorder("<")).astype(data_type))
    if isinstance(value, list) and not (
        len(data_type.names) == 1 and len(value) == 2 and data_type[0].kind == "c"
    ):
        if len(value) != len(data_type.names):
            raise MetadataError(
                f"Array has length {len(value)} but should have length {len(data_type.names)}"
            )
        value = dict(zip(data_type.names, value))
    elif len(data_type.names) == 1 and not isinstance(value, dict):
        value = {data_type.names[0]: value}
    members = Members(value)
    element = np.zeros(1, data_type)
    for name in data_type.names:
        element[name] = members.take_with(name, partial(_field, data_type=data_type[name]))
    members.finish()
    return _read_only(element)


def _is_only_field(value: str, data_type: np.dtype[Any]) -> bool:
    """Whether text is the value of a record's only field, and not base64 of the record."""
    if len(data_type.names or ()) != 1:
        return False
    # Base64 of characters is longer than the characters, and that of numbers has another length
    # than the text of their bits.
    if data_type[0].kind == "U":
        return len(value.rstrip("\0")) <= data_type.itemsize // 4
    return value in _SPECIAL or value == "NaT" or _HEX.fullmatch(value) is not None


def _field(value: JsonValue, data_type: np.dtype[Any]) -> FillValue:
    """Parse the fill value of a field of a record."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if data_type.names is None and is_opaque(data_type) and is_number:
        data = bytes([expect_int(value, 0, 255)]) * data_type.itemsize
        return np.frombuffer(data, data_type).reshape(())
    return _opaque(value, data_type)


def _read_only(elements: FillValue) -> FillValue:
    element = elements.reshape(())
    element.flags.writeable = False
    return element


def v3_fill_value_to_json(value: FillValue, data_type: dtype | np.dtype[Any]) -> JsonValue:
    """Return the JSON that :func:`parse_v3_fill_value` turns into exactly these bits."""
    if isinstance(data_type, np.dtype):
        if data_type.names is not None:
            if len(data_type.names) == 1 and _is_plain(data_type[0]):
                # The only form of such fields that TensorStore reads.
                (name,) = data_type.names
                return v3_fill_value_to_json(value[name], data_type[name])
            return _record_to_json(value, data_type)
        if is_opaque(data_type):
            return base64.b64encode(value.tobytes()).decode()
        if data_type.subdtype is not None:
            part = of_elements(data_type.base)
            return [v3_fill_value_to_json(x, part) for x in _parts(value, part)]
        data_type = of_elements(data_type)
    if is_object(data_type):
        return object_fill_to_json(value, data_type)
    if data_type.name in _PART:
        part = _PART[data_type.name]
        return [v3_fill_value_to_json(x, part) for x in _parts(value, part)]
    if data_type.type is np.str_:
        return str(value).ljust(data_type.itemsize // 4, "\0")
    if not _is_float(data_type):
        return _exact_to_json(value, data_type)
    if math.isnan(value):
        nan = _special("NaN", data_type)
        return "NaN" if value.tobytes() == nan.tobytes() else _to_hex(value)
    if data_type.name == "float8_e8m0fnu":
        # TensorStore 0.1.86 takes 63 for its exponent bias, not 127; bits mean the same to all.
        return _to_hex(value)
    return _float_to_json(value)


def _is_plain(field: np.dtype[Any]) -> bool:
    """Whether TensorStore reads fields of that type."""
    if field.names is not None or field.shape:
        return False
    return field.type is np.void or (field.kind not in "MmUS" and field.name in V3_DATA_TYPES)


def _record_to_json(value: FillValue, data_type: np.dtype[Any]) -> JsonValue:
    return {name: _field_to_json(value[name], data_type[name]) for name in data_type.names or ()}


def _field_to_json(value: FillValue, data_type: np.dtype[Any]) -> JsonValue:
    """Return the JSON of one of several fields of a record."""
    if data_type.names is not None:
        return _record_to_json(value, data_type)
    data = value.tobytes()
    # The only form of raw bytes that TensorStore reads in a record: one number for equal bytes.
    if is_opaque(data_type) and data.count(data[0]) == len(data):
        return data[0]
    return v3_fill_value_to_json(value, data_type)


def _from_hex(value: str, data_type: dtype) -> FillValue:
    if not _HEX.fullmatch(value):
        raise MetadataError(
            f'Expected "Infinity", "-Infinity", "NaN", or hex string, but received: {text(value)}'
        )
    # Shorter texts mean different bits to TensorStore (right-aligned) and zarr-python (left).
    digits = 2 * data_type.itemsize
    if len(value) != 2 + digits:
        raise MetadataError(
            f"Expected {digits} hex digits for the bits of {data_type.name}, "
            f"but received: {text(value)}"
        )
    largest = _SUB_BYTE_FLOAT.get(data_type.name, 0xFF)
    if digits == 2 and int(value, 16) > largest:
        raise MetadataError(f'Expected "0x00" to "{largest:#04x}", but received: {text(value)}')
    return _from_bytes(bytes.fromhex(value[2:]), ">", data_type)


def _to_hex(value: FillValue) -> str:
    bits = int.from_bytes(value.tobytes(), sys.byteorder)
    return f"0x{bits:0{2 * value.itemsize}x}"


# --------------------------------------------------------------------------- Zarr v2


def parse_v2_fill_value(value: JsonValue, stored: np.dtype[Any]) -> FillValue | None:
    """Parse the ``fill_value`` of Zarr v2 metadata.

    More is read than in Zarr v3: booleans may be 0 and 1, floats decimal strings, and complex
    numbers and ``float4_e2m1fn`` the base64 of their stored bytes. Strings may lack zeros at their
    end. 0 stands for zero bytes of records and strings, too: old files have it.

    Parameters
    ----------
    value : JsonValue
        The member; ``null`` means undefined.
    stored : numpy.dtype
        Type and byte order of the stored elements.

    Returns
    -------
    numpy.ndarray or None
        Host array of rank 0, read-only, native byte order; for records, strings and raw bytes the
        bytes as they are stored (``V<n>``). None if undefined.

    Raises
    ------
    MetadataError
        If `value` is no value of that type.
    """
    if value is None:
        return None
    if stored.hasobject:
        return parse_object_fill(value, object_type(stored))
    if is_opaque(stored):
        element = np.zeros(1, f"V{stored.itemsize}")
        if _is_zero(value):
            return _read_only(element)
        # zarr-python leaves out the zeros at the end of strings.
        data = _base64_bytes(value, stored.itemsize, padded=stored.kind == "S")
        element.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
        return _read_only(element)
    data_type = of_elements(stored)
    if data_type.type is np.str_:
        return _string("" if _is_zero(value) else value, data_type)
    if data_type.name in _PART:
        if isinstance(value, list):
            return _from_parts(value, data_type, _parse_v2_float)
        return _from_base64(value, stored)
    if data_type.name == "float4_e2m1fn" and isinstance(value, str) and value not in _SPECIAL:
        return _from_base64(value, stored)
    if _is_float(data_type):
        return _parse_v2_float(value, data_type)
    if data_type.name == "bool" and type(value) is int and value in (0, 1):
        value = bool(value)
    return _exact(value, data_type)


def v2_fill_value_to_json(value: FillValue | None, stored: np.dtype[Any]) -> JsonValue:
    """Return the JSON of a fill value; every NaN becomes ``"NaN"``."""
    if value is None:
        return None
    if stored.hasobject:
        return object_fill_to_json(value, object_type(stored))
    if is_opaque(stored):
        return base64.b64encode(value.tobytes()).decode()
    data_type = of_elements(stored)
    if data_type.type is np.str_:
        return str(value)
    if data_type.name in _PART:
        return [_float_to_json(x) for x in _parts(value, _PART[data_type.name])]
    if data_type.name == "float4_e2m1fn":
        # The only form of this type that TensorStore reads.
        return base64.b64encode(value.tobytes()).decode()
    return _float_to_json(value) if _is_float(data_type) else _exact_to_json(value, data_type)


def _parse_v2_float(value: JsonValue, data_type: dtype) -> FillValue:
    if isinstance(value, str):
        if value in _SPECIAL:
            return _special(value, data_type)
        if len(value) <= _DECIMAL_MAX and _DECIMAL.fullmatch(value):
            number = float(value)
            if math.isfinite(number):
                return _number(number, data_type)
    elif _is_number(value):
        return _number(value, data_type)
    raise MetadataError(f"Invalid floating-point value: {text(value)}")


def _base64_bytes(value: JsonValue, nbytes: int, *, padded: bool = False) -> bytes:
    """Decode base64 text of `nbytes` bytes; of a padded string at most that many.

    Text of `nbytes` bytes may lack the ``=`` at its end, as in TensorStore. A shorter one may not:
    it may be text that is no base64.
    """
    try:
        missing = -len(value) % 4
        decoded = base64.b64decode(value + "=" * missing, validate=True)
    except (TypeError, ValueError):
        decoded, missing = b"", 4
    least = 0 if padded and not missing else nbytes
    if missing == 4 or not least <= len(decoded) <= nbytes:
        raise MetadataError(f"Expected {nbytes} base64-encoded bytes, but received: {text(value)}")
    return decoded


def _from_base64(value: JsonValue, stored: np.dtype[Any]) -> FillValue:
    decoded = _base64_bytes(value, stored.itemsize)
    return _from_bytes(decoded, ">" if stored.byteorder == ">" else "<", of_elements(stored))


# --------------------------------------------------------------------------- one element


def _is_zero(value: JsonValue) -> bool:
    return type(value) is int and value == 0


def _is_float(data_type: dtype) -> bool:
    return "float" in data_type.name


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _exact(value: JsonValue, data_type: dtype) -> FillValue:
    """Parse a boolean or an integer; ``1.0`` is one, as in TensorStore and zarr-python."""
    if data_type.name == "bool":
        return fill_value_array(expect_bool(value), data_type)
    if data_type.type in _TIMES:
        number = (
            _NAT if value == "NaT" else expect_int(value, _NAT, -(_NAT + 1), integral_floats=True)
        )
        return fill_value_array(np.array(number, np.int64).view(data_type.array_dtype), data_type)
    if data_type.name in _SUB_BYTE_INT:
        low, high = _SUB_BYTE_INT[data_type.name]
    else:
        low, high = _bounds(data_type.array_dtype)
    array = np.array(expect_int(value, low, high, integral_floats=True), data_type.array_dtype)
    array.flags.writeable = False
    return array


@cache
def _bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _exact_to_json(value: FillValue, data_type: dtype) -> JsonValue:
    if data_type.type in _TIMES:
        return int(value.view(np.int64))
    return bool(value) if data_type.name == "bool" else int(value)


def _number(value: float, data_type: dtype) -> FillValue:
    try:
        exact = float(value)
    except OverflowError:
        _refuse(value, data_type)
    if data_type.name == "float8_e8m0fnu" and exact == 0:
        # The type has no zero; its least value, bits 0, is nearer than the NaN of a conversion.
        return _from_bytes(b"\0", "<", data_type)
    array = fill_value_array(np.float64(exact), data_type)
    if math.isnan(array):
        _refuse(value, data_type)
    return array


def _special(name: str, data_type: dtype) -> FillValue:
    array = fill_value_array(np.float64(_SPECIAL[name]), data_type)
    if repr(float(array)) != repr(_SPECIAL[name]):
        _refuse(name, data_type)
    return array


def _refuse(value: JsonValue, data_type: dtype) -> NoReturn:
    raise MetadataError(
        f"Expected value of data type {data_type.name}, but received: {text(value)}"
    )


def _float_to_json(value: FillValue) -> JsonValue:
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _from_bytes(data: bytes, order: Literal["<", ">"], data_type: dtype) -> FillValue:
    stored = data_type.array_dtype.newbyteorder(order)
    return fill_value_array(np.frombuffer(data, dtype=stored).reshape(()), data_type)


def _string(value: JsonValue, data_type: dtype) -> FillValue:
    longest = data_type.itemsize // 4
    if len(expect_str(value).rstrip("\0")) > longest:
        raise MetadataError(
            f"Expected a string of at most {longest} characters, but received: {text(value)}"
        )
    return fill_value_array(value, data_type)


def _from_parts(
    value: JsonValue, data_type: dtype, parse: Callable[[JsonValue, dtype], FillValue]
) -> FillValue:
    pair = _pair(value, _PART[data_type.name], parse)
    return _read_only(pair.view(data_type.array_dtype))


def _pair(
    value: JsonValue, part: dtype, parse: Callable[[JsonValue, dtype], FillValue]
) -> FillValue:
    """Parse a pair of real and imaginary part, shape (2,)."""
    parts = np.empty(2, part.array_dtype)
    for index, element in enumerate(expect_list(value, length=2)):
        with at_position(index):
            parts[index] = parse(element, part)
    parts.flags.writeable = False
    return parts


def _parts(value: FillValue, part: dtype) -> list[FillValue]:
    real, imaginary = np.array(value).reshape(-1).view(part.array_dtype)[:, None]
    return [real.reshape(()), imaginary.reshape(())]
