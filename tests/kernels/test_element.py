"""kernels/element.cu against NumPy, run on the host in three orders of threads."""

import numpy as np
import pytest

from tests.emulator import host_build
from tests.kernels import execution
from tests.matrix import each

pytestmark = [execution.needs_compiler, pytest.mark.matrix]

SIZES = [0, 1, 15, 16, 17, 255, 256, 257, 4095, 4096, 4113, 9001]


def views(sizes, fill):
    """Pieces of one array at every alignment, with bytes between that are nobody's."""
    memory = np.full(sum(sizes) + 40 * len(sizes), fill, np.uint8)
    pieces, at = [], 0
    for number, size in enumerate(sizes):
        at += 16 + (number * 5) % 16
        pieces.append(memory[at : at + size])
        at += size
    return memory, pieces


def launch(kernel, pieces, illegal, order, segment_nbytes=None, result=None):
    """`illegal` is a number, or the bytes of a record."""
    longest = max(map(len, pieces))
    segment_nbytes = segment_nbytes or max(longest, 1)
    segments = max(1, -(-longest // segment_nbytes))
    sizes = np.array([len(piece) for piece in pieces], np.uint64)
    columns = np.stack((np.array([execution.address(piece) for piece in pieces], "u8"), sizes))
    arguments = [
        np.uint64(execution.address(columns)),
        np.uint32(len(pieces)),
        np.uint32(segments),
        np.uint64(segment_nbytes),
    ]
    if isinstance(illegal, int):
        arguments.append(np.uint32(illegal * 0x01010101))
    else:
        record = np.frombuffer(illegal, np.uint8).copy()
        arguments += [np.uint64(execution.address(record)), np.uint32(len(record))]
    if result is not None:
        arguments.append(np.uint64(execution.address(result)))
    blocks = len(pieces) * segments
    host_build.load("element").launch(f"gs::{kernel}", blocks, arguments, order=order)


def legal(pieces, illegal, order="forward", segment_nbytes=None):
    """Segments of each piece that were found to be legal."""
    result = np.full(len(pieces), 0xFFFFFFFF, np.uint32)
    kernel = "check_bits" if isinstance(illegal, int) else "check_records"
    launch(kernel, pieces, illegal, order, segment_nbytes, result)
    return (result + np.uint32(1)).tolist()


@each("order", host_build.ORDERS)
@each("segment_nbytes", [None, 1000, 4096])
def test_legal_pieces_are_legal_whatever_lies_between_them(segment_nbytes, order):
    memory, pieces = views(SIZES, 0xFF)
    for piece in pieces:
        piece[:] = np.arange(len(piece)) % 2
    before = memory.copy()
    size = segment_nbytes or max(SIZES)
    expected = [-(-n // size) for n in SIZES]
    assert legal(pieces, 0xFE, order, segment_nbytes) == expected
    assert np.array_equal(memory, before)


def test_every_illegal_bit_of_every_byte_is_found():
    _, pieces = views([300] * 16, 1)
    for place in range(300):
        for number, piece in enumerate(pieces):
            piece[place] = 1 << number % 8
        expected = [int(number % 8 == 0) for number in range(16)]
        assert legal(pieces, 0xFE) == expected
        for piece in pieces:
            piece[place] = 1


def test_each_segment_is_judged_by_itself():
    piece = np.zeros(100_000, np.uint8)
    piece[[5, 10_000, 99_999]] = 3
    assert legal([piece], 0xFE, segment_nbytes=4096) == [25 - 3]
    assert legal([piece], 0xFC, segment_nbytes=4096) == [25]


@each("order", host_build.ORDERS)
@each("segment_nbytes", [None, 1000, 4096])
@each("illegal", [0xF0, 0xFC])
def test_bits_are_cleared_in_the_pieces_alone(illegal, segment_nbytes, order):
    memory, pieces = views(SIZES, 0xFF)
    random = np.random.default_rng(0)
    for piece in pieces:
        piece[:] = random.integers(0, 256, len(piece))
    expected = memory.copy()
    for piece, copy in zip(pieces, views(SIZES, 0)[1], strict=True):
        copy[:] = piece & (0xFF ^ illegal)
        at = execution.address(piece) - execution.address(memory)
        expected[at : at + len(piece)] = copy
    launch("clear_bits", pieces, illegal, order, segment_nbytes)
    assert np.array_equal(memory, expected)


def test_pieces_that_overlap_are_cleared():
    memory = np.full(5000, 0xFF, np.uint8)
    launch("clear_bits", [memory[3:3000], memory[1001:4990]], 0xF0, "shuffled", 1000)
    assert np.array_equal(np.flatnonzero(memory == 0x0F), np.arange(3, 4990))


RECORDS = [b"\xfe", b"\x00\xfe", b"\xf0\x00\x00", bytes(range(255, -1, -1)), bytes(299) + b"\1"]


@each("order", host_build.ORDERS)
@each("segment_nbytes", [None, 1000])
@each("record", RECORDS)
def test_bits_of_each_place_in_a_record(record, segment_nbytes, order):
    memory, pieces = views(SIZES, 0xFF)
    random = np.random.default_rng(0)
    for piece in pieces:
        piece[:] = random.integers(0, 256, len(piece))
    wrong = [piece & np.resize(np.frombuffer(record, np.uint8), len(piece)) for piece in pieces]
    size = segment_nbytes or max(SIZES)
    found = [sum(not w[i : i + size].any() for i in range(0, len(w), size)) for w in wrong]
    assert legal(pieces, record, order, segment_nbytes) == found
    expected = memory.copy()
    for piece, bits in zip(pieces, wrong, strict=True):
        at = execution.address(piece) - execution.address(memory)
        expected[at : at + len(piece)] ^= bits
    launch("clear_records", pieces, record, order, segment_nbytes)
    assert np.array_equal(memory, expected)
    assert legal(pieces, record, order, segment_nbytes) == [-(-n // size) for n in SIZES]


@pytest.mark.parametrize("record", RECORDS, ids=len)
def test_one_illegal_bit_in_any_place_of_a_record_is_found(record):
    bits = np.resize(np.frombuffer(record, np.uint8), 600)
    (piece,) = views([600], 0)[1]
    piece[:] = ~bits
    assert legal([piece], record, segment_nbytes=256) == [3]
    for place in range(600):
        piece[place] |= bits[place]
        assert legal([piece], record, segment_nbytes=256) == [2 if bits[place] else 3]
        piece[place] = ~bits[place]
