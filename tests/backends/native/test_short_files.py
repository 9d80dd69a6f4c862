"""Short files that the native core reads whole, and what it leaves to Python."""

import os
import threading

import pytest

from gpustore.backends.native import library
from gpustore.backends.native.job import MISSING, NOT_DONE
from gpustore.backends.native.short_files import NBYTES, read_short_file, read_short_files

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
    assert read_short_files([*together], NBYTES) == [*together.values()]
    assert read_short_files([], NBYTES) == []


def test_what_does_not_fit_is_left(files):
    names = [name for name, value in files.items() if value == VALUES[-1]] * 4
    found = read_short_files(names, NBYTES)
    assert found == [VALUES[-1]] + [NOT_DONE] * 3


@pytest.mark.parametrize("limit", [0, 1, 255, 256, NBYTES + 1])
def test_no_file_is_longer_than_the_limit(files, limit):
    expected = {
        name: NOT_DONE if isinstance(value, bytes) and len(value) > limit else value
        for name, value in files.items()
        if value != VALUES[-1]
    }
    assert {name: read_short_file(name, limit) for name in expected} == expected
    assert read_short_files([*expected], limit) == [*expected.values()]


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


def test_no_descriptor_stays_open(files):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        read_short_files([*files], NBYTES)
    assert len(os.listdir("/proc/self/fd")) == before
