"""Reads that are only rehearsed: everything is asked for, nothing is done.

A rehearsed read goes the way of a real one, through the same plan, slots, sub-batches and codecs.
Its device (:class:`IdleDevice`) does nothing, and its statistics are those of the real one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpustore.backends.base import Check
from gpustore.backends.device import DeviceBackend
from gpustore.backends.device.sink import DeviceSink
from gpustore.backends.device.submission import SubBatch
from gpustore.codec_chain.base import ChunkBytes
from gpustore.codec_chain.chain import CodecChain
from gpustore.device.command_list import DeviceBatch
from gpustore.device.protocol import (
    ALIGNMENT,
    Allocation,
    Argument,
    CodecBatch,
    Device,
    DeviceArray,
    DeviceCodec,
    DeviceFile,
    Event,
    FileRead,
    Kernel,
    MemoryInfo,
    Pinned,
    Stream,
)
from gpustore.errors import UnsupportedError
from gpustore.kvstores.arena import Arena, thread_arena
from gpustore.runtime.limits import Limits


@dataclass(slots=True)
class Rehearsal:
    """What a rehearsed read has shown besides its statistics.

    Attributes
    ----------
    sub_batches : list of int
        Launches of each of them.
    refused : Counter of str
        Why how many values are left to the host although the device decodes others.
    """

    sub_batches: list[int] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def rehearsing(backend: Any, rehearsal: Rehearsal) -> Any:
    """The backend of a rehearsed read of arrays that `backend` reads."""
    if isinstance(backend, DeviceBackend):
        return _DeviceBackend(backend.driven, rehearsal)
    return _HostBackend()


class _HostBackend:
    """Host memory in which nothing is put."""

    name = "host"
    device = "cpu"
    defers = True
    uses_blocks = True

    def sub_batch_nbytes(self, limits: Limits) -> None:
        del limits

    def unsupported_reason(self, chain: CodecChain) -> str:
        del chain
        return "this is the host"

    def sink(self, *given: Any, **_: Any) -> _HostSink:
        return _HostSink(given[4])

    def empty(self, *_: Any) -> None:
        """Nobody looks at it."""


class _HostSink:
    nbytes = None

    def __init__(self, check: Check) -> None:
        self.scatter = lambda rows, values: check(rows, values, {})
        self.copy_regions = lambda regions, first, rows, values: check(rows, values, {})

    def __enter__(self) -> _HostSink:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is under way."""

    def arena(self) -> Arena:
        return thread_arena()

    def finish(self) -> None:
        """Nothing is under way."""


class _SubBatch(SubBatch):
    """A sub-batch whose results are good."""

    _device: IdleDevice

    def _run(self, batch: DeviceBatch) -> None:
        super()._run(batch)
        if batch.launches:
            self._device.rehearsal.sub_batches.append(batch.launches)

    def _failed(self, batch: DeviceBatch) -> dict[int, str]:
        del batch
        return {}


class _DeviceSink(DeviceSink):
    sub_batch = _SubBatch
    _device: IdleDevice

    def _finish_one(self) -> None:
        batch = self._pending[0][1]._batch
        if batch is not None:
            self._device.rehearsal.refused.update(batch.refused.values())
        super()._finish_one()


class _DeviceBackend(DeviceBackend):
    make_sink = _DeviceSink

    def __init__(self, driven: Device, rehearsal: Rehearsal) -> None:
        super().__init__(IdleDevice(driven, rehearsal))


@dataclass(frozen=True, slots=True)
class _Memory:
    """Device memory that is not there."""

    address: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Pinned:
    view: memoryview


@dataclass(frozen=True, slots=True)
class _Array:
    array: None
    address: int
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_read_only: bool = False


@dataclass(frozen=True, slots=True)
class _Kernel:
    expression: str


class IdleDevice:
    """A :class:`gpustore.device.protocol.Device` that answers as another one and does nothing.

    Parameters
    ----------
    model : Device
        What it answers as: its memory, its codecs.
    rehearsal : Rehearsal
    """

    def __init__(self, model: Device, rehearsal: Rehearsal) -> None:
        self.name = model.name
        self.rehearsal = rehearsal
        self._model = model
        self._next = 1 << 32

    def memory(self) -> MemoryInfo:
        return self._model.memory()

    def allocate(self, nbytes: int, stream: Stream) -> Allocation:
        del stream
        address = self._next
        self._next += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return _Memory(address, nbytes)

    def free(self, allocation: Allocation, stream: Stream) -> None:
        """Nothing."""

    def allocate_pinned(self, nbytes: int) -> Pinned:
        return _Pinned(np.empty(nbytes, np.uint8).data)

    def free_pinned(self, pinned: Pinned) -> None:
        """Nothing."""

    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], order: str, stream: Stream
    ) -> DeviceArray:
        del order
        strides = ChunkBytes.contiguous(dtype, shape).strides
        memory = self.allocate(max(1, dtype.itemsize), stream)
        return _Array(None, memory.address, tuple(strides), shape, dtype)

    def wrap(self, array: Any) -> DeviceArray | None:
        del array
        return None

    def stream(self) -> Stream:
        return object()

    def caller_stream(self, stream: Any = None) -> Stream:
        del stream
        return object()

    def record(self, stream: Stream) -> Event:
        del stream
        return object()

    def wait(self, stream: Stream, event: Event) -> None:
        """Nothing."""

    def is_done(self, event: Event) -> bool:
        del event
        return True

    def synchronize(self, event: Event) -> None:
        """Nothing."""

    def upload(self, src: Pinned, start: int, dst: int, nbytes: int, stream: Stream) -> None:
        """Nothing."""

    def download(self, src: int, dst: Pinned, start: int, nbytes: int, stream: Stream) -> None:
        """Nothing."""

    def fill(self, dst: int, value: int, nbytes: int, stream: Stream) -> None:
        """Nothing."""

    def kernel(self, family: str, expression: str) -> Kernel:
        del family
        return _Kernel(expression)

    def launch(
        self, kernel: Kernel, blocks: int, arguments: Sequence[Argument], stream: Stream
    ) -> None:
        """Nothing."""

    def codec(self, name: str) -> DeviceCodec | None:
        return self._model.codec(name)

    def decompress_temp_nbytes(
        self, codec: str, count: int, max_nbytes: int, total_nbytes: int
    ) -> int:
        return self._model.decompress_temp_nbytes(codec, count, max_nbytes, total_nbytes)

    def decompress(self, batch: CodecBatch, stream: Stream) -> None:
        """Nothing."""

    def compress_nbytes(self, codec: str, count: int, max_nbytes: int) -> tuple[int, int]:
        return self._model.compress_nbytes(codec, count, max_nbytes)

    def compress(self, batch: CodecBatch, stream: Stream) -> None:
        """Nothing."""

    def open_file(self, path: Path) -> DeviceFile:
        raise UnsupportedError(f"{path} is not opened in a rehearsal")

    def read_file(self, file: DeviceFile, start: int, nbytes: int, dst: int) -> FileRead:
        raise UnsupportedError("files are not read in a rehearsal")

    def close_file(self, file: DeviceFile) -> None:
        """Nothing."""
