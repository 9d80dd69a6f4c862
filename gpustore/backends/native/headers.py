"""Headers of encoded values, read by the native core before a device decodes them."""

from __future__ import annotations

import ctypes
from array import array as numbers
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.backends.native.frame_tables import NativeFrameTables, declare
from gpustore.backends.native.job import address_of
from gpustore.backends.native.library import library
from gpustore.codec_chain.chain import CodecChain
from gpustore.device.headers import (
    FRAME_HEADS,
    FrameColumns,
    FramePart,
    HeaderColumns,
    KnownHeaders,
)

Integers = NDArray[np.int64]


class NativeHeaders:
    """Implements :class:`gpustore.device.encoded_columns.HeaderReader`."""

    def __init__(self, core: Any) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        core.gpustore_core_zstd_frames.argtypes = (pointer, pointer)
        core.gpustore_core_zstd_frames.restype = None
        core.gpustore_core_blosc_heads.argtypes = (pointer, number, number, pointer)
        core.gpustore_core_blosc_heads.restype = None
        core.gpustore_core_blosc_streams.argtypes = (pointer, pointer)
        core.gpustore_core_blosc_streams.restype = None
        declare(core)
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
    ) -> FrameColumns:
        start, nbytes, frames = _encoded(data, start, nbytes)
        at, heads = frames.buffer_info()[0], FrameRoom(len(start))
        self._core.gpustore_core_blosc_heads(at, decoded_max, exact, heads.address)
        found = FrameRoom(len(start), *heads.heads[-2:].sum(axis=1).tolist())
        found.heads[:] = heads.heads
        self._core.gpustore_core_blosc_streams(at, found.address)
        return found.written

    def frame_tables(
        self, frames: FrameColumns, address: NDArray[np.uint64], rows: Integers
    ) -> NativeFrameTables | None:
        found = NativeFrameTables(self._core, frames, address, rows)
        return found if found.are_alike else None


class FrameRoom:
    """Struct ``FrameColumns`` of ``kernels/host/job.h``, and the memory for it.

    Parameters
    ----------
    count : int
        Number of frames.
    blocks, streams : int
        Number of blocks and of streams for which there is room; none is written so far.
    """

    def __init__(self, count: int, blocks: int = 0, streams: int = 0) -> None:
        self._memory = np.zeros(FRAME_HEADS * count + 3 * blocks + 5 * streams, np.int64)
        self._struct = numbers("q", (count, blocks, streams, 0, 0, address_of(self._memory)))

    @property
    def heads(self) -> Integers:
        """Columns of the heads."""
        return self.written.parts[0].heads

    @property
    def address(self) -> int:
        """Address of the struct."""
        return self._struct.buffer_info()[0]

    @property
    def written(self) -> FrameColumns:
        """Columns as far as they are written."""
        return FrameColumns([FramePart(self._memory, *self._struct[:-1])])


def _encoded(
    data: NDArray[np.uint8], start: Integers, nbytes: Integers
) -> tuple[Integers, Integers, numbers[int]]:
    """Return contiguous columns, and struct ``Encoded`` of ``kernels/host/job.h`` of them."""
    start, nbytes = np.ascontiguousarray(start), np.ascontiguousarray(nbytes)
    columns = address_of(start), address_of(nbytes)
    return start, nbytes, numbers("q", (address_of(data), len(data), len(start), *columns))


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames that values are, whose headers the core reads while it fetches them.

    Attributes
    ----------
    codec : str
        ``"zstd"`` or ``"blosc"``.
    behind : int
        Bytes behind the frame in a value.
    streams : int
        About the number of streams in a frame, by the options of the codec.
    """

    codec: str
    behind: int = 0
    streams: int = 1


@lru_cache(maxsize=64)
def frames_of(chain: CodecChain) -> Frames | None:
    """Return the frames that values of a chain are, None if they are none."""
    # Values with a header of another format are no frames.
    codecs = [None if stage.native_header else stage.native_codec for stage in chain.stages]
    behind = 4 * (codecs[-1:] == ["crc32c"])
    codec = codecs[-2 if behind else -1] if len(codecs) > bool(behind) else None
    if codec not in ("zstd", "blosc"):
        return None
    return Frames(codec, behind, sum([one.number for one in chain.device_streams(1)]))


class StagedHeaders:
    """Headers of frames that the core fetches, by one call.

    Parameters
    ----------
    frames : Frames
    rows : int
        Number of values.

    Attributes
    ----------
    words : tuple of int
        Last members of struct ``Staging`` of ``kernels/host/job.h``.
    """

    def __init__(self, frames: Frames, rows: int) -> None:
        self._room: FrameRoom | None = None
        if frames.codec == "zstd":
            self._content = np.zeros(rows, np.int64)
            self.words = frames.behind, address_of(self._content), 0
        else:
            # Encoders may cut chunks otherwise. Memory that is not written costs nothing.
            room = 2 * frames.streams * rows
            self._room = FrameRoom(rows, room, room)
            self.words = frames.behind, 0, self._room.address

    @property
    def found(self) -> KnownHeaders:
        """Headers, as far as they are right."""
        return HeaderColumns((self._content,)) if self._room is None else self._room.written


@cache
def header_reader() -> NativeHeaders | None:
    """Return the reader, None without the native core."""
    core = library()
    return None if core is None else NativeHeaders(core)
