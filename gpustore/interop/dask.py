"""dask: lazy arrays of stores, and arrays of dask that are stored.

A task holds the spec of a store, never its values, and opens it once a process. So graphs work on
other processes and machines that see the same storage. A store in memory is held by itself and
stays within the process.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any, Final

import dask.array
import numpy as np
from dask.base import tokenize

import gpustore

_MOST_OPEN: Final = 64
"""Most stores that a process keeps open for tasks."""

_DOCUMENTS: Final = {"zarr": ".zarray", "zarr3": "zarr.json"}


def to_dask(store: gpustore.TensorStore, chunks: Any) -> Any:
    """Return a lazy array of dask; see :func:`gpustore.to_dask`."""
    whole = store.translate_to[0] if store.rank else store
    shape = whole.shape
    if isinstance(chunks, str) and chunks != "auto":
        found = {"chunk": store.chunks, "shard": store.shards or store.chunks}.get(chunks, ())
        if found == () and store.rank:
            raise ValueError(f"chunks: expected 'chunk', 'shard', 'auto' or sizes, got {chunks!r}")
        chunks = shape if found is None else tuple(found)
    source = _Source.of(whole)
    dtype = whole.dtype.array_dtype
    return dask.array.from_array(
        source,
        chunks=chunks,
        name=f"gpustore-{tokenize(source, chunks)}",
        lock=False,
        asarray=False,
        fancy=False,
        meta=_empty(whole, dtype),
        inline_array=True,
    )


def store_dask(
    array: Any, spec: Any, *, chunks: Any, shards: Any, codec: Any, compute: bool, **properties: Any
) -> Any:
    """Store an array of dask; see :func:`gpustore.store_dask`."""
    if any(np.isnan(n) for n in array.shape):
        raise ValueError("the array has chunks of unknown size: call compute_chunk_sizes() first")
    if chunks is None:
        chunks = tuple(max(1, *sizes) for sizes in array.chunks)
    target = gpustore.create_array(
        spec,
        shape=array.shape,
        dtype=array.dtype,
        chunks=chunks,
        shards=shards,
        codec=codec,
        **properties,
    ).result()
    unit = target.shards or target.chunks or array.shape
    whole = tuple(
        -(-max(max(sizes), one) // one) * one for sizes, one in zip(array.chunks, unit, strict=True)
    )
    aligned = array.rechunk(whole)
    work = dask.array.store(
        aligned, _Target.of(target), lock=False, compute=False, return_stored=False
    )
    if not compute:
        return work
    work.compute()
    return target


class _Opened:
    """A store as a graph holds it: by its spec, opened once a process.

    Parameters
    ----------
    store : TensorStore or None
        The store itself, where it is known.
    spec : str
        JSON of the spec; empty for a store that stays within the process.
    generation : str
        Generation of the metadata when the graph was made; empty if unknown.
    """

    def __init__(self, store: gpustore.TensorStore | None, spec: str, generation: str) -> None:
        self._store, self._spec, self._generation = store, spec, generation
        known = _store(self._spec, self._generation) if store is None else store
        self.shape = known.shape
        self.ndim = known.rank
        self.dtype = known.dtype.array_dtype

    @classmethod
    def of(cls, store: gpustore.TensorStore) -> Any:
        """Describe a store."""
        kvstore = store.kvstore
        if kvstore is None or "memory" in kvstore.url.partition(":")[0]:
            return cls(store, "", "")
        spec = store.spec(unbind_context=True, minimal_spec=True).to_json()
        return cls(store, json.dumps(spec, sort_keys=True), _generation(store))

    def opened(self) -> gpustore.TensorStore:
        """Return the store, opened in this process."""
        return _store(self._spec, self._generation) if self._store is None else self._store

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._spec:
            raise gpustore.UnsupportedError(
                "a store in memory stays within its process: store it in files first"
            )
        return type(self), (None, self._spec, self._generation)

    def __dask_tokenize__(self) -> Any:
        return (
            (self._spec, self._generation) if self._spec else ("in this process", id(self._store))
        )


class _Source(_Opened):
    """Source of a lazy array."""

    def __getitem__(self, index: Any) -> Any:
        return self.opened().numpy[index]


class _Target(_Opened):
    """Target of tasks that store their values."""

    def __setitem__(self, index: Any, values: Any) -> None:
        self.opened()[index].write(values).result()


_lock = threading.Lock()
_stores: dict[tuple[str, str], gpustore.TensorStore] = {}


def _store(spec: str, generation: str) -> gpustore.TensorStore:
    """Open a store, or return the one that this process has open.

    Raises
    ------
    MismatchError
        If the metadata have changed since the graph was made.
    """
    with _lock:
        found = _stores.get((spec, generation))
    if found is not None:
        return found
    described = json.loads(spec)
    found = gpustore.open(described).result()
    now = _generation(found)
    if generation != now:
        raise gpustore.MismatchError(
            f"{found.url} has changed since the graph was made: its metadata were stored anew; "
            "open it again and make a new graph"
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


def _empty(store: gpustore.TensorStore, dtype: np.dtype[Any]) -> Any:
    """Return an empty array like those that reads of the store give."""
    if store.device == "cpu":
        return np.empty((0,) * store.rank, dtype)
    return store[tuple(slice(n, n) for n in store.domain.origin)].read().result()
