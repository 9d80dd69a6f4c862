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

_COUNTS: Final = 8
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
        parts = numbers("q")
        kept: list[Any] = [address, rows, parts]
        for part in frames.parts:
            columns = [
                one if one.strides[1] == 8 else np.ascontiguousarray(one)
                for one in (part.heads, part.blocks, part.streams)
            ]
            kept += columns
            parts.extend([one.shape[1] for one in columns])
            for one in columns:
                parts.extend((address_of(one[0]), one.strides[0] // 8))
        self._kept = kept
        places = address_of(address), address_of(rows), 0, 0, pitch, alignment
        here = len(frames.parts), parts.buffer_info()[0]
        self._struct = numbers("q", (*here, *places, *(0,) * 13))
        self.are_alike = bool(core.gpustore_core_count_frames(self._struct.buffer_info()[0]))
        counts = self._struct[_COUNTS : _COUNTS + 9]
        self.code, self.typesize, self.shuffle, self.compressed, self.stored = counts[:5]
        self.blocks, self.most_nbytes, self.copy_blocks, self.shuffle_blocks = counts[5:]

    def write(self, decoded: int, joined: int, memory: NDArray[np.uint8]) -> Integers:
        owner = np.empty((2, self.compressed), np.int64)
        self._struct[4:6] = numbers("q", (decoded, joined))
        copies = address_of(memory)
        table = copies + 32 * self.stored
        places = table, address_of(owner), copies, table + 32 * self.compressed
        self._struct[_COUNTS + 9 :] = numbers("q", places)
        self._core.gpustore_core_write_frames(self._struct.buffer_info()[0])
        return owner


def declare(core: Any) -> None:
    """Tell ctypes the types of the functions of the core."""
    core.gpustore_core_count_frames.argtypes = (ctypes.c_void_p,)
    core.gpustore_core_count_frames.restype = ctypes.c_int64
    core.gpustore_core_write_frames.argtypes = (ctypes.c_void_p,)
    core.gpustore_core_write_frames.restype = None
