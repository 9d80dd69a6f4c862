"""Ctrl-C during a long read or write."""

import signal

import numpy as np
import pytest

import gpustore
from gpustore.backends.native import library
from tests.reliability.array_on_disk import create
from tests.reliability.subprocesses import run, start
from tests.reliability.worker import QUICK

pytestmark = pytest.mark.matrix("costly")

SHAPE = (4096, 2048)
NBYTES = 2 * 4096 * 2048
LONG_SHAPE = (1 << 16, 512)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """An array that takes about as long to write as to press Ctrl-C."""
    directory = tmp_path_factory.mktemp("interrupt") / "a"
    context = gpustore.Context(QUICK)
    store = create(
        "zarr3 zstd crc32c", f"file://{directory}/", shape=SHAPE, chunk=(64, 64), context=context
    )
    store[...] = 1
    return directory


def interrupt(action, path, amount):
    """Press Ctrl-C after an amount of work; return what the worker says of the time after."""
    name, *rest = run("interrupted", action, path, amount).rstrip().split(",")
    assert name == "KeyboardInterrupt"
    return rest


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 0.1, 0.5])
def test_write(path, part):
    amount = int(part * NBYTES)
    changed, changed_late, temporary, _, idle, works = interrupt("write", path, amount)
    assert int(changed) <= 16
    assert int(changed_late) == 0
    assert int(temporary) == 0
    assert idle == works == "True"
    found = gpustore.open(str(path)).result().read().result()
    chunks = found.reshape(SHAPE[0] // 64, 64, SHAPE[1] // 64, 64)
    assert (chunks == chunks[:, :1, :, :1]).all()
    assert found.min() >= 1


@pytest.mark.slow
def test_a_program_that_ctrl_c_ends_during_a_write_ends_by_the_signal(path):
    """A shell that runs it in a loop ends the loop then."""
    with start("interrupted", "write-and-leave", path, NBYTES // 10) as worker:
        _, err = worker.communicate(timeout=200)
    assert worker.returncode == -signal.SIGINT, err
    assert err.splitlines()[-1] == "KeyboardInterrupt"


def create_shards(path, shape, inner, shard, codec):
    return gpustore.open(
        {"driver": "zarr3", "kvstore": f"file://{path}/"},
        create=True,
        dtype="uint16",
        shape=shape,
        codec=gpustore.CodecSpec({"driver": "zarr3", "codecs": [codec]}),
        chunk_layout=gpustore.ChunkLayout(
            read_chunk_shape=[inner, inner], write_chunk_shape=[shard, shard]
        ),
        context=gpustore.Context(QUICK),
    ).result()


@pytest.mark.slow
def test_write_of_shards(tmp_path):
    path = tmp_path / "a"
    shard = 256
    store = create_shards(path, SHAPE, 32, shard, "zstd")
    store[...] = 1
    changed, changed_late, temporary, _, idle, works = interrupt("write", path, NBYTES // 2)
    assert int(changed) <= 16
    assert (changed_late, temporary, idle, works) == ("0", "0", "True", "True")
    # Each shard is of one version: the old one or the new one, whole.
    shards = store.read().result().reshape(SHAPE[0] // shard, shard, SHAPE[1] // shard, shard)
    assert (shards == shards[:, :1, :, :1]).all()
    assert shards.max() > 1


@pytest.mark.slow
def test_read_many(path):
    assert interrupt("read-many", path, 1) == ["0", "0", "0", "0", "True", "True"]


@pytest.mark.slow
def test_read(path):
    assert interrupt("read", path, 1) == ["0", "0", "0", "0", "True", "True"]


@pytest.mark.slow
@pytest.mark.parametrize(("chunk", "amount"), [((8, 8), 1), ((128, 256), 0)])
def test_threads_stop_reading_what_nobody_wants(tmp_path, chunk, amount):
    """Small chunks are read by one thread, in one task of half a million."""
    shape = LONG_SHAPE if chunk == (8, 8) else (LONG_SHAPE[0] * 16, LONG_SHAPE[1] * 4)
    create("zarr3 zstd crc32c", f"file://{tmp_path}/a/", shape=shape, chunk=chunk)
    changed, changed_late, temporary, missing, idle, _ = interrupt("read", tmp_path / "a", amount)
    assert (changed, changed_late, temporary, idle) == ("0", "0", "0", "True")
    assert int(missing) <= 8 * 4096  # Of half a million: a batch a thread.


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_threads_stop_reading_a_shard(tmp_path, codec):
    """All of it is one file of long inner chunks."""
    create_shards(tmp_path / "a", (8192, 8192), 1024, 8192, codec)[...] = 1
    changed, changed_late, temporary, _, idle, works = interrupt("read", tmp_path / "a", 1)
    assert (changed, changed_late, temporary, idle, works) == ("0", "0", "0", "True", "True")


@pytest.fixture(scope="module")
def long_chunk(tmp_path_factory):
    """An array of one long chunk."""
    path = tmp_path_factory.mktemp("interrupt") / "a"
    blosc = {"cname": "lz4", "clevel": 1, "shuffle": "noshuffle", "blocksize": 0}
    gpustore.open(
        {"driver": "zarr3", "kvstore": f"file://{path}/"},
        create=True,
        dtype="uint16",
        shape=(4096, 4096),
        codec=gpustore.CodecSpec(
            {"driver": "zarr3", "codecs": [{"name": "blosc", "configuration": blosc}]}
        ),
        chunk_layout=gpustore.ChunkLayout(chunk_shape=(4096, 4096)),
    ).result().write(np.uint16(7)).result()
    return path


@pytest.mark.skipif(library.library() is None, reason=str(library.why_not()))
@pytest.mark.parametrize("action", ["read", "reads", "read-many", "write"])
def test_ctrl_c_is_heard_while_a_codec_works_on_a_long_chunk(long_chunk, action):
    """What it worked on is released afterwards."""
    met = run("interrupted-in-codec", action, long_chunk).split()
    assert met == ["KeyboardInterrupt", *["True"] * 5]


@pytest.mark.skipif(library.library() is None, reason=str(library.why_not()))
def test_a_program_ends_while_a_codec_works_on_a_chunk_that_nobody_wants(long_chunk):
    assert run("interrupted-in-codec", "read-and-leave", long_chunk).split() == [
        "KeyboardInterrupt",
        "True",
    ]
