"""Physical unit of one step along a dimension: a number times a base unit.

Source: ``Unit`` of TensorStore (``tensorstore/util/unit.cc``).
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any, SupportsFloat, SupportsIndex, TypeAlias

from gpustore.errors import MetadataError
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    Required,
    at_position,
    escape,
    expect_float,
    expect_list,
    expect_str,
    from_python,
    text,
)

_Number: TypeAlias = SupportsFloat | SupportsIndex

# C's idea of whitespace before and behind; a vertical tab behind the number is part of the unit.
_SPACE = " \t\n\v\f\r"
_NUMBER_FIRST = re.compile(
    r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[ \t\n\f\r]*(.*)", re.DOTALL
)


class Unit:
    """Quantity of `multiplier` times `base_unit`; immutable and hashable.

    Base units are text without meaning: ``Unit("1000nm")`` and ``Unit("1um")`` are different.

    Parameters
    ----------
    multiplier : float or str or tuple
        A number; or, as the only argument, a string such as ``"4nm"``, a pair ``(4, "nm")`` or a
        Unit.
    base_unit : str
        ``""`` for a dimensionless quantity.
    unit : str or tuple
        String, pair or Unit; legal as the only argument.
    json : JsonValue
        String, number or pair; legal as the only argument.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    MetadataError
        If `json` is no string, number or pair.

    Examples
    --------
    >>> Unit("4nm")
    Unit(4, "nm")
    >>> Unit(4, "nm") * 2.5
    Unit(10, "nm")
    >>> str(Unit("nm")), Unit(0.5).to_json()
    ('nm', [0.5, ''])
    """

    __slots__ = ("_base_unit", "_multiplier")

    def __init__(
        self,
        multiplier: UnitLike | Required = REQUIRED,
        base_unit: str | Required = REQUIRED,
        *,
        unit: UnitLike | Required = REQUIRED,
        json: JsonValue = REQUIRED,
    ) -> None:
        given = [v for v in (multiplier, unit, json) if v is not REQUIRED]
        if len(given) > 1 or (base_unit is not REQUIRED and multiplier is REQUIRED):
            raise TypeError(
                "Expected a multiplier and a base_unit, or one of unit and json, not both"
            )
        if base_unit is not REQUIRED:
            parts = (_number(multiplier), _string(base_unit))
        elif json is not REQUIRED:
            parts = _from_json(from_python(json))
        else:
            parts = _from_unit(given[0] if given else 1)
        self._multiplier, self._base_unit = parts

    @property
    def multiplier(self) -> float:
        """Number of base units."""
        return self._multiplier

    @property
    def base_unit(self) -> str:
        """Name of the base unit, ``""`` for a dimensionless quantity."""
        return self._base_unit

    def to_json(self) -> list[Any]:
        """Return the JSON form, ``[multiplier, base_unit]``."""
        return [self._multiplier, self._base_unit]

    def __mul__(self, factor: _Number) -> Unit:
        if not _is_number(factor):
            return NotImplemented
        return Unit(self._multiplier * _number(factor), self._base_unit)

    def __truediv__(self, divisor: _Number) -> Unit:
        if not _is_number(divisor):
            return NotImplemented
        return Unit(_divide(self._multiplier, _number(divisor)), self._base_unit)

    def __eq__(self, other: object) -> bool:
        """Whether `other` is a Unit of equal parts. (TensorStore raises for other types.)"""
        if not isinstance(other, Unit):
            return NotImplemented
        return self._multiplier == other._multiplier and self._base_unit == other._base_unit

    def __hash__(self) -> int:
        return hash((Unit, self._multiplier, self._base_unit))

    def __str__(self) -> str:
        if self._multiplier == 1 and self._base_unit:
            return self._base_unit
        return f"{self._multiplier:g} {self._base_unit}" if self._base_unit else self._number_text()

    def __repr__(self) -> str:
        return f'Unit({self._number_text()}, "{escape(self._base_unit)}")'

    def _number_text(self) -> str:
        return f"{self._multiplier:g}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Unit, (self._multiplier, self._base_unit))


UnitLike: TypeAlias = Unit | str | _Number | tuple[_Number, str]


def _is_number(value: object) -> bool:
    return isinstance(value, (SupportsFloat, SupportsIndex))


def _number(value: object) -> float:
    if not isinstance(value, (SupportsFloat, SupportsIndex)):
        raise TypeError(f"Expected a number as multiplier, but received: {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise TypeError("Expected a number in the range of float64 as multiplier") from None


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"Expected a string as base_unit, but received: {value!r}")
    return str(value)


def _from_unit(unit: object) -> tuple[float, str]:
    if isinstance(unit, Unit):
        return unit.multiplier, unit.base_unit
    if isinstance(unit, str):
        return _from_str(unit)
    if isinstance(unit, (tuple, list)) and len(unit) == 2:
        return _number(unit[0]), _string(unit[1])
    if _is_number(unit):
        return _number(unit), ""
    raise TypeError(f'Expected a unit such as "4nm", (4, "nm") or a number, but received: {unit!r}')


def _from_str(unit: str) -> tuple[float, str]:
    stripped = unit.strip(_SPACE)
    match = _NUMBER_FIRST.match(stripped)
    if match:
        multiplier = float(match[1])
        if _is_normal(multiplier, match[1]):
            return multiplier, match[2]
    return 1.0, stripped


def _is_normal(multiplier: float, digits: str) -> bool:
    """Whether `digits` have a normal float64; TensorStore takes others as part of the unit."""
    if multiplier == 0:
        return not re.search("[1-9]", re.split("[eE]", digits)[0])
    return sys.float_info.min <= abs(multiplier) < math.inf


def _from_json(value: JsonValue) -> tuple[float, str]:
    if isinstance(value, str):
        return _from_str(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return expect_float(value), ""
    multiplier, base_unit = expect_list(value, length=2)
    with at_position(0):
        multiplier = expect_float(multiplier)
        # Only in a pair must it be positive: TensorStore takes "-4nm" and a bare 0.
        if not 0 < multiplier < math.inf:
            raise MetadataError(
                f"Expected finite positive number, but received: {text(multiplier)}"
            )
    with at_position(1):
        base_unit = expect_str(base_unit)
    return multiplier, base_unit


def _divide(dividend: float, divisor: float) -> float:
    """Divide as IEEE 754 does: a division by zero gives an infinity or NaN."""
    if divisor != 0:
        return dividend / divisor
    if dividend == 0 or math.isnan(dividend):
        return math.nan
    return math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)
