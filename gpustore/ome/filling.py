"""Elements of any source written to a level, region by region: :func:`fill`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import gpustore
from gpustore.display.extents import chunk_extents
from gpustore.ome.layout import axes_in_order
from gpustore.ome.multiscale import Axis
from gpustore.runtime.cores import cores
from gpustore.sources.array_like import of_object
from gpustore.sources.base import Region, Source, transposed
from gpustore.sources.files import open_file
from gpustore.transfer.plan import Plan, plan_regions
from gpustore.transfer.regions import transfer

_SAMPLES: Final = ("red", "green", "blue")


def source_of(array: Any) -> Source:
    """Return a source: a file of NumPy, TIFF or HDF5 by path, a store, or any array."""
    if isinstance(array, os.PathLike):
        array = os.fspath(array)
    if isinstance(array, str):
        found = open_file(array)
        return of_object(gpustore.open(array, read=True).result()) if found is None else found
    return of_object(array)


def ordered(source: Source, axes: Sequence[Any] | None) -> Source:
    """Return a source with its dimensions in the order of axes, if they have the same names.

    Parameters
    ----------
    source : Source
    axes : sequence of str or Axis, or None
        None is the order of OME-Zarr. Samples of colours, the dimension ``s`` of TIFF files, are
        channels.
    """
    dims = source.dims
    if dims is None or not all(dims):
        return replace(source, channels=())
    if "s" in dims and "c" not in dims:
        count = source.shape[dims.index("s")]
        if count in (3, 4):
            dims = tuple("c" if name == "s" else name for name in dims)
            source = replace(source, dims=dims, channels=_SAMPLES if count == 3 else ())
    wanted = axes_in_order(dims)
    if axes is not None:
        wanted = [one.name if isinstance(one, Axis) else str(one) for one in axes]
    if sorted(wanted) != sorted(dims):
        return replace(source, channels=())
    return transposed(source, [dims.index(name) for name in wanted])


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
        workers=cores(),
    )
