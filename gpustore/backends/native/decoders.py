"""Finds functions of other installed libraries that the native core calls by address.

Extension modules of numcodecs, google-crc32c and deflate export the C functions of the libraries
inside them, or link shared libraries that do: ``dlsym`` finds the same names in both cases. The
packages need not be imported for that, and are not: numcodecs imports all of its codecs. Of
libdeflate conda has the shared library alone. A function that is not found has the address 0, and
what needs it is done in Python.
"""

from __future__ import annotations

import ctypes
from functools import cache

from gpustore import registry
from gpustore.codecs import libdeflate

# Library -> its functions, in the order of `Functions` in kernels/host/functions.h.
_FUNCTIONS = {
    "blosc": (
        "blosc_decompress_ctx",
        "blosc_compress_ctx",
    ),
    "zstd": (
        "ZSTD_createDCtx",
        "ZSTD_freeDCtx",
        "ZSTD_decompressDCtx",
        "ZSTD_getFrameContentSize",
        "ZSTD_findFrameCompressedSize",
        "ZSTD_createCCtx",
        "ZSTD_freeCCtx",
        "ZSTD_CCtx_setParameter",
        "ZSTD_compress2",
    ),
    "lz4": ("LZ4_decompress_safe", "LZ4_compress_fast"),
    "libdeflate": (
        "libdeflate_alloc_decompressor",
        "libdeflate_free_decompressor",
        "libdeflate_gzip_decompress_ex",
        "libdeflate_zlib_decompress_ex",
        "libdeflate_alloc_compressor",
        "libdeflate_free_compressor",
        "libdeflate_gzip_compress",
        "libdeflate_zlib_compress",
    ),
    "crc32c": ("crc32c_extend",),
}

# Codec -> the library that has its functions.
_LIBRARIES = {
    "blosc": "blosc",
    "zstd": "zstd",
    "lz4": "lz4",
    "gzip": "libdeflate",
    "zlib": "libdeflate",
    "crc32c": "crc32c",
}


def addresses(*codecs: str) -> dict[str, int]:
    """Return the addresses of functions for some codecs, found at the first use of each codec.

    Parameters
    ----------
    *codecs : str
        Names of codecs; those the core does not have are ignored.

    Returns
    -------
    dict of str to int
        All members of ``Functions`` in ``kernels/host/functions.h``, in its order; 0 for
        functions that are not found and for those of other codecs.
    """
    found = {name: 0 for names in _FUNCTIONS.values() for name in names}
    for codec in codecs:
        if codec in _LIBRARIES:
            found |= _find(_LIBRARIES[codec])
    return found


def decodes(*codecs: str) -> bool:
    """Return whether the core has all functions of some codecs; ``"raw"`` needs none."""
    return all(
        codec == "raw" or (codec in _LIBRARIES and all(_find(_LIBRARIES[codec]).values()))
        for codec in codecs
    )


def decodable() -> tuple[str, ...]:
    """Return the codecs whose functions are all found, with ``"raw"`` for values without one."""
    return ("raw", *filter(decodes, _LIBRARIES))


@cache
def _find(library: str) -> dict[str, int]:
    """Return the addresses of a library's functions; what ctypes loads stays loaded."""
    names = _FUNCTIONS[library]
    try:
        loaded = ctypes.CDLL(_path(library))
    except (ImportError, OSError):
        return dict.fromkeys(names, 0)
    return {name: _address(loaded, name) for name in names}


def _path(library: str) -> str:
    """Return the path of a library, or of the extension module that has it inside."""
    if library == "libdeflate":
        return libdeflate.path()
    if library == "crc32c":
        return registry.file_of("google_crc32c._crc32c")
    return registry.file_of(f"numcodecs.{library}")


def _address(loaded: ctypes.CDLL, name: str) -> int:
    try:
        return ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0
