"""kernels/crc32c.cu against google_crc32c and zlib, run on the host in three orders of threads."""

import zlib

import google_crc32c
import numpy as np

from tests.emulator import host_build
from tests.kernels import execution
from tests.matrix import each

pytestmark = execution.needs_compiler


def checksums(pieces, order="forward", segment_nbytes=None, name="crc32c"):
    longest = max(map(len, pieces))
    segment_nbytes = segment_nbytes or max(longest, 1)
    segments = max(1, -(-longest // segment_nbytes))
    columns = np.array(
        [[execution.address(piece) for piece in pieces], [len(piece) for piece in pieces]],
        np.uint64,
    )
    result = np.full(len(pieces), 0xFFFFFFFF, np.uint32)
    host_build.load("crc32c").launch(
        f"gs::{name}",
        len(pieces) * segments,
        [
            np.uint64(execution.address(columns)),
            np.uint32(len(pieces)),
            np.uint32(segments),
            np.uint64(segment_nbytes),
            np.uint64(execution.address(result)),
        ],
        order=order,
    )
    return result.tolist()


def random_pieces(sizes, seed):
    rng = np.random.default_rng(seed)
    pieces = []
    for nbytes in sizes:
        piece = execution.aligned(nbytes, offset=int(rng.integers(0, 16)))
        piece[:] = rng.integers(0, 256, nbytes, np.uint8)
        pieces.append(piece)
    return pieces


def expected(pieces):
    return [google_crc32c.value(piece.tobytes()) for piece in pieces]


@each("order", host_build.ORDERS)
@each("seed", range(3))
def test_checksums_of_every_length_and_alignment(seed, order):
    pieces = random_pieces([*range(50), 255, 256, 257, 4095, 4096, 4097, 8191, 70001], seed)
    assert checksums(pieces, order) == expected(pieces)


@each("order", host_build.ORDERS)
@each("segment_nbytes", [1, 15, 16, 1000, 4096, 5000, 1 << 20])
def test_segments_add_up(segment_nbytes, order):
    sizes = [0, 1, 16, 40] if segment_nbytes < 1000 else [0, 1, 999, 4096, 12288, 20001]
    pieces = random_pieces(sizes, segment_nbytes)
    assert checksums(pieces, order, segment_nbytes) == expected(pieces)


@each("order", host_build.ORDERS)
@each("segment_nbytes", [None, 1000, 4096, 5000])
def test_the_checksum_of_gzip(segment_nbytes, order):
    pieces = random_pieces([0, 1, 15, 16, 17, 999, 4096, 12289, 20001], 5)
    found = checksums(pieces, order, segment_nbytes, "crc32")
    assert found == [zlib.crc32(piece) for piece in pieces]


def test_the_value_of_the_standard():
    assert checksums([np.frombuffer(b"123456789", np.uint8).copy()]) == [0xE3069283]


def test_every_bit_counts():
    data = np.zeros(5000, np.uint8)
    found = set()
    for place in (0, 1, 15, 16, 17, 4095, 4096, 4983, 4984, 4999):
        for bit in range(8):
            data[place] = 1 << bit
            found.add(checksums([data])[0])
            data[place] = 0
    assert len(found) == 80
