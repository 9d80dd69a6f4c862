"""Every system call that an operation makes fails once: what the user then gets and keeps.

The calls are those of :mod:`os`. Each is made to fail at the first, second, and last time an
operation makes it, before it has done anything.
"""

import errno
import gc
import os

import numpy as np
import pytest

import gpustore
from gpustore.errors import GpustoreError, StoreIOError
from tests.open_files import open_files
from tests.reliability.array_on_disk import create, values

CALLS = (
    *("open", "stat", "fstat", "pread", "preadv", "write", "utime", "fsync", "rename", "link"),
    *("unlink", "mkdir", "rmdir", "scandir", "dup"),
)
NUMBERS = (errno.EIO, errno.ENOSPC, errno.EINTR, errno.EMFILE, errno.ESTALE)
SHAPE, CHUNK = (32, 32), (16, 16)
QUIET = {"file_io_concurrency": {"limit": 1}, "data_copy_concurrency": {"limit": 1}}


class Failing:
    """Counts calls of functions of `os`, and lets one of them fail."""

    def __init__(self, monkeypatch):
        self.counts = dict.fromkeys(CALLS, 0)
        self.fail = (None, 0, 0)  # Name, how many succeed first, error number
        for name in CALLS:
            monkeypatch.setattr(os, name, self._replacement(name, getattr(os, name)))

    def _replacement(self, name, call):
        def replacement(*arguments, **keywords):
            number = self.counts[name]
            self.counts[name] += 1
            failing, skip, code = self.fail
            if failing == name and number == skip:
                raise OSError(code, os.strerror(code))
            return call(*arguments, **keywords)

        return replacement

    def arm(self, name=None, skip=0, code=0):
        self.counts = dict.fromkeys(CALLS, 0)
        self.fail = (name, skip, code)


def context():
    return gpustore.Context({**QUIET, "file_io_retries": {"max_retries": 0}})


def opened(path):
    return gpustore.open(str(path), context=context()).result()


def _open(path):
    opened(path)


def _create(path):
    create("zarr3 crc32c", f"file://{path}/new/", context=context())


def _delete_existing(path):
    spec = {"driver": "zarr3", "kvstore": f"file://{path}/"}
    gpustore.open(
        spec, create=True, delete_existing=True, dtype="uint16", shape=SHAPE, context=context()
    ).result()


OPERATIONS = {
    "open": _open,
    "create": _create,
    "delete existing": _delete_existing,
    "read": lambda path: opened(path).read().result(),
    "read a part": lambda path: opened(path)[17, 3:5].read().result(),
    "write": lambda path: opened(path).write(values() + 1).result(),
    "write a part": lambda path: opened(path)[17, 3:5].write(7).result(),
    "delete chunks": lambda path: opened(path)[:16].write(0).result(),
    "shrink": lambda path: opened(path).resize(exclusive_max=[16, 32]).result(),
    "grow": lambda path: opened(path).resize(exclusive_max=[64, 32]).result(),
    "list": lambda path: opened(path).kvstore.list().result(),
}


def fresh(path):
    store = create("zarr3 crc32c", f"file://{path}/", context=context())
    store[...] = values()


def files_below(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def check_chunks(path, operation):
    """Each chunk is what it was or what it was to be."""
    store = opened(path)
    found = store.read().result()
    for row in range(0, store.shape[0], 16):
        for column in (0, 16):
            cell = np.s_[row : row + 16, column : column + 16]
            after = values() + 1 if operation == "write" else values()
            if operation == "write a part":
                after[17, 3:5] = 7
            nothing = np.zeros(CHUNK, np.uint16)
            possible = [values()[cell], after[cell], nothing]
            if operation not in ("delete existing", "delete chunks", "shrink", "grow"):
                possible.pop()
            assert any(np.array_equal(found[cell], one) for one in possible if one.size), row


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_call_fails_once(tmp_path, monkeypatch, operation):
    act = OPERATIONS[operation]
    failing = Failing(monkeypatch)
    gc.disable()
    try:
        for name in ("first", "dry"):  # A process reads what names its machine the first time.
            fresh(tmp_path / name)
            failing.arm()
            act(tmp_path / name)
        made = dict(failing.counts)
        failing.arm()
        trials = 0
        for name in CALLS:
            for skip in sorted({0, 1, made[name] // 2, made[name] - 1} & set(range(made[name]))):
                trials += 1
                code = NUMBERS[trials % len(NUMBERS)]
                if name in ("open", "write", "fsync", "mkdir", "rename"):
                    code = NUMBERS[trials % 2]  # A broken disk or a full one.
                path = tmp_path / str(trials)
                fresh(path)
                before = files_below(path)
                opened = open_files(tmp_path)
                failing.arm(name, skip, code)
                error = None
                try:
                    act(path)
                except GpustoreError as caught:
                    error = caught
                finally:
                    happened = failing.counts[name] > skip
                    failing.arm()
                where = (operation, name, skip, errno.errorcode[code])
                assert happened, where
                assert open_files(tmp_path) == opened, where
                if error is not None:
                    assert isinstance(error, StoreIOError), (where, repr(error))
                    assert error.key, where
                    assert error.key.startswith(str(path)), (where, error.key)
                    assert error.key in str(error), where
                # Who cannot remove a file leaves it, and who cannot see whose lock it is.
                if name not in ("unlink", "stat", "fstat"):
                    stray = [file for file in files_below(path) if file.endswith("__lock")]
                    assert stray == [], where
                if operation in ("open", "read", "read a part", "list"):
                    assert files_below(path) == before, where
                if (path / "zarr.json").exists():
                    check_chunks(path, operation)
                else:
                    assert operation == "delete existing", where
                # It is no lasting harm: once more, and it is done.
                if operation == "create" and error is None:
                    continue
                try:
                    act(path)
                except gpustore.errors.AlreadyExistsError:
                    assert operation == "create", where  # The reply was lost, not the file.
        assert trials >= 3
    finally:
        gc.enable()


def test_short_reads_and_writes_are_continued(tmp_path, monkeypatch):
    """The system may transfer less than it was asked for."""
    path = tmp_path / "a"
    short = 0

    def fewer(call, *, of):
        def replacement(fd, data, *rest):
            nonlocal short
            short += 1
            return call(fd, of(data), *rest)

        return replacement

    monkeypatch.setattr(os, "write", fewer(os.write, of=lambda data: data[:100]))
    monkeypatch.setattr(os, "pread", fewer(os.pread, of=lambda nbytes: min(nbytes, 90)))
    monkeypatch.setattr(
        os, "preadv", fewer(os.preadv, of=lambda buffers: [buffers[0][:80], *buffers[1:]])
    )
    # The native core has no bz2: all is read and written by Python.
    store = create("zarr2 bz2", f"file://{path}/", context=context())
    store[...] = values()
    assert np.array_equal(store.read().result(), values())
    changed = values()
    for column in (5, 6):
        store[3:29, column] = 7
        changed[3:29, column] = 7
    assert np.array_equal(store.read().result(), changed)
    assert np.array_equal(store.read_many([[9, 9]], [20, 20]).result()[0], changed[9:29, 9:29])
    assert short > 50
