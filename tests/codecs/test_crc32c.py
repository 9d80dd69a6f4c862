"""crc32c against google_crc32c, and every kind of damage."""

import google_crc32c
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


@given(payload=payloads())
def test_round_trip(payload):
    check_round_trip(stage("crc32c"), payload)


@each("nbytes", [0, 1, 1000, (256 << 10) + 1])
@each("kind", [bytes, bytearray, memoryview])
def test_appends_the_checksum_little_endian(nbytes, kind):
    payload = make_payload(nbytes, "noise")
    expected = payload + google_crc32c.value(payload).to_bytes(4, "little")
    assert stage("crc32c").encode(kind(payload)) == expected


def test_check_value_of_the_specification_of_castagnoli():
    assert stage("crc32c").encode(b"123456789")[-4:] == bytes.fromhex("839206e3")


def test_mismatch_is_data_loss_and_names_both_checksums():
    encoded = bytearray(stage("crc32c").encode(b"\0\0\1\0\2\0\3\0"))
    encoded[4] ^= 0x55
    with pytest.raises(CorruptChunkError) as caught:
        stage("crc32c").decode(encoded, 8, exact=True)
    stored = int.from_bytes(encoded[-4:], "little")
    computed = google_crc32c.value(bytes(encoded[:-4]))
    assert str(caught.value) == (
        f"DATA_LOSS: Digest mismatch, stored digest is 0x{stored:08x} but computed digest is "
        f"0x{computed:08x}"
    )


def test_decoding_without_out_copies_nothing():
    encoded = stage("crc32c").encode(b"abcdefgh")
    assert stage("crc32c").decode(encoded, 8, exact=True).obj is encoded


def test_refuses_wrong_sizes():
    check_sizes(stage("crc32c"), make_payload(50, "steps"))


@pytest.mark.parametrize("nbytes", [0, 50])
def test_refuses_damage(nbytes):
    check_damage(stage("crc32c"), make_payload(nbytes, "steps"), checksummed=True)
