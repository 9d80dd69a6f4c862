"""Several writers of one chunk, and readers beside them."""

import sys
import threading

import numpy as np
import pytest

import gpustore
from gpustore.errors import MetadataError, MismatchError
from gpustore.runtime.statistics import STATISTICS
from tests.reliability.array_on_disk import create
from tests.reliability.scales import scales
from tests.reliability.subprocesses import run_together, start
from tests.reliability.worker import QUICK

pytestmark = pytest.mark.matrix("costly")

NAMES = ("zarr2 blosc lz4", "zarr3 bytes", "zarr3 zstd crc32c")


def in_threads(count, work):
    """Run ``work(0)`` to ``work(count - 1)`` at the same time; their first error is raised."""
    errors = []
    barrier = threading.Barrier(count)

    def run(number):
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kvstore", ["file", "memory"])
def test_threads_write_parts_of_one_chunk_and_lose_nothing(tmp_path, name, kvstore):
    url = "memory://a/" if kvstore == "memory" else f"file://{tmp_path}/a/"
    context = gpustore.Context(QUICK)
    store = create(name, url, context=context)
    rounds = 20
    retries = STATISTICS["retries"]
    # Writes through one store would wait for each other.
    stores = [gpustore.open(store.spec(), context=context).result() for _ in range(4)]

    def work(number):
        for value in range(1, rounds + 1):
            mine = stores[number][number:16:4, :16]
            mine.write(np.full((4, 16), 100 * value + number, np.uint16)).result()
            # Whoever has written reads that, whatever the others do.
            assert (mine.read().result() == 100 * value + number).all()

    for _ in range(50):  # On a busy machine the threads may not meet at once.
        in_threads(4, work)
        expected = 100 * rounds + np.arange(16) % 4
        assert np.array_equal(store[:16, 3].read().result(), expected)
        if STATISTICS["retries"] > retries:
            return
    raise AssertionError("no two threads met at a chunk")


@pytest.mark.slow
def test_one_write_of_many_parts_in_flight():
    """Writes that are not waited for, of overlapping chunks, all arrive."""
    store = create("zarr3 zstd", "memory://a/")
    writes = [store[i, :].write(i + 1) for i in range(32)]
    for write in writes:
        write.commit.result()
    assert np.array_equal(store.read().result(), np.repeat(np.arange(1, 33), 32).reshape(32, 32))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zarr2 zlib", "zarr3 zstd crc32c"])
@pytest.mark.parametrize("count", scales(60, 10_000))
def test_processes_of_both_libraries_lose_no_increment(tmp_path, name, count):
    """Each adds to elements of its own in one chunk that all of them rewrite."""
    store = create(name, f"file://{tmp_path}/a/", context=gpustore.Context(QUICK))
    store[...] = 1
    workers = [
        start("increment", library, name, tmp_path / "a", number, 16, count)
        for number, library in enumerate(["gpustore", "gpustore", "tensorstore"])
    ]
    run_together(workers)
    expected = np.ones((32, 32), np.uint16)
    for number in range(3):
        expected[[number, number + 16], :3] += count // 2
    assert np.array_equal(store.read().result(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zarr2 blosc lz4", "zarr3 bytes", "zarr3 crc32c"])
@pytest.mark.parametrize("seconds", scales(0.7, 60))
def test_reader_beside_a_writer_sees_whole_chunks(tmp_path, name, seconds):
    """Raw chunks are read in parts too, which are of one version each."""
    shape = (64, 1024)
    path = tmp_path / "a"
    store = create(
        name, f"file://{path}/", shape=shape, chunk=shape, context=gpustore.Context(QUICK)
    )
    store[...] = 1
    seen = set()
    reads = 0
    with start("write-whole", name, path, seconds) as worker:
        assert worker.stdout.readline() == "ready\n", worker.stderr.read()
        while worker.poll() is None:
            for part in (np.s_[...], np.s_[:, 1000:], np.s_[7:9, ::5]):
                found = store[part].read().result()
                assert (found == found.flat[0]).all()
                seen.add(int(found.flat[0]))
                reads += 1
        written = int(worker.stdout.read())
    assert worker.returncode == 0
    assert reads > 50
    assert written > 10
    assert len(seen) > 5


@pytest.mark.slow
def test_creators_race_and_one_wins(tmp_path):
    stores = [None] * 8

    def work(number):
        stores[number] = gpustore.open(
            f"file://{tmp_path}/a/|zarr3:",
            create=True,
            open=True,
            dtype="uint16",
            shape=[8 + number % 2, 4],
            context=gpustore.Context(QUICK),
        )

    in_threads(8, work)
    opened = [store.result() for store in stores if store.exception() is None]
    refused = [store.exception() for store in stores if store.exception() is not None]
    assert len({store.shape for store in opened}) == 1
    assert len(opened) == len(refused) == 4
    for error in refused:
        assert isinstance(error, MetadataError | MismatchError)
        assert error.status == "FAILED_PRECONDITION"
