"""Odd and damaged values: the native core and Python give the same elements or the same error."""

import functools
import gzip
import zlib

import google_crc32c
import numpy as np
import pytest
import zstandard
from numcodecs import lz4, zstd

import gpustore
from gpustore.backends.native import library
from tests.backends.native.stored_arrays import CNAMES, CRC32C, compare, created, is_error, named
from tests.matrix import each

pytestmark = pytest.mark.skipif(library.library() is None, reason=str(library.why_not()))

DATA = (np.arange(2000) // 3).astype("<u2").reshape(40, 50)

BLOSC_BYTES = sorted({0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 64, 96, 127, 128, 254, 255})


@pytest.mark.matrix
@each("place", range(24))
@each("cname", CNAMES)
@each("whole", [True, False])
def test_every_byte_of_a_blosc_header(cname, place, whole, tmp_path):
    """Of a frame of one block that is read whole, and of one of many that is read in part."""
    side = 20 if whole else 300
    codec = named(
        "blosc",
        cname=cname,
        shuffle="shuffle",
        typesize=2,
        clevel=5,
        blocksize=0 if whole else 8192,
    )
    little = named("bytes", endian="little")
    store = created(tmp_path, [side, side], [side, side], "uint16", [little, codec])
    store[...] = np.arange(side * side, dtype="uint16").reshape(side, side) // 7
    view = store if whole else store[150:160, 3:5]
    file = tmp_path / "c" / "0" / "0"
    value = bytearray(file.read_bytes())
    before = value[place]
    for number in BLOSC_BYTES:
        value[place] = number
        file.write_bytes(value)
        assert is_error(compare(view)) or number == before or place in range(1, 24)


def zstd_unsized(data, **parameters):
    """Frame that does not tell the size of its contents, which are not known when it begins."""
    parameters = zstandard.ZstdCompressionParameters(write_content_size=False, **parameters)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(data) + compressor.flush()


@functools.cache  # The huge window takes 4 GiB of addresses, of which a sanitizer keeps count.
def odd_values():
    """Name -> codec of Zarr v2, and bytes that a strict or a lenient decoder may refuse."""
    data = DATA.tobytes()
    half = len(data) // 2
    frame, empty = zstd.compress(data, 1), zstd.compress(b"", 1)
    unsized = zstd_unsized(data)
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0skip"
    member = gzip.compress(data, mtime=0)
    halves = gzip.compress(data[:half]) + gzip.compress(data[half:])
    stream = zlib.compress(data)
    dictionary = zlib.compressobj(zdict=b"some")
    block = lz4.compress(data)
    return {
        "zstd": ("zstd", frame),
        "zstd, unknown size": ("zstd", unsized),
        "zstd, unknown size, longer": ("zstd", zstd_unsized(data + b"\0")),
        "zstd, unknown size, shorter": ("zstd", zstd_unsized(data[:-1])),
        "zstd, unknown size, halves": (
            "zstd",
            zstd_unsized(data[:half]) + zstd_unsized(data[half:]),
        ),
        "zstd, unknown size, huge window": ("zstd", zstd_unsized(data, window_log=31)),
        "zstd, unknown size, more": ("zstd", unsized + b"more"),
        "zstd, unknown size, twice": ("zstd", unsized * 2),
        "zstd, unknown size, cut": ("zstd", unsized[:-1]),
        "zstd, skippable before": ("zstd", skippable + frame),
        "zstd, skippable behind": ("zstd", frame + skippable),
        "zstd, skippable alone": ("zstd", skippable),
        "zstd, two halves": ("zstd", zstd.compress(data[:half], 1) + zstd.compress(data[half:], 1)),
        "zstd, twice": ("zstd", frame * 2),
        "zstd, empty frame before": ("zstd", empty + frame),
        "zstd, empty frame behind": ("zstd", frame + empty),
        "zstd, more": ("zstd", frame + b"\0"),
        "zstd, longer": ("zstd", zstd.compress(data + b"\0", 1)),
        "zstd, shorter": ("zstd", zstd.compress(data[:-1], 1)),
        "gzip": ("gzip", member),
        "gzip, two halves": ("gzip", halves),
        "gzip, twice": ("gzip", member * 2),
        "gzip, empty member behind": ("gzip", member + gzip.compress(b"")),
        "gzip, zeros behind": ("gzip", member + bytes(8)),
        "gzip, more": ("gzip", member + b"more"),
        "gzip, name and extra": (
            "gzip",
            member[:3] + b"\x0c" + member[4:10] + b"\2\0xxname\0" + member[10:],
        ),
        "gzip, checksum of the header": (
            "gzip",
            member[:3] + b"\2" + member[4:10] + b"\0\0" + member[10:],
        ),
        "gzip, reserved flag": ("gzip", member[:3] + b"\x80" + member[4:]),
        "gzip, longer": ("gzip", gzip.compress(data + b"\0")),
        "gzip, shorter": ("gzip", gzip.compress(data[:-1])),
        "gzip is zlib": ("gzip", stream),
        "zlib": ("zlib", stream),
        "zlib, more": ("zlib", stream + b"more"),
        "zlib, twice": ("zlib", stream * 2),
        "zlib, dictionary": ("zlib", dictionary.compress(data) + dictionary.flush()),
        "zlib is gzip": ("zlib", member),
        "zlib, longer": ("zlib", zlib.compress(data + b"\0")),
        "lz4": ("lz4", block),
        "lz4, more": ("lz4", block + b"\0"),
        "lz4, other size": ("lz4", b"\1\0\0\0" + block[4:]),
        "lz4, no block": ("lz4", block[:4]),
        "lz4, negative size": ("lz4", b"\xff" * 4 + block[4:]),
        "lz4, shorter": ("lz4", lz4.compress(data[:-1])),
    }


@pytest.mark.parametrize("name", odd_values())
def test_odd_values(name, tmp_path):
    codec, value = odd_values()[name]
    metadata = {
        "shape": [40, 50],
        "chunks": [40, 50],
        "dtype": "<u2",
        "compressor": {"id": codec, **({"acceleration": 1} if codec == "lz4" else {"level": 1})},
        "filters": None,
    }
    spec = {"driver": "zarr2", "kvstore": f"file://{tmp_path}/", "metadata": metadata}
    store = gpustore.open(spec, create=True).result()
    (tmp_path / "0.0").write_bytes(value)
    compare(store)
    compare(store[3, 4:7])


NOTHING = 2**64 - 1
ENTRIES = {
    "all there": [(0, 32), (32, 32), (64, 32), (96, 32)],
    "the same bytes twice": [(0, 32), (0, 32), (16, 32), (96, 32)],
    "in another order": [(96, 32), (64, 32), (32, 32), (0, 32)],
    "none there": [(NOTHING, NOTHING)] * 4,
    "one missing": [(0, 32), (NOTHING, NOTHING), (64, 32), (96, 32)],
    "half missing": [(0, 32), (NOTHING, 32), (64, 32), (96, 32)],
    "length missing": [(0, 32), (32, NOTHING), (64, 32), (96, 32)],
    "into the index": [(0, 32), (32, 32), (64, 32), (112, 32)],
    "the index": [(128, 32), (32, 32), (64, 32), (96, 32)],
    "behind the end": [(0, 32), (32, 32), (64, 32), (4000, 32)],
    "overflow": [(0, 32), (NOTHING - 15, 32), (64, 32), (96, 32)],
    "int64 overflow": [(0, 32), (2**63 - 16, 32), (64, 32), (96, 32)],
    "no bytes": [(0, 32), (32, 0), (64, 32), (96, 32)],
    "too long": [(0, 33), (32, 32), (64, 32), (96, 32)],
    "too short": [(0, 31), (32, 32), (64, 32), (96, 32)],
    "huge": [(0, 2**62), (32, 32), (64, 32), (96, 32)],
}


@pytest.mark.parametrize("name", ENTRIES)
@each("location", ["start", "end"])
@each("checksum", [True, False])
def test_indices_of_shards(name, location, checksum, tmp_path):
    index = [named("bytes", endian="little"), CRC32C][: 1 + checksum]
    sharding = named(
        "sharding_indexed",
        chunk_shape=[4, 4],
        codecs=[named("bytes", endian="little")],
        index_codecs=index,
        index_location=location,
    )
    store = created(tmp_path, [8, 8], [8, 8], "uint16", [sharding])
    before = 0 if location == "end" else 64 + 4 * checksum
    moved = [(at + before if at < 2**62 else at, nbytes) for at, nbytes in ENTRIES[name]]
    table = np.array(moved, "<u8").tobytes()
    if checksum:
        table += google_crc32c.value(table).to_bytes(4, "little")
    chunks = np.arange(64, dtype="<u2").tobytes()
    (tmp_path / "c" / "0").mkdir(parents=True)
    file = tmp_path / "c" / "0" / "0"
    file.write_bytes(chunks + table if location == "end" else table + chunks)
    for view in (store, store[1, 2], store[5:, 5:], store[::3, ::-3]):
        compare(view)
    table = bytes([table[0] ^ 1]) + table[1:]
    file.write_bytes(chunks + table if location == "end" else table + chunks)
    compare(store)
