"""Decodes bombs and prints, for each, the error, the time and the growth of this process."""

import bz2
import gzip
import json
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


def blosc_frame(nbytes, blocksize, payload):
    header = struct.pack("<BBBBiii", 2, 1, 0x21, 1, nbytes, blocksize, 16 + len(payload))
    return header + payload


def bombs(nbytes):
    chunk_blocks = nbytes >> 17
    return {
        "gzip": ("gzip", deflated(31, GIBIBYTE)),
        "zlib": ("zlib", deflated(15, GIBIBYTE)),
        "bz2": ("bz2", bz2.compress(bytes(45 << 20))),
        "gzip members": ("gzip", gzip.compress(bytes(nbytes >> 1)) * 500),
        "bz2 streams": ("bz2", bz2.compress(bytes(nbytes >> 1)) * 500),
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
    face = codec.v3 or codec.v2
    return face.prepare(face.complete(face, {}, 1), 1)


def memory_nbytes(field):
    """``VmRSS``, what this process has now, or ``VmHWM``, the most it had since the reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def reset_peak():
    Path("/proc/self/clear_refs").write_text("5")


def main(nbytes):
    outcomes = {}
    values = bombs(nbytes)
    stages = {name: stage(name) for name, _ in values.values()}
    for codec in stages.values():  # What libraries allocate once is no matter of the bomb.
        codec.decode(codec.encode(bytes(1000)), 1000, exact=True)
    for label, (name, encoded) in values.items():
        reset_peak()
        before, start, error = memory_nbytes("VmRSS"), time.perf_counter(), None
        try:
            stages[name].decode(encoded, nbytes, exact=True)
        except GpustoreError as caught:
            error = type(caught).__name__
        seconds = time.perf_counter() - start
        outcomes[label] = {
            "error": error,
            "seconds": seconds,
            "growth_nbytes": memory_nbytes("VmHWM") - before,
        }
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]))
