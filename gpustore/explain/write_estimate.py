"""Estimates of writes, made from their plans and codecs without reading stored values.

1. The plan gives chunks and stored values, and those of which only a part is written.
2. The codecs give the encoders, and the reason if the host encodes what is on a device; also the
   decoders of the chunks that are read first.
3. Bounds of the write's statistics follow. Stored bytes and elements decide the rest: which chunks
   are stored, how long they get, which equal the fill value, and what a device refuses.

``import gpustore`` does not load this module, which imports the device path: it is found by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from gpustore.backends.decoders import GpuDecoders, encoder_of
from gpustore.backends.selection import missing_for_cuda
from gpustore.codec_chain.chain import CodecChain
from gpustore.explain.estimate import codec_paths, device_of
from gpustore.explain.explanation import Bounds
from gpustore.explain.write_explanation import CodecEncoder, WriteExplanation
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.planning.chunk_plan import ChunkPlan

_NONE = Bounds(0, 0)


def estimate_write(
    array: ChunkedArray, plans: Sequence[tuple[ChunkedArray, ChunkPlan]], shape: tuple[int, ...]
) -> WriteExplanation:
    """Estimate one write.

    Parameters
    ----------
    array : ChunkedArray
        Array that writes use.
    plans : sequence of (ChunkedArray, plan)
        Plans of the write, one for each chunk shape.
    shape : tuple of int
        Shape of the array that is written, in elements.
    """
    chain = array.chain
    sums = [_changed(one, plan) for one, plan in plans]
    changed = _Changed(*map(sum, zip(*sums))) if sums else _Changed(0, 0, 0, 0, 0)
    backend = device_of(array)
    host_reason = decoder_reason = counter = state = shortcoming = None
    if backend is not None:
        host_reason = backend.encode_unsupported_reason(chain)
        if any(stage.device_codec is not None for stage in chain.stages):
            state = backend.driven.decoders()
            told = (state.shortcoming, *backend.encoder.codecs.shortcomings)
            shortcoming = "; ".join(filter(None, told)) or None
        if changed.read_chunks:
            choice = backend.choose_decoder([(chain, changed.read_chunks)], array.decode_rule)
            if choice is not None and choice.by_host:
                decoder_reason, counter = choice.reason, choice.counter
    driven = None if backend is None else backend.driven
    gpu = GpuDecoders(has_nvcomp=True, has_image_library=True)
    gpu_reason = chain.encode_unsupported_reason(gpu) if driven is None else None
    encodes = driven is not None and host_reason is None
    decoders = codec_paths(chain, None if decoder_reason else driven)
    return WriteExplanation(
        device=array.backend.device,
        shape=shape,
        dtype=array.dtype.name,
        chunk_shape=array.chunk_shape,
        chunks=changed.chunks,
        values=changed.values,
        read_chunks=changed.read_chunks,
        read_values=changed.read_values,
        bytes_written=array.dtype.itemsize * math.prod(shape),
        bytes_encoded=changed.nbytes,
        chunk_nbytes=chain.layout.nbytes,
        codecs=_encoders(chain, on_device=encodes),
        host_reason=host_reason,
        decoders=decoders if changed.read_chunks else (),
        decoder_reason=decoder_reason,
        library=None if state is None else state.engine,
        shortcoming=shortcoming,
        counts=MappingProxyType(
            _counts(array, changed, encodes=encodes, counter=counter, on_device=driven is not None)
        ),
        gpu=_encoders(chain, on_device=gpu_reason is None) if driven is None else (),
        gpu_reason=gpu_reason,
        gpu_missing=tuple(missing_for_cuda()) if driven is None else (),
    )


class _Changed(NamedTuple):
    """Chunks and stored values that a plan changes, those of them that it covers in part, and the
    decoded bytes of all these chunks.
    """

    chunks: int
    values: int
    read_chunks: int
    read_values: int
    nbytes: int


def _changed(array: ChunkedArray, plan: ChunkPlan) -> _Changed:
    whole_rows = whole_values = int(plan.format.dense)
    for one, groups in zip(plan.sets, plan.groups):
        whole = np.asarray(one.whole, np.bool_)
        whole_rows *= int(whole.sum())
        whole_values *= sum(
            bool(whole[lo:hi].all())
            and hi - lo == _rows_of_value(array, one.output_dimensions, one.cells, lo)
            for lo, hi in groups
        )
    chunks, values = len(plan), plan.objects
    nbytes = chunks * array.chain.layout.nbytes
    return _Changed(chunks, values, chunks - whole_rows, values - whole_values, nbytes)


def _rows_of_value(
    array: ChunkedArray, dimensions: Sequence[int], cells: Sequence[Sequence[int]], row: int
) -> int:
    """Count the chunks of a value along some dimensions, as far as they lie inside the array."""
    count = 1
    for d, column in zip(dimensions, cells):
        left = array.shape[d] - array.first_of_key(d, int(column[row]))
        count *= min(array.key_ratio[d], -(-left // array.chunk_shape[d]))
    return count


def _counts(
    array: ChunkedArray,
    changed: _Changed,
    *,
    encodes: bool,
    counter: str | None,
    on_device: bool,
) -> dict[str, Bounds]:
    """Bound the counters of the write, by the names of :data:`gpustore.statistics`."""
    chunks = Bounds(0, changed.chunks)
    read = Bounds(0, changed.read_chunks) if on_device else _NONE
    most = None if array.levels else changed.chunks * array.chain.encoded_bound
    few = Bounds(0, changed.read_chunks) if on_device and not array.chain.is_raw else _NONE
    return {
        "writes": Bounds(1, 1),
        "chunks_planned": Bounds(changed.chunks, changed.chunks),
        "key_reads": Bounds(changed.read_values, changed.read_values),
        "values_stored": Bounds(0, changed.chunks),
        "bytes_stored": Bounds(0, most),
        "chunks_encoded_device": chunks if encodes and not array.chain.is_raw else _NONE,
        "host_encodings": chunks if on_device else _NONE,
        "host_fallbacks": read,
        "few_stream_reads": _NONE if counter == "missing_decoder_reads" else few,
        "missing_decoder_reads": few if counter == "missing_decoder_reads" else _NONE,
    }


def _encoders(chain: CodecChain, *, on_device: bool) -> tuple[CodecEncoder, ...]:
    return tuple(
        CodecEncoder(stage.name, encoder_of(stage) if on_device else "host")
        for stage in chain.stages
    )


EXPLAIN = estimate_write
