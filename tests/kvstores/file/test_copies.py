"""Copies of files by the system, in place of values that Python reads and writes."""

import errno
import os

import pytest

import gpustore
from gpustore import KvStore

VALUES = {b"a": b"", b"b/c": bytes(range(256)) * 5000, b"b/d": b"x", b"e": b"yz" * 100}


@pytest.fixture
def stores(tmp_path):
    context = gpustore.Context({"file_io_sync": False})
    found = [
        KvStore.open(f"file://{tmp_path}/{name}/", context=context).result()
        for name in ("source", "target")
    ]
    for key, value in VALUES.items():
        found[0][key] = value
    return found


def contents(store):
    return {key: store[key] for key in store.list().result()}


@pytest.mark.parametrize("system", ["shares", "sends"])
def test_values_are_copied_by_the_system(system, stores, monkeypatch):
    calls = []
    original = os.copy_file_range

    def copied(*arguments, **keywords):
        calls.append(arguments)
        if system == "sends":
            raise OSError(errno.EXDEV, "other file system")
        return original(*arguments, **keywords)

    monkeypatch.setattr(os, "copy_file_range", copied)
    source, target = stores
    target[b"b/c"] = b"old"
    source.experimental_copy_range_to(target).result()
    assert contents(target) == VALUES
    assert len(calls) >= 3
    source.experimental_copy_range_to(target / "more/", KvStore.KeyRange("b", "c")).result()
    assert contents(target / "more/") == {key: VALUES[key] for key in (b"b/c", b"b/d")}


def test_keys_that_are_gone_are_left_out(stores, tmp_path):
    source, target = stores
    pairs = [(f"{tmp_path}/source/{a}", f"{tmp_path}/target/{b}") for a, b in ["ep", "nq"]]
    assert target.driver.copy_from(source.driver, pairs, None)
    assert contents(target) == {b"p": VALUES[b"e"]}


@pytest.mark.parametrize("failure", [errno.ENOSPC, 0])
def test_failed_copies_leave_nothing(failure, stores, tmp_path, monkeypatch):
    def fail(*_, **__):
        if failure:
            raise OSError(failure, "no room")
        return 0  # as if the file had become shorter

    monkeypatch.setattr(os, "copy_file_range", fail)
    source, target = stores
    with pytest.raises(gpustore.StoreIOError, match="b/c"):
        source.experimental_copy_range_to(target).result()
    assert contents(target) == {b"a": b""}
    assert not [path for path in (tmp_path / "target").rglob("*") if "c." in path.name]


def test_files_written_in_place_are_copied_by_value(stores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "copy_file_range", None)
    locking = {"file_io_locking": {"mode": "non_atomic"}, "file_io_sync": False}
    context = gpustore.Context(locking)
    target = KvStore.open(f"file://{tmp_path}/target/", context=context).result()
    stores[0].experimental_copy_range_to(target).result()
    assert contents(target) == VALUES
