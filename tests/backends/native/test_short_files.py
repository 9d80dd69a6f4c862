"""Short files that the native core reads whole, and what it leaves to Python."""

import os
import threading

import pytest

from gpustore.backends.native import library
from gpustore.backends.native.job import MISSING, NOT_DONE
from gpustore.backends.native.short_files import (
    NBYTES,
    read_short_file,
    read_short_files,
    store_short_file,
)
from gpustore.kvstores.columns import ABSENT, WriteRequest
from gpustore.kvstores.kvstore import KvStore
from tests.open_files import open_files

pytestmark = pytest.mark.skipif(library.library() is None, reason=str(library.why_not()))
VALUES = (b"", b"a", bytes(range(256)), b"x" * NBYTES)


@pytest.fixture
def files(tmp_path):
    """Paths of files, and what reading each by itself gives."""
    expected = {}
    for number, value in enumerate(VALUES):
        (tmp_path / str(number)).write_bytes(value)
        expected[tmp_path / str(number)] = value
    (tmp_path / "long").write_bytes(bytes(NBYTES + 1))
    (tmp_path / "link").symlink_to("1")
    (tmp_path / "linked").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "fifo")
    for name in ("long", "link", "linked/1", "fifo", ""):
        expected[tmp_path / name] = NOT_DONE
    for name in ("missing", "missing/1", "1/2", "\udcff"):
        expected[tmp_path / name] = MISSING
    return {os.fsencode(path): value for path, value in expected.items()}


def test_files_are_read_whole_without_links(files):
    assert {name: read_short_file(name, NBYTES) for name in files} == files


def test_files_are_read_together(files):
    together = {name: value for name, value in files.items() if value != VALUES[-1]}
    assert read_short_files([*together], NBYTES, 2) == [*together.values()]
    assert read_short_files([], NBYTES, 2) == []


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [63, 64, 65, 1000])
def test_two_threads_read_many_files(count, threads, files):
    few = [*((name, value) for name, value in files.items() if value != VALUES[-1])]
    expected = [few[i % len(few)] for i in range(count)]
    names = [name for name, _ in expected]
    assert read_short_files(names, NBYTES, threads) == [value for _, value in expected]


def test_what_does_not_fit_is_left(files):
    names = [name for name, value in files.items() if value == VALUES[-1]] * 4
    found = read_short_files(names, NBYTES, 2)
    assert found == [VALUES[-1]] + [NOT_DONE] * 3


@pytest.mark.parametrize("limit", [0, 1, 255, 256, NBYTES + 1])
def test_no_file_is_longer_than_the_limit(files, limit):
    expected = {
        name: NOT_DONE if isinstance(value, bytes) and len(value) > limit else value
        for name, value in files.items()
        if value != VALUES[-1]
    }
    assert {name: read_short_file(name, limit) for name in expected} == expected
    assert read_short_files([*expected], limit, 2) == [*expected.values()]


def test_threads_do_not_share_memory(files):
    name, other = (name for name, value in files.items() if value in VALUES[1:3])
    begin = threading.Barrier(2)
    found = {}

    def read(path):
        begin.wait(60)
        found[path] = {read_short_file(path, NBYTES) for _ in range(2000)}

    threads = [threading.Thread(target=read, args=(path,)) for path in (name, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {name: {files[name]}, other: {files[other]}}


def test_no_descriptor_stays_open(files, tmp_path):
    before = open_files(tmp_path)
    for _ in range(3):
        read_short_files([*files], NBYTES, 2)
    assert open_files(tmp_path) == before


# --------------------------------------------------------------------------- storing


@pytest.fixture
def directory(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def version(path):
    """What tells the version of a file, as the kvstore's generation does."""
    store = KvStore.open(f"file://{path.parent}/").result()
    return bytes(store.read(path.name).result().stamp.generation[1:])


def contents(folder):
    return {path.name: path.read_bytes() if path.is_file() else None for path in folder.iterdir()}


@pytest.mark.parametrize("syncs", [False, True])
@pytest.mark.parametrize("value", VALUES)
def test_a_new_file_is_stored(value, syncs, directory, tmp_path):
    key = f"{tmp_path}/a"
    assert store_short_file(directory, key, value, None, syncs=syncs)
    assert contents(tmp_path) == {"a": value}
    assert not store_short_file(directory, key, b"other", None, syncs=syncs)
    assert contents(tmp_path) == {"a": value}
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~umask


def test_one_version_of_a_file_is_replaced(directory, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"first")
    first = version(path)
    path.write_bytes(b"second")
    second = version(path)
    assert not store_short_file(directory, str(path), b"third", first, syncs=False)
    assert contents(tmp_path) == {"a": b"second"}
    assert store_short_file(directory, str(path), b"third", second, syncs=False)
    assert contents(tmp_path) == {"a": b"third"}
    assert not store_short_file(directory, str(path), b"fourth", second, syncs=False)
    path.unlink()
    assert not store_short_file(directory, str(path), b"fourth", second, syncs=False)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("name", ["a", "", ".", "..", "a/", "x" * 250, "b", "c", "d"])
def test_what_is_not_plain_is_left_as_it_was(name, directory, tmp_path):
    (tmp_path / "a.__lock").write_bytes(b"")
    (tmp_path / "b").symlink_to("nowhere")
    (tmp_path / "c").mkdir()
    os.mkfifo(tmp_path / "d")
    before = sorted(path.name for path in tmp_path.iterdir())
    open_before = open_files(tmp_path)
    for replaced in (None, bytes(32)):
        assert not store_short_file(directory, name, b"x", replaced, syncs=False)
        assert not store_short_file(-1, name, b"x", replaced, syncs=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert open_files(tmp_path) == open_before


def test_one_of_many_writers_stores_a_new_file(directory, tmp_path):
    begin = threading.Barrier(8)
    store = KvStore.open(f"file://{tmp_path}/").result().driver
    stored = []

    def write(number):
        begin.wait(60)
        for turn in range(50):
            key, value = f"{tmp_path}/{turn}", str(number).encode()
            if number % 2:
                columns = store.write_many(WriteRequest([key], [value], [ABSENT]))
                columns.raise_first()
                if columns.generation[0]:
                    stored.append((str(turn), value))
            elif store_short_file(directory, key, value, None, syncs=False):
                stored.append((str(turn), value))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(stored) == 50
    assert contents(tmp_path) == dict(stored)
