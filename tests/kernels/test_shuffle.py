"""kernels/shuffle.cu against NumPy and numcodecs, run on the host in three orders of threads."""

import numcodecs
import numpy as np
import pytest

from gpustore.device.kernels.block import (
    bit_shuffle_launches,
    bit_unshuffle_launches,
    shuffle_launches,
    unshuffle_launches,
)
from tests.emulator import host_build
from tests.kernels import execution, shuffled

pytestmark = execution.needs_compiler

PLANS = {"byte": unshuffle_launches, "bit": bit_unshuffle_launches}
FORWARD = {"byte": shuffle_launches, "bit": bit_shuffle_launches}
SIZES = (0, 1, 7, 8, 9, 31, 32, 64, 100, 127, 128, 129, 256, 1000, 1024, 1028, 2048, 2056, 2500)


@pytest.mark.matrix
@pytest.mark.parametrize("order", host_build.ORDERS)
@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("typesize", [1, 2, 3, 4, 5, 8, 12, 16, 17, 63, 64, 65, 128, 255])
def test_blocks_of_every_size_are_shuffled_and_unshuffled(typesize, kind, order):
    rng = np.random.default_rng(typesize)
    plain, src, dst = [], [], []
    for elements in SIZES:
        for tail in {0, int(rng.integers(0, typesize)), typesize - 1}:
            data = rng.integers(0, 256, elements * typesize + tail, np.uint8)
            plain.append(data)
            for memory, offset in ((src, rng.choice([0, 4, 1])), (dst, rng.choice([0, 8, 2]))):
                memory.append(execution.aligned(len(data), offset=int(offset)))
            src[-1][:] = shuffled.SHUFFLES[kind](data, typesize)
    launches = PLANS[kind](
        [execution.address(a) for a in src],
        [execution.address(a) for a in dst],
        [len(a) for a in src],
        typesize,
    )
    execution.run(launches, order)
    for got, expected in zip(dst, plain, strict=True):
        assert got.tobytes() == expected.tobytes()
    again = [execution.aligned(len(data), offset=len(data) % 2) for data in src]
    launches = FORWARD[kind](
        [execution.address(a) for a in dst],
        [execution.address(a) for a in again],
        [len(a) for a in dst],
        typesize,
    )
    execution.run(launches, order)
    for got, expected in zip(again, src, strict=True):
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("itemsize", [2, 4, 6, 8, 16])
def test_the_shuffle_filter_of_numcodecs_is_undone(itemsize):
    data = np.random.default_rng(0).integers(0, 256, 1000 * itemsize, np.uint8)
    encoded = np.frombuffer(numcodecs.Shuffle(itemsize).encode(data), np.uint8).copy()
    got = np.zeros_like(data)
    execution.run(
        unshuffle_launches(
            [execution.address(encoded)], [execution.address(got)], [len(data)], itemsize
        )
    )
    assert got.tobytes() == data.tobytes()
