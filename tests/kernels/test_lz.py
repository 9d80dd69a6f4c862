"""kernels/lz.cu against numcodecs, run on the host in three orders of threads."""

import numcodecs
import numpy as np
import pytest

from tests.emulator import host_build
from tests.kernels import execution

pytestmark = execution.needs_compiler

OK, DAMAGED, TOO_LARGE = 0, 12, 18


def decode(codec, streams, sizes, order="forward", guard=0):
    """Decode streams into memory of the given sizes; what came out, statuses and sizes."""
    src = [execution.aligned(len(stream)) for stream in streams]
    for memory, stream in zip(src, streams, strict=True):
        memory[:] = np.frombuffer(stream, np.uint8)
    dst = [execution.aligned(nbytes) for nbytes in sizes]
    columns = np.array(
        [
            [execution.address(a) for a in src],
            [len(a) for a in src],
            [execution.address(a) for a in dst],
            sizes,
        ],
        np.uint64,
    )
    found = np.full(len(src), 2**64 - 1, np.uint64)
    statuses = np.full(len(src), -1, np.int32)
    arguments = [columns, np.uint32(len(src)), found, statuses]
    host_build.load("lz").launch(
        f"gs::decode_{codec}",
        -(-len(src) // 8),
        [np.uint64(execution.address(a)) if a.ndim else a for a in arguments],
        order=order,
    )
    return [a.tobytes() for a in dst], statuses.tolist(), found.tolist()


def samples():
    rng = np.random.default_rng(0)
    steps = rng.integers(0, 3, 20000).astype("<u2").cumsum().astype("<u2")
    period = np.tile(rng.integers(0, 256, 8000, np.uint8), 3)
    text = b"a few words that a few words that repeat a few words" * 40
    yield from (
        bytes(5000),
        b"ab" * 3000,
        b"abc" * 3000,
        text,
        steps.tobytes(),
        period.tobytes(),
        np.concatenate((period, np.zeros(20000, np.uint8), period)).tobytes(),
        rng.integers(0, 4, 9000, np.uint8).tobytes(),
    )


def lz4(data):
    return numcodecs.LZ4().encode(data)[4:]


def blosclz(data):
    """The one stream of a Blosc frame of one block, as c-blosc's encoder wrote it."""
    encoded = numcodecs.Blosc("blosclz", 9, 0, blocksize=len(data)).encode(data)
    start = int(np.frombuffer(encoded[16:20], "<u4")[0])
    length = int(np.frombuffer(encoded[start : start + 4], "<u4")[0])
    assert length < len(data), "not compressed"
    return bytes(encoded[start + 4 : start + 4 + length])


ENCODERS = {"blosclz": blosclz, "lz4": lz4}


def compressed(codec):
    for data in samples():
        try:
            yield data, ENCODERS[codec](data)
        except (AssertionError, IndexError):
            assert codec == "blosclz"  # Stored as it is.


@pytest.mark.parametrize("order", host_build.ORDERS)
@pytest.mark.parametrize("codec", ENCODERS)
def test_streams_are_decoded(codec, order):
    data, streams = zip(*compressed(codec), strict=True)
    assert len(data) >= 6
    sizes = [len(d) for d in data]
    assert decode(codec, streams, sizes, order) == (list(data), [OK] * len(data), sizes)


@pytest.mark.parametrize("codec", ENCODERS)
def test_more_room_than_needed_is_left_alone(codec):
    data, stream = next(iter(compressed(codec)))
    ((got,), (status,), (size,)) = decode(codec, [stream], [len(data) + 100])
    assert (got, status, size) == (data + bytes(100), OK, len(data))


@pytest.mark.parametrize("codec", ENCODERS)
def test_streams_cut_at_every_length_never_decode_whole(codec):
    for data in (b"ab" * 300 + bytes(range(256)) + b"ab" * 300, bytes(3000) + b"x" * 20):
        stream = ENCODERS[codec](data)
        cuts = [stream[:length] for length in range(len(stream))]
        got, statuses, sizes = decode(codec, cuts, [len(data)] * len(cuts))
        assert set(statuses) <= {OK, DAMAGED}
        assert DAMAGED in statuses
        assert all(size < len(data) for size in sizes)
        for found, size in zip(got, sizes, strict=True):
            assert found[:size] == data[:size]


@pytest.mark.parametrize("codec", ENCODERS)
def test_too_little_room_of_every_size_is_damage(codec):
    data = b"ab" * 200 + bytes(range(250)) + bytes(300)
    stream = ENCODERS[codec](data)
    rooms = list(range(len(data)))
    _, statuses, sizes = decode(codec, [stream] * len(rooms), rooms)
    assert statuses == [DAMAGED] * len(rooms)
    assert all(size <= room for size, room in zip(sizes, rooms, strict=True))


@pytest.mark.parametrize("order", host_build.ORDERS)
@pytest.mark.parametrize("codec", ENCODERS)
def test_noise_and_damaged_streams_stay_inside_their_memory(codec, order):
    # The sanitized build sees every access outside; here statuses and sizes are looked at.
    rng = np.random.default_rng(5)
    streams = [rng.bytes(int(n)) for n in rng.integers(0, 200, 200)]
    for _, stream in compressed(codec):
        for _ in range(20):
            damaged = bytearray(stream[:400])
            for place in rng.integers(0, len(damaged), 3):
                damaged[place] = rng.integers(0, 256)
            streams.append(bytes(damaged))
    sizes = [int(n) for n in rng.integers(0, 2000, len(streams))]
    _, statuses, found = decode(codec, streams, sizes, order)
    assert set(statuses) == {OK, DAMAGED}
    assert all(a <= b for a, b in zip(found, sizes, strict=True))


def blosclz_by_hand(*parts):
    return bytes(byte for part in parts for byte in part)


def literals(data):
    assert 0 < len(data) <= 32
    return [len(data) - 1, *data]


def far_match(length, distance):
    """A match with a 16-bit distance."""
    beyond = distance - 8192
    assert 0 <= beyond < 65536
    assert 3 <= length <= 8
    return [(length - 2) << 5 | 31, 255, beyond >> 8, beyond & 255]


def test_matches_farther_than_the_encoder_writes():
    runs = [literals(bytes([i % 251] * 31 + [i % 256])) for i in range(400)]
    data = bytes(byte for run in runs for byte in run[1:])
    parts, expected = list(runs), bytearray(data)
    for distance in (8192, 8193, 9000, 12799):
        parts += [far_match(7, distance), literals(b"!")]
        expected += expected[len(expected) - distance :][:7] + b"!"
    stream = blosclz_by_hand(*parts)
    assert decode("blosclz", [stream], [len(expected)])[0] == [bytes(expected)]


def test_a_far_match_cut_at_every_byte_is_damage():
    runs = [literals(bytes(32)) for _ in range(300)]
    match = far_match(8, 8192 + 5)
    whole = blosclz_by_hand(*runs, [7 << 5 | match[0] & 31, 255, 9, *match[1:]], literals(b"x"))
    cuts = [whole[: len(whole) - cut] for cut in range(2, 8)]
    _, statuses, sizes = decode("blosclz", cuts, [300 * 32 + 300] * len(cuts))
    # Without the literals the match is not carried out; without its last byte it is none.
    assert statuses == [OK] + [DAMAGED] * 5
    assert sizes == [300 * 32] * 6


def test_a_length_of_more_than_32_bits_is_damage():
    # 15 + 255 * 16843009 + 0 is 14 in 32 bits.
    stream = b"\xf0" + b"\xff" * 16843009 + b"\0" + bytes(14)
    _, statuses, sizes = decode("lz4", [stream], [14])
    assert (statuses, sizes) == ([DAMAGED], [0])


@pytest.mark.parametrize(
    ("codec", "stream"),
    [
        ("blosclz", blosclz_by_hand(literals(b"abc"), [1 << 5, 3], literals(b"d"))),
        ("blosclz", blosclz_by_hand(literals(b"abc"), far_match(3, 8192), literals(b"d"))),
        ("lz4", b"\x30abc\x04\x00\x10d"),
        ("lz4", b"\x30abc\x00\x00\x10d"),
    ],
)
def test_a_match_before_the_beginning_is_damage(codec, stream):
    assert decode(codec, [stream], [100])[1] == [DAMAGED]


def test_a_match_that_ends_a_blosclz_stream_is_not_carried_out():
    # As in c-blosc, whose encoder ends with literals.
    stream = blosclz_by_hand(literals(b"abc"), [1 << 5, 2])
    _, status, size = decode("blosclz", [stream], [6])
    assert (status, size) == ([OK], [3])


@pytest.mark.parametrize("codec", ENCODERS)
def test_sizes_beyond_31_bits_are_refused(codec):
    src, dst = np.zeros(16, np.uint8), np.zeros(16, np.uint8)
    for src_nbytes, dst_nbytes in ((2**31, 16), (16, 2**31), (2**32 + 1, 16), (16, 2**33)):
        columns = np.array(
            [execution.address(src), src_nbytes, execution.address(dst), dst_nbytes], np.uint64
        )
        sizes, statuses = np.zeros(1, np.uint64), np.zeros(1, np.int32)
        host_build.load("lz").launch(
            f"gs::decode_{codec}",
            1,
            [
                np.uint64(execution.address(columns)),
                np.uint32(1),
                np.uint64(execution.address(sizes)),
                np.uint64(execution.address(statuses)),
            ],
        )
        assert statuses.tolist() == [TOO_LARGE]
