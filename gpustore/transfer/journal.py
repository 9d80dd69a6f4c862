"""Progress of a copy or a pyramid: a document beside it, from which a second run continues.

Regions are stored in order: the document holds, for every array, how it is cut and how many regions
are done. It is written after what it speaks of is stored, at most once a second, and removed at the
end. So a run that ended in any way, also by a kill, is continued without reading what was copied;
the regions that were being written are written again. Which chunks those are need not be known, nor
whether a chunk is missing because it holds only fill values.

Before anything is made there is a document without arrays. What a second run finds beside that the
first one has made, and makes it again.

It also holds a digest of what is copied to what: another source, other options, or a source whose
metadata have changed begin no second half. Elements that change in the source meanwhile are not
noticed: what is copied is not looked at again.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import gpustore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpustore.transfer.plan import Plan


NAME = ".gpustore-copy.json"
"""Name of the document."""
_EVERY_S = 1.0


class Journal:
    """The document of one copy.

    Parameters
    ----------
    store : KvStore
        The place of the copy.
    digest : str
        Text that tells what is written from other things.
    name : str
        Name of the document.

    Attributes
    ----------
    found : bool
        Whether there is a document of this copy.
    is_made : bool
        Whether the document records that all arrays were made.
    other : bool
        Whether there is a document of another copy.
    """

    def __init__(self, store: gpustore.KvStore, digest: str, name: str = NAME) -> None:
        below = store if not store.path or store.path.endswith("/") else store + "/"
        self._store = below
        self._name = name
        self._digest = digest
        self._arrays: dict[str, Any] = {}
        self._written = 0.0
        read = below.read(name).result()
        document = _parsed(read.value) if read.state == "value" else None
        self.found = document is not None and document.get("digest") == digest
        self.other = read.state == "value" and not self.found
        if self.found and document is not None:
            self._arrays = document["arrays"]
        self.is_made = bool(self._arrays)

    def begin(self, plans: Mapping[str, Plan]) -> None:
        """Write the document of a new copy; without plans, before anything is made."""
        self._arrays = {
            path: {"region": list(plan.region), "done": 0} for path, plan in plans.items()
        }
        self.write()

    def region(self, path: str) -> tuple[int, ...]:
        """Return the extents of an array's regions in the earlier run, None without one."""
        return tuple(self._arrays[path]["region"])

    def done(self, path: str) -> int:
        """Return the number of stored regions of an array."""
        return int(self._arrays[path]["done"])

    def advance(self, path: str, count: int = 1) -> None:
        """Record `count` more stored regions of an array."""
        self._arrays[path]["done"] += count
        if time.monotonic() - self._written >= _EVERY_S:
            self.write()

    def write(self) -> None:
        """Store the document."""
        document = {"digest": self._digest, "arrays": self._arrays}
        self._store[self._name] = json.dumps(document).encode()
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the document of a complete copy."""
        del self._store[self._name]


def _parsed(value: bytes) -> dict[str, Any] | None:
    """Return the document, None if it is damaged."""
    try:
        document = json.loads(value)
        arrays = document["arrays"]
        whole = all(
            isinstance(one["done"], int) and one["done"] >= 0 and all(r > 0 for r in one["region"])
            for one in arrays.values()
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return document if whole else None
