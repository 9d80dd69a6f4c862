"""Encoded streams as other libraries make them, by the names of gpustore.device.protocol."""

import gzip
import zlib

import numcodecs.lz4
import numpy as np
import zstandard

from tests import snappy

CODECS = ("lz4", "snappy", "zstd", "deflate", "gzip")


def smooth(nbytes, seed=0):
    """Bytes as an image has them: they compress, but not to nothing."""
    steps = np.random.default_rng(seed).integers(-3, 4, nbytes // 2 + 1)
    return (1000 + steps.cumsum()).astype("<u2").tobytes()[:nbytes]


def encode(codec, data):
    if codec == "lz4":
        return numcodecs.lz4.compress(data)[4:]
    if codec == "snappy":
        return snappy.encode(data)
    if codec == "zstd":
        return zstandard.ZstdCompressor(level=3).compress(data)
    if codec == "deflate":
        encoder = zlib.compressobj(6, zlib.DEFLATED, -15)
        return encoder.compress(data) + encoder.flush()
    return gzip.compress(data, 6, mtime=0)


def decode(codec, data, nbytes):
    if codec == "lz4":
        return numcodecs.lz4.decompress(nbytes.to_bytes(4, "little") + data)
    if codec == "snappy":
        return snappy.decode(data)
    if codec == "zstd":
        return zstandard.ZstdDecompressor().decompress(data)
    return zlib.decompress(data, -15 if codec == "deflate" else 31)
