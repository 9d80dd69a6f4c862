"""Random changes of metadata: a typed error that names the file, or an array that is whole.

Whole is an array whose description, spec and schema can be had, whose spec opens it again, whose
unwritten elements are the fill value, and which keeps what is written. The same documents every
time; the long version goes on with others.
"""

import collections
import copy
import json
import random
import time

import numpy as np
import pytest

import gpustore
from gpustore.errors import GpustoreError
from tests.matrix import share
from tests.reliability.scales import scales

DOCUMENTS, LONG_DOCUMENTS = 3500, 250_000
SLOWEST_S = 30  # Of processor time.
FILES = {"zarr": ".zarray", "zarr3": "zarr.json"}
LIMITS = {"chunk_nbytes": 1 << 20, "chunks_per_request": 1000}

_LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
_BYTES = {"name": "bytes"}
_CRC32C = {"name": "crc32c"}
_NAMES = ("cname", "clevel", "shuffle", "typesize", "blocksize")


def _named(name, **configuration):
    return {"name": name, "configuration": configuration}


def _shard(chunk_shape, codecs):
    return _named(
        "sharding_indexed",
        chunk_shape=chunk_shape,
        codecs=codecs,
        index_codecs=[_LITTLE, _CRC32C],
        index_location="end",
    )


def _v3(data_type, codecs, fill_value, **members):
    return "zarr3", {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [8, 6],
        "data_type": data_type,
        "chunk_grid": _named("regular", chunk_shape=[4, 6]),
        "chunk_key_encoding": _named("default", separator="/"),
        "fill_value": fill_value,
        "codecs": codecs,
        "attributes": {"a": 1, "dimension_units": ["4nm", None]},
        "dimension_names": ["x", "y"],
        **members,
    }


def _v2(dtype, compressor, fill_value, **members):
    return "zarr", {
        "zarr_format": 2,
        "shape": [8, 6],
        "chunks": [4, 6],
        "dtype": dtype,
        "compressor": compressor,
        "fill_value": fill_value,
        "order": "C",
        "filters": None,
        "dimension_separator": ".",
        **members,
    }


_BLOSC = _named("blosc", **dict(zip(_NAMES, ("zstd", 5, "bitshuffle", 4, 0), strict=True)))
_STRUCT = _named("struct", fields=[["x", "uint16"], ["y", "float32"]])
_LZMA = {"id": "lzma", "format": 1, "check": -1, "preset": None, "filters": None}

SEEDS = [
    _v3("uint32", [_LITTLE], 0),
    _v3("float32", [_named("transpose", order=[1, 0]), _LITTLE, _BLOSC], "NaN"),
    _v3("bfloat16", [_LITTLE, _named("zstd", level=3, checksum=True), _CRC32C], "0x7fc0"),
    _v3("complex64", [_shard([2, 3], [_LITTLE, _named("gzip", level=5)])], [0, "Infinity"]),
    _v3("int4", [_shard([4, 3], [_shard([2, 3], [_BYTES])])], -1),
    _v3("r16", [_BYTES], [0, 1]),
    _v3("bool", [_BYTES], True, storage_transformers=[], extra={"must_understand": False}),
    _v3(_STRUCT, [_LITTLE], {"x": 1, "y": 2}),
    _v2("<u4", {"id": "zlib", "level": 3}, 0),
    _v2("|b1", {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}, False),
    _v2([["x", "<u2"], ["y", ">f4", [2, 2]]], {"id": "zstd", "level": 3}, None),
    _v2("|S5", {"id": "lz4", "acceleration": 1}, "YWJjZGU="),
    _v2("|V3", None, "AAAA"),
    _v2(">c16", {"id": "bz2", "level": 1}, ["NaN", 0.0], order="F"),
    _v2("bfloat16", {"id": "gzip", "level": 1}, "-Infinity"),
    _v2("<f2", _LZMA, 1.5),
]
"""Legal documents to begin with."""

ATOMS = [
    *(None, True, False, "", "a", "x", "NaN", "-Infinity", "0x7f", "\ud800", "\0", "é", "AAAA"),
    *("/", ".", "..", "YWJj", "=", "x" * 5000, "9" * 400),
    *(0, 1, -1, 2, 3, 31, 32, 33, 64, 255, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64),
    *(10**40, -(2**63), -(2**63) - 1, 0.0, -0.0, 1.5, 1e308),
    *("<u2", "|O", "|V0", "|S0", "<U3", ">m8[s]", "<M8[ns]", "uint8", "float8_e4m3fn"),
    *("r8", "r7", "r0", "r99999999999"),
    *([], [[]], {}, [1], [0, 0], ["x", "x"], {"name": "bytes"}, {"id": "zlib"}),
    *([["x", "<u2"], ["x", "<u2"]], [["", "<u2"]], [["x", "<u2", [0]]], [["x", [["y", "<u2"]]]]),
    *([["x", "<u2", [2**31]]], [["x", "<u2", [2**40, 2**40]]]),
]
"""What is put in place of something else."""

PIECES = [
    *(b'"', b"{", b"[", b"}", b"]", b",", b"0", b"-", b"e9999", b"NaN", b"1.0", b"//"),
    *(b"\\u", b"\\ud800", b"\xff", b"\0", b"\xef\xbb\xbf", b"[[" * 40),
]
"""What is put between two bytes."""


def places(document, path=()):
    """The paths of all values in a document."""
    yield path
    if isinstance(document, dict):
        members = document.items()
    else:
        members = enumerate(document) if isinstance(document, list) else ()
    for name, value in members:
        yield from places(value, (*path, name))


def value_at(document, path):
    for name in path:
        document = document[name]
    return document


def mutate(generator, document):
    """Other values, and members that are missing, doubled, renamed, moved or from elsewhere."""
    document = copy.deepcopy(document)
    for _ in range(generator.choice([1, 1, 1, 2, 3])):
        path = generator.choice([path for path in places(document) if path])
        *to_parent, name = path
        parent = value_at(document, to_parent)
        kind = generator.randrange(9)
        if kind < 4:
            parent[name] = copy.deepcopy(generator.choice(ATOMS))
        elif kind == 4:
            del parent[name]
        elif kind == 5:
            _, other = generator.choice(SEEDS)
            parent[name] = copy.deepcopy(value_at(other, generator.choice(list(places(other)))))
        elif kind == 6 and isinstance(parent, list):
            parent.insert(name, copy.deepcopy(parent[name]))
        elif kind == 6:
            parent[name + generator.choice(["_", " ", "\0", "s"])] = parent[name]
        elif kind == 7 and isinstance(parent[name], list):
            generator.shuffle(parent[name])
        elif kind == 7 and type(parent[name]) is int:
            parent[name] += generator.choice([-1, 1, 2**31])
        else:
            parent[name] = [copy.deepcopy(parent[name])] * generator.choice([1, 2, 33])
        if not document:
            break
    return json.dumps(document).encode()


def mutate_bytes(generator, encoded):
    """Flipped bits, bytes that are missing, doubled or put in between."""
    changed = bytearray(encoded)
    for _ in range(generator.choice([1, 1, 2, 5])):
        at = generator.randrange(len(changed))
        kind = generator.randrange(4)
        if kind == 0:
            changed[at] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del changed[at : at + generator.choice([1, 1, 5, 50])]
        elif kind == 2:
            changed[at:at] = generator.choice(PIECES)
        else:
            start = generator.randrange(len(changed))
            changed[at:at] = changed[start : start + 20]
        changed = changed or bytearray(b" ")
    return bytes(changed)


def check(driver, encoded, selection):
    """Open an array and use it; returns how that ended."""
    context = gpustore.Context({"limits": LIMITS})
    kvstore = gpustore.KvStore.open("memory://s/", context=context).result()
    kvstore[FILES[driver]] = encoded
    opened = gpustore.open({"driver": driver, **selection}, kvstore=kvstore)
    error = opened.exception()
    if error is not None:
        assert isinstance(error, GpustoreError), repr(error)
        assert "s/" + FILES[driver] in str(error)
        assert len(str(error)) < 4000
        return type(error).__name__
    store = opened.result()
    # The name of a record has quotes, which are escaped there.
    assert store.dtype.name in repr(store).replace('\\"', '"')
    schema = store.schema
    assert schema.domain == store.domain
    assert schema.codec == store.codec
    assert schema.chunk_layout == store.chunk_layout
    if store.dtype.name not in ("byte", "char"):  # There is no JSON of their fill values.
        assert schema.to_json()["dtype"] == store.dtype.name
    again = gpustore.open(store.spec().to_json(), context=context).result()
    assert again.spec() == store.spec()
    assert again.schema == schema
    if 0 in store.shape:
        return "empty"
    element = again[(0,) * store.rank]
    fill = store.fill_value
    if fill is None:
        fill = np.zeros((), store.dtype.array_dtype)
    fill = fill.reshape(-1)[:1].reshape(())
    assert element.read().result().tobytes() == fill.tobytes()
    changed = np.frombuffer(bytes([1] * fill.dtype.itemsize), fill.dtype).reshape(())
    element.write(changed).result()
    assert store[(0,) * store.rank].read().result().tobytes() == changed.tobytes()
    return "whole"


def selections(document):
    """What may be opened of the elements of a document."""
    if document.get("data_type") == _STRUCT or isinstance(document.get("dtype"), list):
        return [{"field": "x"}, {"field": "y"}, {"open_as_void": True}]
    return [{}, {}, {"open_as_void": True}]


@pytest.mark.parametrize(("driver", "document"), SEEDS)
def test_documents_to_begin_with_are_legal(driver, document):
    encoded = json.dumps(document).encode()
    for selection in selections(document):
        assert check(driver, encoded, selection) == "whole"


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("documents", scales(share(DOCUMENTS), LONG_DOCUMENTS))
def test_changed_metadata_are_refused_or_whole(documents):
    generator = random.Random(documents)
    outcomes = collections.Counter()
    for _ in range(documents):
        driver, document = generator.choice(SEEDS)
        if generator.random() < 0.8:
            encoded = mutate(generator, document)
        else:
            encoded = mutate_bytes(generator, json.dumps(document).encode())
        begin = time.process_time()
        try:
            outcomes[check(driver, encoded, generator.choice(selections(document)))] += 1
        except BaseException:
            print(driver, encoded[:3000])
            raise
        assert time.process_time() - begin < SLOWEST_S, encoded[:3000]
    assert outcomes["whole"] > 0.06 * documents
    assert outcomes["MetadataError"] > 0.5 * documents
    assert outcomes["LimitError"] > 0.001 * documents
