"""Damaged chunks of strings and bytes of any length: typed errors that name the key, little memory.

Their bytes tell how many elements there are and how long each is. Where nothing has a checksum a
changed bit may give another string, but never one of another type, nor another shape.
"""

import collections
import gzip
import os
import random
import struct
import tracemalloc

import numpy as np
import pytest

import gpustore
from gpustore.errors import CorruptChunkError, LimitError
from tests.matrix import each
from tests.reliability.test_fuzz import damage, reads

pytestmark = pytest.mark.matrix

TEXTS = ["", "é", "plain", "日本", "x" * 40, "\0", "née"]
SHAPE, CHUNK = (6, 4), (3, 2)
NAMES = {str: "vlen-utf8", bytes: "vlen-bytes"}


def named(name, **configuration):
    return {"name": name, "configuration": configuration}


CRC32C = {"name": "crc32c"}
FORMS = {
    "zarr2 utf8": (str, None),
    "zarr2 bytes zlib": (bytes, {"id": "zlib", "level": 1}),
    "zarr3 utf8": (str, []),
    "zarr3 bytes": (bytes, []),
    "zarr3 utf8 crc32c": (str, [CRC32C]),
    "zarr3 bytes gzip": (bytes, [named("gzip", level=1)]),
    "zarr3 utf8 zstd": (str, [named("zstd", level=1, checksum=True)]),
    "zarr3 utf8 shards": (str, [CRC32C]),
}
CHECKSUMMED = {name for name, (_, codec) in FORMS.items() if codec}
RAW = sorted(set(FORMS) - CHECKSUMMED)


def spec(form, kvstore):
    kind, codec = FORMS[form]
    if form.startswith("zarr2"):
        members = {"dtype": "|O", "filters": [{"id": NAMES[kind]}], "compressor": codec}
        metadata = {"shape": SHAPE, "chunks": CHUNK, **members}
        return {"driver": "zarr2", "kvstore": kvstore, "metadata": metadata}
    codecs, outer = [{"name": NAMES[kind]}, *codec], CHUNK
    if "shards" in form:
        index = [named("bytes", endian="little"), CRC32C]
        outer = (SHAPE[0], CHUNK[1])
        options = {"chunk_shape": list(CHUNK), "codecs": codecs, "index_codecs": index}
        codecs = [named("sharding_indexed", **options)]
    grid = named("regular", chunk_shape=list(outer))
    data_type = "string" if kind is str else "bytes"
    metadata = {"shape": SHAPE, "chunk_grid": grid, "data_type": data_type, "codecs": codecs}
    return {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}


class Damaged:
    """An array, one stored value of which is replaced again and again."""

    def __init__(self, form, kvstore="memory://a/", **context):
        self.form, self.kind = form, FORMS[form][0]
        context = gpustore.Context({"file_io_sync": False, **context})
        self.store = gpustore.open(spec(form, kvstore), create=True, context=context).result()
        texts = [TEXTS[i % 7] + str(i) * (i % 2) for i in range(24)]
        self.written = np.empty(SHAPE, object)
        self.written.flat = texts if self.kind is str else [text.encode() for text in texts]
        self.store.write(self.written).result()
        keys = [key.decode() for key in self.store.kvstore.list().result()]
        self.name = sorted(key for key in keys if key[0] in "0c")[0]
        self.key = self.store.kvstore.path + self.name
        self.encoded = bytes(self.store.kvstore[self.name])

    def check(self, error, errors=CorruptChunkError):
        assert isinstance(error, errors), repr(error)
        assert error.key == self.key
        assert self.key in str(error)

    def must_fail(self, encoded, errors=CorruptChunkError):
        """A damaged value that cannot be read, nor be changed in part; others are not touched."""
        if isinstance(encoded, int):
            os.truncate(self.key, encoded)
        else:
            self.store.kvstore[self.name] = encoded
        for part in (np.s_[...], np.s_[1, 1], np.s_[:2, ::-1]):
            self.check(self.store[part].read().exception(), errors)
        self.check(self.store.read_many([[0, 0], [1, 1]], (2, 2)).exception(), errors)
        self.check(self.store[1, 1].write(self.kind()).exception(), errors)
        np.testing.assert_array_equal(self.store[:, 2:].read().result(), self.written[:, 2:])


@pytest.fixture(params=FORMS)
def damaged(request):
    return Damaged(request.param)


def test_what_is_cut_off_or_too_long(damaged):
    encoded = damaged.encoded
    for length in range(0, len(encoded), 1 if damaged.form in RAW else 7):
        damaged.must_fail(encoded[:length])
    for tail in (b"\0", bytes(4), bytes(100), encoded, bytes(1 << 20)):
        if tail is not encoded or "shards" not in damaged.form:  # That has a whole index again.
            damaged.must_fail(encoded + tail)
    damaged.must_fail(encoded[1:])
    damaged.must_fail(encoded[-1:] + encoded)


def test_flipped_bits(damaged):
    outcomes = collections.Counter()
    for at in range(len(damaged.encoded)):
        for bit in range(8) if damaged.form in RAW else (at % 8,):
            changed = bytearray(damaged.encoded)
            changed[at] ^= 1 << bit
            damaged.store.kvstore[damaged.name] = bytes(changed)
            read = damaged.store[:3, :2].read()
            if read.exception() is not None:
                damaged.check(read.exception())
                outcomes["error"] += 1
                continue
            found = read.result()
            assert found.shape == (3, 2)
            assert all(type(element) is damaged.kind for element in found.flat)
            same = np.array_equal(found, damaged.written[:3, :2])
            outcomes["same" if same else "wrong"] += 1
    assert outcomes["error"] > 30
    if damaged.form in CHECKSUMMED:
        assert outcomes["wrong"] == 0
    else:
        assert outcomes["same"] == 0


@pytest.mark.parametrize("form", RAW)
def test_numbers_in_the_stream_are_checked_before_memory_is_taken(form):
    damaged = Damaged(form)
    encoded = damaged.encoded
    count = struct.unpack_from("<I", encoded)[0]
    assert count == 6
    damaged.must_fail(b"")
    for number in (0, 1, count - 1, count + 1, 1 << 20, 2**31 - 1, 2**31, 2**32 - 1):
        tracemalloc.start()
        damaged.must_fail(struct.pack("<I", number) + encoded[4:])
        damaged.must_fail(encoded[:4] + struct.pack("<I", number + 50 & 0xFFFFFFFF) + encoded[8:])
        damaged.must_fail(struct.pack("<II", count, number) + bytes(40))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 << 20, number  # Buffers of the read among it.


@each("form", FORMS)
def test_files_without_end(form, tmp_path):
    """Only the limit says how long a stream may be; what is longer is not read."""
    damaged = Damaged(form, f"file://{tmp_path}/a/", limits={"chunk_nbytes": 1 << 20})
    for nbytes in (1 << 22, 1 << 40):
        damaged.must_fail(nbytes, (CorruptChunkError, LimitError))


def test_a_bomb_grows_no_larger_than_the_limit():
    damaged = Damaged("zarr3 bytes gzip", limits={"chunk_nbytes": 1 << 20})
    bomb = gzip.compress(bytes(64 << 20))
    tracemalloc.start()
    damaged.must_fail(bomb, (CorruptChunkError, LimitError))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_invalid_utf8():
    damaged = Damaged("zarr3 utf8")
    at = damaged.encoded.index("é".encode())
    for byte in (0xFF, 0xC0, 0x80, 0xED):
        changed = bytearray(damaged.encoded)
        changed[at] = byte
        damaged.must_fail(bytes(changed))
        assert "Invalid UTF-8" in str(damaged.store.read().exception())


def test_random_damage_read_in_random_ways():
    """The same trials every time."""
    generator = random.Random(3)
    outcomes = collections.Counter()
    for number in range(400):
        if number % 50 == 0:
            form = list(FORMS)[number // 50]
            damaged = Damaged(form, cache_pool={"total_bytes_limit": (number // 50 % 2) << 20})
        changed = damage(generator, damaged.encoded, [damaged.encoded[::-1]])
        damaged.store.kvstore[damaged.name] = changed
        for wanted, reading in reads(generator, damaged.store):
            if reading.exception(timeout=60) is not None:
                damaged.check(reading.exception())
                outcomes["error"] += 1
                continue
            found, right = reading.result(), wanted(damaged.written)
            assert np.shape(found) == np.shape(right)
            assert all(type(element) is damaged.kind for element in np.ravel(found))
            same = np.array_equal(found, right)
            assert same or form not in CHECKSUMMED, (form, changed)
            outcomes["same" if same else "wrong"] += 1
    assert outcomes["error"] > 200
    assert outcomes["same"] > 50
