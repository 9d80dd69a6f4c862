"""Whether two places, however deep in archives and databases, share what is stored.

A place is the JSON of a kvstore. Those of one driver, bucket, archive ... overlap if one path is
that of the other or leads below it; and a place overlaps what lies in an archive or database that
lies in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_IDENTIFYING: Final = ("driver", "bucket", "endpoint", "base_url", "version")
"""What tells one kvstore from another, besides its base; not its options."""


def overlap(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether writing or deleting all of one place could change the other.

    >>> archive = {"driver": "zip", "base": {"driver": "file", "path": "/x/a.zip"}}
    >>> overlap(archive, {"driver": "file", "path": "/x/"}), overlap(archive, archive)
    (True, True)
    >>> overlap({**archive, "path": "b"}, {**archive, "path": "bc"})
    False
    """
    return any(_meet(a, below) for below in _levels(b)) or any(
        _meet(below, b) for below in _levels(a)
    )


def _levels(place: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A place, and those in which it lies."""
    yield place
    if "base" in place:
        yield from _levels(place["base"])


def _meet(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if _identity(a) != _identity(b):
        return False
    short, long = sorted((_path(a), _path(b)), key=len)
    return long[: len(short)] == short


def _identity(place: Mapping[str, Any]) -> tuple[Any, ...]:
    base = place.get("base")
    within = None if base is None else (_identity(base), _path(base))
    return (*(place.get(name) for name in _IDENTIFYING), within)


def _path(place: Mapping[str, Any]) -> tuple[str, ...]:
    path = place.get("path", "")
    if place["driver"] == "file":
        return Path(path).resolve().parts
    return tuple(name for name in path.split("/") if name)
