"""Host time of the device path: reads on a device that does nothing and costs nothing.

The values are real. They lie in files in the page cache, of which many are links to the same few.
The table has the CPU time of a read, the part of it outside of the native core, the time that the
system takes to open, read and close the same files, and the time of recording submissions.

``pytest benchmarks/test_device_host_cost.py`` prints the rows as a table.
"""

import os
import resource
import shutil
import statistics
import sys
import time
from collections import Counter

import numpy as np
import pytest

import gpustore
from benchmarks.formats import SHAPE, ArrayFormat
from benchmarks.gpu.recording_device import opened
from benchmarks.null_device import NullDevice
from gpustore.backends.device.submission import Submission
from gpustore.backends.native.job import Job

SMALL, LARGE = (32, 32, 32), (32, 128, 128)

FORMATS = [
    ArrayFormat(3, "zstd", SMALL),
    ArrayFormat(2, "blosc", SMALL),
    ArrayFormat(3, "zstd", SMALL, "sharded"),
    ArrayFormat(2, "raw", SMALL),
    ArrayFormat(3, "zstd", LARGE),
    ArrayFormat(2, "blosc", LARGE),
]

REPEATS = {"256 MiB": 4, "2560 MiB": 40}
"""How often the volume of 64 MiB is there, along the first dimension."""

CROP = "8 chunks"

RESIDENT = {
    "resident": {},
    "resident, encoded": {"content": "encoded"},
    "resident, encoded, pinned": {"content": "encoded", "memory": "pinned"},
}
"""Pools of reads of the 256 MiB that find all chunks in a ``device_cache_pool``."""

ROOM_NBYTES = 256 << 20

ROUNDS_S = 1.0
MOST_ROUNDS = 200

HEADS = (
    "format", "read", "chunks", "us a chunk", "Python, us a chunk", "system, us a chunk",
    "caller, us a chunk", "ms a submission", "recording, ms", "wall, ms", "submissions",
    "launches", "copies", "waits", "Python calls",
)  # fmt: skip


def pytest_generate_tests(metafunc):
    metafunc.parametrize("cost_format", FORMATS, ids=str)
    metafunc.parametrize("read", [CROP, *REPEATS, *RESIDENT])


@pytest.fixture(scope="module")
def rows(request):
    """Rows of the table, which is printed behind the last one."""
    found = []
    yield found
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print(f"\n| {' | '.join(HEADS)} |")
        print(f"| --- | ---{' | ---:' * (len(HEADS) - 2)} |")
        for row in found:
            print(f"| {' | '.join(map(str, row))} |")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("host_cost")
    yield path
    shutil.rmtree(path)


def spec_of(folder, array_format, repeats, volume):
    """Specification of an array on disk: one volume, and links to its files for the repeats."""
    path = folder / f"{array_format}-{repeats}"
    shape = (SHAPE[0] * repeats, *SHAPE[1:])
    spec = array_format.tensorstore_spec(f"{path}/", shape)
    if path.exists():
        return spec, path
    context = gpustore.Context({"file_io_sync": False})
    store = gpustore.open(spec, create=True, context=context, device="cpu").result()
    store[: SHAPE[0]] = volume
    root = path / "c" if array_format.version == 3 else path
    count = len([*root.iterdir()]) - (array_format.version == 2)
    for i in range(count, count * repeats):
        shutil.copytree(root / str(i % count), root / str(i), copy_function=os.link)
    return spec, path


def system_s(path, room):
    """Seconds that the system takes to open, look at, read and close all files, once.

    They are read into `room`, one behind the other as into a staging buffer.
    """
    files = [(one, one.stat().st_size) for one in path.rglob("*") if one.is_file()]
    at = 0
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_stime
    for name, nbytes in files:
        if at + nbytes > len(room):
            at = 0
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        os.fstat(file)
        os.readv(file, [room[at : at + nbytes]])
        os.close(file)
        at += nbytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime - begin


def python_calls(once):
    """Number of Python functions that `once` calls on this thread."""
    counts = Counter()
    sys.setprofile(lambda frame, event, argument: counts.update([event]))
    try:
        once()
    finally:
        sys.setprofile(None)
    return counts["call"]


@pytest.fixture
def parts(monkeypatch):
    """Seconds of CPU time of threads in parts of a read: ``core`` and ``recording``, in lists."""
    found = {"core": [], "recording": []}

    def timed(owner, name, part):
        method = getattr(owner, name)

        def call(*arguments):
            begin = time.thread_time()
            try:
                return method(*arguments)
            finally:
                found[part].append(time.thread_time() - begin)

        monkeypatch.setattr(owner, name, call)

    timed(Job, "read", "core")
    timed(Submission, "begin", "recording")
    timed(Submission, "finish", "recording")
    return found


def test_host_cost(benchmark, request, rows, folder, volume, cost_format, read, parts):
    repeats = 1 if read == CROP else REPEATS.get(read, 4)
    spec, path = spec_of(folder, cost_format, repeats, volume)
    threads = request.config.getoption("--threads")
    names = ("data_copy_concurrency", "file_io_concurrency")
    resources = {name: {"limit": threads} for name in names}
    if read in RESIDENT:
        resources["device_cache_pool"] = {"total_bytes_limit": 1 << 40, **RESIDENT[read]}
    context = gpustore.Context(resources)
    part = np.s_[...]
    chunks = repeats * volume.nbytes // (2 * int(np.prod(cost_format.chunk)))
    if read == CROP:
        part, chunks = tuple(slice(n // 2, n // 2 + n) for n in cost_format.chunk), 8
    device, times, counted = NullDevice(), [], {}
    with opened(device) as name:
        store = gpustore.open(
            spec, context=context, device=name, recheck_cached_data=False
        ).result()

        def once():
            device.operations.clear()
            begin = time.process_time(), time.thread_time(), time.perf_counter()
            future = store[part].read()
            future.result()
            end = time.process_time(), time.thread_time(), time.perf_counter()
            times.append([b - a for a, b in zip(begin, end)])
            counted.clear()
            counted.update(future.statistics.snapshot())

        for _ in range(2):  # The first read takes the memory that is kept.
            once()
        rounds = max(3, min(MOST_ROUNDS, int(ROUNDS_S / times[1][2])))
        calls = python_calls(once) if read == CROP else ""
        times.clear()
        for spent in parts.values():
            spent.clear()
        benchmark.pedantic(once, rounds=rounds, iterations=1)
    assert counted.get("retries", 0) == counted.get("host_fallbacks", 0) == device.unread == 0
    cpu, caller, wall = map(statistics.median, zip(*times))
    files, room = 0.0, np.ones(ROOM_NBYTES, np.uint8).data
    if read in REPEATS:
        files = statistics.median(system_s(path, room) for _ in range(3))
    submissions = len(parts["recording"]) // (2 * rounds)
    core, recording = (sum(spent) / rounds for spent in parts.values())
    figures = [
        f"{cpu / chunks * 1e6:.1f}",
        f"{(cpu - core) / chunks * 1e6:.2f}",
        f"{files / chunks * 1e6:.1f}" if read in REPEATS else "",
        f"{caller / chunks * 1e6:.1f}",
        f"{(cpu - files) / max(1, submissions) * 1e3:.2f}",
        f"{recording / max(1, submissions) * 1e3:.2f}",
        f"{wall * 1e3:.2f}",
        submissions,
    ]
    figures += [counted.get(head, 0) for head in HEADS[-4:-1]]
    figures.append(calls)
    benchmark.extra_info.update(zip(HEADS[3:], figures))
    rows.append([cost_format, read, chunks, *figures])
