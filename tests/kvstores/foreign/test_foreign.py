"""Kvstores over stores of zarr-python: the contract, as far as values without generations keep it.

Left out is what asks for generations of values, or for the length of a value that is read in part.
"""

# ruff: noqa: F401, F811  the shared suite is taken over by name

import asyncio
import gc
import importlib.util
import pickle
import re
import threading
import warnings

import numpy as np
import pytest

import gpustore
from gpustore.errors import StoreIOError, UnsupportedError
from gpustore.kvstores.columns import ABSENT, ReadRequest, ReadState, WriteRequest
from gpustore.kvstores.foreign import ForeignKvStore
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.contract import (
    make_filled,
    store,
    test_arena_holds_every_value_of_a_batch,
    test_byte_range_outside_value_is_an_error_that_names_the_key,
    test_byte_ranges_may_be_numpy_columns,
    test_delete_range_deletes_only_the_range,
    test_deleting_a_missing_key_succeeds,
    test_directories_are_listed_one_level_deep,
    test_failure_of_one_key_leaves_the_others,
    test_list_is_sorted_and_respects_the_range,
    test_located_values_lie_where_it_says,
    test_missing_key_is_a_result,
    test_one_key_many_times_in_a_batch,
    test_value_longer_than_allowed_is_an_error_that_names_the_key,
)
from tests.matrix import each

storage = pytest.importorskip("zarr.storage", reason="zarr-python is not installed")

from zarr.core.buffer.cpu import buffer_prototype  # noqa: E402
from zarr.core.sync import sync  # noqa: E402

from gpustore.interop.zarr import store as calls  # noqa: E402

MAKE = {
    "memory": lambda path: storage.MemoryStore(),
    "local": lambda path: storage.LocalStore(path / "local"),
    "wrapped": lambda path: storage.WrapperStore(storage.MemoryStore()),
}
if importlib.util.find_spec("obstore") is not None:
    from obstore.store import MemoryStore

    MAKE["object"] = lambda path: storage.ObjectStore(MemoryStore())


@pytest.fixture(params=MAKE)
def make_store(request, tmp_path):
    numbers = iter(range(100))
    return lambda: KvStore.from_zarr_store(MAKE[request.param](tmp_path / str(next(numbers))))


def put(store, key, value, if_equal=b""):
    columns = store.write_many(WriteRequest([key], [value], [if_equal]))
    columns.raise_first()
    return columns.generation[0]


@each("nbytes", [0, 1, 300_001])
def test_values_are_read_back_without_a_generation(store, nbytes):
    value = bytes(i % 251 for i in range(nbytes))
    assert put(store, "a/b", memoryview(value)) not in (b"", ABSENT)
    columns = store.read_many(ReadRequest(["a/b"]))
    assert bytes(columns.value[0]) == value
    assert (columns.generation, columns.total) == ([b""], [nbytes])


@each(
    ("start", "stop"),
    [(0, 0), (0, 4), (2, 5), (0, 10), (10, 10), (10, None), (0, None), (-3, None), (-10, None)],
)
def test_byte_range_inside_value_is_read(store, start, stop):
    put(store, "a", b"0123456789")
    columns = store.read_many(ReadRequest(["a"], start=[start], stop=[stop]))
    columns.raise_first()
    assert bytes(columns.value[0]) == b"0123456789"[start:stop]


def test_writes_on_condition_that_there_is_no_value(store):
    assert put(store, "a", b"1", ABSENT)
    assert put(store, "a", b"2", ABSENT) == b""
    assert store["a"] == b"1"
    assert put(store, "b", None, ABSENT) == ABSENT


def test_other_conditions_are_refused(store):
    generation = put(store, "a", b"1")
    with pytest.raises(UnsupportedError, match="conditions on generations"):
        put(store, "a", b"2", generation)
    columns = store.read_many(ReadRequest(["a", "none"], if_equal=[generation, ABSENT]))
    assert isinstance(columns.error[0], UnsupportedError)
    assert columns.state[1] is ReadState.MISSING
    columns = store.read_many(ReadRequest(["a"], if_equal=[ABSENT]))
    assert columns.state == [ReadState.UNSPECIFIED]
    columns = store.read_many(ReadRequest(["a"], if_not_equal=[generation]))
    assert columns.state == [ReadState.VALUE]


def test_same_key_twice_in_a_batch_is_written_in_order(store):
    keys, values = ["a", "b", "a", "b"], [b"1", b"1", b"2", None]
    columns = store.write_many(WriteRequest(keys, values, [b"", b"", ABSENT, b""]))
    assert columns.generation[2:] == [b"", ABSENT]
    assert store["a"] == b"1"
    assert "b" not in store


@pytest.mark.matrix("costly")
@each("zarr_format", [2, 3])
@each("kind", MAKE)
def test_arrays_and_groups(kind, zarr_format, tmp_path):
    inner = MAKE[kind](tmp_path)
    root = KvStore.from_zarr_store(inner)
    group = gpustore.open_group(root, create=True, zarr_format=zarr_format).result()
    values = np.arange(40 * 30).reshape(40, 30)
    group.create_array("a/x", data=values, chunks=(8, 7), codec="zstd").result()
    found = gpustore.open_group(KvStore.from_zarr_store(inner)).result()["a/x"]
    found[3:20, 5:9] = 0
    values[3:20, 5:9] = 0
    np.testing.assert_array_equal(found.read().result(), values)
    found.attrs["by"] = "gpustore"
    theirs = pytest.importorskip("zarr").open_group(inner)["a/x"]
    assert dict(theirs.attrs) == {"by": "gpustore"}
    np.testing.assert_array_equal(theirs[:], values)
    resized = found.resize(exclusive_max=[50, 30]).result()
    assert resized.shape == (50, 30)
    detected = gpustore.open({"driver": "auto"}, kvstore=root / "a/x").result()
    assert detected.shape == (50, 30)


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_what_is_in_it_is_copied_but_nothing_into_it(tmp_path, kind):
    root = KvStore.from_zarr_store(MAKE[kind](tmp_path))
    values = np.arange(40 * 30).reshape(40, 30)
    group = gpustore.open_group(root, create=True, attributes={"n": 1}).result()
    group.create_array("a/x", data=values, chunks=(8, 7), dims=("y", "x")).result()
    place = root / "a/x"
    opened = gpustore.open(place).result()
    for number, source in enumerate((place, opened, opened[:, 3:], group, root)):
        copied = gpustore.copy(source, tmp_path / f"copy{number}")
        if isinstance(copied, gpustore.Group):
            assert dict(copied.attrs) == {"n": 1}
            copied = copied["a/x"]
        assert copied.domain.labels == ("y", "x")
        np.testing.assert_array_equal(copied.read().result(), values[:, 30 - copied.shape[1] :])
    again = gpustore.save(root / "b", group["a/x"])
    np.testing.assert_array_equal(again.read().result(), values)
    with pytest.raises(UnsupportedError, match="; a copy needs a place that can be opened again"):
        gpustore.copy([1], root / "c")
    if kind == "local":
        for source in (place, group):
            with pytest.raises(gpustore.CopyError, match="overlaps the source"):
                gpustore.copy(source, tmp_path / "local" / "a" / "x", overwrite=True)


class Picky(storage.WrapperStore):
    """A store that has keys of Zarr v3 only, as icechunk's."""

    async def get(self, key, prototype, byte_range=None):
        self.check(key)
        return await super().get(key, prototype, byte_range)

    async def getsize(self, key):
        self.check(key)
        if await super().get(key, buffer_prototype) is None:
            raise KeyError(f"key not found at `{key}`")
        return await super().getsize(key)

    def check(self, key):
        if not re.search(r"(^|/)(zarr\.json|c/[0-9/]+)$", key):
            raise RuntimeError(f"invalid zarr key format `{key}`")


def test_keys_that_a_store_cannot_have_are_missing():
    inner = Picky(storage.MemoryStore())
    group = gpustore.open_group(KvStore.from_zarr_store(inner), create=True).result()
    group.create_array("x", data=np.arange(9), chunks=4).result()
    found = gpustore.open_group(KvStore.from_zarr_store(inner)).result()["x"]
    np.testing.assert_array_equal(found.read().result(), np.arange(9))


def test_a_session_of_icechunk():
    icechunk = pytest.importorskip("icechunk", reason="icechunk is not installed")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    group = gpustore.open_group(KvStore.from_zarr_store(session.store), create=True).result()
    group.create_array("a/x", data=np.arange(9), chunks=4).result()
    session.commit("made")
    again = KvStore.from_zarr_store(repository.readonly_session("main").store)
    found = gpustore.open_group(again).result()["a/x"]
    np.testing.assert_array_equal(found.read().result(), np.arange(9))
    assert not found.writable


def test_shards_are_read_by_ranges():
    inner = storage.MemoryStore()
    kvstore = KvStore.from_zarr_store(inner)
    made = gpustore.create_array(
        {"driver": "zarr3"}, kvstore=kvstore, shape=(64, 64), dtype="uint16", chunks=8, shards=64
    ).result()
    made[...] = values = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    part = made[8:16, 8:16].read()
    np.testing.assert_array_equal(part.result(), values[8:16, 8:16])
    assert part.statistics["bytes_fetched"] < values.nbytes / 2


def test_read_only_stores_refuse_to_write():
    inner = storage.MemoryStore()
    KvStore.from_zarr_store(inner)["a"] = b"1"
    kvstore = KvStore.from_zarr_store(inner.with_read_only(True))
    assert kvstore["a"] == b"1"
    with pytest.raises(UnsupportedError, match='"zarr_store" does not support writing: the store'):
        kvstore["a"] = b"2"
    with pytest.raises(UnsupportedError, match="does not support deleting"):
        kvstore.delete_range(KvStore.KeyRange()).result()


class Broken(storage.MemoryStore):
    """A store whose reads fail."""

    async def get(self, key, prototype, byte_range=None):
        raise ConnectionResetError(104, "gone")


def test_failures_name_the_key_and_the_store():
    kvstore = KvStore.from_zarr_store(Broken())
    with pytest.raises(
        StoreIOError, match=re.escape('Error reading "a/b" in MemoryStore(')
    ) as caught:
        kvstore["a/b"]
    assert caught.value.errno == 104
    assert isinstance(caught.value.__cause__, ConnectionResetError)


def test_specs_are_objects_without_json(tmp_path):
    kvstore = KvStore.from_zarr_store(storage.LocalStore(tmp_path)) / "a"
    kvstore["b"] = b"1"
    spec = kvstore.spec()
    for text in (spec.to_json, lambda: spec.url, lambda: kvstore.url):
        with pytest.raises(UnsupportedError, match=r"has no (JSON|URL): it is an object of this"):
            text()
    assert repr(kvstore) == f"KvStore(LocalStore('file://{tmp_path}') + 'a')"
    assert repr(spec) == f"KvStore.Spec(LocalStore('file://{tmp_path}') + 'a')"
    assert spec == kvstore.spec(retain_context=True)
    assert spec != KvStore.Spec("memory://")
    for again in (KvStore.open(spec).result(), pickle.loads(pickle.dumps(kvstore))):
        assert again["b"] == b"1"
    assert KvStore.open(pickle.loads(pickle.dumps(spec))).result()["b"] == b"1"


def test_arrays_and_groups_are_shown_and_opened_again():
    kvstore = KvStore.from_zarr_store(storage.MemoryStore())
    group = gpustore.open_group(kvstore, create=True).result()
    made = group.create_array("a", data=np.arange(20), chunks=5).result()
    for text in (repr(made), repr(group.info), group._repr_html_()):
        assert "MemoryStore(" in text
    assert "chunk" in repr(made.info)
    assert "chunks" in made._repr_html_()
    # JSON names no kvstore, for which another place may stand.
    json = made.spec().to_json()
    assert "kvstore" not in json
    again = gpustore.open(json, kvstore=kvstore / "a").result()
    np.testing.assert_array_equal(again.read().result(), np.arange(20))
    again = gpustore.open(made.spec()).result()
    np.testing.assert_array_equal(again.read().result(), np.arange(20))


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match=r"expected a zarr\.abc\.store\.Store, got \{\}"):
        KvStore.from_zarr_store({})


@pytest.mark.matrix("costly")
def test_a_later_store_is_another_to_caches():
    """CPython gives the id of an object again once the object is gone."""
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 1_000_000}})
    for value in range(20):
        inner = storage.MemoryStore()
        group = gpustore.open_group(KvStore.from_zarr_store(inner), create=True).result()
        group.create_array("a", data=np.full(4, value), chunks=4).result()
        del group
        found = gpustore.open(
            {"driver": "zarr3", "recheck_cached_data": False, "recheck_cached_metadata": False},
            kvstore=KvStore.from_zarr_store(inner) / "a",
            context=context,
        ).result()
        assert found.read().result().tolist() == [value] * 4
        del found, inner
        gc.collect()


def test_kvstores_over_one_store_are_one_to_caches():
    inner = storage.MemoryStore()
    one, other = (KvStore.from_zarr_store(inner) for _ in range(2))
    assert one.driver.identity == other.driver.identity
    assert one.driver.identity != KvStore.from_zarr_store(storage.MemoryStore()).driver.identity


class Slotted:
    """A store object that takes no weak references."""

    __slots__ = ("can_delete", "can_list", "can_write", "in_memory")

    def __init__(self):
        self.can_delete = self.can_list = self.can_write = self.in_memory = True

    @property
    def object(self):
        return self


def test_stores_without_weak_references_are_kept_apart():
    assert len({ForeignKvStore(Slotted(), "slotted").identity for _ in range(20)}) == 20
    one = Slotted()
    assert ForeignKvStore(one, "a").identity == ForeignKvStore(one, "a").identity


# ------------------------------------------------------------------------- event loops


def test_coroutines_run_in_the_loop_that_was_given(tmp_path):
    seen = []

    class Noting(storage.LocalStore):
        async def get(self, key, prototype, byte_range=None):
            seen.append(threading.get_ident())
            return await super().get(key, prototype, byte_range)

    inner = Noting(tmp_path)

    async def run():
        kvstore = KvStore.from_zarr_store(inner, loop=asyncio.get_running_loop())
        await kvstore.write("a", b"1")
        return (await kvstore.read("a")).value

    assert asyncio.run(run()) == b"1"
    assert set(seen) == {threading.get_ident()}


def test_waiting_inside_the_loop_of_zarr_python_is_an_error(tmp_path, monkeypatch):
    """It would be a deadlock; the thread of the loop waits for threads that need the loop."""
    monkeypatch.setattr(calls, "BLOCKED_S", 0.02)
    kvstore = KvStore.from_zarr_store(storage.LocalStore(tmp_path))
    kvstore["a"] = b"1"

    async def directly():
        return kvstore["a"]

    async def by_a_thread():
        return kvstore.read("a").result().value

    async def awaited():
        return (await kvstore.read("a")).value

    for blocked in (directly, by_a_thread):
        with pytest.raises(UnsupportedError, match="waits for gpustore, which waits for the loop"):
            sync(blocked())
    assert sync(awaited()) == b"1"


class Slow(storage.LocalStore):
    """A store whose reads wait until they are allowed to end."""

    def __init__(self, root):
        super().__init__(root)
        self.began, self.allowed = threading.Event(), threading.Event()

    async def get(self, key, prototype, byte_range=None):
        self.began.set()
        while not self.allowed.is_set():
            await asyncio.sleep(0.001)
        return await super().get(key, prototype, byte_range)


def test_a_loop_that_waits_for_a_read_under_way_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "BLOCKED_S", 0.05)
    inner = Slow(tmp_path)
    kvstore = KvStore.from_zarr_store(inner)

    async def late():
        future = kvstore.read("a")
        while not inner.began.is_set():
            await asyncio.sleep(0.001)
        return future.result(timeout=20)

    with pytest.raises(UnsupportedError, match="waits for gpustore, which waits for the loop"):
        sync(late())


@each("state", ["closed", "stopped", "never run"])
def test_a_loop_that_does_not_run_is_an_error(tmp_path, monkeypatch, state):
    monkeypatch.setattr(calls, "BLOCKED_S", 0.02)
    loop = asyncio.new_event_loop()
    if state != "never run":
        loop.run_until_complete(asyncio.sleep(0))
    if state == "closed":
        loop.close()
    kvstore = KvStore.from_zarr_store(storage.LocalStore(tmp_path), loop=loop)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = "is closed" if state == "closed" else "does not run"
        with pytest.raises(StoreIOError, match=f"loop that is to run the store {text}"):
            kvstore.read("a").result(timeout=20)
        gc.collect()
        loop.close()
        gc.collect()


def test_a_loop_that_starts_late_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "BLOCKED_S", 1)
    loop = asyncio.new_event_loop()
    kvstore = KvStore.from_zarr_store(storage.LocalStore(tmp_path), loop=loop)
    future = kvstore.write("a", b"1")
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    future.result(timeout=20)
    assert kvstore["a"] == b"1"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_loop_that_ends_during_a_read_is_an_error(tmp_path):
    inner = Slow(tmp_path)

    async def begin():
        future = KvStore.from_zarr_store(inner, loop=asyncio.get_running_loop()).read("a")
        while not inner.began.is_set():
            await asyncio.sleep(0.001)
        return future

    future = asyncio.run(begin())
    with pytest.raises(StoreIOError, match="cancelled the call"):
        future.result(timeout=20)
