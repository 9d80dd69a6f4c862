"""Arrays to be damaged: one for each format and codec, the same everywhere else."""

import numpy as np

import gpustore

CHUNK = (16, 16)
SHAPE = (32, 32)
DTYPE = np.dtype("<u2")


def _named(name, **configuration):
    return {"name": name, "configuration": configuration}


_CRC32C = {"name": "crc32c"}
_BLOSC = {"clevel": 5, "blocksize": 0}

FORMATS = {
    "zarr2 none": ("zarr2", None),
    "zarr2 zlib": ("zarr2", {"id": "zlib", "level": 1}),
    "zarr2 gzip": ("zarr2", {"id": "gzip", "level": 1}),
    "zarr2 bz2": ("zarr2", {"id": "bz2", "level": 1}),
    "zarr2 zstd": ("zarr2", {"id": "zstd", "level": 1}),
    "zarr2 blosc lz4": ("zarr2", {"id": "blosc", "cname": "lz4", "shuffle": 1, **_BLOSC}),
    "zarr2 blosc zstd": ("zarr2", {"id": "blosc", "cname": "zstd", "shuffle": 2, **_BLOSC}),
    "zarr2 blosc zlib": ("zarr2", {"id": "blosc", "cname": "zlib", "shuffle": 0, **_BLOSC}),
    "zarr2 blosc lz4hc": ("zarr2", {"id": "blosc", "cname": "lz4hc", "shuffle": 1, **_BLOSC}),
    "zarr2 blosc snappy": ("zarr2", {"id": "blosc", "cname": "snappy", "shuffle": 1, **_BLOSC}),
    "zarr2 lz4": ("zarr2", {"id": "lz4", "acceleration": 1}),
    "zarr2 lzma": ("zarr2", {"id": "lzma", "preset": 1}),
    "zarr2 filters": (
        "zarr2",
        [
            {"id": "astype", "encode_dtype": "<f4", "decode_dtype": "<u2"},
            {"id": "quantize", "digits": 0, "dtype": "<f4"},
            {"id": "bitround", "keepbits": 23},
            {
                "id": "fixedscaleoffset",
                "scale": 1,
                "offset": 1,
                "dtype": "<f4",
                "astype": "<i4",
            },
            {"id": "delta", "dtype": "<i4", "astype": "<i2"},
            {"id": "crc32"},
            {"id": "adler32", "location": "end"},
            {"id": "fletcher32"},
            {"id": "shuffle", "elementsize": 2},
            {"id": "jenkins_lookup3"},
            {"id": "base64"},
        ],
    ),
    "zarr3 bytes": ("zarr3", []),
    "zarr3 gzip": ("zarr3", [_named("gzip", level=1)]),
    "zarr3 zstd": ("zarr3", [_named("zstd", level=1)]),
    "zarr3 zstd checksum": ("zarr3", [_named("zstd", level=1, checksum=True)]),
    "zarr3 crc32c": ("zarr3", [_CRC32C]),
    "zarr3 values": (
        "zarr3",
        [
            _named("scale_offset", offset=0, scale=7),
            _named("reshape", shape=[[0], 1, [1]]),
            _named("transpose", order=[2, 1, 0]),
            _named("cast_value", data_type="int32"),
            _named("bitround", keepbits=30),
            _named("bytes", endian="big"),
            _CRC32C,
        ],
    ),
    "zarr3 packbits": ("zarr3", [_named("packbits", last_bit=8, padding_encoding="first_byte")]),
    "zarr3 zstd crc32c": ("zarr3", [_named("zstd", level=1), _CRC32C]),
    "zarr3 crc32c gzip": ("zarr3", [_CRC32C, _named("gzip", level=1)]),
    "zarr3 blosc blosclz": (
        "zarr3",
        [_named("blosc", cname="blosclz", shuffle="shuffle", typesize=2, **_BLOSC)],
    ),
}
"""Name -> Zarr v2: the compressor, or all filters and it; Zarr v3: what follows the codec `bytes`,
or all codecs if one of them is that, or in its place."""

RAW = frozenset({"zarr2 none", "zarr3 bytes"})

SMALL_ALONE = frozenset({"zarr2 filters", "zarr3 packbits", "zarr3 values"})
"""Formats that keep small elements alone, without loss."""

CHECKSUMMED = frozenset(
    {
        *("zarr2 filters", "zarr3 values"),
        *("zarr2 zlib", "zarr2 gzip", "zarr2 bz2", "zarr2 lzma", "zarr3 gzip"),
        "zarr3 zstd checksum",
        *("zarr3 crc32c", "zarr3 zstd crc32c", "zarr3 crc32c gzip"),
    }
)
"""Formats in which no damage may go unnoticed that changes an element."""


def metadata(name, *, shape=SHAPE, chunk=CHUNK, dtype=DTYPE):
    """The members ``driver`` and ``metadata`` of a spec."""
    driver, codec = FORMATS[name]
    if driver == "zarr2":
        return {
            "driver": driver,
            "metadata": {
                "shape": list(shape),
                "chunks": list(chunk),
                "dtype": dtype.str,
                "compressor": codec[-1] if isinstance(codec, list) else codec,
                "filters": codec[:-1] if isinstance(codec, list) else None,
            },
        }
    return {
        "driver": driver,
        "metadata": {
            "shape": list(shape),
            "chunk_grid": _named("regular", chunk_shape=list(chunk)),
            "data_type": dtype.name,
            "codecs": codec
            if any(one["name"] in ("bytes", "packbits") for one in codec)
            else [_named("bytes", endian="little"), *codec],
        },
    }


def create(name, kvstore, *, context=None, **keywords):
    """A new array in `kvstore`, a URL or a JSON spec."""
    spec = {**metadata(name, **keywords), "kvstore": kvstore}
    return gpustore.open(spec, create=True, context=context).result()


def chunk_key(name, *cell):
    """Key of a chunk, relative to the array."""
    if FORMATS[name][0] == "zarr2":
        return ".".join(map(str, cell))
    return "/".join(["c", *map(str, cell)])


def values(shape=SHAPE, dtype=DTYPE):
    """Elements that compress to about half, none of them zero."""
    generator = np.random.default_rng(1)
    return (generator.integers(0, 60, shape) * 7 + 1).astype(dtype)
