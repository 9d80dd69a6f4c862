"""zstd against numcodecs and zstandard, frames made by hand, and every kind of damage."""

import struct

import numcodecs
import pytest
import zstandard
from hypothesis import given

from gpustore.codecs.zstd import walk_frames
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

SKIPPABLE = struct.pack("<II", 0x184D2A53, 3) + b"abc"
OPTIONS = [{"level": 3}, {"level": 1, "checksum": True}, {"level": -5}]
SIZES = [0, 1, 255, 256, 4096, 65_536 + 256, 256 << 10, (256 << 10) + 1, 700_000]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@given(payload=payloads())
def test_round_trip(options, payload):
    check_round_trip(stage("zstd", **options), payload)


@each("nbytes", SIZES)
@each("checksum", [False, True])
def test_decodes_encodings_of_other_libraries_and_the_reverse(nbytes, checksum):
    payload = make_payload(nbytes, "steps")
    codec = stage("zstd", level=1, checksum=checksum)
    encoded = codec.encode(payload)
    assert zstandard.ZstdDecompressor().decompress(encoded, allow_extra_data=False) == payload
    assert zstandard.get_frame_parameters(encoded).content_size == nbytes
    assert zstandard.get_frame_parameters(encoded).has_checksum == checksum
    encoded = numcodecs.Zstd(1, checksum).encode(payload)
    assert codec.decode(encoded, nbytes, exact=True) == payload


def frame(payload, *, sized=True, checksum=True):
    compressor = zstandard.ZstdCompressor(write_content_size=sized, write_checksum=checksum)
    return compressor.compress(payload)


@each("nbytes", SIZES)
@each("exact", [True, False])
def test_decodes_a_frame_that_does_not_tell_its_size(nbytes, exact):
    payload = make_payload(nbytes, "steps")
    encoded = frame(payload, sized=False)
    assert stage("zstd").decode(encoded, nbytes, exact=exact) == payload
    for wrong in (encoded[:-1], encoded + b"\0"):
        with pytest.raises(CorruptChunkError):
            stage("zstd").decode(wrong, nbytes, exact=exact)
    if nbytes:
        with pytest.raises(CorruptChunkError):
            stage("zstd").decode(encoded, nbytes - 1, exact=exact)


@each("sizes", [(1, 2), (0, 5, 0), (5, 0), (300_000, 0), (200_000, 200_000), (1,) * 300])
@each("sized", [True, False])
@each("between", [b"", SKIPPABLE])
def test_accepts_frames_that_together_are_one_chunk(sizes, sized, between):
    codec = stage("zstd")
    parts = [make_payload(nbytes, "noise", i) for i, nbytes in enumerate(sizes)]
    payload = b"".join(parts)
    encoded = between + between.join(frame(part, sized=sized) for part in parts) + between
    assert codec.decode(encoded, len(payload), exact=True) == payload
    out = bytearray(len(payload))
    assert codec.decode(encoded, len(payload), exact=True, out=memoryview(out)) == payload
    assert out == payload
    for wrong in (encoded[:-1], encoded + b"\x28", encoded + frame(b"x")):
        with pytest.raises(CorruptChunkError):
            codec.decode(wrong, len(payload), exact=True)
    with pytest.raises(CorruptChunkError, match="Not enough data"):
        codec.decode(encoded, len(payload) + 1, exact=True)


@pytest.mark.parametrize("nbytes", [300, 300_000])
def test_refuses_wrong_sizes(nbytes):
    check_sizes(stage("zstd"), make_payload(nbytes, "steps"))


@pytest.mark.parametrize("nbytes", [50, 3000, 300_000])
@pytest.mark.parametrize("checksum", [False, True])
def test_refuses_damage(nbytes, checksum):
    payload = make_payload(nbytes, "steps" if nbytes < 10_000 else "zeros")
    check_damage(stage("zstd", checksum=checksum), payload, checksummed=checksum)


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "Truncated Zstd-compressed stream; at byte 0"),
        (b"\x28\xb5\x2f", "Truncated Zstd-compressed stream; at byte 3"),
        (b"junk-junk", "Unknown Zstd frame descriptor 0x6b6e756a at byte 0"),
        (SKIPPABLE[:-1], "Truncated Zstd-compressed stream; at byte 10"),
        (SKIPPABLE, "Not enough data: expected at least 4 or 4 more; at byte 0"),
        (frame(b"abcd")[:-5], "Truncated Zstd-compressed stream"),
    ],
    ids=repr,
)
def test_messages_name_the_fault(encoded, reason):
    with pytest.raises(CorruptChunkError) as caught:
        stage("zstd").decode(encoded, 4, exact=True)
    assert caught.value.reason.startswith(reason)


@given(payload=payloads())
def test_walk_finds_the_frames_of_any_encoder(payload):
    first = frame(payload, sized=len(payload) % 2 == 0, checksum=len(payload) % 3 == 0)
    second = frame(payload)
    frames = list(walk_frames(memoryview(first + SKIPPABLE + second)))
    ends = [len(first), len(first) + len(SKIPPABLE), len(first) + len(SKIPPABLE) + len(second)]
    assert [one.stop for one in frames] == ends
    assert [one.start for one in frames] == [0, *ends[:-1]]
    assert all(one.decoded_max >= len(payload) for one in frames[::2])
    assert frames[1].decoded_max == 0
