"""Blosc frames of Snappy against TensorStore, with the library and without it."""

import struct
from itertools import product

import numpy as np
import pytest
import tensorstore
from hypothesis import given
from hypothesis import strategies as st

from gpustore.codecs.blosc import snappy
from gpustore.codecs.blosc.frame import read_header
from gpustore.errors import CorruptChunkError, UnsupportedError
from tests.codecs.contract import (
    check_damage,
    check_round_trip,
    check_sizes,
    make_payload,
    payloads,
    stage,
)
from tests.matrix import each

DECODERS = ["library", "elements"]


@pytest.fixture(params=DECODERS)
def decoder(request, monkeypatch):
    if request.param == "elements":
        monkeypatch.setattr(snappy, "_library", None)


def written(payload, dtype, **options):
    """The frame TensorStore writes, and a function that reads another one with it."""
    context = tensorstore.Context()
    array = np.frombuffer(payload, dtype)
    metadata = {
        "shape": array.shape,
        "chunks": array.shape,
        "dtype": array.dtype.str,
        "fill_value": None,
        "compressor": {"id": "blosc", "cname": "snappy", **options},
    }
    spec = {"driver": "zarr", "kvstore": "memory://", "metadata": metadata}
    store = tensorstore.open(spec, create=True, context=context).result()
    store.write(array).result()
    kvstore = tensorstore.KvStore.open("memory://", context=context).result()

    def read(frame):
        kvstore.write("0", frame).result()
        return store.read().result().astype(array.dtype).tobytes()

    return kvstore.read("0").result().value, read


@pytest.mark.matrix
@pytest.mark.parametrize("shuffle", [-1, 0, 1, 2])
@pytest.mark.parametrize("dtype", ["|u1", "<u2", "<f4", ">f8", "<c16"])
def test_reads_writes_of_tensorstore_and_the_reverse(dtype, shuffle):
    itemsize = np.dtype(dtype).itemsize
    cases = product([1, 7, 130, 4099, 33_000], [0, 1, 5, 9], ["noise", "steps", "zeros"])
    for i, (size, clevel, kind) in enumerate(cases):
        payload = make_payload(size * itemsize, kind, i)
        options = {"shuffle": shuffle, "clevel": clevel, "blocksize": (0, 130, 1000, 70_000)[i % 4]}
        codec = stage("blosc", "v2", itemsize=itemsize, cname="snappy", **options)
        encoded, read = written(payload, dtype, **options)
        assert codec.decode(encoded, len(payload), exact=True) == payload
        out = bytearray(len(payload))
        assert codec.decode(encoded, len(payload), exact=True, out=memoryview(out)) == payload
        ours = codec.encode(payload)
        assert len(ours) <= len(payload) + 16
        assert read_header(ours).flags >> 5 == 2
        assert read(bytes(ours)) == payload


@each("shuffle", [-1, 0, 1, 2])
@each("dtype", ["|u1", "<u2", ">f8"])
def test_reads_writes_of_tensorstore_without_the_library(dtype, shuffle, monkeypatch):
    monkeypatch.setattr(snappy, "_library", None)
    itemsize = np.dtype(dtype).itemsize
    for size, kind in product([130, 4099, 20_000], ["steps", "zeros"]):
        payload = make_payload(size * itemsize, kind)
        codec = stage("blosc", "v2", itemsize=itemsize, cname="snappy", shuffle=shuffle)
        encoded, _ = written(payload, dtype, shuffle=shuffle)
        assert codec.decode(encoded, len(payload), exact=True) == payload


@given(
    payload=payloads(),
    shuffle=st.sampled_from(["noshuffle", "shuffle", "bitshuffle"]),
    typesize=st.sampled_from([1, 2, 3, 8, 16, 17, 255]),
    clevel=st.sampled_from([0, 1, 5]),
    blocksize=st.sampled_from([0, 0, 256, 1000]),
)
def test_round_trip(payload, shuffle, typesize, clevel, blocksize):
    options = {"shuffle": shuffle, "typesize": typesize, "clevel": clevel, "blocksize": blocksize}
    check_round_trip(stage("blosc", cname="snappy", **options), payload)


@given(payload=payloads())
def test_both_decoders_agree(payload):
    encoded = memoryview(snappy.encode(payload))
    start = snappy._check_length(encoded, len(payload))
    assert snappy._decode_elements(encoded, start, len(payload)) == payload
    assert snappy.decode(encoded, len(payload)) == payload


@given(block=st.binary(max_size=60), nbytes=st.integers(0, 200))
def test_both_decoders_refuse_the_same(block, nbytes):
    encoded = memoryview(_varint(nbytes) + block)
    start = snappy._check_length(encoded, nbytes)
    try:
        expected = snappy.decode(encoded, nbytes)
    except ValueError:
        with pytest.raises(ValueError, match="snappy: "):
            snappy._decode_elements(encoded, start, nbytes)
    else:
        assert snappy._decode_elements(encoded, start, nbytes) == expected


def test_every_kind_of_element_is_decoded(decoder):
    literal = bytes(range(256)) * 300
    last = struct.pack("<I", len(literal) - 1)
    for head in (b"\xf8" + last[:3], b"\xfc" + last):
        for copy, offset, length in (
            (b"\x01\x01", 1, 4),
            (b"\xfd\xff", 0x7FF, 11),
            (b"\xfe\x03\x00", 3, 64),
            (b"\xff" + struct.pack("<I", 70_000), 70_000, 64),
        ):
            block = memoryview(_varint(len(literal) + length) + head + literal + copy)
            expected = literal + (literal[-offset:] * length)[:length]
            assert snappy.decode(block, len(expected)) == expected


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\x80\x80\x80\x80\x80\x01",
        b"\x05",
        b"\x04abcd",
        b"\x06\x10abcde",
        b"\x05\x10abcd",
        b"\x05\x10abcdex",
        b"\x05\x0cabcd\x04ab",
        b"\x05\x00a\x01\x00",
        b"\x05\x00a\x01\x02",
        b"\x05\x00a\x01\x01\x00b",
        b"\x05\x00a\x01",
        b"\x05\x00a\x02\x01",
        b"\x05\xf0",
        b"\x05\xfc\xff\xff\xff\xff",
    ],
    ids=repr,
)
def test_refuses_blocks_that_lie(block, decoder):
    with pytest.raises(ValueError, match="snappy: "):
        snappy.decode(memoryview(block), 5)
    payload = struct.pack("<ii", 20, len(block)) + block
    frame = struct.pack("<BBBBiii", 2, 1, 0x41, 1, 5, 5, 16 + len(payload)) + payload
    if len(block) != 5:  # Otherwise it is stored.
        with pytest.raises(CorruptChunkError, match="Invalid blosc-compressed data: "):
            stage("blosc").decode(frame, 5, exact=True)


@pytest.mark.parametrize("nbytes", [200, 3000, 40_000])
def test_refuses_damage(nbytes, monkeypatch):
    payload = make_payload(nbytes, "steps")
    codec = stage("blosc", cname="snappy")
    check_sizes(codec, payload)
    check_damage(codec, payload, checksummed=False)
    encoded = codec.encode(payload)
    monkeypatch.setattr(snappy, "_library", None)
    codec = _Encoded(codec, encoded)
    check_damage(codec, payload, checksummed=False)


class _Encoded:
    """A codec that cannot encode, and what it would."""

    def __init__(self, codec, encoded):
        self.name, self.decode = codec.name, codec.decode
        self.encode = lambda payload: encoded


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (struct.pack("<ii", 15, 0), "a stream of block 0 at byte 15"),
        (struct.pack("<ii", -1, 0), "a stream of block 0 at byte -1"),
        (struct.pack("<ii", 21, 0), "a stream of block 0 at byte 21"),
        (struct.pack("<ii", 20, 0), "a stream of block 0 of 0 bytes at byte 24"),
        (struct.pack("<ii", 20, -1), "a stream of block 0 of -1 bytes at byte 24"),
        (struct.pack("<iib", 20, 2, 0), "a stream of block 0 of 2 bytes at byte 24"),
        (struct.pack("<iib", 20, 1, 5), "snappy: a block of 5 bytes, expected 256"),
    ],
    ids=repr,
)
def test_refuses_streams_outside_the_frame(payload, reason):
    frame = struct.pack("<BBBBiii", 2, 1, 0x51, 1, 256, 256, 16 + len(payload)) + payload
    with pytest.raises(CorruptChunkError) as caught:
        stage("blosc").decode(frame, 256, exact=True)
    assert caught.value.reason == f"Invalid blosc-compressed data: {reason}"


def test_blocks_may_lie_in_any_order():
    payload = make_payload(1000, "steps")
    blocks = [payload[:512], payload[512:]]
    streams = [bytes(snappy.encode(block)) for block in blocks]
    streams = [struct.pack("<i", len(stream)) + stream for stream in streams]
    body = struct.pack("<ii", 24 + len(streams[1]), 24) + streams[1] + streams[0]
    frame = struct.pack("<BBBBiii", 2, 1, 0x50, 1, 1000, 512, 16 + len(body)) + body
    assert stage("blosc").decode(frame, 1000, exact=True) == payload


def test_writing_without_the_library_is_unsupported(monkeypatch):
    monkeypatch.setattr(snappy, "_library", None)
    with pytest.raises(UnsupportedError, match=r"pip install gpustore\[snappy\]"):
        stage("blosc", cname="snappy").encode(b"abc")


def _varint(number):
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])
