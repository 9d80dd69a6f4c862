"""Stores that other processes open again: :class:`Reopened`."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Mapping
from typing import Any, Final

import gpustore

_MOST_OPEN: Final = 64
"""Most stores that a process keeps open for others."""

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
        self._store: gpustore.TensorStore | None = store
        self._spec = self._generation = ""
        self._number = uuid.uuid4().hex
        kvstore = store.kvstore
        if kvstore is not None and "memory" not in kvstore.url.partition(":")[0]:
            spec = store.spec(unbind_context=True, minimal_spec=True).to_json()
            self._spec = json.dumps(spec, sort_keys=True)
            self._generation = _generation(store)

    def opened(self) -> gpustore.TensorStore:
        """Return the store, opened in this process.

        Raises
        ------
        MismatchError
            If its metadata have changed since it was pickled.
        NotFoundError
            If nothing is at its place, as on a machine that sees other files.
        """
        return _opened(self._spec, self._generation) if self._store is None else self._store

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
        self._store = None
        self._spec, self._generation = state
        self._number = ""


_lock = threading.Lock()
_stores: dict[tuple[str, str], gpustore.TensorStore] = {}


def _after_fork() -> None:
    """Make a lock that no thread of the parent process holds."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _opened(spec: str, generation: str) -> gpustore.TensorStore:
    """Open a store, or return the one that this process has open."""
    with _lock:
        found = _stores.get((spec, generation))
    if found is not None:
        return found
    found = gpustore.open(json.loads(spec)).result()
    if generation != _generation(found):
        raise gpustore.MismatchError(
            f"{found.url} has changed since it was handed to this process: its metadata were "
            "stored anew; open it again"
        )
    with _lock:
        while len(_stores) >= _MOST_OPEN:
            del _stores[next(iter(_stores))]
        _stores[spec, generation] = found
    return found


def _generation(store: gpustore.TensorStore) -> str:
    """Return the generation of a store's metadata document; empty for other formats."""
    spec: Mapping[str, Any] = store.spec().to_json()
    while "base" in spec:
        spec = spec["base"]
    document = _DOCUMENTS.get(spec["driver"])
    if document is None or store.kvstore is None:
        return ""
    return store.kvstore.read(document).result().stamp.generation.hex()
