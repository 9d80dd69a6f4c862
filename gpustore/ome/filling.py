"""Elements of any source written to a level, region by region: :func:`fill`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import gpustore
from gpustore.copying.plan import plan_regions
from gpustore.copying.transfer import first_interrupt, transfer
from gpustore.display.extents import chunk_extents
from gpustore.sources.array_like import of_object
from gpustore.sources.base import Source
from gpustore.sources.files import open_file


def source_of(array: Any) -> Source:
    """Return a source: a file of NumPy, TIFF or HDF5 by path, a store, or any array."""
    if isinstance(array, os.PathLike):
        array = os.fspath(array)
    if isinstance(array, str):
        found = open_file(array)
        return of_object(gpustore.open(array, read=True).result()) if found is None else found
    return of_object(array)


def fill(
    store: gpustore.TensorStore,
    source: Source,
    *,
    memory: int,
    progress: Callable[[int, int], object] | None,
) -> None:
    """Write all elements of a source of the same shape, in regions of whole chunks.

    Parameters
    ----------
    store : TensorStore
        Target; of the source's shape.
    source : Source
    memory : int
        Most bytes of decoded elements in memory at once, unless a chunk has more.
    progress : callable, optional
        ``progress(done, total)`` in decoded bytes.

    Raises
    ------
    ValueError
        If the shapes differ.
    KeyboardInterrupt
        After Ctrl-C; chunks are whole.
    """
    if source.shape != store.shape:
        raise ValueError(f"expected elements of shape {store.shape}, got {source.shape}")
    written = chunk_extents(store, "write_chunk")
    plan = plan_regions(
        source.shape,
        store.dtype.array_dtype.itemsize,
        source_chunk=written if source.chunks is None else source.chunks,
        target_chunk=written,
        memory_nbytes=memory,
        workers=os.cpu_count() or 1,
    )
    done = 0

    def moving(nbytes: int) -> None:
        if progress is not None:
            progress(done + nbytes, plan.nbytes)

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        moving(0)

    with first_interrupt() as stopped:
        moving(0)
        transfer(source, store, plan, advance=advance, stopped=stopped, moving=moving)
        if stopped():
            raise KeyboardInterrupt
