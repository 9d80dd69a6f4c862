"""Tables by which a device decodes Blosc frames that are alike, written by the native core."""

from __future__ import annotations

import ctypes
from array import array as numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.native.job import address_of
from gpustore.device.headers import FrameColumns

Integers = NDArray[np.int64]

_OUTPUTS, _COUNTS, _PLACES = 4, 7, 19
"""Numbers in struct ``FrameStreams``: outputs, the first count, and the address of a table."""


class NativeFrameTables:
    """Implements :class:`gpustore.device.encoded_columns.FrameTables`.

    Parameters
    ----------
    core : ctypes.CDLL
    frames, address, rows
        See :meth:`gpustore.device.encoded_columns.HeaderReader.frame_tables`.
    """

    def __init__(
        self,
        core: Any,
        frames: FrameColumns,
        address: NDArray[np.uint64],
        rows: Integers,
    ) -> None:
        self._core = core
        address, rows = np.ascontiguousarray(address), np.ascontiguousarray(rows)
        parts = numbers("q")
        for part in frames.parts:
            parts.extend((part.rows, part.block_room, part.stream_room))
            parts.extend((part.block_count, part.stream_count, address_of(part.memory)))
        self._kept = frames, address, rows, parts
        places = address_of(address), address_of(rows)
        here = len(frames.parts), parts.buffer_info()[0]
        self._struct = numbers("q", (*here, *places, *(0,) * 19))
        self.are_alike = bool(core.gpustore_core_count_frames(self._struct.buffer_info()[0]))
        counts = self._struct[_COUNTS:_PLACES]
        self.nbytes, self.code, self.typesize, self.shuffle = counts[:4]
        self.compressed, self.stored, self.blocks, self.src_bits = counts[4:8]
        self.most_nbytes, self.total_nbytes, self.copy_blocks, self.shuffle_blocks = counts[8:]

    def write(self, decoded: int, joined: int, pitch: int, memory: NDArray[np.uint8]) -> Integers:
        owner = np.empty((2, self.compressed), np.int64)
        self._struct[_OUTPUTS:_COUNTS] = numbers("q", (decoded, joined, pitch))
        copies = address_of(memory)
        table = copies + 32 * self.stored
        places = table, address_of(owner), copies, table + 32 * self.compressed
        self._struct[_PLACES:] = numbers("q", places)
        self._core.gpustore_core_write_frames(self._struct.buffer_info()[0])
        return owner


def declare(core: Any) -> None:
    """Tell ctypes the types of the functions of the core."""
    core.gpustore_core_count_frames.argtypes = (ctypes.c_void_p,)
    core.gpustore_core_count_frames.restype = ctypes.c_int64
    core.gpustore_core_write_frames.argtypes = (ctypes.c_void_p,)
    core.gpustore_core_write_frames.restype = None
