"""What a read will do, said beforehand: which bytes take which path, and what that costs.

1. Plan the read: chunks and stored values it touches, bytes it returns.
2. Ask each codec who decodes it, and why not the device.
3. Rehearse it (:mod:`gpustore.explain.dry_run`), unless it touches very many chunks: what is
   stored of them, and launches, copies and waits.

No chunk is read; indices of shards are, and each value is asked for its size.

It needs the whole device path, which ``import gpustore`` does not load, so drivers find it by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Sized
from types import MappingProxyType
from typing import Any

from gpustore.backends.base import Memory
from gpustore.backends.decoders import GpuDecoders, decoder_of
from gpustore.backends.device import DeviceBackend
from gpustore.backends.selection import missing_for_cuda
from gpustore.codec_chain.chain import CodecChain
from gpustore.device.protocol import Decoders
from gpustore.explain.dry_run import Rehearsed, rehearse
from gpustore.explain.explanation import CodecPath, Explanation
from gpustore.index_space import IndexTransform
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.read import contiguous
from gpustore.planning.copy_plan import CopyPlan

MOST_CHUNKS = 16_384
MOST_NBYTES = 8 << 30
"""Reads of more chunks or decoded bytes are not rehearsed: that would take seconds."""

_BY_VALUES = ("chunks_decoded_device", "copies", "host_fallbacks", "launches", "waits")


def explain(
    array: ChunkedArray, transform: IndexTransform, memory: Memory | None = None
) -> Explanation:
    """Explain the read of the domain of `transform`.

    Parameters
    ----------
    array : ChunkedArray
        As reads use it (:meth:`~gpustore.pipelines.chunked_array.ChunkedArray.reader`).
    memory : Memory, optional
        What it is read into; by default a new array in C order.

    Raises
    ------
    OutOfBoundsError, LimitError
        As the read.
    CorruptChunkError, NotFoundError, StoreIOError
        As the read, if an index of a shard is damaged or missing chunks are an error.
    """
    shape = tuple(transform.domain.shape)
    strides = contiguous(shape, array.dtype.itemsize, "C") if memory is None else memory.strides
    plans = array.plans(transform, strides)
    values = sum(plan.objects for _, plan in plans)
    return explained(
        array, plans, [shape], values, lambda: rehearse(array, plans, shape, memory), together=1
    )


def explained_pieces(
    array: ChunkedArray,
    plans: Sequence[tuple[ChunkedArray, CopyPlan]],
    shapes: Sequence[tuple[int, ...]],
    rehearsal: Callable[[], Rehearsed],
    *,
    together: int,
) -> Explanation:
    """Explain reads or crops that share their chunks; see :func:`explained`."""
    values = 0
    for _, plan in plans:
        values += sum(len(set(one.chunks.keys)) for one in plan.windows(0, 1, 1))
    return explained(array, plans, shapes, values, rehearsal, together=together)


def explained(
    array: ChunkedArray,
    plans: Sequence[tuple[ChunkedArray, Sized]],
    shapes: Sequence[tuple[int, ...]],
    values: int,
    rehearsal: Callable[[], Rehearsed],
    *,
    together: int,
) -> Explanation:
    """Explain what is planned.

    Parameters
    ----------
    plans : sequence
        As long as they have chunks.
    shapes : sequence of tuple of int
        Of the arrays that are filled.
    values : int
        Stored values that the plans touch.
    rehearsal : callable
        Rehearses it.
    together : int
        Reads or crops that share the chunks.
    """
    itemsize = array.dtype.itemsize
    chunks = sum(len(plan) for _, plan in plans)
    chain = array.chain if array.stored is None else array.stored.chain
    rehearsed = None
    nbytes = sum(len(plan) * one.chain.layout.nbytes for one, plan in plans)
    if chunks <= MOST_CHUNKS and nbytes <= MOST_NBYTES:
        rehearsed = rehearsal()
    host_reason = _host_reason(array, chain)
    decoders = _decoders(array.backend)
    on_host = decoders is None
    known = GpuDecoders(has_nvcomp=True)
    gpu_reason = chain.unsupported_reason(known)
    sub_batches = [] if rehearsed is None else rehearsed.rehearsal.sub_batches
    return Explanation(
        device=array.backend.device,
        shape=shapes[0] if len(set(shapes)) == 1 else None,
        arrays=len(shapes),
        together=together,
        dtype=array.dtype.name,
        chunk_shape=array.chunk_shape,
        chunks=chunks,
        values=values,
        bytes_returned=itemsize * sum(map(math.prod, shapes)),
        chunk_nbytes=chain.layout.nbytes,
        codecs=_codecs(chain, None if host_reason else decoders),
        host_reason=host_reason,
        counts=None if rehearsed is None else MappingProxyType(rehearsed.counts),
        expected=_expected(array, chain, rehearsed),
        unknown=() if rehearsed is None or rehearsed.sizes_are_known else ("bytes_fetched",),
        sub_batches=len(sub_batches),
        launches_at_most=max(sub_batches, default=0),
        left_to_host=_left_to_host(rehearsed),
        direct_nbytes=0 if rehearsed is None else rehearsed.direct_nbytes,
        gpu=_codecs(chain, None if gpu_reason else known) if on_host else (),
        gpu_reason=gpu_reason if on_host else None,
        gpu_missing=tuple(missing_for_cuda()) if on_host else (),
    )


def _decoders(backend: Any) -> Decoders | None:
    return backend.driven if isinstance(backend, DeviceBackend) else None


def _host_reason(array: ChunkedArray, chain: CodecChain) -> str | None:
    """Why the host decodes for a device."""
    decoders = _decoders(array.backend)
    if decoders is None:
        return None
    if array.stored is not None:
        return "the cache of decoded chunks is in host memory"
    return chain.unsupported_reason(decoders)


def _codecs(chain: CodecChain, decoders: Decoders | None) -> tuple[CodecPath, ...]:
    return tuple(
        CodecPath(stage.name, "host" if decoders is None else decoder_of(stage, decoders))
        for stage in reversed(chain.stages)
    )


def _expected(
    array: ChunkedArray, chain: CodecChain, rehearsed: Rehearsed | None
) -> tuple[str, ...]:
    """Counts that depend on bytes nobody has looked at, or on what the system can do."""
    names: set[str] = set()
    if rehearsed is None:
        return ()
    if array.stored is not None:
        names.update(("bytes_decoded", "bytes_fetched", "cache_hits", "key_reads"))
    by_values = any(
        stage.device_codec is not None or stage.leaves_odd_elements for stage in chain.stages
    )
    if _decoders(array.backend) is not None:
        if by_values and _host_reason(array, chain) is None:
            names.update(_BY_VALUES)
        if rehearsed.direct_nbytes:
            names.update(("copies", "waits"))
            if array.store.base is not None:
                # Parts of files begin anywhere, and some are compared with checksums there.
                names.add("launches")
        # How much is uploaded depends on how values and tables share the slab.
        names.update(("bytes_to_device", "bytes_to_host"))
    return tuple(sorted(names))


def _left_to_host(rehearsed: Rehearsed | None) -> tuple[tuple[str, int], ...]:
    return () if rehearsed is None else tuple(sorted(rehearsed.rehearsal.refused.items()))


EXPLAIN = explain
