"""Data types: TensorStore's names for them, and the NumPy types that hold them in memory.

A :class:`dtype` has no byte order. It is not a NumPy dtype: ``int4`` is an ml_dtypes type, ``char``
and ``byte`` are NumPy's ``S`` and ``V``, and ``string``, ``ustring`` and ``json`` share NumPy's
``object``.

TensorStore's data types are a fixed set, :data:`DTYPES`. Zarr arrays hold more, which are named as
NumPy names them, without byte order:

=====================================  ========================================================
``datetime64[25s]``, ``timedelta64``   dates and durations of any unit
``U3``                                 strings of three characters of 32 bits
``uint4``, ``float8_e4m3`` ...         the types of ml_dtypes that TensorStore lacks
``[["x","int32"],["y","U3",[2]]]``     records: name, data type and shape of each field, as JSON
=====================================  ========================================================
"""

from __future__ import annotations

import builtins
import contextlib
import re
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

import ml_dtypes
import numpy as np

from gpustore.errors import GpustoreError, MetadataError
from gpustore.strict_json.parsing import (
    dump,
    expect_int,
    expect_list,
    expect_str,
    from_python,
    parse,
    quote,
)

_ML_DTYPES = (
    "int2",
    "int4",
    "float8_e3m4",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e4m3b11fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
    "bfloat16",
)

MORE_NUMBERS: Final = ("uint2", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3")
"""Number types of Zarr v3 that TensorStore lacks, by ml_dtypes' names."""

_NUMPY = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)


def _table() -> dict[str, tuple[np.dtype[Any], builtins.type[Any]]]:
    """Return NumPy dtype and scalar type of TensorStore's data types, by name."""
    table: dict[str, tuple[np.dtype[Any], builtins.type[Any]]] = {
        "char": (np.dtype("S"), np.bytes_),
        "byte": (np.dtype("V"), np.void),
        "string": (np.dtype("O"), bytes),
        "ustring": (np.dtype("O"), str),
        "json": (np.dtype("O"), np.object_),
    }
    for name in _NUMPY:
        table[name] = (np.dtype(name), np.dtype(name).type)
    for name in _ML_DTYPES:
        scalar = getattr(ml_dtypes, name)
        table[name] = (np.dtype(scalar), scalar)
    return table


class dtype:
    """Data type of elements, without byte order; immutable and hashable.

    Parameters
    ----------
    dtype : str, dtype, numpy.dtype or type
        A TensorStore name such as ``"uint16"``, one of the names at the head of this module, or a
        code or name of NumPy's numbers, dates and strings such as ``"<u2"`` or ``"double"``; a
        NumPy dtype or scalar type, whose byte order and (of ``S`` and ``V``) length are dropped; or
        one of Python's ``int``, ``float``, ``complex``, ``bool``, ``str`` (ustring) and ``bytes``
        (string). NumPy's records are ``byte``, as in TensorStore.

    Raises
    ------
    MetadataError
        If there is no such data type: strings of no length and generic objects have none.
    TypeError
        If the argument does not name a data type at all.

    Examples
    --------
    >>> dtype("uint16")
    dtype("uint16")
    >>> dtype(">u2") == dtype(np.dtype(">u2")) == np.uint16
    True
    >>> dtype("u3")
    Traceback (most recent call last):
        ...
    gpustore.errors.MetadataError: No TensorStore data type with name: "u3"
    """

    __slots__ = ("__weakref__", "_name", "_numpy_dtype", "_type")
    _name: str
    _numpy_dtype: np.dtype[Any]
    _type: builtins.type[Any]

    def __new__(cls, dtype: DTypeLike) -> DataType:
        if isinstance(dtype, cls):
            return dtype
        if isinstance(dtype, str):
            return _by_name(str(dtype))
        if isinstance(dtype, np.dtype):
            return _by_numpy_dtype(dtype)
        if isinstance(dtype, type):
            return _by_type(dtype)
        raise TypeError(
            f"Expected the name of a data type, a NumPy dtype or a type, but received: {dtype!r}"
        )

    @property
    def name(self) -> str:
        """TensorStore's name of the data type, or NumPy's where TensorStore has none."""
        return self._name

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """NumPy dtype in native byte order; ``S`` and ``V`` without a length for char and byte."""
        return self._numpy_dtype

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """NumPy dtype of arrays in memory: `numpy_dtype`, but ``S1`` for char, ``V1`` for byte."""
        kind = {"char": "S1", "byte": "V1"}.get(self._name)
        return self._numpy_dtype if kind is None else np.dtype(kind)

    @property
    def dtype(self) -> np.dtype[Any]:
        """:attr:`array_dtype`; NumPy takes objects with this attribute as data types.

        >>> np.zeros(2, DTYPES["uint16"])
        array([0, 0], dtype=uint16)
        """
        return self.array_dtype

    @property
    def type(self) -> builtins.type[Any]:
        """Python or NumPy scalar type of one element."""
        return self._type

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory; for string, ustring and json those of a pointer."""
        return self.array_dtype.itemsize

    @property
    def kind(self) -> str:
        """NumPy's letter for the kind of data type, such as ``"u"`` or ``"f"``."""
        return self.array_dtype.kind

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the fields of records; None for other data types."""
        return self.array_dtype.names

    @property
    def hasobject(self) -> builtins.bool:
        """Whether elements in memory are Python objects, as strings are."""
        return self.array_dtype.hasobject

    def to_json(self) -> str:
        """Return the name, the data type's JSON in a spec."""
        return self._name

    def __call__(self, arg: object) -> Any:
        """Convert `arg` to an element: ``dtype("int8")(5)`` is ``numpy.int8(5)``."""
        if self._name == "json":
            return from_python(arg)
        if self._numpy_dtype.kind in "MmU" or self._numpy_dtype.names is not None:
            return np.array(arg, self._numpy_dtype)[()]
        if isinstance(arg, (str, bytes)) and self._name in (*_ML_DTYPES, *MORE_NUMBERS):
            # ml_dtypes 0.5 ends the process on text that is no number.
            arg = float(arg) if self._name.startswith(("float", "bfloat")) else int(arg, 0)
        return self._type(arg)

    def __eq__(self, other: object) -> builtins.bool:
        """Whether `other` names the same data type.

        A wrong name raises, as in TensorStore. An object that cannot name a data type, such as
        None, or a type without a counterpart, such as ``object``, is merely different, unlike
        there: so dtypes can stand in tuples and dataclasses, and libraries compare them as NumPy's.
        """
        if self is other:
            return True
        if not isinstance(other, (dtype, str, np.dtype, type)):
            return NotImplemented
        try:
            return self._name == dtype(other)._name
        except (MetadataError, TypeError):
            if isinstance(other, str):
                raise
            return False

    def __hash__(self) -> int:
        return hash((dtype, self._name))

    def __repr__(self) -> str:
        return f'dtype("{self._name}")'

    def __reduce__(self) -> tuple[Any, ...]:
        return (dtype, (self._name,))


# np.dtype is itself generic over its scalar; anything else numpy.dtype() takes is a TypeError.
# Within the class its name is that of a property.
DataType: TypeAlias = dtype
DTypeLike: TypeAlias = "str | dtype | np.dtype[Any] | builtins.type[Any]"


def _make(name: str, numpy_dtype: np.dtype[Any], scalar: builtins.type[Any]) -> dtype:
    made = object.__new__(dtype)
    made._name = name
    made._numpy_dtype = numpy_dtype
    made._type = scalar
    return made


_ORDER = (
    *("bool", "char", "byte", "int2", "int4", "int8", "uint8", "int16", "uint16", "int32"),
    *("uint32", "int64", "uint64", "float4_e2m1fn", "float8_e3m4", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("float8_e8m0fnu", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("string", "ustring", "json"),
)
_TABLE = _table()

# All data types by name.
DTYPES: dict[str, dtype] = {name: _make(name, *_TABLE[name]) for name in _ORDER}

_PYTHON = {
    int: "int64",
    float: "float64",
    complex: "complex128",
    builtins.bool: "bool",
    str: "ustring",
    bytes: "string",
}

_MORE = {
    name: _make(name, np.dtype(getattr(ml_dtypes, name)), getattr(ml_dtypes, name))
    for name in MORE_NUMBERS
}
# Data types with a unit, a length or fields. An entry lives as long as its data type is in use.
_OTHERS: WeakValueDictionary[str, dtype] = WeakValueDictionary()
_NAMES: Final = re.compile(
    r"(datetime64|timedelta64)(\[([1-9][0-9]{0,9})?[a-zA-Z]{1,7}\])?|U[1-9][0-9]{0,8}"
)
_CODES: Final = re.compile(
    r"[<>=|]?(\?|b1|[iu][1248]|f[248]|c8|c16)|[<>=]?([mM]8(\[([1-9][0-9]{0,9})?[a-zA-Z]{1,7}\])?"
    r"|U[1-9][0-9]{0,8})|u?int|float|complex|half|single|double"
)
"""Codes and further names of NumPy, which JSON does not take."""

_MAX_NAME: Final = 1 << 20
_MAX_RECORD_DEPTH: Final = 32

# ml_dtypes by scalar type, NumPy's by kind and size: np.longlong is another type than np.int64.
_BY_SCALAR = {DTYPES[name].type: DTYPES[name] for name in (*_ML_DTYPES, "char", "byte")}
_BY_SCALAR |= {found.type: found for found in _MORE.values()}
_BY_KIND = {(DTYPES[name].numpy_dtype.kind, DTYPES[name].itemsize): DTYPES[name] for name in _NUMPY}


def of_elements(numpy_dtype: np.dtype[Any]) -> dtype:
    """Return the data type of elements of a NumPy dtype; that of records keeps their fields.

    >>> of_elements(np.dtype([("x", ">i4"), ("y", "M8[D]", (2,))]))
    dtype("[["x","int32"],["y","datetime64[D]",[2]]]")
    """
    if numpy_dtype.names is None:
        return _by_numpy_dtype(numpy_dtype)
    return _other(dump(_fields_to_json(numpy_dtype)).decode(), numpy_dtype.newbyteorder("="))


def _other(name: str, numpy_dtype: np.dtype[Any]) -> dtype:
    found = _OTHERS.get(name)
    if found is None:
        found = _OTHERS[name] = _make(name, numpy_dtype, numpy_dtype.type)
    return found


def _find(name: str) -> dtype | None:
    found = DTYPES.get(name) or _MORE.get(name) or _OTHERS.get(name)
    if found is not None:
        return found
    try:
        if name.startswith("["):
            fields = parse(name.encode(), where="", max_nbytes=_MAX_NAME)
            return of_elements(_record(fields, _MAX_RECORD_DEPTH))
        if _NAMES.fullmatch(name):
            return _by_numpy_dtype(np.dtype(name))
    except (GpustoreError, TypeError, ValueError):
        pass
    return None


def _fields_to_json(record: np.dtype[Any]) -> list[Any]:
    fields = []
    for name in record.names or ():
        part = record[name]
        base = part.base
        if base.names is not None:
            kind: Any = _fields_to_json(base)
        elif base.type in (np.bytes_, np.void):
            kind = f"{base.kind}{base.itemsize}"
        else:
            kind = _by_numpy_dtype(base).name
        fields.append([name, kind, *([list(part.shape)] if part.shape else [])])
    return fields


def _record(fields: Any, depth: int) -> np.dtype[Any]:
    """Return the record type that the JSON of :func:`_fields_to_json` describes."""
    parts = []
    for field in expect_list(fields):
        name, kind, *shape = expect_list(field)
        if len(shape) > 1:
            raise MetadataError("a field of more than name, data type and shape")
        if isinstance(kind, list) and depth:
            part = _record(kind, depth - 1)
        elif re.fullmatch("[SV][1-9][0-9]{0,8}", expect_str(kind)):
            part = np.dtype(kind)
        else:
            part = from_json(kind).array_dtype
        extents = tuple(expect_int(n, 1) for n in expect_list(shape[0])) if shape else ()
        parts.append((expect_str(name), part, extents))
    if not parts:
        raise MetadataError("a record without fields")
    return np.dtype(parts)


def _by_name(name: str) -> dtype:
    found = _find(name)
    if found is None and _CODES.fullmatch(name):
        with contextlib.suppress(TypeError, ValueError):
            found = _by_numpy_dtype(np.dtype(name))
    if found is None:
        raise MetadataError(f"No TensorStore data type with name: {quote(name)}")
    return found


def _by_numpy_dtype(numpy_dtype: np.dtype[Any]) -> dtype:
    found = _BY_SCALAR.get(numpy_dtype.type)
    if found is None and issubclass(numpy_dtype.type, (np.bool_, np.number)):
        found = _BY_KIND.get((numpy_dtype.kind, numpy_dtype.itemsize))
    if numpy_dtype.kind in "Mm":
        native = numpy_dtype.newbyteorder("=")
        found = _other(native.name, native)
    elif numpy_dtype.kind == "U" and numpy_dtype.itemsize:
        found = _other(f"U{numpy_dtype.itemsize // 4}", numpy_dtype.newbyteorder("="))
    if found is None:
        raise MetadataError(
            f"No TensorStore data type corresponding to NumPy dtype: {numpy_dtype!r}"
        )
    return found


def _by_type(python_type: builtins.type[Any]) -> dtype:
    name = _PYTHON.get(python_type)
    if name is not None:
        return DTYPES[name]
    if python_type in _ABSTRACT:
        raise TypeError(f"Expected a concrete type, but received: {python_type!r}")
    return _by_numpy_dtype(np.dtype(python_type))


# Abstract scalar types, which numpy.dtype() deprecates; they are no data types.
_ABSTRACT = {
    *(np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger, np.inexact),
    *(np.floating, np.complexfloating, np.flexible, np.character),
}


def from_json(value: Any) -> dtype:
    """Return the data type that a JSON value names.

    >>> from_json("int8")
    dtype("int8")
    >>> from_json("i1")
    Traceback (most recent call last):
        ...
    gpustore.errors.MetadataError: Unsupported data type: "i1"
    """
    found = _find(expect_str(value))
    if found is None:
        raise MetadataError(f"Unsupported data type: {quote(value)}")
    return found


# TensorStore's constants. They hide Python's bool below this line.
bool = DTYPES["bool"]
char = DTYPES["char"]
byte = DTYPES["byte"]
int2 = DTYPES["int2"]
int4 = DTYPES["int4"]
int8 = DTYPES["int8"]
int16 = DTYPES["int16"]
int32 = DTYPES["int32"]
int64 = DTYPES["int64"]
uint8 = DTYPES["uint8"]
uint16 = DTYPES["uint16"]
uint32 = DTYPES["uint32"]
uint64 = DTYPES["uint64"]
float4_e2m1fn = DTYPES["float4_e2m1fn"]
float8_e3m4 = DTYPES["float8_e3m4"]
float8_e4m3fn = DTYPES["float8_e4m3fn"]
float8_e4m3fnuz = DTYPES["float8_e4m3fnuz"]
float8_e4m3b11fnuz = DTYPES["float8_e4m3b11fnuz"]
float8_e5m2 = DTYPES["float8_e5m2"]
float8_e5m2fnuz = DTYPES["float8_e5m2fnuz"]
float8_e8m0fnu = DTYPES["float8_e8m0fnu"]
float16 = DTYPES["float16"]
bfloat16 = DTYPES["bfloat16"]
float32 = DTYPES["float32"]
float64 = DTYPES["float64"]
complex64 = DTYPES["complex64"]
complex128 = DTYPES["complex128"]
string = DTYPES["string"]
ustring = DTYPES["ustring"]
json = DTYPES["json"]
