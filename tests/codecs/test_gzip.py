"""gzip against the standard library and numcodecs, and every kind of damage."""

import gzip
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import numcodecs
import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given

import gpustore
from gpustore.errors import CorruptChunkError
from tests.codecs.contract import (
    check_damage,
    check_round_trip,
    check_sizes,
    make_payload,
    payloads,
    stage,
)
from tests.matrix import each

LEVELS = (0, 1, 2, 3, 6, 9)


@pytest.mark.matrix
@pytest.mark.parametrize("level", LEVELS)
@given(payload=payloads())
def test_round_trip(level, payload):
    check_round_trip(stage("gzip", level=level), payload)


@each("level", LEVELS)
@each("nbytes", [0, 1, 4096, 100_000])
def test_decodes_encodings_of_other_libraries_and_the_reverse(level, nbytes):
    payload = make_payload(nbytes, "steps")
    codec = stage("gzip", level=level)
    assert numcodecs.GZip().decode(codec.encode(payload)) == payload
    assert gzip.decompress(codec.encode(payload)) == payload
    for encoded in (numcodecs.GZip(level).encode(payload), gzip.compress(payload, level)):
        assert codec.decode(encoded, nbytes, exact=True) == payload


@each("level", LEVELS)
def test_encoding_is_reproducible(level):
    codec = stage("gzip", level=level)
    assert codec.encode(b"abc") == codec.encode(b"abc")
    assert codec.encode(b"abc")[4:8] == bytes(4)  # no time


@each("level", range(10))
@each("name", ["steps", "noise"])
def test_a_level_is_about_as_small_as_that_of_zlib(level, name):
    payload = make_payload(100_000, name)
    nbytes = len(stage("gzip", level=level).encode(payload))
    assert nbytes <= 1.05 * len(gzip.compress(payload, level)) + 20


def test_threads_encode_at_several_levels_at_once():
    payload = make_payload(20_000, "steps")
    expected = [stage("gzip", level=level).encode(payload) for level in (3, 6)]

    def encode(number):
        return [stage("gzip", level=level).encode(payload) for level in (3, 6)] * (number % 3)

    with ThreadPoolExecutor(4) as pool:
        for number, found in enumerate(pool.map(encode, range(40))):
            assert found == expected * (number % 3)


@each("level", [0, 3, 6, 9])
@each("version", [2, 3])
def test_tensorstore_and_zarr_read_what_is_stored(tmp_path, level, version):
    values = np.arange(10_000, dtype="u2").reshape(100, 100) // 7
    codecs = [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": level}}]
    metadata = (
        {"codecs": codecs} if version == 3 else {"compressor": {"id": "gzip", "level": level}}
    )
    spec = {"driver": f"zarr{version}", "kvstore": f"file://{tmp_path}/", "metadata": metadata}
    store = gpustore.open(spec, create=True, dtype="uint16", shape=values.shape).result()
    store.write(values).result()
    read = tensorstore.open({"driver": f"zarr{version}", "kvstore": f"file://{tmp_path}/"}).result()
    assert np.array_equal(read[...].read().result(), values)
    assert np.array_equal(zarr.open_array(str(tmp_path), mode="r")[...], values)


def test_refuses_wrong_sizes():
    check_sizes(stage("gzip"), make_payload(5000, "steps"))


@pytest.mark.parametrize("nbytes", [0, 50, 3000])
def test_refuses_damage(nbytes):
    check_damage_but_for_members(stage("gzip"), make_payload(nbytes, "steps"))


def check_damage_but_for_members(codec, payload):
    if payload:
        check_damage(codec, payload, checksummed=True)
    else:  # Twice an empty member is still a legal encoding of nothing.
        assert codec.decode(codec.encode(b"") * 2, 0, exact=True) == b""


@each("sizes", [(1, 2), (0, 5, 0), (40_000, 40_000, 17), (1,) * 500])
def test_accepts_members_that_together_are_one_chunk(sizes):
    codec = stage("gzip")
    parts = [make_payload(nbytes, "noise", i) for i, nbytes in enumerate(sizes)]
    encoded, payload = b"".join(map(gzip.compress, parts)), b"".join(parts)
    assert codec.decode(encoded, len(payload), exact=True) == payload
    out = bytearray(len(payload))
    assert codec.decode(encoded, len(payload), exact=True, out=memoryview(out)) == payload
    for wrong in (encoded[:-1], encoded + b"\x1f", encoded + gzip.compress(b"x")):
        with pytest.raises(CorruptChunkError):
            codec.decode(wrong, len(payload), exact=True)
    with pytest.raises(CorruptChunkError, match=r"^FAILED_PRECONDITION: Not enough data"):
        codec.decode(encoded, len(payload) + 1, exact=True)


def test_reads_a_header_with_every_optional_field():
    payload = make_payload(1000, "steps")
    header = b"\x1f\x8b\x08\x1e\x00\x00\x00\x00\x00\xff" + b"\x02\x00ab" + b"name\0" + b"why\0"
    header += struct.pack("<H", zlib.crc32(header) & 0xFFFF)
    body = gzip.compress(payload)[10:]
    assert stage("gzip").decode(header + body, 1000, exact=True) == payload


def test_refuses_a_zlib_stream():
    with pytest.raises(CorruptChunkError, match="inflate"):
        stage("gzip").decode(zlib.compress(b"abc"), 3, exact=True)
