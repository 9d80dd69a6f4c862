"""Ray: rows of arrays, read by two workers of a local cluster."""

import numpy as np
import pytest

import gpustore

ray = pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("pyarrow", reason="ray[data] is not installed")

from gpustore.interop.ray import ArraySource, read  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

VALUES = np.arange(20 * 9, dtype="int32").reshape(20, 9)


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
    yield
    ray.shutdown()


@pytest.fixture
def stored(tmp_path):
    return gpustore.save(tmp_path / "x.zarr", VALUES, chunks=(2, 3), shards=(8, 6))


def check(rows, shape, values=VALUES, origin=(0, 0)):
    seen = np.zeros(values.shape, int)
    for row in rows:
        start = [int(i) - o for i, o in zip(row["start"], origin, strict=True)]
        part = tuple(slice(i, i + n) for i, n in zip(start, shape, strict=True))
        np.testing.assert_array_equal(row["values"], values[part])
        seen[part] += 1
    assert (seen == 1).all()


def test_rows_are_shards_or_patches(cluster, stored):
    check(read(stored).take_all(), (8, 6))
    check(read(stored.kvstore.url, patch=(4, 3)).take_all(), (4, 3))
    check(read(stored, patch=(3, 9), override_num_blocks=2).take_all(), (3, 9))
    view = stored[8:, ::-1]
    rows = read(view, patch=(4, 3)).take_all()
    check(rows, (4, 3), VALUES[8:, ::-1], view.domain.origin)
    mean = read(stored).map(lambda row: {"mean": row["values"].mean()}).take_all()
    assert len(mean) == 6


def test_tasks_read_whole_shards(stored):
    source = ArraySource(stored, (2, 3))
    tasks = source.get_read_tasks(100)
    assert [task.metadata.num_rows for task in tasks] == [8, 4, 8, 4, 4, 2]
    assert [task.metadata.num_rows for task in source.get_read_tasks(2)] == [20, 10]
    before = gpustore.statistics["key_reads"]
    blocks = [block for task in tasks for block in task()]
    assert sum(len(block) for block in blocks) == 30
    # Each chunk once, and the index of each shard.
    assert gpustore.statistics["key_reads"] - before == 30 + 6


def test_what_cannot_be_read_is_an_error(stored, tmp_path):
    with pytest.raises(gpustore.MismatchError, match="expected 2 sizes"):
        read(stored, patch=(3,))
    with pytest.raises(gpustore.UnsupportedError, match="store it in files first"):
        read(gpustore.array(VALUES))
    with pytest.raises(gpustore.UnsupportedError, match="no tensors of bfloat16"):
        read(gpustore.cast(stored, "bfloat16"))
    with pytest.raises(gpustore.NotFoundError):
        read(tmp_path / "nothing.zarr")
