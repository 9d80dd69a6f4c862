"""Writes docs/compatibility.md: what TensorStore and Zarr have and gpustore has not.

    python docs/compatibility.py

compares with the installed ``tensorstore``. A test fails while the page is out of date.
"""

import inspect
import json
import tempfile
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tensorstore

import gpustore
from gpustore import registry

PAGE = Path(__file__).with_suffix(".md")

HEAD = """\
# What is not there

Written by `python docs/compatibility.py`, which compares gpustore with TensorStore {version} and
with the Zarr specifications. What is listed here and named in a spec or in metadata raises a typed
error that names it; an absent Python name is not there at all. What is not listed is meant to
behave as TensorStore does.
"""

EXTENSIONS = """\
## Forms of Zarr metadata

Read in every form that occurs; written in the form that most readers take.

| what | read | written |
| --- | --- | --- |
| codecs, chunk key encoding, data type by name alone (`"zstd"`) | \
yes; `zstd` and `gzip` without a level | as objects |
| `"must_understand": true` | anywhere in an extension | left out |
| unknown codec or storage transformer with `"must_understand": false` | \
passed over, as if it were not listed | such arrays are \
not written (`UnsupportedError`): who knows it might read something else; resizing keeps it |
| `"must_understand": false` of a data type, chunk grid or chunk key encoding | \
refused, as the specification says | never |
| unknown member of an array with `"must_understand": false` | passed over | kept |
| chunk grid `rectilinear` | yes; TensorStore and zarr-python 3.1 do not | \
runs of two and more as `[size, count]`; does not grow \
beyond its edges |
| missing `compressor` or `filters` (Zarr v2) | null | always there |
| chunks of 0 elements along a dimension of extent 0 | as 1 | 1 |
"""

# Name as users know it -> file name in the folder of the package.
DRIVERS = {
    "array": "array",
    "auto": "auto",
    "cast": "cast",
    "downsample": "downsample",
    "image drivers: avif, bmp, jpeg, png, tiff, webp": "image",
    "json": "json",
    "n5": "n5",
    "neuroglancer_precomputed": "neuroglancer_precomputed",
    "stack": "stack",
    "virtual_chunked": "virtual_chunked",
    "zarr (Zarr v2)": "zarr2",
    "zarr3 (Zarr v3)": "zarr3",
}
KVSTORES = {
    "file": "file",
    "gcs": "gcs",
    "http and https": "http",
    "kvstack": "kvstack",
    "memory": "memory",
    "neuroglancer_uint64_sharded": "neuroglancer_uint64_sharded",
    "ocdbt": "ocdbt",
    "s3": "s3",
    "tsgrpc_kvstore": "tsgrpc_kvstore",
    "zarr3_sharding_indexed": "zarr3_sharding_indexed",
    "zip": "zip",
}
CODECS = {
    "blosc (v2, v3)": "blosc",
    "bytes (v3)": "bytes",
    "bz2 (v2)": "bz2",
    "crc32c (v3)": "crc32c",
    "gzip (v2, v3)": "gzip",
    "lz4 (v2)": "lz4",
    "lzma (v2)": "lzma",
    **{
        f"{id} (v2 filter, v3 as numcodecs.{id})": id
        for id in (
            *("adler32", "astype", "base64", "crc32", "delta", "fixedscaleoffset", "fletcher32"),
            *("jenkins_lookup3", "quantize"),
        )
    },
    "bitround (v2 filter, v3)": "bitround",
    "cast_value (v3)": "cast_value",
    "categorize (v2 filter)": "categorize",
    "packbits (v2 filter, v3)": "packbits",
    "reshape (v3)": "reshape",
    "scale_offset (v3)": "scale_offset",
    "zfp (v3)": "zfp",
    "sharding_indexed (v3)": "sharding_indexed",
    "shuffle (v2 filter, v3 as numcodecs.shuffle)": "shuffle",
    "transpose (v3)": "transpose",
    "vlen-bytes (v2, v3)": "vlen-bytes",
    "vlen-utf8 (v2, v3)": "vlen-utf8",
    "zlib (v2)": "zlib",
    "zstd (v2, v3)": "zstd",
}
DEVICES = {"cpu": "host", "cuda (proved on an emulated device, never run on a GPU)": "cuda"}

OPTIONS: dict[str, tuple[Any, ...]] = {
    "data_copy_concurrency": ({"limit": "shared"}, {"limit": 2}),
    "file_io_concurrency": ({"limit": "shared"}, {"limit": 2}),
    "file_io_locking": (
        {"mode": "os"},
        {"mode": "lockfile"},
        {"mode": "none"},
        {"mode": "non_atomic"},
    ),
    "file_io_mode": ({"mode": "default"}, {"mode": "memmap"}, {"mode": "direct"}),
    "file_io_retries": ({"max_retries": 3},),
    "file_io_sync": (True, False),
    "cache_pool": ({"total_bytes_limit": 1000},),
}
"""Context resources of a file, and the values that are tried."""

DATA_TYPES: dict[str, tuple[str, Any]] = {
    "numbers and bool (v2, v3)": ("zarr", "<c16"),
    "float8, float4, int2, int4, bfloat16 (v3, and in v2 as TensorStore)": ("zarr3", "int4"),
    "uint2, uint4 (v3)": ("zarr3", "uint4"),
    "float6_e2m3fn, float6_e3m2fn, float8_e4m3 (v3)": ("zarr3", "float6_e2m3fn"),
    "complex_<float> (v3)": ("zarr3", "complex_float16"),
    "r<N> (v3), V (v2)": ("zarr3", "r24"),
    "S (v2)": ("zarr", "|S3"),
    "U (v2)": ("zarr", "<U3"),
    "fixed_length_utf32 (v3)": (
        "zarr3",
        {"name": "fixed_length_utf32", "configuration": {"length_bytes": 4}},
    ),
    "M8, m8 (v2)": ("zarr", "<M8[25s]"),
    "numpy.datetime64, numpy.timedelta64 (v3)": (
        "zarr3",
        {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 25}},
    ),
    "records (v2, v3)": ("zarr", [["x", "<i4"]]),
    "records in records (v2)": ("zarr", [["x", [["y", "<i4"]], [2]]]),
    "records in records (v3)": (
        "zarr3",
        {
            "name": "structured",
            "configuration": {
                "fields": [["x", {"name": "raw_bytes", "configuration": {"length_bytes": 2}}]]
            },
        },
    ),
    "floats of more than 8 bytes (v2)": ("zarr", "<f16"),
    "string (v3)": ("zarr3", "string"),
    "bytes (v3)": ("zarr3", "bytes"),
}
"""Data types, and a driver and name that are tried."""

TABLES = (
    ("Drivers", "drivers", DRIVERS),
    ("Kvstores", "kvstores", KVSTORES),
    ("Codecs", "codecs", CODECS),
    ("Devices", "backends", DEVICES),
)


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def absent_members() -> dict[str, list[str]]:
    """Class -> names of TensorStore's class that gpustore's lacks."""
    found = {}
    for name in sorted(public(tensorstore) & public(gpustore)):
        theirs, ours = getattr(tensorstore, name), getattr(gpustore, name)
        classes = inspect.isclass(theirs) and inspect.isclass(ours)
        if classes and not issubclass(ours, Enum):
            missing = sorted(public(theirs) - public(ours))
            if missing:
                found[name] = missing
    return found


def refused_options() -> list[str]:
    """Values of context resources that TensorStore takes and gpustore does not."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        spec = {"driver": "zarr3", "kvstore": f"file://{folder}/"}
        for name, values in OPTIONS.items():
            for value in values:
                context = {name: value}
                try:
                    gpustore.open(
                        spec,
                        create=True,
                        open=True,
                        dtype="uint8",
                        shape=[1],
                        context=gpustore.Context(context),
                    ).result()
                except gpustore.UnsupportedError:
                    tensorstore.Context(context)[name]  # It is one of TensorStore's values.
                    found.append(json.dumps(context))
    return found


def has_data_type(driver: str, name: Any) -> bool:
    """Whether an array of that data type can be made."""
    member = {"zarr": "dtype", "zarr3": "data_type"}[driver]
    spec = {"driver": driver, "kvstore": "memory://", "metadata": {member: name, "shape": [2]}}
    try:
        gpustore.open(spec, create=True, context=gpustore.Context()).result()
    except gpustore.UnsupportedError:
        return False
    return True


def quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def page() -> str:
    """The text of docs/compatibility.md."""
    parts = [HEAD.format(version=version("tensorstore"))]
    for title, folder, names in TABLES:
        there = [name for name, file in names.items() if file in registry.ids(folder)]
        absent = [name for name in names if name not in there]
        parts.append(f"## {title}\n\nAbsent: {'; '.join(absent) or 'none'}.\n")
        parts.append(f"There: {'; '.join(there)}.\n")
    there = [name for name, tried in DATA_TYPES.items() if has_data_type(*tried)]
    absent = [name for name in DATA_TYPES if name not in there]
    parts.append(f"## Data types\n\nAbsent: {'; '.join(absent) or 'none'}.\n")
    parts.append(f"There: {'; '.join(there)}.\n")
    parts.append(f"## Context resources\n\nValues that are refused: {quoted(refused_options())}.\n")
    parts.append(EXTENSIONS)
    functions = sorted(public(tensorstore) - public(gpustore))
    parts.append(f"## Python names\n\nOf the module: {quoted(functions)}.\n")
    lines = [f"| `{name}` | {quoted(missing)} |" for name, missing in absent_members().items()]
    parts.append("\n".join(["| class | absent members |", "| --- | --- |", *lines]) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
