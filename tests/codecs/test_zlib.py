"""zlib against the standard library and numcodecs, and every kind of damage."""

import gzip
import zlib

import numcodecs
import pytest
from hypothesis import given

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

LEVELS = (0, 1, 3, 9)


@pytest.mark.matrix
@pytest.mark.parametrize("level", LEVELS)
@given(payload=payloads())
def test_round_trip(level, payload):
    check_round_trip(stage("zlib", "v2", level=level), payload)


@each("level", [-1, *LEVELS])
@each("nbytes", [0, 1, 4096, 100_000])
def test_decodes_encodings_of_other_libraries_and_the_reverse(level, nbytes):
    payload = make_payload(nbytes, "steps")
    codec = stage("zlib", "v2", level=level)
    assert zlib.decompress(codec.encode(payload)) == payload
    for encoded in (numcodecs.Zlib(level).encode(payload), zlib.compress(payload, level)):
        assert codec.decode(encoded, nbytes, exact=True) == payload


def test_refuses_wrong_sizes():
    check_sizes(stage("zlib", "v2"), make_payload(5000, "steps"))


@pytest.mark.parametrize("nbytes", [0, 50, 3000])
def test_refuses_damage(nbytes):
    check_damage(stage("zlib", "v2"), make_payload(nbytes, "steps"), checksummed=True)


def test_refuses_bytes_after_the_stream():
    encoded = zlib.compress(b"abc")
    with pytest.raises(CorruptChunkError, match=r"End of data expected; remaining length: 2; at"):
        stage("zlib", "v2").decode(encoded + b"zz", 3, exact=True)


def test_refuses_a_gzip_member():
    with pytest.raises(CorruptChunkError, match="inflate"):
        stage("zlib", "v2").decode(gzip.compress(b"abc"), 3, exact=True)
