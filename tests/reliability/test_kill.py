"""A writer that is killed leaves every chunk old or new, and its traces go."""

from pathlib import Path

import numpy as np
import pytest

import gpustore
from tests.killed_process import deaths, needs_compiler
from tests.reliability.array_on_disk import create
from tests.reliability.scales import scales
from tests.reliability.subprocesses import start
from tests.reliability.worker import QUICK

pytestmark = pytest.mark.matrix("costly")

KILLS, LONG_KILLS = 15, 500
"""For each of two formats."""

SHAPE, CHUNK = (128, 128), (64, 32)


def leftovers(path):
    return [file for file in Path(path).rglob("*") if file.name.endswith(".__lock")]


def versions(store):
    """The version of each chunk; first columns are those of another one, of a whole write."""
    found = store.read().result()
    numbers = []
    for row in range(0, SHAPE[0], CHUNK[0]):
        for column in range(0, SHAPE[1], CHUNK[1]):
            chunk = found[row : row + CHUNK[0], column : column + CHUNK[1]]
            rest = chunk[:, 1:] if column == 0 else chunk
            assert (rest == rest[0, 0]).all(), "a mix of two versions"
            assert (chunk[:, 0] == chunk[0, 0]).all(), "a mix of two versions"
            assert 0 <= int(rest[0, 0]) - int(chunk[0, 0]) <= 1
            numbers.append(int(rest[0, 0]))
    return numbers


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["zarr2 blosc lz4", "zarr3 crc32c"])
@pytest.mark.parametrize("kills", scales(KILLS, LONG_KILLS))
def test_killed_writer_leaves_old_or_new_chunks(tmp_path, name, kills):
    path = tmp_path / "a"
    context = gpustore.Context(QUICK)
    dtype = np.dtype("<u4")
    store = create(name, f"file://{path}/", shape=SHAPE, chunk=CHUNK, dtype=dtype, context=context)
    seen = mixed = 0
    for i in deaths(
        "tests.reliability.worker", "overwrite", name, path, kills=kills, most=150, seed=4
    ):
        numbers = versions(store)
        # Each child has written all once before it is killed, and never goes back.
        assert min(numbers) > 1000 * (i + 1)
        assert max(numbers) - min(numbers) <= 1
        seen += min(numbers) > 1000 * (i + 1) + 1
        mixed += max(numbers) > min(numbers)
    assert seen >= 5  # Children were killed in later writes too,
    assert mixed >= 5  # and between the first chunk and the last one.
    # The first write of a new process into a directory rids it of what the dead left there.
    with start("write-whole", name, path, 0) as worker:
        worker.communicate(timeout=60)
    assert leftovers(path) == []
    assert np.array_equal(store.read().result(), np.ones(SHAPE, np.uint32))
