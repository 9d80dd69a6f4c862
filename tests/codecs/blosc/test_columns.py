"""Blosc frames read as columns: against numcodecs and the one-frame reader, whole and damaged."""

import struct
import zlib

import numcodecs
import numcodecs.blosc
import numcodecs.lz4
import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpustore.codecs.blosc.columns import read_columns
from gpustore.device.encoded_columns import EncodedColumns
from tests import snappy
from tests.codecs.contract import make_payload, stage
from tests.matrix import share

CNAMES = ["blosclz", "lz4", "lz4hc", "zlib", "zstd"]


def frame_of(cname, shuffle, typesize, nbytes, blocksize, clevel, kind):
    data = make_payload(nbytes, kind)
    if cname == "snappy":
        codec = stage(
            "blosc",
            cname=cname,
            shuffle=["noshuffle", "shuffle", "bitshuffle"][shuffle],
            typesize=typesize,
            clevel=clevel,
            blocksize=blocksize,
        )
        return bytes(codec.encode(data)), data
    encoded = numcodecs.blosc.compress(data, cname.encode(), clevel, shuffle, blocksize, typesize)
    return encoded, data


frames = st.builds(
    frame_of,
    cname=st.sampled_from([*CNAMES, "snappy"]),
    shuffle=st.sampled_from([0, 1, 2]),
    typesize=st.sampled_from([1, 2, 3, 4, 7, 8, 12, 16, 17, 24, 255]),
    nbytes=st.one_of(st.integers(1, 600), st.integers(1, 70_000)),
    blocksize=st.sampled_from([0, 0, 130, 256, 1000, 4096, 10_000]),
    clevel=st.sampled_from([0, 1, 5, 9]),
    kind=st.sampled_from(["steps", "noise", "zeros"]),
)


def decode_stream(code, stream, nbytes):
    if code == 1:
        return numcodecs.lz4.decompress(nbytes.to_bytes(4, "little") + stream)
    if code == 2:
        return snappy.decode(stream)
    return zlib.decompress(stream) if code == 3 else zstandard.decompress(stream)


def unshuffle(block, typesize, is_bits):
    elements = len(block) // typesize
    end = elements * typesize
    data = np.frombuffer(block, np.uint8)
    if is_bits:
        if elements % 8:
            return block
        bits = np.unpackbits(data[:end].reshape(8 * typesize, -1), axis=1, bitorder="little")
        head = np.packbits(np.ascontiguousarray(bits.T), bitorder="little")
    else:
        head = np.ascontiguousarray(data[:end].reshape(typesize, -1).T)
    return head.tobytes() + block[end:]


def decode_by_columns(values, decoded_max, *, exact):
    """Decode the frames that are not refused as the columns say, stream by stream."""
    columns, reasons = read_columns(EncodedColumns.joined(values), decoded_max, exact=exact)
    kept = np.ones(len(values), bool)
    kept[list(reasons)] = False
    # In another order, and put together again, as a cache does it.
    order = np.flatnonzero(kept)[::-1]
    columns = columns.take(order[:1]).joined([columns.take(order[1:])])
    rows = order.tolist()
    joined = [bytearray(nbytes) for nbytes in columns.decoded_nbytes.tolist()]
    found = {}
    streams = columns.streams
    for frame, src, src_nbytes, dst, nbytes in zip(
        streams.frame.tolist(),
        streams.src.tolist(),
        streams.src_nbytes.tolist(),
        streams.dst.tolist(),
        streams.dst_nbytes.tolist(),
        strict=True,
    ):
        stream = bytes(values[rows[frame]][src : src + src_nbytes])
        assert len(stream) == src_nbytes
        code = int(columns.code[frame])
        if src_nbytes != nbytes:
            stream = None if code == 0 else decode_stream(code, stream, nbytes)
        if stream is None:
            joined[frame] = None
        if joined[frame] is not None:
            assert len(stream) == nbytes
            joined[frame][dst : dst + nbytes] = stream
    for number, row in enumerate(rows):
        if columns.is_stored[number]:
            found[row] = bytes(values[row][16:])
            continue
        if joined[number] is None:
            continue  # blosclz has no library to ask.
        blocks = columns.blocks
        out = b""
        for at in np.flatnonzero(blocks.frame == number).tolist():
            begin, nbytes = int(blocks.offset[at]), int(blocks.nbytes[at])
            assert begin == len(out)
            block = bytes(joined[number][begin : begin + nbytes])
            if columns.is_byte_shuffled[number] or columns.is_bit_shuffled[number]:
                is_bits = bool(columns.is_bit_shuffled[number])
                block = unshuffle(block, int(columns.typesize[number]), is_bits)
            out += block
        found[row] = out
    return found, reasons


@pytest.mark.matrix
@settings(max_examples=share(300))
@given(st.lists(frames, min_size=1, max_size=4))
def test_the_columns_of_every_frame_decode_to_its_bytes(made):
    values = [frame for frame, _ in made]
    longest = max(len(data) for _, data in made)
    found, reasons = decode_by_columns(values, longest, exact=False)
    assert reasons == {}
    for row, decoded in found.items():
        assert decoded == made[row][1]
    exact, refused = decode_by_columns(values, longest, exact=True)
    short = [row for row, (_, data) in enumerate(made) if len(data) != longest]
    assert sorted(refused) == short
    assert all(exact[row] == found[row] for row in exact)


def check_bounds(values, columns, kept):
    """Streams lie in their frame and not in each other; what they decode to covers the frame."""
    columns = columns.take(kept)
    rows = np.flatnonzero(kept).tolist()
    for number, row in enumerate(rows):
        streams = columns.streams.take(columns.streams.frame == number)
        if columns.is_stored[number]:
            assert len(streams.frame) == 0
            assert len(values[row]) == 16 + columns.decoded_nbytes[number]
            continue
        begin = np.sort(streams.src)
        end = (streams.src + streams.src_nbytes)[np.argsort(streams.src)]
        assert begin[0] >= 16
        assert end[-1] <= len(values[row])
        assert (begin[1:] >= end[:-1]).all()
        assert streams.dst.tolist() == (np.cumsum(streams.dst_nbytes) - streams.dst_nbytes).tolist()
        assert streams.dst_nbytes.sum() == columns.decoded_nbytes[number]
        assert (streams.dst_nbytes > 0).all()


@pytest.mark.matrix
@settings(max_examples=share(400))
@given(
    made=frames,
    changes=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=0, max_size=4),
    cut=st.integers(-4, 40),
)
@example(frame_of("lz4", 1, 4, 5000, 1000, 5, "steps"), [(12, 0)], 0)
@example(frame_of("zstd", 1, 4, 5000, 0, 5, "steps"), [(7, 128)], 0)
def test_damaged_frames_are_refused_or_stay_within_their_bounds(made, changes, cut):
    frame, data = made
    damaged = bytearray(frame)
    for position, value in changes:
        damaged[position % len(damaged)] = value
    damaged = bytes(damaged[: len(damaged) - cut] if cut >= 0 else damaged + bytes(-cut))
    # Neighbours that are whole stay so, whatever lies between them.
    values = [memoryview(frame), memoryview(damaged), memoryview(frame)]
    columns, reasons = read_columns(EncodedColumns.joined(values), len(data), exact=True)
    assert set(reasons) <= {1}
    kept = np.ones(3, bool)
    kept[list(reasons)] = False
    check_bounds(values, columns, kept)
    if cut:
        assert list(reasons) == [1]


@settings(max_examples=share(300))
@given(st.binary(max_size=200), st.sampled_from([b"", b"\x02\x01", b"\x02\x01\x21\x04"]))
def test_arbitrary_bytes_are_refused_or_stay_within_their_bounds(tail, head):
    value = head + tail
    columns, reasons = read_columns(EncodedColumns.joined([value]), 1 << 20, exact=False)
    check_bounds([value], columns, np.array([0 not in reasons]))


def test_each_impossible_field_is_refused():
    frame, _ = frame_of("zstd", 1, 4, 5000, 1024, 5, "steps")
    (first,) = struct.unpack_from("<i", frame, 16)
    int32 = struct.Struct("<i").pack
    for at, field, reason in (
        (0, b"\3", "not format version 2"),
        (1, b"\2", "an unknown version of its compressor"),
        (2, bytes([frame[2] | 8]), "unknown flags"),
        (2, bytes([frame[2] | 5]), "unknown flags"),
        (2, bytes([frame[2] | 0xE0]), "unknown flags"),
        (2, bytes([frame[2] | 2]), "another length than stored bytes"),
        (3, b"\0", "elements of no bytes"),
        (4, int32(0), "no bytes"),
        (4, int32(5001), "does not decode to 5000 bytes"),
        (4, int32(-1), "does not decode to 5000 bytes"),
        (8, int32(0), "impossible block size"),
        (8, int32(5001), "impossible block size"),
        (8, int32(-5000), "impossible block size"),
        (8, int32(1), "no room for its blocks"),
        (12, int32(len(frame) - 1), "another length than the header says"),
        (12, int32(-len(frame)), "another length than the header says"),
        (16, int32(0), "a stream outside of its frame"),
        (16, int32(-1), "a stream outside of its frame"),
        (16, int32(35), "a stream outside of its frame"),
        (16, int32(len(frame) - 3), "a stream outside of its frame"),
        (20, int32(first), "streams that lie in each other"),
        (first, int32(0), "a stream that ends outside of its frame"),
        (first, int32(-1), "a stream that ends outside of its frame"),
        (first, int32(len(frame)), "a stream that ends outside of its frame"),
    ):
        damaged = frame[:at] + field + frame[at + len(field) :]
        _, reasons = read_columns(EncodedColumns.joined([damaged]), 5000, exact=True)
        assert reasons == {0: f"blosc: {reason}"}, (at, field)
