"""Streams of strings and bytes of any length, against numcodecs, and damaged ones."""

import gzip
import struct
import tracemalloc

import numcodecs.vlen
import numcodecs.zstd as zstd
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustore import registry
from gpustore.codec_chain.resolve import resolve_v2, resolve_v3
from gpustore.data_types.dtype import string, uint16, ustring
from gpustore.errors import (
    CorruptChunkError,
    LimitError,
    MetadataError,
    MismatchError,
    UnsupportedError,
)
from gpustore.metadata.component import Component
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.runtime.limits import Limits
from gpustore.strict_json.parsing import Members
from tests.matrix import each, share

THEIRS = {"vlen-utf8": numcodecs.vlen.VLenUTF8(), "vlen-bytes": numcodecs.vlen.VLenBytes()}
SAMPLES = {"vlen-utf8": ["a", "", "hé\0", "日本😀"], "vlen-bytes": [b"a", b"", b"\xff\0", b"x" * 9]}


def codec(name):
    return registry.find("codecs", name)


def objects(elements):
    array = np.empty(len(elements), object)
    array[:] = elements
    return array


def stream(*elements, count=None):
    encoded = [struct.pack("<I", len(elements) if count is None else count)]
    for element in elements:
        encoded += [struct.pack("<I", len(element)), element]
    return b"".join(encoded)


def chain(name, *stages, **limits):
    named = [NamedConfiguration(one) for one in (name, *stages)]
    dtype = ustring if name == "vlen-utf8" else string
    return resolve_v3(named, dtype, (4,), limits=Limits(**limits))


@settings(max_examples=share(250))
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=20))
def test_strings_are_those_of_numcodecs(elements):
    array = objects(elements)
    encoded = codec("vlen-utf8").encode(array)
    assert bytes(encoded) == bytes(THEIRS["vlen-utf8"].encode(array))
    assert bytes(encoded) == stream(*(one.encode() for one in elements))
    assert codec("vlen-utf8").decode(encoded, len(elements)).tolist() == elements


@settings(max_examples=share(250))
@given(st.lists(st.binary(max_size=300), max_size=20))
def test_bytes_are_those_of_numcodecs(elements):
    array = objects(elements)
    encoded = codec("vlen-bytes").encode(array)
    assert bytes(encoded) == bytes(THEIRS["vlen-bytes"].encode(array)) == stream(*elements)
    assert codec("vlen-bytes").decode(encoded, len(elements)).tolist() == elements


@settings(max_examples=share(300))
@given(st.sampled_from(sorted(THEIRS)), st.data())
def test_a_damaged_stream_is_refused_or_is_another_legal_one(name, data):
    good = bytes(codec(name).encode(objects(SAMPLES[name])))
    damaged = bytearray(good)
    for at in data.draw(st.lists(st.integers(0, len(good) - 1), max_size=3)):
        damaged[at] = data.draw(st.integers(0, 255))
    damaged = bytes(damaged[: data.draw(st.integers(0, len(good)))])
    damaged += data.draw(st.binary(max_size=8))
    try:
        found = codec(name).decode(damaged, 4)
    except CorruptChunkError:
        return
    assert bytes(codec(name).encode(found)) == damaged


@each("name", sorted(THEIRS))
@each(
    ("encoded", "message"),
    [
        (b"", "Not enough data: expected at least 4 or 4 more; at byte 0"),
        (b"\2\0\0", "Not enough data"),
        (stream(b"a"), "Expected 2 elements, but received: 1; at byte 0"),
        (stream(b"a", b"b", b"c"), "Expected 2 elements, but received: 3"),
        (stream(b"a", b"b", count=2**32 - 1), "received: 4294967295"),
        (stream(count=2), "Not enough data: expected at least 12 or 8 more; at byte 4"),
        (stream(b"aaaa", count=2), "An element is longer than what is left of the chunk"),
        (stream(b"a", b"b")[:-1], "An element is longer"),
        (stream(b"a")[:-1] + struct.pack("<I", 2**32 - 1) + b"abc", "Expected 2 elements"),
        (struct.pack("<III", 2, 2**32 - 1, 2**32 - 1), "An element is longer"),
        (stream(b"a", b"b") + b"\0", "End of data expected; remaining length: 1; at byte 14"),
        (stream(b"a", b"b") + stream(b""), "End of data expected; remaining length: 8"),
    ],
)
def test_a_wrong_stream_is_named(name, encoded, message):
    tracemalloc.start()
    with pytest.raises(CorruptChunkError) as caught:
        codec(name).decode(encoded, 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert message in str(caught.value)
    assert caught.value.codec == name
    assert peak < 1 << 20


@pytest.mark.parametrize("element", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
def test_what_is_no_utf8_is_refused(element):
    with pytest.raises(CorruptChunkError, match="Invalid UTF-8"):
        codec("vlen-utf8").decode(stream(b"a", element), 2)
    assert codec("vlen-bytes").decode(stream(b"a", element), 2)[1] == element


def test_the_end_cannot_be_swallowed_by_an_element():
    # As long as what is put behind the stream.
    for more in range(40):
        damaged = struct.pack("<II", 1, more)
        with pytest.raises(CorruptChunkError) if more else pytest.MonkeyPatch.context():
            codec("vlen-bytes").decode(damaged, 1)


def test_surrogates_are_not_stored():
    with pytest.raises(MismatchError, match="cannot be stored as UTF-8"):
        codec("vlen-utf8").encode(objects(["a", "\ud800"]))


def test_options_are_refused():
    with pytest.raises(MetadataError, match="level"):
        codec("vlen-utf8").parse(Members({"level": 1}), stored=True)


def test_more_elements_than_a_stream_can_say_are_refused():
    with pytest.raises(UnsupportedError, match="at most 4294967294 elements in a chunk"):
        codec("vlen-utf8").layout((2**16, 2**16))


# --------------------------------------------------------------------------- in a chain


@pytest.mark.parametrize("name", sorted(THEIRS))
def test_a_chain_decodes_to_elements(name):
    array = objects(SAMPLES[name])
    raw, zipped = chain(name), chain(name, "crc32c")
    assert raw.layout.strides == (8,)
    assert not raw.is_raw
    assert not raw.reads_parts
    assert bytes(raw.encode_objects(array)) == bytes(THEIRS[name].encode(array))
    for one in (raw, zipped):
        encoded = one.encode_objects(array)
        assert one.decode_objects(encoded).tolist() == SAMPLES[name]
        assert bytes(one.decode(encoded)) == bytes(THEIRS[name].encode(array))


def test_streams_longer_than_the_limit_of_a_chunk_are_refused():
    array = objects(["x" * 100] * 4)
    encoded = bytes(chain("vlen-utf8").encode_objects(array))
    small = chain("vlen-utf8", chunk_nbytes=len(encoded) - 1)
    with pytest.raises(CorruptChunkError, match="no encoding of 419 bytes has more than 419"):
        small.decode_objects(encoded)
    with pytest.raises(LimitError, match="chunk_nbytes is 420, which exceeds the limit of 419"):
        small.encode_objects(array)
    exact = chain("vlen-utf8", chunk_nbytes=len(encoded))
    assert exact.decode_objects(encoded).tolist() == array.tolist()


@pytest.mark.parametrize("stage", ["gzip", "zstd"])
def test_a_stream_that_grows_beyond_the_limit_costs_little(stage):
    limit = 1 << 20
    bombs = {"gzip": gzip.compress(bytes(64 << 20), 1), "zstd": zstd.compress(bytes(64 << 20))}
    named = [NamedConfiguration("vlen-utf8"), NamedConfiguration(stage, {"level": 1})]
    chained = resolve_v3(named, ustring, (4,), limits=Limits(chunk_nbytes=limit))
    tracemalloc.start()
    with pytest.raises(CorruptChunkError):
        chained.decode_objects(bombs[stage])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * limit


def test_no_device_makes_objects():
    reason = chain("vlen-utf8", "crc32c").unsupported_reason(None)
    assert reason == "elements of vlen-utf8 are Python objects"


def test_codecs_are_for_their_elements_only():
    cases = [
        ("vlen-utf8", string, "ustring, but the data type is string"),
        ("vlen-bytes", ustring, "string, but the data type is ustring"),
        ("vlen-utf8", uint16, "ustring, but the data type is uint16"),
        ("bytes", ustring, "a fixed size, but the data type is ustring"),
    ]
    for name, dtype, message in cases:
        with pytest.raises(MetadataError, match=f"codec is for elements of {message}"):
            resolve_v3([NamedConfiguration(name)], dtype, (4,))


def test_v2_filters_are_for_their_elements_only():
    whole = Component.whole(uint16)
    with pytest.raises(MetadataError, match="for elements of ustring, but the data type is uint16"):
        resolve_v2(None, [{"id": "vlen-utf8"}], whole, (4,), "C")
    with pytest.raises(MetadataError, match='"vlen-bytes" must be the first filter'):
        resolve_v2(None, [{"id": "vlen-bytes"}] * 2, Component.whole(string), (4,), "C")
