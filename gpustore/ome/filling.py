"""Elements of any source written to a level, region by region: :func:`fill`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import gpustore
from gpustore.display.extents import chunk_extents
from gpustore.sources.array_like import of_object
from gpustore.sources.base import Region, Source
from gpustore.sources.files import open_file
from gpustore.transfer.plan import Plan, plan_regions
from gpustore.transfer.regions import transfer


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
    progress: Callable[[int], object],
    stopped: Callable[[], bool],
    plan: Plan | None = None,
    first: int = 0,
    advance: Callable[[], object] = lambda: None,
    beside: Callable[[Region, Any], gpustore.WriteFutures | None] = lambda place, elements: None,
) -> None:
    """Write all elements of a source of the same shape, in regions of whole chunks.

    Parameters
    ----------
    store : TensorStore
        Target; of the source's shape.
    source : Source
    memory : int
        Most bytes of decoded elements in memory at once, unless a chunk has more.
    progress : callable
        Called with the decoded bytes that are done.
    stopped : callable
        Returns whether to stop; regions that are not stored are left out then.
    plan : Plan, optional
        Regions; those of :func:`plan_of` by default.
    first : int
        First region to write; those before it are stored.
    advance : callable
        Called after each region that is stored, in order.
    beside : callable
        Called with each region and its elements; may begin another write.

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    if source.shape != store.shape:
        raise ValueError(f"expected elements of shape {store.shape}, got {source.shape}")
    plan = plan_of(store, source, memory) if plan is None else plan
    done = plan.nbytes_of(first)
    progress(done)

    def after(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        advance()
        progress(done)

    transfer(
        *(source, store, plan),
        advance=after,
        stopped=stopped,
        moving=lambda nbytes: progress(done + nbytes),
        first=first,
        beside=beside,
    )


def plan_of(
    store: gpustore.TensorStore,
    source: Source,
    memory: int,
    blocks: Sequence[int] | None = None,
) -> Plan:
    """Divide an array into regions of whole chunks and blocks that take little memory."""
    written = chunk_extents(store, "write_chunk")
    return plan_regions(
        source.shape,
        store.dtype.array_dtype.itemsize,
        source_chunk=written if source.chunks is None else source.chunks,
        target_chunk=written if blocks is None else tuple(map(math.lcm, written, blocks)),
        memory_nbytes=memory,
        workers=os.cpu_count() or 1,
    )
