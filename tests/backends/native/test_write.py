"""The core lays regions over chunks. It leaves rows alone whose numbers or names are impossible, or
under which a damaged value lies, and touches nothing."""

import os
from array import array as numbers

import numpy as np
import pytest

from gpustore.backends.base import Layer
from gpustore.backends.host.memory import memory_of
from gpustore.backends.native.library import library
from gpustore.backends.native.write_job import (
    DONE,
    MISSING,
    STORED,
    UNTOUCHED,
    WriteJob,
    WrittenRows,
)
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


def job_of(folder, *, under=(), mask=None, encoded=None, **changes):
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
    rows = WrittenRows.of_window(Layer(PlanWindow(**row), memory_of(values), mask))
    keys = row["keys"]
    job = WriteJob(array.native_encoding, rows, under, keys=keys, syncs=True, encoded=encoded)
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


def test_a_row_over_a_file(tmp_path):
    """The file is read under its lock; without one the rest of the chunk is blank."""
    part = {"src_start": [14], "dst_start": [14], "count": ([2], [3]), "whole": [False]}
    stored = np.arange(50, 74, dtype="u2").reshape(4, 6)
    for below in (stored, np.zeros((4, 6), "u2")):
        if below is stored:
            (tmp_path / "0").write_bytes(stored.tobytes())
        job, values = job_of(tmp_path, under=[STORED], **part)
        assert not job.write(WANTED)
        assert (list(job.status), job.fetched) == ([DONE], (1, 48 if below.any() else 0))
        expected = below.copy()
        expected[1:3, 1:4] = values[1:3, 1:4]
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
            "0": expected.tobytes()
        }
        (tmp_path / "0").unlink()
        os.close(job.directory[0])


def test_a_damaged_file_is_left_alone(tmp_path):
    for damage in (b"", bytes(47), bytes(49), bytes(1000)):
        (tmp_path / "0").write_bytes(damage)
        job, _ = job_of(tmp_path, under=[STORED], count=([4], [5]))
        assert not job.write(WANTED)
        assert list(job.status) == [NOT_DONE]
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"0": damage}
        os.close(job.directory[0])


def test_several_regions_over_a_value(tmp_path):
    """Later ones over earlier ones, of arrays of other ranks, and with a mask."""
    array = on_disk((4, 6))
    below = np.arange(50, 74, dtype="u2").reshape(4, 6)
    rows = {"cells": ([0], [0]), "whole": [False], "keys": ["0"], "dst_start": [0]}
    one, two = np.full((2, 3), 1, "u2"), np.full(3, 2, "u2")
    three, mask = np.full(24, 3, "u2"), np.arange(24) % 5 == 0
    layers = [
        Layer(
            PlanWindow(
                **rows, src_start=[0], count=([2], [3]), src_stride=(12, 2), dst_stride=(6, 2)
            ),
            memory_of(one),
        ),
        Layer(
            PlanWindow(**rows, src_start=[12], count=([3],), src_stride=(2,), dst_stride=(2,)),
            memory_of(two),
        ),
        Layer(
            PlanWindow(**rows, src_start=[0], count=([24],), src_stride=(2,), dst_stride=(2,)),
            memory_of(three),
            mask,
        ),
    ]
    expected = below.copy()
    expected[:2, :3] = 1
    expected[1, :3] = 2
    expected.ravel()[mask] = 3
    encoded = np.empty(48, np.uint8)
    chunks = WrittenRows.of_chunks([(layers, 0)])
    job = WriteJob(array.native_encoding, chunks, [below.tobytes()], encoded=encoded)
    assert not job.encode(WANTED)
    assert list(job.status) == [DONE]
    assert encoded.tobytes() == expected.tobytes()
    zeros = [layer._replace(source=memory_of(0 * layer.source.array)) for layer in layers]
    blank = WrittenRows.of_chunks([(zeros, 0)])
    for drops_fill, status in ((True, MISSING), (False, DONE)):
        options = {"drops_fill": drops_fill, "encoded": encoded}
        job = WriteJob(array.native_encoding, blank, [bytes(48)], **options)
        assert not job.encode(WANTED)
        assert list(job.status) == [status]
    for damaged in (b"", bytes(47), bytes(49)):
        job = WriteJob(array.native_encoding, chunks, [damaged], encoded=encoded)
        assert not job.encode(WANTED)
        assert list(job.status) == [NOT_DONE]


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
    "a mask with gaps": {"mask": np.ones(24, bool), "src_stride": (12, 1)},
    "a name of another directory": {"keys": ["c/.."]},
    "this directory": {"keys": ["c/."]},
    "no name": {"keys": ["c/"]},
    "a long name": {"keys": ["c/" + 250 * "n"]},
}


@pytest.mark.parametrize("under", [(), [STORED]], ids=["", "over a file"])
@pytest.mark.parametrize("changes", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_rows_are_left_alone(tmp_path, changes, under):
    (tmp_path / "inside").mkdir()
    job, _ = job_of(tmp_path / "inside", under=under, **changes)
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
        rows = WrittenRows.of_window(Layer(PlanWindow(**row), memory))
        job = WriteJob(array.native_encoding, rows)
        job.find_fill(WANTED)
        assert list(job.status) == [UNTOUCHED if other else MISSING]
