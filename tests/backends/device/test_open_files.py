"""Files that a device has open: handles are shared, kept, evicted and closed."""

import gc
import os

import pytest

from gpustore.backends.device import open_files
from gpustore.backends.device.open_files import OpenFiles
from gpustore.device.protocol import DeviceFile
from tests.backends.device.test_direct_read import write
from tests.emulator.device import EmulatedDevice


@pytest.fixture
def driven():
    device = EmulatedDevice()
    yield device
    device.close()


def taken(files, path, end_reads=lambda: None):
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        return files.take(file.fileno(), status, end_reads)


def test_handles_are_shared_and_kept_until_they_are_idle(driven, tmp_path):
    files = OpenFiles(driven)
    path = write(tmp_path / "a")
    first, second = taken(files, path), taken(files, path)
    assert first is second
    assert first.uses == 2
    files.put(first)
    files.close_idle()
    assert len(driven.files) == 1
    files.put(second)
    files.close_idle()
    assert driven.files == []


def test_the_oldest_idle_handle_is_closed_first(driven, tmp_path, monkeypatch):
    monkeypatch.setattr(open_files, "HANDLES", 2)
    files = OpenFiles(driven)
    a, b, c = (write(tmp_path / name) for name in "abc")
    kept = taken(files, a)
    files.put(taken(files, b))
    other = taken(files, c)  # In place of b: a is in use.
    assert taken(files, b) is None
    assert kept.is_unchanged()
    files.put(kept)
    files.put(other)
    assert taken(files, c) is other
    files.put(other)
    files.put(taken(files, b))  # In place of a.
    assert taken(files, c) is other
    files.put(other)
    files.close_idle()
    assert driven.counts["open_file"] == driven.counts["close_file"] == 4


def test_a_file_written_in_place_is_noticed(driven, tmp_path):
    files = OpenFiles(driven)
    path = write(tmp_path / "a")
    handle = taken(files, path)
    assert handle.is_unchanged()
    with path.open("r+b") as file:
        file.write(b"new")
    os.utime(path, ns=(5, 5))
    assert not handle.is_unchanged()
    files.put(handle)
    newer = taken(files, path)
    assert newer is not handle
    files.put(newer)
    files.close_idle()


def test_handles_are_closed_when_their_owner_is_gone(driven, tmp_path):
    files = OpenFiles(driven)
    files.put(taken(files, write(tmp_path / "a")))
    assert len(driven.files) == 1
    del files
    gc.collect()
    assert driven.files == []


def test_handles_of_the_parent_process_are_left_alone(driven, tmp_path, monkeypatch):
    files = OpenFiles(driven)
    path = write(tmp_path / "a")
    parent = taken(files, path)
    files.put(parent)
    pid = os.getpid()
    monkeypatch.setattr(open_files.os, "getpid", lambda: pid + 1)
    child = taken(files, path)
    assert child is not parent
    files.put(child)
    files.close_idle()
    assert [file.path for file in driven.files] == [parent.file.path]
    del files
    gc.collect()
    assert open_files._INHERITED.pop().popitem()[1] is parent
    parent.close(driven)


def test_files_have_what_the_protocol_says(driven, tmp_path):
    files = OpenFiles(driven)
    handle = taken(files, write(tmp_path / "a"))
    members = set(DeviceFile.__dict__) & {"alignment", "is_direct"}
    assert {name: getattr(handle.file, name) for name in members} == {
        "alignment": 4096,
        "is_direct": True,
    }
    files.put(handle)
    files.close_idle()
