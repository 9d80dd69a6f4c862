"""Blosc against numcodecs and TensorStore, frames made by hand, and every kind of damage."""

import struct
import tracemalloc

import numcodecs.blosc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.codecs.blosc.frame import read_header
from gpustore.errors import CorruptChunkError, LimitError
from tests.codecs.contract import (
    check_damage,
    check_round_trip,
    check_sizes,
    make_payload,
    payloads,
    stage,
)
from tests.matrix import each

CNAMES = ["blosclz", "lz4", "lz4hc", "zlib", "zstd"]
SHUFFLES = ["noshuffle", "shuffle", "bitshuffle"]


def header(version=2, flags=0x21, typesize=2, nbytes=256, blocksize=256, cbytes=100):
    return struct.pack("<BBBBiii", version, 1, flags, typesize, nbytes, blocksize, cbytes)


@pytest.mark.matrix
@pytest.mark.parametrize("cname", CNAMES)
@given(
    payload=payloads(),
    shuffle=st.sampled_from(SHUFFLES),
    typesize=st.sampled_from([1, 2, 3, 4, 8, 16, 17, 255]),
    clevel=st.sampled_from([0, 1, 5]),
    blocksize=st.sampled_from([0, 0, 256, 1000]),
)
def test_round_trip(cname, payload, shuffle, typesize, clevel, blocksize):
    codec = stage(
        "blosc",
        cname=cname,
        shuffle=shuffle,
        typesize=typesize,
        clevel=clevel,
        blocksize=blocksize,
    )
    check_round_trip(codec, payload)


@each("cname", CNAMES)
@each("shuffle", [0, 1, 2])
@each("nbytes", [8, 4096, 100_000])
def test_decodes_encodings_of_numcodecs_and_the_reverse(cname, shuffle, nbytes):
    array = np.frombuffer(make_payload(nbytes, "steps"), "<u2")
    theirs = numcodecs.Blosc(cname, 5, shuffle)
    codec = stage("blosc", "v2", cname=cname, shuffle=shuffle)
    encoded = theirs.encode(array)
    assert codec.decode(encoded, nbytes, exact=True) == array.tobytes()
    assert theirs.decode(codec.encode(array.tobytes())) == array.tobytes()
    assert bytes(codec.encode(array.tobytes()))[:12] == encoded[:12]


@each(
    ("itemsize", "options", "typesize", "flag"),
    [
        (1, {}, 1, 4),
        (4, {}, 4, 1),
        (4, {"shuffle": 2}, 4, 4),
        (300, {}, 1, 4),
        (4, {"typesize": None}, 4, 1),
        (4, {"typesize": 8}, 8, 1),
        (4, {"typesize": 1000}, 1, 4),
        (4, {"shuffle": 0}, 4, 0),
        (4, {"blocksize": 2**63}, 4, 1),
    ],
)
def test_v2_shuffles_by_the_element_size(itemsize, options, typesize, flag):
    codec = stage("blosc", "v2", itemsize, **options)
    found = read_header(codec.encode(bytes(12_000)))
    assert (found.typesize, found.flags & 5) == (typesize, flag)


def test_threads_of_the_library_are_off():
    assert numcodecs.blosc.use_threads is False


def test_reads_the_frame_of_an_empty_chunk():
    codec = stage("blosc")
    empty = header(flags=0x33, nbytes=0, blocksize=1, cbytes=16)
    assert codec.decode(empty, 0, exact=True) == b""
    assert codec.decode(codec.encode(b""), 0, exact=True) == b""


def test_stored_frames_are_not_copied():
    codec = stage("blosc", clevel=0)
    encoded = codec.encode(b"abcdefgh" * 4)
    assert read_header(encoded).is_stored
    assert codec.decode(encoded, 32, exact=True).obj is encoded


def test_refuses_wrong_sizes():
    check_sizes(stage("blosc"), make_payload(5000, "steps"))


@pytest.mark.parametrize("cname", CNAMES)
@pytest.mark.parametrize("nbytes", [50, 3000, 40_000])
def test_refuses_damage(cname, nbytes):
    payload = make_payload(nbytes, "steps")
    check_damage(stage("blosc", cname=cname), payload, checksummed=False)


@each(
    ("frame", "reason"),
    [
        (b"", "0 bytes, expected a header of 16"),
        (header()[:15], "15 bytes, expected a header of 16"),
        (header(version=1), "format version 1, expected 2"),
        (header(version=5), "format version 5, expected 2"),
        (header(flags=0x25), "flags 0x25"),
        (header(flags=0x28), "flags 0x28"),
        (header(flags=0xA1), "flags 0xa1"),
        (header(cbytes=17), "16 bytes, but the header says 17"),
        (header(cbytes=-16), "16 bytes, but the header says -16"),
        (header(cbytes=16, typesize=0), "typesize 0, nbytes 256"),
        (header(cbytes=16, nbytes=-1), "typesize 2, nbytes -1"),
        (header(cbytes=16, blocksize=0), "blocksize 0 of 256 bytes"),
        (header(cbytes=16, blocksize=257), "blocksize 257 of 256 bytes"),
        (header(cbytes=16, flags=2), "16 bytes hold 256 uncompressed ones"),
        (header(cbytes=16, blocksize=1), "blocks of 1 bytes leave no room for 256 bytes"),
        (header(cbytes=20) + b"\x10\0\0\0", "error during blosc decompression"),
        (header(cbytes=24) + b"\x14\0\0\0\0\0\0\0", "error during blosc decompression"),
        (header(cbytes=24) + b"\xff\xff\xff\x7f\0\0\0\0", "error during blosc decompression"),
        (header(cbytes=24) + b"\x14\0\0\0\xff\xff\xff\x7f", "error during blosc decompression"),
    ],
)
def test_refuses_headers_that_lie(frame, reason):
    for out in (None, memoryview(bytearray(256))):
        with pytest.raises(CorruptChunkError) as caught:
            stage("blosc").decode(frame, 256, exact=True, out=out)
        assert caught.value.reason.startswith(f"Invalid blosc-compressed data: {reason}")


def test_incompressible_data_are_stored_by_every_compressor():
    stored = header(flags=0x43, nbytes=4, blocksize=4, cbytes=20) + b"abcd"
    assert stage("blosc").decode(stored, 4, exact=True) == b"abcd"


def test_refuses_to_encode_more_than_a_frame_can_hold():
    chunk = memoryview(np.broadcast_to(np.zeros((), np.uint8), 2**31))
    with pytest.raises(LimitError, match="2147483648 bytes exceeds the format's limit"):
        stage("blosc").encode(chunk)


@pytest.mark.matrix
@pytest.mark.parametrize("cname", [*CNAMES, "snappy"])
@given(
    payload=payloads(),
    shuffle=st.sampled_from(SHUFFLES),
    typesize=st.sampled_from([1, 2, 3, 4, 16, 17]),
    blocksize=st.sampled_from([0, 130, 256, 1000]),
    data=st.data(),
)
def test_a_part_is_that_of_the_whole(cname, payload, shuffle, typesize, blocksize, data):
    codec = stage(
        "blosc", cname=cname, shuffle=shuffle, typesize=typesize, clevel=5, blocksize=blocksize
    )
    nbytes = len(payload)
    if nbytes == 0:
        return
    start = data.draw(st.integers(0, nbytes - 1))
    stop = data.draw(st.integers(start + 1, nbytes))
    frame = bytearray(codec.encode(payload))
    out = memoryview(bytearray(nbytes))
    part, begin = codec.decode_part(frame, nbytes, start, stop, out)
    assert begin <= start < stop <= begin + len(part)
    assert bytes(part) == payload[begin : begin + len(part)]
    # Damage to a stream or its length: an error, or bytes as many as there must be.
    at = data.draw(st.integers(16, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    try:
        part, begin = codec.decode_part(frame, nbytes, start, stop, out)
    except CorruptChunkError:
        return
    assert begin <= start < stop <= begin + len(part) <= nbytes


def test_a_part_leaves_other_blocks_alone():
    payload = make_payload(100_000, "steps")
    codec = stage("blosc", cname="zstd", shuffle="noshuffle", typesize=1, clevel=5, blocksize=1000)
    frame = bytearray(codec.encode(payload))
    frame[struct.unpack_from("<i", frame, 16)[0] + 4] ^= 0xFF  # The first block.
    out = memoryview(bytearray(100_000))
    part, begin = codec.decode_part(frame, 100_000, 50_500, 50_600, out)
    assert (begin, bytes(part)) == (50_000, payload[50_000:51_000])
    with pytest.raises(CorruptChunkError):
        codec.decode_part(frame, 100_000, 500, 600, out)


def test_blocks_that_lie_in_each_other_are_refused():
    """Taken one by one they would become many times as long as the frame."""
    nbytes, blocksize = 1 << 20, 1024
    blocks, stream = nbytes // blocksize, bytes(100_000)
    first = 16 + 4 * blocks
    body = struct.pack(f"<{blocks}i", *[first] * blocks) + struct.pack("<i", len(stream)) + stream
    sizes = {"typesize": 1, "nbytes": nbytes, "blocksize": blocksize, "cbytes": 16 + len(body)}
    frame = header(flags=0x31, **sizes) + body
    out = memoryview(bytearray(nbytes))
    tracemalloc.start()
    with pytest.raises(CorruptChunkError, match="lies in another one"):
        stage("blosc").decode_part(frame, nbytes, 0, nbytes // 2, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
