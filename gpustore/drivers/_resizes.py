"""Shapes that arrays were given: handles opened before in the same context use them from then on.

As in TensorStore, what one handle has changed is known to all that share a pool of metadata.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

_MOST: Final = 1024
"""Most arrays of a pool that are remembered; of others earlier handles keep the shape they know."""

_lock = threading.Lock()


class Latest:
    """Time of the last resize of all, in seconds since the epoch: of younger handles no more is
    asked.
    """

    at = -math.inf


class Resized(NamedTuple):
    """Metadata that a resize has stored, and the time at which they were known to be stored."""

    metadata: Any
    at: float


_resized: WeakKeyDictionary[object, dict[Hashable, Resized]] = WeakKeyDictionary()
"""By pool, and by kvstore and key."""


def set_resized(pool: object, place: Hashable, metadata: Any, at: float) -> None:
    """Remember what a resize has stored at a place: a kvstore and a key.

    Parameters
    ----------
    pool : object
        What the handles share that use it: the context resource of their metadata's cache.
    place : hashable
    metadata : object
    at : float
        Seconds since the epoch.
    """
    with _lock:
        places = _resized.setdefault(pool, {})
        places.pop(place, None)
        while len(places) >= _MOST:
            del places[next(iter(places))]
        places[place] = Resized(metadata, at)
        Latest.at = max(Latest.at, at)


def resized_since(pool: object, store: Any, key: str, since: float) -> Resized | None:
    """Return the last resize of the array with its metadata at a key, if it was after `since`."""
    found = _resized.get(pool, {}).get((store.identity, key))
    return None if found is None or found.at <= since else found
