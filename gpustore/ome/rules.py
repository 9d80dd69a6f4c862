"""Rules for JSON values, put together from smaller ones; each finds what breaks it.

A rule is called with a value, its place and a list, to which it adds the problems it finds. Numbers
are as in JSON: 2.0 is an integer, and true is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpustore.ome.members import at, kind


class Problem(NamedTuple):
    """Deviation of a file from the specification of OME-Zarr.

    Attributes
    ----------
    place : str
        URL of the group or array, and the member.
    text : str
        What was found and what was expected.
    is_of_schema : bool
        Whether the schema that is published for the version says so; other problems are those of
        its text, or of what is stored.
    """

    place: str
    text: str
    is_of_schema: bool = True

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


Rule = Callable[[Any, str, list[Problem]], None]


def fits(rule: Rule, value: Any) -> bool:
    """Whether a value breaks no rule."""
    found: list[Problem] = []
    rule(value, "", found)
    return not found


def anything(value: Any, where: str, found: list[Problem]) -> None:
    """Take any value."""


def text(*, least: int = 0, pattern: str = "", but: str = "", words: Sequence[str] = ()) -> Rule:
    """Return the rule for strings: of a length, with a pattern, without another, among words."""

    def rule(value: Any, where: str, found: list[Problem]) -> None:
        if not isinstance(value, str):
            found.append(Problem(where, f"expected a string, found {kind(value)}"))
        elif words and value not in words:
            expected = " or ".join(map(repr, words))
            found.append(Problem(where, f"expected {expected}, found {kind(value)}"))
        elif len(value) < least:
            found.append(Problem(where, "expected a string that is not empty"))
        elif (pattern and not re.search(pattern, value)) or (but and re.search(but, value)):
            expected = f"a name like {pattern}" + (f" and unlike {but}" if but else "")
            found.append(Problem(where, f"expected {expected}, found {kind(value)}"))

    return rule


def integer(lowest: int | None = None, highest: int | None = None) -> Rule:
    """Return the rule for integers in a range."""

    def rule(value: Any, where: str, found: list[Problem]) -> None:
        whole = is_number(value) and (isinstance(value, int) or value.is_integer())
        low = lowest is not None and whole and value < lowest
        high = highest is not None and whole and value > highest
        if not whole or low or high:
            bounds = "" if lowest is None else f" of at least {lowest}"
            bounds += "" if highest is None else f" and at most {highest}"
            found.append(Problem(where, f"expected an integer{bounds}, found {kind(value)}"))

    return rule


def number(*, positive: bool = False) -> Rule:
    """Return the rule for numbers."""

    def rule(value: Any, where: str, found: list[Problem]) -> None:
        if not is_number(value) or (positive and value <= 0):
            expected = "a positive number" if positive else "a number"
            found.append(Problem(where, f"expected {expected}, found {kind(value)}"))

    return rule


def boolean(value: Any, where: str, found: list[Problem]) -> None:
    """Take true and false."""
    if not isinstance(value, bool):
        found.append(Problem(where, f"expected true or false, found {kind(value)}"))


def equal(expected: Any) -> Rule:
    """Return the rule for one value."""

    def rule(value: Any, where: str, found: list[Problem]) -> None:
        if _key(value) != _key(expected):
            found.append(Problem(where, f"expected {expected!r}, found {kind(value)}"))

    return rule


def object_of(required: Sequence[str] = (), **members: Rule) -> Rule:
    """Return the rule for objects: members that there must be, and rules for members by name.

    Names have ``_`` in place of ``-`` and ``.``, which no member of these rules has otherwise.
    """
    rules = {_member(name): rule for name, rule in members.items()}

    def rule(value: Any, where: str, found: list[Problem]) -> None:
        if not isinstance(value, Mapping):
            found.append(Problem(where, f"expected an object, found {kind(value)}"))
            return
        found += [
            Problem(at(where, name), "it is missing") for name in required if name not in value
        ]
        for name, of in rules.items():
            if name in value:
                of(value[name], at(where, name), found)

    return rule


_DASHED = {"image_label": "image-label", "label_value": "label-value",
           "bioformats2raw_layout": "bioformats2raw.layout"}  # fmt: skip


def _member(name: str) -> str:
    return _DASHED.get(name, name)


def list_of(item: Rule, *, least: int = 0, most: int | None = None, unique: bool = False) -> Rule:
    """Return the rule for lists of items."""

    def rule(value: Any, where: str, found: list[Problem]) -> None:
        if not isinstance(value, list):
            found.append(Problem(where, f"expected a list, found {kind(value)}"))
            return
        if len(value) < least or (most is not None and len(value) > most):
            bounds = f"{least} or more" if most is None else f"{least} to {most}"
            found.append(Problem(where, f"expected {bounds} items, found {len(value)}"))
        seen: dict[Any, int] = {}
        for position, one in enumerate(value):
            item(one, f"{where}[{position}]", found)
            first = seen.setdefault(_key(one), position)
            if unique and first != position:
                found.append(Problem(f"{where}[{position}]", f"the same as item {first}"))

    return rule


def counted(what: str, among: Rule, least: int, most: int | None) -> Rule:
    """Return the rule for lists that have so many items that fit a rule."""

    def rule(value: Any, where: str, found: list[Problem]) -> None:
        if isinstance(value, list):
            count = sum(fits(among, one) for one in value)
            if count < least or (most is not None and count > most):
                bounds = f"{least} or more" if most is None else f"{least} to {most}"
                bounds = str(least) if least == most else bounds
                found.append(Problem(where, f"expected {bounds} {what}, found {count}"))

    return rule


def all_of(*rules: Rule) -> Rule:
    """Return the rule that has all rules."""

    def rule(value: Any, where: str, found: list[Problem]) -> None:
        for one in rules:
            one(value, where, found)

    return rule


def exactly_one(expected: str, *rules: Rule) -> Rule:
    """Return the rule for values that fit one of the rules and no other."""

    def rule(value: Any, where: str, found: list[Problem]) -> None:
        count = sum(fits(one, value) for one in rules)
        if count != 1:
            more = "; it may be more than one of these" if count else ""
            found.append(Problem(where, f"expected {expected}, found {_shown(value)}{more}"))

    return rule


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    shown = json.dumps(value, default=str)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def _key(value: Any) -> Any:
    """Return a text that equal JSON values share, and others do not."""
    return json.dumps(_normal(value), sort_keys=True, default=str)


def _normal(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_normal(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _normal(one) for name, one in value.items()}
    return value
