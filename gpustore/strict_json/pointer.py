"""JSON Pointer (RFC 6901): a path to one value inside a JSON document.

Failures carry TensorStore's text and status: a missing member is NOT_FOUND, an array index beyond
the end is OUT_OF_RANGE, everything else FAILED_PRECONDITION.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from gpustore.errors import MetadataError, MismatchError, NotFoundError
from gpustore.strict_json.parsing import JsonValue, quote, text

MISSING: Final[Any] = object()
"""Stands for a document, or a part of one, that does not exist, unlike null."""

_INDEX = re.compile(r"0|[1-9][0-9]*", re.ASCII)


def parse_pointer(pointer: str) -> tuple[str, ...]:
    """Split a pointer into its unescaped reference tokens.

    >>> parse_pointer("/a~1b/0")
    ('a/b', '0')

    Raises
    ------
    MetadataError
        If it is neither empty nor starts with "/", or has an invalid escape.
    """
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise MetadataError(f"JSON Pointer does not start with '/': {quote(pointer)}")
    if re.search(r"~(?![01])", pointer):
        raise MetadataError(
            f"JSON Pointer requires '~' to be followed by '0' or '1': {quote(pointer)}"
        )
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/"))


def _name(tokens: Sequence[str]) -> str:
    """Return the pointer made of `tokens`, in quotes."""
    return quote("".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens))


def _not_applicable(value: JsonValue, tokens: Sequence[str]) -> MismatchError:
    kind = {bool: "boolean", int: "number", float: "number", str: "string"}.get(type(value), "null")
    return MismatchError(
        f"JSON Pointer reference {_name(tokens)} cannot be applied to {kind} value: {text(value)}"
    )


def _position(value: Sequence[Any], tokens: Sequence[str], *, write: bool) -> int:
    """Return the array index of the last token; "-" is the index past the end, for writing only."""
    token = tokens[-1]
    if token == "-":
        if write:
            return len(value)
        raise MismatchError(f"JSON Pointer {_name(tokens)} refers to non-existent array element")
    # TensorStore counts in 64 bits; Python refuses to parse thousands of digits.
    if not _INDEX.fullmatch(token) or len(token) > 20 or int(token) >= 1 << 64:
        raise MismatchError(f"JSON Pointer {_name(tokens)} is invalid for array value")
    if int(token) < len(value):
        return int(token)
    raise MismatchError(
        f"JSON Pointer {_name(tokens)} is out-of-range for array of size {len(value)}",
        status="FAILED_PRECONDITION" if write else "OUT_OF_RANGE",
    )


def dereference(document: JsonValue, tokens: Sequence[str]) -> JsonValue:
    """Return the value of `document` at the pointer `tokens`.

    Raises
    ------
    NotFoundError, MismatchError
        If there is no value.
    """
    value = document
    for at, token in enumerate(tokens):
        if isinstance(value, dict):
            if token not in value:
                raise NotFoundError(
                    f"JSON Pointer {_name(tokens[: at + 1])} refers to non-existent object member"
                )
            value = value[token]
        elif isinstance(value, list):
            value = value[_position(value, tokens[: at + 1], write=False)]
        else:
            raise _not_applicable(value, tokens[: at + 1])
    return value


def replaced(document: JsonValue, tokens: Sequence[str], new: JsonValue) -> JsonValue:
    """Return a copy of `document` with `new` at the pointer `tokens`; missing parents are objects.

    Parameters
    ----------
    document : JsonValue or MISSING
    tokens : sequence of str
        Reference tokens of the pointer; "-" appends to an array.
    new : JsonValue

    Raises
    ------
    MismatchError
        If a parent is neither an object nor an array that has the index.
    """
    return _replaced(document, tokens, 0, new)


def _replaced(value: JsonValue, tokens: Sequence[str], at: int, new: JsonValue) -> JsonValue:
    if at == len(tokens):
        return new
    token = tokens[at]
    if value is MISSING:
        return {token: _replaced(MISSING, tokens, at + 1, new)}
    if isinstance(value, dict):
        return {**value, token: _replaced(value.get(token, MISSING), tokens, at + 1, new)}
    if isinstance(value, list):
        index = _position(value, tokens[: at + 1], write=True)
        old = value[index] if index < len(value) else MISSING
        return [*value[:index], _replaced(old, tokens, at + 1, new), *value[index + 1 :]]
    raise _not_applicable(value, tokens[: at + 1])
