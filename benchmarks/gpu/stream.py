"""Data as in arrays, and streams of them that the CPU has encoded, as Zarr's writers do."""

import concurrent.futures
import importlib
import os
import struct
import zlib

import numpy as np

from benchmarks.gpu.findings import MissingError

KIB, MIB = 1 << 10, 1 << 20

KINDS = ("camera_u2", "smooth_f4", "labels_u4")


def make_data(kind, nbytes, seed=0):
    """Give the same bytes for the same arguments, as uint8.

    ``camera_u2``: 12-bit counts with shot noise; ``smooth_f4``: a field with 12 bits of mantissa;
    ``labels_u4``: numbers of small cells.
    """
    itemsize = int(kind[-1])
    count = -(-nbytes // itemsize)
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    place = np.arange(count)
    if kind == "camera_u2":
        spots = np.sin(place / 89) * np.sin(place / 4507) > 0.9
        light = 190 + 80 * np.sin(place / 2903) ** 2 + 1000 * spots
        noise = np.sqrt(light) * rng.standard_normal(count, dtype=np.float32)
        data = np.clip(light + noise, 1, 4095).astype("<u2")
    elif kind == "smooth_f4":
        field = 275 + 11 * np.sin(place / 877) + 6 * np.cos(place / 39989)
        field = (field + 0.3 * rng.standard_normal(count, dtype=np.float32)).astype("<f4")
        data = (field.view("<u4") + np.uint32(1 << 10)) & np.uint32(0xFFFFF800)
    else:
        row, column = np.divmod(place, 1024)
        cells = rng.integers(1, 1 << 20, 1 << 16, dtype=np.uint32)
        edges = rng.integers(0, 5, count // 1024 + 1)[row]
        data = cells[(row // 11 * 131 + (column + edges) // 13) % cells.size].astype("<u4")
    return data.view(np.uint8)[:nbytes]


def _package(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingError(f"{name}: {error}") from error


def deflate(decoded, window_bits, level=6, strategy=zlib.Z_DEFAULT_STRATEGY):
    """Raw deflate (-15), zlib (15) or gzip (31)."""
    encoder = zlib.compressobj(level, zlib.DEFLATED, window_bits, 9, strategy)
    return encoder.compress(decoded) + encoder.flush()


def _snappy(decoded):
    try:
        return bytes(_package("cramjam").snappy.compress_raw(decoded))
    except MissingError:
        return _package("pyarrow").Codec("snappy").compress(decoded).to_pybytes()


def encode(codec, decoded):
    """One stream as nvcomp wants it: LZ4 and Snappy raw, deflate without zlib's header."""
    decoded = bytes(decoded)
    if codec == "lz4":
        return bytes(_package("numcodecs.lz4").LZ4().encode(decoded))[4:]
    if codec == "zstd":
        return bytes(_package("numcodecs.zstd").Zstd(level=3).encode(decoded))
    if codec == "snappy":
        return _snappy(decoded)
    return deflate(decoded, -15 if codec == "deflate" else 31)


def decode(codec, encoded, nbytes):
    """One stream, decoded by the CPU; the libraries' own errors."""
    encoded = bytes(encoded)
    if codec == "lz4":
        header = struct.pack("<i", nbytes)
        return bytes(_package("numcodecs.lz4").LZ4().decode(header + encoded)) if nbytes else b""
    if codec == "zstd":
        return bytes(_package("numcodecs.zstd").Zstd().decode(encoded))
    if codec == "snappy":
        try:
            return bytes(_package("cramjam").snappy.decompress_raw(encoded))
        except MissingError:
            found = _package("pyarrow").Codec("snappy").decompress(encoded, nbytes)
            return found.to_pybytes()
    decoder = zlib.decompressobj(-15 if codec == "deflate" else 31)
    decoded = decoder.decompress(encoded) + decoder.flush()
    if not decoder.eof:
        raise ValueError("deflate: the stream is cut off")
    return decoded


def make_streams(codec, sizes, kinds=KINDS, distinct=4):
    """Up to `distinct` streams of each kind and size, encoded on all processors.

    Returns
    -------
    dict
        (kind, nbytes) -> (decoded, uint8, of shape (streams, nbytes); list of bytes)
    """
    jobs = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for kind in kinds:
            data = make_data(kind, max(sizes))
            for nbytes in sizes:
                count = max(1, min(distinct, data.size // nbytes, 8 * MIB // nbytes))
                rows = data[: count * nbytes].reshape(count, nbytes)
                jobs[kind, nbytes] = rows, [pool.submit(encode, codec, row) for row in rows]
    return {key: (rows, [job.result() for job in made]) for key, (rows, made) in jobs.items()}
