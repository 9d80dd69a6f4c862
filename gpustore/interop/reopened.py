"""Stores that other processes open again: :class:`Reopened`."""

from __future__ import annotations

import json
import operator
import os
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

import gpustore

_MOST_OPEN: Final = 64
"""Most stores that a process keeps open for others."""

CHECK_S: Final = 1.0
"""Seconds after which a process looks again whether an array that it has open has changed."""

_DOCUMENTS: Final = {"zarr": ".zarray", "zarr3": "zarr.json"}


class Reopened:
    """A store that is pickled as its spec, without elements, and opened once a process.

    Forked processes go on with the store itself. A store in memory stays within its process and
    those forked from it.

    Parameters
    ----------
    store : TensorStore
    """

    def __init__(self, store: gpustore.TensorStore) -> None:
        self._kept: _Kept | None = None
        self._spec = self._generation = ""
        self._number = uuid.uuid4().hex
        kvstore = store.kvstore
        if kvstore is not None and "memory" not in kvstore.url.partition(":")[0]:
            spec = store.spec(unbind_context=True, minimal_spec=True).to_json()
            self._spec = json.dumps(spec, sort_keys=True)
            self._kept = _Kept(store, _document(store))
            self._generation = self._kept.generation
        else:
            self._kept = _Kept(store, None)

    def opened(self, *, look: bool = False) -> gpustore.TensorStore:
        """Return the store, opened in this process; with `look`, look at its metadata now.

        Raises
        ------
        MismatchError
            If its metadata have changed since it was pickled, or, about a second after they were
            looked at, if its data type, chunks or codecs are others now, or its shape is smaller.
        NotFoundError
            If nothing is at its place, as on a machine that sees other files.
        """
        kept = _opened(self._spec, self._generation) if self._kept is None else self._kept
        return kept.checked(look=look)

    @property
    def identity(self) -> tuple[str, ...]:
        """Spec and generation of the metadata; of a store in memory, what it is in this process."""
        return (self._spec, self._generation) if self._spec else ("memory", self._number)

    def __getstate__(self) -> tuple[str, str]:
        if not self._spec:
            raise gpustore.UnsupportedError(
                "a store in memory stays within its process: store it in files first"
            )
        return self._spec, self._generation

    def __setstate__(self, state: tuple[str, str]) -> None:
        self._kept = None
        self._spec, self._generation = state
        self._number = ""


class _Kept:
    """A store that a process has open.

    Attributes
    ----------
    generation : str
        Generation of the metadata document when it was opened; empty for other formats.
    """

    def __init__(self, store: gpustore.TensorStore, document: tuple[str, Any] | None) -> None:
        self._store = store
        self.generation: str
        self._metadata: Any
        self.generation, self._metadata = document or ("", None)
        self._looked = time.monotonic()

    def checked(self, *, look: bool) -> gpustore.TensorStore:
        """Return the store, after a `look` at its metadata, or if the last was long ago."""
        now = time.monotonic()
        if self._metadata is not None and (look or now - self._looked >= CHECK_S):
            self._looked = now
            found = _document(self._store)
            if found is None or not _reads_alike(self._metadata, found[1]):
                self._looked = -CHECK_S  # The next one is told, too.
                if found is None:
                    raise gpustore.NotFoundError(f"{self._store.url} was deleted or moved")
                raise gpustore.MismatchError(
                    f"{self._store.url} has changed since it was opened: its shape, data type, "
                    "chunks or codecs are others now; open it again"
                )
        return self._store


_lock = threading.Lock()
_stores: dict[tuple[str, str], _Kept] = {}


def _after_fork() -> None:
    """Make a lock that no thread of the parent process holds."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _opened(spec: str, generation: str) -> _Kept:
    """Open a store, or return the one that this process has open."""
    with _lock:
        found = _stores.get((spec, generation))
    if found is not None:
        return found
    store = gpustore.open(json.loads(spec)).result()
    found = _Kept(store, _document(store))
    if generation != found.generation:
        raise gpustore.MismatchError(
            f"{store.url} has changed since it was handed to this process: its metadata were "
            "stored anew; open it again"
        )
    with _lock:
        while len(_stores) >= _MOST_OPEN:
            del _stores[next(iter(_stores))]
        _stores[spec, generation] = found
    return found


def _document(store: gpustore.TensorStore) -> tuple[str, Any] | None:
    """Return generation and content of the metadata document; None if there is none."""
    spec: Mapping[str, Any] = store.spec().to_json()
    while "base" in spec:
        spec = spec["base"]
    name = _DOCUMENTS.get(spec["driver"])
    if name is None or store.kvstore is None:
        return None
    found = store.kvstore.read(name).result()
    if found.state != "value":
        return None
    try:
        return found.stamp.generation.hex(), json.loads(found.value)
    except ValueError:
        return found.stamp.generation.hex(), None


def _reads_alike(before: Any, after: Any) -> bool:
    """Whether chunks are where they were, and are decoded alike: an array may have grown."""
    if not isinstance(after, dict) or len(after.get("shape", ())) != len(before["shape"]):
        return False
    grown = all(map(operator.le, before["shape"], after["shape"]))
    one, other = ({**document, "shape": 0, "attributes": 0} for document in (before, after))
    return grown and one == other
