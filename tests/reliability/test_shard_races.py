"""Several writers of one shard, readers while it is replaced, and writers that are killed."""

import numpy as np
import pytest

import gpustore
from tests.killed_process import deaths, needs_compiler
from tests.reliability.scales import scales
from tests.reliability.subprocesses import run_together, start
from tests.reliability.worker import QUICK

pytestmark = pytest.mark.matrix("costly")

SHAPE, INNER = (64, 64), 16
COUNT, LONG_COUNT = 60, 10_000
SECONDS, LONG_SECONDS = 0.7, 60
KILLS, LONG_KILLS = 8, 500


def named(name, **configuration):
    return {"name": name, "configuration": configuration}


LITTLE = named("bytes", endian="little")
CODECS = {"raw": [LITTLE], "zstd": [LITTLE, named("zstd", level=1)]}


def create(path, codecs, *, location="end"):
    sharding = {
        "chunk_shape": [INNER, INNER],
        "codecs": CODECS[codecs],
        "index_codecs": [LITTLE, {"name": "crc32c"}],
        "index_location": location,
    }
    return gpustore.open(
        {
            "driver": "zarr3",
            "kvstore": f"file://{path}/",
            "metadata": {
                "shape": list(SHAPE),
                "data_type": "uint32",
                "chunk_grid": named("regular", chunk_shape=list(SHAPE)),
                "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            },
        },
        create=True,
        context=gpustore.Context(QUICK),
    ).result()


def only_the_shard(path):
    return [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]


@pytest.mark.slow
@pytest.mark.parametrize("count", scales(COUNT, LONG_COUNT))
@pytest.mark.parametrize("libraries", [("gpustore", "gpustore"), ("gpustore", "tensorstore")])
def test_processes_that_add_to_inner_chunks_of_one_shard_lose_nothing(tmp_path, libraries, count):
    """Each has rows of its own: some in inner chunks of its own, some in shared ones."""
    path = tmp_path / "a"
    store = create(path, "zstd")
    store[...] = 1
    step = 8
    workers = [
        start("increment", library, "zarr3", path, 3 * number, step, count)
        for number, library in enumerate(libraries)
    ]
    run_together(workers)
    expected = np.ones(SHAPE, np.uint32)
    for number in range(len(libraries)):
        mine = range(3 * number, SHAPE[0], step)
        for i in range(count):
            expected[mine[i % len(mine)], :3] += 1
    assert np.array_equal(store.read().result(), expected)
    assert sorted(only_the_shard(path)) == ["c/0/0", "zarr.json"]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", scales(SECONDS, LONG_SECONDS))
@pytest.mark.parametrize(("codecs", "location"), [("raw", "end"), ("zstd", "start")])
def test_shard_that_is_replaced_while_it_is_read(tmp_path, codecs, location, seconds):
    """Inner chunks are those of one version; an index never goes with bytes of another."""
    path = tmp_path / "a"
    store = create(path, codecs, location=location)
    store[...] = 1
    seen, reads = set(), 0

    def check(found):
        nonlocal reads
        assert (found == found.flat[0]).all()
        seen.add(int(found.flat[0]))
        reads += 1

    with start("write-versions", path, seconds) as worker:
        assert worker.stdout.readline() == "ready\n", worker.stderr.read()
        while worker.poll() is None:
            check(store[20, 20:25].read().result())
            check(store[15:17, 30:34].read().result())
            for crop in store.read_many([[1, 20], [40, 40], [30, 10]], [5, 20]).result():
                check(crop)
            with gpustore.Batch() as batch:
                both = [store[5, 20:24].read(batch=batch), store[50:, 50:].read(batch=batch)]
            for reading in both:
                check(reading.result())
        written = int(worker.stdout.read())
    assert worker.returncode == 0
    assert reads > 50
    assert written > 10
    assert len(seen) > 5


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kills", scales(KILLS, LONG_KILLS))
def test_killed_writer_leaves_the_old_or_the_new_shard(tmp_path, kills):
    path = tmp_path / "a"
    store = create(path, "zstd")
    for i in deaths(
        "tests.reliability.worker", "overwrite", "zarr3", path, kills=kills, most=40, seed=6
    ):
        found = store.read().result()
        # All of it is of one version, but for the first column, which is of the one before.
        assert (found[:, 1:] == found[0, 1]).all()
        assert (found[:, 0] == found[0, 0]).all()
        assert 0 <= int(found[0, 1]) - int(found[0, 0]) <= 1
        assert found[0, 1] > 1000 * (i + 1)
    store[0, 0] = 5  # Its first write in this directory was before the kills.
    with start("write-whole", "zarr3", path, 0) as worker:
        worker.communicate(timeout=60)
    assert sorted(only_the_shard(path)) == ["c/0/0", "zarr.json"]
