"""Options, and the fixtures that every benchmark shares."""

import os
import time

import numpy as np
import pytest

from benchmarks.formats import FORMATS, PLANE_FORMATS, READ_FORMATS, SHAPE
from benchmarks.peers import PEERS, TensorStorePeer
from gpustore.cli.volume import make_volume

collect_ignore = ["gpu", "gpu_report.py"]
"""No benchmarks for pytest, and their doctests would need the libraries of a GPU."""


def pytest_addoption(parser):
    group = parser.getgroup("gpustore benchmarks")
    group.addoption("--threads", type=int, default=2, help="threads for every peer (default: 2)")
    group.addoption("--peer", action="append", choices=[*PEERS], help="only this one; repeatable")


def pytest_xdist_auto_num_workers():
    """None: measurements share no machine with others."""
    return 0


def pytest_configure(config):
    threads = config.getoption("--threads")
    # Read once, when zarrs is first imported.
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[:threads])


def pytest_generate_tests(metafunc):
    if "peer" in metafunc.fixturenames:
        names = metafunc.config.getoption("--peer") or [*PEERS]
        metafunc.parametrize("peer", names, indirect=True)
    if "array_format" in metafunc.fixturenames:
        metafunc.parametrize("array_format", FORMATS, ids=str)
    if "read_format" in metafunc.fixturenames:
        metafunc.parametrize("read_format", READ_FORMATS, ids=str)
    if "plane_format" in metafunc.fixturenames:
        metafunc.parametrize("plane_format", PLANE_FORMATS, ids=str)


def pytest_collection_modifyitems(items):
    """Run the peers of a row one after the other: all of them meet the machine in one state."""
    first = {}

    def place(item):
        parts = getattr(item, "callspec", None)
        rest = {name: str(value) for name, value in parts.params.items()} if parts else {}
        rest.pop("peer", None)
        row = item.path, item.originalname, *rest.values()
        return first.setdefault(row, len(first))

    items.sort(key=place)


@pytest.fixture
def peer(request):
    made = PEERS[request.param](request.config.getoption("--threads"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def volume():
    """What a microscope would take, as in `gpustore demo`."""
    return make_volume(SHAPE, 0, advance=lambda nbytes: None)


@pytest.fixture(scope="session")
def stored(tmp_path_factory, volume):
    """Give the folder of the volume in a format, written by TensorStore once."""
    folder = tmp_path_factory.mktemp("stored")
    writer = TensorStorePeer(threads=2)

    def path_of(array_format):
        path = folder / str(array_format)
        if not path.exists():
            writer.write(writer.create(path, array_format, volume.shape), volume)
        return path

    return path_of


ROUNDS_S = 0.5
"""Seconds of the rounds of one cell, a round for warming up left out."""


@pytest.fixture
def measure(benchmark, request):
    """Run in rounds, note the speed, and return the last result.

    Without `rounds` there are 9 to 25 of them, as many as fill half a second, and one round where
    it takes more than 2 s. The result of a round is kept until the next has ended, so that some
    rounds, the calls before them aside, may meet memory that the process did not have: of five
    rounds three did, and their median was the time of these.
    """

    def run(function, *, nbytes, setup=None, rounds=None):
        # One table for each operation and format, one row for each peer.
        parts = request.node.callspec.params
        rest = [str(value) for name, value in parts.items() if name != "peer"]
        benchmark.group = " ".join([request.function.__name__, *rest])
        warmup_rounds = 1
        if rounds is None:
            args, kwargs = setup() if setup else ((), {})
            begin = time.perf_counter()
            function(*args, **kwargs)
            seconds = time.perf_counter() - begin
            rounds = 1 if seconds > 2 else max(9, min(25, int(ROUNDS_S / seconds)))
            warmup_rounds = 0
        result = benchmark.pedantic(
            function, setup=setup, rounds=rounds, iterations=1, warmup_rounds=warmup_rounds
        )
        benchmark.extra_info["nbytes"] = nbytes
        if benchmark.stats is not None:
            benchmark.extra_info["GB_per_s"] = nbytes / benchmark.stats.stats.median / 1e9
        return result

    return run


def random_boxes(shape, extent, count):
    """Boxes inside `shape`, the same in every run, seldom aligned with chunks."""
    rng = np.random.default_rng(0)
    starts = rng.integers(0, np.subtract(shape, extent) + 1, (count, len(shape)))
    return [
        tuple(slice(int(a), int(a) + e) for a, e in zip(start, extent, strict=True))
        for start in starts
    ]
