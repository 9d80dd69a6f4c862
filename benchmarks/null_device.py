"""A device that does nothing and costs nothing: what a read on it takes is the work of the host.

It has the memory and the cache of an H100, gives out addresses, and answers every download as if
all work had succeeded: statuses 0, the expected sizes, matching checksums, guards as they were. So
the values must be real ones, whose headers are read, and nothing falls back to the host. The
elements of an array on it are undefined.

A kernel whose results it cannot know raises :class:`NotImplementedError`.
"""

import contextlib
import itertools
import threading
from collections import Counter

import google_crc32c
import numpy as np

from gpustore.backends.device.foreign import ForeignArray, foreign_array
from gpustore.codec_chain.layout import ChunkBytes
from gpustore.device.kernels import instance
from gpustore.device.own_kernels import NO_KERNEL, OWN_KERNELS
from gpustore.device.protocol import DecoderState, MemoryInfo
from gpustore.errors import UnsupportedError
from tests.emulator import codecs

GIB = 1 << 30

_FAR = 1 << 37
"""Distance of allocations: more than there is memory."""


class NullAllocation:
    """Addresses that nobody else has."""

    __slots__ = ("address", "nbytes")

    def __init__(self, address, nbytes):
        self.address = address
        self.nbytes = nbytes


class NullPinned:
    """Ordinary memory, touched once so that its pages are there, as pinned ones are."""

    __slots__ = ("array", "view")

    def __init__(self, nbytes):
        self.array = np.ones(nbytes, np.uint8)
        self.view = self.array.data


class NullArray:
    """Array without elements."""

    def __init__(self, address, shape, dtype, strides):
        self.shape = shape
        self.dtype = dtype
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (address, False),
            "strides": strides,
            "version": 3,
        }


class NullKernel:
    """Kernel by its name."""

    __slots__ = ("expression", "family")

    def __init__(self, family, expression):
        self.family = family
        self.expression = expression


class NullDevice:
    """See the module. Implements :class:`gpustore.device.protocol.Device`.

    Attributes
    ----------
    counts : Counter
        Calls of each operation.
    """

    name = "null"
    multiprocessors = 132

    def __init__(self):
        self.counts = Counter()
        self._next = itertools.count(GIB, _FAR)
        self._lock = threading.Lock()
        self._uploaded = {}
        self._written = []

    def _count(self, operation):
        with self._lock:
            self.counts[operation] += 1

    # ----------------------------------------------------------------- memory and budget

    def memory(self):
        self._count("memory")
        return MemoryInfo(80 * GIB, 78 * GIB)

    def allocate(self, nbytes, stream):
        self._count("allocate")
        return NullAllocation(next(self._next), nbytes)

    def free(self, allocation, stream):
        self._count("free")

    def allocate_pinned(self, nbytes):
        self._count("allocate_pinned")
        return NullPinned(nbytes)

    def free_pinned(self, pinned):
        self._count("free_pinned")
        with self._lock:
            kept = {at: found for at, found in self._uploaded.items() if found[0] is not pinned}
            self._uploaded = kept

    def empty(self, shape, dtype, order, stream):
        self._count("empty")
        strides = ChunkBytes.contiguous(dtype, shape, order=order).strides
        address = next(self._next)
        array = NullArray(address, tuple(shape), dtype, strides)
        return ForeignArray(array, address, strides, tuple(shape), dtype)

    def wrap(self, array):
        return foreign_array(array, 0)

    # ----------------------------------------------------------------- queue

    def stream(self):
        return object()

    def caller_stream(self, stream=None):
        return stream

    def record(self, stream):
        self._count("record")
        return stream

    def wait(self, stream, event):
        self._count("wait")

    def synchronize(self, event):
        self._count("synchronize")

    def upload(self, src, start, dst, nbytes, stream):
        self._count("upload")
        with self._lock:
            self._uploaded[dst] = src, start, nbytes

    def download(self, src, dst, start, nbytes, stream):
        self._count("download")
        target = dst.array[start : start + nbytes]
        with self._lock:
            mine = [one for one in self._written if src <= one[0] < src + nbytes]
            self._written = [one for one in self._written if not src <= one[0] < src + nbytes]
        for address, nbytes, found in mine:
            at = address - src
            target[at : at + nbytes] = found

    def fill(self, dst, value, nbytes, stream):
        self._count("fill")
        self._write(dst, nbytes, value)

    # ----------------------------------------------------------------- kernels

    def kernel(self, family, expression):
        assert expression in instance.INSTANCES[family]
        return NullKernel(family, expression)

    def launch(self, kernel, blocks, arguments, stream):
        self._count("launch")
        answer = _ANSWERS.get(kernel.expression)
        if answer is not None:
            answer(self, *arguments)
        elif kernel.family not in _WITHOUT_RESULTS:
            raise NotImplementedError(f"results of {kernel.expression} are not known")

    # ----------------------------------------------------------------- codecs

    def codec(self, name):
        return codecs.CODECS.get(name)

    def decoders(self):
        return DecoderState("null library", tuple(codecs.CODECS), {}, None)

    def own_kernel_failure(self, codec):
        return None if codec in OWN_KERNELS else NO_KERNEL

    def image_decoder(self, name):
        return DecoderState(None, (), {name: "the null device decodes no images"}, None)

    def decode_images(self, batch, stream):
        raise NotImplementedError(f"{len(batch)} images of {batch.format}")

    def decompress_temp_nbytes(self, codec, count, max_nbytes, total_nbytes):
        self._count("decompress_temp_nbytes")
        return codecs.decompress_temp_nbytes(codec, total_nbytes)

    def decompress(self, batch, stream):
        self._count("decompress")
        self._succeed(batch.result, batch.dst.nbytes)

    def compress_nbytes(self, codec, count, max_nbytes):
        self._count("compress_nbytes")
        return codecs.compressed_bound(codec, max_nbytes), 1024 * count

    def compress(self, batch, stream):
        """Compress a stream that was uploaded, as in a self-test; others to their own size."""
        self._count("compress")
        sizes = batch.src.nbytes
        if len(batch) == 1:
            with contextlib.suppress(NotImplementedError):
                found = self._content(batch.src.address[0], int(sizes[0])).tobytes()
                encoded = np.frombuffer(codecs.compress(batch.codec, found), np.uint8)
                self._write(batch.dst.address[0], len(encoded), encoded)
                sizes = np.array([len(encoded)], np.uint64)
        self._succeed(batch.result, sizes)

    # ----------------------------------------------------------------- files

    def open_file(self, path):
        raise UnsupportedError("the null device reads no files")

    def read_file(self, file, start, nbytes, dst):
        raise UnsupportedError("the null device reads no files")

    def close_file(self, file):
        raise UnsupportedError("the null device reads no files")

    # ----------------------------------------------------------------- results

    @property
    def unread(self):
        """Number of results that nobody has downloaded."""
        return len(self._written)

    def _write(self, address, nbytes, found):
        """Write bytes, or one for all, to device memory, where a later download finds them."""
        with self._lock:
            self._written.append((int(address), nbytes, found))

    def _succeed(self, result, sizes):
        """Write sizes, and a status 0 for each."""
        count = len(sizes)
        self._write(result, 8 * count, sizes.astype(np.uint64, copy=False).view(np.uint8))
        self._write(result + 8 * count, 4 * count, 0)

    def _content(self, address, nbytes):
        """Bytes of device memory that were uploaded."""
        address = int(address)
        with self._lock:
            for at, (src, start, size) in self._uploaded.items():
                if at <= address and address + nbytes <= at + size:
                    begin = start + address - at
                    return src.array[begin : begin + nbytes]
        raise NotImplementedError("bytes that were not uploaded are not known")

    def _guards(self, columns, count, value, result):
        self._write(result, 4 * int(count), 0)

    def _decoded(self, table, count, sizes, statuses):
        columns = self._content(table, 32 * int(count)).view(np.uint64)
        assert int(statuses) == int(sizes) + 8 * int(count)
        self._succeed(int(sizes), columns[3 * int(count) :].copy())

    def _crc32c(self, table, count, segments, segment_nbytes, result):
        columns = self._content(table, 16 * int(count)).view(np.uint64).reshape(2, -1)
        found = [
            google_crc32c.value(self._content(address, nbytes).tobytes())
            for address, nbytes in columns.T.tolist()
        ]
        self._write(result, 4 * len(found), np.array(found, np.uint32).view(np.uint8))


_ANSWERS = {
    "gs::check_guards": NullDevice._guards,
    "gs::decode_blosclz": NullDevice._decoded,
    "gs::decode_lz4": NullDevice._decoded,
    "gs::crc32c": NullDevice._crc32c,
}
"""What kernels leave in device memory for the host, by expression."""

_WITHOUT_RESULTS = (
    *("cast", "copy", "fill", "guard", "pattern", "replace_damaged", "shuffle", "stream"),
)
"""Families of kernels that leave nothing for the host; no chunk holds a pattern."""
