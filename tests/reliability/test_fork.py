"""The child of a process that has read and written can do both, at once."""

import pytest

from tests.reliability.subprocesses import run

pytestmark = pytest.mark.matrix("costly")

NAMES = ("zarr2 blosc lz4", "zarr3 zstd crc32c")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kvstore", ["file", "memory"])
def test_child_can_use_what_the_parent_opened(tmp_path, name, kvstore):
    url = "memory://a/" if kvstore == "memory" else f"file://{tmp_path}/a/"
    assert run("forked", name, url) == "done\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kvstore", ["file", "memory"])
def test_fork_while_threads_read_and_write(tmp_path, name, kvstore):
    url = "memory://a/" if kvstore == "memory" else f"file://{tmp_path}/a/"
    assert run("forked-busy", name, url, 20) == "done\n"
