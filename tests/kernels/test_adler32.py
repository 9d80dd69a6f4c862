"""kernels/adler32.cu against zlib, run on the host in three orders of threads."""

import zlib

import numpy as np
import pytest

from gpustore.device.checksum import adler32
from tests.emulator import host_build
from tests.kernels import execution
from tests.kernels.test_crc32c import random_pieces
from tests.matrix import each

pytestmark = execution.needs_compiler


def checksums(pieces, order="forward", segment_nbytes=None):
    longest = max(map(len, pieces))
    segment_nbytes = segment_nbytes or max(longest, 1)
    segments = max(1, -(-longest // segment_nbytes))
    sizes = np.array([len(piece) for piece in pieces], np.uint64)
    columns = np.stack((np.array([execution.address(piece) for piece in pieces], "u8"), sizes))
    result = np.full(2 * len(pieces), 0xFFFFFFFF, np.uint32)
    host_build.load("adler32").launch(
        "gs::adler32",
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
    return adler32(result, sizes).tolist()


@each("order", host_build.ORDERS)
@each("segment_nbytes", [None, 1000, 4096, 65521])
def test_checksums_of_every_length(segment_nbytes, order):
    pieces = random_pieces([0, 1, 2, 255, 256, 257, 4095, 4096, 4097, 70001], 3)
    assert checksums(pieces, order, segment_nbytes) == [zlib.adler32(piece) for piece in pieces]


@pytest.mark.parametrize("segment_nbytes", [None, 4096])
def test_the_largest_sums(segment_nbytes):
    pieces = [np.full(nbytes, 255, np.uint8) for nbytes in (5552, 65521, 200_000)]
    expected = [zlib.adler32(piece) for piece in pieces]
    assert checksums(pieces, "forward", segment_nbytes) == expected


def test_every_bit_counts():
    data = np.zeros(5000, np.uint8)
    found = set()
    for place in (0, 1, 255, 256, 4095, 4096, 4999):
        for bit in range(8):
            data[place] = 1 << bit
            found.add(checksums([data])[0])
            data[place] = 0
    assert len(found) == 56
