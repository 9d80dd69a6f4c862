"""kernels/replace_damaged.cu against what it says, run on the host in three orders of threads."""

import numpy as np
import pytest

from tests.emulator import host_build
from tests.kernels import execution

pytestmark = execution.needs_compiler

NONE = 0xFFFFFFFF
EMPTY_STREAMS = bytes(range(1, 11))


@pytest.mark.parametrize("order", host_build.ORDERS)
def test_streams_with_another_checksum_are_replaced_and_no_other_byte(order):
    count = 601
    sizes = np.arange(count) % 83
    memory = np.full(int(sizes.sum()) + count, 0xEE, np.uint8)
    starts = np.cumsum(sizes + 1) - sizes
    addresses = execution.address(memory) + starts
    columns = np.stack((addresses, sizes, addresses, sizes)).astype(np.uint64)
    checksums = np.random.default_rng(0).integers(0, 1 << 32, 50, np.uint32)
    numbers = np.arange(count) * 7 % 50
    expected = checksums[numbers].copy()
    wrong = np.arange(count) % 3 == 0
    expected[wrong] ^= np.uint32(1) << (np.arange(count)[wrong] % 32).astype(np.uint32)
    unknown = np.arange(count) % 5 == 0
    checks = np.stack((np.where(unknown, NONE, numbers), expected)).astype(np.uint32)
    empty = np.frombuffer(EMPTY_STREAMS, np.uint8).copy()
    after = memory.copy()
    for start, size in zip(starts[wrong & ~unknown], sizes[wrong & ~unknown], strict=True):
        after[start : start + size] = np.resize([*EMPTY_STREAMS, *bytes(90)], size)
    arguments = [
        np.uint64(execution.address(columns)),
        np.uint32(count),
        np.uint64(execution.address(checks)),
        np.uint64(execution.address(checksums)),
        np.uint64(execution.address(empty)),
        np.uint32(len(empty)),
    ]
    blocks = -(-count // 8)
    host_build.load("replace_damaged").launch("gs::replace_damaged", blocks, arguments, order=order)
    assert np.array_equal(memory, after)
