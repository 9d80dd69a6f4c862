"""lzma against the standard library, numcodecs and zarr-python, and every kind of damage."""

import lzma

import numcodecs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.codec_chain.compressor import parse_v2
from gpustore.errors import CorruptChunkError, MetadataError, UnsupportedError
from gpustore.strict_json.parsing import text
from tests.codecs.contract import (
    check_damage,
    check_round_trip,
    check_sizes,
    make_payload,
    payloads,
    stage,
)
from tests.codecs.test_lz4 import check_zarr_python
from tests.matrix import each

DELTA = {"id": lzma.FILTER_DELTA, "dist": 2}
LZMA1 = {"id": lzma.FILTER_LZMA1, "preset": 1}
LZMA2 = {"id": lzma.FILTER_LZMA2, "dict_size": 4096, "lc": 2, "lp": 2, "mf": lzma.MF_HC3}
X86 = {"id": lzma.FILTER_X86}

OPTIONS = [
    {},
    {"preset": 0},
    {"preset": 1 | lzma.PRESET_EXTREME, "check": lzma.CHECK_SHA256},
    {"check": lzma.CHECK_NONE, "preset": 1},
    {"format": 2, "preset": 1},
    {"format": 2, "filters": [LZMA1]},
    {"format": 3, "filters": [LZMA1]},
    {"format": 3, "filters": [DELTA, X86, LZMA2]},
    {"filters": [DELTA, LZMA2]},
]


@given(
    payload=payloads().filter(lambda payload: len(payload) < 10_000),
    options=st.sampled_from(OPTIONS),
)
def test_round_trip(payload, options):
    check_round_trip(stage("lzma", "v2", **options), payload)


@pytest.mark.parametrize("options", OPTIONS, ids=text)
def test_long_chunks(options):
    check_round_trip(stage("lzma", "v2", **options), make_payload(150_001, "steps"))
    check_round_trip(stage("lzma", "v2", **options), make_payload(150_001, "noise"))


@each("options", OPTIONS)
@each("nbytes", [0, 1, 30_000])
def test_decodes_encodings_of_numcodecs_and_the_reverse(nbytes, options):
    payload = make_payload(nbytes, "steps")
    codec = stage("lzma", "v2", **options)
    theirs = numcodecs.LZMA(**options)
    assert codec.encode(payload) == theirs.encode(payload)
    assert codec.decode(theirs.encode(payload), nbytes, exact=True) == payload
    if options.get("format", 1) == 3 or "filters" not in options:
        assert bytes(theirs.decode(codec.encode(payload))) == payload


def test_refuses_wrong_sizes():
    for options in OPTIONS:
        check_sizes(stage("lzma", "v2", **options), make_payload(2000, "steps"))


@pytest.mark.parametrize("options", OPTIONS, ids=text)
def test_refuses_damage(options):
    checksummed = options.get("format", 1) == 1 and options.get("check") != lzma.CHECK_NONE
    check_damage(
        stage("lzma", "v2", **options), make_payload(200, "steps"), checksummed=checksummed
    )


@pytest.mark.parametrize("sizes", [(1, 2), (0, 5, 0), (1,) * 50])
def test_accepts_xz_streams_that_together_are_one_chunk(sizes):
    parts = [make_payload(nbytes, "noise", i) for i, nbytes in enumerate(sizes)]
    encoded, payload = b"".join(map(lzma.compress, parts)), b"".join(parts)
    for form in (0, 1):
        codec = stage("lzma", "v2", format=form)
        assert codec.decode(encoded, len(payload), exact=True) == payload
        for wrong in (encoded[:-1], encoded + b"\xfd7", encoded + lzma.compress(b"x")):
            with pytest.raises(CorruptChunkError):
                codec.decode(wrong, len(payload), exact=True)


@pytest.mark.parametrize("form", [1, 2])
def test_any_format_is_read_and_xz_written(form):
    codec = stage("lzma", "v2", format=0)
    encoded = lzma.compress(b"abc", form)
    assert codec.decode(encoded, 3, exact=True) == b"abc"
    assert codec.encode(b"abc") == lzma.compress(b"abc")
    assert numcodecs.LZMA(format=0).decode(codec.encode(b"abc")) == b"abc"


def test_a_dictionary_beyond_the_presets_is_refused():
    quick = {"id": lzma.FILTER_LZMA2, "mf": lzma.MF_HC3, "mode": lzma.MODE_FAST}
    filters = [{**quick, "dict_size": 100 << 20}]
    encoded = lzma.compress(b"abc", filters=filters)
    with pytest.raises(CorruptChunkError, match="Memory usage limit exceeded"):
        stage("lzma", "v2").decode(encoded, 3, exact=True)
    with pytest.raises(MetadataError, match=r'member "dict_size": Expected integer in the range'):
        parse_v2({"id": "lzma", "format": 3, "filters": filters}, stored=True)
    highest = lzma.compress(b"abc", filters=[{**quick, "dict_size": 64 << 20}])
    assert stage("lzma", "v2").decode(highest, 3, exact=True) == b"abc"


def test_options_that_the_library_refuses_are_unsupported():
    filters = [{"id": lzma.FILTER_ARM, "start_offset": 1}, LZMA2]
    codec = stage("lzma", "v2", format=3, filters=filters)
    with pytest.raises(UnsupportedError, match="the library refuses its options"):
        codec.encode(b"abc")
    with pytest.raises(CorruptChunkError, match="Invalid or unsupported options"):
        codec.decode(b"abc", 3, exact=True)


@each("options", OPTIONS)
def test_options_of_numcodecs_are_kept(options):
    stored = numcodecs.LZMA(**options).get_config()
    assert parse_v2(stored, stored=True) == stored
    assert parse_v2({"id": "lzma", **options}, stored=False) == stored


WRONG = [
    ({"format": 4}, 'member "format": Expected integer in the range [0, 3], but received: 4'),
    ({"check": 2}, 'member "check": Expected one of -1, 0, 1, 4, 10, but received: 2'),
    ({"preset": 10}, 'member "preset": Expected integer in the range [0, 9], but received: 10'),
    ({"preset": -1}, 'member "preset": Expected integer in the range [0, 4294967295]'),
    ({"preset": True}, 'member "preset": Expected integer'),
    ({"filters": {}}, 'member "filters": Expected array, but received: {}'),
    ({"filters": []}, 'member "filters": Expected array of 1 to 4 filters, but received: []'),
    ({"filters": [LZMA2] * 5}, 'member "filters": Expected array of 1 to 4 filters'),
    ({"filters": [LZMA2, DELTA]}, 'position 0: Error parsing object member "id": Expected one'),
    ({"filters": [{"id": 99}]}, "for the last filter, but received: 99"),
    ({"filters": [{"id": 99}, LZMA2]}, "for a filter before the last, but received: 99"),
    ({"filters": [{}]}, 'member "id": Expected 64-bit signed integer, but member is missing'),
    ({"filters": [{**LZMA2, "dist": 1}]}, 'Object includes extra members: "dist"'),
    ({"filters": [{**LZMA2, "lc": 3}]}, '"lc" and "lp" must not exceed 4 together'),
    ({"filters": [{"id": 3, "dist": 257}, LZMA2]}, 'member "dist": Expected integer in the range'),
    ({"filters": [LZMA2], "preset": 1}, '"preset" and "filters" must not both be specified'),
    ({"format": 3}, '"filters" must be specified for "format" 3'),
    ({"format": 2, "check": 4}, '"check" must be -1 for "format" 2, but received: 4'),
    ({"filters": [LZMA1]}, 'Filter 4611686018427387905 is not one of "format" 1'),
    ({"format": 2, "filters": [LZMA2]}, "Filter 4611686018427387905 is the only one"),
    ({"level": 1}, 'Object includes extra members: "level"'),
]


@each(("options", "reason"), WRONG)
def test_refuses_wrong_options(options, reason):
    with pytest.raises(MetadataError, match=r'^Error parsing object member "compressor"') as caught:
        parse_v2({"id": "lzma", **options}, stored=True)
    assert reason in str(caught.value)


@pytest.mark.parametrize("dtype", ["|u1", "<u2", ">f8"])
@pytest.mark.parametrize("options", [{}, {"format": 3, "filters": [DELTA, LZMA2]}], ids=text)
def test_chunks_of_zarr_python_are_read_and_the_reverse(options, dtype):
    check_zarr_python({"id": "lzma", **options}, numcodecs.LZMA(**options), dtype)
