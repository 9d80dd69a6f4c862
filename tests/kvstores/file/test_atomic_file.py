"""Temporary files, killed writers and what is left of them."""

import os
import re
import subprocess
import time

import pytest
import tensorstore

from gpustore.kvstores.columns import ABSENT
from gpustore.kvstores.file import directory as directories
from gpustore.kvstores.file.atomic_file import TemporaryFile, _origin_tag, clean_up
from gpustore.kvstores.kvstore import KvStore
from tests.killed_process import deaths, needs_compiler


@pytest.fixture
def directory(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@needs_compiler
@pytest.mark.matrix("costly")
@pytest.mark.slow
def test_killed_writers_leave_a_whole_value_and_their_traces_go(tmp_path):
    traces = 0
    worker = "tests.kvstores.file.worker"
    for _ in deaths(worker, "overwrite", f"{tmp_path}/", "os", kills=30, most=20, seed=1):
        traces += sum(name.endswith("__lock") for name in os.listdir(tmp_path))
        if (tmp_path / "v").exists():
            value = (tmp_path / "v").read_bytes()
            nbytes = (1 << 20) if int(value[:9]) % 2 else 1000
            assert value == value[:10] * (nbytes // 10)
    assert traces
    directories._cleaned.clear()
    store = KvStore.open(f"{tmp_path}/").result()
    store["w"] = b"1"
    store["v"] = b"short"
    assert sorted(os.listdir(tmp_path)) == ["v", "w"]
    assert store["v"] == b"short"


def test_temporary_file_is_unique_and_hidden(directory, tmp_path):
    with TemporaryFile(directory, "a", (b"1",), sync=False):
        with TemporaryFile(directory, "a", (b"2",), sync=False) as second:
            names = os.listdir(tmp_path)
            assert len(names) == 2
            assert all(re.fullmatch(r"a\.\d+-[0-9a-f]{16}\.__lock", name) for name in names)
            second.rename()
        assert len(os.listdir(tmp_path)) == 2
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"2"


def test_only_traces_of_the_dead_are_removed(directory, tmp_path):
    tag = _origin_tag()
    other = "0" * 8 if tag != "0" * 8 else "1" * 8
    dead, alive = dead_pid(), os.getpid()
    keep = [
        f"a.{alive}-{tag}00000000.__lock",
        f"a.{dead}-{other}00000000.__lock",
        "a.partial",
        "b",
    ]
    remove = [f"a.{dead}-{tag}00000000.__lock", f"a.{dead}-{other}00000001.__lock", "c.__lock"]
    for name in keep + remove:
        (tmp_path / name).write_bytes(b"")
    os.utime(tmp_path / remove[1], (1e9, 1e9))
    assert clean_up(directory, remove_locks=True) == 3
    assert sorted(os.listdir(tmp_path)) == sorted(keep)


def test_locks_stay_where_their_existence_is_the_lock(directory, tmp_path):
    (tmp_path / "a.__lock").write_bytes(b"")
    assert clean_up(directory, remove_locks=False) == 0
    assert os.listdir(tmp_path) == ["a.__lock"]


def test_time_of_a_file_is_finer_than_the_clock_of_old_kernels(directory, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time_ns", lambda: 1_234_567_891_234_567_891)
    with TemporaryFile(directory, "a", (b"1",), sync=False) as file:
        file.rename()
    assert file.status.st_mtime_ns == 1_234_567_891_234_567_891


def test_versions_differ_even_if_inode_and_size_are_the_same(tmp_path):
    # Without an exact time, some of many writes within one tick of the clock would look alike.
    store = KvStore.open({"driver": "file", "path": f"{tmp_path}/", "file_io_sync": False}).result()
    generations = [store.write("a", b"%03d" % i).result().generation for i in range(200)]
    assert len(set(generations)) == 200


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_killed_conditional_write_leaves_nothing_in_the_lock_file(tmp_path):
    """TensorStore writes into a lock file that it finds, and does not cut off what is behind."""
    store = KvStore.open(f"file://{tmp_path}/").result()
    child = os.fork()
    if child == 0:
        os.rename = lambda *arguments, **names: os._exit(0)
        store.write("a", bytes(100), if_equal=ABSENT).result()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (tmp_path / "a.__lock").exists()
    tensorstore.KvStore.open(f"file://{tmp_path}/").result().write("a", b"short").result()
    assert store["a"] == b"short"
