"""Host memory behind the methods of `benchmarks.gpu.gpu.Gpu`, and CPU decoders for nvcomp's.

So the probes' own arithmetic runs here: tables, addresses, comparisons. It says nothing of a GPU.
"""

import ctypes
import time

import numpy as np

from benchmarks.gpu import stream


class _Memory:
    def __init__(self, nbytes):
        self._bytes = np.full(nbytes + 64, 0xCD, np.uint8)
        self.ptr = -(-self._bytes.ctypes.data // 16) * 16


class HostNvcomp:
    """Decodes what a batch's table says, at its addresses."""

    def temp_nbytes(self, codec, count, longest, total):
        del codec, count, longest
        return total

    def temp_nbytes_of(self, batch):
        return batch.total

    def _rows(self, batch):
        table = batch.gpu.download(batch.column(0), 32 * batch.count).view(np.uint64)
        return table.reshape(4, batch.count).T.tolist()

    def decompress(self, batch):
        for i, (src, nbytes, capacity, dst) in enumerate(self._rows(batch)):
            size, status = 0, 12
            try:
                encoded = ctypes.string_at(src, nbytes)
                decoded = stream.decode(batch.codec.partition("_")[0], encoded, capacity)
                if len(decoded) <= capacity:
                    ctypes.memmove(dst, decoded, len(decoded))
                    size, status = len(decoded), 0
            except Exception:
                pass
            batch.gpu.upload(np.uint64([size]), batch.actual.ptr + 8 * i)
            batch.gpu.upload(np.int32([status]), batch.statuses.ptr + 4 * i)

    def sizes(self, batch, out):
        for i, (_, _, capacity, _) in enumerate(self._rows(batch)):
            batch.gpu.upload(np.uint64([capacity]), out + 8 * i)


class HostGpu:
    queue = 0

    def __init__(self):
        self.nvcomp = HostNvcomp()
        self.stream = None

    def room(self):
        return 1 << 20

    def allocate(self, nbytes):
        return _Memory(int(nbytes))

    def trim(self):
        pass

    def upload(self, array, ptr=None):
        array = np.ascontiguousarray(array)
        memory = self.allocate(array.nbytes) if ptr is None else None
        ctypes.memmove(ptr if memory is None else memory.ptr, array.ctypes.data, array.nbytes)
        return memory

    def download(self, ptr, nbytes):
        return np.frombuffer(ctypes.string_at(ptr, nbytes), np.uint8)

    def fill(self, ptr, value, nbytes):
        ctypes.memset(ptr, value, nbytes)

    def copy(self, dst, src, nbytes):
        ctypes.memmove(dst, src, nbytes)

    def occupy(self, milliseconds):
        time.sleep(milliseconds / 1e4)

    def wait(self, seconds=20):
        pass

    def check(self):
        pass

    def time_ms(self, call, rounds=7, budget_s=1.0):
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e3

    def count_different(self, ptr, expected, nbytes):
        found = self.download(ptr, nbytes).view(np.uint64)
        return int((found != np.resize(expected.reshape(-1).view(np.uint64), found.size)).sum())

    def capture(self, call):
        call()
        return self

    def launch(self, stream):
        pass
