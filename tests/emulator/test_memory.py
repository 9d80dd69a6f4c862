"""The address sanitizer sees device memory as the emulated device hands it out."""

import pytest

from tests.kernels import sanitized
from tests.kernels.execution import needs_compiler

pytestmark = [needs_compiler, pytest.mark.long]

SETUP = """
import numpy as np
from gpustore.device.kernels.block import stream_launches
from tests.device_memory import bench_of
from tests.emulator.device import EmulatedDevice

def leave(src_shift, dst_shift, is_freed):
    device = EmulatedDevice()
    with bench_of(device) as bench:
        src, dst = bench.put(bytes(61)), bench.put(bytes(61))
        one = stream_launches([src + src_shift], [dst + dst_shift], [61])[0]
        table = bench.put(one.table.tobytes())
        if is_freed:
            allocation = bench._owned.pop(1)
            device.free(allocation, bench.stream)
            bench.wait()
        kernel = device.kernel(one.family, one.expression)
        device.launch(kernel, one.blocks, [np.uint64(table), np.uint32(1)], bench.stream)
        bench.wait()
"""

NOTICED = {
    (0, 0, False): None,
    (1, 0, False): "READ of size",
    (-1, 0, False): "READ of size",
    (0, 1, False): "WRITE of size",
    (0, -1, False): "WRITE of size",
    (0, 0, True): "WRITE of size",
}


def test_a_kernel_that_leaves_its_memory_is_stopped(tmp_path):
    pieces = [f"leave{arguments}" for arguments in NOTICED]
    found = sanitized.run_each("address", SETUP, pieces, tmp_path)
    for (status, printed), noticed in zip(found, NOTICED.values(), strict=True):
        if noticed is None:
            assert (status, printed) == (0, "")
        else:
            assert status != 0
            assert "use-after-poison" in printed
            assert noticed in printed
