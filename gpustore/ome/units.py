"""Units of axes, and physical ranges in them.

Source: OME-NGFF 0.4 to 0.6, units of axes of type "space" and "time" (those of UDUNITS-2).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

_PREFIXES: Final = {
    "yocto": -24, "zepto": -21, "atto": -18, "femto": -15, "pico": -12, "nano": -9, "micro": -6,
    "milli": -3, "centi": -2, "deci": -1, "": 0, "hecto": 2, "kilo": 3, "mega": 6, "giga": 9,
    "tera": 12, "peta": 15, "exa": 18, "zetta": 21, "yotta": 24,
}  # fmt: skip
_LENGTHS: Final = {f"{name}meter": Fraction(10) ** power for name, power in _PREFIXES.items()} | {
    "angstrom": Fraction("1e-10"), "inch": Fraction("0.0254"), "foot": Fraction("0.3048"),
    "yard": Fraction("0.9144"), "mile": Fraction("1609.344"),
    "parsec": Fraction("30856775814913673"),
}  # fmt: skip
_TIMES: Final = {f"{name}second": Fraction(10) ** power for name, power in _PREFIXES.items()} | {
    "minute": Fraction(60), "hour": Fraction(3600), "day": Fraction(86400),
}  # fmt: skip
_SYMBOLS: Final = {
    "angstrom": "Å", "picometer": "pm", "nanometer": "nm", "micrometer": "µm", "millimeter": "mm",
    "centimeter": "cm", "meter": "m", "kilometer": "km", "nanosecond": "ns", "microsecond": "µs",
    "millisecond": "ms", "second": "s", "minute": "min", "hour": "h", "day": "d",
}  # fmt: skip
_OTHER_NAMES: Final = {symbol: name for name, symbol in _SYMBOLS.items()} | {
    "um": "micrometer", "μm": "micrometer", "micron": "micrometer", "us": "microsecond",
    "μs": "microsecond", "A": "angstrom",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of length or time; a call makes a :class:`Range` in it.

    >>> Unit("micrometer")(10, 40)
    Range(start=10, stop=40, unit=Unit('micrometer'))

    Attributes
    ----------
    name : str
        Name in OME-NGFF, such as ``"micrometer"``; any text, also of units that cannot be
        converted.
    """

    name: str

    def __call__(self, start: float, stop: float | None = None) -> Range:
        """Return the range from `start` to `stop`, or the place `start`, in this unit.

        Raises
        ------
        ValueError
            If a coordinate is an integer too large for a float.
        """
        return Range(start, stop, self)

    def factor_to(self, other: Unit) -> float | None:
        """Return how many of `other` one of this is; None if they do not measure the same.

        >>> Unit("millimeter").factor_to(Unit("micrometer"))
        1000.0
        """
        for table in _LENGTHS, _TIMES:
            if self.name in table and other.name in table:
                return float(table[self.name] / table[other.name])
        return 1.0 if self.name == other.name else None

    @property
    def symbol(self) -> str:
        """Symbol such as ``"µm"``; the name of a unit that has none here."""
        return _SYMBOLS.get(self.name, self.name)

    def __repr__(self) -> str:
        return f"Unit({self.name!r})"


@dataclass(frozen=True, slots=True)
class Range:
    """Part of an axis by physical coordinates.

    Attributes
    ----------
    start : float
        First coordinate.
    stop : float or None
        Coordinate behind the last one; None is the one element at `start`.
    unit : Unit
        Unit of both.
    """

    start: float
    stop: float | None
    unit: Unit

    def __post_init__(self) -> None:
        for end in (self.start, self.stop):
            if end is not None:
                as_float(end, f"coordinate in {self.unit.name}")

    def __str__(self) -> str:
        stop = "" if self.stop is None else f" to {self.stop:g}"
        return f"{self.start:g}{stop} {self.unit.symbol}"


def as_float(number: float, what: str) -> float:
    """Return a number as a float; ValueError if it is an integer too large for one."""
    try:
        return float(number)
    except OverflowError:
        raise ValueError(f"{what}: an integer too large for a 64-bit float") from None


def unit(name: str) -> Unit:
    """Return the unit of a name or symbol.

    >>> unit("um")
    Unit('micrometer')
    """
    return Unit(_OTHER_NAMES.get(name, name))


nm: Final = Unit("nanometer")
um: Final = Unit("micrometer")
mm: Final = Unit("millimeter")
ms: Final = Unit("millisecond")
s: Final = Unit("second")
minute: Final = Unit("minute")
