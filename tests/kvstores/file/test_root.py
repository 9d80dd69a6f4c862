"""Symbolic links: allowed inside a store, refused where they lead out of it."""

import os

import numpy as np
import pytest

import gpustore
from gpustore import native_core
from gpustore.errors import StoreIOError
from gpustore.kvstores.columns import ReadRequest, WriteRequest
from gpustore.kvstores.file import FileKvStore, root
from gpustore.kvstores.file.root import READ_FLAGS, Root
from gpustore.kvstores.kvstore import KvStore


@pytest.fixture(params=["openat2", "realpath"], autouse=True)
def _system(request, monkeypatch):
    if request.param == "realpath":
        monkeypatch.setattr(root, "_OPENAT2", False)
    elif not root._OPENAT2:
        pytest.skip("this kernel has no openat2")


@pytest.fixture
def place(tmp_path):
    """A store with links in it, beside a secret."""
    (tmp_path / "store/dir").mkdir(parents=True)
    (tmp_path / "store/dir/file").write_bytes(b"inside")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/file").write_bytes(b"outside")
    (tmp_path / "storehouse").mkdir()
    (tmp_path / "storehouse/file").write_bytes(b"outside")
    for name, target in {
        "to_file": "dir/file",
        "to_dir": "dir",
        "dir/up": "../dir/file",
        "absolute": f"{tmp_path}/store/dir/file",
        "absolute_dir": f"{tmp_path}/store/dir",
        "out_file": "../secret/file",
        "out_dir": "../secret",
        "out_absolute": f"{tmp_path}/secret/file",
        "out_neighbour": "../storehouse",
        "out_and_in": "../store/dir/file",
        "etc": "/etc",
        "dangling": "nowhere",
        "loop": "loop",
    }.items():
        (tmp_path / "store" / name).symlink_to(target)
    (tmp_path / "link").symlink_to("store")
    return tmp_path


def open_file(path):
    return KvStore.open({"driver": "file", "path": path, "file_io_sync": False}).result()


INSIDE = ["dir/file", "to_file", "to_dir/file", "dir/up", "absolute", "absolute_dir/file"]
OUTSIDE = ["out_file", "out_dir/file", "out_absolute", "out_neighbour/file", "etc/hostname"]


@pytest.mark.parametrize("root", ["store/", "store", "link/", "link"])
def test_links_inside_are_followed_and_links_out_are_errors(place, root):
    store = open_file(f"{place}/{root}") / ""
    if not root.endswith("/"):
        store += "/"
    for columns in (store.read_many(ReadRequest(INSIDE)), store.locate_many(INSIDE)):
        columns.raise_first()
    assert [bytes(v) for v in store.read_many(ReadRequest(INSIDE)).value] == [b"inside"] * 6
    for columns in (store.read_many(ReadRequest(OUTSIDE)), store.locate_many(OUTSIDE)):
        assert sorted(columns.error) == list(range(len(OUTSIDE)))
        for key, error in zip(OUTSIDE, columns.error.values(), strict=True):
            assert isinstance(error, StoreIOError)
            assert str(error).startswith("PERMISSION_DENIED: ")
            assert "link that leads out of the store" in str(error)
            assert error.key == store.path + key


def test_dangling_link_is_missing_and_loop_is_an_error(place):
    store = open_file(f"{place}/store/")
    assert "dangling" not in store
    assert "to_dir/none" not in store
    with pytest.raises(StoreIOError, match="Too many levels of symbolic links"):
        store["loop"]


def test_writing_through_a_link_out_is_an_error(place):
    store = open_file(f"{place}/store/")
    columns = store.write_many(WriteRequest(["out_dir/x", "etc/x", "out_dir/a/b"], [b"1"] * 3))
    assert sorted(columns.error) == [0, 1, 2]
    assert sorted(store.write_many(WriteRequest(["out_dir/file"], [None])).error) == [0]
    assert os.listdir(place / "secret") == ["file"]


def test_writing_replaces_a_link_and_not_its_target(place):
    store = open_file(f"{place}/store/")
    for key in ("out_file", "dangling", "to_file"):
        store[key] = b"new"
        assert store[key] == b"new"
    store["to_dir/x"] = b"new"
    assert (place / "store/dir/x").read_bytes() == b"new"
    assert (place / "secret/file").read_bytes() == b"outside"
    assert (place / "store/dir/file").read_bytes() == b"inside"


def test_deleting_removes_links_and_not_their_targets(place):
    store = open_file(f"{place}/store/")
    del store["out_file"]
    store.delete_range(KvStore.KeyRange()).result()
    assert os.listdir(place / "store") == []
    assert (place / "secret/file").read_bytes() == b"outside"


def test_listing_does_not_enter_links(place):
    keys = open_file(f"{place}/store/").list().result()
    assert b"to_dir" in keys
    assert b"dir/file" in keys
    assert not [key for key in keys if key.startswith((b"to_dir/", b"out_dir/"))]


def test_link_named_by_the_user_is_followed(place):
    (place / "store/one").symlink_to("../secret/file")
    assert open_file(f"{place}/store/one")[""] == b"outside"
    assert open_file(f"{place}/store/out_dir/")["file"] == b"outside"
    store = open_file(f"{place}/store/")
    store.path = f"{place}/secret/"
    assert store["file"] == b"outside"


def test_retargeted_root_is_followed(place):
    store = open_file(f"{place}/link/")
    assert store["dir/file"] == b"inside"
    os.unlink(place / "link")
    (place / "link").symlink_to("secret")
    assert store["file"] == b"outside"
    assert "dir/file" not in store


@pytest.mark.parametrize(
    ("root", "key", "directory"),
    [
        ("/a/b/", "/a/b/c", "/a/b/"),
        ("/a/b", "/a/b/c", "/a/b/"),
        ("/a/b", "/a/bc", "/a/"),
        ("/a/b", "/a/b", None),
        ("/a/b", "/a/b/", None),
        ("/a/b/", "/a/", None),
        ("/a/b/", "/x/c", None),
        ("a", "ab/c", ""),
        ("/", "/a", "/"),
    ],
)
def test_directory_that_a_key_must_stay_in(root, key, directory):
    assert Root(root).directory_of(key) == directory


def test_missing_file_is_a_negative_errno(tmp_path):
    assert Root(f"{tmp_path}/").open(f"{tmp_path}/none", READ_FLAGS) == -2


@pytest.mark.skipif(not native_core().in_use, reason="no native core")
@pytest.mark.parametrize("root", ["store/", "link/"])
def test_the_native_core_reads_chunks_beneath_the_root(place, root, monkeypatch):
    """Chunks behind links are read in Python, which refuses those that lead out."""
    spec = {"driver": "zarr3", "kvstore": f"file://{place}/{root}"}
    store = gpustore.open(spec, create=True, dtype="uint16", shape=[64], chunks=[1]).result()
    store.write(np.arange(1, 65, dtype="u2")).result()
    in_python = []
    read_many = FileKvStore.read_many
    monkeypatch.setattr(
        FileKvStore,
        "read_many",
        lambda self, request: in_python.extend(request.keys) or read_many(self, request),
    )
    assert np.array_equal(store.read().result(), np.arange(1, 65, dtype="u2"))
    assert in_python == []
    chunks = place / "store" / "c"
    (chunks / "3").rename(chunks / "3.moved")
    (chunks / "3").symlink_to("3.moved")
    assert np.array_equal(store.read().result(), np.arange(1, 65, dtype="u2"))
    assert len(in_python) == 1
    (chunks / "3").unlink()
    (chunks / "3").symlink_to("../../secret/file")
    with pytest.raises(StoreIOError, match="leads out of the store"):
        store.read().result()
