"""Codecs by name, and between the formats: both libraries' own encoders decide what is right."""

import pytest

from gpustore.errors import MetadataError
from gpustore.schema.codec_words import codec_spec, codecs_named, codecs_of, compressor_of
from tests.matrix import each

WORDS = ["none", "zstd", "zstd:-5", "zstd:19", "gzip", "gzip:9", "blosc", "blosc:9"] + [
    f"blosc-{cname}:3" for cname in ("lz4", "lz4hc", "blosclz", "zstd", "zlib", "snappy")
]


@each("word", WORDS)
@each("itemsize", [1, 8])
def test_named_codecs_survive_the_way_to_zarr2_and_back(word, itemsize):
    codecs = codecs_named(word, itemsize)
    compressor, notes = compressor_of(codecs)
    assert notes == []
    assert codecs_of(compressor, itemsize) == (codecs, [])


@each(
    "word", ["", "lzma", "zstd:", "zstd-lz4", "gzip:x", "blosc-lzma", "none:1", "zstd:9 ", "ZSTD"]
)
def test_other_words_are_errors_that_say_which_there_are(word):
    with pytest.raises(ValueError, match=r"expected none, zstd, gzip, blosc or blosc-CNAME.*got"):
        codecs_named(word, 2)


@pytest.mark.parametrize(("itemsize", "shuffle"), [(1, "bitshuffle"), (4, "shuffle")])
def test_automatic_shuffle_is_the_one_blosc_chooses(itemsize, shuffle):
    codecs, _ = codecs_of({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1}, itemsize)
    assert codecs[0]["configuration"]["shuffle"] == shuffle


def test_codecs_that_the_other_format_lacks_are_named():
    codecs, notes = codecs_of({"id": "bz2", "level": 1}, 2)
    assert codecs[0]["name"] == "zstd"
    assert notes == ["Zarr v3 has no codec bz2: zstd takes its place"]
    gzip = {"name": "gzip", "configuration": {"level": 1}}
    note = "Zarr v3 has no codec zlib: gzip takes its place"
    assert codecs_of({"id": "zlib", "level": 1}, 2) == ([gzip], [note])
    with pytest.raises(MetadataError, match="Zarr v3 has no codec zlib; codec:"):
        codec_spec({"id": "zlib"}, "zarr3", 2)
    zstd = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
    compressor, notes = compressor_of([{"name": "bytes"}, gzip, zstd, {"name": "crc32c"}])
    assert compressor["id"] == "zstd"
    assert len(notes) == 2
    assert "checksums" in notes[0]
    assert "gzip, zstd" in notes[1]
