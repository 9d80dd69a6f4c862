"""Estimates of reads, made from their plans and codecs without reading stored values.

1. The plan gives chunks, stored values and the bytes returned, all exactly.
2. The refiners give the parts of stored values that are fetched: byte ranges of uncompressed
   chunks follow from the plan; inner chunks of shards from indices, which the read fetches first.
3. The codecs give the decoders, and the reason if the host decodes for a device.
4. Bounds of the read's statistics follow. They are wide where stored bytes decide: which chunks are
   stored, how long they are compressed, and whether a device takes their headers.

``import gpustore`` does not load this module, which imports the device path: it is found by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from gpustore.backends.decoders import GpuDecoders, decoder_of
from gpustore.backends.device import DeviceBackend
from gpustore.backends.device.direct_read import direct_unsupported_reason
from gpustore.backends.selection import missing_for_cuda
from gpustore.codec_chain.chain import CodecChain
from gpustore.codec_chain.decoder_choice import Choice
from gpustore.device.protocol import Decoders, DecoderState
from gpustore.explain.explanation import Bounds, CodecPath, Explanation, SubmissionSizes
from gpustore.pipelines.chunked_array import ChunkedArray, decoder_choice
from gpustore.pipelines.fetch import GAP_NBYTES
from gpustore.pipelines.native_fill import fetches_whole
from gpustore.pipelines.read import chunks_of
from gpustore.planning.chunk_plan import ChunkPlan
from gpustore.planning.copy_plan import CopyPlan
from gpustore.sharding.refiner import RawBytesRefiner

GROUP_NBYTES = 256 << 10
"""Bytes that the native core reads at once of an uncompressed chunk."""

Plans = Sequence[tuple[ChunkedArray, ChunkPlan]] | Sequence[tuple[ChunkedArray, CopyPlan]]

_NONE = Bounds(0, 0)

_CACHED = "chunks are cached whole"


def estimate(
    array: ChunkedArray, plans: Plans, shapes: Sequence[tuple[int, ...]], *, together: int = 1
) -> Explanation:
    """Estimate one read, or reads or crops that share their chunks.

    Parameters
    ----------
    array : ChunkedArray
        Array that reads use (:meth:`~gpustore.pipelines.chunked_array.ChunkedArray.reader`).
    plans : sequence of (ChunkedArray, plan)
        Plans of the read, one for each chunk shape.
    shapes : sequence of tuple of int
        Shapes of the arrays that are filled, in elements.
    together : int
        Number of reads or crops that share the chunks.
    """
    choice = decoder_choice(plans)
    is_chosen = choice is not None and choice.by_host
    counter = choice.counter if choice is not None else None
    if choice is not None and is_chosen:
        array = array.for_host(choice.reason)
    chain = (array.stored or array).chain
    sums = [_needed(one, plan) for one, plan in plans]
    device = device_of(array)
    decoders = None if device is None else device.driven
    host_reason = state = None
    if decoders is not None:
        state = library_of(chain, decoders)
        host_reason = chain.unsupported_reason(decoders)
    direct_reason = _direct_reason(array, max((one.longest for one in sums), default=0))
    gpu = GpuDecoders(has_nvcomp=True, has_image_library=True)
    gpu_reason = chain.unsupported_reason(gpu)
    on_host = decoders is None
    return Explanation(
        device=array.backend.device,
        shape=shapes[0] if len(set(shapes)) == 1 else None,
        arrays=len(shapes),
        together=together,
        dtype=array.dtype.name,
        chunk_shape=array.chunk_shape,
        chunks=sum(one.chunks for one in sums),
        values=sum(one.values for one in sums),
        bytes_returned=array.dtype.itemsize * sum(map(math.prod, shapes)),
        chunk_nbytes=chain.layout.nbytes,
        refined_by=_refined_by(array),
        codecs=codec_paths(chain, None if host_reason else decoders),
        host_reason=host_reason,
        library=None if state is None else state.engine,
        shortcoming=None if state is None else state.shortcoming,
        device_reason=None if choice is None or is_chosen else choice.reason,
        submission=_submission(device, plans, choice) if device and plans else None,
        direct_reason=direct_reason,
        counts=MappingProxyType(
            {
                **_counts(array, sums, len(shapes), host_reason, direct_reason),
                **dict.fromkeys(("few_stream_reads", "missing_decoder_reads"), _NONE),
                **({} if counter is None else {counter: Bounds(1, 1)}),
            }
        ),
        gpu=codec_paths(chain, None if gpu_reason else gpu) if on_host else (),
        gpu_reason=gpu_reason if on_host else None,
        gpu_missing=tuple(missing_for_cuda()) if on_host else (),
    )


def library_of(chain: CodecChain, decoders: Decoders) -> DecoderState | None:
    """Return the state of the library of a device that `chain` needs, None if it needs none."""
    for stage in chain.stages:
        if stage.image_format is not None:
            return decoders.image_decoder(stage.image_format)
        if stage.device_codec is not None:
            return decoders.decoders()
    return None


def device_of(array: ChunkedArray) -> DeviceBackend | None:
    """Return the backend of an array on a device, None for one in host memory."""
    backend: Any = array.backend
    return backend if isinstance(backend, DeviceBackend) else None


def _submission(device: DeviceBackend, plans: Plans, choice: Choice | None) -> SubmissionSizes:
    """Return the most that a submission of a read has."""
    chunks = chunks_of(plans)
    if choice is not None and choice.by_host:
        chunks = [one._replace(chain=one.chain.for_host(choice.reason)) for one in chunks]
    extent = device.extent(tuple(chunks), plans[0][0].limits)
    stored_nbytes = min(extent.buffer_rows * extent.value_nbytes, extent.values_nbytes)
    return SubmissionSizes(extent.buffer_rows, stored_nbytes, extent.device_nbytes)


class _Needed(NamedTuple):
    """Stored data that one plan needs.

    Attributes
    ----------
    chunks, values : int
        Number of chunks, and of stored values they are in.
    reads : Bounds
        Number of reads of keys.
    fetched, decoded : Bounds
        Encoded and decoded bytes.
    longest : int
        Most bytes that are fetched for one chunk.
    """

    chunks: int
    values: int
    reads: Bounds
    fetched: Bounds
    decoded: Bounds
    longest: int


def _needed(array: ChunkedArray, plan: ChunkPlan | CopyPlan) -> _Needed:
    stored = array.stored or array
    is_cached = array.stored is not None
    chunks, values = len(plan), plan.objects
    chain, levels = stored.chain, stored.levels
    decoded, longest = _ranges(stored, plan)
    least, most = decoded
    if not chain.is_raw:
        longest = chain.encoded_bound
        least, most = 0, None if chain.objects else chunks * longest
    fewest_reads, reads = chunks, chunks
    if levels:
        # The index of a shard is read once, or once for each part of a plan of few shards; those
        # of shards in shards at most once for each chunk. Ranges close together are one read.
        parts = array.parts(plan) if isinstance(plan, ChunkPlan) else 1
        if stored.native is not None:
            # The core cuts a plan into 8 parts a thread; most parts of a shard find it open.
            parts = -(-8 * array.executor.limit // max(1, values))
        indices = values * parts if parts > values or stored.native is not None else values
        if is_cached:
            indices = chunks
        fewest_reads, reads = values, indices + chunks * len(levels)
        if most is not None:
            most += indices * levels[0].index.nbytes + (chunks - values) * GAP_NBYTES
            most += chunks * sum(level.index.nbytes for level in levels[1:])
    if is_cached:
        # What is there is not read; if it may have changed, its generation is asked for.
        fewest_reads, reads = 0, reads + chunks
    if is_cached or array.fill_missing:
        decoded = Bounds(0, decoded.most)
        least = 0
    # The native core leaves out gaps in long spans.
    gaps = stored.native is not None and longest > GROUP_NBYTES
    fetched = Bounds(0 if levels or gaps else least, most)
    return _Needed(chunks, values, Bounds(fewest_reads, reads), fetched, decoded, longest)


def _ranges(array: ChunkedArray, plan: ChunkPlan | CopyPlan) -> tuple[Bounds, int]:
    """Bound the bytes decoded of all chunks; also return the most of one chunk."""
    nbytes = array.chain.layout.nbytes
    refiner = array.refiners[-1] if array.refiners else None
    if not isinstance(refiner, RawBytesRefiner):
        return Bounds(len(plan) * nbytes, len(plan) * nbytes), nbytes
    narrows = array.native is not None
    is_short = array.native_staging is not None and fetches_whole(array.chain)
    if narrows and isinstance(plan, CopyPlan):
        spans = plan.region_spans(refiner.itemsize)
    else:
        spans = plan.spans(refiner.itemsize)
    all_whole = all(is_whole for _, is_whole in spans)
    least = most = longest = 0
    for (span, is_whole), count in spans.items():
        # At the array's edge whole chunks may be narrowed too, beside others that are not whole.
        # The native core narrows each of them by itself.
        part = nbytes if all_whole and not narrows else refiner.part_nbytes(span)
        largest = nbytes if (is_whole or is_short) and not narrows else part
        longest = max(longest, largest)
        least += count * part
        most += count * largest
    return Bounds(least, most), longest


def _counts(
    array: ChunkedArray,
    sums: Sequence[_Needed],
    reads: int,
    host_reason: str | None,
    direct_reason: str | None,
) -> dict[str, Bounds]:
    """Bound the counters of the read, by the names of :data:`gpustore.statistics`."""
    chunks = sum(one.chunks for one in sums)
    fetched = _sum([one.fetched for one in sums])
    decoded = _sum([one.decoded for one in sums])
    maybe = Bounds(0, chunks)
    by_device = by_host = _NONE
    if array.chain.objects is not None:
        by_host = maybe  # If they were opened for a device, which cannot hold them.
    elif device_of(array) is not None:
        all_by_host = host_reason is not None and array.stored is None
        by_host = maybe if array.fill_missing or not all_by_host else Bounds(chunks, chunks)
        by_device = _NONE if host_reason or array.chain.is_raw else maybe
    return {
        "reads": Bounds(reads, reads),
        "chunks_planned": Bounds(chunks, chunks),
        "chunks_missing": maybe if array.fill_missing else _NONE,
        "key_reads": _sum([one.reads for one in sums]),
        "bytes_fetched": fetched,
        "bytes_decoded": decoded,
        "cache_hits": _NONE if array.cache is None else maybe,
        "device_cache_hits": maybe if array.is_resident else _NONE,
        "device_cache_misses": maybe if array.is_resident else _NONE,
        "device_cache_bytes": _NONE if not array.is_resident else Bounds(0, decoded.most),
        "chunks_decoded_device": by_device,
        "host_fallbacks": by_host,
        "bytes_direct": _NONE if direct_reason else Bounds(0, fetched.most),
    }


def _sum(bounds: Sequence[Bounds]) -> Bounds:
    most = [one.most for one in bounds if one.most is not None]
    return Bounds(sum(one.least for one in bounds), sum(most) if len(most) == len(bounds) else None)


def _direct_reason(array: ChunkedArray, longest: int) -> str | None:
    """Return the reason against reads from files into device memory; None if there may be some."""
    device, store = device_of(array), array.store
    if device is None:
        return "the array is in host memory"
    if array.stored is not None:
        return _CACHED
    if not store.locates_files:
        return f"values of {store.id} are in no files of their own"
    reason = device.direct_unsupported_reason(array.chain) or device.files.unsupported_reason
    if reason or array.levels:  # Inner chunks that lie close together are one read.
        return reason
    file_nbytes = array.chain.encoded_bound if store.base is None else None
    return direct_unsupported_reason(nbytes=longest, file_nbytes=file_nbytes)


def _refined_by(array: ChunkedArray) -> tuple[str, ...]:
    shards = ("shard index",) * len(array.levels)
    if array.stored is not None:
        device = ("device cache",) * array.is_resident
        return (*device, *("cache",) * (array.cache is not None), *shards)
    if array.refiners and isinstance(array.refiners[-1], RawBytesRefiner):
        return (*shards, "byte range")
    return (*shards, "block") if array.chain.decodes_parts and not device_of(array) else shards


def codec_paths(chain: CodecChain, decoders: Decoders | None) -> tuple[CodecPath, ...]:
    """Return who decodes each codec of a chain: a device, or the host if that is None."""
    return tuple(
        CodecPath(stage.name, "host" if decoders is None else decoder_of(stage, decoders))
        for stage in reversed(chain.stages)
    )


EXPLAIN = estimate
