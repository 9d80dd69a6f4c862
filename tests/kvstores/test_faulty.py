"""The wrapper that injects faults: without rules it changes nothing, with them what they say."""

# ruff: noqa: F403, F405  the shared suite is taken over by name

import itertools

import pytest

from gpustore.errors import StoreIOError
from gpustore.kvstores.columns import ReadRequest, WriteRequest
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.contract import *
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule


@pytest.fixture(params=["memory", "file"])
def make_store(request, tmp_path):
    numbers = itertools.count()

    def make(*rules):
        json = {"driver": "memory"}
        if request.param == "file":
            path = f"{tmp_path}/{next(numbers)}/"
            json = {"driver": "file", "path": path, "file_io_sync": False}
        inner = KvStore.open(json).result()
        return KvStore(FaultyKvStore(inner.driver, rules), inner.path)

    return make


@pytest.fixture
def model_examples():
    return 30


def test_error_is_reported_for_the_chosen_key_and_number(make_store):
    rule = Rule(Fault.ERROR, "read", key="b", skip=1, times=2)
    store = make_store(rule)
    store.write_many(WriteRequest(["a", "b"], [b"1", b"2"])).raise_first()
    failed = [sorted(store.read_many(ReadRequest(["a", "b"])).error) for _ in range(4)]
    assert failed == [[], [1], [1], []]
    assert rule.injected == 2


def test_failed_write_changes_nothing_and_lost_reply_does(make_store):
    rules = Rule(Fault.ERROR, "write", "a"), Rule(Fault.LOST_REPLY, "write", "b")
    store = make_store(*rules)
    columns = store.write_many(WriteRequest(["a", "b", "c"], [b"1", b"2", b"3"]))
    assert sorted(columns.error) == [0, 1]
    assert columns.generation[:2] == [b"", b""]
    with pytest.raises(StoreIOError, match=r"^UNAVAILABLE: injected failure to write"):
        columns.raise_first()
    assert "a" not in store
    assert store["b"] == b"2"
    assert store["c"] == b"3"


def test_short_read_gives_half_of_the_bytes(make_store):
    store = make_store(Rule(Fault.SHORT_READ))
    store["a"] = b"0123456789"
    assert get(store, "a")[1] == b"01234"
    assert get(store, "a")[1] == b"0123456789"


def test_stale_read_gives_the_value_of_before_the_write(make_store):
    store = make_store(Rule(Fault.STALE, skip=1))
    store["a"] = b"old"
    old = get(store, "a")
    store["a"] = b"new"
    assert get(store, "a") == old
    assert get(store, "a")[1] == b"new"


@pytest.mark.parametrize("operation", ["list", "delete_range"])
def test_failing_range_operation_raises(make_store, operation):
    store = make_store(Rule(Fault.ERROR, operation))
    store["a"] = b"1"
    call = store.list if operation == "list" else store.delete_range
    with pytest.raises(StoreIOError, match="injected failure"):
        call(KvStore.KeyRange()).result()
    assert store.list().result() == [b"a"]
