"""Reads by the native core: which error they raise."""

import os
import threading
from functools import partial

import numpy as np
import pytest

from gpustore.backends.host.memory import memory_of
from gpustore.backends.native.library import library
from gpustore.kvstores.base import KeyDirectory
from gpustore.kvstores.kvstore import KvStore
from gpustore.pipelines.native_read import NativeRead
from gpustore.planning import chunk_plan
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.statistics import Operation, attributed
from tests.pipelines.arrays import make_array, whole

pytestmark = pytest.mark.skipif(library() is None, reason="no native core")

ROWS = 4


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A function that makes the read of five tables of damaged chunks, for a number of threads."""
    monkeypatch.setattr(chunk_plan, "WINDOW_ROWS", ROWS)
    monkeypatch.setattr(chunk_plan, "TABLE_LISTED", 0)
    for i in range(5 * ROWS):
        (tmp_path / str(i)).write_bytes(b"?")
    store = KvStore.open(f"file://{tmp_path}/").result().driver
    array = make_array((5 * ROWS,), (1,), store=store, key_prefix="")
    out = memory_of(np.zeros(array.shape, "u2"))
    [(_, plan)] = array.plans(whole(array), out.strides)

    def begin(threads, read_left):
        tables = plan.tables(threads, ROWS)
        strides = [plan.src_stride], [plan.dst_stride]
        directory = partial(directory_of, tmp_path)
        return NativeRead(array.native, tables, strides, [out], directory, threads, read_left)

    return begin


def directory_of(folder):
    return KeyDirectory(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), 0, b"", bytes)


def run(reading, threads):
    """Run a read in threads; the errors that they raise."""
    errors = []

    def work():
        try:
            reading.work()
        except Exception as error:
            errors.append(str(error))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    return errors


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_error_is_that_of_the_first_table(begun, threads):
    """Also if a later one fails before it; tables behind it are not begun."""
    later = threading.Event()
    failed = []

    def read_left(table, rows):
        first = int(table.columns().cells[0][0])
        assert len(rows) == ROWS
        if first == 0 and threads > 1:
            assert later.wait(20)
        failed.append(first)
        later.set()
        raise ValueError(f"table {first // ROWS}")

    assert run(begun(threads, read_left), threads) == ["table 0"]
    assert len(failed) <= threads
    assert 0 in failed


def test_what_python_can_read_ends_the_read(begun):
    found = []
    reading = begun(2, lambda table, rows: found.append(int(table.columns().cells[0][0])))
    assert run(reading, 2) == []
    assert sorted(found) == [i * ROWS for i in range(5)]


def test_bytes_are_counted_while_the_core_reads(tmp_path, monkeypatch):
    """A slice of time ends after a quarter of a table."""
    monkeypatch.setattr("gpustore.backends.native.job.SLICE_NS", 1)
    for i in range(32):
        (tmp_path / str(i)).write_bytes(bytes([i, 0]))
    store = KvStore.open(f"file://{tmp_path}/").result().driver
    array = make_array((32,), (1,), store=store, key_prefix="")
    out = np.zeros(array.shape, "u2")
    [(_, plan)] = array.plans(whole(array), memory_of(out).strides)
    one, seen = Operation(), []

    def make():
        tables, strides = plan.tables(1, 16), ([plan.src_stride], [plan.dst_stride])
        directory = partial(directory_of, tmp_path)
        return NativeRead(array.native, tables, strides, [memory_of(out)], directory, 1, None)

    def is_cancelled():
        seen.append(one["bytes_decoded"])

    reading = attributed(one, make)
    attributed(one, lambda: CancelToken(is_cancelled).during(reading.work))
    assert out.tolist() == list(range(32))
    assert sorted({*seen}) == [16, 32, 48, 64]
    assert one.snapshot() == {"bytes_decoded": 64, "bytes_fetched": 64, "key_reads": 32}
