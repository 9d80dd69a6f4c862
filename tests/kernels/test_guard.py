"""kernels/guard.cu against NumPy, run on the host in three orders of threads."""

import numpy as np
import pytest

from tests.emulator import host_build
from tests.kernels import execution

pytestmark = execution.needs_compiler

VALUE = 0xC3
SIZES = [32, 33, 0, 1, 47, 64, 31, 100, 32, 40]


def guards(sizes):
    """Pieces of one array at every alignment, with bytes between that are nobody's."""
    memory = np.random.default_rng(0).integers(0, 256, 60 * len(sizes) + sum(sizes), np.uint8)
    pieces, at = [], 0
    for number, size in enumerate(sizes):
        at += 10 + (number * 5) % 16
        pieces.append(memory[at : at + size])
        at += size
    return memory, pieces


def launch(kernel, pieces, order, *result):
    sizes = np.array([len(piece) for piece in pieces], np.uint64)
    columns = np.stack((np.array([execution.address(piece) for piece in pieces], "u8"), sizes))
    arguments = [
        np.uint64(execution.address(columns)),
        np.uint32(len(pieces)),
        np.uint32(VALUE),
        *result,
    ]
    blocks = -(-len(pieces) // 8)
    host_build.load("guard").launch(f"gs::{kernel}", blocks, arguments, order=order)


def differing(pieces, order="forward"):
    """What is found of each piece."""
    result = np.full(len(pieces), 0xFFFFFFFF, np.uint32)
    launch("check_guards", pieces, order, np.uint64(execution.address(result)))
    return result.tolist()


@pytest.mark.parametrize("order", host_build.ORDERS)
def test_guards_alone_are_filled(order):
    memory, pieces = guards(SIZES)
    expected = memory.copy()
    for piece in pieces:
        at = execution.address(piece) - execution.address(memory)
        expected[at : at + len(piece)] = VALUE
    launch("fill_guards", pieces, order)
    assert np.array_equal(memory, expected)
    assert differing(pieces, order) == [0] * len(SIZES)
    assert np.array_equal(memory, expected)


@pytest.mark.parametrize("order", host_build.ORDERS)
def test_any_changed_bit_of_any_byte_is_found_in_its_guard_alone(order):
    _, pieces = guards(SIZES)
    launch("fill_guards", pieces, order)
    for place in range(max(SIZES)):
        bit = 1 << place % 8
        changed = [number for number, size in enumerate(SIZES) if place < size and number % 2]
        for number in changed:
            pieces[number][place] ^= bit
        expected = [bit if number in changed else 0 for number in range(len(SIZES))]
        assert differing(pieces, order) == expected
        for number in changed:
            pieces[number][place] ^= bit
