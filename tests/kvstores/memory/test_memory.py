"""The memory kvstore."""

# ruff: noqa: F403, F405  the shared suite is taken over by name

import pickle

import pytest

from gpustore.errors import UnsupportedError
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.context import Context
from tests.kvstores.contract import *
from tests.matrix import each


@pytest.fixture
def make_store():
    return lambda: KvStore.open("memory://").result()


def test_stores_of_one_context_share_values():
    context = Context({"memory_key_value_store#other": {}})
    first = KvStore.open("memory://a/", context=context).result()
    second = KvStore.open({"driver": "memory", "path": "a"}, context=context).result()
    json = {"driver": "memory", "memory_key_value_store": "memory_key_value_store#other"}
    other = KvStore.open(json, context=context).result()
    first["x"] = b"1"
    assert second["/x"] == b"1"
    assert "a/x" not in other
    assert "x" not in KvStore.open("memory://a/").result()


def test_retained_context_shares_values_but_pickle_does_not():
    store = KvStore.open("memory://a/").result()
    store["x"] = b"1"
    again = KvStore.open(store.spec(retain_context=True)).result()
    assert again["x"] == b"1"
    assert "x" not in pickle.loads(pickle.dumps(store))
    assert "x" not in KvStore.open(store.spec()).result()


@each("key", ["", "..", "a//b", "a/../b", "/a", "a/", "a\0b", "a\\b", "x.__lock"])
def test_any_key_is_legal(key):
    store = KvStore.open("memory://").result()
    store[key] = b"1"
    assert store.list().result() == [key.encode()]
    assert store[key] == b"1"


def test_keys_that_are_not_utf8_survive():
    store = KvStore.open("memory://").result()
    for key in (b"a\xff", b"a\xfe", b"a\xc3\xa9", b"b"):
        store[key] = key
    assert store[b"a\xff"] == b"a\xff"
    assert store.list().result() == [b"a\xc3\xa9", b"a\xfe", b"a\xff", b"b"]
    wanted = KvStore.KeyRange(b"a\xfe", b"a\xff")
    assert store.list(wanted).result() == [b"a\xfe"]
    store.delete_range(wanted).result()
    assert store.list().result() == [b"a\xc3\xa9", b"a\xff", b"b"]


def test_written_buffer_may_be_changed_afterwards(store):
    value = bytearray(b"abc")
    put(store, "a", value)
    value[:] = b"xyz"
    assert store["a"] == b"abc"


def test_locating_is_refused_with_a_typed_error(store):
    with pytest.raises(UnsupportedError, match='"memory" does not support locating values'):
        store.locate_many(["a"])
