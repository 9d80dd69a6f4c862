"""What gpustore needs of a device that has its own memory, and nothing more.

:class:`Device` is the only way to device memory: the backend, the codecs and the tests know no
other. One implementation drives a GPU (``backends/cuda``), one emulates a device so that all of
this can be tested without a GPU (``tests/emulator``). Its operations come in five groups:

1. memory and budget: how much there is, allocating and freeing in stream order, pinned memory,
   the arrays a user holds
2. queue: streams, events, copies between pinned and device memory
3. kernels: load one by name, launch it
4. codecs: what the device decodes and encodes, how it wants its input, batches of it
5. files: read into device memory

An *address* is an ``int``: where a byte lies in device memory. The host never reads or writes
there; it asks for copies. Operations that take a :class:`Stream` return at once and run later,
after everything asked of that stream before, and in no order to what is asked of other streams
unless an :class:`Event` says so. Whatever they use (addresses, pinned memory, tables) must stay
as it is until an event recorded behind them has passed.

Every operation may raise :class:`~gpustore.errors.DeviceError`. Once a device has failed so
that its memory is lost, all of them do, with the first message.

``docs/design/003-device.md`` says who owns which memory until when, and how a read runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 256
"""Every allocation begins at a multiple of this many bytes."""

STATUSES = {
    0: "decoded",
    10: "invalid argument",
    11: "not supported",
    12: "cannot be decompressed",
    13: "bad checksum",
    15: "output too small",
    17: "wrong alignment",
    18: "chunk too large",
    21: "batch too large",
    1000: "CUDA error",
    10000: "internal error",
}
"""Status of one stream of a :class:`CodecBatch`, in nvcomp's numbers."""

Argument = np.generic | NDArray[np.uint8]
"""Argument of a kernel, passed by value: a NumPy scalar, or the bytes of an item."""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Sizes in bytes.

    Attributes
    ----------
    total_nbytes, free_nbytes : int
        Device memory; what is free includes what this process has kept for reuse.
    l2_nbytes : int
        Second-level cache: what is written and soon read again should fit.
    """

    total_nbytes: int
    free_nbytes: int
    l2_nbytes: int


class Allocation(Protocol):
    """Device memory. Its owner frees it, once; dropping the object does not."""

    @property
    def address(self) -> int:
        """First byte, at a multiple of :data:`ALIGNMENT`."""

    @property
    def nbytes(self) -> int: ...


class Pinned(Protocol):
    """Page-locked host memory, which copies to and from the device read and write directly."""

    @property
    def view(self) -> memoryview:
        """All of it, writable, 1-D uint8. Valid until it is freed."""


class DeviceArray(Protocol):
    """An array as the user holds it, and where it lies.

    Attributes
    ----------
    array : object
        The array; it keeps its memory alive.
    address : int
        Of the element of index zero.
    strides : tuple of int
        Bytes between neighbours; one a dimension, of any sign.
    shape : tuple of int
    dtype : numpy.dtype
    is_read_only : bool
        Whether its owner forbids to write there.
    """

    @property
    def array(self) -> Any: ...

    @property
    def address(self) -> int: ...

    @property
    def strides(self) -> tuple[int, ...]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def is_read_only(self) -> bool: ...


class Stream(Protocol):
    """A queue of the device: what is asked of it runs one after the other."""


class Event(Protocol):
    """A point in a stream: it has passed when all that was asked of the stream before has run."""


class Kernel(Protocol):
    """One compiled instance of a kernel.

    Attributes
    ----------
    expression : str
        Its C++ name, for messages.
    """

    @property
    def expression(self) -> str: ...


class DeviceFile(Protocol):
    """A file opened for reading into device memory.

    Attributes
    ----------
    alignment : int
        Offset, length and destination of a read must be multiples of this, in bytes. What is read
        beyond the bytes wanted must have room in the destination.
    is_direct : bool
        Whether bytes go from the disk to the device without passing host memory.
    """

    @property
    def alignment(self) -> int: ...

    @property
    def is_direct(self) -> bool: ...


class FileRead(Protocol):
    """A read into device memory on its way."""

    def result(self) -> int:
        """Wait for it and return the bytes read: fewer than asked only at the end of the file.

        Raises
        ------
        OSError
            If the file cannot be read.
        """


@dataclass(frozen=True, slots=True)
class DeviceCodec:
    """What the device can do with one kind of stream, and how it wants it.

    Attributes
    ----------
    name : str
        ``"lz4"`` and ``"snappy"`` (raw blocks), ``"zstd"`` (one frame), ``"deflate"`` (raw),
        ``"gzip"`` (one member).
    src_alignment, dst_alignment, temp_alignment : int
        Addresses of encoded bytes, of decoded bytes and of scratch memory are multiples of these.
    decoded_max_nbytes : int
        Longest stream it decodes, in decoded bytes.
    encodes_max_nbytes : int
        Longest stream it encodes, in decoded bytes; 0 if it does not encode.
    detects_damage : bool
        Whether a damaged stream surely gives a status, and never an access outside its bounds.
    """

    name: str
    src_alignment: int
    dst_alignment: int
    temp_alignment: int
    decoded_max_nbytes: int
    encodes_max_nbytes: int
    detects_damage: bool


@dataclass(frozen=True, slots=True)
class Spans:
    """Ranges of device memory, as columns.

    Attributes
    ----------
    address : ndarray of uint64, shape (n,)
        First byte of each.
    nbytes : ndarray of uint64, shape (n,)
    """

    address: NDArray[np.uint64]
    nbytes: NDArray[np.uint64]

    @classmethod
    def contiguous(cls, address: int, nbytes: Sequence[int], alignment: int = 1) -> Spans:
        """Ranges one behind the other from `address` on, each at a multiple of `alignment`.

        >>> Spans.contiguous(4096, [3, 5], 4).address.tolist()
        [4096, 4100]
        """
        sizes = np.asarray(nbytes, np.uint64)
        padded = -(-sizes.astype(np.int64) // alignment) * alignment
        starts = address + np.cumsum(padded) - padded
        return cls(starts.astype(np.uint64), sizes)

    def __len__(self) -> int:
        return len(self.address)

    def inside(self, before: int, behind: int) -> Spans:
        """The same ranges without their first and last bytes."""
        return Spans(
            self.address + np.uint64(before),
            self.nbytes - np.uint64(before + behind),
        )

    def take(self, rows: NDArray[Any]) -> Spans:
        """The ranges with these numbers, or those where a mask is true."""
        return Spans(self.address[rows], self.nbytes[rows])


@dataclass(frozen=True, slots=True)
class CodecBatch:
    """Streams that one call decompresses or compresses, each by itself.

    Attributes
    ----------
    codec : str
        Name of a :class:`DeviceCodec`.
    src : Spans, length n
        The streams: encoded to decompress, decoded to compress.
    dst : Spans, length n
        Where each result goes and how many bytes it may have. They do not overlap.
    table : int
        Address of :meth:`columns`, which the caller has uploaded there: 32 n bytes, at a multiple
        of 8.
    result : int
        Address of 12 n bytes at a multiple of 8 that the call fills: n uint64, the bytes of each
        result, then n int32, its status (:data:`STATUSES`).
    temp, temp_nbytes : int
        Scratch memory, as large as the device says; nobody else's until the call has run.
    """

    codec: str
    src: Spans
    dst: Spans
    table: int
    result: int
    temp: int
    temp_nbytes: int

    def __len__(self) -> int:
        return len(self.src)

    @staticmethod
    def columns(src: Spans, dst: Spans) -> NDArray[np.uint64]:
        """What the device reads, shape (4, n): addresses and sizes of `src`, then of `dst`."""
        return np.stack((src.address, src.nbytes, dst.address, dst.nbytes))

    @staticmethod
    def results(found: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """Sizes and statuses in the 12 n bytes at `result`, once these are copied to the host."""
        count = len(found) // 12
        return found[: 8 * count].view(np.uint64), found[8 * count :].view(np.int32)


class Decoders(Protocol):
    """What tells which codecs a device decodes: a :class:`Device`, or what is known of one."""

    def codec(self, name: str) -> DeviceCodec | None:
        """See :meth:`Device.codec`."""


class Device(Protocol):
    """One device. Any number of threads may use it at once, but a stream is one thread's."""

    name: str
    """As in :class:`~gpustore.resources.device.DeviceName`: ``"cuda:0"``."""

    # ----------------------------------------------------------------- memory and budget

    def memory(self) -> MemoryInfo:
        """How much memory there is now."""

    def allocate(self, nbytes: int, stream: Stream) -> Allocation:
        """Device memory of undefined contents, for use behind this point of `stream`.

        Raises
        ------
        MemoryError
            If there is not so much. Nothing is lost; smaller allocations may succeed.
        """

    def free(self, allocation: Allocation, stream: Stream) -> None:
        """Give memory back, once everything asked of `stream` before has run.

        What other streams do with it must be ordered before this point by events.
        """

    def allocate_pinned(self, nbytes: int) -> Pinned:
        """Page-locked host memory of undefined contents; slow, so keep it.

        Raises
        ------
        MemoryError
            If it cannot be had.
        """

    def free_pinned(self, pinned: Pinned) -> None:
        """Give it back. No copy to or from it may be on its way."""

    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], order: str, stream: Stream
    ) -> DeviceArray:
        """A new array for the user, of undefined contents, in `order` ``"C"`` or ``"F"``.

        Raises
        ------
        MemoryError
            If there is not so much.
        """

    def wrap(self, array: Any) -> DeviceArray | None:
        """The memory of an array that lies on this device; None for any other object.

        ``__cuda_array_interface__`` and DLPack are understood.

        Raises
        ------
        TypeError
            If it is on another device, or its elements are of a type that NumPy and ml_dtypes do
            not have.
        """

    # ----------------------------------------------------------------- queue

    def stream(self) -> Stream:
        """A new stream that waits for no other."""

    def caller_stream(self, stream: Any = None) -> Stream:
        """The stream a caller works on: the one given, else the one current on this thread.

        Parameters
        ----------
        stream : object, optional
            An object with ``__cuda_stream__``, a CuPy stream, or the address of a CUDA stream.
        """

    def record(self, stream: Stream) -> Event:
        """An event behind everything asked of `stream` so far."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what is asked of `stream` from now on run after `event`. Returns at once."""

    def is_done(self, event: Event) -> bool:
        """Whether `event` has passed. Returns at once."""

    def synchronize(self, event: Event) -> None:
        """Block the calling thread until `event` has passed.

        Raises
        ------
        DeviceError
            If something before it failed.
        """

    def upload(self, src: Pinned, start: int, dst: int, nbytes: int, stream: Stream) -> None:
        """Copy bytes [start, start + nbytes) of pinned memory to address `dst`."""

    def download(self, src: int, dst: Pinned, start: int, nbytes: int, stream: Stream) -> None:
        """Copy `nbytes` bytes at address `src` to pinned memory from byte `start` on.

        Until an event behind it has passed, those bytes are undefined.
        """

    def fill(self, dst: int, value: int, nbytes: int, stream: Stream) -> None:
        """Set `nbytes` bytes from address `dst` on to `value`, 0 to 255."""

    # ----------------------------------------------------------------- kernels

    def kernel(self, family: str, expression: str) -> Kernel:
        """Load a kernel, compiling it on first use.

        Parameters
        ----------
        family, expression : str
            As listed in :data:`gpustore.device.kernels.instance.INSTANCES`.
        """

    def launch(
        self, kernel: Kernel, blocks: int, arguments: Sequence[Argument], stream: Stream
    ) -> None:
        """Run a kernel with `blocks` blocks of the one block size that all kernels have."""

    # ----------------------------------------------------------------- codecs

    def codec(self, name: str) -> DeviceCodec | None:
        """What the device can do with streams of this kind; None if nothing."""

    def decompress_temp_nbytes(
        self, codec: str, count: int, max_nbytes: int, total_nbytes: int
    ) -> int:
        """Scratch memory that :meth:`decompress` needs, in bytes. Waits for nothing.

        Parameters
        ----------
        count, max_nbytes, total_nbytes : int
            Streams, decoded bytes of the longest of them, and of all together.
        """

    def decompress(self, batch: CodecBatch, stream: Stream) -> None:
        """Decompress each stream of `batch` by itself.

        A damaged stream gives a status or a wrong size, unless the codec says that it does not
        detect damage: then anything may be in `dst`, and nothing is promised of the memory around
        it. Bytes behind the end of a stream are ignored.
        """

    def compress_nbytes(self, codec: str, count: int, max_nbytes: int) -> tuple[int, int]:
        """Sizes for :meth:`compress`: of the longest result, and of the scratch memory."""

    def compress(self, batch: CodecBatch, stream: Stream) -> None:
        """Compress each stream of `batch` by itself, with the device's default options.

        All addresses in it are multiples of 16, and `dst` has as much room as
        :meth:`compress_nbytes` says.
        """

    # ----------------------------------------------------------------- files

    def open_file(self, path: Path) -> DeviceFile:
        """Open a file for reading. Slow: keep it.

        Raises
        ------
        OSError
            If it cannot be opened.
        UnsupportedError
            If this device reads no files.
        """

    def read_file(self, file: DeviceFile, start: int, nbytes: int, dst: int) -> FileRead:
        """Begin to read bytes [start, start + nbytes) to address `dst`.

        It belongs to no stream: everything that uses `dst`, its allocation too, must have passed
        before the call, and what uses the bytes is asked for after :meth:`FileRead.result`.
        """

    def close_file(self, file: DeviceFile) -> None:
        """Close it. No read of it may be on its way."""
