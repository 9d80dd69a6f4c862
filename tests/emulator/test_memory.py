"""The address sanitizer sees device memory as the emulated device hands it out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels import sanitized
from tests.kernels.execution import needs_compiler

pytestmark = [needs_compiler, pytest.mark.long]

PROGRAM = """
import sys
import numpy as np
from gpustore.device.kernels.block import stream_launches
from tests.device_memory import bench_of
from tests.emulator.device import EmulatedDevice

src_shift, dst_shift, is_freed = map(int, sys.argv[1:])
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
print("nothing was noticed")
"""


@pytest.mark.parametrize(
    ("arguments", "noticed"),
    [
        ((0, 0, 0), None),
        ((1, 0, 0), "READ of size"),
        ((-1, 0, 0), "READ of size"),
        ((0, 1, 0), "WRITE of size"),
        ((0, -1, 0), "WRITE of size"),
        ((0, 0, 1), "WRITE of size"),
    ],
)
def test_a_kernel_that_leaves_its_memory_is_stopped(arguments, noticed):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        env=os.environ | sanitized.environment("address"),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=200,
    )
    if noticed is None:
        assert (done.returncode, done.stdout) == (0, "nothing was noticed\n"), done.stderr
    else:
        assert done.returncode != 0
        assert "use-after-poison" in done.stderr
        assert noticed in done.stderr
