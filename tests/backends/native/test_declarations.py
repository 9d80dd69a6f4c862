"""Python writes the structs of the native core member by member as their headers declare them."""

import ctypes
import hashlib
import os
import re
from array import array as numbers
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpustore.backends.base import Layer
from gpustore.backends.host.memory import memory_of
from gpustore.backends.native import library
from gpustore.backends.native.array import CODECS
from gpustore.backends.native.blocks import KINDS, METHODS
from gpustore.backends.native.decoders import addresses
from gpustore.backends.native.job import Counts, Job
from gpustore.backends.native.request import MOST_ROWS, Request, strided_maps
from gpustore.backends.native.write_job import STORED, WriteJob, WrittenRows
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.kvstores.base import KeyDirectory
from gpustore.kvstores.kvstore import KvStore
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.planning.row_table import RowTable, TablePoints
from gpustore.planning.window import PlanWindow
from gpustore.sharding.shard import ShardLevel
from tests.pipelines.arrays import BYTES, make_array
from tests.sharding.test_shard_index import index_format

FOLDER = Path(__file__).parents[3] / "kernels" / "host"
HEADERS = ("functions.h", "job.h", "write_job.h")
needs_core = pytest.mark.skipif(library.library() is None, reason=str(library.why_not()))


def code(name):
    """Text of a file without comments and superfluous space."""
    text = re.sub(r"//.*", "", (FOLDER / name).read_text(encoding="utf-8"))
    return " ".join(text.split())


def members(struct):
    """Names of the members of a struct and of structs inside it, each of one word, in order."""
    found = re.search(rf"struct {struct} \{{(.*?)\}};", " ".join(map(code, HEADERS)))[1]
    found = re.sub(r"const \w+\* \w+\(\) const \{.*?\}", "", found)
    for declaration in filter(None, map(str.strip, found.split(";"))):
        first, *others = re.split(r"[\s*]*,[\s*]*", declaration)
        inner, name = re.search(r"(\w+)[>\s*]+(\w+)$", first).groups()
        if inner == "Target" and "*" not in first:
            yield from (f"{name}.{one}" for one in members(inner))
        else:
            yield from (name, *others)


def at(address, struct):
    """Values of the members of a struct in memory, by name."""
    names = list(members(struct))
    return dict(zip(names, words(address, len(names)), strict=True))


def words(address, count):
    """Integers in memory."""
    return list((ctypes.c_int64 * count).from_address(address))


def data(array):
    """Address of a NumPy array."""
    return array.__array_interface__["data"][0]


def test_the_number_of_the_library_is_a_hash_of_the_declarations():
    declared = re.sub(r"constexpr i64 ABI = \w+;", "", " ".join(map(code, HEADERS)))
    exported = re.findall(r"EXPORT std::int64_t [^{]*\{|EXPORT [^{]*\{", code("core.cpp"))
    digest = hashlib.sha256("\n".join([declared, *exported]).encode()).digest()
    abi = int.from_bytes(digest[:7], "big")
    message = f"declarations have changed: set ABI in kernels/host/job.h and library.py to {abi}"
    assert f"constexpr i64 ABI = {abi};" in code("job.h"), message
    assert abi == library.ABI, message


def on_disk(**changes):
    """An array whose chunks would lie in files."""
    store = KvStore.open("file:///nowhere/").result().driver
    return make_array((64, 96), (4, 6), store=store, key_prefix="/nowhere/c/", **changes)


@needs_core
def test_an_array():
    chain = NamedConfiguration("zstd", {"level": 1, "checksum": False})
    checksum = NamedConfiguration("crc32c")
    order = NamedConfiguration("transpose", {"order": (1, 0)})
    levels = (ShardLevel(index_format((4, 2)), (1, 0), (3, 5)),)
    array = on_disk(
        dtype="uint32",
        codecs=(order, NamedConfiguration("bytes", {"endian": "big"}), chain, checksum),
        levels=levels,
        fill_value=np.array(7, "u4"),
        blank=np.array(7, "u4"),
        key_separator=".",
    )
    found = at(array.native.address, "Array")
    assert words(found.pop("functions"), 3) == list(addresses("zstd", "crc32c").values())[:3]
    level = at(found.pop("level"), "ShardLevel")
    assert level.pop("chunks") == 8
    assert (level.pop("at_end"), level.pop("crc")) == (1, 1)
    assert {name: words(address, 2) for name, address in level.items()} == {
        "order": [1, 0],
        "count": [4, 2],
        "divisor": [3, 5],
    }
    assert ctypes.string_at(found.pop("separator")) == b"."
    assert ctypes.string_at(found.pop("header")) == b""
    assert ctypes.string_at(found.pop("fill"), 4) == (7).to_bytes(4, "little")
    columns = ("ratio", "shape", "chunk_shape", "stride")
    assert [words(found.pop(name), 2) for name in columns] == [
        list(array.key_ratio),
        [64, 96],
        [4, 6],
        [4, 16],
    ]
    assert found == {
        **{"rank": 2, "key_rank": 2, "itemsize": 4, "word": 4, "offset": 0, "nbytes": 96},
        **{"bound": array.chain.encoded_bound, "codec": CODECS.index("zstd"), "crc": 1},
        **{"parts": 0, "levels": 1, "fill_missing": 1, "bools": 0, "header_nbytes": 0},
    }


@needs_core
def test_a_job(tmp_path):
    array = on_disk()
    columns = np.arange(8).reshape(4, 2)
    table = RowTable(
        numbers("q", range(40)),
        *(2, 3, 4, 2, 1),
        points=[TablePoints(*columns)],
        has_first=True,
        has_target=True,
        prefixes=columns[0],
    )
    outs = [memory_of(np.zeros(one, "u2")) for one in (5, 7)]
    directory = KeyDirectory(os.open(tmp_path, os.O_RDONLY), 12, b"c/", bytes)
    staging, values = numbers("q", [0]), (numbers("q", [1]), numbers("q", [2]))
    generation = np.zeros((3, 4), "u8")
    wanted = {"staging": staging, "values": values, "generation": generation}
    job = Job.of(array.native, table, [[2], [4]], [[6], [8]], outs, directory, 13, **wanted)
    found = at(job._struct.buffer_info()[0], "Job")
    here = table.words.buffer_info()[0]
    edges = {"unit": 0, "cells": 3, "first": 9, "src_start": 13, "dst_start": 17, "count": 21}
    for name, offset in {**edges, "target": 25}.items():
        assert found.pop(name) == here + 8 * offset, name
    assert ctypes.string_at(found.pop("prefix")) == b"c/"
    assert found.pop("prefixes") == data(columns[0])
    assert (words(found.pop("src_stride"), 2), words(found.pop("dst_stride"), 2)) == (
        [2, 4],
        [6, 8],
    )
    first, size = found.pop("out"), len(list(members("Target")))
    for number, out in enumerate(outs):
        one = at(first + 8 * size * number, "Target")
        assert one == {"memory": data(out.flat), "offset": 0, "nbytes": out.flat.size}
    points = at(found.pop("points"), "Points")
    names = ("begin", "end", "src", "dst")
    assert points == {name: data(column) for name, column in zip(names, columns, strict=True)}
    small = job._small.buffer_info()[0]
    assert found.pop("status") == small + 8 * job._status
    assert found.pop("decoded") == small + 8 * (len(job._small) - 1)
    assert found == {
        **{"array": array.native.address, "directory": directory.descriptor, "resolve": 12},
        **{"units": 2, "rows": 3, "regions": 4, "rank": 1, "point_sets": 1, "threads": 13},
        **{"staging": staging.buffer_info()[0], "generation": data(generation)},
        **{"values": values[0].buffer_info()[0], "sizes": values[1].buffer_info()[0]},
        **dict.fromkeys(("next", "finished", "reads", "fetched", "missing", "left"), 0),
    }


@needs_core
def test_a_request(tmp_path):
    array = on_disk()
    transform = IndexTransform(IndexDomain(inclusive_min=[3, 5], shape=[10, 20]))
    rows, maps = strided_maps(transform, array.shape, array.chunk_shape)
    assert rows == 4 * 5
    out = memory_of(np.zeros((10, 20), "u2"))
    directory = KeyDirectory(os.open(tmp_path, os.O_RDONLY), 12, b"c/", bytes)
    assert maps is None
    mapped = SimpleNamespace(transform=transform, words=maps, out=out, result=None)
    plain = SimpleNamespace(transform=transform, words=maps, out=None, result=out.array)
    request = Request(array.native, [mapped, plain], directory, MOST_ROWS, 13)
    address = request._words.buffer_info()[0]
    found = at(address, "Request")
    after = address + 8 * len(found)
    assert ctypes.string_at(found.pop("prefix")) == b"c/"
    assert found == {
        **{"array": array.native.address, "directory": directory.descriptor, "resolve": 12},
        **{"most_rows": MOST_ROWS, "threads": 13, "count": 2},
        "decoded": request._counts.buffer_info()[0] + 8 * Counts._fields.index("decoded"),
    }
    assert list(members("Map")) == ["input_dimension", "offset", "stride"]
    bounds = [3, 5, 13, 25]
    maps = [0, 0, 1, 1, 0, 1]
    placed = [*at(after + 16, "Placed").values()]
    assert list(members("Placed")) == ["offset", "nbytes", "rank"]
    assert placed == [0, 400, 2]
    header = object.__basicsize__
    assert words(id(out.array) + header, 1) == [data(out.array)]
    mapped_rest = [*placed, *bounds, *maps, 40, 2]
    for memory, nbytes, rest in ((data(out.flat), 0, mapped_rest), (id(out.array), header, bounds)):
        found = at(after, "Item")
        assert found == {"memory": memory, "header_nbytes": nbytes}
        after += 8 * len(found)
        assert words(after, len(rest)) == rest
        after += 8 * len(rest)


@needs_core
def test_a_write():
    options = {
        "cname": "zstd",
        "clevel": 3,
        "shuffle": "bitshuffle",
        "typesize": 2,
        "blocksize": 64,
    }
    array = on_disk(codecs=(BYTES, NamedConfiguration("blosc", options)))
    encoding = at(array.native_encoding.address, "Encoding")
    assert ctypes.string_at(encoding.pop("blank"), 2) == b"\0\0"
    assert encoding == {
        **{"array": array.native_values.address, "level": 3, "checksum": 0, "shuffle": 2},
        **{"typesize": 2, "blocksize": 64, "compressor": 4, "blank_nbytes": 2},
    }
    zstd = on_disk(codecs=(BYTES, NamedConfiguration("zstd", {"level": 5, "checksum": True})))
    found = at(zstd.native_encoding.address, "Encoding")
    assert (found["level"], found["checksum"]) == (5, 1)
    rows = PlanWindow(
        cells=([0, 1], [0, 0]),
        src_start=[1, 2],
        dst_start=[3, 4],
        count=([5, 6], [7, 8]),
        whole=[True, True],
        src_stride=(12, 2),
        dst_stride=(192, 4),
        keys=["c/0", "c/1"],
    )
    layer = Layer(rows, memory_of(np.zeros((8, 6), "u2")), np.ones(48, bool))
    other = Layer(replace(rows, src_stride=(2, 12)), memory_of(np.zeros((8, 6), "u2")))
    encoded, value = np.empty(99, np.uint8), bytes(5)
    options = {"drops_fill": False, "syncs": True, "encoded": encoded}
    for several in (False, True):
        chunks = [([layer, other] if several else [layer], row) for row in range(2)]
        written = WrittenRows.of_chunks(chunks)
        under = [STORED, value]
        job = WriteJob(array.native_encoding, written, under, keys=rows.keys, **options)
        job.take(3, 9)
        found = at(job._struct.buffer_info()[0], "WriteJob")
        each = 1 + several
        columns = {
            "src_start": np.repeat([1, 2], each).tolist(),
            "dst_start": np.repeat([3, 4], each).tolist(),
            "count": np.repeat([5, 6, 7, 8], each).tolist(),
            "src_stride": [12, 2, 2, 12][: 2 * each],
            "dst_stride": [192, 4, 192, 4][: 2 * each],
            "directory": [-1, -1],
            "name": [0, 2],
            "under_nbytes": [0, 5],
        }
        if several:
            columns |= {"first": [0, 2, 4], "source": [0, 1, 0, 1]}
        for name, column in columns.items():
            assert words(found.pop(name), len(column)) == column, name
        below, address = words(found.pop("under"), 2)
        assert (below, ctypes.string_at(address, 5)) == (STORED, value)
        first, size = found.pop("sources"), len(list(members("Source")))
        for number, one in enumerate([layer, other][:each]):
            assert at(first + 8 * size * number, "Source") == {
                **{"memory": data(one.source.flat), "offset": 0, "nbytes": 96},
                "mask": 0 if one.mask is None else data(one.mask),
            }
        assert ctypes.string_at(found.pop("names"), 4) == b"0\x001\0"
        assert found.pop("status") == job.status.buffer_info()[0]
        assert found.pop("stored") == job.stored.buffer_info()[0]
        assert found.pop("at") == job.at.buffer_info()[0]
        assert (found.pop("encoded"), found.pop("room"), found.pop("used")) == (
            data(encoded),
            99,
            0,
        )
        assert found == {
            **{"encoding": array.native_encoding.address, "rows": 2, "regions": 2 * each},
            **{"rank": 2, "syncs": 1, "drops_fill": 0, "reads": 0, "fetched": 0},
            **{"next": 3, "end": 9},
            **({} if several else {"first": 0, "source": 0}),
        }


def test_blocks():
    """Members are in the order of ``core_downsample``; its kinds and methods are the enums."""
    assert list(members("Blocks")) == ["kind", "method", "rank", "src", "dst", "dim"]
    assert list(members("BlockDim")) == ["n", "cells", "factor", "before", "src", "dst"]
    kinds, methods = (
        re.search(rf"enum {name} : i64 {{ (.*?) }};", code("job.h"))[1].split(", ")
        for name in ("Kind", "Method")
    )
    assert [np.dtype(kind).name.upper() for kind in KINDS] == kinds
    words = {"min": "LEAST", "max": "LARGEST"}
    assert [words.get(method, method.upper()) for method in METHODS] == methods


def test_rectangles():
    """Members are in the order of ``core_copy_boxes`` and ``core_copy_launches``."""
    assert list(members("CopyRows")) == [
        *("rows", "rank", "itemsize", "unit", "src", "dst", "src_base", "dst_base"),
        *("chunk", "count", "count_step", "src_stride", "dst_stride"),
    ]
