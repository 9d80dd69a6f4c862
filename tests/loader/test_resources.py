"""Memory, threads and files of loaders: bounded, and none left behind."""

import contextlib
import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import gpustore
from gpustore.loader import PatchLoader, RandomPatches
from tests.waiting import wait_until

SHAPE = (64, 64, 64)
THREADS, ROOM = 2, 1 << 20
"""Threads that decode, and bytes of encoded chunks that each keeps room for."""

SAMPLER = RandomPatches((16, 16, 16), per_epoch=96, window="128 KiB")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    values = np.random.default_rng(0).integers(0, 99, SHAPE).astype("uint16")
    path = tmp_path_factory.mktemp("resources") / "a.zarr"
    gpustore.save(str(path), values, chunks=(16, 16, 16))
    context = gpustore.Context({"data_copy_concurrency": {"limit": THREADS}})
    return gpustore.open(str(path), context=context).result()


def make(store, **options):
    options = {"sampler": SAMPLER, "batch_size": 4} | options
    return PatchLoader(store, **options)


def running():
    return [one for one in threading.enumerate() if one.name == "gpustore-loader"]


def breaks(store):
    for _ in make(store):
        break


def fails(store):
    def fail(batch):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        for _ in make(store, transform=fail):
            pass


def is_dropped(store):
    batches = iter(make(store))
    next(batches)


def is_dropped_before_it_begins(store):
    iter(make(store))


def is_closed(store):
    with make(store) as loader:
        next(iter(loader))


def is_taken_over(store):
    loader = make(store)
    first, second = iter(loader), iter(loader)
    next(first)
    next(second)
    with pytest.raises(RuntimeError, match="another iteration"):
        next(first)
    assert len([*second]) == 23


def runs_in_threads(store):
    counts = []
    threads = [
        threading.Thread(target=lambda: counts.append(len([*make(store)]))) for _ in range(2)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert counts == [24, 24]


def is_dropped_by_its_thread(store):
    thread = threading.Thread(target=lambda: next(iter(make(store))))
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "use",
    [
        breaks,
        fails,
        is_dropped,
        is_dropped_before_it_begins,
        is_closed,
        is_taken_over,
        runs_in_threads,
        is_dropped_by_its_thread,
    ],
)
def test_no_thread_file_or_memory_is_left_behind(store, use):
    use(store)  # Threads of the pool and the like stay.
    gc.collect()
    tracemalloc.start()
    try:
        use(store)
        gc.collect()
        assert running() == []
        # A window that nobody waits for any more may still be read, to its end.
        wait_until(lambda: opened(store) == [])
        assert tracemalloc.get_traced_memory()[0] < THREADS * ROOM + 100_000
    finally:
        tracemalloc.stop()


def opened(store):
    """Files of the store that this process has open."""
    found = []
    for one in Path("/proc/self/fd").iterdir() if Path("/proc").exists() else ():
        with contextlib.suppress(OSError):
            found.append(os.readlink(one))
    return [one for one in found if one.startswith(store.kvstore.path.rstrip("/"))]


_PROGRAM = """
import sys
import gpustore
from gpustore.loader import PatchLoader, RandomPatches
store = gpustore.open(sys.argv[1]).result()
patch, window, memory = int(sys.argv[2]), sys.argv[3], sys.argv[4]
small = RandomPatches((16, 16, 16), per_epoch=96, window="64 KiB")
for _ in PatchLoader(store, sampler=small, batch_size=4, memory="2 MB"):
    pass

def most():  # The most of this program: ru_maxrss begins with that of the one that started it.
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

before = most()
sampler = RandomPatches((patch,) * 3, per_epoch=96, window=window)
loader = PatchLoader(store, sampler=sampler, batch_size=4, memory=memory, prefetch=3)
for epoch in range(3):
    for _ in loader:
        pass
print(most() - before)
"""


@pytest.mark.matrix("costly")
@pytest.mark.skipif(sys.platform != "linux", reason="There is no /proc")
@pytest.mark.parametrize(
    ("patch", "window", "memory"),
    [(64, "1 GiB", 40e6), (72, "1 MiB", 36e6), (32, "1 GiB", 4e6)],
)
def test_a_process_grows_by_no_more_than_memory(tmp_path, patch, window, memory):
    values = np.random.default_rng(0).integers(0, 9, (192, 192, 192)).astype("uint16")
    gpustore.save(str(tmp_path / "a.zarr"), values, chunks=(64, 64, 64))
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            _PROGRAM,
            str(tmp_path / "a.zarr"),
            str(patch),
            window,
            f"{memory:.0f}",
        ],
        # By default glibc keeps what a batch has given back once it has seen one of its size: up to
        # five batches more, as threads happen to run. A fixed threshold makes it give all back.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 << 10)},
        capture_output=True,
        text=True,
        check=True,
    )
    # Threads that decode have made room for their chunks before.
    assert int(found.stdout) * 1024 < memory + 2e6
