"""Tables by which a device decodes Blosc frames that are alike, written by the native core."""

from __future__ import annotations

import ctypes
from array import array as numbers
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.native.job import address_of
from gpustore.device.headers import FrameColumns

Integers = NDArray[np.int64]

_COUNTS: Final = 15
"""Number of the first count in struct ``FrameStreams`` of ``kernels/host/job.h``."""


class NativeFrameTables:
    """Implements :class:`gpustore.device.encoded_columns.FrameTables`.

    Parameters
    ----------
    core : ctypes.CDLL
    frames, address, rows, pitch, alignment
        See :meth:`gpustore.device.encoded_columns.HeaderReader.frame_tables`.
    """

    def __init__(
        self,
        core: Any,
        frames: FrameColumns,
        address: NDArray[np.uint64],
        rows: Integers,
        pitch: int,
        alignment: int,
    ) -> None:
        self._core = core
        address, rows = np.ascontiguousarray(address), np.ascontiguousarray(rows)
        parts = [
            one if one.strides[1] == 8 else np.ascontiguousarray(one)
            for one in (frames.heads, frames.blocks, frames.streams)
        ]
        self._kept = parts, address, rows
        columns = [number for one in parts for number in (address_of(one), one.strides[0] // 8)]
        sizes = [one.shape[1] for one in parts]
        places = address_of(address), address_of(rows), 0, 0, pitch, alignment
        self._struct = numbers("q", (*sizes, *columns, *places, *(0,) * 12))
        self.blocks = sizes[1]
        self.are_alike = bool(core.gpustore_core_count_frames(self._struct.buffer_info()[0]))
        counts = self._struct[_COUNTS : _COUNTS + 8]
        self.code, self.typesize, self.shuffle, self.compressed, self.stored = counts[:5]
        self.most_nbytes, self.copy_blocks, self.shuffle_blocks = counts[5:]

    def write(
        self,
        decoded: int,
        joined: int,
        table: NDArray[np.uint8],
        copies: NDArray[np.uint8],
        shuffled: NDArray[np.uint8],
    ) -> Integers:
        owner = np.empty((2, self.compressed), np.int64)
        self._struct[11:13] = numbers("q", (decoded, joined))
        places = [address_of(one) for one in (table, owner, copies, shuffled)]
        self._struct[_COUNTS + 8 :] = numbers("q", places)
        self._core.gpustore_core_write_frames(self._struct.buffer_info()[0])
        return owner


def declare(core: Any) -> None:
    """Tell ctypes the types of the functions of the core."""
    core.gpustore_core_count_frames.argtypes = (ctypes.c_void_p,)
    core.gpustore_core_count_frames.restype = ctypes.c_int64
    core.gpustore_core_write_frames.argtypes = (ctypes.c_void_p,)
    core.gpustore_core_write_frames.restype = None
