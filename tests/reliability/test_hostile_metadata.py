"""Opening arrays whose metadata lie: a typed error that names the file, quickly and cheaply.

What single members may be is the matter of ``tests/metadata/cases``; every document refused there
is opened here too. Behind them come documents that are well formed and ask for too much.
"""

import json
import os
import socket
import time
import tracemalloc

import numpy as np
import pytest

import gpustore
from gpustore.backends.host import memory
from gpustore.errors import (
    CorruptChunkError,
    GpustoreError,
    LimitError,
    MetadataError,
    NotFoundError,
    OutOfBoundsError,
    StoreIOError,
)
from tests.codecs.bomb_worker import memory_nbytes, reset_peak
from tests.matrix import each
from tests.metadata.test_cases import REFUSED, document
from tests.reliability.array_on_disk import create

SLOWEST_S = 2  # Of processor time: what is done for each of 2**40 chunks takes far longer.
FILES = {"zarr2": ".zarray", "zarr3": "zarr.json"}
V3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 6],
    "data_type": "uint16",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": 0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
}
V2 = {
    "zarr_format": 2,
    "shape": [4, 6],
    "chunks": [2, 3],
    "dtype": "<u2",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}


def v3(**members):
    return "zarr3", {**V3, **members}


def v3_chunk(*chunk, **members):
    grid = {"name": "regular", "configuration": {"chunk_shape": list(chunk)}}
    return v3(chunk_grid=grid, **members)


def v3_codecs(*codecs):
    return v3(codecs=[*V3["codecs"], *codecs])


def v3_shard(chunk, codecs=None, **members):
    inner = V3["codecs"] if codecs is None else codecs
    index = [*V3["codecs"], {"name": "crc32c"}]
    configuration = {"chunk_shape": chunk, "codecs": inner, "index_codecs": index, **members}
    return {"name": "sharding_indexed", "configuration": configuration}


def nested_shards(depth):
    shard = v3_shard([2, 3])
    for _ in range(depth - 1):
        shard = v3_shard([2, 3], codecs=[shard])
    return shard


def v2(**members):
    return "zarr2", {**V2, **members}


_BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0}

ABSURD = {
    "v3 shape 2^63": v3(shape=[2**63, 6]),
    "v3 shape 10^400": v3(shape=[10**400, 6]),
    "v3 negative shape": v3(shape=[-1, 6]),
    "v3 shape true": v3(shape=[True, 6]),
    "v3 shape 4.5": v3(shape=[4.5, 6]),
    "v3 shape text": v3(shape=["4", 6]),
    "v3 chunk 0": v3_chunk(0, 3),
    "v3 chunk negative": v3_chunk(-2, 3),
    "v3 chunk 2^62": v3_chunk(2**62, 2**62),
    "v3 chunk 2^63": v3_chunk(2**63, 1),
    "v3 chunk of 2 TiB": v3_chunk(2**20, 2**20, shape=[2**20, 2**20]),
    "v3 chunk of 2 GiB and 2 bytes": v3_chunk(2**30 + 1, 1),
    "v3 chunk product wraps to 0": v3_chunk(2**32, 2**32),
    "v3 chunk product wraps to 1": v3_chunk(*[2**60 + 1] * 2),
    "v3 chunk of another rank": v3_chunk(2),
    "v3 rank 33": v3_chunk(*[1] * 33, shape=[1] * 33),
    "v3 rank 10 000": v3_chunk(*[1] * 10_000, shape=[1] * 10_000),
    "v3 100 000 codecs": v3_codecs(*[{"name": "crc32c"}] * 100_000),
    "v3 33 codecs": v3_codecs(*[{"name": "crc32c"}] * 32),
    "v3 no codec": v3(codecs=[]),
    "v3 unknown codec": v3_codecs({"name": "os.system"}),
    "v3 module as codec": v3_codecs({"name": "../../../etc/passwd"}),
    "v3 codec with a dot": v3_codecs({"name": "numcodecs.pickle"}),
    "v3 private module as codec": v3_codecs({"name": "_deflate"}),
    "v3 base as codec": v3_codecs({"name": "base"}),
    "v3 endian is a list": v3(codecs=[{"name": "bytes", "configuration": {"endian": [[]]}}]),
    "v3 endian is an object": v3(codecs=[{"name": "bytes", "configuration": {"endian": {}}}]),
    "v3 endian of a shard is a list": v3(
        codecs=[v3_shard([2, 3], codecs=[{"name": "bytes", "configuration": {"endian": []}}])]
    ),
    "v3 gzip level 40": v3_codecs({"name": "gzip", "configuration": {"level": 40}}),
    "v3 blosc blocksize": v3_codecs(
        {"name": "blosc", "configuration": {**_BLOSC, "blocksize": 2**70}}
    ),
    "v3 blosc typesize": v3_codecs({"name": "blosc", "configuration": {**_BLOSC, "typesize": 0}}),
    "v3 separator": v3(
        chunk_key_encoding={"name": "default", "configuration": {"separator": "/../"}}
    ),
    "v3 inner chunk does not divide": v3(codecs=[v3_shard([2, 2])]),
    "v3 inner chunk of another rank": v3(codecs=[v3_shard([2])]),
    "v3 inner chunk 0": v3(codecs=[v3_shard([0, 3])]),
    "v3 inner chunk larger": v3(codecs=[v3_shard([4, 6])]),
    "v3 inner chunk 2^63": v3(codecs=[v3_shard([2**63, 3])]),
    "v3 inner codecs missing": v3(codecs=[v3_shard([1, 3], codecs=[])]),
    "v3 index location": v3(codecs=[v3_shard([1, 3], index_location="middle")]),
    "v3 index compressed": v3(
        codecs=[v3_shard([1, 3], index_codecs=[*V3["codecs"], {"name": "gzip"}])]
    ),
    "v3 index of 2^44 entries": v3_chunk(
        2**22, 2**22, shape=[2**22, 2**22], codecs=[v3_shard([1, 1])]
    ),
    "v3 index of 2^25 entries": v3_chunk(
        2**13, 2**12, shape=[2**13, 2**12], codecs=[v3_shard([1, 1])]
    ),
    "v3 5 nested shardings": v3(codecs=[nested_shards(5)]),
    "v3 20 nested shardings": v3(codecs=[nested_shards(20)]),
    "v3 pickle": v3_codecs({"name": "pickle"}),
    "v3 key encoding": v3(chunk_key_encoding={"name": "../x"}),
    "v3 grid": v3(chunk_grid={"name": "rectilinear", "configuration": {}}),
    "v3 data type": v3(data_type="object"),
    "v3 fill 2^16": v3(fill_value=2**16),
    "v3 fill NaN of an integer": v3(fill_value="NaN"),
    "v3 group": ("zarr3", {"zarr_format": 3, "node_type": "group"}),
    "v3 names too many": v3(dimension_names=["x"] * 3),
    "v3 must understand": v3(evil={"must_understand": True}),
    "v2 shape 2^63": v2(shape=[2**63, 6]),
    "v2 chunk 0": v2(chunks=[0, 3]),
    "v2 chunk 2^62": v2(chunks=[2**62, 2**62]),
    "v2 chunk of 2 TiB": v2(chunks=[2**20, 2**20]),
    "v2 rank 33": v2(shape=[1] * 33, chunks=[1] * 33),
    "v2 dtype object": v2(dtype="|O"),
    "v2 dtype 2^31 bytes": v2(dtype="|V2147483648"),
    "v2 dtype 10^30 bytes": v2(dtype="|S" + str(10**30)),
    "v2 dtype of code": v2(dtype="__import__('os').system('id')"),
    "v2 pickle": v2(compressor={"id": "pickle"}),
    "v2 pickle filter": v2(filters=[{"id": "pickle", "protocol": 5}]),
    "v2 json filter": v2(filters=[{"id": "json2"}]),
    "v2 vlen-object filter": v2(filters=[{"id": "vlen-bytes"}]),
    "v2 msgpack": v2(compressor={"id": "msgpack2"}),
    "v2 module as codec": v2(compressor={"id": "os"}),
    "v2 100 000 filters": v2(filters=[{"id": "delta"}] * 100_000),
    "v2 separator": v2(dimension_separator="/../"),
    "v2 order": v2(order="K"),
}


def put(directory, version, data):
    """Store metadata and return the path."""
    if isinstance(data, dict):
        data = json.dumps(data).encode()
    path = directory / FILES[version]
    path.write_bytes(data)
    return str(path)


def refuse(directory, version, path):
    """Open in all ways; every one must fail with an error of ours that names the file."""
    errors = []
    for spec in (
        str(directory),
        f"file://{directory}/|{version}:",
        {"driver": version, "kvstore": f"file://{directory}/"},
    ):
        with pytest.raises(GpustoreError) as caught:
            gpustore.open(spec).result()
        if f'"{directory}" is a Zarr v3 group, not an array' in str(caught.value):
            assert spec == str(directory)  # The others say that it is an array.
            continue
        assert path in str(caught.value)
        errors.append(caught.value)
    first, *others = (error.text[error.text.index(path) :] for error in errors)
    assert all(other == first for other in others)
    assert len(str(errors[0])) < 4000
    return errors[0]


def cost(directory):
    """Least processor seconds of three, and peak of Python's memory, of opening in vain."""
    seconds = []
    while len(seconds) < 3 and (not seconds or min(seconds) > SLOWEST_S):
        start = time.thread_time()
        gpustore.open(str(directory)).exception()
        seconds.append(time.thread_time() - start)
    tracemalloc.start()
    gpustore.open(str(directory)).exception()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return min(seconds), peak


def test_documents_are_as_many_as_promised():
    documents = {json.dumps(document, sort_keys=True) for _, document in ABSURD.values()}
    assert len(documents) == len(ABSURD) >= 65
    assert len(ABSURD) + len(REFUSED) >= 116 + 200


@pytest.mark.matrix
@each("name", ABSURD)
def test_absurd_metadata(tmp_path, name):
    version, document = ABSURD[name]
    path = put(tmp_path, version, document)
    error = refuse(tmp_path, version, path)
    assert error.key == path
    seconds, peak = cost(tmp_path)
    assert seconds < SLOWEST_S
    assert peak < 100 << 20


@pytest.mark.matrix
@each("version, described", REFUSED)
def test_every_document_refused_by_the_parser_is_refused_when_opened(tmp_path, version, described):
    data = document(version, described)
    path = put(tmp_path, version, data)
    error = refuse(tmp_path, version, path)
    # A document that is too long is refused before it is parsed.
    assert error.kind in (described["error"], "limit")
    assert error.key == path
    if len(data) > 10_000:
        seconds, peak = cost(tmp_path)
        assert seconds < SLOWEST_S * max(1, len(data) / (1 << 20))
        assert peak < 100 << 20


@pytest.mark.parametrize("nbytes", [(16 << 20) + 1, 1 << 31, 1 << 40])
def test_document_of_a_tebibyte_is_not_read(tmp_path, nbytes):
    path = put(tmp_path, "zarr3", V3)
    os.truncate(path, nbytes)
    error = refuse(tmp_path, "zarr3", path)
    assert isinstance(error, LimitError)
    assert error.key == path
    assert str(nbytes) in str(error)
    seconds, peak = cost(tmp_path)
    assert seconds < SLOWEST_S
    assert peak < 1 << 20


@each("name", FILES.values())
@each("kind", ["directory", "fifo", "socket", "link out", "link to itself"])
def test_odd_file_in_place_of_metadata(tmp_path, monkeypatch, name, kind):
    inside = tmp_path / "array"
    inside.mkdir()
    path = inside / name
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        monkeypatch.chdir(inside)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name)
    elif kind == "link out":
        (tmp_path / "outside").write_text(json.dumps(V3 if name == "zarr.json" else V2))
        path.symlink_to(tmp_path / "outside")
    else:
        path.symlink_to(path)
    version = next(version for version, file in FILES.items() if file == name)
    error = refuse(inside, version, str(path))  # It is not waited for, either.
    assert isinstance(error, StoreIOError)
    assert error.key == str(path)


@pytest.mark.parametrize("version", FILES)
def test_unreadable_metadata_are_not_taken_for_missing(tmp_path, version):
    """Creating must not put a new array where an old one cannot be read."""
    path = put(tmp_path, version, b"{")
    spec = {"driver": version, "kvstore": f"file://{tmp_path}/", "dtype": "uint8"}
    spec["schema"] = {"domain": {"shape": [3]}}
    with pytest.raises(MetadataError) as caught:
        gpustore.open(spec, open=True, create=True).result()
    assert path in str(caught.value)
    with open(path, "rb") as file:
        assert file.read() == b"{"


# --------------------------------------------------------------------------- legal, and too large

HUGE = 2**40


@pytest.mark.parametrize("name", ["zarr2 zstd", "zarr3 bytes", "zarr3 zstd crc32c"])
@pytest.mark.parametrize("kvstore", ["file", "memory"])
def test_array_of_2_to_the_80_elements(tmp_path, name, kvstore):
    url = "memory://a/" if kvstore == "memory" else f"file://{tmp_path}/a/"
    store = create(name, url, shape=(HUGE, HUGE), chunk=(64, 64))
    with pytest.raises(LimitError, match="chunks_per_request"):
        store.read()
    with pytest.raises(LimitError, match="chunks_per_request"):
        store[: 1 << 20, :: 1 << 10].read()
    for source in (1, np.uint16(1), np.ones(1, np.uint16)):
        with pytest.raises(LimitError):
            store.write(source)
    corner = store[HUGE - 70 :, HUGE - 3 :]
    assert not corner.read().result().any()
    corner[...] = 7
    assert store[HUGE - 71 :, HUGE - 4 :].read().result().sum() == 7 * 70 * 3
    assert store[HUGE - 1 :: HUGE, ::HUGE].read().result().shape == (1, 1)
    with pytest.raises(OutOfBoundsError):
        store[HUGE, 0].read()


@pytest.mark.parametrize(
    ("shape", "chunk"),
    [
        ((2**62 - 2,), (1,)),
        ((2**62 - 2,), (2**12,)),
        ((2**62 - 2,) * 2, (1, 1)),
        ((2**62 - 2,) * 32, (1,) * 32),
        ((2**31,) * 32, (1,) * 31 + (2**12,)),
    ],
)
def test_shapes_at_the_edge_of_int64(shape, chunk):
    store = create("zarr3 zstd", "memory://a/", shape=shape, chunk=chunk)
    with pytest.raises(LimitError):
        store.read().result()
    with pytest.raises(LimitError):
        store.write(3).result()
    end = store[tuple(np.s_[size - 2 :] for size in shape[:3]) + (0,) * (len(shape) - 3)]
    end.write(3).result()
    assert (end.read().result() == 3).all()
    every = store[tuple(np.s_[:: size - 1] for size in shape[:3]) + (0,) * (len(shape) - 3)]
    assert every.read().result().max() in (0, 3)


def test_result_that_does_not_fit_the_memory_is_a_limit_error(tmp_path):
    """A few bytes of metadata may describe missing chunks of two gibibytes each."""
    shape = (2**20, 2**30)
    store = create("zarr3 bytes", f"file://{tmp_path}/a/", shape=shape, chunk=(1, 2**30))
    reset_peak()
    before, start = memory_nbytes("VmRSS"), time.thread_time()
    with pytest.raises(LimitError, match=str(2**51)):
        store.read()
    assert time.thread_time() - start < SLOWEST_S
    assert memory_nbytes("VmHWM") - before < 100 << 20
    assert store[5, 6].read().result() == 0
    path = f"{tmp_path}/a/c/5/0"
    os.makedirs(os.path.dirname(path))
    with open(path, "wb"):
        pass
    with pytest.raises(CorruptChunkError) as caught:
        store[5, 6].read().result()
    assert caught.value.key == path


def test_result_larger_than_the_machine_is_refused_where_the_kernel_promises_it(monkeypatch):
    """Kernels set to overcommit hand out any address range, and kill whoever fills it."""
    store = create("zarr3 zstd", "memory://a/")
    monkeypatch.setattr(memory, "PHYSICAL_NBYTES", 1000)
    monkeypatch.setattr(memory, "SMALLEST_NBYTES", 1000)  # Smaller ones fit any machine.
    with pytest.raises(LimitError, match=r"\[32, 32\] and 2048 bytes"):
        store.read()
    assert store[:, :8].read().result().nbytes == 512
    out = np.empty((32, 32), np.uint16)  # Memory somebody else provides may be larger.
    assert not store.read(out=out).result().any()


def test_limits_are_the_callers_to_change():
    context = gpustore.Context({"limits": {"chunk_nbytes": 100, "chunks_per_request": 3}})
    with pytest.raises(LimitError, match="chunk_nbytes"):
        create("zarr3 zstd", "memory://a/", context=context)
    store = create("zarr3 zstd", "memory://a/", chunk=(5, 5), context=context)
    with pytest.raises(LimitError, match="chunks_per_request"):
        store[:6, :6].read()
    assert store[:5, :6].read().result().shape == (5, 6)


def test_missing_metadata_name_the_file(tmp_path):
    with pytest.raises(NotFoundError) as caught:
        gpustore.open(f"file://{tmp_path}/|zarr3:").result()
    assert caught.value.key == f"{tmp_path}/zarr.json"
    assert caught.value.key in str(caught.value)
