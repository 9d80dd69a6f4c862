"""Overlap of two places, at any depth in archives and databases.

A place is the JSON of a kvstore. Two places in the same driver, bucket or archive overlap if one
path equals the other or leads below it. A place also overlaps the contents of every archive or
database inside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_IDENTIFYING: Final = ("driver", "bucket", "endpoint", "base_url", "version")
"""Members of a kvstore's JSON that distinguish it from others, besides its base."""


def overlap(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether writing or deleting all of one place could change the other.

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
    """Return a place and the places that contain it."""
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
