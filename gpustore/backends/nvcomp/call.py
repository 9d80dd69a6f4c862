"""Calls of nvcomp's batched C functions: functions and arguments, by the names in the headers.

Nothing here calls anything, so that all of it is tested without a GPU.
"""

from __future__ import annotations

import ctypes
from typing import Any

from gpustore.backends.nvcomp.abi import FORMATS, ROWS, Options
from gpustore.device.protocol import CodecBatch

_BACKEND_CUDA = 2
"""Decoding by CUDA even if there is a decompression engine, which checks nothing."""

Call = tuple[str, dict[str, Any]]
"""A function and its arguments, by name."""


def options(major: int, verb: str, codec: str) -> Options:
    """Options of ``"compress"`` or ``"decompress"`` for one version of the library."""
    if verb == "decompress":
        return Options(_BACKEND_CUDA)
    return Options(ROWS[major][2].get(codec, 0))


def alignments(major: int, codec: str, found: int) -> Call:
    """Ask for the alignments of decoding; `found` is the address of an ``Alignments``."""
    return f"nvcompBatched{FORMATS[codec]}DecompressGetRequiredAlignments", {
        "decompress_opts": options(major, "decompress", codec),
        "alignment_requirements": found,
    }


def temp_nbytes(
    major: int, verb: str, codec: str, count: int, longest: int, total: int, found: int
) -> Call:
    """Ask how much scratch memory is needed; `found` is the address of a ``size_t``."""
    suffix, takes_stream, _ = ROWS[major]
    arguments = {
        "num_chunks": count,
        "max_uncompressed_chunk_bytes": longest,
        f"{verb}_opts": options(major, verb, codec),
        "temp_bytes": found,
        "max_total_uncompressed_bytes": total,
    }
    if takes_stream:
        arguments["stream"] = None
    return f"nvcompBatched{FORMATS[codec]}{verb.capitalize()}{suffix}", arguments


def bound(major: int, codec: str, max_nbytes: int, found: int) -> Call:
    """Ask how long an encoded stream may be; `found` is the address of a ``size_t``."""
    return f"nvcompBatched{FORMATS[codec]}CompressGetMaxOutputChunkSize", {
        "max_uncompressed_chunk_bytes": max_nbytes,
        "compress_opts": options(major, "compress", codec),
        "max_compressed_chunk_bytes": found,
    }


def decompress(major: int, batch: CodecBatch, stream: int) -> Call:
    """Return the call that decodes a batch of streams in device memory on CUDA stream `stream`."""
    column = ctypes.sizeof(ctypes.c_size_t) * len(batch)
    return f"nvcompBatched{FORMATS[batch.codec]}DecompressAsync", {
        "device_compressed_chunk_ptrs": batch.table,
        "device_compressed_chunk_bytes": batch.table + column,
        "device_uncompressed_chunk_ptrs": batch.table + 2 * column,
        "device_uncompressed_buffer_bytes": batch.table + 3 * column,
        "device_uncompressed_chunk_bytes": batch.result,
        "device_statuses": batch.result + column,
        "num_chunks": len(batch),
        "device_temp_ptr": batch.temp or None,
        "temp_bytes": batch.temp_nbytes,
        "decompress_opts": options(major, "decompress", batch.codec),
        "stream": stream,
    }


def compress(major: int, batch: CodecBatch, stream: int) -> Call:
    """Return the call that encodes a batch of values in device memory on CUDA stream `stream`."""
    column = ctypes.sizeof(ctypes.c_size_t) * len(batch)
    return f"nvcompBatched{FORMATS[batch.codec]}CompressAsync", {
        "device_uncompressed_chunk_ptrs": batch.table,
        "device_uncompressed_chunk_bytes": batch.table + column,
        "device_compressed_chunk_ptrs": batch.table + 2 * column,
        "device_compressed_chunk_bytes": batch.result,
        "device_statuses": batch.result + column,
        "max_uncompressed_chunk_bytes": int(batch.src.nbytes.max()),
        "num_chunks": len(batch),
        "device_temp_ptr": batch.temp or None,
        "temp_bytes": batch.temp_nbytes,
        "compress_opts": options(major, "compress", batch.codec),
        "stream": stream,
    }
