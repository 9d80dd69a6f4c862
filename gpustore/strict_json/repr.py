"""Reprs of specs, schemas and other JSON objects, laid out as TensorStore does."""

from __future__ import annotations

from typing import Final

from gpustore.strict_json.parsing import JsonValue, escape

_WIDTH: Final = 80
_INDENT: Final = 2


def pretty(name: str, value: JsonValue) -> str:
    """Return the repr of an object of class `name` that is the JSON `value`.

    Members are sorted and written as Python literals. The object is one line if it has at most 80
    characters, `name` not counted, else one line for each member, with a trailing comma; the same
    holds for each member, with one character less for each level.

    >>> pretty("Spec", {"driver": "zarr3", "rank": 3})
    "Spec({'driver': 'zarr3', 'rank': 3})"
    """
    return f"{name}({_pretty(value, _WIDTH, 0, 0)})"


def _pretty(value: JsonValue, width: int, column: int, indent: int) -> str:
    line = _literal(value)
    if column + len(line) <= width or not isinstance(value, (dict, list, tuple)) or not value:
        return line
    inner = indent + _INDENT
    if isinstance(value, dict):
        opening, closing = "{", "}"
        items = [(f"{_str_literal(name)}: ", value[name]) for name in sorted(value)]
    else:
        opening, closing = "[", "]"
        items = [("", element) for element in value]
    lines = [opening]
    for label, item in items:
        printed = _pretty(item, width - 1, inner + len(label), inner)
        lines.append(f"{' ' * inner}{label}{printed},")
    lines.append(" " * indent + closing)
    return "\n".join(lines)


def _literal(value: JsonValue) -> str:
    if isinstance(value, dict):
        members = (f"{_str_literal(name)}: {_literal(value[name])}" for name in sorted(value))
        return "{" + ", ".join(members) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, str):
        return _str_literal(value)
    if isinstance(value, float) and 1e15 <= abs(value) < 1e16:
        # Python has an exponent from 1e16 on, TensorStore from 1e15.
        sign = "-" if value < 0 else ""
        digits = repr(abs(value)).replace(".", "").rstrip("0")
        return f"{sign}{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e+15"
    return repr(value)


def _str_literal(value: str) -> str:
    return f"'{escape(value)}'"
