"""Conversion of elements from one data type to another, by the rules of TensorStore's ``cast``.

=============================  ====================================================================
to                             from
=============================  ====================================================================
integers                       integers: the low bits; floats: rounded towards zero, the low bits of
                               a signed integer that is minimal where the value does not fit
floats                         numbers: to the nearest, ties to even
complex numbers                numbers
real numbers                   complex numbers: the real part (but not to ``bool``)
``bool``                       numbers: whether they are not zero
``string``, ``ustring``        each other (UTF-8), numbers but ``bool``: six digits, as C's ``%g``
``json``                       numbers (complex ones as pairs), ``string``, ``ustring``
all but complex numbers        ``json``, if its value is one; a text may hold the number
``char``, ``byte``             each other
=============================  ====================================================================

Floats beyond the range of an integer, which C leaves undefined, become what x86 makes of one
element after the other, on every machine: the signed integer has 64 bits for ``uint32`` and types
of 64 bits, 32 for others. (Of many elements TensorStore converts some to ``uint32`` four at a time,
with other results.) Infinities of eight bits become the greatest and least integer, their NaNs 0.
TensorStore 0.1.86 converts ``float8_e8m0fnu`` wrongly (1.0 becomes 2**-64); here it is right.

Source: TensorStore's page "cast driver" and ``data_type_conversion.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpustore.data_types.dtype import MORE_NUMBERS
from gpustore.data_types.dtype import dtype as DataType
from gpustore.data_types.json_array import array_to_json, element_parser
from gpustore.errors import MetadataError

Converter: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
"""Function from a host array of one data type to an array of the same shape of another."""

_COMPLEX: Final = frozenset({"complex64", "complex128"})
_TEXTS: Final = frozenset({"string", "ustring"})
_BYTES: Final = frozenset({"char", "byte"})
_NUMBERS: Final = frozenset(
    {
        *("bool", "int2", "int4", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bfloat16"),
        *("float4_e2m1fn", "float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
        *("float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *MORE_NUMBERS,
        *_COMPLEX,
    }
)
_SMALL_INTEGERS: Final = {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"}
"""Narrow integer types of ml_dtypes, and the NumPy type that holds all their values."""

_SMALL_FLOATS: Final = frozenset(
    name
    for name in _NUMBERS - _COMPLEX
    if "float" in name and DataType(name).itemsize < np.dtype("float32").itemsize
)
"""Real types whose values are all exact in float32."""


def converter(source: DataType, target: DataType) -> Converter | None:
    """Return the conversion of elements from `source` to `target`, None if there is none.

    Examples
    --------
    >>> convert = converter(DataType("float32"), DataType("uint8"))
    >>> convert(np.array([1.5, 300.7, -3.2], "float32"))
    array([  1,  44, 253], dtype=uint8)
    >>> converter(DataType("complex64"), DataType("bool")) is None
    True
    """
    found = None
    if source == target:
        found = _unchanged
    elif source.name in _BYTES and target.name in _BYTES:
        found = partial(_viewed, target.array_dtype)
    elif source.name in _NUMBERS and target.name in _NUMBERS:
        if not (source.name in _COMPLEX and target.name == "bool"):
            found = partial(_number, source.name, target)
    elif source.name in _NUMBERS and target.name in _TEXTS:
        if source.name != "bool":
            found = partial(_printed, source.name, target.name)
    elif source.name in _TEXTS and target.name in _TEXTS:
        found = partial(_each, _encoded if target.name == "string" else _decoded)
    elif target.name == "json" and (source.name in _NUMBERS or source.name in _TEXTS):
        found = partial(_to_json, source)
    elif source.name == "json" and (target.name in _NUMBERS - _COMPLEX or target.name in _TEXTS):
        found = partial(_from_json, target)
    return found


def _unchanged(array: NDArray[Any]) -> NDArray[Any]:
    return array


def _viewed(dtype: np.dtype[Any], array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).view(dtype).reshape(array.shape)


def _number(source: str, target: DataType, array: NDArray[Any]) -> NDArray[Any]:
    array = _plain(source, array)
    dtype = target.array_dtype
    if array.dtype.kind == "c" and dtype.kind != "c":
        array = array.real
    with np.errstate(all="ignore"):
        if target.name == "bool":
            found: NDArray[Any] = array != 0
            return found
        wide = np.dtype(_SMALL_INTEGERS.get(target.name, dtype))
        if wide.kind not in "iu":
            return array.astype(dtype)
        if array.dtype.kind != "f":
            return array.astype(wide).astype(dtype)
        found = _integers(array, wide).astype(wide)
        if source.startswith("float8"):
            found[np.isnan(array)] = 0
            found[array == np.inf] = np.iinfo(wide).max
            found[array == -np.inf] = np.iinfo(wide).min
        return found.astype(dtype)


def _plain(source: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return the same numbers in a type that NumPy converts itself."""
    if source in _SMALL_INTEGERS:
        return array.astype(_SMALL_INTEGERS[source])
    if source in _SMALL_FLOATS:
        with np.errstate(all="ignore"):  # A signalling NaN would warn.
            return array.astype(np.float32)
    return array


def _integers(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return floats as signed integers, of which `dtype` keeps the low bits."""
    if dtype == np.uint64:
        # Half of the unsigned range is beyond the signed integers of that size.
        high = array >= 2.0**63
        if high.any():
            low = _signed(np.where(high, array - array.dtype.type(2.0**63), array), np.int64)
            return low.view(np.uint64) ^ (high.astype(np.uint64) << np.uint64(63))
    return _signed(array, np.int64 if dtype in (np.int64, np.uint32, np.uint64) else np.int32)


def _signed(array: NDArray[Any], dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """Return floats rounded towards zero; one that does not fit becomes the least integer."""
    least = np.iinfo(dtype).min
    fits = (array >= float(least)) & (array < -float(least))
    if fits.all():
        return array.astype(dtype)
    found = np.full(array.shape, least, dtype)
    found[fits] = array[fits].astype(dtype)
    return found


def _each(convert: Callable[[Any], Any], array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of objects, each the conversion of an element."""
    found = np.empty(array.size, object)
    for i, element in enumerate(array.ravel().tolist()):
        found[i] = convert(element)
    return found.reshape(array.shape)


def _encoded(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MetadataError("Invalid UTF-8 sequence encountered") from None


def _printed(source: str, target: str, array: NDArray[Any]) -> NDArray[Any]:
    convert: Callable[[Any], str] = str
    if source in _COMPLEX:
        convert = _pair_text
    elif "float" in source:
        convert = "{:g}".format
    array = _plain(source, array)
    if target == "ustring":
        return _each(convert, array)
    return _each(lambda value: convert(value).encode(), array)


def _pair_text(value: complex) -> str:
    return f"({value.real:g},{value.imag:g})"


def _to_json(source: DataType, array: NDArray[Any]) -> NDArray[Any]:
    if source.name == "string":
        return _each(_decoded, array)
    found = np.empty(array.size, object)
    for i, element in enumerate(array_to_json(array.ravel(), source)):
        found[i] = element
    return found.reshape(array.shape)


def _from_json(target: DataType, array: NDArray[Any]) -> NDArray[Any]:
    parse = element_parser(target)
    found = np.empty(array.size, target.array_dtype)
    for i, element in enumerate(array.ravel()):
        found[i] = parse(element)
    return found.reshape(array.shape)
