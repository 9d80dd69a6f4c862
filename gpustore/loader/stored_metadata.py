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
        self._seen: dict[tuple[int, str], tuple[bytes, bytes]] = {}

    def check(self, number: int, volume: Volume) -> None:
        """Check that the arrays of a volume are those that were opened, with a request each.

        Attributes may change. Arrays of other formats than Zarr are not checked.

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
            document = _document(array.store)
            if document is None:
                continue
            try:
                self._check((number, array.name), array, document)
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
    """Return the name of the document with the metadata; None for other formats."""
    spec: Mapping[str, Any] = store.spec().to_json()
    while "base" in spec:
        spec = spec["base"]
    return None if store.kvstore is None else _DOCUMENTS.get(spec["driver"])
