"""The features of the Zarr v3 core and of the registered extensions, as files."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c
import ml_dtypes
import numcodecs
import numpy as np

from tests.interop.feature import (
    LIBRARY_OPTIONS,
    LIBRARY_VALUES,
    SHAPE,
    Feature,
    any_length,
    codec,
    node,
    numbers,
    stored_bytes,
    zarr3,
)

__all__ = ["features"]

ARRAYS, TYPES, FILLS = "Zarr v3: arrays", "Zarr v3: data types", "Zarr v3: fill values"
CODECS, SHARDS = "Zarr v3: codecs", "Zarr v3: shards"
UNDERSTOOD = "Zarr v3: extension points"
MORE_TYPES, MORE_CODECS = "Registered data types", "Registered codecs and grids"
NUMCODECS = "Codecs `numcodecs.*`"
GROUPS, FOREIGN = "Zarr v3: hierarchies", "Zarr v3: what other writers store"

LITTLE = codec("bytes", endian="little")
CRC32C = codec("crc32c")


def features() -> Iterator[Feature]:
    """All of them: the core first, then the registry."""
    yield from _arrays()
    yield from _types()
    yield from _fills()
    yield from _codecs()
    yield from _shards()
    yield from _extension_points()
    yield from _groups()
    yield from _registered_types()
    yield from _registered_codecs()
    yield from _numcodecs()
    yield from _foreign()


def _arrays() -> Iterator[Feature]:
    yield zarr3(ARRAYS, "chunk grid `regular`, chunks at the edges")
    yield zarr3(ARRAYS, "rank 0", numbers(shape=()), chunks=())
    yield zarr3(ARRAYS, "extent 0", numbers(shape=(0, 5)))
    for title, configuration, prefix, separator in (
        ('`default`, separator `"."`', {"separator": "."}, "c.", "."),
        ('`default`, separator `"/"`', {"separator": "/"}, "c/", "/"),
        ("`default`, no configuration", {}, "c/", "/"),
        ('`v2`, separator `"."`', {"separator": "."}, "", "."),
        ('`v2`, separator `"/"`', {"separator": "/"}, "", "/"),
    ):
        yield zarr3(
            ARRAYS,
            f"chunk key encoding {title}",
            chunk_key_encoding=codec(title.split("`")[1], **configuration),
            **{"prefix": prefix, "separator": separator},
        )
    yield zarr3(ARRAYS, "`dimension_names`, one of them null", dimension_names=["x", None])
    yield zarr3(ARRAYS, "`attributes` of any JSON", attributes={"a": {"b": [1, None]}})


def _types() -> Iterator[Feature]:
    yield zarr3(TYPES, "`bool`", numbers("?"), fill_value=False)
    for title, *names in (
        ("integers", *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")),
        ("floats", "float16", "float32", "float64"),
    ):
        for name in names:
            yield zarr3(TYPES, title, numbers(name), case=f"`{name}`")
    for name in ("complex64", "complex128"):
        yield zarr3(TYPES, "complex", numbers(name), fill_value=[0.0, 0.0], case=f"`{name}`")
    raw = np.frombuffer(bytes(range(60)), "V3").reshape(SHAPE)
    yield zarr3(
        TYPES,
        "`r24`",
        raw,
        **{"fill": np.zeros((), "V3"), "fill_value": "AAAA", "data_type": "r24"},
    )
    yield zarr3(
        TYPES,
        "name as an object",
        data_type={"name": "int16", "configuration": {}},
    )


def _fills() -> Iterator[Feature]:
    def filled(title: str, kind: Any, fill: Any, json: Any, **more: Any) -> Feature:
        """The first chunk is missing, as are chunks of nothing else than the fill value."""
        values = np.array(more.pop("values") if "values" in more else numbers(kind))
        values[:2, :3] = fill
        return zarr3(FILLS, title, values, fill=fill, fill_value=json, missing=[(0, 0)], **more)

    yield filled("a number", "<i4", 7, 7)
    yield filled("`true`", "?", True, True)
    yield filled('`"NaN"`', "<f4", np.nan, "NaN")
    yield filled('`"Infinity"`', "<f2", np.inf, "Infinity")
    yield filled('`"-Infinity"`', "<f8", -np.inf, "-Infinity")
    yield filled(
        "bits of another NaN, `0x7fc12345`",
        "<f4",
        np.array(0x7FC12345, "<u4").view("<f4"),
        "0x7fc12345",
    )
    zeros = numbers("<f8")
    zeros[:2, :3] = 0.0
    yield zarr3(
        FILLS, "0.0 is not -0.0: chunks of it are stored", zeros, fill_value=-0.0, fill=-0.0
    )
    yield filled("complex, with `NaN`", "<c8", complex(np.nan, 2), ["NaN", 2.0])
    raw = np.frombuffer(bytes(range(60)), "V3").reshape(SHAPE)
    for title, fill in (("list of bytes", [1, 2, 255]), ("base64", "AQL/")):
        yield filled(
            f"`r24` as {title}",
            "V3",
            np.frombuffer(b"\x01\x02\xff", "V3")[0],
            fill,
            **{"values": raw, "data_type": "r24"},
        )


def _compressed(
    title: str, codecs: list[Any], encode: Callable[[bytes], bytes], plain: Any, **more: Any
) -> Feature:
    """Elements as bytes, then what `encode` makes of them."""
    return zarr3(
        more.pop("section", CODECS),
        title,
        more.pop("values", None),
        lambda chunk: bytes(encode(chunk.tobytes())),
        codecs=[LITTLE, *codecs],
        plain=plain,
        **more,
    )


def _crc32c(data: bytes) -> bytes:
    return data + google_crc32c.value(data).to_bytes(4, "little")


def _codecs() -> Iterator[Feature]:
    yield zarr3(
        CODECS,
        "`bytes`, big endian",
        None,
        stored_bytes(dtype=">i2"),
        codecs=[codec("bytes", endian="big")],
    )
    yield zarr3(
        CODECS, "`bytes` without `endian`, of one byte", numbers("u1"), codecs=[codec("bytes")]
    )
    transpose = codec("transpose", order=[1, 0])
    yield zarr3(
        CODECS,
        "`transpose`",
        None,
        lambda chunk: chunk.T.tobytes(),
        codecs=[transpose, LITTLE],
    )
    rotated = numbers(shape=(2, 3, 4))
    yield zarr3(
        CODECS,
        "`transpose`, twice",
        rotated,
        lambda chunk: chunk.transpose(1, 2, 0).transpose(0, 2, 1).tobytes(),
        codecs=[codec("transpose", order=[1, 2, 0]), codec("transpose", order=[0, 2, 1]), LITTLE],
        chunks=(2, 2, 3),
    )
    yield _compressed("`gzip`", [codec("gzip", level=1)], gzip.compress, gzip.decompress)
    for title, checksum in (("", False), (", `checksum`", True)):
        zstd = numcodecs.Zstd(1, checksum=checksum)
        options = {"level": 1, "checksum": checksum}
        yield _compressed(f"`zstd`{title}", [codec("zstd", **options)], zstd.encode, zstd.decode)
    for cname, shuffle in (
        *(("lz4", "shuffle"), ("lz4", "bitshuffle"), ("lz4", "noshuffle"), ("zstd", "shuffle")),
        *(("zlib", "shuffle"), ("lz4hc", "shuffle"), ("blosclz", "shuffle")),
    ):
        number = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}[shuffle]
        blosc = numcodecs.Blosc(cname, 5, number)
        options = {"cname": cname, "clevel": 5, "shuffle": shuffle, "blocksize": 0, "typesize": 2}
        yield zarr3(
            CODECS,
            f"`blosc` of `{cname}`, `{shuffle}`",
            None,
            blosc.encode,
            codecs=[LITTLE, codec("blosc", **options)],
            plain=blosc.decode,
        )
    yield _compressed("`crc32c`", [CRC32C], _crc32c, bytes)
    zstd = numcodecs.Zstd(1)
    yield _compressed(
        "several bytes -> bytes codecs",
        [codec("zstd", level=1, checksum=False), CRC32C],
        lambda data: _crc32c(zstd.encode(data)),
        lambda data: zstd.decode(data[:-4]),
    )


def _shard(
    chunk: np.ndarray,
    inner: tuple[int, ...],
    encode: Callable[[np.ndarray], bytes],
    *,
    start: bool = False,
    missing: Any = None,
) -> bytes:
    """The inner chunks of a shard in C order, and its index with a checksum."""
    counts = [size // part for size, part in zip(chunk.shape, inner)]
    index = np.full((*counts, 2), 2**64 - 1, "<u8")
    body = b""
    offset = 16 * int(np.prod(counts)) + 4 if start else 0
    for cell in itertools.product(*map(range, counts)):
        part = chunk[tuple(slice(i * n, i * n + n) for i, n in zip(cell, inner))]
        if missing is not None and (part == missing).all():
            continue
        data = encode(np.ascontiguousarray(part))
        index[cell] = (offset + len(body), len(data))
        body += data
    table = _crc32c(index.tobytes())
    return table + body if start else body + table


def _sharding(inner: tuple[int, ...], codecs: Any = None, **more: Any) -> dict[str, Any]:
    return codec(
        "sharding_indexed",
        chunk_shape=list(inner),
        codecs=[LITTLE] if codecs is None else codecs,
        index_codecs=[LITTLE, CRC32C],
        **more,
    )


def _shards() -> Iterator[Feature]:
    inner = (1, 3)

    def shard(chunk: np.ndarray) -> bytes:
        return _shard(chunk, inner, np.ndarray.tobytes, missing=0)

    yield zarr3(SHARDS, "`sharding_indexed`", None, shard, codecs=[_sharding(inner)])
    yield zarr3(
        SHARDS,
        "index at the start",
        None,
        lambda chunk: _shard(chunk, inner, np.ndarray.tobytes, start=True, missing=0),
        codecs=[_sharding(inner, index_location="start")],
    )
    missing = numbers()
    missing[0, :3] = 0
    yield zarr3(SHARDS, "inner chunks missing", missing, shard, codecs=[_sharding(inner)])
    zstd = numcodecs.Zstd(1)
    options = codec("zstd", level=1, checksum=False)
    yield zarr3(
        SHARDS,
        "inner chunks of `zstd`",
        None,
        lambda chunk: _shard(chunk, inner, lambda part: zstd.encode(part.tobytes()), missing=0),
        codecs=[_sharding(inner, [LITTLE, options])],
        plain=len,
    )
    yield zarr3(
        SHARDS,
        "shards in shards",
        None,
        lambda chunk: _shard(
            chunk, inner, lambda p: _shard(p, (1, 1), np.ndarray.tobytes, missing=0), missing=0
        ),
        codecs=[_sharding(inner, [_sharding((1, 1))])],
    )
    yield zarr3(
        SHARDS,
        "`transpose` before `sharding_indexed`",
        None,
        lambda chunk: _shard(chunk.T, (3, 1), np.ndarray.tobytes, missing=0),
        codecs=[codec("transpose", order=[1, 0]), _sharding((3, 1))],
    )
    yield zarr3(
        SHARDS,
        "`gzip` behind `sharding_indexed`",
        None,
        lambda chunk: gzip.compress(shard(chunk)),
        codecs=[_sharding(inner), codec("gzip", level=1)],
        plain=gzip.decompress,
    )


def _extension_points() -> Iterator[Feature]:
    yield zarr3(
        UNDERSTOOD,
        "member of an array with `must_understand: false`",
        extra={"name": "none", "must_understand": False},
    )
    yield zarr3(UNDERSTOOD, "unknown member of an array", extra={"name": "none"}, must_refuse=True)
    yield zarr3(UNDERSTOOD, "`storage_transformers`, none", storage_transformers=[])
    yield zarr3(
        UNDERSTOOD,
        "unknown storage transformer",
        storage_transformers=[{"name": "none"}],
        must_refuse=True,
    )
    yield zarr3(
        UNDERSTOOD,
        "unknown storage transformer, `must_understand: false`",
        storage_transformers=[{"name": "none", "must_understand": False}],
        is_written=False,
    )
    yield zarr3(UNDERSTOOD, "unknown codec", codecs=[LITTLE, {"name": "none"}], must_refuse=True)
    yield zarr3(
        UNDERSTOOD,
        "unknown codec, `must_understand: false`",
        codecs=[LITTLE, {"name": "none", "must_understand": False}],
        is_written=False,
    )
    yield zarr3(
        UNDERSTOOD,
        "codec with `must_understand: true`",
        codecs=[{**LITTLE, "must_understand": True}],
    )
    for title, member in (
        ("data type", {"data_type": {"name": "none"}}),
        ("chunk grid", {"chunk_grid": {"name": "none"}}),
        ("chunk key encoding", {"chunk_key_encoding": {"name": "none"}}),
    ):
        yield zarr3(
            UNDERSTOOD,
            "unknown data type, grid or key encoding, `must_understand: false`",
            must_refuse=True,
            case=title,
            **{key: {**value, "must_understand": False} for key, value in member.items()},
        )
    yield zarr3(
        UNDERSTOOD,
        "codecs by name alone",
        numbers("u1"),
        _crc32c_of,
        codecs=["bytes", "crc32c"],
    )
    yield zarr3(
        UNDERSTOOD,
        "chunk key encoding by name alone",
        chunk_key_encoding="default",
        prefix="c/",
        separator="/",
    )


def _crc32c_of(chunk: np.ndarray) -> bytes:
    return _crc32c(chunk.tobytes())


def _groups() -> Iterator[Feature]:
    def group(**more: Any) -> dict[str, Any]:
        return {"zarr_format": 3, "node_type": "group", "attributes": {}, **more}

    attributes = {"author": "me", "list": [1, None]}
    array = zarr3("", "", attributes={"unit": "mm"}).files
    files = {
        "zarr.json": node(group(attributes=attributes)),
        "a/zarr.json": node(group()),
        "b/zarr.json": node(group()),
        **{f"b/c/{key}": value for key, value in array.items()},
    }
    members = {"a": "group", "b": "group", "b/c": "array"}
    found = {"attributes": attributes, "members": members}
    yield Feature(GROUPS, "groups, attributes, members", files, found, "group")
    yield Feature(GROUPS, "attributes of an array", files, {"unit": "mm"}, "array_attributes")
    yield Feature(
        GROUPS,
        "logical paths are normalised (`/b\\\\c/`)",
        files,
        numbers().tolist(),
        "logical_path",
        is_written=False,
    )
    inline = {
        **{"kind": "inline", "must_understand": False},
        "metadata": {path: json.loads(files[f"{path}/zarr.json"]) for path in members},
    }
    document = node(group(attributes=attributes, consolidated_metadata=inline))
    yield Feature(
        GROUPS,
        "consolidated metadata, inline",
        {**files, "zarr.json": document},
        found,
        "consolidated",
    )
    lone = {"attributes": {}, "members": {}}
    for title, extra in (
        ("member of a group with `must_understand: false`", {"must_understand": False}),
        ("unknown member of a group", {"name": "none"}),
    ):
        yield Feature(GROUPS, title, {"zarr.json": node(group(extra=extra))}, lone, "group")


def _registered_types() -> Iterator[Feature]:
    for name in (
        *("int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
        *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2"),
        *("float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16"),
    ):
        dtype = np.dtype(getattr(ml_dtypes, name))
        values = (numbers("i8") % (2 if name[-1] == "2" else 4)).astype(dtype)
        fill = 1 if name == "float8_e8m0fnu" else 0
        row = {"int2": "`int2`, `int4`", "uint2": "`uint2`, `uint4`", "float4": "`float4_e2m1fn`"}
        row |= {"int4": row["int2"], "uint4": row["uint2"], "float6": "`float6_*`"}
        yield zarr3(
            MORE_TYPES,
            {**row, "float8": "`float8_*`"}.get(name.partition("_")[0], f"`{name}`"),
            values,
            # Unused bits are stored as zeros.
            lambda chunk: bytes(_low_bits(chunk)),
            **{"fill": fill, "fill_value": fill},
            case="" if name == "bfloat16" else f"`{name}`",
        )
    yield zarr3(
        MORE_TYPES,
        "`float8_e4m3fn`, which the registry lacks",
        (numbers("i8") % 4).astype(ml_dtypes.float8_e4m3fn),
    )
    for name in (
        *("bfloat16", "float16", "float4_e2m1fn", "float6_e2m3fn", "float8_e5m2"),
        *("float32", "float64"),
    ):
        part = np.dtype(getattr(ml_dtypes, name, name))
        if name in ("float32", "float64"):
            values = numbers({"float32": "<c8", "float64": "<c16"}[name])
        else:
            values = (numbers("i8", (*SHAPE, 2)) % 4).astype(part)
        yield zarr3(
            MORE_TYPES,
            "`complex_*`",
            values,
            case=f"`complex_{name}`",
            **{"data_type": f"complex_{name}", "fill_value": [0.0, 0.0], "rank": 2},
        )
    for name, code in (("string", "vlen-utf8"), ("bytes", "vlen-bytes")):
        yield _any_length(MORE_TYPES, f"`{name}`, with `{code}`", name, code)
    wide = numbers().astype("<U3")
    yield zarr3(
        MORE_TYPES,
        "`fixed_length_utf32`",
        wide,
        **{"data_type": codec("fixed_length_utf32", length_bytes=12), "fill": "", "fill_value": ""},
    )
    for name, dtype in (("datetime64", "<M8[10s]"), ("timedelta64", "<m8[10s]")):
        yield zarr3(
            MORE_TYPES,
            "`numpy.datetime64`, `numpy.timedelta64`",
            numbers("<i8").view(dtype),
            data_type=codec(f"numpy.{name}", unit="s", scale_factor=10),
            fill=np.zeros((), dtype),
            case=f"`numpy.{name}`",
        )
    yield from _structs()


def _structs() -> Iterator[Feature]:
    for title, data_type, fill in (
        (
            "`struct`",
            codec(
                "struct",
                fields=[
                    {"name": "x", "data_type": "int16"},
                    {"name": "y", "data_type": "float32"},
                ],
            ),
            {"x": 0, "y": 0.0},
        ),
        (
            "`structured`, the older form",
            codec("structured", fields=[["x", "int16"], ["y", "float32"]]),
            base64.b64encode(bytes(6)).decode(),
        ),
    ):
        records = np.zeros(SHAPE, [("x", "<i2"), ("y", "<f4")])
        records["x"], records["y"] = numbers(), numbers("f4")
        yield zarr3(
            MORE_TYPES,
            title,
            records,
            **{"data_type": data_type, "fill_value": fill, "fill": np.zeros((), records.dtype)},
        )
    inner = codec("struct", fields=[{"name": "z", "data_type": "uint8"}])
    nested = np.zeros(SHAPE, [("x", "<i2"), ("p", [("z", "u1")])])
    nested["x"], nested["p"]["z"] = numbers(), numbers("u1")
    yield zarr3(
        MORE_TYPES,
        "`struct` in `struct`",
        nested,
        data_type=codec(
            "struct",
            fields=[{"name": "x", "data_type": "int16"}, {"name": "p", "data_type": inner}],
        ),
        **{"fill_value": {"x": 0, "p": {"z": 0}}, "fill": np.zeros((), nested.dtype)},
    )


def _low_bits(chunk: np.ndarray) -> np.ndarray:
    bits = chunk.view(np.uint8)
    name = chunk.dtype.name
    return bits & (3 if name.endswith("int2") else 15 if name.endswith("int4") else 255)


def _any_length(section: str, title: str, name: str, code: str) -> Feature:
    values, encode = any_length(code)
    return zarr3(
        section,
        title,
        values,
        encode,
        **{"data_type": name, "codecs": [codec(code)]},
        **{"fill": "" if name == "string" else b"", "fill_value": ""},
    )


def _registered_codecs() -> Iterator[Feature]:
    bools = numbers("?")
    yield zarr3(
        MORE_CODECS,
        "`packbits`",
        bools,
        lambda chunk: np.packbits(chunk.reshape(-1), bitorder="little").tobytes(),
        **{"codecs": [codec("packbits")], "fill_value": False},
    )
    yield zarr3(
        MORE_CODECS,
        "`packbits`, padding and bits of integers",
        numbers("<u2"),
        lambda chunk: _packed(chunk, 9),
        codecs=[codec("packbits", padding_encoding="first_byte", first_bit=0, last_bit=8)],
    )
    doubles = numbers("<i2").astype("<f8")
    yield zarr3(
        MORE_CODECS,
        "`cast_value`",
        doubles,
        stored_bytes(dtype="<i2"),
        codecs=[codec("cast_value", data_type="int16"), LITTLE],
    )
    yield zarr3(
        MORE_CODECS,
        "`cast_value` with `scalar_map`",
        np.where(numbers() % 5 == 0, np.nan, numbers("<i2").astype("<f8")),
        lambda chunk: np.where(np.isnan(chunk), 255, chunk).astype("u1").tobytes(),
        codecs=[
            codec(
                "cast_value",
                data_type="uint8",
                out_of_range="clamp",
                scalar_map={"encode": [["NaN", 255]], "decode": [[255, "NaN"]]},
            ),
            LITTLE,
        ],
    )
    yield zarr3(
        MORE_CODECS,
        "`scale_offset`",
        doubles,
        lambda chunk: ((chunk - 3) * 2).tobytes(),
        codecs=[codec("scale_offset", offset=3, scale=2), LITTLE],
    )
    bitround = numcodecs.BitRound(10)
    yield zarr3(
        MORE_CODECS,
        "`bitround`",
        numbers("<f4"),
        lambda chunk: bitround.encode(chunk).tobytes(),
        codecs=[codec("bitround", keepbits=10), LITTLE],
    )
    yield zarr3(
        MORE_CODECS,
        "`reshape`",
        None,
        lambda chunk: chunk.reshape(3, 2).T.tobytes(),
        codecs=[codec("reshape", shape=[3, -1]), codec("transpose", order=[1, 0]), LITTLE],
    )
    yield zarr3(
        MORE_CODECS,
        "`zfp`, reversible",
        numbers("<i4"),
        lambda chunk: bytes.fromhex(LIBRARY_VALUES["zfp"][chunk.tobytes()]),
        codecs=[codec("zfp", mode="reversible")],
    )
    yield from _registered_codecs_of_bytes()
    yield from _grids()


def _registered_codecs_of_bytes() -> Iterator[Feature]:
    whole = [codec("transpose", order=[1, 0]), codec("bytes", endian="big")]
    yield zarr3(
        MORE_CODECS,
        "`n5_default`",
        None,
        # Mode, rank, and the shape from the fastest dimension on: Zarr's first one here.
        lambda chunk: (
            np.array([0, 2], ">u2").tobytes()
            + np.array(chunk.shape, ">u4").tobytes()
            + chunk.T.astype(">i2").tobytes()
        ),
        codecs=[codec("n5_default", codecs=whole)],
        **{"chunk_key_encoding": codec("v2", separator="/"), "prefix": "", "separator": "/"},
    )
    yield zarr3(
        MORE_CODECS,
        "`conditional`",
        None,
        lambda chunk: b"\x01" + gzip.compress(chunk.tobytes()),
        codecs=[LITTLE, codec("conditional", codecs=[codec("gzip", level=1)])],
        plain=len,
    )


def _packed(chunk: np.ndarray, nbits: int) -> bytes:
    words = chunk.reshape(-1, 1).view(np.uint8).reshape(chunk.size, chunk.itemsize)
    bits = np.unpackbits(words, axis=1, bitorder="little")[:, :nbits]
    packed = np.packbits(bits, bitorder="little")
    return bytes([8 * len(packed) - chunk.size * nbits]) + packed.tobytes()


def _grids() -> Iterator[Feature]:
    values = numbers()
    edges = [[1, 3], [2, 2, 1]]
    stored = {}
    for i, j in itertools.product(range(2), range(3)):
        rows, columns = sum(edges[0][:i]), sum(edges[1][:j])
        part = values[rows : rows + edges[0][i], columns : columns + edges[1][j]]
        stored[f"c.{i}.{j}"] = part.tobytes()
    for title, shapes in (
        ("lists", edges),
        ("runs and one size", [[1, 3], [[2, 2], [1, 1]]]),
    ):
        yield zarr3(
            MORE_CODECS,
            "chunk grid `rectilinear`",
            values,
            chunk_grid=codec("rectilinear", kind="inline", chunk_shapes=shapes),
            stored=stored,
            case=title,
        )


def _numcodecs() -> Iterator[Feature]:
    doubles = numbers("<f8")
    for name, values, options in (
        ("delta", None, {"dtype": "<i2"}),
        ("fixedscaleoffset", doubles, {"scale": 2, "offset": -3, "dtype": "<f8", "astype": "<i2"}),
        ("quantize", doubles, {"digits": 1, "dtype": "<f8"}),
        ("astype", None, {"encode_dtype": "<i4", "decode_dtype": "<i2"}),
        ("packbits", numbers("?"), {}),
        ("bitround", numbers("<f4"), {"keepbits": 10}),
    ):
        library = numcodecs.get_codec({"id": name, **options})
        yield zarr3(
            NUMCODECS,
            f"`numcodecs.{name}`",
            values,
            lambda chunk, library=library: np.asarray(library.encode(chunk.reshape(-1))).tobytes(),
            codecs=[{"name": f"numcodecs.{name}", "configuration": options}, LITTLE],
            fill_value=False if name == "packbits" else 0,
        )
    for name in ("zfpy", "pcodec"):
        options = {key: value for key, value in LIBRARY_OPTIONS[name].items() if key != "id"}
        yield zarr3(
            NUMCODECS,
            f"`numcodecs.{name}`",
            numbers("<i4"),
            lambda chunk, name=name: bytes.fromhex(LIBRARY_VALUES[name][chunk.tobytes()]),
            codecs=[{"name": f"numcodecs.{name}", "configuration": options}],
        )
    checksums = ("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3")
    for name, options in (
        ("blosc", {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}),
        ("bz2", {"level": 1}),
        ("gzip", {"level": 1}),
        ("lz4", {"acceleration": 1}),
        ("lzma", {"format": 1, "check": -1, "preset": None, "filters": None}),
        ("zlib", {"level": 1}),
        ("zstd", {"level": 1}),
        ("shuffle", {"elementsize": 2}),
        ("adler32", {}),
        ("crc32", {}),
        ("crc32c", {}),
        ("fletcher32", {}),
        ("jenkins_lookup3", {}),
    ):
        library = numcodecs.get_codec({"id": name, **options})
        yield _compressed(
            "checksums" if name in checksums else "compressors and `numcodecs.shuffle`",
            [{"name": f"numcodecs.{name}", "configuration": options}],
            library.encode,
            lambda data, library=library: bytes(library.decode(data)),
            section=NUMCODECS,
            case=f"`numcodecs.{name}`",
        )


def _foreign() -> Iterator[Feature]:
    several = "`bytes` without `endian`, of several bytes"
    yield zarr3(FOREIGN, several, codecs=[codec("bytes")], must_refuse=True)
    yield zarr3(FOREIGN, "fill value 1.0 of integers", fill_value=1.0)
    yield zarr3(FOREIGN, "`dimension_names: null`", dimension_names=None, must_refuse=True)
    order = codec("transpose", order="F")
    yield zarr3(
        FOREIGN, "`transpose` of order `F`", None, lambda x: x.T.tobytes(), codecs=[order, LITTLE]
    )
    yield _compressed(
        "`gzip` and `zstd` by name",
        ["gzip"],
        gzip.compress,
        gzip.decompress,
        section=FOREIGN,
        case="`gzip`",
    )
    zstd = numcodecs.Zstd(1)
    yield _compressed(
        "`gzip` and `zstd` by name",
        ["zstd"],
        zstd.encode,
        zstd.decode,
        section=FOREIGN,
        case="`zstd`",
    )
    text, raw = numbers().astype("S3"), np.frombuffer(bytes(range(60)), "V3").reshape(SHAPE)
    for name, values in (("null_terminated_bytes", text), ("raw_bytes", raw)):
        yield zarr3(
            FOREIGN,
            f"`{name}` of zarr-python",
            values,
            **{"data_type": codec(name, length_bytes=3), "fill": np.zeros((), values.dtype)},
            fill_value="AAAA",
        )
    yield _any_length(
        FOREIGN, "`variable_length_bytes` of zarr-python", "variable_length_bytes", "vlen-bytes"
    )
