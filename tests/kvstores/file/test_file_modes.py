"""The file kvstore in each mode of reading and locking, alone and together with TensorStore."""

# ruff: noqa: F403, F405  the shared suite is taken over by name

import errno
import itertools
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

import gpustore
from gpustore.errors import GpustoreError, StoreIOError
from gpustore.kvstores.base import Replacement
from gpustore.kvstores.columns import ABSENT, ReadRequest, ReadState, WriteRequest
from gpustore.kvstores.kvstore import KvStore
from tests.killed_process import deaths, needs_compiler
from tests.kvstores.contract import *
from tests.kvstores.processes import run_together
from tests.matrix import each
from tests.on_device import emulated, on_host

pytestmark = pytest.mark.matrix

WORKER = Path(__file__).with_name("worker.py")
MODES = {
    "memmap": {"file_io_mode": {"mode": "memmap"}},
    "direct": {"file_io_mode": {"mode": "direct"}},
    "lockfile": {"file_io_locking": {"mode": "lockfile"}},
    "none": {"file_io_locking": {"mode": "none"}},
    "non_atomic": {"file_io_locking": {"mode": "non_atomic"}},
    "non_atomic direct": {
        "file_io_locking": {"mode": "non_atomic"},
        "file_io_mode": {"mode": "direct"},
    },
}
NO_SYNC = {"file_io_sync": False}


def spec(path, mode):
    return {"driver": "file", "path": f"{path}/", **NO_SYNC, **MODES.get(mode, {})}


@pytest.fixture(params=MODES)
def make_store(request, tmp_path):
    numbers = itertools.count()
    return lambda: KvStore.open(spec(tmp_path / str(next(numbers)), request.param)).result()


@pytest.fixture
def model_examples():
    return 15


# --------------------------------------------------------------------------- TensorStore


@pytest.mark.parametrize("ours", ["default", *MODES])
def test_both_libraries_read_and_replace_values_of_the_other(tmp_path, ours):
    store = KvStore.open(spec(tmp_path, ours)).result()
    number = itertools.count()
    for theirs in ("default", *MODES):
        other = ts.KvStore.open(spec(tmp_path, theirs)).result()
        for nbytes in (0, 1, 5000, 300_000):
            value = b"%09d," % next(number) * (nbytes // 10)
            store["a/b"] = value
            read = other.read("a/b").result()
            assert read.value == value
            value = b"%09d;" % next(number) * (nbytes // 10)
            stamp = other.write("a/b", value, if_equal=read.stamp.generation).result()
            assert stamp.generation
            assert store["a/b"] == value
            part = store.read_many(ReadRequest(["a/b"], start=[nbytes // 3], stop=[nbytes // 2]))
            if part.total[0] >= nbytes // 2:
                assert bytes(part.value[0]) == value[nbytes // 3 : nbytes // 2]
            generation = get(store, "a/b")[2]
            assert (
                other.write("a/b", b"x", if_equal=read.stamp.generation).result().generation == b""
            )
            assert put(store, "a/b", b"mine", generation)
            assert put(store, "a/b", b"twice", generation) == b""
            assert other["a/b"] == b"mine"
        assert other.list().result() == store.list().result() == [b"a/b"]
        del other["a/b"]
        assert "a/b" not in store
        store["a/b"] = b"1"
        del store["a/b"]
        assert other.read("a/b").result().state == "missing"
    assert os.listdir(tmp_path / "a") == []


@pytest.mark.long
def test_lock_files_of_both_libraries_exclude_each_other(tmp_path):
    store = KvStore.open(spec(tmp_path, "lockfile")).result()
    store["n"] = b"0"
    count, libraries = 50, ["gpustore", "tensorstore", "gpustore"]
    run_together(
        *(
            (WORKER, "increment", library, f"{tmp_path}/", count, "lockfile")
            for library in libraries
        )
    )
    assert store["n"] == b"%d" % (count * len(libraries))
    assert os.listdir(tmp_path) == ["n"]


# --------------------------------------------------------------------------- in place


def test_in_place_means_the_same_file(tmp_path):
    store = KvStore.open(spec(tmp_path, "non_atomic")).result()
    assert not store.driver.atomic_single_key
    store["a"] = b"first value"
    inode = os.stat(tmp_path / "a").st_ino
    os.link(tmp_path / "a", tmp_path / "b")
    store["a"] = b"second"
    assert os.stat(tmp_path / "a").st_ino == inode
    assert (tmp_path / "b").read_bytes() == b"second"
    del store["a"]
    assert os.listdir(tmp_path) == ["b"]


def test_create_only_holds_even_if_the_file_appears_after_the_look(tmp_path, monkeypatch):
    store = KvStore.open(spec(tmp_path, "non_atomic")).result()
    monkeypatch.setattr(
        "gpustore.kvstores.file.batch._generation_at", lambda directory, name: ABSENT
    )
    (tmp_path / "a").write_bytes(b"theirs")
    assert put(store, "a", b"ours", ABSENT) == b""
    assert (tmp_path / "a").read_bytes() == b"theirs"


def test_in_place_follows_links_inside_the_store_only(tmp_path):
    store = KvStore.open(spec(tmp_path / "store", "non_atomic")).result()
    store["a"] = b"old"
    (tmp_path / "out").write_bytes(b"out")
    (tmp_path / "store/in").symlink_to("a")
    (tmp_path / "store/out").symlink_to("../out")
    (tmp_path / "store/new").symlink_to("../made")
    store["in"] = b"new"
    assert store["a"] == b"new"
    for key in ("out", "new"):
        with pytest.raises(StoreIOError, match="link that leads out of the store"):
            store[key] = b"x"
    assert (tmp_path / "out").read_bytes() == b"out"
    assert not (tmp_path / "made").exists()


def test_in_place_writes_only_regular_files(tmp_path):
    store = KvStore.open(spec(tmp_path, "non_atomic")).result()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(StoreIOError, match="not a regular file but a FIFO"):
        store["fifo"] = b"1"
    store["d/x"] = b"1"
    with pytest.raises(StoreIOError, match=r"^FAILED_PRECONDITION: Failed to open: .*directory"):
        store["d"] = b"1"


def test_in_place_needs_no_right_to_set_times(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "utime", refuse)
    store = KvStore.open(spec(tmp_path, "non_atomic")).result()
    store["a"] = b"1"
    assert store["a"] == b"1"


def test_values_replaced_piece_by_piece_are_read_before_they_are_overwritten(tmp_path):
    store = KvStore.open(spec(tmp_path, "non_atomic")).result()
    store["a"] = b"0123456789"
    key = store.path + "a"

    def make():
        def pieces():
            for start in range(8, -1, -2):
                request = ReadRequest(["a"], start=[start], stop=[start + 2])
                yield bytes(store.read_many(request).value[0])

        return Replacement(get(store, "a")[2], 10, pieces())

    assert store.driver.replace(key, make)
    assert store["a"] == b"8967452301"


@needs_compiler
@pytest.mark.long
def test_killed_writer_in_place_leaves_the_beginning_of_a_value(tmp_path):
    store = KvStore.open(spec(tmp_path, "non_atomic")).result()
    store["v"] = b"%09d," % 0
    worker = "tests.kvstores.file.worker"
    for _ in deaths(worker, "overwrite", f"{tmp_path}/", "non_atomic", kills=30, most=20, seed=2):
        value = store["v"]
        assert value == (value[:10] * (len(value) // 10 + 1))[: len(value)]
        assert os.listdir(tmp_path) == ["v"]
    store["v"] = b"whole again"
    assert store["v"] == b"whole again"


# --------------------------------------------------------------------------- faults

CALLS = ("open", "stat", "fstat", "pread", "preadv", "write", "ftruncate", "fsync", "rename",
         "unlink", "utime")  # fmt: skip
KEYS = ["a", "b/c"]
VALUES = st.none() | st.binary(max_size=6) | st.integers(1, 9).map(lambda n: bytes([n]) * 5000)


ORIGINAL = {name: getattr(os, name) for name in CALLS}
ORIGINAL["fsync"] = lambda _: None  # What reaches the disk is not seen here.


class Faults(RuleBasedStateMachine):
    """Each key has one of some values: more than one after a write of which nobody knows."""

    folder = None

    def __init__(self):
        super().__init__()
        self.path = tempfile.mkdtemp(dir=self.folder)
        self.possible = {key: [None] for key in KEYS}
        self.begun = {}  # key -> value of which any beginning may be there
        self.mode = "default"
        self.stores = {}

    @property
    def store(self):
        if self.mode not in self.stores:
            options = spec(self.path, self.mode)
            if self.mode == "lockfile":
                options["file_io_locking"] = {"mode": "lockfile", "acquire_timeout": "0s"}
            self.stores[self.mode] = KvStore.open({**options, "file_io_sync": True}).result()
        return self.stores[self.mode]

    @rule(mode=st.sampled_from(["default", *MODES]))
    def change_mode(self, mode):
        self.mode = mode

    def failing(self, fault, act):
        """Return the result of `act` while one system call fails, if any."""
        name, skip, code = fault or ("fsync", -1, 0)
        left = [skip]

        def fail(*arguments, **keywords):
            left[0] -= 1
            if left[0] == -1:
                raise OSError(code, os.strerror(code))
            return ORIGINAL[name](*arguments, **keywords)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", ORIGINAL["fsync"])
            patch.setattr(os, name, fail)
            result = act()
        if self.mode == "lockfile":  # As the error of the next writer says.
            for directory in (self.path, f"{self.path}/b"):
                for file in os.listdir(directory) if os.path.isdir(directory) else ():
                    if file.endswith(".__lock"):
                        os.unlink(f"{directory}/{file}")
        return result

    faults = st.none() | st.tuples(
        st.sampled_from(CALLS),
        st.integers(0, 2),
        st.sampled_from([errno.EIO, errno.ENOSPC, errno.EACCES]),
    )

    @rule(key=st.sampled_from(KEYS), value=VALUES, condition=st.booleans(), fault=faults)
    def write(self, key, value, condition, fault):
        store = self.store
        generation = get(store, key)[2] if condition else b""
        columns = self.failing(
            fault, lambda: store.write_many(WriteRequest([key], [value], [generation]))
        )
        if not columns.error:
            assert columns.generation[0], (self.mode, key)
            self.possible[key] = [value]
            self.begun.pop(key, None)
            return
        assert fault is not None, columns.error
        assert isinstance(columns.error[0], GpustoreError)
        if key not in self.begun:
            self.possible[key].append(value)
        if self.mode.startswith("non_atomic") and value is not None:
            self.begun[key] = value

    @rule(key=st.sampled_from(KEYS), fault=faults)
    def read(self, key, fault):
        columns = self.failing(fault, lambda: self.store.read_many(ReadRequest([key])))
        if columns.error:
            assert fault is not None, columns.error
            assert isinstance(columns.error[0], StoreIOError)
            return
        value = None if columns.value[0] is None else bytes(columns.value[0])
        assert (columns.state[0] is ReadState.MISSING) == (value is None)
        begun = key in self.begun and value is not None and self.begun[key].startswith(value)
        assert begun or value in self.possible[key], (self.mode, key)
        self.possible[key] = [value]
        self.begun.pop(key, None)

    def teardown(self):
        self.mode = "default"  # Others leave lock files to those who lock with them.
        self.store.delete_range(KvStore.KeyRange()).result()
        assert os.listdir(self.path) == []


@pytest.mark.matrix
@pytest.mark.slow
def test_failing_system_calls_lose_only_values_written_in_place(tmp_path):
    Faults.folder = tmp_path
    run_state_machine_as_test(Faults, settings=settings(stateful_step_count=10))


@pytest.mark.parametrize("mode", ["default", *MODES])
def test_file_that_becomes_shorter_while_it_is_read_is_an_error(tmp_path, monkeypatch, mode):
    store = KvStore.open(spec(tmp_path, mode)).result()
    store["a"] = bytes(1 << 20)
    fstat = os.fstat

    def cut(fd):
        status = fstat(fd)
        if status.st_size == 1 << 20:
            os.truncate(tmp_path / "a", 5000)
        return status

    monkeypatch.setattr(os, "fstat", cut)
    with pytest.raises(StoreIOError, match=r"^ABORTED: .*became shorter while it was being read"):
        store["a"]


@each("mode", MODES)
@each("order", ["lazy", "random"])
def test_device_gets_the_same_bytes(tmp_path, mode, order):
    values = np.arange(200 * 300, dtype="uint16").reshape(200, 300)
    for codecs in ([], [{"name": "blosc", "configuration": {"cname": "lz4"}}]):
        kvstore = spec(tmp_path / str(len(codecs)), mode)
        metadata = {"shape": [200, 300], "data_type": "uint16", "codecs": codecs}
        array = {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}
        gpustore.open(array, create=True).result()[...] = values
        with emulated(order) as device:
            store = gpustore.open(
                {"driver": "zarr3", "kvstore": kvstore}, device=device.name
            ).result()
            found = store[7:150, 10:250].read().result()
            assert np.array_equal(on_host(device, found), values[7:150, 10:250])
            del found, store
