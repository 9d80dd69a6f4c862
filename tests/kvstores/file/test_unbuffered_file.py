"""Reads past the page cache against ordinary ones."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.kvstores.file import unbuffered_file
from gpustore.kvstores.file.unbuffered_file import read_unbuffered, start_unbuffered
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.statistics import STATISTICS

COUNTERS = ("unbuffered_reads", "unbuffered_fallbacks")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A file of which no two parts are alike."""
    path = tmp_path_factory.mktemp("file") / "a"
    path.write_bytes(b"".join(b"%07d " % i for i in range(2**18))[: 2**21 - 77])
    return path


@pytest.fixture
def counted():
    before = {name: STATISTICS[name] for name in COUNTERS}
    return lambda: [STATISTICS[name] - before[name] for name in COUNTERS]


def possible(path):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


SIZES = st.integers(0, 3 * 4096) | st.integers(0, 2**21)


@given(offset=SIZES, nbytes=SIZES, shift=st.integers(0, 63))
def test_any_part_equals_an_ordinary_read(file, offset, nbytes, shift):
    fd = os.open(file, os.O_RDONLY)
    try:
        start_unbuffered(fd)
        out = memoryview(bytearray(shift + nbytes))[shift:]
        done = 0
        while count := read_unbuffered(fd, out[done:], offset + done) if done < nbytes else 0:
            done += count
        with open(file, "rb") as plain:
            assert bytes(out[:done]) == os.pread(plain.fileno(), nbytes, offset)
    finally:
        os.close(fd)


def test_values_longer_than_the_memory_of_a_thread(file, monkeypatch):
    monkeypatch.setattr(unbuffered_file, "_BOUNCE_NBYTES", 8192)
    monkeypatch.setattr(unbuffered_file, "_thread", type(unbuffered_file._thread)())
    store = KvStore.open(
        {"driver": "file", "path": f"{file.parent}/", "file_io_mode": {"mode": "direct"}}
    ).result()
    assert store["a"] == file.read_bytes()


def test_the_page_cache_is_gone_past_where_that_is_possible(file, monkeypatch, counted):
    flags = []
    preadv = os.preadv

    def record(fd, *rest):
        flags.append(bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT))
        return preadv(fd, *rest)

    monkeypatch.setattr(os, "preadv", record)
    spec = {"driver": "file", "path": f"{file.parent}/", "file_io_mode": {"mode": "direct"}}
    assert KvStore.open(spec).result().read("a").result().value == file.read_bytes()
    if possible(file):
        assert set(flags) == {True}
        assert counted() == [1, 0]
    else:
        assert set(flags) == {False}
        assert counted()[1] == 1


@pytest.mark.parametrize("call", ["fcntl", "preadv"])
def test_file_systems_that_refuse_are_read_all_the_same(file, monkeypatch, counted, call):
    original = {"fcntl": fcntl.fcntl, "preadv": os.preadv}

    def refuse_flag(fd, command, *value):
        if command == fcntl.F_SETFL and value[0] & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return original["fcntl"](fd, command, *value)

    def refuse_read(fd, *rest):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return original["preadv"](fd, *rest)

    if call == "fcntl":
        monkeypatch.setattr(fcntl, "fcntl", refuse_flag)
    else:
        monkeypatch.setattr(os, "preadv", refuse_read)
    spec = {"driver": "file", "path": f"{file.parent}/", "file_io_mode": {"mode": "direct"}}
    assert KvStore.open(spec).result()["a"] == file.read_bytes()
    assert counted()[1] == 1


@pytest.mark.matrix("costly")
def test_forked_child_reads_with_memory_of_its_own(file):
    script = (
        "import os, sys\n"
        "from gpustore.kvstores.kvstore import KvStore\n"
        "from gpustore.kvstores.file import unbuffered_file\n"
        "from gpustore.kvstores.base import ReadRequest\n"
        "spec = {'driver': 'file', 'path': sys.argv[1], 'file_io_mode': {'mode': 'direct'}}\n"
        "store = KvStore.open(spec).result()\n"
        "whole = bytes(store.read_many(ReadRequest(['a'])).value[0])\n"
        "mine = unbuffered_file._bounce()\n"
        "before = bytes(mine[:100])\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    part = store.read_many(ReadRequest(['a'], start=[70_001])).value[0]\n"
        "    os._exit(bytes(part) != whole[70_001:])\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "assert bytes(mine[:100]) == before == whole[:100]\n"
    )
    subprocess.run([sys.executable, "-c", script, f"{file.parent}/"], check=True, timeout=60)
