"""JSON Pointer (RFC 6901): a path to one value inside a JSON document.

Failures carry TensorStore's text and status: a missing member is NOT_FOUND, an array index beyond
the end is OUT_OF_RANGE, everything else FAILED_PRECONDITION.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gpustore._json import JsonValue, dump
from gpustore.errors import MetadataError, MismatchError, NotFoundError

__all__ = ["dereference", "parse_pointer", "replaced"]

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
        raise MetadataError(f"JSON Pointer does not start with '/': \"{pointer}\"")
    if re.search(r"~(?![01])", pointer):
        raise MetadataError(
            f"JSON Pointer requires '~' to be followed by '0' or '1': \"{pointer}\""
        )
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/"))


def _text(tokens: Sequence[str]) -> str:
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)


def _scalar(value: JsonValue) -> str:
    kind = {bool: "boolean", int: "number", float: "number", str: "string"}.get(type(value), "null")
    return f"{kind} value: {dump(value).decode()}"


def _position(value: Sequence[Any], tokens: Sequence[str], at: int, *, write: bool) -> int:
    """The array index a token means; one past the end only for writing."""
    where = _text(tokens[: at + 1])
    token = tokens[at]
    if token == "-":
        if write:
            return len(value)
    elif not _INDEX.fullmatch(token):
        raise MismatchError(f'JSON Pointer "{where}" is invalid for array value')
    elif len(token) < 20 and int(token) < len(value) + write:
        return int(token)
    raise MismatchError(
        f'JSON Pointer "{where}" is out-of-range for array of size {len(value)}',
        status="FAILED_PRECONDITION" if write else "OUT_OF_RANGE",
    )


def dereference(document: JsonValue, tokens: Sequence[str]) -> JsonValue:
    """The value `tokens` points at.

    Raises
    ------
    NotFoundError, MismatchError
        If there is none.
    """
    value = document
    for at, token in enumerate(tokens):
        if isinstance(value, dict):
            if token not in value:
                raise NotFoundError(
                    f'JSON Pointer "{_text(tokens[: at + 1])}" refers to non-existent object member'
                )
            value = value[token]
        elif isinstance(value, list):
            value = value[_position(value, tokens, at, write=False)]
        else:
            raise MismatchError(
                f'JSON Pointer reference "{_text(tokens[: at + 1])}" cannot be applied to '
                f"{_scalar(value)}"
            )
    return value


def replaced(document: JsonValue, tokens: Sequence[str], new: JsonValue) -> JsonValue:
    """A document in which `tokens` points at `new`; missing parents are made, as objects.

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
    if value is None:
        return {token: _replaced(None, tokens, at + 1, new)}
    if isinstance(value, dict):
        return {**value, token: _replaced(value.get(token), tokens, at + 1, new)}
    if isinstance(value, list):
        index = _position(value, tokens, at, write=True)
        old = value[index] if index < len(value) else None
        return [*value[:index], _replaced(old, tokens, at + 1, new), *value[index + 1 :]]
    raise MismatchError(
        f'JSON Pointer reference "{_text(tokens[: at + 1])}" cannot be applied to {_scalar(value)}'
    )
