"""Arrays as nested JSON lists, in TensorStore's words: fill values and the ``array`` driver.

TensorStore reads more than it writes: an integer may also be ``3.0`` or ``"3"``, a float ``"NaN"``
or ``"1.5"``, a bool ``"true"``. Complex numbers are pairs ``[real, imaginary]``, as it writes them
(TensorStore 0.1.86 cannot read its own). Dates and durations, which it lacks, are integers, or
``"NaT"``. So are records, which are objects with all their fields; raw bytes in them are base64.

Source: TensorStore's ``internal/json/array.cc`` and ``data_type_json.cc`` for the rules.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gpustore.data_types.dtype import dtype as DataType
from gpustore.data_types.dtype import of_elements
from gpustore.errors import GpustoreError, MetadataError
from gpustore.strict_json.parsing import (
    JsonValue,
    Members,
    expect_bool,
    expect_float,
    expect_int,
    expect_list,
    expect_str,
    from_python,
    text,
)

_NO_JSON = {"char", "byte"}

_MAX_RANK = 32


def array_from_json(value: JsonValue, dtype: DataType, *, rank: int | None = None) -> NDArray[Any]:
    """Convert nested JSON lists to a host array.

    Parameters
    ----------
    value : JsonValue
        Nested lists; the first elements of each level tell the shape.
    dtype : dtype
        Data type of the elements.
    rank : int, optional
        Number of dimensions that the array must have.

    Returns
    -------
    ndarray of ``dtype.array_dtype``
        C order, native byte order.

    Raises
    ------
    MetadataError
        If the lists are ragged or an element is not of `dtype`; names the position.
    """
    if dtype.name in _NO_JSON:
        raise MetadataError(f"Conversion from JSON to {dtype.name} is not implemented")
    shape = _nested_shape(value, leaf_rank=int(dtype.name.startswith("complex")))
    if rank is not None and rank != len(shape):
        raise MetadataError(f"Array rank ({len(shape)}) does not match expected rank ({rank})")
    convert = element_parser(dtype)
    array = np.empty(shape, dtype=dtype.array_dtype)
    for position, element in _elements(value, shape, (), leaf_lists=dtype.name[:7] == "complex"):
        try:
            array[position] = convert(element)
        except GpustoreError as error:
            context = f"Error parsing array element at position {shape_text(position)}"
            raise error.prefixed(context) from error.__cause__
    return array


def array_to_json(array: NDArray[Any], dtype: DataType) -> JsonValue:
    """Convert a host array of `dtype` to nested JSON lists.

    NaN and infinities are Python floats, which are not JSON, as in TensorStore.

    Raises
    ------
    MetadataError
        If elements of `dtype` have no JSON form.
    """
    name = dtype.name
    if name in _NO_JSON:
        raise MetadataError(f"Conversion from {name} to JSON is not implemented")
    if array.dtype.names is not None:
        return _map_elements(array, _record_to_json)
    if name in ("int2", "int4", "uint2", "uint4"):
        return array.astype(np.int8).tolist()
    if array.dtype.kind in "Mm":
        return array.view(np.int64).tolist()
    if name.startswith(("float8", "float6", "float4", "bfloat16")):
        with np.errstate(invalid="ignore"):  # A signalling NaN would warn.
            return array.astype(np.float64).tolist()
    if name.startswith("complex"):
        return np.stack([array.real, array.imag], axis=-1).tolist()
    if name == "string":
        return _map_leaves(array.tolist(), array.ndim, lambda v: v.decode())
    if name == "json":
        return _map_leaves(array.tolist(), array.ndim, from_python)
    return array.tolist()


def object_array(value: Any, dtype: DataType, *, max_rank: int) -> NDArray[Any]:
    """Convert nested sequences of Python objects to an array of objects, each checked.

    Parameters
    ----------
    value : object
        Nested sequences. Those of equal length are dimensions, down to `max_rank`; deeper ones are
        elements.
    dtype : dtype
        ``json``, ``string`` or ``ustring``.
    max_rank : int
        Most dimensions that the array may have.

    Raises
    ------
    TypeError
        If an element is of another type.

    Examples
    --------
    >>> object_array([[1, 2], [3]], DataType("json"), max_rank=2)
    array([list([1, 2]), list([3])], dtype=object)
    """
    if isinstance(value, np.ndarray) and dtype.name != "json" and value.ndim <= max_rank:
        return _typed_objects(value, dtype)
    shape: tuple[int, ...] = ()
    elements = [value]
    while len(shape) < max_rank and elements and all(map(_is_sequence, elements)):
        lengths = {len(element) for element in elements}
        if len(lengths) > 1:
            break
        shape = (*shape, *lengths)
        elements = [inner for element in elements for inner in element]
    array = np.empty(len(elements), object)
    for i, element in enumerate(elements):
        array[i] = _checked_object(element, dtype)
    return array.reshape(shape)


def _typed_objects(array: NDArray[Any], dtype: DataType) -> NDArray[Any]:
    """Return a copy of an array as strings or bytes; NumPy's own text types are converted."""
    kinds = "UT" if dtype.type is str else "S"
    found = array.astype(object)
    if array.dtype.kind in kinds:
        return found
    flat = found.reshape(-1)
    if any(kind is not dtype.type for kind in set(map(type, flat))):
        for i, element in enumerate(flat):
            flat[i] = _checked_object(element, dtype)
    return flat.reshape(array.shape)


def _is_sequence(value: object) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _checked_object(value: Any, dtype: DataType) -> Any:
    if dtype.name == "json":
        return from_python(value)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, dtype.type):
        raise TypeError(f"expected {dtype.type.__name__}, {type(value).__name__} found")
    # A slice of a subclass such as numpy.str_ is a plain string or bytes.
    return value if type(value) is dtype.type else dtype.type.__getitem__(value, slice(None))


def shape_text(shape: Sequence[int]) -> str:
    """Format a shape as in TensorStore's messages: ``{2, 3}``."""
    return "{" + ", ".join(map(str, shape)) + "}"


def _nested_shape(value: JsonValue, *, leaf_rank: int) -> tuple[int, ...]:
    """Return the shape told by the first elements; `leaf_rank` levels of lists are an element."""
    shape: list[int] = []
    while isinstance(value, list | tuple):
        shape.append(len(value))
        if len(shape) > _MAX_RANK + leaf_rank:
            raise MetadataError(f"Nesting level exceeds maximum rank of {_MAX_RANK}")
        if not value:
            break
        value = value[0]
    return tuple(shape[: max(0, len(shape) - leaf_rank)])


def _elements(
    value: JsonValue, shape: tuple[int, ...], position: tuple[int, ...], *, leaf_lists: bool
) -> Iterator[tuple[tuple[int, ...], JsonValue]]:
    """Yield all elements with their positions, checking that `value` is rectangular."""
    depth = len(position)
    if depth == len(shape):
        if depth and not leaf_lists and isinstance(value, list | tuple):
            raise _ragged(shape, "array", value, position)
        yield position, value
        return
    if not isinstance(value, list | tuple):
        raise _ragged(shape, "non-array", value, position)
    if len(value) != shape[depth]:
        raise MetadataError(
            f"Expected array of shape {shape_text(shape)}, but found array element {text(value)} "
            f"of length {len(value)} at position {shape_text(position)}."
        )
    for i, element in enumerate(value):
        yield from _elements(element, shape, (*position, i), leaf_lists=leaf_lists)


def _ragged(
    shape: Sequence[int], kind: str, value: JsonValue, position: Sequence[int]
) -> MetadataError:
    return MetadataError(
        f"Expected rank-{len(shape)} array, but found {kind} element {text(value)} at position "
        f"{shape_text(position)}."
    )


def element_parser(dtype: DataType) -> Callable[[JsonValue], Any]:
    """Return a function that converts a JSON value to an element of `dtype`.

    The function raises MetadataError for a value that is no such element.
    """
    name = dtype.name
    if dtype.array_dtype.names is not None:
        return partial(_parse_field, field=dtype.array_dtype)
    if name == "bool":
        return _parse_bool
    if name == "json":
        return lambda value: value
    if name == "ustring":
        return expect_str
    if name == "string":
        return _parse_bytes
    if dtype.array_dtype.kind == "U":
        return lambda value: _parse_text(value, dtype)
    if dtype.array_dtype.kind in "Mm":
        return lambda value: _parse_time(value, dtype)
    if name.startswith("complex"):
        return lambda value: _rounded(_parse_complex(value), dtype)
    if name.startswith(("int", "uint")):
        info = ml_dtypes.iinfo(dtype.numpy_dtype)
        low, high = int(info.min), int(info.max)
        return lambda value: _parse_int(value, low, high)
    return lambda value: _rounded(_parse_float(value), dtype)


# --------------------------------------------------------------------------- records


def _map_elements(array: NDArray[Any], convert: Callable[[NDArray[Any]], JsonValue]) -> JsonValue:
    """Return nested lists of what `convert` makes of each element, an array of rank 0."""
    if array.ndim:
        return [_map_elements(array[i, ...], convert) for i in range(len(array))]
    return convert(array)


def _record_to_json(element: NDArray[Any]) -> JsonValue:
    names = element.dtype.names or ()
    return {name: _field_to_json(element[name]) for name in names}


def _field_to_json(array: NDArray[Any]) -> JsonValue:
    if array.dtype.type in (np.bytes_, np.void) and array.dtype.names is None:
        return _map_elements(array, lambda one: base64.b64encode(one.tobytes()).decode())
    return array_to_json(array, of_elements(array.dtype))


def _parse_field(value: JsonValue, field: np.dtype[Any]) -> NDArray[Any]:
    """Parse a record, or a field of one: an array of rank 0, or of the shape of the field."""
    array = np.zeros(field.shape, field.base)
    if field.shape:
        leaf_lists = field.base.kind == "c"
        for position, element in _elements(
            expect_list(value), field.shape, (), leaf_lists=leaf_lists
        ):
            array[position] = _parse_field(element, field.base)
    elif field.names is not None:
        members = Members(value)
        for name in field.names:
            array[name] = members.take_with(name, partial(_parse_field, field=field[name]))
        members.finish()
    elif field.type in (np.bytes_, np.void):
        array[()] = np.frombuffer(_parse_base64(value, field.itemsize), field)[0]
    else:
        array[()] = element_parser(of_elements(field))(value)
    return array


def _parse_base64(value: JsonValue, nbytes: int) -> bytes:
    encoded = expect_str(value)
    try:
        found = base64.b64decode(encoded, validate=True)
    except ValueError:
        found = None
    if found is None or len(found) != nbytes:
        raise MetadataError(f"Expected {nbytes} base64-encoded bytes, but received: {text(value)}")
    return found


# --------------------------------------------------------------------------- elements


def _rounded(value: complex, dtype: DataType) -> Any:
    with np.errstate(over="ignore"):
        return dtype.type(value)


def _parse_bytes(value: JsonValue) -> bytes:
    try:
        return expect_str(value).encode()
    except UnicodeEncodeError as error:
        raise MetadataError(f"Expected Unicode, but received: {value!r:.200}") from error


def _parse_text(value: JsonValue, dtype: DataType) -> Any:
    longest = dtype.itemsize // 4
    if len(expect_str(value)) > longest:
        raise MetadataError(
            f"Expected a string of at most {longest} characters, but received: {text(value)}"
        )
    return value


def _parse_time(value: JsonValue, dtype: DataType) -> Any:
    """Parse a date or duration: an integer, or "NaT"."""
    number = -(2**63) if value == "NaT" else _parse_int(value, -(2**63), 2**63 - 1)
    return np.int64(number).view(dtype.array_dtype)


def _parse_bool(value: JsonValue) -> bool:
    return (
        {"true": True, "false": False}[value] if value in ("true", "false") else expect_bool(value)
    )


def _parse_int(value: JsonValue, low: int, high: int) -> int:
    """Parse an integer; ``3.0`` and ``"3"`` count too, as in TensorStore."""
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
    """Parse a number or a string such as "NaN" and "1.5", as TensorStore does."""
    if isinstance(value, str) and "_" not in value:
        try:
            return float.fromhex(value) if "x" in value.lower() else float(value)
        except (ValueError, OverflowError):
            pass
    return expect_float(value)


def _parse_complex(value: JsonValue) -> complex:
    if isinstance(value, list | tuple) and len(value) == 2:
        return complex(_parse_float(value[0]), _parse_float(value[1]))
    return complex(_parse_float(value))


def _map_leaves(nested: Any, depth: int, convert: Callable[[Any], Any]) -> Any:
    if depth == 0:
        return convert(nested)
    return [_map_leaves(value, depth - 1, convert) for value in nested]
