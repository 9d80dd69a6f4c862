"""Databases that several processes write at the same time, and writers that are killed."""

import json
import random
import signal
from pathlib import Path

import pytest
import tensorstore as ts

from gpustore.kvstores.kvstore import KvStore
from tests.killed_process import deaths, needs_compiler, start
from tests.kvstores.processes import run_together

WORKER = str(Path(__file__).with_name("ocdbt_worker.py"))
MODULE = "tests.kvstores.ocdbt.ocdbt_worker"
LIBRARIES = ("gpustore", "tensorstore")


def open_both(path, **members):
    spec = {"driver": "ocdbt", "base": f"file://{path}/", **members}
    return KvStore.open(spec).result(), ts.KvStore.open(spec).result()


def items(store):
    return {key: store[key] for key in store.list().result()}


def check_concurrent(path, kind, libraries, count):
    """Nothing is lost, generations have no gaps, and each version adds to the one before."""
    config = {"manifest_kind": kind, "max_decoded_node_bytes": 400, "version_tree_arity_log2": 2}
    commands = [
        (WORKER, "commit", library, f"{path}/", json.dumps(config), f"{library}{i}", count)
        for i, library in enumerate(libraries)
    ]
    run_together(*commands, timeout=300)
    wanted = {b"n": b"%d" % (count * len(libraries))}
    for i, library in enumerate(libraries):
        for j in range(count):
            wanted[b"%s%d/%d" % (library.encode(), i, j)] = b"%d" % j
            wanted[b"%s%d/long/%d" % (library.encode(), i, j)] = b"%d" % j * 200
    ours, theirs = open_both(path)
    assert items(ours) == items(theirs) == wanted
    last = ours.driver._version().generation
    # Each writer makes two commits in each round, and each of them may be beaten to it.
    assert 2 <= last <= 1 + 2 * count * len(libraries)
    sizes, times = [], []
    for generation in range(1, last + 1):
        version = open_both(path, version=generation)[0].driver._version()
        assert version.generation == generation
        sizes.append(version.totals.num_keys)
        times.append(version.commit_time)
    assert sizes == sorted(sizes)
    assert times == sorted(set(times))


@pytest.mark.matrix("costly")
def test_processes_of_both_lose_nothing(tmp_path):
    check_concurrent(tmp_path, "single", LIBRARIES, 5)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["single", "numbered"])
def test_processes_of_both_lose_nothing_long(tmp_path, kind):
    check_concurrent(tmp_path, kind, 2 * LIBRARIES, 20)


def check_killed(path, kind, count):
    """After each death the last commit is there whole, and others go on from it."""
    config = json.dumps({"manifest_kind": kind, "max_decoded_node_bytes": 400})
    last = 0
    for i in deaths(MODULE, "overwrite", f"{path}/", config, kills=count, most=40, seed=1):
        ours, theirs = open_both(path)
        found = items(ours)
        assert found == items(theirs)
        if b"a" in found:
            assert found[b"b"] == found[b"a"] * 1000
            generation = ours.driver._version().generation
            assert generation >= last
            last = generation
            (theirs if i % 2 else ours)["other"] = b"%d" % i
            assert open_both(path)[1 - i % 2]["other"] == b"%d" % i
            assert ours.driver._version().generation == generation + 1
    assert last


@needs_compiler
@pytest.mark.long
@pytest.mark.parametrize("kind", ["single", "numbered"])
def test_killed_writers_leave_the_last_commit(tmp_path, kind):
    check_killed(tmp_path, kind, 30)


@needs_compiler
@pytest.mark.long
@pytest.mark.parametrize("kind", ["single", "numbered"])
def test_writers_continue_after_a_killed_tensorstore(tmp_path, kind):
    moments = random.Random(2)
    config = json.dumps({"manifest_kind": kind})
    generation = 0
    for i in range(6):
        moment = moments.randrange(1, 40)
        with start(MODULE, "overwrite_tensorstore", f"{tmp_path}/", config, moment) as worker:
            assert worker.wait(timeout=60) == -signal.SIGKILL
        ours, theirs = open_both(tmp_path)
        found = items(ours)
        assert found == items(theirs)
        if b"a" in found:
            assert found[b"b"] == found[b"a"] * 1000
        ours["other"] = b"%d" % i
        assert open_both(tmp_path)[1]["other"] == b"%d" % i
        version = ours.driver._version()
        assert version.generation > generation
        generation = version.generation
