"""lz4 against numcodecs and zarr-python, and every kind of damage."""

import struct

import numcodecs
import numcodecs.lz4
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from gpustore.codec_chain.compressor import parse_v2
from gpustore.codec_chain.resolve import resolve_v2
from gpustore.errors import CorruptChunkError, LimitError, MetadataError
from gpustore.metadata.component import select
from tests.codecs.contract import (
    check_damage,
    check_round_trip,
    check_sizes,
    make_payload,
    payloads,
    stage,
)


def whole(dtype):
    """The component of stored elements that are numbers."""
    return select(dtype, "", as_void=False)


@given(payload=payloads(), acceleration=st.sampled_from([1, 7, 65537]))
def test_round_trip(payload, acceleration):
    check_round_trip(stage("lz4", "v2", acceleration=acceleration), payload)


@pytest.mark.parametrize("nbytes", [1, 300, 300_000])
@pytest.mark.parametrize("acceleration", [1, 100])
def test_bytes_are_those_of_numcodecs(nbytes, acceleration):
    payload = make_payload(nbytes, "steps")
    codec = stage("lz4", "v2", acceleration=acceleration)
    theirs = numcodecs.LZ4(acceleration)
    assert codec.encode(payload) == theirs.encode(payload)
    assert codec.decode(theirs.encode(payload), nbytes, exact=True) == payload
    assert theirs.decode(codec.encode(payload)) == payload


def test_the_empty_chunk_of_numcodecs_is_read():
    codec = stage("lz4", "v2")
    assert bytes(codec.decode(numcodecs.LZ4().encode(b""), 0, exact=True)) == b""
    with pytest.raises(CorruptChunkError, match="Invalid lz4 block of 0 bytes"):
        codec.decode(bytes(4), 0, exact=True)


def test_refuses_wrong_sizes():
    check_sizes(stage("lz4", "v2"), make_payload(5000, "steps"))


@pytest.mark.parametrize("nbytes", [40, 3000, 40_000])
def test_refuses_damage(nbytes):
    check_damage(stage("lz4", "v2"), make_payload(nbytes, "steps"), checksummed=False)


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "Not enough data: expected at least 4 or 4 more; at byte 0"),
        (b"\0\1\0", "Not enough data: expected at least 4 or 1 more; at byte 3"),
        (struct.pack("<I", 2**32 - 1) + b"x", "End of data expected"),
        (struct.pack("<I", 257) + b"x", "End of data expected"),
        (struct.pack("<I", 255) + b"x", "Not enough data"),
        (struct.pack("<I", 256), "Invalid lz4 block"),
        (struct.pack("<I", 256) + b"\xff" * 9, "Invalid lz4 block"),
    ],
    ids=repr,
)
def test_refuses_sizes_that_lie(encoded, reason):
    for out in (None, memoryview(bytearray(256))):
        with pytest.raises(CorruptChunkError) as caught:
            stage("lz4", "v2").decode(encoded, 256, exact=True, out=out)
        assert caught.value.reason.startswith(reason)


def test_refuses_to_encode_more_than_a_block_can_hold():
    chunk = memoryview(np.broadcast_to(np.zeros((), np.uint8), 0x7E000001))
    with pytest.raises(LimitError, match="2113929217 bytes exceeds the format's limit"):
        stage("lz4", "v2").encode(chunk)


def test_options():
    assert parse_v2({"id": "lz4"}, stored=False) == {"id": "lz4", "acceleration": 1}
    assert parse_v2({"id": "lz4"}, stored=True) == numcodecs.LZ4().get_config()
    # The library takes any number for one it knows.
    for acceleration, meant in ((0, 1), (-5, 1), (10**6, 65537)):
        stored = numcodecs.LZ4(acceleration).get_config()
        assert parse_v2(stored, stored=True) == {"id": "lz4", "acceleration": meant}
        payload = make_payload(100_000, "steps")
        encoded = stage("lz4", "v2", acceleration=meant).encode(payload)
        assert encoded == numcodecs.LZ4(acceleration).encode(payload)
        with pytest.raises(MetadataError, match=r"integer in the range \[1, 65537\]"):
            parse_v2(stored, stored=False)
    for wrong in ({"acceleration": None}, {"acceleration": 2**31}, {"level": 1}):
        with pytest.raises(MetadataError, match='member "compressor"'):
            parse_v2({"id": "lz4", **wrong}, stored=True)


@pytest.mark.parametrize("dtype", ["|u1", "<u2", ">f8"])
def test_chunks_of_zarr_python_are_read_and_the_reverse(dtype):
    check_zarr_python({"id": "lz4", "acceleration": 3}, numcodecs.LZ4(3), dtype)


def check_zarr_python(compressor, theirs, dtype):
    """Chunks that zarr-python writes with `theirs` are read, and those of `compressor` by it."""
    store = {}
    written = zarr.create_array(
        zarr.storage.MemoryStore(store),
        shape=(30, 20),
        chunks=(30, 20),
        dtype=dtype,
        zarr_format=2,
        compressors=theirs,
        filters=None,
    )
    array = np.arange(600, dtype=dtype).reshape(30, 20)
    written[:] = array
    chain = resolve_v2(theirs.get_config(), None, whole(np.dtype(dtype)), (30, 20), "C")
    assert bytes(chain.decode(store["0.0"].to_bytes())) == array.tobytes()
    chain = resolve_v2(
        parse_v2(compressor, stored=False), None, whole(np.dtype(dtype)), (30, 20), "C"
    )
    encoded = bytes(chain.encode((array * 2).astype(dtype).tobytes()))
    store["0.0"] = zarr.core.buffer.cpu.Buffer.from_bytes(encoded)
    assert (written[:] == array * 2).all()
