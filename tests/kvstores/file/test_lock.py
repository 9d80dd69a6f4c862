"""The lock protocol, together with other processes and with TensorStore."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpustore.errors import StoreIOError
from gpustore.kvstores.file.linked_lock import WHOLE_FILE
from gpustore.kvstores.file.lock import hold, remove_abandoned
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.processes import run_together

WORKER = Path(__file__).with_name("worker.py")


def open_file(path, **options):
    return KvStore.open({"driver": "file", "path": f"{path}/", **options}).result()


@pytest.fixture
def directory(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.mark.matrix("costly")
@pytest.mark.slow
def test_processes_of_both_libraries_lose_no_increment(tmp_path):
    store = open_file(tmp_path)
    store["n"] = b"0"
    libraries = ["gpustore", "gpustore", "gpustore", "tensorstore"]
    count = 100
    run_together(*((WORKER, "increment", library, f"{tmp_path}/", count) for library in libraries))
    assert store["n"] == b"%d" % (count * len(libraries))
    assert os.listdir(tmp_path) == ["n"]


def test_stale_lock_file_does_not_lengthen_a_shorter_value(tmp_path):
    store = open_file(tmp_path)
    (tmp_path / "a.__lock").write_bytes(b"x" * 1000)
    store["a"] = b"new"
    assert (tmp_path / "a").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("change", ["write", "delete", "write_if"])
def test_waiting_writer_notices_that_the_lock_file_became_the_value(tmp_path, change):
    # As TensorStore does: lock, write into the lock file, rename it onto the key.
    store = open_file(tmp_path)
    store["a"] = b"old"
    generation = store.read("a").result().stamp.generation
    lock = os.open(tmp_path / "a.__lock", os.O_RDWR | os.O_CREAT)
    fcntl.fcntl(lock, fcntl.F_OFD_SETLKW, WHOLE_FILE)
    os.write(lock, b"theirs")
    if change == "write":
        future = store.write("a", b"ours")
    elif change == "delete":
        future = store.write("a", None)
    else:
        future = store.write("a", b"ours", if_equal=generation)
    waiting = threading.Event()
    waiting.wait(0.05)
    assert not future.done()
    os.rename(tmp_path / "a.__lock", tmp_path / "a")
    os.close(lock)
    result = future.result(timeout=60).generation
    if change == "write":
        assert store["a"] == b"ours"
    elif change == "delete":
        assert "a" not in store
    else:
        assert result == b""
        assert store["a"] == b"theirs"
    assert not [name for name in os.listdir(tmp_path) if name.endswith("__lock")]


def test_lock_excludes_other_open_files(directory, tmp_path):
    with hold(directory, "a", key="a", mode="os", timeout_s=1):
        other = os.open(tmp_path / "a.__lock", os.O_RDWR)
        with pytest.raises(OSError, match="unavailable"):
            fcntl.fcntl(other, fcntl.F_OFD_SETLK, WHOLE_FILE)
        os.close(other)
    assert os.listdir(tmp_path) == []


def test_new_lock_file_can_become_the_key(directory, tmp_path):
    with hold(directory, "a", key="a", mode="os", timeout_s=1) as lock:
        assert os.listdir(tmp_path) == ["a.__lock"]
        os.write(lock.descriptor, b"1")
        lock.rename("a")
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"1"
    with hold(directory, "a", key="a", mode="os", timeout_s=1) as lock:
        os.write(lock.descriptor, b"2")
    assert (tmp_path / "a").read_bytes() == b"1"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("mode", ["os", "lockfile", "none"])
def test_other_lock_files_do_not_become_the_key(directory, tmp_path, mode):
    if mode == "os":  # It may be long, or belong to someone else.
        (tmp_path / "a.__lock").write_bytes(b"left behind")
    with hold(directory, "a", key="a", mode=mode, timeout_s=1) as lock:
        assert lock.descriptor == -1
    assert os.listdir(tmp_path) == []


def test_waiting_writer_notices_a_new_lock_file_that_became_the_key(directory, tmp_path):
    store = open_file(tmp_path)
    with hold(directory, "a", key="another stripe", mode="os", timeout_s=1) as lock:
        future = store.write("a", b"ours", if_equal=b"\2")
        assert not future.done()
        os.write(lock.descriptor, b"theirs")
        lock.rename("a")
    assert future.result(timeout=60).generation == b""
    assert store["a"] == b"theirs"
    assert os.listdir(tmp_path) == ["a"]


def test_failed_write_into_a_lock_file_leaves_nothing(tmp_path, monkeypatch):
    store = open_file(tmp_path)

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with pytest.raises(StoreIOError, match="No space left"):
            store.write("a", b"1", if_equal=b"\2").result()
    assert os.listdir(tmp_path) == []
    assert store.write("a", b"1", if_equal=b"\2").result().generation


def test_lock_is_released_when_the_work_fails(directory, tmp_path):
    for mode in ("os", "lockfile", "none"):
        with (
            pytest.raises(KeyboardInterrupt),
            hold(directory, "a", key="a", mode=mode, timeout_s=0),
        ):
            raise KeyboardInterrupt
        with hold(directory, "a", key="a", mode=mode, timeout_s=0):
            pass
    assert os.listdir(tmp_path) == []


def test_lockfile_mode_gives_up_after_the_timeout(tmp_path):
    locking = {"mode": "lockfile", "acquire_timeout": "20ms"}
    store = open_file(tmp_path, file_io_locking=locking)
    store["a"] = b"1"
    assert os.listdir(tmp_path) == ["a"]
    (tmp_path / "a.__lock").write_bytes(b"")
    with pytest.raises(
        StoreIOError, match=r'^DEADLINE_EXCEEDED: Failed to open lock file: ".*a\.__lock"'
    ):
        store["a"] = b"2"
    assert store["a"] == b"1"
    assert sorted(os.listdir(tmp_path)) == ["a", "a.__lock"]


def test_none_mode_ignores_locks_and_says_so(tmp_path):
    store = open_file(tmp_path, file_io_locking={"mode": "none"})
    assert not store.driver.atomic_single_key
    with (tmp_path / "a.__lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        store["a"] = b"1"
    assert store["a"] == b"1"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL])
def test_flock_replaces_locks_the_file_system_lacks(directory, tmp_path, monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "fcntl", fail)
    with (
        hold(directory, "a", key="a", mode="os", timeout_s=1),
        (tmp_path / "a.__lock").open() as file,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_file_system_without_locks_is_an_error_that_names_the_option(tmp_path, monkeypatch):
    store = open_file(tmp_path)

    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "fcntl", fail)
    with pytest.raises(StoreIOError, match=r'^UNAVAILABLE: .*"file_io_locking".*"lockfile"'):
        store["a"] = b"1"
    assert not [name for name in os.listdir(tmp_path) if "-" in name]


def test_only_abandoned_locks_are_removed(directory, tmp_path):
    (tmp_path / "a.__lock").write_bytes(b"left behind")
    assert remove_abandoned(directory, "a.__lock")
    assert remove_abandoned(directory, "a.__lock")
    with hold(directory, "b", key="b", mode="os", timeout_s=1):
        assert not remove_abandoned(directory, "b.__lock")
        assert os.listdir(tmp_path) == ["b.__lock"]


@pytest.mark.matrix("costly")
def test_child_of_a_fork_can_write_while_the_parent_holds_locks(tmp_path):
    script = (
        "import os, sys, threading\n"
        "from gpustore.kvstores.kvstore import KvStore\n"
        "from gpustore.kvstores.file import lock\n"
        "store = KvStore.open(sys.argv[1]).result()\n"
        "for stripe in lock._STRIPES: stripe.acquire()\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    store['a'] = b'1'\n"
        "    os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    subprocess.run([sys.executable, "-c", script, f"{tmp_path}/"], check=True, timeout=60)
    assert (tmp_path / "a").read_bytes() == b"1"
