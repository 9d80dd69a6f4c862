"""Directories of one batch of writes."""

import os
import threading
from collections import OrderedDict

import pytest

from gpustore.kvstores.file.directory import Directories
from gpustore.kvstores.file.root import Root


@pytest.fixture
def opened(tmp_path):
    """A function that opens a directory as another thread of a write does."""
    root = Root(f"{tmp_path}/")
    found = []

    def open_(path):
        directories = Directories(root, sync=False, remove_locks=True)
        found.append(directories)
        directories.open(path, index=0, create=True)
        return directories

    yield open_
    for directories in found:
        directories.close()


def test_no_thread_writes_in_a_directory_while_another_looks_through_it(
    tmp_path, opened, monkeypatch
):
    """A lock file is not locked yet when it is made; it would be taken for an abandoned one."""
    # A directory may have the number of one that was removed and is remembered.
    monkeypatch.setattr("gpustore.kvstores.file.directory._cleaned", OrderedDict())
    path = f"{tmp_path}/c/"
    made, other = opened(path), opened(path)
    lock = tmp_path / "c" / "0.__lock"

    def write():
        made.clean(path)
        lock.touch()

    writer = threading.Thread(target=write)
    scandir = os.scandir

    def look_through(directory):
        writer.start()
        writer.join(0.2)
        return scandir(directory)

    monkeypatch.setattr(os, "scandir", look_through)
    other.clean(path)
    writer.join()
    assert lock.exists()
