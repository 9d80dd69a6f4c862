"""kernels/pattern.cu against NumPy, run on the host in three orders of threads."""

import numpy as np
import pytest

from tests.emulator import host_build
from tests.kernels import execution
from tests.matrix import each

pytestmark = execution.needs_compiler


def equal_segments(pieces, pattern, order="forward", segment_nbytes=4096):
    """How many segments of each piece hold nothing but the pattern."""
    columns = np.array(
        [[execution.address(piece) for piece in pieces], [len(piece) for piece in pieces]],
        np.uint64,
    )
    segments = max(1, -(-max(len(piece) for piece in pieces) // segment_nbytes))
    table = execution.aligned(16 * len(pattern))
    table[:] = np.frombuffer(pattern * 16, np.uint8)
    result = np.full(len(pieces), 0xFFFFFFFF, np.uint32)
    arguments = [np.uint64(execution.address(columns)), np.uint32(len(pieces))]
    arguments += [np.uint32(segments), np.uint64(segment_nbytes)]
    arguments += [np.uint64(execution.address(table)), np.uint32(len(pattern))]
    arguments += [np.uint64(execution.address(result))]
    module = host_build.load("pattern")
    module.launch("gs::compare_pattern", len(pieces) * segments, arguments, order=order)
    return (result + np.uint32(1)).tolist()


def repeated(pattern, nbytes):
    piece = execution.aligned(nbytes)
    piece[:] = np.resize(np.frombuffer(pattern, np.uint8), nbytes)
    return piece


@each("order", host_build.ORDERS)
@each("period", [1, 2, 3, 4, 5, 8, 12, 16, 17, 48, 255, 1000])
def test_pieces_of_one_pattern_are_found(period, order):
    pattern = bytes(np.random.default_rng(period).integers(0, 256, period, np.uint8))
    sizes = [1, 2, 15, 16, 17, 12287, 12288, 12289, 20_000, 40_000]
    pieces = [repeated(pattern, nbytes) for nbytes in sizes]
    found = equal_segments(pieces, pattern, order, segment_nbytes=12288)
    assert found == [-(-nbytes // 12288) for nbytes in sizes]


@pytest.mark.parametrize("period", [1, 3, 4])
def test_each_other_byte_is_seen(period):
    pattern = bytes(range(7, 7 + period))
    nbytes = 4096 + 16 * 20 + 7
    piece = repeated(pattern, nbytes)
    for at in [*range(40), *range(4080, 4120), *range(nbytes - 30, nbytes)]:
        piece[at] ^= 0x40
        assert equal_segments([piece], pattern) == [1], at
        piece[at] ^= 0x40
    assert equal_segments([piece], pattern) == [2]


def test_every_item_of_a_block_is_seen():
    piece = repeated(b"\0", 16 * 300)
    for at in range(0, len(piece), 5):
        piece[at] = 1
        assert equal_segments([piece], b"\0", segment_nbytes=8192) == [0]
        piece[at] = 0
