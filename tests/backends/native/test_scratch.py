"""Memory that a thread keeps for its next chunks is bounded, of all uses together."""

import os
import subprocess
import sys

import numpy as np
import pytest

from gpustore.backends.native import library
from tests.backends.native.stored_arrays import created, named

pytestmark = [
    pytest.mark.skipif(library.library() is None, reason=str(library.why_not())),
    pytest.mark.skipif(sys.platform != "linux", reason="no /proc"),
]

NBYTES = 48 << 20
PROGRAM = """
import sys
import numpy as np
import gpustore

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

store = gpustore.open(f"file://{sys.argv[1]}/|zarr3:").result()
out = np.ones(store.shape, np.uint8)
before = resident()
store[:, :1].read(out=out[:, :1]).result()
print(resident() - before)
"""


@pytest.mark.matrix("costly")
def test_a_thread_keeps_no_more_than_a_bound(tmp_path):
    """An encoded and a decoded chunk of 48 MiB are more than it: one of them is given back."""
    values = np.random.default_rng(0).integers(0, 256, (NBYTES, 1), np.uint8)
    created(tmp_path, [NBYTES, 2], [NBYTES, 1], "uint8", [named("bytes"), named("zstd")])[:, :1] = (
        values
    )
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    # A sanitizer's allocator keeps what it was given back.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=200, check=True
    )
    assert int(done.stdout) < NBYTES + (8 << 20)
