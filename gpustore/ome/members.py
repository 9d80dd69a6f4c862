"""Members of JSON objects in attributes of others, with errors that name where they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpustore import MetadataError, UnsupportedError


def place_of(node: Any) -> str:
    """Return the URL of a group or array, or a description of the place if it has none."""
    try:
        url: str = node.url
    except UnsupportedError:
        return f"{node.kvstore.driver.describe(node.kvstore.path)}"
    return url


def at(where: str, member: str) -> str:
    """Return the place of a member: `where` is a file and a colon, or a member of it.

    >>> at(at("zarr.json: ", "ome"), "version")
    'zarr.json: ome.version'
    """
    return f"{where}{member}" if where.endswith(": ") else f"{where}.{member}"


def json_object(value: Any, where: str) -> Mapping[str, Any]:
    """Return the value, a JSON object."""
    if not isinstance(value, Mapping):
        raise MetadataError(f"{where}: expected an object, got {kind(value)}")
    return value


def items(owner: Mapping[str, Any], member: str, where: str) -> list[Any]:
    """Return a member, a list that is not empty."""
    value = owner.get(member)
    if not isinstance(value, list) or not value:
        found = "it is missing" if member not in owner else f"got {kind(value)}"
        raise MetadataError(f"{at(where, member)}: expected a list that is not empty, {found}")
    return value


def text(owner: Mapping[str, Any], member: str, where: str, default: str | None = None) -> str:
    """Return a member, a string that is not empty, or the default of one that is missing."""
    if member not in owner and default is not None:
        return default
    value = owner.get(member)
    if not isinstance(value, str) or not (value or default is not None):
        found = "it is missing" if member not in owner else f"got {kind(value)}"
        raise MetadataError(f"{at(where, member)}: expected a string, {found}")
    return value


def member_path(owner: Mapping[str, Any], member: str, where: str) -> str:
    """Return a member, the path of something below a group, as it is stored."""
    value = text(owner, member, where)
    parts = [part for part in value.replace("\\", "/").split("/") if part]
    if not parts or "." in parts or ".." in parts:
        raise MetadataError(
            f"{at(where, member)}: expected a path below the group, got {kind(value)}"
        )
    return value


def optional(owner: Mapping[str, Any], member: str, type_: type, where: str) -> Any:
    """Return a member of a type, None if it is missing or null."""
    value = owner.get(member)
    wrong = isinstance(value, bool) and type_ is not bool
    if value is not None and (wrong or not isinstance(value, type_)):
        raise MetadataError(f"{at(where, member)}: expected {_WORDS[type_]}, got {kind(value)}")
    return value


def number(owner: Mapping[str, Any], member: str, where: str) -> float:
    """Return a member, a number."""
    value = owner.get(member)
    if isinstance(value, bool) or not isinstance(value, int | float):
        found = "it is missing" if member not in owner else f"got {kind(value)}"
        raise MetadataError(f"{at(where, member)}: expected a number, {found}")
    if not is_finite(value):
        raise MetadataError(f"{at(where, member)}: expected a finite number, got {kind(value)}")
    return float(value)


def is_finite(value: float) -> bool:
    """Return whether a float can hold a number, which may be an integer of any size."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def kind(value: Any) -> str:
    """Describe a JSON value in a few words.

    >>> kind([]), kind({"a": 1}), kind("x")
    ('an empty list', 'an object', "'x'")
    """
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


_WORDS = {str: "a string", bool: "true or false", int: "an integer", list: "a list"}
