"""bz2 against the standard library, and every kind of damage."""

import bz2

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


@given(payload=payloads().filter(lambda payload: len(payload) < 10_000))
def test_round_trip(payload):
    check_round_trip(stage("bz2", "v2"), payload)


@pytest.mark.parametrize("nbytes", [0, 1, 300_000])
def test_decodes_encodings_of_other_libraries_and_the_reverse(nbytes):
    payload = make_payload(nbytes, "steps")
    codec = stage("bz2", "v2", level=9)
    assert bz2.decompress(codec.encode(payload)) == payload
    encoded = numcodecs.BZ2(1).encode(payload)
    assert codec.decode(encoded, nbytes, exact=True) == payload


def test_refuses_wrong_sizes():
    check_sizes(stage("bz2", "v2"), make_payload(2000, "steps"))


def test_refuses_damage():
    check_damage(stage("bz2", "v2"), make_payload(300, "steps"), checksummed=True)


@pytest.mark.parametrize("sizes", [(1, 2), (0, 5, 0), (1,) * 50])
def test_accepts_streams_that_together_are_one_chunk(sizes):
    codec = stage("bz2", "v2")
    parts = [make_payload(nbytes, "noise", i) for i, nbytes in enumerate(sizes)]
    encoded, payload = b"".join(map(bz2.compress, parts)), b"".join(parts)
    assert codec.decode(encoded, len(payload), exact=True) == payload
    for wrong in (encoded[:-1], encoded + b"BZ", encoded + bz2.compress(b"x")):
        with pytest.raises(CorruptChunkError):
            codec.decode(wrong, len(payload), exact=True)
