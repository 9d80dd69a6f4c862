"""Arrays of any format on disk, to be read by the native core and by Python.

The two ways are compared: the same elements, or the same error with the same text and key.
"""

import contextlib
import math
import operator
import tempfile
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

import gpustore
from gpustore.pipelines import read as pipeline
from gpustore.pipelines import strided_reads
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.read import StridedReads
from gpustore.planning import chunk_plan


def named(name, **configuration):
    return {"name": name, "configuration": configuration}


FIELDS = [["x", "int16"], ["y", "float32"], ["b", "bool"], ["c", "complex64"]]
STRUCT = named("struct", fields=[{"name": name, "data_type": kind} for name, kind in FIELDS])
V3_TYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16", "int4"),
    *("float8_e4m3fn", "float8_e5m2", "complex_float16", "r24", "r40"),
    named("numpy.datetime64", unit="s", scale_factor=1),
    named("numpy.timedelta64", unit="ms", scale_factor=10),
    named("fixed_length_utf32", length_bytes=12),
    named("null_terminated_bytes", length_bytes=5),
    STRUCT,
]
"""Data types of Zarr v3."""

RECORD = [["x", "<i2"], ["y", ">f4"], ["z", "|S3"], ["c", ">c8"], ["b", "|b1"]]
V2_TYPES = [
    "|b1",
    "<U3",
    ">U3",
    ">M8[s]",
    "<m8[ms]",
    ">f2",
    "<i2",
    ">i2",
    ">u4",
    "<f8",
    ">f8",
    ">c8",
    ">c16",
    "|S5",
    "|V3",
    "|V8",
]
"""Data types of Zarr v2."""

BLOSC = {"clevel": 5, "blocksize": 0}
CNAMES = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")


CRC32C = named("crc32c")


def open_at(folder, spec, **context):
    """Open what is stored in a folder, without any state of an earlier opening."""
    return gpustore.open(
        {"driver": "zarr3", **spec, "kvstore": f"file://{folder}/"},
        context=gpustore.Context(context),
    ).result()


@contextlib.contextmanager
def in_python():
    """Read in Python what the native core could read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChunkedArray, "native", None)
        patch.setattr(StridedReads, "one", lambda *_: None)
        yield


@contextlib.contextmanager
def encoded_in_python():
    """Encode in Python what the native core could encode."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChunkedArray, "native_encoding", None)
        yield


@contextlib.contextmanager
def windows_of(rows, listed, *, pooled, planned=False):
    """Tables and windows of few rows, or plans of the core; `pooled` reads take all threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_plan, "WINDOW_ROWS", rows)
        patch.setattr(chunk_plan, "TABLE_LISTED", listed)
        patch.setattr(pipeline, "PLANNED_ROWS", rows)
        if not planned:
            patch.setattr(StridedReads, "one", lambda *_: None)
        if pooled:
            patch.setattr(pipeline, "SPLIT_S", 1e-9)
            patch.setattr(strided_reads, "SPLIT_S", 1e-9)
            patch.setattr(pipeline, "SMALL_ROWS", 0)
            patch.setattr(strided_reads, "SMALL_ROWS", 0)
            patch.setattr(pipeline, "TINY_ROWS", 0)
        yield


def counted_threads(monkeypatch, owner, name, limit):
    """Count the threads in a method; each waits for `limit` of them when it first calls it."""
    method, inside, seen, most = getattr(owner, name), set(), set(), [0]
    barrier = threading.Barrier(limit)

    def counted(*arguments):
        one = threading.get_ident()
        inside.add(one)
        most[0] = max(most[0], len(inside))
        if one not in seen:
            seen.add(one)
            barrier.wait(30)
        try:
            return method(*arguments)
        finally:
            inside.remove(one)

    monkeypatch.setattr(owner, name, counted)
    return lambda: most[0]


def outcome(read):
    """Bytes, shape, strides and data type of the result; or type, text and key of the error."""
    try:
        found = read()
    except gpustore.GpustoreError as error:
        return type(error), str(error), error.key
    return found.tobytes(), found.shape, found.strides, found.dtype


def compare(view):
    """Read a view in both ways."""
    native = outcome(lambda: view.read().result())
    with in_python():
        expected = outcome(lambda: view.read().result())
    assert native == expected
    return native


def is_error(found):
    return isinstance(found[0], type)


def created(path, shape, chunks, data_type, codecs=None, **members):
    spec = {
        "driver": "zarr3",
        "kvstore": f"file://{path}/",
        "metadata": {
            "shape": shape,
            "chunk_grid": named("regular", chunk_shape=chunks),
            "data_type": data_type,
            "codecs": codecs or [named("bytes", endian="big")],
            **members,
        },
    }
    return gpustore.open(spec, create=True).result()


# --------------------------------------------------------------------------- strategies


@st.composite
def compressors(draw):
    """Compressor of Zarr v2, and codecs behind `bytes` of Zarr v3, that mean nearly the same."""
    kind = draw(st.sampled_from(["raw", "blosc", "blosc", "zstd", "lz4", "gzip", "zlib"]))
    if kind == "raw":
        return None, []
    if kind == "blosc":
        cname = draw(st.sampled_from(CNAMES))
        shuffle = draw(st.integers(0, 2))
        clevel, block = (
            draw(st.sampled_from([0, 1, 5, 9])),
            draw(st.sampled_from([0, 0, 512, 16384])),
        )
        both = {"cname": cname, "clevel": clevel, "blocksize": block}
        words = ("noshuffle", "shuffle", "bitshuffle")[shuffle]
        typesize = draw(st.sampled_from([1, 2, 4, 8, 3, 20]))
        return (
            {"id": "blosc", "shuffle": shuffle, **both},
            [named("blosc", shuffle=words, typesize=typesize, **both)],
        )
    if kind == "zstd":
        level = draw(st.sampled_from([1, 3]))
        checksum = draw(st.booleans())
        return {"id": "zstd", "level": level}, [named("zstd", level=level, checksum=checksum)]
    if kind == "lz4":
        return {"id": "lz4", "acceleration": 1}, []
    # isal, which encodes levels 1 and 2, does not always make the same bytes of the same elements.
    level = draw(st.sampled_from([3, 6]))
    return {"id": kind, "level": level}, [named("gzip", level=level)]


@st.composite
def specs(draw, dtypes=None, *, large=False):
    """Spec of an array without its kvstore."""
    rank = draw(st.sampled_from([2, 3] if large else [0, 1, 2, 2, 3, 3, 4]))
    inner = draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank))
    if large:
        inner[-1], inner[-2] = draw(st.integers(300, 500)), draw(st.integers(200, 400))
    v2, v3 = draw(compressors())
    if draw(st.integers(0, 2)) == 0:
        shape = [draw(st.integers(1, 3 * size)) for size in inner]
        record = not large and draw(st.integers(0, 3)) == 0
        metadata = {
            "shape": shape,
            "chunks": inner,
            "dtype": RECORD if record else draw(st.sampled_from(dtypes or V2_TYPES)),
            "order": draw(st.sampled_from("CF")),
            "compressor": v2,
            "filters": None,
            "dimension_separator": draw(st.sampled_from("./")),
        }
        spec = {"driver": "zarr2", "metadata": metadata}
        if record:
            spec["field"] = draw(st.sampled_from([one[0] for one in RECORD]))
        return spec

    def transposed():
        order = draw(st.permutations(range(rank)))
        return [named("transpose", order=order)] if draw(st.integers(0, 2)) == 0 else []

    endian = draw(st.sampled_from(["little", "big"]))
    codecs = [*transposed(), named("bytes", endian=endian), *v3]
    if draw(st.integers(0, 2)) == 0:
        codecs.append(CRC32C)
    frame = list(inner)  # Shape of a chunk as the first of the codecs gets it.
    if codecs[0]["name"] == "transpose":
        frame = _before(codecs[0], inner)
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        ratio = [draw(st.integers(1, 2 if large else 3)) for _ in range(rank)]
        index = [named("bytes", endian="little"), CRC32C]
        sharding = named(
            "sharding_indexed",
            chunk_shape=frame,
            codecs=codecs,
            index_codecs=index[: draw(st.integers(1, 2))],
            index_location=draw(st.sampled_from(["start", "end"])),
        )
        before = transposed()
        codecs = [*before, sharding]
        frame = [a * b for a, b in zip(frame, ratio)]
        frame = _before(before[0], frame) if before else frame
    dtype = draw(st.sampled_from(dtypes or V3_TYPES))
    metadata = {
        "shape": [draw(st.integers(1, 2 * size + 1)) for size in frame],
        "chunk_grid": named("regular", chunk_shape=frame),
        "data_type": dtype,
        "codecs": codecs,
    }
    field = {"field": draw(st.sampled_from([one[0] for one in FIELDS]))} if dtype is STRUCT else {}
    return {"driver": "zarr3", "metadata": metadata, **field}


def _before(transpose, shape):
    """Shape that a transpose turns into `shape`."""
    found = list(shape)
    for size, d in zip(shape, transpose["configuration"]["order"]):
        found[d] = size
    return found


def values(dtype, shape, seed):
    """Elements of any bits, in runs that compress; NaN among them."""
    generator = np.random.default_rng(seed)
    count = math.prod(shape)
    if dtype.kind == "U":
        return generator.integers(97, 1000, (count, 3), np.uint32).view(dtype).reshape(shape)
    if not dtype.itemsize:  # One byte of a string.
        dtype = np.dtype(f"{dtype.kind}1")
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype == ml_dtypes.int4:
        return generator.integers(-8, 8, shape).astype(dtype)
    bits = generator.integers(0, 256 if seed % 2 else 4, (count, dtype.itemsize), np.uint8)
    return np.frombuffer(bits.tobytes(), dtype).reshape(shape)


@st.composite
def selections(draw, shape):
    """Function that selects a part of an array of this shape; None for an impossible one."""
    rank = len(shape)
    kind = draw(st.sampled_from(["all", "box", "box", "step", "index", "outer", "diagonal"]))
    if kind == "all" or not rank:
        view = lambda a: a  # noqa: E731
    elif kind == "index":
        n = draw(st.integers(0, 6))
        rows = [draw(st.lists(st.integers(0, s - 1), min_size=n, max_size=n)) for s in shape]
        some = rows[: draw(st.integers(1, rank))]
        view = operator.itemgetter(tuple(np.array(one, np.int64) for one in some))
    elif kind == "outer":
        some = tuple(
            draw(
                st.one_of(
                    st.integers(0, s - 1),
                    st.just(slice(None)),
                    st.lists(st.integers(0, s - 1), max_size=5).map(
                        lambda x: np.array(x, np.int64)
                    ),
                )
            )
            for s in shape
        )
        return lambda a: a.oindex[some]
    elif kind == "diagonal" and rank > 1:
        first, second = draw(st.permutations(range(rank)))[:2]
        count = draw(st.integers(1, min(shape[first], shape[second])))
        return lambda a: a[_diagonal(rank, first, second, count)]
    else:
        some = []
        for size in shape:
            low = draw(st.integers(0, size - 1))
            high = draw(st.integers(low, size))
            step = 1 if kind == "box" else draw(st.sampled_from([1, 2, 3, -1, -2]))
            some.append(
                slice(low, high, step)
                if step > 0
                else slice(high - 1, low - 1 if low else None, step)
            )
            if low == high:
                some[-1] = slice(low, low)
            if draw(st.integers(0, 5)) == 0:
                some[-1] = low
        view = operator.itemgetter(tuple(some))
    order = draw(st.permutations(range(8)))

    def select(array):
        found = view(array)
        axes = [d for d in order if d < found.ndim]
        return found.transpose(axes)[None] if order[0] == 0 else found.transpose(axes)

    return select


def _diagonal(rank, first, second, count):
    """Transform to the diagonal of two dimensions, at index 0 of the others."""
    maps = [gpustore.OutputIndexMap(offset=0) for _ in range(rank)]
    for d in (first, second):
        maps[d] = gpustore.OutputIndexMap(input_dimension=0)
    return gpustore.IndexTransform(input_shape=[count], output=maps)


@contextlib.contextmanager
def stored(spec, seed, *, missing=0.0):
    """A folder with the array of a spec, some of whose chunks are missing."""
    with tempfile.TemporaryDirectory(prefix="gpustore-native-") as folder:
        store = gpustore.open(
            {**spec, "kvstore": f"file://{folder}/"},
            create=True,
            context=gpustore.Context({"file_io_sync": False}),
        ).result()
        store[...] = values(store.dtype.numpy_dtype, store.shape, seed)
        files = chunk_files(folder)
        generator = np.random.default_rng(seed)
        for file in files:
            if generator.random() < missing:
                file.unlink()
        yield Path(folder)


def chunk_files(folder):
    names = {"zarr.json", ".zarray", ".zattrs"}
    return sorted(p for p in Path(folder).rglob("*") if p.is_file() and p.name not in names)
