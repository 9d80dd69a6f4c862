"""A device that does nothing and costs nothing: what a read on it takes is the work of the host.

It has the memory and the cache of an H100, gives out addresses, and answers every download as if
all work had succeeded: statuses 0, the expected sizes, matching checksums, guards as they were. So
the values must be real ones, whose headers are read, and nothing falls back to the host. The
elements of an array on it are undefined.

A kernel whose results it cannot know raises :class:`NotImplementedError`.
"""

import contextlib
import functools
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


@functools.cache
def _strides(shape, dtype, order):
    return ChunkBytes.contiguous(dtype, shape, order=order).strides


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
    operations : list of str
        Operations that were called, in their order.
    """

    name = "null"
    multiprocessors = 132

    def __init__(self):
        self.operations = []
        self._next = itertools.count(GIB, _FAR)
        self._lock = threading.Lock()
        self._uploaded = {}
        self._written = []

    @property
    def counts(self):
        """Calls of each operation."""
        return Counter(self.operations)

    # ----------------------------------------------------------------- memory and budget

    def memory(self):
        self.operations.append("memory")
        return MemoryInfo(80 * GIB, 78 * GIB)

    def allocate(self, nbytes, stream):
        self.operations.append("allocate")
        return NullAllocation(next(self._next), nbytes)

    def free(self, allocation, stream):
        self.operations.append("free")

    def allocate_pinned(self, nbytes):
        self.operations.append("allocate_pinned")
        return NullPinned(nbytes)

    def free_pinned(self, pinned):
        self.operations.append("free_pinned")
        with self._lock:
            kept = {at: found for at, found in self._uploaded.items() if found[0] is not pinned}
            self._uploaded = kept

    def empty(self, shape, dtype, order, stream):
        self.operations.append("empty")
        strides = _strides(tuple(shape), dtype, order)
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
        self.operations.append("record")
        return stream

    def wait(self, stream, event):
        self.operations.append("wait")

    def synchronize(self, event):
        self.operations.append("synchronize")

    def upload(self, src, start, dst, nbytes, stream):
        self.operations.append("upload")
        with self._lock:
            self._uploaded[dst] = src, start, nbytes

    def download(self, src, dst, start, nbytes, stream):
        self.operations.append("download")
        target = dst.array[start : start + nbytes]
        mine, others = [], []
        with self._lock:
            for one in self._written:
                (mine if src <= one[0] < src + nbytes else others).append(one)
            self._written = others
        for address, nbytes, found in mine:
            at = address - src
            target[at : at + nbytes] = found

    def fill(self, dst, value, nbytes, stream):
        self.operations.append("fill")
        self._write(dst, nbytes, value)

    # ----------------------------------------------------------------- kernels

    def kernel(self, family, expression):
        return _KERNELS[family, expression]

    def launch(self, kernel, blocks, arguments, stream):
        self.operations.append("launch")
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
        self.operations.append("decompress_temp_nbytes")
        return codecs.decompress_temp_nbytes(codec, total_nbytes)

    def decompress(self, batch, stream):
        self.operations.append("decompress")
        if not batch.count:  # Nobody looks at the results of a table that the device has written.
            self._succeed(batch.result, batch.dst.nbytes)

    def compress_nbytes(self, codec, count, max_nbytes):
        self.operations.append("compress_nbytes")
        return codecs.compressed_bound(codec, max_nbytes), 1024 * count

    def compress(self, batch, stream):
        """Compress a stream that was uploaded, as in a self-test; others to their own size."""
        self.operations.append("compress")
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


_KERNELS = {
    (family, expression): NullKernel(family, expression)
    for family, expressions in instance.INSTANCES.items()
    for expression in expressions
}


_ANSWERS = {
    "gs::check_guards": NullDevice._guards,
    "gs::decode_blosclz": NullDevice._decoded,
    "gs::decode_lz4": NullDevice._decoded,
    "gs::crc32c": NullDevice._crc32c,
}
"""What kernels leave in device memory for the host, by expression."""

_WITHOUT_RESULTS = (
    *("cast", "copy", "fill", "guard", "pattern", "replace_damaged", "select", "shuffle", "stream"),
)
"""Families of kernels that leave nothing for the host; no chunk holds a pattern."""
