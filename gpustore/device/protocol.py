"""Protocol of a device with memory of its own: the operations that gpustore needs.

:class:`Device` is the only interface to device memory, for the backend, the codecs and the tests.
One implementation drives a GPU (``backends/cuda``), one emulates a device so that all code can be
tested without a GPU (``tests/emulator``). The operations come in five groups:

1. memory and budget: free memory, allocation and release in stream order, pinned memory, arrays
   of the user
2. queue: streams, events, copies between pinned and device memory
3. kernels: load one by name, launch it
4. codecs: the streams and images that the device decodes and encodes, batches of them
5. files: read into device memory

An *address* is an ``int``, the position of a byte in device memory. The host never reads or writes
there; it asks for copies. Operations that take a :class:`Stream` return at once and run later,
after all operations queued on that stream before, and in no order to those of other streams unless
an :class:`Event` makes one wait. Memory that they use (addresses, pinned memory, tables) must not
change until an event recorded behind them has passed.

Every operation may raise :class:`~gpustore.errors.DeviceError`. Once a device has failed so
that its memory is lost, all of them do, with the first message.

``docs/design/003-device.md`` says who owns which memory until when, and how a read runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpustore.device.image_batch import ImageBatch

ALIGNMENT = 256
"""Alignment of every allocation in device memory, in bytes."""

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
"""Meaning of the status of one stream of a :class:`CodecBatch`, by nvcomp's number."""


class PinnedMemoryError(MemoryError):
    """Lack of pinned memory, which device memory that is given back does not end."""


Argument = np.generic | NDArray[np.uint8]
"""Argument of a kernel, passed by value: a NumPy scalar, or the bytes of one item."""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Sizes of a device's memory in bytes.

    Attributes
    ----------
    total_nbytes, free_nbytes : int
        Device memory; free memory includes memory that this process has kept for reuse.
    """

    total_nbytes: int
    free_nbytes: int


class Allocation(Protocol):
    """Allocated device memory. The owner frees it once; dropping the object does not."""

    @property
    def address(self) -> int:
        """Address of the first byte, a multiple of :data:`ALIGNMENT`."""

    @property
    def nbytes(self) -> int:
        """Number of bytes."""


class DeviceAllocator(Protocol):
    """Source of device memory; its memory and its orders of use are those of a :class:`Device`."""

    def allocate(self, nbytes: int, stream: Stream) -> Allocation:
        """Allocate memory for use behind this point of `stream`; MemoryError if there is none."""

    def free(self, allocation: Any, stream: Stream) -> None:
        """Free memory once all operations queued on `stream` before have run."""

    def kept_nbytes(self) -> int:
        """Return the bytes kept for reuse, which the device counts as used."""


class Pinned(Protocol):
    """Page-locked host memory, which copies to and from the device read and write directly."""

    @property
    def view(self) -> memoryview:
        """View of all bytes, writable, 1-D uint8, valid until the memory is freed."""


class DeviceArray(Protocol):
    """Array of the user in device memory, and its layout.

    Attributes
    ----------
    array : object
        The array object, which keeps its memory alive.
    address : int
        Address of the element of index zero.
    strides : tuple of int
        Bytes between neighbours along each dimension, of any sign.
    shape : tuple of int
        Elements along each dimension.
    dtype : numpy.dtype
        Type of the elements.
    is_read_only : bool
        Whether the owner of the memory forbids to write there.
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
    """Queue of a device, whose operations run one after the other."""


class Event(Protocol):
    """Point in a stream; it has passed when all operations queued before it have run."""


class Kernel(Protocol):
    """Compiled instance of a kernel.

    Attributes
    ----------
    expression : str
        C++ name of the instance, for messages.
    """

    @property
    def expression(self) -> str: ...


class DeviceFile(Protocol):
    """File opened for reading into device memory.

    Attributes
    ----------
    alignment : int
        Alignment in bytes of offset, length and destination of a read. The destination needs room
        for all bytes that are read, also those beyond the wanted ones.
    is_direct : bool
        Whether bytes go from the disk to the device without passing host memory.
    """

    @property
    def alignment(self) -> int: ...

    @property
    def is_direct(self) -> bool: ...


class FileRead(Protocol):
    """Read of a file into device memory under way."""

    def result(self) -> int:
        """Wait for the read and return the bytes read: fewer than asked only at the file's end.

        Raises
        ------
        OSError
            If the file cannot be read.
        """


@dataclass(frozen=True, slots=True)
class DeviceCodec:
    """Abilities of a device for one kind of compressed stream.

    Attributes
    ----------
    name : str
        ``"lz4"`` and ``"snappy"`` (raw blocks), ``"zstd"`` (one frame), ``"deflate"`` (raw),
        ``"gzip"`` (one member).
    src_alignment, dst_alignment, temp_alignment : int
        Alignment of encoded bytes, of decoded bytes and of scratch memory, in bytes.
    decoded_max_nbytes : int
        Longest stream that the device decodes, in decoded bytes.
    encodes_max_nbytes : int
        Longest stream that the device encodes, in decoded bytes; 0 if it does not encode.
    detects_damage : bool
        Whether every damaged stream gives a status, and never an access outside its bounds.
    reads_table : bool
        Whether decoding needs no more than the table of a batch, which the device may have written.
    """

    name: str
    src_alignment: int
    dst_alignment: int
    temp_alignment: int
    decoded_max_nbytes: int
    encodes_max_nbytes: int
    detects_damage: bool
    reads_table: bool = True


@dataclass(frozen=True, slots=True)
class Spans:
    """Ranges of device memory, as columns.

    Attributes
    ----------
    address : ndarray of uint64, shape (n,)
        Address of the first byte of each range.
    nbytes : ndarray of uint64, shape (n,)
        Bytes of each range.
    """

    address: NDArray[np.uint64]
    nbytes: NDArray[np.uint64]

    @classmethod
    def contiguous(cls, address: int, nbytes: Sequence[int], alignment: int = 1) -> Spans:
        """Return consecutive ranges from `address` on, each padded to a multiple of `alignment`.

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
        """Return the ranges without their first `before` and last `behind` bytes."""
        return Spans(
            self.address + np.uint64(before),
            self.nbytes - np.uint64(before + behind),
        )

    def take(self, rows: NDArray[Any]) -> Spans:
        """Return the ranges with the indices `rows`, or those where a mask is true."""
        return Spans(self.address[rows], self.nbytes[rows])


@dataclass(frozen=True, slots=True)
class CodecBatch:
    """Batch of streams that one call decompresses or compresses, each by itself.

    Attributes
    ----------
    codec : str
        Name of a :class:`DeviceCodec`.
    src : Spans, length n
        Source streams: encoded ones to decompress, decoded ones to compress.
    dst : Spans, length n
        Destination of each output and its greatest size. Destinations do not overlap.
    count : int, optional
        n, if the table alone has the streams; `src` and `dst` have none then.
    table : int
        Address of :meth:`columns` when the call runs: 32 n bytes, at a multiple of 8.
    result : int
        Address of 12 n bytes at a multiple of 8 that the call fills: n uint64, the bytes of each
        output, then n int32, its status (:data:`STATUSES`).
    temp, temp_nbytes : int
        Scratch memory of the size that the device asks for; used by this call alone until it has
        run.
    """

    codec: str
    src: Spans
    dst: Spans
    table: int
    result: int
    temp: int
    temp_nbytes: int
    count: int = 0

    def __len__(self) -> int:
        return self.count or len(self.src)

    @staticmethod
    def columns(
        src: Spans, dst: Spans, out: NDArray[np.uint64] | None = None
    ) -> NDArray[np.uint64]:
        """Return the table that the device reads, shape (4, n): `src`, then `dst`.

        Rows are addresses and sizes of `src`, then addresses and sizes of `dst`. `out` is memory
        for them.
        """
        columns = src.address, src.nbytes, dst.address, dst.nbytes
        if out is None:
            return np.array(columns, np.uint64)
        table = out.reshape(4, -1)
        table[0], table[1], table[2], table[3] = columns
        return table

    @staticmethod
    def results(found: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """Return sizes and statuses, shape (n,) each, in the downloaded 12 n bytes of `result`."""
        count = len(found) // 12
        return found[: 8 * count].view(np.uint64), found[8 * count :].view(np.int32)

    @staticmethod
    def wrong(
        found: NDArray[np.uint8],
        rows: NDArray[np.int64],
        expected: NDArray[np.uint64],
        codec: str,
    ) -> Iterator[tuple[int, str]]:
        """Yield each row whose stream did not decode to as many bytes as expected, and why."""
        sizes, statuses = CodecBatch.results(found)
        for i in ((statuses != 0) | (sizes != expected)).nonzero()[0].tolist():
            status = int(statuses[i])
            if status:
                reason = f"{codec}: {STATUSES.get(status, 'unknown status')} ({status})"
            else:
                reason = f"{codec}: decodes to {sizes[i]} bytes, expected {expected[i]}"
            yield int(rows[i]), reason


@dataclass(frozen=True, slots=True)
class DecoderState:
    """Library that decodes streams on a device, and what it does not decode.

    Attributes
    ----------
    engine : str or None
        Name of the library; None without one.
    codecs : tuple of str
        Names of the codecs that it decodes, proved by a self-test.
    missing : mapping of str to str
        Reason why it does not decode a codec, by name.
    shortcoming : str or None
        What is missing, fails or is slower than it could be, and what to install; None if nothing
        is.
    """

    engine: str | None
    codecs: tuple[str, ...]
    missing: Mapping[str, str]
    shortcoming: str | None


class Decoders(Protocol):
    """Source of the codecs that a device decodes: a :class:`Device`, or a description of one."""

    def decoders(self) -> DecoderState:
        """Return the state of the library that decodes; a device tests it first, once."""

    def codec(self, name: str) -> DeviceCodec | None:
        """Return the device's abilities for streams of this kind, None if it has none."""

    def own_kernel_failure(self, codec: str) -> str | None:
        """Return why no kernel of the package decodes these streams there, None if one does."""

    def image_decoder(self, name: str) -> DecoderState:
        """Return the state of the library for images of the format `name`; see :meth:`decoders`."""


class Device(Protocol):
    """Device with memory of its own. Many threads may use it at once, each with its own streams."""

    name: str
    """Name of the device, as of :class:`~gpustore.resources.device.DeviceName`: ``"cuda:0"``."""

    multiprocessors: int
    """Number of multiprocessors, which decode streams at the same time."""

    # ----------------------------------------------------------------- memory and budget

    def memory(self) -> MemoryInfo:
        """Return the sizes of total and free memory now."""

    def allocate(self, nbytes: int, stream: Stream) -> Allocation:
        """Allocate device memory of undefined contents, for use behind this point of `stream`.

        Raises
        ------
        MemoryError
            If there is not enough memory; a smaller allocation may succeed.
        """

    def free(self, allocation: Allocation, stream: Stream) -> None:
        """Free device memory once all operations queued on `stream` before have run.

        Operations of other streams on the memory must be ordered before this point by events.
        """

    def allocate_pinned(self, nbytes: int) -> Pinned:
        """Allocate page-locked host memory of undefined contents; slow, so callers keep it.

        Raises
        ------
        PinnedMemoryError
            If there is not enough memory.
        """

    def free_pinned(self, pinned: Pinned) -> None:
        """Free page-locked host memory. No copy to or from it may be under way."""

    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], order: str, stream: Stream
    ) -> DeviceArray:
        """Allocate an array for the user, of undefined contents, in `order` ``"C"`` or ``"F"``.

        Raises
        ------
        MemoryError
            If there is not enough memory.
        """

    def wrap(self, array: Any) -> DeviceArray | None:
        """Return address and layout of an array on this device, None for any other object.

        Arrays offer ``__cuda_array_interface__`` or DLPack.

        Raises
        ------
        TypeError
            If the array is on another device, or its elements are of a type that NumPy and
            ml_dtypes do not have.
        """

    # ----------------------------------------------------------------- queue

    def stream(self) -> Stream:
        """Return a new stream that waits for no other."""

    def caller_stream(self, stream: Any = None) -> Stream:
        """Return the stream a caller works on: the one given, else the thread's current one.

        Parameters
        ----------
        stream : object, optional
            A stream of CuPy or PyTorch, an object with ``__cuda_stream__``, or the address of a
            CUDA stream.
        """

    def record(self, stream: Stream) -> Event:
        """Return an event behind all operations queued on `stream` so far."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Make operations queued on `stream` from now on run after `event`. Returns at once."""

    def synchronize(self, event: Event) -> None:
        """Block the calling thread until `event` has passed.

        Raises
        ------
        DeviceError
            If an operation before it failed.
        """

    def upload(self, src: Pinned, start: int, dst: int, nbytes: int, stream: Stream) -> None:
        """Copy bytes [start, start + nbytes) of pinned memory to address `dst`."""

    def download(self, src: int, dst: Pinned, start: int, nbytes: int, stream: Stream) -> None:
        """Copy `nbytes` bytes at address `src` to pinned memory from byte `start` on.

        The bytes are undefined until an event behind the copy has passed.
        """

    def fill(self, dst: int, value: int, nbytes: int, stream: Stream) -> None:
        """Set `nbytes` bytes from address `dst` on to `value`, 0 to 255."""

    # ----------------------------------------------------------------- kernels

    def kernel(self, family: str, expression: str) -> Kernel:
        """Load a kernel, compiling it on first use.

        Parameters
        ----------
        family, expression : str
            Entry of :data:`gpustore.device.kernels.instance.INSTANCES`.
        """

    def launch(
        self, kernel: Kernel, blocks: int, arguments: Sequence[Argument], stream: Stream
    ) -> None:
        """Run a kernel with `blocks` blocks of the one block size that all kernels have."""

    # ----------------------------------------------------------------- codecs

    def codec(self, name: str) -> DeviceCodec | None:
        """Return the device's abilities for streams of this kind, None if it has none.

        A codec whose self-test fails is none.
        """

    def decoders(self) -> DecoderState:
        """Return the state of the library that decodes, after its self-test.

        The first call of this or of :meth:`codec` decodes a small constant stream of each codec,
        waits for it, and warns if anything is missing or fails.
        """

    def own_kernel_failure(self, codec: str) -> str | None:
        """Return why no kernel of the package decodes these streams, None if one does.

        The first call for a codec that has a kernel decodes a small constant stream, waits for it,
        and warns if it fails.
        """

    def image_decoder(self, name: str) -> DecoderState:
        """Return the state of the library that decodes images of a format, after its self-test.

        The first call for a format decodes a small constant image, waits for it, and warns if the
        library is missing or fails.
        """

    def decode_images(self, batch: ImageBatch, stream: Stream) -> None:
        """Decode each image of `batch` by itself; may take memory, and wait for other threads."""

    def decompress_temp_nbytes(
        self, codec: str, count: int, max_nbytes: int, total_nbytes: int
    ) -> int:
        """Return the bytes of scratch memory that :meth:`decompress` needs, without waiting.

        Parameters
        ----------
        count, max_nbytes, total_nbytes : int
            Number of streams, decoded bytes of the longest, and of all together.
        """

    def decompress(self, batch: CodecBatch, stream: Stream) -> None:
        """Decompress each stream of `batch` by itself.

        A damaged stream gives a status or a wrong size. For a codec that does not detect damage
        (:attr:`DeviceCodec.detects_damage`) it may leave any bytes in `dst` and in the memory
        around it. Bytes behind the end of a stream are ignored.
        """

    def compress_nbytes(self, codec: str, count: int, max_nbytes: int) -> tuple[int, int]:
        """Return the bytes of the longest output and of the scratch memory for :meth:`compress`."""

    def compress(self, batch: CodecBatch, stream: Stream) -> None:
        """Compress each stream of `batch` by itself, with the device's default options.

        All addresses in the batch are multiples of 16, and each of `dst` has the size that
        :meth:`compress_nbytes` returns.
        """

    # ----------------------------------------------------------------- files

    def open_file(self, path: Path) -> DeviceFile:
        """Open a file for reading into device memory; slow, so callers keep it open.

        Raises
        ------
        OSError
            If the file cannot be opened.
        UnsupportedError
            If this device reads no files.
        """

    def read_file(self, file: DeviceFile, start: int, nbytes: int, dst: int) -> FileRead:
        """Begin to read bytes [start, start + nbytes) to address `dst`.

        The read belongs to no stream: operations that use `dst`, its allocation too, must have run
        before the call, and those that use the bytes are queued after :meth:`FileRead.result`.
        """

    def close_file(self, file: DeviceFile) -> None:
        """Close a file. No read of it may be under way."""
