"""Headers and trailers of zlib and gzip streams, read together, against zlib."""

import gzip
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from gpustore.codecs._deflate_columns import adler32s, crc32s, read_gzip, read_zlib
from gpustore.codecs._encoded_columns import EncodedColumns

payloads = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5)


@settings(max_examples=200)
@given(payloads, st.integers(0, 9))
def test_zlib_streams(made, level):
    columns = EncodedColumns([zlib.compress(data, level) for data in made])
    found, reasons = read_zlib(columns, columns.start, columns.nbytes)
    assert (set(found.tolist()), reasons) == ({-1}, {})
    sums = adler32s(columns, columns.start, columns.nbytes)
    assert sums.tolist() == [zlib.adler32(data) for data in made]


@settings(max_examples=200)
@given(payloads, st.integers(0, 9))
def test_gzip_members(made, level):
    columns = EncodedColumns([gzip.compress(data, level) for data in made])
    found, reasons = read_gzip(columns, columns.start, columns.nbytes)
    assert (found.tolist(), reasons) == ([len(data) for data in made], {})
    sums = crc32s(columns, columns.start, columns.nbytes)
    assert sums.tolist() == [zlib.crc32(data) for data in made]


@settings(max_examples=300)
@given(st.binary(max_size=30), st.sampled_from([b"", b"\x78\x9c", b"\x1f\x8b\x08\x00"]))
def test_what_zlib_would_not_begin_is_refused(tail, head):
    value = head + tail
    columns = EncodedColumns([value])
    for read, window_bits in ((read_zlib, 15), (read_gzip, 31)):
        _, reasons = read(columns, columns.start, columns.nbytes)
        if reasons:
            continue
        assert "header" not in _error(value, window_bits)
        assert "unknown compression method" not in _error(value, window_bits)


def _error(value, window_bits):
    try:
        zlib.decompressobj(window_bits).decompress(value)
    except zlib.error as error:
        return str(error)
    return ""
