"""Zarr arrays as sources of a copy: :func:`source_of`."""

from __future__ import annotations

import gpustore
from gpustore.display.extents import chunk_extents
from gpustore.sources.array_like import store_reader
from gpustore.sources.base import Source


def source_of(store: gpustore.TensorStore) -> Source:
    """Return the elements of a whole Zarr array as a source.

    Its other properties are in its metadata (:mod:`gpustore.copying.target`).
    """
    return Source(
        tuple(int(n) for n in store.shape),
        store.dtype,
        store_reader(store),
        chunks=tuple(chunk_extents(store, "read_chunk")),
        identity=store.spec().to_json(),
        places=() if store.kvstore is None else (store.kvstore.spec().to_json(),),
    )
