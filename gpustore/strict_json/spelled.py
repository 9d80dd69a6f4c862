"""JSON by its text, as a key of what is remembered of it."""

from __future__ import annotations

from typing import Any

REMEMBERED_NBYTES = 16 << 10
"""Longest text whose parsed form is remembered."""


class Spelled:
    """Something that is told by its text from others; ``1``, ``1.0`` and ``true`` differ."""

    __slots__ = ("_text", "value")

    def __init__(self, text: str, value: Any) -> None:
        self._text = text
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spelled) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)
