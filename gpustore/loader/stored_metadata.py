"""Metadata of arrays while a loader reads them: changes are noticed by generation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gpustore
from gpustore.loader.volume import PairedArray, Volume

_DOCUMENTS: Final = {"zarr": ".zarray", "zarr3": "zarr.json"}
"""Name of the document with the metadata of an array, by driver."""


class StoredMetadata:
    """Metadata of the arrays of a loader, as they were when it first read from an array."""

    def __init__(self) -> None:
        self._documents: dict[tuple[int, str], str | None] = {}
        self._seen: dict[tuple[int, str], tuple[bytes, bytes]] = {}

    def check(self, number: int, volume: Volume) -> None:
        """Check that the arrays of a volume are those that were opened, with a request each.

        Attributes may change. Arrays of other formats than Zarr are not checked, nor those whose
        cached data are not to be compared with the storage (``recheck_cached_data``).

        Raises
        ------
        ConflictError
            If the metadata of an array were stored anew, or have changed.
        MismatchError
            If another array has taken the place of the one that was opened.
        NotFoundError
            If an array has been deleted.
        """
        for array in volume.arrays:
            place = number, array.name
            if place not in self._documents:
                self._documents[place] = _document(array.store)
            document = self._documents[place]
            if document is None:
                continue
            try:
                self._check(place, array, document)
            except gpustore.GpustoreError as error:
                key = f"{array.store.kvstore.path}{document}" if array.store.kvstore else None
                where = f"Array {array.name!r} is not what was opened any more"
                raise error.prefixed(where, key=key) from error

    def _check(self, place: tuple[int, str], array: PairedArray, document: str) -> None:
        store = array.store
        assert store.kvstore is not None
        found = store.kvstore.read(document).result()
        generation, value = found.stamp.generation, found.value
        before = self._seen.get(place)
        if before is None or before[0] != generation:
            now = store.resolve().result()
            if now.domain != store.domain:
                raise gpustore.ConflictError(f"its domain was {store.domain}, now {now.domain}")
            if before is not None and before[1] == value:
                raise gpustore.ConflictError("its metadata were stored anew; open it again")
            self._seen[place] = generation, value


def _document(store: gpustore.TensorStore) -> str | None:
    """Return the name of the document with the metadata; None if it is not to be checked."""
    spec: Mapping[str, Any] = store.spec().to_json()
    while "base" in spec:
        spec = spec["base"]
    if store.kvstore is None or spec.get("recheck_cached_data") in ("open", False):
        return None
    return _DOCUMENTS.get(spec["driver"])
