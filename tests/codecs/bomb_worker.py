"""Decodes bombs and prints, for each, the error, the time and the growth of this process."""

import bz2
import ctypes
import gzip
import json
import lzma
import struct
import sys
import time
import zlib
from pathlib import Path

from gpustore import registry
from gpustore.errors import GpustoreError

GIBIBYTE = 1 << 30


def deflated(wbits, nbytes):
    """A stream of `nbytes` zeros, made of one compressed piece over and over, without its end."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, wbits)
    first = compressor.compress(bytes(1 << 20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    again = compressor.compress(bytes(1 << 20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return first + again * (nbytes >> 20)


def zstd_frame(blocks, header=b"\x00\x38"):
    """A frame of runs of 128 KiB; by default it does not tell its size."""
    runs = [struct.pack("<I", 128 << 10 << 3 | 2)[:3] + b"x"] * blocks
    if blocks:
        runs[-1] = bytes([runs[-1][0] | 1]) + runs[-1][1:]
    return b"\x28\xb5\x2f\xfd" + header + b"".join(runs)


def blosc_frame(nbytes, blocksize, payload, flags=0x21):
    header = struct.pack("<BBBBiii", 2, 1, flags, 1, nbytes, blocksize, 16 + len(payload))
    return header + payload


def snappy_block(nbytes, claimed=None):
    """A block of zeros, 64 by each element but the first."""
    length = nbytes if claimed is None else claimed
    varint = bytes([length >> shift & 127 | 128 for shift in (0, 7, 14, 21)] + [length >> 28])
    return varint + b"\x00\x00" + b"\xfe\x01\x00" * (nbytes // 64)


def snappy_frame(nbytes, block):
    return blosc_frame(nbytes, nbytes, struct.pack("<ii", 20, len(block)) + block, 0x51)


def one_stream_for_all_blocks(nbytes):
    """Every block is the same stream, but the last, which is none."""
    stream = b"\x40\x00\x00\xfa\x01\x00"
    starts = [16 + 4 * (nbytes >> 6)] * ((nbytes >> 6) - 1) + [0]
    body = struct.pack(f"<{len(starts)}i", *starts) + struct.pack("<i", len(stream)) + stream
    return blosc_frame(nbytes, 64, body, 0x50)


def bombs(nbytes):
    chunk_blocks = nbytes >> 17
    return {
        "gzip": ("gzip", deflated(31, GIBIBYTE)),
        "zlib": ("zlib", deflated(15, GIBIBYTE)),
        "bz2": ("bz2", bz2.compress(bytes(45 << 20))),
        "gzip members": ("gzip", gzip.compress(bytes(nbytes >> 1)) * 500),
        "bz2 streams": ("bz2", bz2.compress(bytes(nbytes >> 1)) * 500),
        "lzma": ("lzma", lzma.compress(bytes(64 << 20), preset=0)),
        "lzma streams": ("lzma", lzma.compress(bytes(nbytes >> 1)) * 500),
        "lzma empty streams": ("lzma", lzma.compress(b"") * 1000 + b"x"),
        "lz4": ("lz4", struct.pack("<I", nbytes) + b"\x1f\x00\x01\x00" + b"\xff" * (8 << 20)),
        "lz4 claims 4 GiB": ("lz4", b"\xff" * 4 + bytes(64)),
        "snappy": ("blosc", snappy_frame(nbytes, snappy_block(16 * nbytes, nbytes))),
        "snappy claims 4 GiB": ("blosc", snappy_frame(nbytes, snappy_block(64, 2**32 - 1))),
        "snappy blocks": ("blosc", one_stream_for_all_blocks(nbytes)),
        "zstd": ("zstd", zstd_frame(GIBIBYTE >> 17)),
        "zstd claims 1 TiB": ("zstd", zstd_frame(8192, b"\xe0" + struct.pack("<Q", 1 << 40))),
        "zstd claims one chunk": ("zstd", zstd_frame(8192, b"\xa0" + struct.pack("<I", nbytes))),
        "zstd frames": ("zstd", zstd_frame(chunk_blocks) * 1000),
        "zstd window": ("zstd", zstd_frame(chunk_blocks + 1, b"\x00\x88")),
        "blosc claims 1 GiB": ("blosc", blosc_frame(GIBIBYTE, GIBIBYTE, bytes(64))),
        "blosc claims 2 GiB block": ("blosc", blosc_frame(nbytes, 2**31 - 1, bytes(64))),
    }


def stage(name):
    codec = registry.find("codecs", name)
    variant = codec.v3 or codec.v2
    return variant.prepare(variant.complete(variant, {}, 1), 1)


def memory_nbytes(field):
    """``VmRSS``, what this process has now, or ``VmHWM``, the most it had since the reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def reset_peak():
    # What was freed counts as used until it is given back, and would hide what comes after it.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def main(nbytes):
    outcomes = {}
    values = bombs(nbytes)
    stages = {name: stage(name) for name, _ in values.values()}
    for codec in stages.values():  # What libraries allocate once is no matter of the bomb.
        codec.decode(codec.encode(bytes(1000)), 1000, exact=True)
    for label, (name, encoded) in values.items():
        reset_peak()
        before, start, error = memory_nbytes("VmRSS"), time.process_time(), None
        try:
            stages[name].decode(encoded, nbytes, exact=True)
        except GpustoreError as caught:
            error = type(caught).__name__
        seconds = time.process_time() - start
        outcomes[label] = {
            "error": error,
            "processor_seconds": seconds,
            "growth_nbytes": memory_nbytes("VmHWM") - before,
        }
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]))
