"""Putting bytes into device memory and getting them back, for tests."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from gpustore.device.kernels import descriptor
from gpustore.device.protocol import CodecBatch, Spans
from tests.emulator import host_build
from tests.kernels.execution import MUST_RUN


class Bench:
    """A device, a stream, and memory that is freed at the end."""

    def __init__(self, device):
        self.device = device
        self.stream = device.stream()
        self._owned = []

    def allocate(self, nbytes):
        allocation = self.device.allocate(nbytes, self.stream)
        self._owned.append(allocation)
        return allocation.address

    def wait(self):
        self.device.synchronize(self.device.record(self.stream))

    def put(self, data, *, offset=0):
        """The address of a copy of some bytes, `offset` bytes behind an aligned one."""
        data = np.frombuffer(bytes(data), np.uint8)
        address = self.allocate(offset + max(1, len(data))) + offset
        if len(data):
            pinned = self.device.allocate_pinned(len(data))
            np.asarray(pinned.view)[:] = data
            self.device.upload(pinned, 0, address, len(data), self.stream)
            self.wait()
            self.device.free_pinned(pinned)
        return address

    def get(self, address, nbytes):
        """The bytes at an address, once all that was asked of the stream has run."""
        if not nbytes:
            return b""
        pinned = self.device.allocate_pinned(nbytes)
        self.device.download(address, pinned, 0, nbytes, self.stream)
        self.wait()
        found = bytes(pinned.view)
        self.device.free_pinned(pinned)
        return found

    def put_streams(self, streams, *, alignment=16, offset=0):
        """Spans of byte strings in one piece of memory, each `offset` behind an aligned address."""
        sizes = [len(stream) for stream in streams]
        spans = Spans.contiguous(offset, [size + offset for size in sizes], alignment)
        total = int(spans.address[-1]) + sizes[-1] + 1
        data = bytearray(total)
        for start, stream in zip(spans.address.tolist(), streams, strict=True):
            data[start : start + len(stream)] = stream
        base = self.put(data)
        return Spans(spans.address + np.uint64(base), np.array(sizes, np.uint64))

    def run_codec(self, verb, codec, src, dst, *, by_table=False):
        """Compress or decompress, of streams that the table alone has: sizes and statuses."""
        device, count = self.device, len(src)
        if verb == "decompress":
            sizes = dst.nbytes
            temp_nbytes = device.decompress_temp_nbytes(
                codec, count, int(sizes.max()), int(sizes.sum())
            )
        else:
            _, temp_nbytes = device.compress_nbytes(codec, count, int(src.nbytes.max()))
        batch = CodecBatch(
            codec,
            src,
            dst,
            table=self.put(CodecBatch.columns(src, dst).tobytes()),
            result=self.allocate(12 * count),
            temp=self.allocate(temp_nbytes) if temp_nbytes else 0,
            temp_nbytes=temp_nbytes,
        )
        if by_table:
            none = Spans.contiguous(0, [])
            batch = replace(batch, src=none, dst=none, count=count)
        getattr(device, verb)(batch, self.stream)
        found = np.frombuffer(self.get(batch.result, 12 * count), np.uint8)
        return tuple(column.tolist() for column in CodecBatch.results(found))

    def close(self):
        while self._owned:
            self.device.free(self._owned.pop(), self.stream)
        self.wait()


@contextmanager
def bench_of(device):
    bench = Bench(device)
    yield bench
    bench.close()


def require_kernels(device):
    """Skip if this device needs a C++ compiler for its kernels and there is none."""
    if device.name == "emulated" and host_build.COMPILER is None and not MUST_RUN:
        pytest.skip("no g++ on this machine: kernels cannot be compiled for the host")


def fill_runs(addresses, nitems, itemsize):
    """Descriptors of ``gs::fill_strided<..., 1>`` for runs of items, and the blocks to launch."""
    runs = np.zeros(len(addresses), descriptor.run_dtype(1))
    tiles = -(-nitems // descriptor.ITEMS_PER_TILE)
    runs["dst"] = addresses
    runs["items"] = nitems
    runs["first_tile"] = np.arange(len(addresses)) * tiles
    runs["dim"]["extent"] = nitems
    runs["dim"]["dst_stride"] = itemsize
    return runs, len(addresses) * tiles
