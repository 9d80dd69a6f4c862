"""Headers of encoded values, read by the native core before a device decodes them."""

from __future__ import annotations

import ctypes
from array import array as numbers
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.native.job import address_of
from gpustore.backends.native.library import library
from gpustore.codec_chain.chain import CodecChain

Integers = NDArray[np.int64]

_HEADS = 8
"""Columns that the core has for Blosc frames: the last two are numbers of blocks and streams."""


class NativeHeaders:
    """Implements :class:`gpustore.device.encoded_columns.HeaderReader`."""

    def __init__(self, core: Any) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        core.gpustore_core_zstd_frames.argtypes = (pointer, pointer)
        core.gpustore_core_zstd_frames.restype = None
        core.gpustore_core_blosc_heads.argtypes = (pointer, number, number, pointer)
        core.gpustore_core_blosc_heads.restype = None
        core.gpustore_core_blosc_streams.argtypes = (*(pointer,) * 3, number, pointer, number)
        core.gpustore_core_blosc_streams.restype = None
        self._core = core

    def zstd_frames(self, data: NDArray[np.uint8], start: Integers, nbytes: Integers) -> Integers:
        content = np.empty(len(start), np.int64)
        start, nbytes, frames = _encoded(data, start, nbytes)
        self._core.gpustore_core_zstd_frames(frames.buffer_info()[0], address_of(content))
        return content

    def blosc_frames(
        self,
        data: NDArray[np.uint8],
        start: Integers,
        nbytes: Integers,
        decoded_max: int,
        *,
        exact: bool,
    ) -> tuple[Integers, Integers, Integers]:
        heads = np.empty((_HEADS, len(start)), np.int64)
        start, nbytes, frames = _encoded(data, start, nbytes)
        at = frames.buffer_info()[0]
        self._core.gpustore_core_blosc_heads(at, decoded_max, exact, address_of(heads))
        block_count, stream_count = heads[-2:].sum(axis=1).tolist()
        blocks = np.zeros((3, block_count), np.int64)
        streams = np.zeros((5, stream_count), np.int64)
        self._core.gpustore_core_blosc_streams(
            *(at, address_of(heads), address_of(blocks), block_count),
            *(address_of(streams), stream_count),
        )
        return heads[:-2], blocks, streams


def _encoded(
    data: NDArray[np.uint8], start: Integers, nbytes: Integers
) -> tuple[Integers, Integers, numbers[int]]:
    """Return contiguous columns, and struct ``Encoded`` of ``kernels/host/job.h`` of them."""
    start, nbytes = np.ascontiguousarray(start), np.ascontiguousarray(nbytes)
    columns = address_of(start), address_of(nbytes)
    return start, nbytes, numbers("q", (address_of(data), len(data), len(start), *columns))


def behind_frame(chain: CodecChain) -> int | None:
    """Return the bytes behind the Zstandard frame that a value is, None if it is no frame."""
    codecs = [stage.native_codec for stage in chain.stages]
    if codecs[-1:] == ["zstd"]:
        return 0
    return 4 if codecs[-2:] == ["zstd", "crc32c"] else None


@cache
def header_reader() -> NativeHeaders | None:
    """Return the reader, None without the native core."""
    core = library()
    return None if core is None else NativeHeaders(core)
