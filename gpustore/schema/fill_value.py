"""Fill values of schemas: an array, kept bit for bit, with its data type.

A fill value may have fewer dimensions than the array; it is broadcast from the right. It is
stored *unbroadcast*: leading dimensions of size 1 and repetitions (stride 0) are removed.

Source: ``Schema::FillValue`` of TensorStore (``tensorstore/schema.h``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustore.data_types.dtype import dtype as DataType
from gpustore.data_types.dtype import json as json_dtype
from gpustore.data_types.json_array import array_from_json, array_to_json, shape_text
from gpustore.errors import MetadataError, prefixing
from gpustore.strict_json.parsing import JsonValue, from_python, text

if TYPE_CHECKING:
    from collections.abc import Sequence


_NO_JSON = {"char", "byte"}
_OBJECTS = {"string", "ustring", "json"}


@dataclass(frozen=True, slots=True, eq=False)
class FillValue:
    """Fill value of a schema; immutable.

    Attributes
    ----------
    array : numpy.ndarray
        Host array, unbroadcast, C order, native byte order, read-only. An object array for string,
        ustring and json.
    dtype : dtype
        Data type of the value; that of the schema if it was known when the value was given.
    """

    array: np.ndarray[Any, np.dtype[Any]]
    dtype: DataType

    @classmethod
    def from_array(cls, value: Any, dtype: DataType | None) -> FillValue:
        """Return the fill value for an array-like `value`, converted to `dtype` as NumPy converts.

        Raises
        ------
        MetadataError
            If `dtype` is None and the value's NumPy dtype has no equivalent, or the value has no
            elements.
        OverflowError, TypeError, ValueError
            If NumPy cannot convert the value, or elements of an array would become other integers.
        """
        if dtype is not None:
            if isinstance(value, np.ndarray):
                _check_integers(value, dtype)
            if dtype.name in _NO_JSON:
                _check_bytes(np.asarray(value), dtype)
            array = np.asarray(value, dtype=dtype.numpy_dtype)
        else:
            array = np.asarray(value)
            dtype = json_dtype if array.dtype.kind == "O" else DataType(array.dtype)
        if array.dtype.kind == "O":
            _check_objects(array, dtype)
        if dtype.name in _NO_JSON:
            array = _split_bytes(array)
        return cls._frozen(_unbroadcast(array), dtype)

    @classmethod
    def from_json(cls, value: JsonValue, dtype: DataType | None) -> FillValue:
        """Return the fill value for nested JSON arrays; without `dtype` the elements stay JSON.

        :mod:`gpustore.data_types.json_array` has the rules and the errors.
        """
        dtype = json_dtype if dtype is None else dtype
        return cls._frozen(_unbroadcast(array_from_json(value, dtype)), dtype)

    @classmethod
    def _frozen(cls, array: np.ndarray[Any, np.dtype[Any]], dtype: DataType) -> FillValue:
        if not array.size:
            raise MetadataError(f"fill_value of shape {shape_text(array.shape)} has no elements")
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
        array.setflags(write=False)
        return cls(array, dtype)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return self.array.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each dimension."""
        shape: tuple[int, ...] = self.array.shape
        return shape

    def same_as(self, other: FillValue) -> bool:
        """Whether both have the same type and shape, and equal elements or equal bits (NaN)."""
        if self.dtype != other.dtype or self.shape != other.shape:
            return False
        if self.array.dtype.kind != "O" and self.array.tobytes() == other.array.tobytes():
            return True
        return bool(np.all(self.array == other.array))

    def converted(self, dtype: DataType) -> FillValue:
        """Return the value as `dtype`, by C conversion: 70000 becomes 4464 as uint16.

        Raises
        ------
        MetadataError
            If the value is text, and elements of `dtype` are not.
        """
        if dtype == self.dtype:
            return self
        refuse_text(self.array, dtype)
        if self.dtype.name in _OBJECTS and dtype.name not in _OBJECTS:
            return FillValue.from_json(array_to_json(self.array, self.dtype), dtype)
        with np.errstate(all="ignore"):
            return FillValue._frozen(self.array.astype(dtype.numpy_dtype), dtype)

    def to_json(self) -> JsonValue:
        """Return nested JSON arrays of the elements.

        NaN and infinities are Python floats, which are not JSON, as in TensorStore.
        """
        with prefixing('Error converting object member "fill_value"'):
            return array_to_json(self.array, self.dtype)

    def __str__(self) -> str:
        array = self.array.view(np.int64) if self.array.dtype.kind in "Mm" else self.array
        return _format(array.tolist(), array.ndim)


def _check_integers(value: np.ndarray[Any, np.dtype[Any]], dtype: DataType) -> None:
    """Raise TypeError if a conversion to integers would change numbers of an array."""
    if value.dtype.kind not in "iuf" or dtype.array_dtype.kind not in "iu":
        return
    with np.errstate(all="ignore"):
        found = value.astype(dtype.numpy_dtype)
        if not np.array_equal(found, value):
            raise TypeError(f"fill_value {value!r} is no {dtype.name}")


def refuse_text(value: np.ndarray[Any, np.dtype[Any]], dtype: DataType) -> None:
    """Raise MetadataError if `value` is text and elements of `dtype` are not."""
    if value.dtype.kind == "U" and dtype.array_dtype.kind not in "UO":
        raise MetadataError(
            f"No TensorStore data type corresponding to NumPy dtype: {value.dtype!r}"
        )


def check_broadcast(shape: Sequence[int], target: Sequence[int]) -> None:
    """Raise MetadataError unless `shape` broadcasts to `target`."""
    significant = tuple(shape)
    while significant and significant[0] == 1:
        significant = significant[1:]
    tail = target[len(target) - len(significant) :]
    if len(significant) > len(target) or any(
        n not in (1, wanted) for n, wanted in zip(significant, tail, strict=True)
    ):
        raise MetadataError(
            f"Cannot broadcast array of shape {shape_text(shape)} to target shape "
            f"{shape_text(target)}"
        )


def _unbroadcast(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    index = [
        slice(0, 1) if stride == 0 and size > 1 else slice(None)
        for size, stride in zip(array.shape, array.strides, strict=True)
    ]
    array = array[(*index, ...)]
    while array.ndim and array.shape[0] == 1:
        array = array[0, ...]
    return array


def _split_bytes(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return strings of n bytes as n elements of char or byte in a new last dimension."""
    if array.dtype.itemsize <= 1:
        return array
    one = np.dtype(f"{array.dtype.kind}1")
    return np.ascontiguousarray(array).view(one).reshape(*array.shape, array.dtype.itemsize)


def _check_bytes(array: np.ndarray[Any, np.dtype[Any]], dtype: DataType) -> None:
    """Raise MetadataError unless elements are bytes: numbers and text are not converted."""
    if array.dtype.kind not in "SV" or array.dtype.names:
        found = "json" if array.dtype.kind in "OUbif" and not array.ndim else array.dtype.name
        raise MetadataError(f"Invalid fill_value: Cannot convert {found} -> {dtype.name}")


def _check_objects(array: np.ndarray[Any, np.dtype[Any]], dtype: DataType) -> None:
    """Raise TypeError unless all objects are elements of `dtype`."""
    for element in array.flat:
        if dtype is json_dtype:
            from_python(element)
        elif not isinstance(element, dtype.type):
            raise TypeError(f"expected {dtype.type.__name__}, {type(element).__name__} found")


def _format(nested: Any, depth: int) -> str:
    if depth:
        return "{" + ", ".join(_format(value, depth - 1) for value in nested) + "}"
    if isinstance(nested, bool):
        return str(int(nested))
    if isinstance(nested, complex):
        return f"({nested.real:g},{nested.imag:g})"
    if isinstance(nested, float):
        return f"{nested:g}"
    return str(nested) if isinstance(nested, int) else text(nested)
