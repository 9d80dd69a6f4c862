"""Keyword arguments that TensorStore checks itself: order, conversion and error texts.

``ChunkLayout``, ``Schema`` and ``Spec`` take dozens of optional keywords. None means not given;
the others are applied in a fixed order, whatever order the caller wrote them in.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from gpustore.errors import GpustoreError

S = TypeVar("S")
T = TypeVar("T")


def set_keywords(
    target: S,
    setters: Mapping[str, Callable[[S, Any], None]],
    keywords: Mapping[str, Any],
    *,
    converters: Mapping[str, Callable[[S, Any], Any]] = MappingProxyType({}),
) -> None:
    """Call the setter of each keyword that is not None, in the order of `setters`.

    Parameters
    ----------
    target : object
        First argument of all functions.
    setters : mapping
        Function that applies the value of each keyword to `target`.
    keywords : mapping
        Value of each keyword given by the caller; None means not given.
    converters : mapping
        Conversion of a value before its setter; its errors are raised unchanged, as TensorStore
        does where NumPy converts.

    Raises
    ------
    TypeError
        For an unknown keyword, or a value of the wrong type (``Invalid <keyword>``).
    GpustoreError
        If a setter raises it; the message gets ``Invalid <keyword>: `` in front.
    """
    unknown = keywords.keys() - setters.keys()
    if unknown:
        raise TypeError(f"got an unexpected keyword argument {sorted(unknown)[0]!r}")
    # Most calls have one keyword, whose order needs no search through dozens of setters.
    names = keywords if len(keywords) == 1 else [name for name in setters if name in keywords]
    for name in names:
        value = keywords[name]
        if value is None:
            continue
        if name in converters:
            value = converters[name](target, value)
        try:
            setters[name](target, value)
        except GpustoreError as error:
            raise error.prefixed(f"Invalid {name}") from error.__cause__
        except TypeError as error:
            raise TypeError(f"Invalid {name}: {value!r:.200}: {error}") from error


def as_int(value: Any) -> int:
    """Return an integer that fits 64 bits; bool and NumPy integers count, floats do not."""
    number = operator.index(value)
    if not -(2**63) <= number < 2**63:
        raise TypeError(f"{number} does not fit 64 bits")
    return number


def as_float(value: Any) -> float:
    """Return a number as a float; strings are no numbers."""
    if isinstance(value, str | bytes):
        raise TypeError(f"{value!r} is not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise TypeError(f"{value!r:.200} does not fit float64") from error


def as_vector(convert: Callable[[Any], T]) -> Callable[[Any], list[T | None]]:
    """Return a conversion of iterables of numbers and None to lists."""

    def convert_all(values: Any) -> list[T | None]:
        """Convert each value; None stays."""
        return [None if value is None else convert(value) for value in values]

    return convert_all


as_ints = as_vector(as_int)
as_floats = as_vector(as_float)


def when_known(rank: int, setter: Callable[[int], None]) -> None:
    """Call `setter` unless `rank` is -1, TensorStore's number for an unknown rank."""
    if rank != -1:
        setter(rank)


def expect_type(kind: type[T], value: Any) -> T:
    """Return `value` if it is an instance of `kind`, raise TypeError otherwise."""
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value
