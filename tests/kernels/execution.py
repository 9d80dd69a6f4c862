"""Runs launches on the host-compiled kernels, in host memory."""

import os

import numpy as np
import pytest

from tests.emulator import host_build

MUST_RUN = os.environ.get("KERNELS_MUST_RUN") == "1"
"""Fail instead of skipping: set where a compiler is expected, as in ``.ci/run``."""

needs_compiler = pytest.mark.skipif(
    host_build.COMPILER is None and not MUST_RUN,
    reason="no g++ on this machine: kernels cannot be compiled for the host",
)


def address(array):
    return array.__array_interface__["data"][0]


def aligned(nbytes, alignment=16, offset=0):
    """New memory at a known alignment, exactly as long as asked, so that a sanitizer sees its end.

    NumPy asks the C library for it, which aligns to 16 bytes; `offset` bytes are cut in front.
    """
    memory = np.zeros(nbytes + offset, np.uint8)
    assert address(memory) % min(alignment, 16) == 0
    return memory[offset:]


def run(launches, order="forward"):
    """Run launches of the package, whose addresses are those of NumPy arrays."""
    for launch in launches:
        table = np.ascontiguousarray(launch.table)
        arguments = [np.uint64(address(table)), np.uint32(len(table)), *launch.arguments]
        if launch.offsets is not None:
            arguments.append(np.uint64(address(launch.offsets)))
        host_build.load(launch.family).launch(
            launch.expression, launch.blocks, arguments, order=order
        )
