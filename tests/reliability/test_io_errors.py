"""What the system refuses is an error that names the key, and never the fill value."""

import errno
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest

import gpustore
from gpustore.errors import ConflictError, CorruptChunkError, StoreIOError
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.matrix import each
from tests.reliability.array_on_disk import chunk_key, create, values
from tests.reliability.subprocesses import start
from tests.reliability.test_damaged_shards import WAYS, Shard, expected
from tests.reliability.worker import QUICK

pytestmark = pytest.mark.matrix

NAME = "zarr3 bytes"
QUICK_CONTEXT = gpustore.Context(QUICK)


@pytest.fixture
def path(tmp_path):
    store = create(NAME, f"file://{tmp_path}/a/", context=gpustore.Context(QUICK))
    store[...] = values()
    return tmp_path / "a"


def files_below(path):
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def outcome():
    """Call with an action and a path; gives class, errno and key of the error."""
    with start("as-nobody") as worker:

        def ask(action, path):
            worker.stdin.write(f"{action}\t{path}\n")
            worker.stdin.flush()
            name, number, key, named = worker.stdout.readline().rstrip().split(",")
            assert named == "True"
            return name, number if number == "None" else int(number), key

        yield ask


@pytest.mark.slow
@pytest.mark.parametrize("what", ["chunk", "directory"])
def test_chunk_without_the_right_to_read_it(path, what, outcome):
    chunk = path / chunk_key(NAME, 1, 0)
    _open_up(path)
    os.chmod(chunk if what == "chunk" else chunk.parent, 0o200)
    try:
        assert outcome("read without rights", path) == ("StoreIOError", errno.EACCES, str(chunk))
    finally:
        os.chmod(chunk if what == "chunk" else chunk.parent, 0o755)


@pytest.mark.slow
def test_directory_without_the_right_to_write(path, outcome):
    _open_up(path)
    before = files_below(path)
    os.chmod(path / "c" / "1", 0o555)
    name, number, key = outcome("write without rights", path)
    os.chmod(path / "c" / "1", 0o755)
    assert (name, number) == ("StoreIOError", errno.EACCES)
    assert key == str(path / chunk_key(NAME, 1, 0))
    assert files_below(path) == before


@pytest.mark.slow
def test_directory_that_cannot_be_entered(path, outcome):
    """The error names the chunk too, not only the directory."""
    _open_up(path)
    chunk = str(path / chunk_key(NAME, 1, 0))
    os.chmod(path / "c", 0o200)
    found = [outcome(action, path) for action in ("read without rights", "write without rights")]
    os.chmod(path / "c", 0o755)
    assert found[0][:2] == found[1][:2] == ("StoreIOError", errno.EACCES)
    assert found[1][2] == chunk


@pytest.mark.slow
def test_metadata_without_the_right_to_read_them(path, outcome):
    _open_up(path)
    os.chmod(path / "zarr.json", 0o200)
    # Opened by root, and again by nobody.
    assert outcome("open without rights", path)[:2] == ("StoreIOError", errno.EACCES)


@pytest.mark.slow
def test_array_cannot_be_created_without_the_right(path, outcome):
    _open_up(path)
    os.chmod(path, 0o555)
    name, number, key = outcome("create without rights", path)
    os.chmod(path, 0o755)
    assert (name, number) == ("StoreIOError", errno.EACCES)
    assert key.startswith(f"{path}/new/")
    assert not (path / "new").exists()


@pytest.mark.slow
def test_no_room_keeps_the_old_chunk(tmp_path, outcome):
    path = tmp_path / "a"
    store = create(
        NAME, f"file://{path}/", shape=(64, 64), chunk=(32, 32), context=gpustore.Context(QUICK)
    )
    store[...] = values((64, 64))
    before = files_below(path)
    name, number, key = outcome("no room", path)
    assert (name, number) == ("StoreIOError", errno.EFBIG)
    assert key.startswith(f"{path}/c/")
    assert files_below(path) == before


@pytest.mark.slow
@pytest.mark.parametrize("action", ["read, no files", "write, no files", "open, no files"])
def test_no_file_descriptors_left(path, action, outcome):
    before = files_below(path)
    name, number, key = outcome(action, path)
    assert (name, number) == ("StoreIOError", errno.EMFILE)
    assert key.startswith(str(path))
    assert files_below(path) == before


@pytest.mark.slow
@pytest.mark.parametrize("action", ["read a part, no memory", "write, no memory"])
@pytest.mark.parametrize("name", ["zarr2 zlib", "zarr3 zstd"])
def test_chunk_that_does_not_fit_the_memory(tmp_path, name, action, outcome):
    """A small file may hold a chunk that is legal and too large for this process."""
    path = tmp_path / "a"
    shape = (32768, 32768)
    create(name, f"file://{path}/", shape=shape, chunk=(32768, 16384), context=QUICK_CONTEXT)
    chunk = path / chunk_key(name, 0, 0)
    chunk.parent.mkdir(parents=True, exist_ok=True)
    chunk.write_bytes(b"x" * 100)
    assert outcome(action, path)[::2] == ("LimitError", str(chunk))


def _open_up(path):
    """Let everybody reach `path`: pytest makes folders that only their owner can enter."""
    for directory in (path, *path.parents):
        if not any(part.startswith("pytest-of-") for part in directory.parts):
            break
        mode = directory.stat().st_mode
        if mode & 0o055 != 0o055:
            os.chmod(directory, mode | 0o055)
    if not all(directory.stat().st_mode & 0o001 for directory in path.parents):
        pytest.skip("others cannot enter the temporary folder, so nothing below it can be tried")


def test_errno_survives_a_prefix_and_pickling(path):
    os.mkdir(path / "d")
    (path / "d" / "zarr.json").symlink_to("zarr.json")
    error = gpustore.open(f"file://{path}/d/|zarr3:").exception()
    assert isinstance(error, StoreIOError)
    again = pickle.loads(pickle.dumps(error)).prefixed("Somewhere")
    for found in (error, again):
        assert found.errno == errno.ELOOP
        assert found.key == f"{path}/d/zarr.json"
        assert "zarr.json" in str(found)


# --------------------------------------------------------------------------- faults put in


def faulty(url, name, *rules):
    """An array whose kvstore goes wrong as the rules say."""
    store = create(name, url, context=gpustore.Context(QUICK))
    store[...] = values()
    driver = store._driver
    kvstore = FaultyKvStore(driver.array.store, rules)
    broken = replace(driver)
    vars(broken)["array"] = replace(driver.array, store=kvstore)
    return gpustore.TensorStore._of(broken, store._transform)


@each("name", ["zarr2 zstd", "zarr3 bytes", "zarr3 zstd crc32c"])
@each("part", [np.s_[...], np.s_[17, 3], np.s_[16:18, :9], np.s_[:, 2]])
@each("fault", [Fault.ERROR, Fault.SHORT_READ])
def test_fault_of_a_read_is_an_error_that_names_the_key(name, part, fault):
    key = chunk_key(name, 1, 0)
    rule = Rule(fault, "read", key)
    store = faulty("memory://a/", name, rule)
    with pytest.raises(StoreIOError if fault is Fault.ERROR else CorruptChunkError) as caught:
        store[part].read().result()
    assert rule.injected == 1
    assert caught.value.key == f"a/{key}"
    assert f"a/{key}" in str(caught.value)
    assert np.array_equal(store[part].read().result(), values()[part])


@each("name", ["zarr2 zstd", "zarr3 bytes"])
@each("operation", ["read", "write"])
@each("fault", [Fault.ERROR, Fault.LOST_REPLY])
def test_fault_of_a_partial_write(name, operation, fault):
    key = chunk_key(name, 1, 0)
    store = faulty("memory://a/", name, Rule(fault, operation, key))
    with pytest.raises(StoreIOError) as caught:
        store[17, 3:5] = 1
    assert caught.value.key == f"a/{key}"
    found = store.read().result()
    changed = values()
    if operation == "write" and fault is Fault.LOST_REPLY:
        changed[17, 3:5] = 1
    assert np.array_equal(found, changed)


@pytest.mark.parametrize("name", ["zarr2 zstd", "zarr3 bytes"])
def test_stale_read_before_a_partial_write_is_found_out(name):
    key = chunk_key(name, 1, 0)
    rule = Rule(Fault.STALE, "read", key, skip=2, times=1)
    store = faulty("memory://a/", name, rule)
    store[17, 3] = 1
    store[17, 4] = 2
    store[17, 5] = 3
    assert rule.injected == 1
    changed = values()
    changed[17, 3:6] = [1, 2, 3]
    assert np.array_equal(store.read().result(), changed)


def test_writer_that_never_wins_ends_with_a_conflict(monkeypatch):
    """The pause is cut short; what is tested is that it ends, and how."""
    monkeypatch.setattr("gpustore.pipelines.value_change.LONGEST_DELAY_S", 0.0)
    monkeypatch.setattr("gpustore.pipelines.value_change.FIRST_DELAY_S", 0.0)
    key = chunk_key(NAME, 1, 0)
    store = faulty("memory://a/", NAME, Rule(Fault.STALE, "read", key, skip=1, times=10**6))
    store[17, 3] = 1
    with pytest.raises(ConflictError) as caught:
        store[17, 4] = 2
    assert caught.value.key == f"a/{key}"


# --------------------------------------------------------------------------- shards, crops, batches


def faulty_kvstore(*rules):
    """An opened kvstore in memory that goes wrong, and its rules."""
    kvstore = gpustore.KvStore.open("memory://a/").result()
    rules = list(rules)
    return gpustore.KvStore(FaultyKvStore(kvstore.driver, rules), kvstore.path), rules


def faulty_shard(rule):
    """An array of one shard with 16 inner chunks, over a kvstore that then goes wrong."""
    kvstore, rules = faulty_kvstore()
    shard = Shard("gzip", kvstore=kvstore)
    rules.append(rule)
    return shard


@each("way", WAYS)
@each("fault", [Fault.ERROR, Fault.SHORT_READ])
@each("skip", [0, 1], ids=["index", "inner chunks"])
def test_fault_of_a_read_of_a_shard(way, fault, skip):
    rule = Rule(fault, "read", "c/0/0", skip=skip)
    shard = faulty_shard(rule)
    failed = 0
    for part, reading in WAYS[way](shard.store):
        error = reading.exception()
        if error is None:
            assert np.array_equal(reading.result(), expected(shard.written, part))
            continue
        failed += 1
        assert isinstance(error, StoreIOError if fault is Fault.ERROR else CorruptChunkError)
        assert error.key == "a/c/0/0"
        assert "a/c/0/0" in str(error)
    assert rule.injected == 1
    assert failed == (way != "batch")  # Which reads each by itself when they fail together.
    for part, reading in WAYS[way](shard.store):
        assert np.array_equal(reading.result(), expected(shard.written, part))


@each("way", WAYS)
@each("name", ["zarr2 blosc lz4", "zarr3 bytes", "zarr3 crc32c"])
@each("fault", [Fault.ERROR, Fault.SHORT_READ])
def test_fault_of_a_read_in_any_way(way, name, fault):
    key = chunk_key(name, 0, 0)
    rule = Rule(fault, "read", key)
    store = faulty("memory://a/", name, rule)
    errors = [reading.exception() for _, reading in WAYS[way](store)]
    assert rule.injected == 1
    found = [error for error in errors if error is not None]
    assert len(found) == (way != "batch")  # Which reads each by itself when they fail together.
    for error in found:
        assert isinstance(error, StoreIOError if fault is Fault.ERROR else CorruptChunkError)
        assert error.key == f"a/{key}"
    for part, reading in WAYS[way](store):
        assert np.array_equal(reading.result(), expected(values(), part))


@pytest.mark.parametrize("operation", ["read", "write"])
@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST_REPLY])
def test_fault_of_a_write_of_a_part_of_a_shard(operation, fault):
    shard = faulty_shard(Rule(fault, operation, "c/0/0"))
    with pytest.raises(StoreIOError) as caught:
        shard.store[9, 3:5] = 1
    assert caught.value.key == "a/c/0/0"
    changed = shard.written.copy()
    if operation == "write" and fault is Fault.LOST_REPLY:
        changed[9, 3:5] = 1
    assert np.array_equal(shard.store.read().result(), changed)


@pytest.mark.parametrize(("operation", "succeed"), [("read", 0), ("read", 1), ("write", 0)])
@pytest.mark.parametrize("driver", ["zarr2", "zarr3"])
def test_fault_while_an_array_is_created(driver, operation, succeed):
    name = ".zarray" if driver == "zarr2" else "zarr.json"
    rule = Rule(Fault.ERROR, operation, name, skip=succeed)
    kvstore, _ = faulty_kvstore(rule)
    opening = gpustore.open(
        {"driver": driver}, kvstore=kvstore, create=True, open=True, dtype="uint8", shape=[3]
    )
    error = opening.exception()
    if rule.injected:
        assert isinstance(error, StoreIOError), repr(error)
        assert error.key == f"a/{name}"
        opening = gpustore.open(
            {"driver": driver}, kvstore=kvstore, create=True, dtype="uint8", shape=[3]
        )
    else:
        assert succeed
    assert not opening.result().read().result().any()


def test_fault_while_an_array_is_resized_or_deleted():
    kvstore, rules = faulty_kvstore()
    spec = {"driver": "zarr3"}
    chunks = gpustore.ChunkLayout(chunk_shape=[2])
    store = gpustore.open(
        spec, kvstore=kvstore, create=True, dtype="uint8", shape=[8], chunk_layout=chunks
    ).result()
    store[...] = 1
    for operation, key in (("read", "zarr.json"), ("write", "zarr.json"), ("write", "c/3")):
        rules[:] = [Rule(Fault.ERROR, operation, key)]
        with pytest.raises(StoreIOError) as caught:
            store.resize(exclusive_max=[4]).result()
        assert rules[0].injected == 1
        assert caught.value.key == f"a/{key}"
        found = gpustore.open(spec, kvstore=kvstore).result()
        assert found.read().result().tolist() == [1] * (8 if key == "zarr.json" else 4)
    rules[:] = [Rule(Fault.ERROR, "delete_range")]
    with pytest.raises(StoreIOError):
        gpustore.open(
            spec, kvstore=kvstore, create=True, delete_existing=True, dtype="uint8", shape=[3]
        ).result()
    assert rules[0].injected == 1
    assert gpustore.open(spec, kvstore=kvstore).result().shape == (4,)
