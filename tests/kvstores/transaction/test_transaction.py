"""A kvstore in a transaction: a kvstore whose changes nobody sees before the commit."""

# ruff: noqa: F403  the contract is taken over by name

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpustore import ConflictError, Transaction, TransactionError
from gpustore.kvstores.columns import ReadRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.context import Context
from tests.kvstores.contract import *
from tests.matrix import each

TOGETHER = ["memory://", "memory://d/|ocdbt:", "memory://a.zip|zip:"]


@pytest.fixture
def make_store():
    """Kvstores in one open transaction each."""

    def make():
        return KvStore.open("memory://", context=Context(), transaction=Transaction()).result()

    return make


def open_(url, tmp_path):
    return KvStore.open(url.replace("file:", f"file://{tmp_path}/"), context=Context()).result()


def fill(store, **values):
    for key, value in values.items():
        store[key] = value


def content(store):
    return {key.decode(): store[key] for key in store.list().result()}


@each("url", [*TOGETHER, {"driver": "memory", "atomic": False}, "file:"])
def test_changes_are_seen_inside_at_once_and_outside_after_the_commit(url, tmp_path):
    url = url if isinstance(url, dict) else url.replace("file:", f"file://{tmp_path}/")
    store = KvStore.open(url, context=Context()).result()
    fill(store, a=b"1", b=b"2", c=b"3", d=b"4")
    transaction = Transaction()
    staged = store.with_transaction(transaction)
    staged.write("a", b"new")
    staged.delete_range(KvStore.KeyRange("b", "d"))
    staged.write("c", b"again")
    staged.write("e", b"5")
    del staged["d"]
    expected = {"a": b"new", "c": b"again", "e": b"5"}
    assert content(staged) == expected
    assert content(store) == {"a": b"1", "b": b"2", "c": b"3", "d": b"4"}
    transaction.commit_sync()
    assert content(store) == expected
    for use in (lambda: staged.read("a").result(), lambda: staged.write("a", b"").result()):
        with pytest.raises(TransactionError, match=r"not open \(commit already started\)"):
            use()
    assert staged.with_transaction(None).transaction is None
    assert content(staged.with_transaction(Transaction())) == expected


@each("atomic", [False, True])
@each("url", [*TOGETHER, "file:"])
def test_failed_condition_fails_the_commit(url, atomic, tmp_path):
    store = open_(url, tmp_path)
    fill(store, a=b"1")
    seen = store.read("a").result().stamp.generation
    transaction = Transaction(atomic=atomic)
    staged = store.with_transaction(transaction)
    assert staged.write("a", b"2", if_equal=seen).result().generation
    store["a"] = b"other"
    with pytest.raises(ConflictError, match=r"Error writing .*: Generation mismatch"):
        transaction.commit_sync()
    assert store["a"] == b"other"


@each("meets", [False, True])
@each("url", [*TOGETHER, "file:"])
def test_the_commit_looks_at_conditions(url, meets, tmp_path):
    store = open_(url, tmp_path)
    fill(store, a=b"1")
    transaction = Transaction()
    staged = store.with_transaction(transaction)
    staged.write("a", b"2", if_equal=b"\x02").result()
    assert (staged["a"], store["a"]) == (b"2", b"1")
    if meets:
        del store["a"]
        transaction.commit_sync()
    else:
        with pytest.raises(ConflictError, match=r"Error writing .*: Generation mismatch"):
            transaction.commit_sync()
    assert store["a"] == (b"2" if meets else b"1")


@each("url", TOGETHER)
def test_atomic_changes_are_made_all_or_none(url, tmp_path):
    store = open_(url, tmp_path)
    fill(store, a=b"1", b=b"2")
    seen = store.read("b").result().stamp.generation
    transaction = Transaction(atomic=True)
    staged = store.with_transaction(transaction)
    staged["a"] = b"new"
    staged.write("b", b"new", if_equal=seen).result()
    staged.delete_range(KvStore.KeyRange("c")).result()
    fill(store, b=b"other", d=b"4")
    with pytest.raises(ConflictError):
        transaction.commit_sync()
    assert content(store) == {"a": b"1", "b": b"other", "d": b"4"}


def test_copies_of_ranges_belong_to_the_transaction():
    source = KvStore.open("memory://s/").result()
    fill(source, a=b"1", b=b"2")
    target = KvStore.open("memory://t/").result()
    transaction = Transaction()
    staged = target.with_transaction(transaction)
    source.experimental_copy_range_to(staged)  # The commit waits for it.
    transaction.commit_async().result()
    assert content(target) == {"a": b"1", "b": b"2"}
    with Transaction() as transaction:
        staged = target.with_transaction(transaction)
        staged["c"] = b"3"
        staged.experimental_copy_range_to(staged / "deep").result()
        staged.experimental_copy_range_to(source).result()
    assert content(source)["c"] == b"3"
    assert content(target) == content(source)


def test_transaction_of_a_kvstore_may_be_set():
    store = KvStore.open("memory://s/").result()
    store.transaction = transaction = Transaction()
    store["a"] = b"1"
    assert store.transaction is transaction
    store.transaction = None
    assert "a" not in store
    transaction.commit_sync()
    assert store["a"] == b"1"
    with pytest.raises(TypeError, match="Invalid transaction"):
        store.transaction = 3


def test_keys_outside_of_a_deleted_range_stay():
    store = KvStore.open({"driver": "memory", "atomic": False}, context=Context()).result()
    fill(store, **{"a/a": b"1", "a/b": b"2", "a/d": b"3"})
    with Transaction() as transaction:
        staged = store.with_transaction(transaction)
        staged.delete_range(KvStore.KeyRange("a", "a/c"))
        staged.write("a", b"4")
    assert content(store) == {"a": b"4", "a/d": b"3"}


def test_kvstores_in_a_transaction_have_the_spec_of_the_kvstore():
    store = KvStore.open("memory://s/").result()
    staged = store.with_transaction(Transaction())
    assert staged.spec() == store.spec()
    assert (repr(staged), staged.url) == (repr(store), store.url)
    assert KvStore.open(staged.spec(retain_context=True)).result().transaction is None
    with pytest.raises(TransactionError, match="Cannot serialize KvStore with bound transaction"):
        pickle.dumps(staged)


@each("url", TOGETHER)
def test_batches_of_reads_see_all_changes_or_none(url, tmp_path):
    store = open_(url, tmp_path)
    keys = ["a", "b", "c"]
    fill(store, **dict.fromkeys(keys, b"0"))
    stop = threading.Event()
    seen = set()

    def look():
        while not stop.is_set():
            seen.add(tuple(map(bytes, store.read_many(ReadRequest(keys)).value)))

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        for i in range(20):
            with Transaction(atomic=True) as transaction:
                fill(store.with_transaction(transaction), **dict.fromkeys(keys, b"%d" % i))
        stop.set()
        looking.result()
    assert all(len(set(values)) == 1 for values in seen)
