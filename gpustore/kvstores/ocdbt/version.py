"""Versions in specs and URLs of an OCDBT database: a generation or a commit time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from gpustore.errors import MetadataError, NotFoundError, prefixing
from gpustore.kvstores.ocdbt.columns import UINT64_MAX
from gpustore.kvstores.ocdbt.time import format_time, format_version_time, parse_time
from gpustore.strict_json.parsing import expect_int, quote

if TYPE_CHECKING:
    from gpustore.kvstores.ocdbt.version_tree import Version, VersionSubtree
    from gpustore.strict_json.parsing import JsonValue


_GENERATION: Final = re.compile(r"v0*([1-9][0-9]{0,19})", re.ASCII)

Entry: TypeAlias = "Version | VersionSubtree"


@dataclass(frozen=True, slots=True)
class Generation:
    """A version by its number.

    Attributes
    ----------
    number : int
    """

    number: int

    def to_json(self) -> JsonValue:
        """Return the number of the version."""
        return self.number

    def __str__(self) -> str:
        return f"v{self.number}"

    def choose(self, entries: Sequence[Entry]) -> Entry | None:
        """Return the entry that is the version or holds it; `entries` in ascending order."""
        return next((entry for entry in entries if entry.generation >= self.number), None)

    def is_met(self, version: Version) -> bool:
        """Return whether a chosen version is the right one."""
        return version.generation == self.number

    def missing(self) -> NotFoundError:
        """Return the error for a missing version."""
        return NotFoundError(f"Version where generation_number={self.number} not present")


@dataclass(frozen=True, slots=True)
class CommitTime:
    """The last version that was committed at or before a time.

    Attributes
    ----------
    time : int
        Nanoseconds since the epoch.
    """

    time: int

    def to_json(self) -> JsonValue:
        """Return the time in the format of ISO 8601."""
        return str(self)

    def __str__(self) -> str:
        return format_version_time(self.time)

    def choose(self, entries: Sequence[Entry]) -> Entry | None:
        """Return the entry that is the version or holds it; `entries` in ascending order."""
        found = None
        for entry in entries:
            if entry.commit_time > self.time:
                break
            found = entry
        return found

    def is_met(self, version: Version) -> bool:
        """Return whether a chosen version is the right one."""
        return version.commit_time <= self.time

    def missing(self) -> NotFoundError:
        """Return the error for a missing version."""
        return NotFoundError(f"Version where commit_time<={format_time(self.time)} not present")


VersionSpec = Generation | CommitTime


def version_from_json(json: JsonValue) -> VersionSpec:
    """Parse the member ``version``."""
    if isinstance(json, str):
        return CommitTime(parse_time(json))
    return Generation(expect_int(json, 1, UINT64_MAX, integral_floats=True))


def version_from_url(text: str) -> VersionSpec:
    """Parse the text after ``@`` in a URL, ``v5`` or ``2024-01-02T03:04:05Z``."""
    with prefixing(f"Invalid OCDBT version: {quote(text)}"):
        return _generation_of(text) if text.startswith("v") else CommitTime(parse_time(text))


def _generation_of(text: str) -> Generation:
    match = _GENERATION.fullmatch(text)
    if match is None or int(match[1]) > UINT64_MAX:
        raise MetadataError("Invalid generation number")
    return Generation(int(match[1]))
