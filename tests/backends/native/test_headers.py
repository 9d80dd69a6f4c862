"""Headers that the native core reads, against those that codecs read by NumPy."""

from dataclasses import fields

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gpustore.backends.native.headers import header_reader
from gpustore.backends.native.library import library
from gpustore.codecs.blosc.columns import read_columns
from gpustore.codecs.zstd.columns import read_frames
from gpustore.device.encoded_columns import EncodedColumns
from tests.codecs.blosc.test_columns import frames as blosc_frames
from tests.codecs.contract import make_payload
from tests.matrix import each

pytestmark = pytest.mark.skipif(library() is None, reason="needs the native core")

zstd_frames = st.builds(
    lambda nbytes, kind, level, size: zstandard.ZstdCompressor(
        level=level, write_content_size=size
    ).compress(make_payload(nbytes, kind)),
    st.one_of(st.integers(1, 1000), st.sampled_from([65_791, 65_792, 131_073, 700_001])),
    st.sampled_from(["steps", "noise", "zeros"]),
    st.sampled_from([-5, 1, 3, 12, 19]),
    st.sampled_from([True, True, True, False]),
)
changes = st.lists(
    st.tuples(st.one_of(st.integers(0, 40), st.integers(-40, 10**6)), st.integers(0, 255)),
    max_size=4,
)


def damaged(value, changed, cut):
    """A value with other bytes in some places, and some bytes less or more."""
    found = bytearray(value)
    for position, byte in changed:
        found[position % len(found)] = byte
    return bytes(found[: max(0, len(found) - cut)] if cut > 0 else found + bytes(-cut))


def columns_of(values, reader):
    """Values in another order than their places, with something between them."""
    nbytes = np.array([len(value) for value in values], np.int64)
    room = nbytes + 5
    start = (np.cumsum(room[::-1]) - nbytes[::-1])[::-1]
    data = np.full(int(room.sum()), 0xFD, np.uint8)
    for at, value in zip(start, values, strict=True):
        data[at : at + len(value)] = np.frombuffer(value, np.uint8)
    return EncodedColumns(data, start, nbytes, reader)


def read_zstd(values, reader):
    columns = columns_of(values, reader)
    found, reasons = read_frames(columns, columns.start, columns.nbytes)
    return found.tolist(), reasons


@given(st.lists(st.tuples(zstd_frames, changes, st.integers(-3, 30)), min_size=1, max_size=6))
def test_zstd_frames_are_read_alike(made):
    values = [value for value, _, _ in made]
    values += [damaged(*one) for one in made]
    expected = read_zstd(values, None)
    assert read_zstd(values, header_reader()) == expected
    columns = columns_of(values, None)
    found = header_reader().zstd_frames(columns.data, columns.start, columns.nbytes)
    assert found.tolist() == expected[0], "none is left without need"


def read_blosc(values, decoded_max, exact, reader):
    return plain(columns_of(values, reader), decoded_max, exact)


def plain(encoded, decoded_max, exact):
    """Columns of the frames that are not rejected as values, and the reasons against others."""
    columns, reasons = read_columns(encoded, decoded_max, exact=exact)
    kept = np.ones(len(encoded), bool)
    kept[list(reasons)] = False
    columns = columns.take(kept)
    heads = ("decoded_nbytes", "typesize", "code", "is_stored", *SHUFFLED)
    found = {}
    for part, names in (
        (columns, heads),
        (columns.blocks, [field.name for field in fields(columns.blocks)]),
        (columns.streams, [field.name for field in fields(columns.streams)]),
    ):
        for name in names:
            column = getattr(part, name)
            found[type(part).__name__, name] = (column.dtype.kind, column.tolist())
    return found, reasons


SHUFFLED = ("is_byte_shuffled", "is_bit_shuffled")


@given(
    st.lists(st.tuples(blosc_frames, changes, st.integers(-3, 30)), min_size=1, max_size=5),
    st.booleans(),
)
def test_blosc_frames_are_read_alike(made, exact):
    values = [value for (value, _), _, _ in made]
    values += [damaged(value, changed, cut) for (value, _), changed, cut in made]
    decoded_max = max(len(data) for (_, data), _, _ in made)
    found, reasons = read_blosc(values, decoded_max, exact, None)
    assert read_blosc(values, decoded_max, exact, header_reader()) == (found, reasons)
    columns = columns_of(values, None)
    frames = header_reader().blosc_frames(
        columns.data, columns.start, columns.nbytes, decoded_max, exact=exact
    )
    left = np.flatnonzero(frames.head(0) == 0).tolist()
    assert set(left) <= set(reasons), "none is left without need"


@each(
    "starts, reasons",
    [
        ([24, 38], {}),
        ([38, 24], {}),
        ([24, 30], {0: "blosc: streams that lie in each other"}),
        ([30, 24], {0: "blosc: streams that lie in each other"}),
    ],
)
def test_blocks_in_any_order_are_read(starts, reasons):
    """Encoders with several threads write blocks as they are done."""
    body = bytearray(28)
    for start in starts:
        body[start - 24] = 10
    head = bytes([2, 1, 0x31, 4, *(600).to_bytes(4, "little"), *(300).to_bytes(4, "little")])
    words = [24 + len(body), *starts]
    value = head + b"".join(word.to_bytes(4, "little") for word in words) + body
    expected = read_blosc([value], 600, True, None)
    assert read_blosc([value], 600, True, header_reader()) == expected
    assert expected[1] == reasons


def test_values_outside_of_the_memory_are_left_alone():
    value = zstandard.compress(make_payload(500, "steps"))
    data = np.frombuffer(value, np.uint8)
    start = np.array([0, 1, -1, 2**62, 0])
    nbytes = np.array([len(value), len(value), len(value), 2**62, -1])
    found = header_reader().zstd_frames(data, start, nbytes)
    assert found.tolist() == [500, 0, 0, 0, 0]
    frames = header_reader().blosc_frames(data, start, nbytes, 500, exact=True)
    assert frames.head(0).tolist() == [0] * 5
    assert frames.whole.blocks.size == frames.whole.streams.size == 0
