"""Structs and prototypes of nvcomp's C functions for ctypes, for each version.

C has no names for what it passes, so one wrong type here would be a crash on a GPU. A test compares
all of this with the headers in the wheels of 5.2 and 6.0.

Source: nvcomp 5.2 and 6.0, ``nvcomp/{lz4,snappy,zstd,deflate,gzip,shared_types}.h``.
"""

from __future__ import annotations

import ctypes
from typing import Any


class Options(ctypes.Structure):
    """Options of any codec: all zero but the first word."""

    _fields_ = (("first", ctypes.c_int32), ("reserved", ctypes.c_int32 * 15))


class Alignments(ctypes.Structure):
    """``nvcompAlignmentRequirements_t``."""

    _fields_ = (
        ("input", ctypes.c_size_t),
        ("output", ctypes.c_size_t),
        ("temp", ctypes.c_size_t),
    )


class Properties(ctypes.Structure):
    """``nvcompProperties_t``."""

    _fields_ = (("version", ctypes.c_uint32), ("cudart_version", ctypes.c_uint32))


_POINTER = ctypes.c_void_p
_SIZE = ctypes.c_size_t

Prototype = dict[str, Any]
"""Types of the arguments of a function, in order, by the names in the header."""

_TEMP_SIZE: Prototype = {
    "num_chunks": _SIZE,
    "max_uncompressed_chunk_bytes": _SIZE,
    "{verb}_opts": Options,
    "temp_bytes": _POINTER,
    "max_total_uncompressed_bytes": _SIZE,
}

_OF_EACH_CODEC: dict[str, Prototype] = {
    "DecompressGetRequiredAlignments": {
        "decompress_opts": Options,
        "alignment_requirements": _POINTER,
    },
    "DecompressAsync": {
        "device_compressed_chunk_ptrs": _POINTER,
        "device_compressed_chunk_bytes": _POINTER,
        "device_uncompressed_buffer_bytes": _POINTER,
        "device_uncompressed_chunk_bytes": _POINTER,
        "num_chunks": _SIZE,
        "device_temp_ptr": _POINTER,
        "temp_bytes": _SIZE,
        "device_uncompressed_chunk_ptrs": _POINTER,
        "decompress_opts": Options,
        "device_statuses": _POINTER,
        "stream": _POINTER,
    },
    "CompressGetMaxOutputChunkSize": {
        "max_uncompressed_chunk_bytes": _SIZE,
        "compress_opts": Options,
        "max_compressed_chunk_bytes": _POINTER,
    },
    "CompressAsync": {
        "device_uncompressed_chunk_ptrs": _POINTER,
        "device_uncompressed_chunk_bytes": _POINTER,
        "max_uncompressed_chunk_bytes": _SIZE,
        "num_chunks": _SIZE,
        "device_temp_ptr": _POINTER,
        "temp_bytes": _SIZE,
        "device_compressed_chunk_ptrs": _POINTER,
        "device_compressed_chunk_bytes": _POINTER,
        "compress_opts": Options,
        "device_statuses": _POINTER,
        "stream": _POINTER,
    },
}

FORMATS = {"lz4": "LZ4", "snappy": "Snappy", "zstd": "Zstd", "deflate": "Deflate", "gzip": "Gzip"}

NO_NVCOMP = (
    "nvcomp's C library is not installed (python -m pip install 'gpustore[cuda13]', or [cuda12] "
    "for a driver of CUDA 12)"
)

_MIB, _GIB = 1 << 20, 1 << 30

# Longest streams to decode and to encode, as the headers give them.
LARGEST = {
    "lz4": (4 * _GIB - 1, 16 * _MIB),
    "snappy": (2 * _GIB - 1, 16 * _MIB),
    "zstd": (2 * _GIB - 1, 2 * _GIB - 1),
    "deflate": (4 * _GIB - 1, 2 * _GIB),
    "gzip": (4 * _GIB - 1, 2 * _GIB),
}

DETECTS_DAMAGE = ("lz4",)
"""Codecs with a promised status for damaged streams, if CUDA decodes and not the engine."""

# Version of the library (major) -> how the query of scratch memory is called, and whether it
# takes a stream; first word of the options to compress where that is not zero.
ROWS: dict[int, tuple[str, bool, dict[str, int]]] = {
    5: ("GetTempSizeAsync", False, {"deflate": 1}),
    6: ("GetTempSize", True, {"deflate": 1, "gzip": 1}),
}


def prototypes(major: int) -> dict[str, Prototype]:
    """Return the prototypes of the functions called in version `major`, by name."""
    suffix, takes_stream, _ = ROWS[major]
    found: dict[str, Prototype] = {}
    for name in FORMATS.values():
        for verb in ("compress", "decompress"):
            query = {argument.format(verb=verb): kind for argument, kind in _TEMP_SIZE.items()}
            if takes_stream:
                query["stream"] = _POINTER
            found[f"nvcompBatched{name}{verb.capitalize()}{suffix}"] = query
        for function, prototype in _OF_EACH_CODEC.items():
            found[f"nvcompBatched{name}{function}"] = prototype
    return found
