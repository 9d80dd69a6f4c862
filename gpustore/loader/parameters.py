"""Checks of parameters of loaders and samplers."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any


def whole_number(value: Any, name: str, least: int) -> int:
    """Return a whole number of at least `least`.

    Raises
    ------
    TypeError, ValueError
        If it is none; the message names the parameter.
    """
    try:
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, got {value!r}") from None
    if found < least:
        raise ValueError(f"{name}: expected at least {least}, got {found}")
    return found


def patch_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape of a patch, of at least one dimension.

    Raises
    ------
    TypeError, ValueError
        If it is none.
    """
    found = tuple(whole_number(n, "shape", 1) for n in listed(shape, "shape", "whole numbers"))
    if not found:
        raise ValueError("shape: expected at least one dimension, got ()")
    return found


def listed(values: Any, name: str, expected: str, count: int | None = None) -> list[Any]:
    """Return the values of a parameter that has several, `count` of them if it is given.

    Raises
    ------
    TypeError, ValueError
        If it has none, or another number; the message says what was expected.
    """
    text = f"{name}: expected {expected}, got {values!r}"
    try:
        found = list(values)
    except TypeError:
        raise TypeError(text) from None
    if count is not None and len(found) != count:
        raise ValueError(text)
    return found


def difference(then: Any, now: Any) -> tuple[str, Any, Any] | None:
    """Return what differs first in two values of JSON, by name, and both of it; None if they equal.

    >>> difference({"sampler": {"seed": 1, "edge": "fill"}}, {"sampler": {"seed": 2}})
    ('sampler seed', 1, 2)
    """
    if then == now:
        return None
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        pairs = [(name, then.get(name), now.get(name)) for name in {**now, **then}]
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        # Numbers of a shape are shown together.
        is_nested = any(isinstance(one, Mapping) for one in now)
        pairs = [(str(i), *both) for i, both in enumerate(zip(then, now))] if is_nested else []
    for name, before, after in pairs:
        found = difference(before, after)
        if found is not None:
            return f"{name} {found[0]}".strip(), found[1], found[2]
    return "", then, now


def check_names(given: Any, names: Collection[str], parameter: str) -> None:
    """Raise ValueError if a parameter is given by name and has the name of no array."""
    unknown = [name for name in given if name not in names] if isinstance(given, Mapping) else []
    if unknown:
        raise ValueError(
            f"{parameter}: no array is named {_shown(unknown)}; there are {_shown(sorted(names))}"
        )


def _shown(names: Sequence[Any]) -> str:
    return ", ".join(map(repr, names))
