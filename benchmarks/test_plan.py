"""Planning a request over 100 000 chunks: gpustore alone, nobody else has a plan to look at."""

import numpy as np
import pytest

from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.planning.chunk_plan import plan_chunks

CHUNK = (32, 32, 32)
SHAPE = (1600, 1280, 1600)
"""50 x 40 x 50 chunks."""

ROWS = 4096
"""Written down at once."""


@pytest.fixture
def make_plan():
    transform = IndexTransform(domain=IndexDomain(shape=SHAPE))
    strides = np.cumprod((2, *SHAPE[:0:-1])).tolist()[::-1]

    def make():
        return plan_chunks(
            transform,
            shape=SHAPE,
            chunk_shape=CHUNK,
            src_stride=(2048, 64, 2),
            dst_stride=strides,
            key_prefix="",
            key_separator="/",
            max_chunks=1 << 20,
        )

    return make


def test_plan(benchmark, make_plan):
    """Tables only."""
    assert len(benchmark(make_plan)) == 100_000


def test_plan_and_rows(benchmark, make_plan):
    """Every row with its key written down, as the tasks do bit by bit."""

    def write_down():
        return sum(len(window.keys) for window in make_plan().windows(0, 1, ROWS))

    assert benchmark(write_down) == 100_000
