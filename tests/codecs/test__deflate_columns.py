"""Headers and trailers of zlib and gzip streams, read together, against zlib."""

import gzip
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from gpustore.codecs._deflate_columns import adler32s, crc32s, read_gzip, read_zlib
from gpustore.device.encoded_columns import EncodedColumns
from tests.matrix import share

payloads = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5)


@given(payloads, st.integers(0, 9))
def test_zlib_streams(made, level):
    columns = EncodedColumns.joined([zlib.compress(data, level) for data in made])
    found, reasons = read_zlib(columns, columns.start, columns.nbytes)
    assert (set(found.tolist()), reasons) == ({-1}, {})
    sums = adler32s(columns, columns.start, columns.nbytes)
    assert sums.tolist() == [zlib.adler32(data) for data in made]


@given(payloads, st.integers(0, 9))
def test_gzip_members(made, level):
    columns = EncodedColumns.joined([gzip.compress(data, level) for data in made])
    found, reasons = read_gzip(columns, columns.start, columns.nbytes)
    assert (found.tolist(), reasons) == ([len(data) for data in made], {})
    sums = crc32s(columns, columns.start, columns.nbytes)
    assert sums.tolist() == [zlib.crc32(data) for data in made]


@settings(max_examples=share(300))
@given(st.binary(max_size=30), st.sampled_from([b"", b"\x78\x9c", b"\x1f\x8b\x08\x00"]))
def test_headers_that_zlib_refuses_are_refused(tail, head):
    value = head + tail
    columns = EncodedColumns.joined([value])
    for read, window_bits in ((read_zlib, 15), (read_gzip, 31)):
        _, reasons = read(columns, columns.start, columns.nbytes)
        if reasons:
            continue
        assert "header" not in _error(value, window_bits)
        assert "unknown compression method" not in _error(value, window_bits)
        assert "invalid block type" not in _error(value, window_bits)


def test_impossible_first_blocks_are_refused():
    whole = zlib.compress(bytes(range(100)), 0)
    for damaged in (
        whole[:2] + b"\x07" + whole[3:],  # No such kind of block.
        whole[:3] + b"\x65" + whole[4:],  # A length without its complement.
        whole[:3] + b"\xff\xff\0\0" + whole[7:],  # Longer than the value.
        whole[:3] + bytes(5),
    ):
        for value, read in ((damaged, read_zlib), (_as_gzip(damaged), read_gzip)):
            columns = EncodedColumns.joined([value])
            _, reasons = read(columns, columns.start, columns.nbytes)
            assert reasons[0].endswith("impossible block")


def _as_gzip(value):
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + value[2:] + bytes(4)


def _error(value, window_bits):
    try:
        zlib.decompressobj(window_bits).decompress(value)
    except zlib.error as error:
        return str(error)
    return ""
