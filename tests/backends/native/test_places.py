"""Where the native core finds the files of an array, and the descriptors it takes for that."""

import gc

import numpy as np
import pytest

import gpustore
from gpustore.backends.native import library
from tests.backends.native.stored_arrays import (
    compare,
    created,
    in_python,
    is_error,
    open_at,
    outcome,
    windows_of,
)
from tests.matrix import each
from tests.open_files import open_files
from tests.reliability.worker import meet

pytestmark = pytest.mark.skipif(library.library() is None, reason=str(library.why_not()))


@pytest.fixture
def places(tmp_path):
    """Folder of an array, and paths that lead to it."""
    (tmp_path / "a").mkdir()
    store = created(tmp_path / "a" / "x", [20, 20], [8, 8], "uint16")
    store[...] = np.arange(400, dtype="uint16").reshape(20, 20)
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "b").mkdir()
    return tmp_path


@each("path", ["{}/a/x", "{}/link/x", "a/x", "./a/x", "link/x", "{}/b/../a/x", "b/../link/x"])
def test_paths_and_links(path, places, monkeypatch):
    monkeypatch.chdir(places)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path.format(places) + "/"}}

    def read():
        return gpustore.open(spec).result().read().result()

    native = outcome(read)
    with in_python():
        assert outcome(read) == native


def test_links_below_the_root(places):
    folder = places / "a" / "x"
    chunk, other = folder / "c" / "0" / "0", folder / "c" / "1"
    chunk.rename(folder / "kept")
    chunk.symlink_to("../../kept")
    other.rename(folder / "row")
    other.symlink_to("../row")
    store = open_at(folder, {})
    assert not is_error(compare(store))
    (folder / "kept").rename(places / "kept")
    (folder / "row").rename(places / "row")
    chunk.unlink()
    chunk.symlink_to(places / "kept")
    assert is_error(compare(store))
    assert is_error(compare(open_at(folder, {})))
    chunk.unlink()
    other.unlink()
    other.symlink_to(places / "row")
    assert is_error(compare(store))


@each("name", ["a", "link"])
def test_a_folder_that_goes_away(name, places):
    store = open_at(places / name / "x", {})
    assert not is_error(compare(store))
    (places / "a").rename(places / "gone")
    assert is_error(compare(store)) == is_error(compare(store[0, 0]))
    (places / "gone").rename(places / "a")
    assert not is_error(compare(store))


def descriptors(folder):
    gc.collect()
    return len(open_files(folder))


def test_descriptors_are_closed(places):
    """Also after errors and cancellations, and those of reads that nobody asks for."""
    store = open_at(places / "link" / "x", {"fill_missing_data_reads": False})
    (places / "a" / "x" / "c" / "1" / "1").unlink()
    found = store[0, 0].read().result()
    assert found == 0
    before = descriptors(places)
    for pooled in (False, True):
        for planned in (False, True):
            with windows_of(65_536, 64, pooled=pooled, planned=planned):
                kept = [store[i, :4].read() for i in range(20)]
                reads = [store.read() for _ in range(20)]
                for one in reads[::2]:
                    one.cancel()
                errors = [one.exception() for one in reads[1::2]]
                assert {type(one) for one in errors} == {gpustore.NotFoundError}
                assert [one.result()[3] for one in kept[::2]]
                del kept, reads, errors, one
    meet(store)  # What was cancelled has ended.
    assert descriptors(places) == before
