"""Zarr arrays as sources of a copy: :func:`source_of`."""

from __future__ import annotations

import gpustore
from gpustore.display.extents import chunk_extents
from gpustore.sources.array_like import store_reader
from gpustore.sources.base import Source, places_of


def source_of(store: gpustore.TensorStore) -> Source:
    """Return the elements of a whole Zarr array as a source.

    Its other properties are in its metadata (:mod:`gpustore.copying.target`).
    """
    places = places_of(store.kvstore)
    return Source(
        tuple(int(n) for n in store.shape),
        store.dtype,
        store_reader(store),
        chunks=tuple(chunk_extents(store, "read_chunk")),
        identity=[store.spec().to_json(), places] if places else None,
        places=places,
    )
