"""libdeflate: finds the library, and encodes gzip and zlib streams with it.

The Python package ``deflate`` has the library inside; conda-forge has the library alone, so it is
called by ctypes. The native core calls the same functions by address, and stores the same bytes.

Source: ``libdeflate.h`` of libdeflate 1.20.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from gpustore.errors import UnsupportedError
from gpustore.runtime.buffer import Buffer

CONDA_NAME: Final = "libdeflate.0.dylib" if sys.platform == "darwin" else "libdeflate.so.0"
"""File name of the library in the folder ``lib`` of an environment of conda."""


def path() -> str:
    """Return the path of the library, or of the extension module that has it inside."""
    try:
        from deflate import _deflate
    except ImportError:
        return str(Path(sys.prefix, "lib", CONDA_NAME))
    found: str = _deflate.__file__
    return found


def compress(name: str, decoded: Buffer, level: int, nbytes_max: int) -> bytes:
    """Encode one stream. The GIL is released meanwhile.

    Parameters
    ----------
    name : str
        ``"gzip"``, without time and file name in the header, or ``"zlib"``.
    decoded : Buffer
        Contiguous.
    level : int
        0 (stored) to 12.
    nbytes_max : int
        Upper bound of the encoded bytes.

    Raises
    ------
    UnsupportedError
        If the library is not there.
    """
    if _encoders.last is None or _encoders.last.level != level:
        _encoders.last = _Encoder(level)
    return _encoders.last.compress(name, decoded, nbytes_max)


class _Encoder:
    """Context of libdeflate for one level, for one thread at a time."""

    def __init__(self, level: int) -> None:
        self.level = level
        self._library = _library()
        self._context = self._library.libdeflate_alloc_compressor(level)
        if not self._context:
            raise MemoryError

    def compress(self, name: str, decoded: Buffer, nbytes_max: int) -> bytes:
        source = np.frombuffer(decoded, np.uint8)
        encoded = np.empty(nbytes_max, np.uint8)
        function = getattr(self._library, f"libdeflate_{name}_compress")
        nbytes = function(
            self._context, source.ctypes.data, source.size, encoded.ctypes.data, encoded.size
        )
        assert nbytes, "the bound is too small"
        return encoded[:nbytes].tobytes()

    def __del__(self) -> None:
        if hasattr(self, "_context"):
            self._library.libdeflate_free_compressor(self._context)


class _Encoders(threading.local):
    """Encoder of the last level that this thread has used: it has up to a megabyte of memory."""

    last: _Encoder | None = None


_encoders = _Encoders()


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path())
        library.libdeflate_alloc_compressor.argtypes = (ctypes.c_int,)
        library.libdeflate_alloc_compressor.restype = ctypes.c_void_p
        library.libdeflate_free_compressor.argtypes = (ctypes.c_void_p,)
        library.libdeflate_free_compressor.restype = None
        for function in (library.libdeflate_gzip_compress, library.libdeflate_zlib_compress):
            bytes_, size = ctypes.c_void_p, ctypes.c_size_t
            function.argtypes = (ctypes.c_void_p, bytes_, size, bytes_, size)
            function.restype = ctypes.c_size_t
    except (OSError, AttributeError) as error:
        raise UnsupportedError(
            f"gzip and zlib are encoded by libdeflate, which was not found: {error}; install the "
            f"package deflate"
        ) from error
    return library
