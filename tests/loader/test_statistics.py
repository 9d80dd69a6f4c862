"""Statistics of loaders: counts are those of the reads, the stage that is busy longest limits."""

import json
import os
import pickle
import re

import numpy as np
import pytest

import gpustore
from gpustore.loader import PatchLoader, RandomPatches, statistics
from gpustore.loader.statistics import limiting_stage
from tests.emulator import host_build
from tests.on_device import emulated

SHAPE = (32, 32, 32)


def stored(values, context=None, **options):
    store = gpustore.open(
        "memory://statistics/|zarr3:",
        create=True,
        delete_existing=True,
        dtype="uint16",
        shape=SHAPE,
        chunks=(8, 8, 8),
        codec="zstd",
        context=context or gpustore.Context(),
        **options,
    ).result()
    store[: len(values)].write(values).result()
    return store


@pytest.fixture(scope="module")
def values():
    return np.arange(np.prod(SHAPE), dtype="uint16").reshape(SHAPE) // 7


def loader_of(store, **options):
    sampler = RandomPatches((9, 9, 9), per_epoch=200, window=20_000)
    return PatchLoader(store, sampler=sampler, batch_size=8, **options)


def run(loader):
    for _ in loader:
        pass
    return loader.stats()


def test_all_entries_are_described_one_by_one(values):
    found = run(loader_of(stored(values)))
    assert re.findall(r"^ +``(\w+)`` : ", PatchLoader.stats.__doc__, re.MULTILINE) == [*found]
    assert json.loads(json.dumps(found)) == found


def test_counts_are_those_of_the_reads(values):
    loader = loader_of({"a": stored(values), "b": stored(values[:16])})
    before = dict(gpustore.statistics.snapshot())
    run(loader)
    found = run(loader)
    done = {name: n - before.get(name, 0) for name, n in gpustore.statistics.snapshot().items()}
    assert found["bytes_read"] == done["bytes_fetched"]
    assert found["bytes_decoded"] == done["bytes_decoded"]
    assert found["chunks_missing"] == done["chunks_missing"] > 0
    assert found["chunks_decoded"] == done["chunks_planned"] - done["chunks_missing"]
    # Both epochs touch all chunks of both arrays.
    assert found["decodes_per_chunk"] == done["chunks_planned"] / (2 * 2 * 4**3)
    assert (found["batches"], found["patches"]) == (50, 400)


def test_chunks_in_a_cache_are_not_decoded(values):
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 10**7}})
    loader = loader_of(stored(values[:16], context), memory="160 kB")  # Too little for all of it.
    run(loader)
    found = run(loader)
    assert found["chunks_decoded"] == 2 * 4 * 4
    assert found["chunks_cached"] > 2 * 4 * 4 < found["chunks_missing"]
    assert found["decodes_per_chunk"] > 1


def test_arrays_in_memory_have_no_chunks(values):
    found = run(loader_of(gpustore.array(values)))
    assert (found["chunks_decoded"], found["decodes_per_chunk"], found["patches"]) == (0, 0, 200)


def test_other_processes_count_what_they_do(values, tmp_path):
    loader = loader_of(gpustore.save(str(tmp_path), values, chunks=(8, 8, 8)))
    run(loader)
    assert pickle.loads(pickle.dumps(loader)).stats()["patches"] == 0
    child = os.fork()
    if child == 0:
        os._exit(loader.stats()["patches"] == 0 and run(loader)["patches"] == 200)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert loader.stats()["patches"] == 200


def test_nothing_limits_before_the_first_batch(values):
    assert loader_of(stored(values)).stats()["limited_by"] is None


class CountedClock:
    """Clock that goes on by a millisecond when it is looked at, or as it is told to."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += 0.001
        return self.now

    thread_time = process_time = perf_counter


def test_a_slow_program_limits(values, monkeypatch):
    clock = CountedClock()
    monkeypatch.setattr(statistics, "time", clock)

    def use(batch):
        clock.now += 1

    # Without threads that look at the clock meanwhile.
    loader = loader_of(gpustore.array(values), transform=use, prefetch=0)
    found = run(loader)
    assert found["limited_by"] == "consumer"
    assert 25 < found["used_s"] < 25.1


@pytest.mark.parametrize(
    ("stage", "changed"),
    [
        ("storage", {"stalled_cpu_s": 0.5}),
        ("storage", {"bytes_decoded": 1000}),
        ("decode", {}),
        ("cut", {"plan_s": 4.0, "plan_cpu_s": 4.0, "cut_s": 4.0}),
        ("decode", {"plan_s": 9.0, "used_s": 15.0}),
        ("cut", {"convert_s": 8.0}),
        ("consumer", {"used_s": 8.0}),
        (
            None,
            {
                "read_s": 0.0,
                "plan_s": 0.0,
                "plan_cpu_s": 0.0,
                "cut_s": 0.0,
                "convert_s": 0.0,
                "used_s": 0.0,
            },
        ),
    ],
)
def test_the_stage_that_was_busy_longest_limits(stage, changed):
    found = {
        **{"read_s": 7.0, "plan_s": 0.1, "cut_s": 3.0, "convert_s": 1.0, "used_s": 4.0},
        **{"bytes_read": 1000, "bytes_decoded": 3000, "stalled_s": 5.0, "stalled_cpu_s": 4.0},
        "plan_cpu_s": 0.1,
    }
    assert limiting_stage(found | changed) == stage


def test_less_cpu_time_is_expected_where_other_processes_have_it():
    found = {"read_s": 9.0, "plan_s": 0.0, "plan_cpu_s": 0.0, "cut_s": 1.0, "convert_s": 0.0}
    found |= {"used_s": 0.0, "stalled_s": 5.0, "stalled_cpu_s": 0.5}
    found |= {"bytes_read": 1000, "bytes_decoded": 4000}
    assert [limiting_stage(found, share) for share in (1.0, 0.2)] == ["storage", "decode"]


@pytest.mark.skipif(host_build.COMPILER is None, reason="no C++ compiler")
def test_on_a_device_the_same_is_counted_and_explained(values, tmp_path):
    store = gpustore.save(str(tmp_path), values, chunks=(8, 8, 8), codec="zstd")
    expected = run(loader_of(store, memory="160 kB"))  # Too little for the array to stay.
    with emulated() as device:
        there = gpustore.open(store.spec(), device=device.name).result()
        with loader_of(there, to="cupy") as loader:
            explained = loader.explain()
            found = run(loader)
        del there, loader
    # Not bytes: chunks that two windows under way want may be decoded once.
    names = "batches", "patches", "windows", "chunks_decoded", "decodes_per_chunk"
    assert {name: found[name] for name in names} == {name: expected[name] for name in names}
    assert explained.chunks_decoded == found["chunks_decoded"]
    assert explained.bytes_read >= found["bytes_read"]
