"""Zstandard frames walked together: what libzstd writes and reads, whole and damaged."""

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustore.codecs.zstd import walk_frames
from gpustore.codecs.zstd.columns import read_frames, read_values
from gpustore.device.encoded_columns import EncodedColumns
from gpustore.device.headers import HeaderColumns
from tests.codecs.contract import make_payload
from tests.matrix import share


def read(values):
    columns = EncodedColumns.joined(values)
    found, reasons = read_frames(columns, columns.start, columns.nbytes)
    return found.tolist(), reasons


payloads = st.builds(
    make_payload,
    st.one_of(st.integers(1, 1000), st.sampled_from([65_791, 65_792, 131_072, 131_073, 700_001])),
    st.sampled_from(["steps", "noise", "zeros"]),
)


@given(
    st.lists(payloads, min_size=1, max_size=5),
    st.sampled_from([-5, 1, 3, 12]),
    st.booleans(),
    st.booleans(),
)
def test_encodings_of_the_library_are_read(made, level, checksum, sized):
    compressor = zstandard.ZstdCompressor(
        level=level, write_checksum=checksum, write_content_size=sized
    )
    values = [compressor.compress(payload) for payload in made]
    found, reasons = read(values)
    single = [zstandard.get_frame_parameters(value).content_size for value in values]
    for row, payload in enumerate(made):
        known = single[row] != zstandard.CONTENTSIZE_UNKNOWN
        if checksum:
            assert reasons[row] == "zstd: has a checksum, which the host compares"
        elif known:
            assert row not in reasons
            assert found[row] == len(payload)
        else:
            assert reasons[row] == "zstd: does not say how many bytes it holds"


@pytest.mark.matrix
@settings(max_examples=share(300))
@given(
    payloads,
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=3),
    st.integers(-3, 30),
)
def test_accepted_values_are_one_frame_that_ends_with_the_value(payload, changes, cut):
    whole = zstandard.ZstdCompressor().compress(payload)
    damaged = bytearray(whole)
    for position, value in changes:
        damaged[position % len(damaged)] = value
    damaged = bytes(damaged[: max(0, len(damaged) - cut)] if cut > 0 else damaged + bytes(-cut))
    found, reasons = read([whole, damaged, whole])
    assert set(reasons) <= {1}
    assert found[0] == found[2] == len(payload)
    if 1 not in reasons:
        frames = list(walk_frames(memoryview(damaged)))
        assert [(frame.start, frame.stop) for frame in frames] == [(0, len(damaged))]
        assert found[1] == zstandard.get_frame_parameters(damaged).content_size
        assert found[1] <= frames[0].decoded_max
        assert zstandard.get_frame_parameters(damaged).dict_id == 0


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x28\xb5\x2f\xfd"]))
def test_arbitrary_bytes_are_refused_or_walk_to_their_end(tail, head):
    found, reasons = read([head + tail])
    assert (0 in reasons) == (found[0] == 0)
    if found[0]:
        assert [frame.stop for frame in walk_frames(memoryview(head + tail))] == [len(head + tail)]


def raw_blocks(sizes, content):
    frame = b"\x28\xb5\x2f\xfd\xa0" + content.to_bytes(4, "little")
    for number, size in enumerate(sizes, 1):
        frame += (size << 3 | (number == len(sizes))).to_bytes(3, "little") + bytes(size)
    return frame


def test_sizes_of_blocks_are_compared_with_the_content():
    assert read([raw_blocks([10, 20, 30], 60)]) == ([60], {})
    assert read([raw_blocks([10, 20, 30], 61)])[1] == {0: "zstd: holds fewer bytes than it says"}
    assert read([raw_blocks([10, 20, 30], 59)])[1] == {0: "zstd: holds more bytes than it says"}
    assert read([raw_blocks([131_073], 131_073)])[1] == {0: "zstd: impossible block"}
    assert read([raw_blocks([61], 60)])[1] == {0: "zstd: impossible block"}
    run = b"\x28\xb5\x2f\xfd\x20\x3c" + (60 << 3 | 3).to_bytes(3, "little") + b"r"
    assert read([run]) == ([60], {})
    more = run[:6] + (60 << 3 | 2).to_bytes(3, "little") + b"r" + run[6:]
    assert read([more])[1] == {0: "zstd: holds more bytes than it says"}
    compressed = run[:6] + (1 << 3 | 5).to_bytes(3, "little") + b"r"
    assert read([compressed])[1] == {0: "zstd: impossible block"}


def test_large_windows_are_left_to_the_host():
    """Not of one segment: a byte says how far back the frame refers."""
    for exponent, reasons in (
        (13 << 3, {}),
        (13 << 3 | 1, {0: "zstd: needs a large window"}),
        (0xFF, {0: "zstd: needs a large window"}),
    ):
        frame = b"\x28\xb5\x2f\xfd\x80" + bytes([exponent]) + (60).to_bytes(4, "little")
        assert read([frame + (60 << 3 | 1).to_bytes(3, "little") + bytes(60)])[1] == reasons
    small = b"\x28\xb5\x2f\xfd\x80\0" + (1100).to_bytes(4, "little")
    block = (1100 << 3 | 1).to_bytes(3, "little") + bytes(1100)
    assert read([small + block])[1] == {0: "zstd: impossible block"}


def test_tiny_blocks_are_left_to_the_host():
    assert read([raw_blocks([10] * 64, 640)])[1] == {}
    assert read([raw_blocks([10] * 66, 660)])[1] == {0: "zstd: tiny blocks"}


def test_a_dictionary_is_left_to_the_host():
    samples = [make_payload(2000, "steps", seed) for seed in range(100)]
    dictionary = zstandard.train_dictionary(2000, samples)
    value = zstandard.ZstdCompressor(dict_data=dictionary).compress(samples[0])
    assert read([value])[1] == {0: "zstd: needs a dictionary"}


def test_frames_whose_headers_were_read_are_not_read_again():
    values = [zstandard.compress(bytes(size)) for size in (50, 60, 70)] + [b"no frame, not at all"]
    columns = EncodedColumns.joined(values)
    columns.known = HeaderColumns((np.array([51, 0, 71, 0]),))
    found, reasons = read_values(columns)
    assert found.tolist() == [51, 60, 71, 0]
    assert reasons == {3: "zstd: does not begin with a frame"}
    assert read_values(columns.take(np.array([2, 0])))[0].tolist() == [71, 51]
    assert columns.inside(0, 4).known is columns.known
    assert columns.inside(1, 0).known is None


def test_values_of_one_slab_are_not_copied():
    values = [zstandard.compress(make_payload(5000, "steps", seed)) for seed in range(3)]
    slab = np.zeros(20_000, np.uint8)
    starts, at = [], 7
    for value in values:
        slab.data[at : at + len(value)] = value
        starts.append(at)
        at += len(value) + 5
    columns = EncodedColumns(slab, np.array(starts), np.array([len(value) for value in values]))
    assert [bytes(value) for value in columns] == values
    assert np.shares_memory(np.frombuffer(columns[1], np.uint8), slab)
    taken = columns.take(np.array([True, False, True]))
    assert taken.start.tolist() == [starts[0], starts[2]]
    assert read_frames(taken, taken.start, taken.nbytes)[0].tolist() == [5000, 5000]
    assert [bytes(value) for value in columns.inside(2, 3)] == [value[2:-3] for value in values]
    found, reasons = read_frames(columns, columns.start, columns.nbytes)
    expected, _ = read(values)
    assert (found.tolist(), reasons) == (list(expected), {})
