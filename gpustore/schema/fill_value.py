"""Fill values of schemas: an array, kept bit for bit, with its data type.

A fill value may have fewer dimensions than the array; it is broadcast from the right. It is
stored *unbroadcast*: leading dimensions of size 1 and repetitions (stride 0) are removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from gpustore._json import (
    JsonValue,
    expect_bool,
    expect_float,
    expect_int,
    expect_str,
    from_python,
    text,
)
from gpustore.dtype import dtype as DataType
from gpustore.dtype import json as json_dtype
from gpustore.errors import GpustoreError, MetadataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["FillValue", "check_broadcast", "shape_text"]

_NO_JSON = {"char", "byte"}
_OBJECTS = {"string", "ustring", "json"}


@dataclass(frozen=True, slots=True, eq=False)
class FillValue:
    """A fill value.

    Attributes
    ----------
    array : numpy.ndarray
        Unbroadcast, C order, native byte order, read-only. Object arrays for string, ustring
        and json.
    dtype : dtype
        Its data type; that of the schema if it was known when the value was given.
    """

    array: np.ndarray[Any, np.dtype[Any]]
    dtype: DataType

    @classmethod
    def from_array(cls, value: Any, dtype: DataType | None) -> FillValue:
        """From anything NumPy makes an array of, converted to `dtype` as NumPy converts.

        Raises
        ------
        MetadataError
            If `dtype` is None and the value's NumPy dtype has no equivalent, or there are no
            elements.
        OverflowError, TypeError, ValueError
            What NumPy raises for values that it cannot convert.
        """
        if dtype is not None:
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
        """From nested JSON arrays; without `dtype` the elements are kept as JSON.

        Complex numbers are pairs ``[real, imaginary]``, as :meth:`to_json` writes them
        (TensorStore 0.1.86 writes such pairs but cannot read them).
        """
        dtype = json_dtype if dtype is None else dtype
        if dtype.name in _NO_JSON:
            raise MetadataError(f"Conversion from JSON to {dtype.name} is not implemented")
        shape = _nested_shape(value, leaf_rank=int(dtype.name.startswith("complex")))
        convert = _element_parser(dtype)
        array = np.empty(shape, dtype=dtype.numpy_dtype)
        for position, element in _elements(value, shape, ()):
            try:
                array[position] = convert(element)
            except GpustoreError as error:
                context = f"Error parsing array element at position {shape_text(position)}"
                raise error.prefixed(context) from error.__cause__
        return cls._frozen(_unbroadcast(array), dtype)

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
        """Whether both have one type and shape, and equal elements or equal bits (NaN)."""
        if self.dtype is not other.dtype or self.shape != other.shape:
            return False
        if self.array.dtype.kind != "O" and self.array.tobytes() == other.array.tobytes():
            return True
        return bool(np.all(self.array == other.array))

    def converted(self, dtype: DataType) -> FillValue:
        """The value as `dtype`, by C conversion: 70000 becomes 4464 as uint16."""
        if dtype is self.dtype:
            return self
        if self.dtype.name in _OBJECTS and dtype.name not in _OBJECTS:
            return FillValue.from_json(_to_nested_json(self), dtype)
        with np.errstate(all="ignore"):
            return FillValue._frozen(self.array.astype(dtype.numpy_dtype), dtype)

    def to_json(self) -> JsonValue:
        """Nested JSON arrays of the elements.

        NaN and infinities are Python floats, which are not JSON, as in TensorStore.
        """
        if self.dtype.name in _NO_JSON:
            raise MetadataError(
                f'Error converting object member "fill_value": Conversion from '
                f"{self.dtype.name} to JSON is not implemented"
            )
        return _to_nested_json(self)

    def __str__(self) -> str:
        return _format(self.array.tolist(), self.array.ndim)


def shape_text(shape: Sequence[int]) -> str:
    """A shape as TensorStore's messages have it: ``{2, 3}``."""
    return "{" + ", ".join(map(str, shape)) + "}"


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
    """Strings of n bytes as n elements of char or byte in a last dimension."""
    if array.dtype.itemsize <= 1:
        return array
    one = np.dtype(f"{array.dtype.kind}1")
    return np.ascontiguousarray(array).view(one).reshape(*array.shape, array.dtype.itemsize)


def _check_objects(array: np.ndarray[Any, np.dtype[Any]], dtype: DataType) -> None:
    """TypeError unless all objects are of the kind that `dtype` says."""
    for element in array.flat:
        if dtype is json_dtype:
            from_python(element)
        elif not isinstance(element, dtype.type):
            raise TypeError(f"expected {dtype.type.__name__}, {type(element).__name__} found")


# ------------------------------------------------------------------------ JSON


def _nested_shape(value: JsonValue, *, leaf_rank: int) -> tuple[int, ...]:
    """Shape told by the first elements; `leaf_rank` levels of lists belong to an element."""
    shape: list[int] = []
    while isinstance(value, (list, tuple)):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape[: max(0, len(shape) - leaf_rank)])


def _elements(
    value: JsonValue, shape: tuple[int, ...], position: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], JsonValue]]:
    """All elements with their positions, checking that `value` is rectangular."""
    depth = len(position)
    if depth == len(shape):
        yield position, value
        return
    if not isinstance(value, (list, tuple)):
        raise MetadataError(
            f"Expected rank-{len(shape)} array, but found non-array element {text(value)} at "
            f"position {shape_text(position)}."
        )
    if len(value) != shape[depth]:
        raise MetadataError(
            f"Expected array of shape {shape_text(shape)}, but found array element {text(value)} "
            f"of length {len(value)} at position {shape_text(position)}."
        )
    for i, element in enumerate(value):
        here = (*position, i)
        if len(here) == len(shape) and isinstance(element, (list, tuple)) and not _is_pair(element):
            raise MetadataError(
                f"Expected rank-{len(shape)} array, but found array element {text(element)} at "
                f"position {shape_text(here)}."
            )
        yield from _elements(element, shape, here)


def _is_pair(value: Sequence[object]) -> bool:
    return len(value) == 2 and not any(isinstance(v, (list, tuple)) for v in value)


def _element_parser(dtype: DataType) -> Callable[[JsonValue], Any]:
    name = dtype.name
    if name == "bool":
        return _parse_bool
    if name == "json":
        return lambda value: value
    if name == "ustring":
        return expect_str
    if name == "string":
        return lambda value: expect_str(value).encode()
    if name.startswith("complex"):
        return lambda value: _rounded(_parse_complex(value), dtype)
    if name.startswith(("int", "uint")):
        info = ml_dtypes.iinfo(dtype.numpy_dtype)
        low, high = int(info.min), int(info.max)
        return lambda value: _parse_int(value, low, high)
    return lambda value: _rounded(_parse_float(value), dtype)


def _rounded(value: complex, dtype: DataType) -> Any:
    with np.errstate(over="ignore"):
        return dtype.type(value)


def _parse_bool(value: JsonValue) -> bool:
    return (
        {"true": True, "false": False}[value] if value in ("true", "false") else expect_bool(value)
    )


def _parse_int(value: JsonValue, low: int, high: int) -> int:
    """An integer; TensorStore also takes 3.0 and "3"."""
    number = value
    if isinstance(value, str):
        try:
            number = int(value)
        except ValueError:
            pass
    try:
        return expect_int(number, low, high, integral_floats=True)
    except MetadataError:
        return expect_int(value, low, high, integral_floats=True)


def _parse_float(value: JsonValue) -> float:
    """A number, or a string such as "NaN" and "1.5", which TensorStore takes too."""
    if isinstance(value, str) and "_" not in value:
        try:
            return float.fromhex(value) if "x" in value.lower() else float(value)
        except (ValueError, OverflowError):
            pass
    return expect_float(value)


def _parse_complex(value: JsonValue) -> complex:
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return complex(_parse_float(value[0]), _parse_float(value[1]))
    return complex(_parse_float(value))


def _to_nested_json(value: FillValue) -> JsonValue:
    array, name = value.array, value.dtype.name
    if name in ("int2", "int4"):
        return array.astype(np.int8).tolist()
    if name.startswith(("float8", "float4", "bfloat16")):
        return array.astype(np.float64).tolist()
    if name.startswith("complex"):
        return np.stack([array.real, array.imag], axis=-1).tolist()
    if name == "string":
        return _map_leaves(array.tolist(), array.ndim, lambda v: v.decode())
    if name == "json":
        return _map_leaves(array.tolist(), array.ndim, from_python)
    return array.tolist()


def _map_leaves(nested: Any, depth: int, convert: Callable[[Any], Any]) -> Any:
    if depth == 0:
        return convert(nested)
    return [_map_leaves(value, depth - 1, convert) for value in nested]


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
