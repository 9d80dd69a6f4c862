"""Documents that are alike but for the values of some members of the outermost object.

Of the documents of one data set only a few members differ. A :class:`Template` is made of one that
was parsed and found right; of the others it compares all text around these members, and parses
their values alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, Self

from gpustore.strict_json.parsing import STRICT_SHORT, InvalidJsonError, JsonValue

_LONGEST: Final = 1000
"""Longest text of a value that is parsed by itself; it has no integer of too many digits."""

_scan = STRICT_SHORT.raw_decode
_scan_any = json.JSONDecoder().raw_decode
_space = re.compile(r"[ \t\n\r]*").match


class Template:
    """A document, divided into the values of some members and the text around them.

    Attributes
    ----------
    text : str
        The document.
    """

    __slots__ = ("_begin", "_members", "text")

    def __init__(self, text: str, begin: str, members: list[tuple[str, str, str]]) -> None:
        self.text = text
        self._begin = begin
        # Name and value of each, and the text behind it up to the next one.
        self._members = members

    @classmethod
    def of(cls, text: str, is_free: Callable[[str], bool]) -> Self:
        """Divide an object, which was parsed strictly before, at members whose names fulfil
        `is_free`.
        """
        at = _behind_space(text, text.index("{") + 1)
        spans: list[tuple[str, int, int]] = []
        while text[at] != "}":
            name, at = _scan_any(text, at)
            begin = _behind_space(text, _behind_space(text, at) + 1)  # behind the colon
            _, at = _scan_any(text, begin)
            if is_free(name):
                spans.append((name, begin, at))
            at = _behind_space(text, at)
            if text[at] == ",":
                at = _behind_space(text, at + 1)
        ends = [begin for _, begin, _ in spans[1:]] + [len(text)]
        members = [
            (name, text[begin:end], text[end:next_])
            for (name, begin, end), next_ in zip(spans, ends)
        ]
        return cls(text, text[: spans[0][1]] if spans else text, members)

    def differing(self, text: str, max_depth: int) -> Mapping[str, JsonValue] | None:
        """Return the values of the members that differ in another document.

        Parameters
        ----------
        text : str
            The other document.
        max_depth : int
            Deepest nesting of arrays and objects accepted.

        Returns
        -------
        mapping or None
            None if something else differs too, or if the document must be parsed as a whole to tell
            whether it is right.
        """
        if not text.startswith(self._begin):
            return None
        at = len(self._begin)
        values = {}
        for name, value, behind in self._members:
            if text.startswith(value, at) and text.startswith(behind, at + len(value)):
                at += len(value) + len(behind)
                continue
            begin = at
            try:
                values[name], at = _scan(text, at)
            except (ValueError, RecursionError, InvalidJsonError):
                return None
            span = text[begin:at]
            depth = 1 + span.count("[") + span.count("{")
            if len(span) > _LONGEST or depth > max_depth or "\\" in span:
                return None
            if not text.startswith(behind, at):
                return None
            at += len(behind)
        return values if at == len(text) else None


def _behind_space(text: str, at: int) -> int:
    space = _space(text, at)
    return space.end() if space else at
