"""The core leaves rows alone whose numbers or names are impossible, and touches nothing."""

import os
from array import array as numbers

import numpy as np
import pytest

from gpustore.backends.host.memory import memory_of
from gpustore.backends.native.library import library
from gpustore.backends.native.write_job import DONE, MISSING, UNTOUCHED, WriteJob
from gpustore.kvstores.kvstore import KvStore
from gpustore.planning.window import PlanWindow
from gpustore.runtime.cancel_token import CancelToken
from tests.pipelines.arrays import make_array

pytestmark = pytest.mark.skipif(library() is None, reason="no native core")

NOT_DONE = 3
WANTED = CancelToken()
UNWANTED = CancelToken(lambda: True, numbers("b", b"\1"))


def on_disk(shape, **changes):
    """An array of one chunk that would lie in a file."""
    store = KvStore.open("file:///nowhere/").result().driver
    return make_array(shape, shape, store=store, key_prefix="/nowhere/", **changes)


def job_of(folder, *, encoded=None, **changes):
    """A job of one chunk of 4 x 6 elements; the array has as many."""
    array = on_disk((4, 6))
    values = np.arange(1, 25, dtype="u2").reshape(4, 6)
    row = {
        "cells": ([0], [0]),
        "src_start": [0],
        "dst_start": [0],
        "count": ([4], [6]),
        "whole": [True],
        "src_stride": (12, 2),
        "dst_stride": (12, 2),
        "keys": ["c/0"],
        **changes,
    }
    job = WriteJob(
        array.native_encoding, PlanWindow(**row), memory_of(values), syncs=True, encoded=encoded
    )
    job.directory[0] = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    return job, values


def test_a_row(tmp_path):
    job, values = job_of(tmp_path)
    assert not job.find_fill(WANTED)
    assert list(job.status) == [UNTOUCHED]
    job.take(0, 1)
    assert not job.write(WANTED)
    assert list(job.status) == [DONE]
    assert list(job.stored) == [values.nbytes]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"0": values.tobytes()}
    os.close(job.directory[0])


def test_a_cancelled_write_stops(tmp_path):
    job, _ = job_of(tmp_path)
    assert job.find_fill(UNWANTED)
    assert job.write(UNWANTED)
    assert list(job.status) == [UNTOUCHED]
    assert list(tmp_path.iterdir()) == []
    os.close(job.directory[0])


def test_encoding_into_memory(tmp_path):
    """As far as there is room for whole values."""
    job, values = job_of(tmp_path)
    os.close(job.directory[0])
    for room in range(values.nbytes + 20):
        memory = np.full(room + 16, 0xA5, np.uint8)
        job, values = job_of(tmp_path, encoded=memory[:room])
        os.close(job.directory[0])
        assert not job.encode(WANTED)
        if room < values.nbytes:
            assert list(job.status) == [NOT_DONE]
            assert (memory == 0xA5).all()
        else:
            assert (list(job.status), list(job.at)) == ([DONE], [0])
            assert list(job.stored) == [values.nbytes]
            assert memory[: values.nbytes].tobytes() == values.tobytes()
            assert (memory[values.nbytes :] == 0xA5).all()


def test_a_cancelled_encoding_stops(tmp_path):
    job, _ = job_of(tmp_path, encoded=np.empty(99, np.uint8))
    assert job.encode(UNWANTED)
    assert list(job.status) == [UNTOUCHED]
    os.close(job.directory[0])


IMPOSSIBLE = {
    "a chunk that is too short": {"src_start": [2]},
    "before the chunk": {"src_start": [-2]},
    "beyond the array": {"dst_start": [2]},
    "before the array": {"dst_start": [-2]},
    "too many": {"count": ([5], [6])},
    "far too many": {"count": ([1 << 40], [6])},
    "none": {"count": ([0], [6])},
    "fewer than none": {"count": ([-1], [6])},
    "backwards out of the chunk": {"src_stride": (-12, 2)},
    "backwards out of the array": {"dst_stride": (12, -2)},
    "elements upon each other": {"src_stride": (0, 2)},
    "a name of another directory": {"keys": ["c/.."]},
    "this directory": {"keys": ["c/."]},
    "no name": {"keys": ["c/"]},
    "a long name": {"keys": ["c/" + 250 * "n"]},
}


@pytest.mark.parametrize("changes", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_rows_are_left_alone(tmp_path, changes):
    (tmp_path / "inside").mkdir()
    job, _ = job_of(tmp_path / "inside", **changes)
    job.find_fill(WANTED)
    job.take(0, 1)
    job.write(WANTED)
    assert list(job.status) == [NOT_DONE]
    assert [path.name for path in tmp_path.rglob("*")] == ["inside"]
    os.close(job.directory[0])


@pytest.mark.parametrize("descriptor", [-1, 1 << 20], ids=["none", "closed"])
def test_a_directory_that_is_not_open(tmp_path, descriptor):
    job, _ = job_of(tmp_path)
    os.close(job.directory[0])
    job.directory[0] = descriptor
    job.write(WANTED)
    assert list(job.status) == [NOT_DONE]


def test_a_directory_that_was_removed(tmp_path):
    folder = tmp_path / "inside"
    folder.mkdir()
    job, _ = job_of(folder)
    folder.rmdir()
    job.write(WANTED)
    assert list(job.status) == [NOT_DONE]
    os.close(job.directory[0])


@pytest.mark.parametrize("value", [0, 7])
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "f8", "c16"])
@pytest.mark.parametrize("step", [1, 3, -1])
def test_a_chunk_that_is_all_fill_value(dtype, value, step):
    """Also where the last element alone is another."""
    fill = np.array(value, dtype)
    name = np.dtype(dtype).name
    array = on_disk((3000,), dtype=name, fill_value=fill, blank=fill)
    for other in (False, True):
        values = np.full(3000 * abs(step), value, dtype)[::step]
        values[-1] += other
        memory = memory_of(values)
        row = {"cells": ([0],), "src_start": [0], "dst_start": [0], "count": ([3000],)}
        row |= {"whole": [True], "keys": ["c/0"]}
        row |= {"src_stride": (values.itemsize,), "dst_stride": values.strides}
        job = WriteJob(array.native_encoding, PlanWindow(**row), memory, syncs=False)
        job.find_fill(WANTED)
        assert list(job.status) == [UNTOUCHED if other else MISSING]
