"""Planning a request over 100 000 chunks: gpustore alone, nobody else has a plan to look at."""

import numpy as np
import pytest

from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.planning.chunk_format import ChunkFormat
from gpustore.planning.chunk_grid import ChunkGrid
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
    form = ChunkFormat((2048, 64, 2), "", "/", (1, 1, 1), 3)

    def make():
        grid = ChunkGrid(SHAPE, CHUNK)
        ((_, plan),) = plan_chunks(transform, grid, lambda _: form, strides, 1 << 20)
        return plan

    return make


def test_plan(benchmark, make_plan):
    """Connected sets only."""
    assert len(benchmark(make_plan)) == 100_000


def test_plan_and_rows(benchmark, make_plan):
    """Every row with its key written down, as the tasks do bit by bit."""

    def write_down():
        return sum(len(window.keys) for window in make_plan().windows(0, 1, ROWS))

    assert benchmark(write_down) == 100_000
