"""Damaged chunks of records, strings, raw bits and small elements, read and written by field.

Typed errors that name a damaged key, or elements of the right shape; where every stored byte is
behind a checksum, the right ones. What is repaired is whole again for every field. The same trials
every time; the long version goes on with others.
"""

import collections
import random

import numpy as np
import pytest

import gpustore
from gpustore.errors import CorruptChunkError
from tests.matrix import share
from tests.reliability.scales import scales
from tests.reliability.test_damaged_shards import sharding
from tests.reliability.test_fuzz import damage, reads, some_part

ARRAYS, LONG_ARRAYS = 120, 6000
TRIALS = 12
SHAPE = (16, 12)

_LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
_BYTES = {"name": "bytes"}
_CRC32C = {"name": "crc32c"}
_ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": True}}
_GZIP = {"name": "gzip", "configuration": {"level": 1}}
_TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
_STRUCT = {"name": "struct", "configuration": {"fields": [["x", "uint16"], ["y", "float32"]]}}
_RECORD = [["x", "<u2"], ["y", ">f4", [2, 2]], ["s", "|S3"]]
_ZLIB = {"id": "zlib", "level": 1}
_LZ4 = {"id": "lz4", "acceleration": 1}
_BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}


def _v3(data_type, *codecs):
    grid = {"name": "regular", "configuration": {"chunk_shape": [8, 8]}}
    members = {"shape": SHAPE, "data_type": data_type, "chunk_grid": grid, "codecs": codecs}
    return {"driver": "zarr3", "metadata": members}


def _v2(dtype, compressor, order="C"):
    members = {"shape": SHAPE, "dtype": dtype, "chunks": [8, 8], "order": order}
    return {"driver": "zarr", "metadata": {**members, "compressor": compressor}}


FORMS = {
    "record, zlib": (_v2(_RECORD, _ZLIB), "xys"),
    "record, raw": (_v2(_RECORD, None), "xys"),
    "record, blosc, F": (_v2(_RECORD, _BLOSC, "F"), "xys"),
    "string, zlib": (_v2("|S5", _ZLIB), None),
    "raw bytes, lz4": (_v2("|V3", _LZ4), None),
    "struct, crc32c": (_v3(_STRUCT, _LITTLE, _CRC32C), "xy"),
    "struct, shard": (_v3(_STRUCT, sharding([4, 4], [_LITTLE, _CRC32C])), "xy"),
    "struct, unchecked shard": (
        _v3(_STRUCT, sharding([4, 4], [_LITTLE], location="start", checksum=False)),
        "xy",
    ),
    "raw bits, zstd": (_v3("r24", _BYTES, _ZSTD), None),
    "int4, crc32c": (_v3("int4", _BYTES, _CRC32C), None),
    "int4, raw": (_v3("int4", _BYTES), None),
    "int2, raw": (_v3("int2", _BYTES), None),
    "float8, zstd": (_v3("float8_e4m3fn", _BYTES, _ZSTD, _CRC32C), None),
    "bfloat16, gzip": (_v3("bfloat16", _TRANSPOSE, _LITTLE, _GZIP), None),
    "bool, shard": (_v3("bool", sharding([4, 4], [_BYTES, _CRC32C])), None),
}
"""Name -> a spec and the fields of its records."""

CHECKED = frozenset(
    {
        *("record, zlib", "string, zlib", "struct, crc32c", "struct, shard", "raw bits, zstd"),
        *("int4, crc32c", "float8, zstd", "bfloat16, gzip", "bool, shard"),
    }
)
"""Forms in which no damage may go unnoticed."""


def elements(generator, store):
    """Any bits that an element may have."""
    dtype = store.dtype.array_dtype
    count = store.size
    if dtype.kind == "b":
        return np.array(generator.choices([False, True], k=count)).reshape(store.shape)
    if store.dtype.name in ("int4", "int2"):
        return np.array(generator.choices(range(-2, 2), k=count)).astype(dtype).reshape(store.shape)
    return np.frombuffer(generator.randbytes(count * dtype.itemsize), dtype).reshape(store.shape)


def create(generator, form):
    """The stores of all fields, and what was written to each."""
    spec, names = FORMS[form]
    limit = generator.choice([0, 0, 500, 1 << 20])
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": limit}})
    stores = [
        gpustore.open(
            {**spec, "kvstore": "memory://a/", **({"field": name} if name else {})},
            open=True,
            create=True,
            context=context,
        ).result()
        for name in names or [None]
    ]
    written = [elements(generator, store) for store in stores]
    for store, values in zip(stores, written, strict=True):
        store.write(values).result()
    for store, values in zip(stores, written, strict=True):
        assert store.read().result().tobytes() == values.tobytes()
    return stores, written


def fuzz(seed, arrays):
    """Damage, read and write; returns how often each outcome was seen."""
    generator = random.Random(seed)
    outcomes = collections.Counter()
    for number in range(arrays):
        form = list(FORMS)[number % len(FORMS)]
        stores, written = create(generator, form)
        kvstore = stores[0].kvstore
        keys = [key for key in kvstore.list().result() if key != b"zarr.json" and b".z" not in key]
        whole = {key: bytes(kvstore[key]) for key in keys}
        for _ in range(TRIALS):
            damaged = {}
            for key in generator.sample(keys, generator.choice([1, 1, 2])):
                damaged[key] = damage(generator, whole[key], [])
                kvstore[key] = damaged[key]
            names = [kvstore.path + key.decode() for key in damaged]
            where = (form, damaged)
            at = generator.randrange(len(stores))
            store, values = stores[at], written[at]
            for wanted, reading in reads(generator, store):
                outcomes[outcome(wanted(values), reading, names, form, where)] += 1
            if generator.random() < 0.3:
                part = some_part(generator, store.shape)
                refused = store[part].write(values[part]).exception()
                assert refused is None or isinstance(refused, CorruptChunkError), where
                assert refused is None or refused.key in names, where
                outcomes["written" if refused is None else "write refused"] += 1
            for key in damaged:
                kvstore[key] = whole[key]
            for store, values in zip(stores, written, strict=True):
                assert store.read().result().tobytes() == values.tobytes(), where
    return outcomes


def outcome(right, reading, names, form, where):
    """``"error"``, ``"same"`` or, where nothing can be told, ``"wrong"``."""
    error = reading.exception(timeout=60)
    if error is not None:
        assert isinstance(error, CorruptChunkError), (where, repr(error))
        assert error.key in names, where
        assert error.key in str(error)
        return "error"
    found = reading.result()
    assert (found.shape, found.dtype) == (right.shape, right.dtype.newbyteorder("=")), where
    same = found.tobytes() == np.ascontiguousarray(right).tobytes()
    assert same or form not in CHECKED, where
    return "same" if same else "wrong"


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("arrays", scales(share(ARRAYS), LONG_ARRAYS))
def test_damaged_fields_are_errors_or_do_no_harm(arrays):
    outcomes = fuzz(arrays, arrays)
    assert outcomes["error"] > 5 * arrays
    assert outcomes["same"] > 5 * arrays
    assert outcomes["wrong"] > arrays / 3  # Forms without a checksum are among them.
    assert outcomes["written"] > arrays / 2
    assert outcomes["write refused"] > arrays / 4
