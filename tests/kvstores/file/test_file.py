"""The file kvstore."""

# ruff: noqa: F403, F405  the shared suite is taken over by name

import itertools
import os
import pickle
import resource
import socket
import time

import pytest

import gpustore
from gpustore.errors import (
    InvalidKeyError,
    MetadataError,
    StoreIOError,
)
from gpustore.kvstores.arena import Arena
from gpustore.kvstores.columns import ABSENT, ReadRequest, ReadState, WriteRequest
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.contract import *
from tests.matrix import each


def open_file(path, **options):
    return KvStore.open({"driver": "file", "path": f"{path}", **options}).result()


@pytest.fixture(params=["slash", "prefix"])
def make_store(request, tmp_path):
    numbers = itertools.count()
    ending = "/" if request.param == "slash" else "/name-"

    return lambda: open_file(f"{tmp_path}/{next(numbers)}{ending}", file_io_sync=False)


@pytest.fixture
def model_examples(request):
    return 200 if "slash" in request.node.name else 30


def files_below(path):
    return sorted(
        os.path.relpath(os.path.join(directory, name), path)
        for directory, _, names in os.walk(path)
        for name in names
    )


@each(
    ("typed", "path"),
    [
        (".", "./"), ("./", "./"), ("./a", "./a"), ("a/.", "a/"), ("a//b", "a/b"), ("a/./b", "a/b"),
        ("//a", "/a"), ("/", "/"), ("/a//", "/a/"), ("~", "{home}"), ("~/x y%41", "{home}/x y%41"),
        ("~nobody-of-that-name/x", "~nobody-of-that-name/x"), ("x/~", "x/~"), ("./~", "./~"),
        ("..", "{up}"), ("../", "{up}/"), ("a/../b", "{here}/b"), ("link/../b", "{here}/c/b"),
    ],
)  # fmt: skip
def test_a_path_as_people_type_it_is_taken_as_by_a_shell(tmp_path, monkeypatch, typed, path):
    here = tmp_path / "here"
    (here / "c" / "d").mkdir(parents=True)
    (here / "link").symlink_to("c/d")
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", f"{tmp_path}/home")
    expected = path.format(here=here, up=tmp_path, home=f"{tmp_path}/home")
    assert KvStore.Spec(typed).path == expected
    # What is behind the path, and URLs, are taken as they are.
    assert KvStore.Spec(f"{typed}|zip:a/~").base.path == expected
    if "~" in typed:
        assert (
            KvStore.Spec(f"file://{typed.replace(' ', '%20').replace('%4', '%254')}").path == typed
        )


@pytest.mark.parametrize("name", ["a|b", "file:x", "memory:a", "50%25", "a b/c|zip:"])
def test_a_path_that_is_an_object_is_no_url(tmp_path, name):
    store = KvStore.open(tmp_path / name).result() + "/"
    assert store.path == f"{tmp_path}/{name}/"
    store["k"] = b"1"
    assert (tmp_path / name / "k").read_bytes() == b"1"
    array = gpustore.open({"driver": "zarr3", "kvstore": store.spec().to_json()},
                          create=True, dtype="int8", shape=[2]).result()  # fmt: skip
    assert gpustore.open(tmp_path / name).result().spec() == array.spec()


def test_current_directory_can_be_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_file(".")
    for opened in (KvStore.open(".").result(), KvStore.open("./").result()):
        opened["a/b"] = b"1"
        assert opened.list_names().result() == ["a/"]
        del opened["a/b"]
    with pytest.raises(InvalidKeyError, match=r"Invalid key: \"\.\""):
        store.read("").result()


BAD_KEYS = [
    "", ".", "..", "../x", "a/../b", "./a", "a/.", "a//b", "/a", "a/", "a\0b", "a\\b", "x.__lock",
    "c/x.__lock",
]  # fmt: skip


@each("key", BAD_KEYS)
def test_illegal_key_is_refused_before_any_io(tmp_path, key):
    store = open_file(f"{tmp_path}/store/")
    for columns in (
        store.read_many(ReadRequest([key])),
        store.write_many(WriteRequest([key], [b"1"])),
        store.write_many(WriteRequest([key], [None])),
        store.locate_many([key]),
    ):
        with pytest.raises(InvalidKeyError, match=r"^Invalid key: ") as caught:
            columns.raise_first()
        assert caught.value.key == store.path + key
    assert os.listdir(tmp_path) == []


@each("key", [".zarray", "a/.zgroup", "..a", "a..", "a.b/c...d", "é", "a b", "~"])
def test_unusual_key_is_legal(tmp_path, key):
    store = open_file(f"{tmp_path}/")
    store[key] = b"1"
    assert store[key] == b"1"
    assert files_below(tmp_path) == [key]


@pytest.mark.parametrize("path", ["~\0/a", "~\ud800/a", "/a\0/../b", "/a\ud800/../b"])
def test_typed_path_that_no_file_can_have_is_refused(path):
    with pytest.raises(InvalidKeyError, match="Invalid file path: "):
        KvStore.open(path).result()


@pytest.mark.parametrize("path", ["", "/a/../b", "/a//b", "a\0b", "..", "/./a", "a/./b"])
def test_illegal_path_is_refused(path):
    with pytest.raises(InvalidKeyError, match=r"^Invalid file path: "):
        KvStore.Spec({"driver": "file", "path": path})


def test_path_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for spec in ("file://data/x/", "data/x/", {"driver": "file", "path": "./data/x/"}):
        store = KvStore.open(spec).result()
        store["a"] = b"1"
        assert store["a"] == b"1"
        assert store.list().result() == [b"a"]
        assert files_below(tmp_path) == ["data/x/a"]
        store.delete_range(KvStore.KeyRange()).result()
    assert KvStore.Spec("file://data/x/").url == "file://data/x/"


def test_store_of_one_file_is_addressed_by_the_empty_key(tmp_path):
    store = open_file(f"{tmp_path}/x.zip")
    store[""] = b"1"
    assert store[""] == b"1"
    assert (store / "a").read("").exception() is None
    assert store.list().result() == [b""]


# --------------------------------------------------------------------------- odd files


def test_directory_in_place_of_a_value_is_an_error(tmp_path):
    store = open_file(f"{tmp_path}/")
    store["a/b"] = b"1"
    with pytest.raises(StoreIOError, match=r'a" is not a regular file but a directory'):
        store["a"]
    with pytest.raises(StoreIOError, match=r"^FAILED_PRECONDITION: Failed to write: .*directory"):
        store["a"] = b"1"
    with pytest.raises(StoreIOError, match=r"^FAILED_PRECONDITION: Failed to write: .*directory"):
        del store["a"]
    assert files_below(tmp_path) == ["a/b"]


def test_fifo_and_socket_are_errors_and_never_block(tmp_path):
    store = open_file(f"{tmp_path}/")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    columns = store.read_many(ReadRequest(["fifo", "socket", "none"]))
    assert sorted(columns.error) == [0, 1]
    assert "not a regular file but a FIFO" in str(columns.error[0])
    assert all(isinstance(error, StoreIOError) for error in columns.error.values())
    assert sorted(store.locate_many(["fifo", "none"]).error) == [0]
    store["fifo"] = b"now a file"
    assert store["fifo"] == b"now a file"


def test_device_is_an_error():
    with pytest.raises(StoreIOError, match="character device"):
        open_file("/dev/")["zero"]


def test_file_in_place_of_a_directory_means_missing_for_reads(tmp_path):
    store = open_file(f"{tmp_path}/")
    store["a"] = b"1"
    assert "a/b" not in store
    assert put(store, "a/b", None) == ABSENT
    with pytest.raises(StoreIOError, match=r"^FAILED_PRECONDITION: Failed to open directory: "):
        store["a/b"] = b"1"


def test_exhausted_file_descriptors_are_an_error_not_a_missing_value(tmp_path):
    store = open_file(f"{tmp_path}/", file_io_sync=False)
    store["a"] = b"1"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        columns = store.read_many(ReadRequest(["a"]))
        written = store.write_many(WriteRequest(["a"], [b"2"]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert used > 3
    for error in (columns.error[0], written.error[0]):
        assert isinstance(error, StoreIOError)
        assert str(error).startswith("RESOURCE_EXHAUSTED: Failed to open")
        assert error.key == f"{tmp_path}/a" or error.key == f"{tmp_path}/"
    assert store["a"] == b"1"


def test_errors_survive_pickling(tmp_path):
    store = open_file(f"{tmp_path}/")
    store["a/b"] = b"1"
    error = store.read("a").exception()
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.key == f"{tmp_path}/a"


# --------------------------------------------------------------------------- writing


def test_write_leaves_only_the_value(tmp_path):
    store = open_file(f"{tmp_path}/x/")
    store["a"] = b"1"
    put(store, "a", b"2", get(store, "a")[2])
    put(store, "a", b"3", b"wrong")
    store["deep/er/b"] = b"1"
    del store["deep/er/b"]
    assert files_below(tmp_path) == ["x/a"]
    assert os.stat(tmp_path / "x/a").st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def test_longest_file_name_can_be_written(tmp_path):
    store = open_file(f"{tmp_path}/", file_io_sync=False)
    for key in ("x" * 248, "é" * 124):
        store[key] = b"1"
        assert store[key] == b"1"
    with pytest.raises(StoreIOError, match=r"^INVALID_ARGUMENT: .*File name too long"):
        store["x" * 256] = b"1"


def test_delete_range_removes_empty_directories_below_the_root(tmp_path):
    store = open_file(f"{tmp_path}/x/", file_io_sync=False)
    keys = ["a/b/c", "a/d", "e/f", "g"]
    store.write_many(WriteRequest(keys, [b"1"] * len(keys))).raise_first()
    (tmp_path / "x/a/b/old.__lock").write_bytes(b"left behind")
    store.delete_range(KvStore.KeyRange("a/", "a0")).result()
    assert sorted(os.listdir(tmp_path / "x")) == ["e", "g"]
    store.delete_range(KvStore.KeyRange()).result()
    assert os.listdir(tmp_path / "x") == []


def test_batch_uses_few_file_descriptors(tmp_path):
    store = open_file(f"{tmp_path}/", file_io_sync=False)
    keys = [f"{i}/{j}" for i in range(150) for j in range(2)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 80, hard))
        columns = store.write_many(WriteRequest(keys, [b"1"] * len(keys)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    columns.raise_first()
    assert len(store.list().result()) == len(keys)


def test_every_directory_of_a_batch_is_synced_once(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def record(fd):
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    keys = ["a/x", "b/x", "a/y", "b/y"]
    for sync, files, directories in ((True, 4, 3), ("file", 4, 0), ("none", 0, 0)):
        store = open_file(f"{tmp_path}/{sync}/", file_io_sync=sync)
        store.path += "s/"
        os.makedirs(store.path)
        synced.clear()
        store.write_many(WriteRequest(keys, [b"1"] * 4)).raise_first()
        assert len([path for path in synced if path.endswith("__lock")]) == files
        rest = [path for path in synced if not path.endswith("__lock")]
        assert sorted(rest) == [store.path[:-1] + end for end in ("", "/a", "/b")][:directories]


@pytest.mark.parametrize("clear", [False, True])
def test_deleting_syncs_neither_removed_directories_nor_one_that_is_written_next(
    tmp_path, monkeypatch, clear
):
    store = open_file(f"{tmp_path}/")
    for key in ("a/b/x", "a/y", "z"):
        store[key] = b"1"
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    if clear:
        assert store.driver.clear_directory(store.path, store.path + "z") == ABSENT
    else:
        store.driver.delete_range(store.path)
    assert files_below(tmp_path) == []
    assert synced == ([] if clear else [str(tmp_path)])


def test_a_directory_that_cannot_be_removed_is_synced(tmp_path, monkeypatch):
    store = open_file(f"{tmp_path}/")
    store["a/x"] = b"1"
    (tmp_path / "a" / "foreign.__lock").mkdir()
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    assert store.driver.clear_directory(store.path, store.path + "z") == ABSENT
    assert synced == [str(tmp_path / "a")]


def test_failed_directory_sync_is_reported_for_its_keys(tmp_path, monkeypatch):
    store = open_file(f"{tmp_path}/", file_io_sync=True)
    store.write_many(WriteRequest(["a/x", "b/x"], [b"1"] * 2)).raise_first()
    fsync = os.fsync

    def fail(fd):
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/b"):
            raise OSError(5, os.strerror(5))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail)
    columns = store.write_many(WriteRequest(["a/x", "b/x", "a/y", "b/y"], [b"2"] * 4))
    assert sorted(columns.error) == [1, 3]
    assert str(columns.error[1]).startswith("UNKNOWN: Failed to sync directory: ")


@pytest.mark.parametrize("call", ["fsync", "write", "rename", "close"])
@pytest.mark.parametrize("conditional", [False, True])
def test_failing_system_call_keeps_the_old_value_and_leaves_nothing(
    tmp_path, monkeypatch, call, conditional
):
    store = open_file(f"{tmp_path}/")
    store["a"] = b"old"
    condition = [store.read("a").result().stamp.generation] if conditional else None
    original = getattr(os, call)

    def fail(*args, **options):
        if call == "close" and not os.readlink(f"/proc/self/fd/{args[0]}").endswith("__lock"):
            return original(*args)
        if call == "close":
            original(*args)
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        columns = store.write_many(WriteRequest(["a"], [b"new"], condition))
    assert str(columns.error[0]).startswith("RESOURCE_EXHAUSTED: Failed to write: ")
    assert isinstance(columns.error[0].__cause__, OSError)
    assert store["a"] == b"old"
    assert files_below(tmp_path) == ["a"]


def test_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    store = open_file(f"{tmp_path}/")
    store["a"] = b"old"

    def interrupt(fd):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store["a"] = b"new"
    assert files_below(tmp_path) == ["a"]
    assert store["a"] == b"old"


def test_passing_error_is_retried_as_configured(tmp_path, monkeypatch):
    retries = {"max_retries": 3, "initial_delay": "1us"}
    store = open_file(f"{tmp_path}/", file_io_retries=retries, file_io_sync=True)
    plain = open_file(f"{tmp_path}/", file_io_sync=True)
    fsync = os.fsync
    failures = []

    def fail(fd):
        if len(failures) < 3:
            failures.append(fd)
            raise OSError(11, os.strerror(11))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail)
    store["a"] = b"1"
    assert len(failures) == 3
    failures.clear()
    with pytest.raises(StoreIOError, match=r"^UNAVAILABLE: "):
        plain["b"] = b"1"


def test_reading_is_retried_as_configured(tmp_path, monkeypatch):
    retries = {"max_retries": 3, "initial_delay": "10ms", "max_delay": "15ms"}
    store = open_file(f"{tmp_path}/", file_io_retries=retries)
    plain = open_file(f"{tmp_path}/")
    store["a"] = b"1"
    pread, left, pauses = os.pread, [3], []

    def fail(*arguments):
        if left[0]:
            left[0] -= 1
            raise OSError(5, os.strerror(5))
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", fail)
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert store["a"] == b"1"
    assert pauses == [0.01, 0.015, 0.015]
    left[0] = 1
    with pytest.raises(StoreIOError, match=r"Failed to read: .*a.*Input/output error"):
        plain["a"]
    left[0] = 4
    with pytest.raises(StoreIOError, match=r"Failed to read"):
        store["a"]


def test_written_directory_may_disappear_between_batches(tmp_path):
    store = open_file(f"{tmp_path}/x/", file_io_sync=False)
    for _ in range(3):
        store["a/b"] = b"1"
        os.rename(tmp_path / "x", tmp_path / "y")
        assert "a/b" not in store
        store["a/b"] = b"2"
        assert store["a/b"] == b"2"
        store.delete_range(KvStore.KeyRange()).result()
        os.rmdir(tmp_path / "x")
        os.unlink(tmp_path / "y/a/b")
        os.rmdir(tmp_path / "y/a")
        os.rmdir(tmp_path / "y")


# --------------------------------------------------------------------------- listing, locating


def test_list_shows_every_file_but_locks(tmp_path):
    store = open_file(f"{tmp_path}/")
    (tmp_path / "dir").mkdir()
    for name in ("a", "a.__lock", "a.12-00.__lock", "dir/b", "dir/b.__lock", "c.partial"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "link").symlink_to("a")
    assert store.list().result() == [b"a", b"c.partial", b"dir/b", b"link"]


def test_list_reads_only_directories_of_the_range(tmp_path, monkeypatch):
    store = open_file(f"{tmp_path}/", file_io_sync=False)
    keys = [f"{a}/{b}/{c}" for a in "xyz" for b in "012" for c in "01"]
    store.write_many(WriteRequest(keys, [b""] * len(keys))).raise_first()
    scanned = []
    scandir = os.scandir

    def record(fd):
        scanned.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path))
        return scandir(fd)

    monkeypatch.setattr(os, "scandir", record)
    assert (store / "y/1/").list().result() == [b"0", b"1"]
    assert scanned == ["y/1"]
    scanned.clear()
    assert store.list(KvStore.KeyRange("x/2", "y/0/1")).result() == [b"x/2/0", b"x/2/1", b"y/0/0"]
    assert sorted(scanned) == [".", "x", "x/2", "y", "y/0"]


def test_locate_many_gives_files(tmp_path):
    store = open_file(f"{tmp_path}/")
    generation = put(store, "a/b", b"0123")
    columns = store.locate_many(["a/b", "none"])
    columns.raise_first()
    assert columns.path == [f"{tmp_path}/a/b", None]
    assert columns.offset == [0, -1]
    assert columns.nbytes == [4, -1]
    assert columns.generation == [generation, ABSENT]


class _DirectReads:
    """Says of each read that it has begun past the host, and in the end that some have failed."""

    def __init__(self, failed=(), meanwhile=lambda: None):
        self.begun = []
        self.failed = failed
        self.meanwhile = meanwhile

    def begin(self, row, fd, status, start, nbytes):
        self.begun.append((row, os.pread(fd, nbytes, start), status.st_size))
        return memoryview(bytes(nbytes))

    def end(self):
        self.meanwhile()
        return self.failed


def test_files_are_read_past_the_host(tmp_path):
    store = open_file(f"{tmp_path}/")
    for key, value in {"a": b"first", "b": b"second", "c": b"third"}.items():
        put(store, key, value)
    arena = Arena()
    direct = arena.direct = _DirectReads(failed=[1])
    keys = ["a", "b", "none", "c"]
    columns = store.read_many(
        ReadRequest(keys, start=[0, 1, 0, 2], stop=[None, 4, None, 2], into=arena)
    )
    assert direct.begun == [(0, b"first", 5), (1, b"eco", 6), (3, b"", 5)]
    assert [value and bytes(value) for value in columns.value] == [bytes(5), b"eco", None, b""]
    assert columns.total == [5, 6, -1, 5]
    assert columns.error == {}


def test_values_read_through_the_host_instead_are_current(tmp_path):
    store = open_file(f"{tmp_path}/")
    keys = ["a", "b", "c", "d"]
    before = [put(store, key, b"value of " + key.encode()) for key in keys]

    def meanwhile():
        put(store, "a", b"new")
        put(store, "c", b"newer")
        (tmp_path / "b").unlink()
        (tmp_path / "d").unlink()
        (tmp_path / "d").mkdir()

    conditions = [b"", b"", before[2], b""]
    arena = Arena()
    arena.direct = _DirectReads(range(4), meanwhile)
    columns = store.read_many(ReadRequest(keys, if_equal=conditions, into=arena))
    assert columns.state == [
        ReadState.VALUE,
        ReadState.MISSING,
        ReadState.UNSPECIFIED,
        ReadState.UNSPECIFIED,
    ]
    assert [value and bytes(value) for value in columns.value] == [b"new", None, None, None]
    assert columns.generation[1] == ABSENT
    assert columns.total[:3] == [3, -1, 5]
    assert list(columns.error) == [3]
    assert "not a regular file but a directory" in str(columns.error[3])


# --------------------------------------------------------------------------- spec


def test_illegal_options_are_typed_errors(tmp_path):
    for id, value in (
        ("file_io_sync", 3),
        ("file_io_mode", {"mode": "mmap"}),
        ("file_io_locking", {"mode": "nonatomic"}),
    ):
        with pytest.raises(MetadataError, match=f'^Error parsing object member "{id}"'):
            open_file(f"{tmp_path}/", **{id: value})


def test_localhost_url_is_absolute():
    assert KvStore.Spec("file://localhost/tmp/x").path == "/tmp/x"
    assert KvStore.Spec("file:///tmp/a%20b").path == "/tmp/a b"
    with pytest.raises(InvalidKeyError, match=r'"\.\." is not allowed'):
        KvStore.Spec("file:///tmp/%2e%2e/x")


@pytest.mark.parametrize("beside", ["b", "c/x", "d/", "a/x", "e.__lock", ""])
def test_directory_of_one_key_is_not_cleared_as_a_write_replaces_it(tmp_path, beside):
    store = open_file(f"{tmp_path}/")
    if beside != "a/x":
        store["a"] = b"1"
    path = tmp_path / beside
    if beside.endswith("/"):
        path.mkdir()
    elif beside:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"1")
    is_alone = beside in ("", "e.__lock")
    expected = store.read("a").result().stamp.generation if is_alone else ABSENT
    assert store.driver.clear_directory(store.path, f"{store.path}a") == expected
    assert files_below(tmp_path) == {"": ["a"], "e.__lock": ["a", beside]}.get(beside, [])
    assert not (tmp_path / "d").exists()


def test_directory_of_one_key_is_cleared_where_values_are_written_in_place(tmp_path):
    store = open_file(f"{tmp_path}/", file_io_locking={"mode": "non_atomic"})
    store["a"] = b"1"
    assert store.driver.clear_directory(store.path, f"{store.path}a") == ABSENT
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("anew", [False, True])
def test_only_a_value_that_counts_as_deleted_may_be_missing_for_a_moment(
    tmp_path, monkeypatch, anew
):
    store = open_file(f"{tmp_path}/")
    store["a"] = b"old"
    seen = []
    rename = os.rename

    def renamed(*args, **options):
        seen.append((tmp_path / "a").exists())
        rename(*args, **options)

    monkeypatch.setattr(os, "rename", renamed)
    for key in ("a", "b"):
        store.write_many(WriteRequest([key], [b"new"], anew=anew)).raise_first()
    assert seen == [not anew, True]
    assert (store["a"], store["b"]) == (b"new", b"new")
    assert files_below(tmp_path) == ["a", "b"]
