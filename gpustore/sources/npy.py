"""Arrays in NumPy's files ``.npy``, mapped into memory.

Format: ``numpy.lib.format``, https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import tokenize

import numpy as np

from gpustore.errors import CopyError
from gpustore.sources.base import FileFormat, Source


def _matches(begin: bytes) -> bool:
    return begin.startswith(b"\x93NUMPY")


def _open(path: str, part: str | None) -> Source:
    if part is not None:
        raise CopyError(f"{path} holds one array: leave out ::{part}")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OverflowError, tokenize.TokenError) as error:
        raise CopyError(f"{path} cannot be copied: {error}") from error
    return Source(array.shape, array.dtype, array.__getitem__)


FORMAT = FileFormat(_matches, _open)
