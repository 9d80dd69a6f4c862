"""dask: lazy arrays of stores, and arrays of dask that are stored.

A task holds the spec of a store, never its values, and opens it once a process. So graphs work on
other processes and machines that see the same storage. A store in memory is held by itself and
stays within the process.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpustore
from gpustore.interop import checked, extra
from gpustore.interop.reopened import Reopened

with extra("dask"):
    import dask.array
    from dask.base import tokenize


def to_dask(store: gpustore.TensorStore, chunks: Any) -> Any:
    """Return a lazy array of dask; see :func:`gpustore.to_dask`."""
    store = checked(store)
    whole = store.translate_to[0] if store.rank else store
    shape = whole.shape
    if isinstance(chunks, str) and chunks != "auto":
        found = {"chunk": store.chunks, "shard": store.shards or store.chunks}.get(chunks, ())
        if found == () and store.rank:
            raise ValueError(f"chunks: expected 'chunk', 'shard', 'auto' or sizes, got {chunks!r}")
        chunks = shape if found is None else tuple(found)
    source = _Source(Reopened(whole))
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
    if not isinstance(array, dask.array.Array):
        raise TypeError(f"array: expected a dask.array.Array, got {array!r:.200}")
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
        aligned, _Target(Reopened(target)), lock=False, compute=False, return_stored=False
    )
    if not compute:
        return work
    work.compute()
    return target


class _Source:
    """Source of a lazy array: a store, opened at once in each process."""

    def __init__(self, reopened: Reopened) -> None:
        self._reopened = reopened
        store = reopened.opened()
        self.shape = store.shape
        self.ndim = store.rank
        self.dtype = store.dtype.array_dtype

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._reopened.opened().numpy[index]
        except gpustore.CorruptChunkError:
            self._reopened.opened(look=True)  # Says so if the chunks are those of another array.
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._reopened,)

    def __dask_tokenize__(self) -> Any:
        return self._reopened.identity


class _Target(_Source):
    """Target of tasks that store their values."""

    def __setitem__(self, index: Any, values: Any) -> None:
        self._reopened.opened()[index].write(values).result()


def _empty(store: gpustore.TensorStore, dtype: np.dtype[Any]) -> Any:
    """Return an empty array like those that reads of the store give."""
    if store.device == "cpu":
        return np.empty((0,) * store.rank, dtype)
    return store[tuple(slice(n, n) for n in store.domain.origin)].read().result()
