"""kernels/stream.cu against NumPy, run on the host in three orders of threads."""

import numpy as np
import pytest

from gpustore.device.kernels.block import stream_launches
from tests.emulator import host_build
from tests.kernels import execution
from tests.matrix import each

pytestmark = execution.needs_compiler


@each("order", host_build.ORDERS)
@each("alignment", range(16))
def test_ranges_of_every_length_and_alignment_are_copied(alignment, order):
    rng = np.random.default_rng(alignment)
    src, dst, expected = [], [], []
    for nbytes in (*range(40), 63, 64, 65, 16383, 16384, 16385, 40000):
        data = execution.aligned(nbytes, offset=int(rng.integers(0, 20)))
        data[:] = rng.integers(0, 256, nbytes, np.uint8)
        src.append(data)
        dst.append(execution.aligned(nbytes, offset=alignment))
    launches = stream_launches(
        [execution.address(a) for a in src],
        [execution.address(a) for a in dst],
        [len(a) for a in src],
    )
    assert len(launches) == 1
    execution.run(launches, order)
    for copied, expected in zip(dst, src, strict=True):
        assert copied.tobytes() == expected.tobytes()


@pytest.mark.parametrize("apart", range(4))
def test_neighbours_of_a_range_are_not_touched(apart):
    src = np.arange(100, dtype=np.uint8)
    for length in range(1, 60):
        dst = np.zeros(100, np.uint8)
        launches = stream_launches(
            [execution.address(src) + apart], [execution.address(dst) + 7], [length]
        )
        execution.run(launches)
        assert dst[7 : 7 + length].tobytes() == src[apart : apart + length].tobytes()
        dst[7 : 7 + length] = 0
        assert not dst.any()
