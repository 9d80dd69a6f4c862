"""Data of members of zip archives."""

import bz2
import io
import lzma
import os
import struct
import tracemalloc
import zipfile
import zlib

import pytest
import tensorstore as ts
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gpustore.errors import CorruptChunkError
from gpustore.kvstores.zip.directory import METHODS
from gpustore.kvstores.zip.member import (
    ENCODE_METHODS,
    check_crc32,
    check_encoded_nbytes,
    decode,
    encode,
)
from tests.matrix import each


def deflate(data):
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


ENCODERS = {
    "deflate": (8, deflate),
    "bzip2": (12, bz2.compress),
    "zstd": (93, zstandard.compress),
    "zstd-no-size": (93, zstandard.ZstdCompressor(write_content_size=False).compress),
    "xz": (95, lzma.compress),
}
VALUES = {"empty": b"", "one": b"x", "random": os.urandom(1000), "long": b"abc" * 100_000}


@each("name", ENCODERS)
@each("data", VALUES.values(), ids=VALUES)
def test_data_are_decoded_whole_and_from_the_beginning(name, data):
    method, encoder = ENCODERS[name]
    encoded = encoder(data)
    for wanted in {0, 1, len(data) // 2, len(data) - 1, len(data)}:
        if 0 <= wanted <= len(data):
            assert decode(method, encoded, len(data), wanted) == data[:wanted]


@each("name", ENCODERS)
@each("data", [VALUES["random"], VALUES["long"]], ids=["random", "long"])
def test_wrong_sizes_and_streams_are_errors(name, data):
    method, encoder = ENCODERS[name]
    encoded, nbytes = encoder(data), len(data)
    for wrong, size in [
        (encoded, nbytes + 1),
        (encoded, nbytes - 1),
        (encoded, 0),
        (encoded[:-1], nbytes),
        (encoded[: len(encoded) // 2], nbytes),
        (encoded + b"j", nbytes),
        (encoded + encoded, nbytes),
        (encoded + encoder(b""), nbytes) if name != "xz" else (encoded[1:], nbytes),
        (b"", nbytes),
        (b"junk" + encoded, nbytes),
    ]:
        with pytest.raises(CorruptChunkError) as caught:
            decode(method, wrong, size, size)
        assert caught.value.codec == "zip"


@pytest.mark.long
@pytest.mark.parametrize("name", ["deflate", "bzip2", "zstd-no-size", "xz"])
def test_bombs_are_not_unpacked(name):
    method, encoder = ENCODERS[name]
    encoded = encoder(bytes(32 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptChunkError):
            decode(method, encoded, 1000, 1000)
        assert len(decode(method, encoded, 32 << 20, 1000)) == 1000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20  # The dictionary of xz has 8 MiB.


@pytest.mark.parametrize(
    ("method", "encoded_nbytes", "decoded_nbytes"),
    [(0, 5, 6), (0, 6, 5), (8, 10, 10**9), (8, 10**6, 10), (12, 10**6, 10), (95, 10**6, 10)],
)
def test_impossible_sizes_are_errors(method, encoded_nbytes, decoded_nbytes):
    with pytest.raises(CorruptChunkError, match=f"of method {METHODS[method]} cannot hold"):
        check_encoded_nbytes(method, encoded_nbytes, decoded_nbytes)


def test_checksums_are_those_of_zlib():
    check_crc32(b"abc", zlib.crc32(b"abc"))
    with pytest.raises(CorruptChunkError, match=r"CRC-32 of the data is 352441c2, expected 0{8}"):
        check_crc32(b"abc", 0)


@given(
    data=st.binary(max_size=300) | st.binary(max_size=5).map(lambda part: part * 3000),
    compression=st.sampled_from([*ENCODE_METHODS]),
)
def test_encodings_are_accepted_and_decoded_again(data, compression):
    method, encoded = encode(compression, data)
    assert method in (0, ENCODE_METHODS[compression])
    check_encoded_nbytes(method, len(encoded), len(data))
    assert len(encoded) <= len(data)
    if method:
        assert decode(method, encoded, len(data), len(data)) == data
    else:
        assert bytes(encoded) == data


@pytest.mark.parametrize("compression", ["deflate", "zstd", "xz"])
def test_nothing_looks_like_a_bomb_to_tensorstore(compression):
    data = bytes(8 << 20)
    method, encoded = encode(compression, data)
    assert len(encoded) < len(data) < 1024 * len(encoded)
    assert decode(method, encoded, len(data), len(data)) == data


def test_xz_streams_that_follow_each_other_are_read_as_by_tensorstore():
    """The format allows that, and zero bytes in fours behind each; the other formats do not."""
    data = VALUES["random"] * 20
    first, second, empty = (
        lzma.compress(data[:7000]),
        lzma.compress(data[7000:]),
        lzma.compress(b""),
    )
    whole = lzma.compress(data)
    for encoded in (
        first + second,
        first + bytes(4) + second + bytes(8),
        empty + first + empty * 3 + second + empty,
        whole + bytes(100_000),
    ):
        assert read_by_tensorstore(95, encoded, data) == data
        for wanted in (0, 1, 6999, 7001, len(data) - 1, len(data)):
            assert decode(95, encoded, len(data), wanted) == data[:wanted]
    for encoded in (
        *(first, first + second[:-1], first + second + b"j", first + second + empty[:-1]),
        *(whole + first, whole + bytes(3), whole + bytes(99_999), first + bytes(5) + second),
    ):
        with pytest.raises(CorruptChunkError):
            decode(95, encoded, len(data), len(data))


def read_by_tensorstore(method, encoded, data):
    """A member of an archive that says so, read by TensorStore."""
    with zipfile.ZipFile(packed := io.BytesIO(), "w") as archive:
        archive.writestr("key", encoded)
    raw = bytearray(packed.getvalue())
    for at, place in ((raw.find(b"PK\3\4"), 8), (raw.find(b"PK\1\2"), 10)):
        raw[at + place : at + place + 2] = method.to_bytes(2, "little")
        sums = struct.pack("<3L", zlib.crc32(data), len(encoded), len(data))
        raw[at + place + 6 : at + place + 18] = sums
    context = ts.Context()
    base = {"driver": "memory", "path": "x.zip"}
    ts.KvStore.open(base, context=context).result().write("", bytes(raw)).result()
    store = ts.KvStore.open({"driver": "zip", "base": base}, context=context).result()
    return store.read("key").result().value
