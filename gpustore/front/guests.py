"""Functions of :mod:`gpustore.interop` under public names; each imports its library when called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from gpustore import registry
from gpustore.front.store import TensorStore


def to_dask(
    store: TensorStore, chunks: Literal["chunk", "shard", "auto"] | int | Sequence[Any] = "chunk"
) -> Any:
    """Return a lazy array of dask; a task reads one of its chunks.

    Parameters
    ----------
    store : TensorStore
        Store, also a view. Its indices are counted from zero.
    chunks : {"chunk", "shard", "auto"}, int or sequence
        Chunks of the array: those that are decoded one by one, whole shards (chunks where there are
        none), of the size that dask chooses, or anything that dask takes. Their edges are those of
        the stored chunks if the view begins at such an edge.

    Returns
    -------
    dask.array.Array
        Of CuPy arrays if the store is on a GPU, of NumPy arrays otherwise. Its name follows from
        the spec, the generation of the metadata and the chunks: equal arrays have equal names. A
        task holds the spec of the store and opens it once a process; a store whose metadata have
        changed since raises MismatchError there. One that a process has open is looked at about
        every second: other attributes and a larger shape are no errors then.

    Raises
    ------
    TypeError
        If `store` is no store, as a group is not.
    ValueError
        If `chunks` is none of all this.
    ModuleNotFoundError
        If dask is not installed.
    """
    return registry.guest("dask").to_dask(store, chunks)


def store_dask(
    array: Any,
    spec: Any,
    *,
    chunks: Any = None,
    shards: Any = None,
    codec: Any = "zstd",
    compute: bool = True,
    **properties: Any,
) -> Any:
    """Store an array of dask as a new array of Zarr, whole chunks or shards in each task.

    Parameters
    ----------
    array : dask.array.Array
        Source. It is divided anew where its chunks are not multiples of the stored ones, so that no
        two tasks write to one stored value.
    spec : str, os.PathLike, dict or Spec
        Place of the new array; see :func:`gpustore.create_array`.
    chunks : int or sequence of int, optional
        Shape of the stored chunks; by default the largest chunk of `array` along each dimension.
    shards, codec, **properties
        Properties of the new array; see :func:`gpustore.create_array`.
    compute : bool
        False makes the array and leaves its elements to ``compute()`` of the object returned.

    Returns
    -------
    TensorStore or dask.delayed.Delayed
        The new array, or the work that is left.

    Raises
    ------
    AlreadyExistsError, MetadataError, StoreIOError
    TypeError
        If `array` is no array of dask, or its data type is no one of Zarr's.
    ValueError
        If sizes of chunks of `array` are unknown.
    ModuleNotFoundError
        If dask is not installed.
    """
    guest = registry.guest("dask")
    return guest.store_dask(
        array, spec, chunks=chunks, shards=shards, codec=codec, compute=compute, **properties
    )
