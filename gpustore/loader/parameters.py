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
    found = tuple(whole_number(n, "shape", 1) for n in shape)
    if not found:
        raise ValueError("shape: expected at least one dimension, got ()")
    return found


def check_names(given: Any, names: Collection[str], parameter: str) -> None:
    """Raise ValueError if a parameter is given by name and has the name of no array."""
    unknown = [name for name in given if name not in names] if isinstance(given, Mapping) else []
    if unknown:
        raise ValueError(
            f"{parameter}: no array is named {_shown(unknown)}; there are {_shown(sorted(names))}"
        )


def _shown(names: Sequence[Any]) -> str:
    return ", ".join(map(repr, names))
