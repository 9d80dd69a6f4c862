"""A killed commit leaves all of an atomic transaction or nothing, and no half of a value."""

import pytest

import gpustore
from tests.killed_process import deaths, needs_compiler
from tests.matrix import each
from tests.reliability.scales import scales
from tests.reliability.worker import QUICK

pytestmark = pytest.mark.matrix("costly")

KILLS, LONG_KILLS = 4, 300
SHAPE, CHUNK = (12, 12), (4, 4)


@needs_compiler
@pytest.mark.slow
@each(
    ("url", "atomic"),
    [("file://{}/a|ocdbt:", True), ("file://{}/a.zip|zip:", True), ("file://{}/a", False)],
)
@pytest.mark.parametrize("kills", scales(KILLS, LONG_KILLS))
def test_killed_commit_leaves_all_or_nothing(tmp_path, url, atomic, kills):
    url = f"{url.format(tmp_path)}|zarr3:"
    store = gpustore.open(
        url,
        create=True,
        dtype="uint32",
        shape=SHAPE,
        chunk_layout=gpustore.ChunkLayout(chunk_shape=CHUNK),
        context=gpustore.Context(QUICK),
    ).result()
    for i in deaths(
        "tests.reliability.worker", "commit", url, atomic, kills=kills, most=60, seed=5
    ):
        found = store.read().result()
        assert found.min() >= 1000 * (i + 1)
        if atomic:
            assert (found == found[0, 0]).all(), "a part of a transaction"
        for row in range(0, SHAPE[0], CHUNK[0]):
            for column in range(0, SHAPE[1], CHUNK[1]):
                chunk = found[row : row + CHUNK[0], column : column + CHUNK[1]]
                assert (chunk == chunk[0, 0]).all(), "a part of a chunk"
        assert found.max() - found.min() <= 1
