"""NumPy type and fill values of stored strings and bytes of any length.

NumPy has one type for all Python objects. The type of stored elements names the Python type in its
metadata, as h5py does: ``np.dtype("O", metadata={"vlen": str})``. It is equal to the plain type,
which arrays in memory have.

===================  ==================  =============================  ===================
TensorStore's name   element in memory   Zarr v3 ``data_type``          Zarr v2 ``|O`` with
===================  ==================  =============================  ===================
``ustring``          ``str``             ``string``                     ``vlen-utf8``
``string``           ``bytes``           ``bytes``                      ``vlen-bytes``
===================  ==================  =============================  ===================
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gpustore.data_types.dtype import DTYPES
from gpustore.data_types.dtype import dtype as DataType
from gpustore.errors import MetadataError
from gpustore.strict_json.parsing import JsonValue, expect_int, expect_list, expect_str, text

_NUMPY: Final = {
    name: np.dtype(object, metadata={"vlen": DTYPES[name].type}) for name in ("ustring", "string")
}

V3_NAMES: Final = {"ustring": "string", "string": "bytes"}
"""Names of data types in Zarr v3 metadata, by TensorStore's names."""

V3_OBJECTS: Final = {
    "string": DTYPES["ustring"],
    "bytes": DTYPES["string"],
    "variable_length_bytes": DTYPES["string"],
}
"""Data types by their names in Zarr v3 metadata; the last name is zarr-python's."""

OBJECT_CODECS: Final = {"ustring": "vlen-utf8", "string": "vlen-bytes"}
"""Filter of Zarr v2 and codec of Zarr v3 that store a data type, by TensorStore's name."""


def is_object(data_type: DataType | np.dtype[Any]) -> bool:
    """Whether elements are strings or bytes of any length."""
    if isinstance(data_type, DataType):
        return data_type.name in _NUMPY
    return "vlen" in (data_type.metadata or {})


def object_dtype(data_type: DataType) -> np.dtype[Any]:
    """Return the NumPy type of stored elements of ``ustring`` or ``string``."""
    return _NUMPY[data_type.name]


def object_type(stored: np.dtype[Any]) -> DataType:
    """Return the data type of stored elements; the inverse of :func:`object_dtype`."""
    said: Mapping[str, Any] = stored.metadata or {}
    kind = said.get("vlen")
    return next(DTYPES[name] for name in _NUMPY if DTYPES[name].type is kind)


def empty_object(data_type: DataType) -> np.ndarray[Any, Any]:
    """Return the value of undefined elements, an empty string or bytes, as an array of shape ()."""
    return _fill(data_type.type(), data_type)


def _fill(value: str | bytes, data_type: DataType) -> np.ndarray[Any, Any]:
    array = np.empty((), object)
    if not isinstance(value, data_type.type):
        raise MetadataError(
            f"Expected fill value of data type {data_type.name}, but received: {value!r:.200}"
        )
    array[()] = value
    array.flags.writeable = False
    return array


def parse_object_fill(value: JsonValue, data_type: DataType) -> np.ndarray[Any, Any]:
    """Parse the ``fill_value`` of strings (text) or of bytes (base64 or a list of numbers).

    0 stands for the empty string, too: zarr-python 2 writes it for objects by default.

    Raises
    ------
    MetadataError
        If `value` is none of these, or text that has no UTF-8.
    """
    if type(value) is int and value == 0:
        return empty_object(data_type)
    if data_type.type is str:
        string = expect_str(value)
        try:
            string.encode()
        except UnicodeEncodeError:
            raise MetadataError(f"Expected Unicode, but received: {value!r:.200}") from None
        return _fill(string, data_type)
    if isinstance(value, list):
        return _fill(bytes(expect_int(byte, 0, 255) for byte in expect_list(value)), data_type)
    try:
        data = base64.b64decode(expect_str(value).encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise MetadataError(
            f"Expected base64-encoded bytes, but received: {text(value)}"
        ) from error
    return _fill(data, data_type)


def object_fill_to_json(value: np.ndarray[Any, Any], data_type: DataType) -> JsonValue:
    """Return the JSON that :func:`parse_object_fill` turns into `value`."""
    element = _fill(np.asarray(value, object).item(), data_type).item()
    return element if isinstance(element, str) else base64.b64encode(element).decode()
