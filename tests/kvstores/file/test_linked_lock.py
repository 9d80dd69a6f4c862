"""One lock file under many names, together with other locks and with TensorStore."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpustore.kvstores.columns import ReadRequest, WriteRequest
from gpustore.kvstores.file.linked_lock import WHOLE_FILE, LinkedLock
from gpustore.kvstores.file.lock import hold
from gpustore.kvstores.kvstore import KvStore

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture
def directory(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def linked():
    lock = LinkedLock("lock.__lock")
    yield lock
    lock.close()


def is_locked(path):
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, WHOLE_FILE)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def test_one_file_locks_key_after_key(directory, tmp_path, linked):
    inodes = set()
    for name in ("a.__lock", "b.__lock"):
        assert linked.acquire(directory, name)
        assert is_locked(tmp_path / name)
        inodes.add((tmp_path / name).stat().st_ino)
        linked.release(directory, name)
        assert not (tmp_path / name).exists()
    assert len(inodes) == 1
    assert len(os.listdir(tmp_path)) == 1
    linked.close()
    assert os.listdir(tmp_path) == []
    assert not linked.acquire(directory, "a.__lock"), "closed"


def test_a_name_that_is_taken_is_not_waited_for(directory, tmp_path, linked):
    with hold(directory, "a", key="a", mode="os", timeout_s=1):
        assert not linked.acquire(directory, "a.__lock")
    assert linked.acquire(directory, "a.__lock")
    linked.release(directory, "a.__lock")


def test_waiting_writers_get_the_key_soon(directory, tmp_path, linked):
    assert linked.acquire(directory, "a.__lock")
    held = threading.Event()

    def wait():
        with hold(directory, "a", key="a", mode="os", timeout_s=1):
            assert (tmp_path / "a.__lock").stat().st_ino != inode
            held.set()

    inode = (tmp_path / "a.__lock").stat().st_ino
    thread = threading.Thread(target=wait)
    thread.start()
    assert not held.wait(0.05)
    linked.release(directory, "a.__lock")
    # The next key, whose lock is the file that the other one waits for.
    assert linked.acquire(directory, "b.__lock")
    linked.release(directory, "b.__lock")
    assert held.wait(100)
    thread.join()


def test_a_directory_that_is_gone_is_told(tmp_path, linked, directory):
    assert linked.acquire(directory, "a.__lock")
    linked.release(directory, "a.__lock")
    (tmp_path / "sub").mkdir()
    gone = os.open(tmp_path / "sub", os.O_RDONLY)
    (tmp_path / "sub").rmdir()
    with pytest.raises(FileNotFoundError):
        linked.acquire(gone, "b.__lock")
    os.close(gone)
    assert linked.acquire(directory, "c.__lock"), "it can still be used"
    linked.release(directory, "c.__lock")


def test_a_removed_lock_file_is_given_up(tmp_path, linked, directory):
    assert linked.acquire(directory, "a.__lock")
    linked.release(directory, "a.__lock")
    for name in os.listdir(tmp_path):
        (tmp_path / name).unlink()
    assert not linked.acquire(directory, "b.__lock")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP])
def test_file_systems_without_links_are_locked_as_usual(tmp_path, monkeypatch, number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", fail)
    store = KvStore.open({"driver": "file", "path": f"{tmp_path}/"}).result()
    store.write_many(WriteRequest(["a", "b"], [b"1", b"2"])).raise_first()
    assert (store["a"], store["b"]) == (b"1", b"2")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_an_error_of_a_link_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", fail)
    store = KvStore.open({"driver": "file", "path": f"{tmp_path}/"}).result()
    columns = store.write_many(WriteRequest(["a", "b"], [b"1", b"2"]))
    assert sorted(columns.error) == [0, 1]
    assert os.listdir(tmp_path) == []


def test_batches_of_several_threads_leave_no_file(tmp_path):
    store = KvStore.open({"driver": "file", "path": f"{tmp_path}/", "file_io_sync": False}).result()
    keys = [f"{d}/{i}" for d in "ab" for i in range(8)]

    def work(value):
        for _ in range(10):
            store.write_many(WriteRequest(keys, [value] * len(keys))).raise_first()

    threads = [threading.Thread(target=work, args=(bytes([i]) * 100,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()
    )
    assert files == keys
    assert all(len(set(store[key])) == 1 for key in keys)


@pytest.mark.matrix("costly")
def test_batches_and_tensorstore_lose_no_increment(tmp_path):
    keys, count = ["n", "m", "o"], 60
    store = KvStore.open({"driver": "file", "path": f"{tmp_path}/", "file_io_sync": False}).result()
    store.write_many(WriteRequest(keys, [b"0"] * 3)).raise_first()
    other = subprocess.Popen(
        [sys.executable, WORKER, "increment", "tensorstore", f"{tmp_path}/", str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdout.readline() == b"ready\n"
    other.stdin.write(b"go\n")
    other.stdin.flush()
    done = dict.fromkeys(keys, 0)
    while min(done.values()) < count:  # Bounded by the time limit of every test.
        columns = store.read_many(ReadRequest(keys))
        values = [b"%d" % (int(value) + 1) for value in columns.value]
        written = store.write_many(WriteRequest(keys, values, columns.generation))
        written.raise_first()
        for key, generation in zip(keys, written.generation, strict=True):
            done[key] += bool(generation)
    other.communicate(timeout=200)
    assert other.returncode == 0
    assert int(store["n"]) == done["n"] + count
    assert int(store["m"]) == done["m"]
    assert sorted(os.listdir(tmp_path)) == sorted(keys)
