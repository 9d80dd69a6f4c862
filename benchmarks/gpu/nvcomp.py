"""nvcomp's batched C calls, by ctypes, for a table of streams in device memory.

The prototypes are those of `gpustore/backends/nvcomp/abi.py`, taken from the file itself: the
facts must be had also where gpustore's own dependencies are not installed.
"""

import ctypes
import importlib.util
import os
from pathlib import Path

import numpy as np

from benchmarks.gpu.findings import MissingError

_ABI = Path(__file__).parents[2] / "gpustore/backends/nvcomp/abi.py"
_spec = importlib.util.spec_from_file_location("nvcomp_abi", _ABI)
abi = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(abi)

STATUSES = {
    0: "ok", 10: "invalid value", 11: "not supported", 12: "cannot decompress",
    13: "bad checksum", 15: "output too small", 17: "alignment", 18: "chunk too large",
    21: "batch too large", 1000: "CUDA error", 10000: "internal error",
}  # fmt: skip

CODECS = {name: (found, ()) for name, found in abi.FORMATS.items()} | {
    "gzip_lookahead": ("Gzip", (1,))
}
"""Name -> nvcomp's name, and words of the options after the backend."""

_CUDA = 2

# Two more functions, which the product does not call.
MORE_PROTOTYPES = {
    "DecompressGetTempSizeSync": {
        "device_compressed_chunk_ptrs": ctypes.c_void_p,
        "device_compressed_chunk_bytes": ctypes.c_void_p,
        "num_chunks": ctypes.c_size_t,
        "max_uncompressed_chunk_bytes": ctypes.c_size_t,
        "temp_bytes": ctypes.c_void_p,
        "max_total_uncompressed_bytes": ctypes.c_size_t,
        "decompress_opts": abi.Options,
        "device_statuses": ctypes.c_void_p,
        "stream": ctypes.c_void_p,
    },
    "GetDecompressSizeAsync": {
        "device_compressed_chunk_ptrs": ctypes.c_void_p,
        "device_compressed_chunk_bytes": ctypes.c_void_p,
        "device_uncompressed_chunk_bytes": ctypes.c_void_p,
        "num_chunks": ctypes.c_size_t,
        "stream": ctypes.c_void_p,
    },
}


def library_path():
    """The library of the installed wheel, or the one that ``NVCOMP_LIBRARY`` names."""
    if os.environ.get("NVCOMP_LIBRARY"):
        return Path(os.environ["NVCOMP_LIBRARY"])
    try:
        spec = importlib.util.find_spec("nvidia.libnvcomp")
    except ModuleNotFoundError:
        spec = None
    folders = spec.submodule_search_locations if spec else ()
    found = sorted(
        p for folder in folders for p in Path(folder, "lib64").glob("libnvcomp.so.[0-9]*")
    )
    if not found:
        raise MissingError("libnvcomp.so: install nvidia-libnvcomp-cu13")
    return found[-1]


class Library:
    """The library, with its version (as 6000) and that of the CUDA runtime within it (as 13040)."""

    def __init__(self):
        self.path = library_path()
        self._library = ctypes.CDLL(str(self.path))
        properties = abi.Properties()
        self._library.nvcompGetProperties(ctypes.byref(properties))
        self.version, self.runtime = properties.version, properties.cudart_version
        major = self.version // 1000
        if major not in abi.ROWS:
            raise MissingError(f"prototypes of nvcomp {self.version}; known are {[*abi.ROWS]}")
        self._prototypes = abi.prototypes(major)
        for name in abi.FORMATS.values():
            for function, prototype in MORE_PROTOTYPES.items():
                self._prototypes[f"nvcompBatched{name}{function}"] = prototype
        self._temp_size = abi.ROWS[major][0]

    def _call(self, codec, function, **arguments):
        name = f"nvcompBatched{CODECS[codec][0]}{function}"
        prototype = self._prototypes[name]
        called = getattr(self._library, name)
        called.restype, called.argtypes = ctypes.c_int, list(prototype.values())
        status = called(*(arguments[argument] for argument in prototype))
        if status:
            raise RuntimeError(f"{name}: {STATUSES.get(status, 'status')} ({status})")

    @staticmethod
    def _options(codec):
        options = abi.Options(_CUDA)
        for i, word in enumerate(CODECS[codec][1]):
            options.reserved[i] = word
        return options

    def alignments(self, codec):
        """Bytes to which streams, output and scratch memory are to be aligned."""
        found = abi.Alignments()
        self._call(
            codec,
            "DecompressGetRequiredAlignments",
            decompress_opts=self._options(codec),
            alignment_requirements=ctypes.addressof(found),
        )
        return [found.input, found.output, found.temp]

    def temp_nbytes(self, codec, count, longest, total):
        """Scratch memory for any streams of such sizes."""
        found = ctypes.c_size_t()
        self._call(
            codec,
            f"Decompress{self._temp_size}",
            num_chunks=count,
            max_uncompressed_chunk_bytes=longest,
            decompress_opts=self._options(codec),
            temp_bytes=ctypes.addressof(found),
            max_total_uncompressed_bytes=total,
            stream=None,
        )
        return found.value

    def temp_nbytes_of(self, batch):
        """Scratch memory for these streams, which are looked at; waits for the stream."""
        found = ctypes.c_size_t()
        self._call(
            batch.codec,
            "DecompressGetTempSizeSync",
            device_compressed_chunk_ptrs=batch.column(0),
            device_compressed_chunk_bytes=batch.column(1),
            num_chunks=batch.count,
            max_uncompressed_chunk_bytes=batch.longest,
            temp_bytes=ctypes.addressof(found),
            max_total_uncompressed_bytes=batch.total,
            decompress_opts=self._options(batch.codec),
            device_statuses=batch.statuses.ptr,
            stream=batch.gpu.queue,
        )
        return found.value

    def sizes(self, batch, out):
        """Queue: what the streams say of their decoded sizes, to `out`."""
        self._call(
            batch.codec,
            "GetDecompressSizeAsync",
            device_compressed_chunk_ptrs=batch.column(0),
            device_compressed_chunk_bytes=batch.column(1),
            device_uncompressed_chunk_bytes=out,
            num_chunks=batch.count,
            stream=batch.gpu.queue,
        )

    def decompress(self, batch):
        """Queue: decode all streams of the batch."""
        self._call(
            batch.codec,
            "DecompressAsync",
            device_compressed_chunk_ptrs=batch.column(0),
            device_compressed_chunk_bytes=batch.column(1),
            device_uncompressed_buffer_bytes=batch.column(2),
            device_uncompressed_chunk_ptrs=batch.column(3),
            device_uncompressed_chunk_bytes=batch.actual.ptr,
            num_chunks=batch.count,
            device_temp_ptr=batch.temp.ptr,
            temp_bytes=batch.temp_nbytes,
            decompress_opts=self._options(batch.codec),
            device_statuses=batch.statuses.ptr,
            stream=batch.gpu.queue,
        )


class Batch:
    """Streams in device memory: their table, scratch memory, and room for sizes and statuses.

    Parameters
    ----------
    src, src_nbytes, dst, capacity : sequences of int, length n
        Addresses, and bytes.
    """

    def __init__(self, gpu, codec, src, src_nbytes, dst, capacity):
        columns = [np.asarray(c, np.uint64) for c in (src, src_nbytes, capacity, dst)]
        self.gpu, self.codec, self.count = gpu, codec, len(columns[0])
        self.longest, self.total = int(columns[2].max()), int(columns[2].sum())
        self.src_nbytes = int(columns[1].sum())
        self._table = gpu.upload(np.concatenate(columns))
        self.actual, self.statuses = gpu.allocate(8 * self.count), gpu.allocate(4 * self.count)
        gpu.fill(self.actual.ptr, 0xEE, 8 * self.count)
        gpu.fill(self.statuses.ptr, 0xEE, 4 * self.count)
        self.temp_nbytes = gpu.nvcomp.temp_nbytes(codec, self.count, self.longest, self.total)
        self.temp = gpu.allocate(self.temp_nbytes)

    def column(self, i):
        return self._table.ptr + 8 * i * self.count

    def decompress(self):
        self.gpu.nvcomp.decompress(self)

    def claimed_sizes(self):
        """What nvcomp says that the streams decode to."""
        out = self.gpu.allocate(8 * self.count)
        self.gpu.fill(out.ptr, 0xEE, 8 * self.count)
        self.gpu.nvcomp.sizes(self, out.ptr)
        self.gpu.wait(5)
        return self.gpu.download(out.ptr, 8 * self.count).view(np.uint64)

    def results(self):
        """Statuses and sizes."""
        statuses = self.gpu.download(self.statuses.ptr, 4 * self.count).view(np.int32)
        return statuses, self.gpu.download(self.actual.ptr, 8 * self.count).view(np.uint64)


def packed(streams, shift=0):
    """Streams in one array, each at `shift` modulo 16, with at least 16 other bytes between.

    Returns the bytes, offsets and sizes.
    """
    offsets, end = [], shift
    for stream in streams:
        offsets.append(end)
        end += -(-(len(stream) + 16) // 16) * 16
    out = np.full(-(-(end + 16) // 16) * 16, 0x5A, np.uint8)
    for offset, stream in zip(offsets, streams):
        out[offset : offset + len(stream)] = np.frombuffer(stream, np.uint8)
    sizes = np.array([len(stream) for stream in streams], np.uint64)
    return out, np.array(offsets, np.uint64), sizes


def repeated(gpu, codec, streams, nbytes, count, out):
    """A batch of `count` streams, all at addresses of their own, so that no cache holds them.

    Each decodes to `nbytes` bytes, or to its own of so many; one behind the other in `out`.
    """
    arena, offsets, sizes = packed(streams[:count])
    copies = -(-count // len(offsets))
    memory = gpu.allocate(copies * arena.nbytes)
    gpu.upload(arena, memory.ptr)
    done = 1
    while done < copies:  # Each copy doubles what is there.
        more = min(done, copies - done)
        gpu.copy(memory.ptr + done * arena.nbytes, memory.ptr, more * arena.nbytes)
        done += more
    gpu.wait()
    which, turn = np.arange(count) % len(offsets), np.arange(count, dtype=np.uint64) // len(offsets)
    src = np.uint64(memory.ptr) + turn.astype(np.uint64) * np.uint64(arena.nbytes) + offsets[which]
    capacity = np.broadcast_to(np.asarray(nbytes, np.uint64), len(streams))[which]
    dst = np.uint64(out.ptr) + np.cumsum(capacity) - capacity
    batch = Batch(gpu, codec, src, sizes[which], dst, capacity)
    batch.arena = memory
    return batch
