"""A program that ends while writes are pending that nobody waits for: all of them are done."""

import numpy as np
import pytest

import gpustore
from tests.reliability.subprocesses import start

pytestmark = pytest.mark.matrix("costly")

SHAPE = (1024, 1024)


def create(path, kind):
    layout = gpustore.ChunkLayout(
        read_chunk_shape=[32, 32],
        write_chunk_shape=[32, 32] if kind == "chunks" else [64, 64],
    )
    spec = {"driver": "zarr3", "kvstore": f"file://{path}/"}
    gpustore.open(spec, create=True, dtype="uint16", shape=SHAPE, chunk_layout=layout).result()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "how"), [("chunks", "exception"), ("shards", "normally")])
def test_pending_writes_are_done_when_the_program_ends(tmp_path, kind, how):
    path = tmp_path / "a"
    create(path, kind)
    with start("leave", path, how) as worker:
        out, err = worker.communicate(timeout=200)
    assert int(out) > 4  # Of 16 writes; else nothing was pending.
    assert worker.returncode == (0 if how == "normally" else 1)
    assert ("RuntimeError: the program fails" in err) == (how == "exception")
    assert "gpustore:" not in err  # No write was given up.
    rows = np.arange(1, 17, dtype=np.uint16).repeat(SHAPE[0] // 16)
    found = gpustore.open(str(path)).result().read().result()
    assert np.array_equal(found, np.broadcast_to(rows[:, None], SHAPE))
    assert [file.name for file in path.rglob("*") if file.name.endswith(".__lock")] == []
