"""The features of the Zarr v2 specification, as files: see :mod:`tests.interop.feature`."""

from __future__ import annotations

import base64
import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numcodecs
import numpy as np

from tests.interop.feature import (
    LIBRARY_OPTIONS,
    LIBRARY_VALUES,
    SHAPE,
    Feature,
    any_length,
    node,
    numbers,
    zarr2,
)

__all__ = ["features"]

ARRAYS, TYPES, FILLS = "Zarr v2: arrays", "Zarr v2: data types", "Zarr v2: fill values"
COMPRESSORS, FILTERS = "Zarr v2: compressors", "Zarr v2: filters"
GROUPS, FOREIGN = "Zarr v2: hierarchies", "Zarr v2: what other writers store"


def features() -> Iterator[Feature]:
    """All of them, in the order of the specification."""
    yield from _arrays()
    yield from _types()
    yield from _fills()
    yield from _compressors()
    yield from _filters()
    yield from _groups()
    yield from _foreign()


def _arrays() -> Iterator[Feature]:
    yield zarr2(ARRAYS, "order C, chunks at the edges")
    yield zarr2(ARRAYS, "order F", order="F")
    yield zarr2(ARRAYS, "rank 0", numbers(shape=()), chunks=())
    yield zarr2(ARRAYS, "extent 0", numbers(shape=(0, 5)))
    yield zarr2(ARRAYS, "chunks larger than the array", numbers(shape=(2, 3)), chunks=(4, 8))
    yield zarr2(ARRAYS, 'separator `"/"`', separator="/")
    yield zarr2(ARRAYS, "`dimension_separator` missing", absent=["dimension_separator"])
    yield zarr2(ARRAYS, "other members are ignored", more={"a": 1})
    yield zarr2(ARRAYS, "`.zattrs` beside the array", files={".zattrs": node({"unit": "mm"})})
    values = numbers("<f8", (4, 5))
    delta = numcodecs.Delta("<f8", "<f4")
    blosc = numcodecs.Blosc("lz4", 5, 1)
    yield zarr2(
        ARRAYS,
        "the example of the specification",
        values,
        lambda chunk: blosc.encode(delta.encode(chunk.reshape(-1))),
        compressor={"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
        filters=[{"id": "delta", "dtype": "<f8", "astype": "<f4"}],
        fill_value="NaN",
        fill=np.nan,
        plain=blosc.decode,
        # Behind the edge there is NaN, of which delta makes more.
        chunks=(2, 5),
        absent=["dimension_separator"],
    )


def _types() -> Iterator[Feature]:
    yield zarr2(TYPES, "`|b1`", numbers("?"), fill_value=False)
    for title, *names in (
        ("integers", "|i1", "<i2", "<i8", "|u1", "<u4", "<u8"),
        ("integers, big endian", ">i4", ">u2"),
        ("floats", "<f2", "<f4", "<f8"),
        ("floats, big endian", ">f4"),
        ("complex", "<c8", "<c16"),
        ("complex, big endian", ">c8"),
    ):
        for name in names:
            zero = [0.0, 0.0] if "c" in name else 0
            yield zarr2(TYPES, title, numbers(name), fill_value=zero, case=f"`{name}`")
    long = numbers().astype("<f16")
    yield zarr2(TYPES, "floats of more than 8 bytes: `<f16`", long, dtype="<f16")
    yield zarr2(TYPES, "`|S3`", numbers().astype("S3"), fill=b"", fill_value="AAAA")
    yield zarr2(TYPES, "`U`", numbers().astype("<U3"), fill="", fill_value="", case="`<U3`")
    yield zarr2(TYPES, "`U`", numbers().astype(">U3"), fill="", fill_value="", case="`>U3`")
    raw = np.frombuffer(bytes(range(60)), "V3").reshape(SHAPE)
    yield zarr2(TYPES, "`|V3`", raw, fill=np.zeros((), "V3"), fill_value="AAAA", dtype="|V3")
    for name in ("<M8[ns]", ">M8[25s]", "<m8[D]"):
        times = numbers("<i8").astype(np.dtype(name).newbyteorder("<")).astype(name)
        zero = np.zeros((), name)
        yield zarr2(TYPES, "`M8`, `m8`", times, fill=zero, dtype=name, case=f"`{name}`")
    yield _records("records", [("r", "|u1"), ("g", "<i4"), ("b", ">f4")])
    yield _records("records with subarrays", [("x", "<f4"), ("z", "<f4", (2, 2))])
    yield _records("records in records", [("foo", "<f4"), ("bar", [("baz", "<f4"), ("q", "<i4")])])
    for name, code in (("strings", "vlen-utf8"), ("bytes", "vlen-bytes")):
        values, encode = any_length(code)
        yield zarr2(
            TYPES,
            f"{name} of any length, `|O` with `{code}`",
            values,
            encode,
            dtype="|O",
            filters=[{"id": code}],
            **{"fill": "" if code == "vlen-utf8" else b"", "fill_value": ""},
        )
    for name in ("bfloat16", "float8_e5m2", "int4"):
        dtype = np.dtype(getattr(ml_dtypes, name))
        small = (numbers("i8") % 7).astype(dtype)
        yield zarr2(TYPES, "extensions of TensorStore", small, dtype=name, case=f"`{name}`")


def _records(title: str, fields: list[Any]) -> Feature:
    dtype = np.dtype(fields)
    random = np.random.default_rng(1)
    values = np.zeros(SHAPE, dtype)
    _fill_records(values, random)
    zero = np.zeros((), dtype)
    return zarr2(
        TYPES,
        title,
        values,
        **{"fill": zero, "fill_value": base64.b64encode(zero.tobytes()).decode()},
        dtype=[[name, *(_descr(dtype[name]))] for name in (dtype.names or ())],
    )


def _descr(dtype: np.dtype) -> list[Any]:
    if dtype.names is not None:
        return [[[name, *_descr(dtype[name])] for name in dtype.names]]
    return [dtype.base.str, list(dtype.shape)] if dtype.shape else [dtype.str]


def _fill_records(values: np.ndarray, random: np.random.Generator) -> None:
    for name in values.dtype.names or ():
        part = values[name]
        if part.dtype.names is not None:
            _fill_records(part, random)
        else:
            part[...] = random.integers(1, 100, part.shape)


def _fills() -> Iterator[Feature]:
    def filled(title: str, kind: Any, fill: Any, json: Any, **more: Any) -> Feature:
        """The first chunk is missing, as are chunks of nothing else than the fill value."""
        values = np.array(more.pop("values") if "values" in more else numbers(kind))
        values[:2, :3] = fill
        return zarr2(FILLS, title, values, fill=fill, fill_value=json, missing=[(0, 0)], **more)

    yield filled("a number", "<i4", 7, 7)
    null = zarr2(FILLS, "`null`: read as 0", fill_value=None, missing=[(0, 0)], is_written=False)
    null.values[:2, :3] = 0
    yield null
    zeros = numbers()
    zeros[:2, :3] = 0
    yield zarr2(FILLS, "`null`: chunks of zeros are stored", zeros, fill_value=None)
    yield filled('`"NaN"`', "<f4", np.nan, "NaN")
    yield filled('`"Infinity"`', "<f4", np.inf, "Infinity")
    yield filled('`"-Infinity"`', "<f8", -np.inf, "-Infinity")
    zeros = numbers("<f8")
    zeros[:2, :3] = 0.0
    yield zarr2(
        FILLS, "0.0 is not -0.0: chunks of it are stored", zeros, fill_value=-0.0, fill=-0.0
    )
    yield filled("complex, with `NaN`", "<c8", complex(np.nan, 2), ["NaN", 2.0])
    yield filled("`true`", "?", True, True)
    strings = numbers().astype("S3")
    yield filled("base64 of `S`", "S3", b"ab", "YWIA", values=strings)
    yield filled("text of `U`", "<U3", "né", "né", values=strings.astype("<U3"))
    times = numbers("<i8").view("<M8[s]")
    yield filled("`NaT`", "<M8[s]", np.datetime64("NaT"), "NaT", values=times)
    records = np.zeros(SHAPE, [("x", "<i2"), ("y", ">f4")])
    records["x"], records["y"] = numbers(), numbers("f4")
    fill = np.array((-3, 1.5), records.dtype)
    yield filled(
        "base64 of records",
        records.dtype,
        fill,
        base64.b64encode(fill.tobytes()).decode(),
        values=records,
        dtype=[["x", "<i2"], ["y", ">f4"]],
    )


def _compressors() -> Iterator[Feature]:
    yield zarr2(COMPRESSORS, "`null`")
    for cname in ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"):
        blosc = numcodecs.Blosc("lz4" if cname == "snappy" else cname, 5, 1)
        yield zarr2(
            COMPRESSORS,
            f"`blosc` of `{cname}`",
            numbers("<i4"),
            _snappy_frame if cname == "snappy" else blosc.encode,
            compressor={"id": "blosc", "cname": cname, "clevel": 5, "shuffle": 1, "blocksize": 0},
            plain=_unframed if cname == "snappy" else blosc.decode,
        )
    for name, encode, plain, options in (
        ("zlib", zlib.compress, zlib.decompress, {"level": 1}),
        ("gzip", gzip.compress, gzip.decompress, {"level": 1}),
        ("bz2", bz2.compress, bz2.decompress, {"level": 1}),
        ("zstd", numcodecs.Zstd(1).encode, numcodecs.Zstd(1).decode, {"level": 1}),
        ("lz4", numcodecs.LZ4(1).encode, numcodecs.LZ4(1).decode, {"acceleration": 1}),
        (
            "lzma",
            lzma.compress,
            lzma.decompress,
            {"format": 1, "check": -1, "preset": None, "filters": None},
        ),
        ("crc32c", numcodecs.CRC32C().encode, bytes, {"location": "end"}),
    ):
        yield zarr2(
            COMPRESSORS,
            f"`{name}`",
            None,
            lambda chunk, encode=encode: bytes(encode(chunk.tobytes())),
            compressor={"id": name, **options},
            plain=plain,
        )
    for name in ("zfpy", "pcodec"):
        yield zarr2(
            COMPRESSORS,
            f"`{name}`",
            numbers("<i4"),
            lambda chunk, name=name: bytes.fromhex(LIBRARY_VALUES[name][chunk.tobytes()]),
            compressor=LIBRARY_OPTIONS[name],
        )


def _snappy_frame(chunk: np.ndarray) -> bytes:
    """A Blosc frame of one block, whose stream is a literal of Snappy."""
    data = chunk.tobytes()
    assert len(data) <= 60
    stream = bytes([len(data), (len(data) - 1) << 2]) + data
    body = len(stream).to_bytes(4, "little") + stream
    # Version 2, Snappy's version 1, no shuffle, one stream a block, of Snappy (2).
    header = bytes([2, 1, 2 << 5 | 0x10, chunk.itemsize])
    sizes = (len(data), len(data), 16 + 4 + len(body))
    return b"".join(
        (header, *(n.to_bytes(4, "little") for n in sizes), (20).to_bytes(4, "little"), body)
    )


def _unframed(frame: bytes) -> bytes:
    """How many bytes a frame holds; it is read back as well."""
    return frame[4:8]


def _filters() -> Iterator[Feature]:
    doubles = numbers("<f8")
    for name, values, options in (
        ("delta", None, {"dtype": "<i2"}),
        ("fixedscaleoffset", doubles, {"scale": 2, "offset": -3, "dtype": "<f8", "astype": "<i2"}),
        ("quantize", doubles, {"digits": 1, "dtype": "<f8", "astype": "<f4"}),
        ("astype", None, {"encode_dtype": "<i4", "decode_dtype": "<i2"}),
        ("packbits", numbers("?"), {}),
        ("shuffle", None, {"elementsize": 2}),
        ("bitround", numbers("<f4"), {"keepbits": 10}),
        ("categorize", _words(), {"labels": ["ab", "né"], "dtype": "<U2", "astype": "|u1"}),
        ("crc32", None, {}),
        ("crc32c", None, {}),
        ("adler32", None, {}),
        ("fletcher32", None, {}),
        ("jenkins_lookup3", None, {}),
        ("base64", None, {}),
    ):
        library = numcodecs.get_codec({"id": name, **options})
        zero = False if name == "packbits" else "" if name == "categorize" else 0
        yield zarr2(
            FILTERS,
            f"`{name}`",
            values,
            lambda chunk, library=library: bytes(
                np.asarray(library.encode(np.ascontiguousarray(chunk))).tobytes()
            ),
            filters=[{"id": name, **options}],
            **{"fill": zero, "fill_value": zero},
        )
    shuffle, delta = numcodecs.Shuffle(2), numcodecs.Delta("<i2")
    zstd = numcodecs.Zstd(1)
    yield zarr2(
        FILTERS,
        "several, then a compressor",
        None,
        lambda chunk: zstd.encode(shuffle.encode(delta.encode(chunk.reshape(-1)))),
        filters=[{"id": "delta", "dtype": "<i2"}, {"id": "shuffle", "elementsize": 2}],
        compressor={"id": "zstd", "level": 1},
        plain=zstd.decode,
    )
    yield zarr2(
        FILTERS,
        "order F",
        None,
        lambda chunk: delta.encode(chunk.reshape(-1, order="F")).tobytes(),
        filters=[{"id": "delta", "dtype": "<i2"}],
        order="F",
    )
    for name in ("pickle", "json2", "msgpack2"):
        yield zarr2(
            FILTERS,
            "objects",
            numbers().astype(object),
            lambda chunk: b"\x80\x04N.",
            **{"dtype": "|O", "filters": [{"id": name}], "fill_value": None, "fill": None},
            must_refuse=True,
            case=f"`{name}`",
        )


def _words() -> np.ndarray:
    return np.array(["ab", "né", "ab", "", "né"] * 4, "<U2").reshape(SHAPE)


def _groups() -> Iterator[Feature]:
    group, attributes = node({"zarr_format": 2}), {"author": "me", "list": [1, None]}
    array = zarr2("", "").files
    files = {
        ".zgroup": group,
        ".zattrs": node(attributes),
        "a/.zgroup": group,
        "b/.zgroup": group,
        **{f"b/c/{key}": value for key, value in array.items()},
        "b/c/.zattrs": node({"unit": "mm"}),
    }
    members = {"a": "group", "b": "group", "b/c": "array"}
    yield Feature(
        GROUPS,
        "groups, attributes, members",
        files,
        {"attributes": attributes, "members": members},
        "group",
    )
    yield Feature(GROUPS, "attributes of an array", files, {"unit": "mm"}, "array_attributes")
    yield Feature(
        GROUPS,
        "logical paths are normalised (`/b\\\\c/`)",
        files,
        numbers().tolist(),
        "logical_path",
        is_written=False,
    )
    metadata = {
        key: value
        for key, value in files.items()
        if key.rpartition("/")[2] in (".zgroup", ".zattrs", ".zarray")
    }
    text = b", ".join(b'"%s": %s' % (key.encode(), value) for key, value in metadata.items())
    consolidated = b'{"zarr_consolidated_format": 1, "metadata": {%s}}' % text
    yield Feature(
        GROUPS,
        "consolidated metadata, `.zmetadata`",
        {**files, ".zmetadata": consolidated},
        {"attributes": attributes, "members": members},
        "consolidated",
    )


def _foreign() -> Iterator[Feature]:
    for name in ("compressor", "filters"):
        yield zarr2(FOREIGN, "`compressor` or `filters` missing", absent=[name], case=f"`{name}`")
    yield zarr2(FOREIGN, "fill value of `|b1` as a number", numbers("?"), fill_value=0)
    text = numbers().astype("S3")
    yield zarr2(FOREIGN, 'fill value `""` of `S`', text, fill=b"", fill_value="")
    records = np.zeros(SHAPE, [("x", "<i2"), ("y", "<f4")])
    records["x"], records["y"] = numbers(), numbers("f4")
    yield zarr2(
        FOREIGN,
        "fill value 0 of records",
        records,
        **{"dtype": [["x", "<i2"], ["y", "<f4"]], "fill_value": 0},
        fill=np.zeros((), records.dtype),
    )
    nan = numbers("<f4")
    nan[:2, :3] = np.nan
    yield zarr2(
        FOREIGN,
        "fill value `NaN`, no string",
        nan,
        fill_value=np.nan,
        fill=np.nan,
        missing=[(0, 0)],
    )
    yield zarr2(FOREIGN, "chunks of 0 elements", numbers(shape=(0, 5)), chunks=(0, 3))
    yield zarr2(
        FOREIGN,
        "members of numcodecs in a compressor",
        numbers("<i4"),
        numcodecs.Blosc("lz4", 5, 1).encode,
        compressor={
            **{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
            "typesize": None,
        },
        plain=numcodecs.Blosc("lz4", 5, 1).decode,
    )
