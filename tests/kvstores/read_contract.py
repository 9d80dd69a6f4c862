"""Contract of every kvstore that can be read, also of read-only ones.

A test module of a kvstore that cannot be written takes it over with two lines::

from tests.kvstores.read_contract import *

@pytest.fixture
def make_filled(): return lambda values: <a new KvStore with these values by key>

Others take over :mod:`tests.kvstores.contract`, which contains it.
"""

import re
import zlib

import numpy as np
import pytest

from gpustore.errors import LimitError, MismatchError, UnsupportedError
from gpustore.kvstores.arena import Arena
from gpustore.kvstores.columns import ABSENT, ReadRequest, ReadState
from gpustore.kvstores.kvstore import KvStore
from tests.matrix import each

__all__ = [
    "get",
    "test_arena_holds_every_value_of_a_batch",
    "test_byte_range_inside_value_is_read",
    "test_byte_range_outside_value_is_an_error_that_names_the_key",
    "test_byte_ranges_may_be_numpy_columns",
    "test_conditional_read_skips_the_value",
    "test_directories_are_listed_one_level_deep",
    "test_failure_of_one_key_leaves_the_others",
    "test_list_is_sorted_and_respects_the_range",
    "test_located_values_lie_where_it_says",
    "test_missing_key_is_a_result",
    "test_one_key_many_times_in_a_batch",
    "test_value_is_read",
    "test_value_longer_than_allowed_is_an_error_that_names_the_key",
]


def get(store, key, **options):
    columns = store.read_many(ReadRequest([key], **options))
    columns.raise_first()
    value = columns.value[0]
    return columns.state[0], None if value is None else bytes(value), columns.generation[0]


@each("nbytes", [0, 1, 4096, 300_001])
def test_value_is_read(make_filled, nbytes):
    value = bytes(i % 251 for i in range(nbytes))
    store = make_filled({"a/b": value, "a/c": b"other"})
    columns = store.read_many(ReadRequest(["a/b"]))
    assert columns.state == [ReadState.VALUE]
    assert columns.generation[0] not in (b"", ABSENT)
    assert columns.total == [nbytes]
    assert bytes(columns.value[0]) == value
    assert not columns.error


def test_one_key_many_times_in_a_batch(make_filled):
    value = bytes(range(100))
    store = make_filled({"a": value})
    starts = list(range(0, 100, 10))
    request = ReadRequest(["a"] * 10, start=starts, stop=[start + 10 for start in starts])
    columns = store.read_many(request)
    columns.raise_first()
    assert b"".join(map(bytes, columns.value)) == value
    assert len(set(columns.generation)) == 1


def test_located_values_lie_where_it_says(make_filled):
    values = {"a": b"0123", "b/c": b"", "d": bytes(5000)}
    store = make_filled(values)
    assert store.nbytes_many([*values, "none"]) == [4, 0, 5000, -1]
    if store.driver.can_list:
        assert store.list_nbytes().result() == ({"a": 4, "b/c": 0, "d": 5000}, {})
        assert (store + "b/").list_nbytes().result() == ({"c": 0}, {})
    try:
        columns = store.locate_many([*values, "none"])
    except UnsupportedError:
        assert not store.driver.locates_files
        return
    columns.raise_first()
    assert columns.nbytes == [4, 0, 5000, -1]
    assert columns.generation[-1] == ABSENT
    for i, (key, value) in enumerate(values.items()):
        assert columns.generation[i] == get(store, key)[2]
        assert columns.crc32[i] in (None, zlib.crc32(value))
        if columns.path[i] is not None:
            with open(columns.path[i], "rb") as file:
                file.seek(columns.offset[i])
                assert file.read(columns.nbytes[i]) == value
    # An archive locates the values that are stored as they are.
    assert store.driver.locates_files <= any(path is not None for path in columns.path)


def test_missing_key_is_a_result(make_filled):
    store = make_filled({"x": b"1", "b/d": b"2"})
    columns = store.read_many(ReadRequest(["a", "b/c"], start=[3, -2], stop=[5, None]))
    assert columns.state == [ReadState.MISSING] * 2
    assert columns.generation == [ABSENT] * 2
    assert columns.value == [None] * 2
    assert not columns.error


def test_conditional_read_skips_the_value(make_filled):
    store = make_filled({"a": b"1", "b": b"2"})
    generation, other = get(store, "a")[2], get(store, "b")[2]
    assert len({generation, other, ABSENT, b""}) == 4
    unspecified = (ReadState.UNSPECIFIED, None, generation)
    assert get(store, "a", if_not_equal=[generation]) == unspecified
    assert get(store, "a", if_equal=[other]) == unspecified
    assert get(store, "a", if_equal=[ABSENT]) == unspecified
    value = (ReadState.VALUE, b"1", generation)
    assert get(store, "a", if_equal=[generation]) == value
    assert get(store, "a", if_not_equal=[other]) == value
    assert get(store, "a", if_equal=[b""], if_not_equal=[b""]) == value
    # A value that has gone must not look like one that never was: the condition did not hold.
    assert get(store, "z", if_equal=[generation]) == (ReadState.UNSPECIFIED, None, ABSENT)
    assert get(store, "z", if_equal=[ABSENT]) == (ReadState.MISSING, None, ABSENT)
    assert get(store, "z", if_not_equal=[ABSENT]) == (ReadState.MISSING, None, ABSENT)


@each(
    ("start", "stop"),
    [(0, 0), (0, 4), (2, 5), (0, 10), (10, 10), (10, None), (0, None), (-3, None), (-10, None)],
)
def test_byte_range_inside_value_is_read(make_filled, start, stop):
    store = make_filled({"a": b"0123456789"})
    columns = store.read_many(ReadRequest(["a"], start=[start], stop=[stop]))
    columns.raise_first()
    assert bytes(columns.value[0]) == b"0123456789"[start:stop]
    assert columns.total == [10]


def test_byte_ranges_may_be_numpy_columns(make_filled):
    store = make_filled({"a": b"0123", "b": b"4567"})
    columns = store.read_many(
        ReadRequest(["a", "b"], start=np.array([0, 2]), stop=np.array([2, 4]), into=Arena())
    )
    columns.raise_first()
    assert [bytes(value) for value in columns.value] == [b"01", b"67"]


@each(("start", "stop"), [(0, 11), (11, None), (20, 30), (-11, None)])
def test_byte_range_outside_value_is_an_error_that_names_the_key(make_filled, start, stop):
    store = make_filled({"a": b"0123456789"})
    columns = store.read_many(ReadRequest(["a"], start=[start], stop=[stop]))
    end = "?" if stop is None else stop
    text = f"Requested byte range [{start}, {end}) is not valid for value of size 10"
    with pytest.raises(MismatchError, match=f"^OUT_OF_RANGE: {re.escape(text)}") as caught:
        columns.raise_first()
    assert caught.value.key.endswith("a")
    assert columns.state == [ReadState.UNSPECIFIED]


def test_value_longer_than_allowed_is_an_error_that_names_the_key(make_filled):
    store = make_filled({"a/b": b"0123456789"})
    assert get(store, "a/b", max_nbytes=10)[1] == b"0123456789"
    assert get(store, "a/b", max_nbytes=3, start=[4], stop=[7])[1] == b"456"
    arena = Arena()
    columns = store.read_many(ReadRequest(["a/b"], max_nbytes=9, into=arena))
    with pytest.raises(LimitError, match=r'a/b".* has 10 bytes, at most 9 are expected') as caught:
        columns.raise_first()
    assert caught.value.key.endswith("a/b")


def test_arena_holds_every_value_of_a_batch(make_filled):
    keys = [f"k/{i}" for i in range(30)]
    values = [bytes([i]) * (i * 37) for i in range(30)]
    store = make_filled(dict(zip(keys, values, strict=True)))
    arena = Arena(256)
    for _ in range(3):
        columns = store.read_many(ReadRequest([*keys, "none"], into=arena))
        columns.raise_first()
        assert [bytes(value) for value in columns.value[:-1]] == values
        assert all(isinstance(value, memoryview) for value in columns.value[:-1])
        assert not any(value.readonly for value in columns.value[:-1])
        assert columns.value[-1] is None
        arena.reset()


def test_failure_of_one_key_leaves_the_others(make_filled):
    store = make_filled({"a": b"12", "b": b"123"})
    columns = store.read_many(ReadRequest(["a", "b", "c"], start=[2, 2, 2], stop=[3, 3, 3]))
    assert columns.state == [ReadState.UNSPECIFIED, ReadState.VALUE, ReadState.MISSING]
    assert list(columns.error) == [0]
    assert bytes(columns.value[1]) == b"3"


def test_list_is_sorted_and_respects_the_range(make_filled):
    names = ["日本", "é", "b/b", "b/a/c", "a0", "a/b.c", "a/b", "a.b"]
    store = make_filled(dict.fromkeys(names, b"x"))
    if not store.driver.can_list:
        with pytest.raises(UnsupportedError, match="does not support listing"):
            store.list().result()
        return
    encoded = sorted(name.encode() for name in names)

    def listed(low="", high=""):
        return store.list(KvStore.KeyRange(low, high)).result()

    assert listed() == encoded
    for low in ("", "a", "a/", "a/b", "a/b.", "b/a/c", "b/c", "z"):
        for high in ("", "a/", "a/b.", "a0", "b/a/c0", "b0", "é"):
            wanted = [k for k in encoded if k >= low.encode() and (not high or k < high.encode())]
            assert listed(low, high) == wanted
    assert (store + "b").list().result() == [b"/a/c", b"/b"]
    assert (store + "b/").list(strip_prefix_length=2).result() == [b"c", b""]
    assert (store + "a.").list().result() == [b"b"]
    assert (store + "none/").list().result() == []


def test_directories_are_listed_one_level_deep(make_filled):
    names = ["a/b/c", "a/b/d", "a/x", "a.b/y", "日本/z", "top", "a/b/e/f"]
    store = make_filled(dict.fromkeys(["q/" + name for name in names], b"x"))
    if not store.driver.can_list:
        with pytest.raises(UnsupportedError, match="does not support listing"):
            store.driver.list_directories(store.path + "q/")
        return
    assert (store + "q/").list_names().result() == ["a.b/", "a/", "top", "日本/"]
    assert (store + "q/a/").list_names().result() == ["b/", "x"]
    assert (store + "none/").list_names().result() == []
    path = store.path + "q/"
    assert store.driver.list_directories(path) == ["a", "a.b", "日本"]
    assert store.driver.list_directories(path + "a/") == ["b"]
    assert store.driver.list_directories(path + "a/b/") == ["e"]
    assert store.driver.list_directories(path + "a/b/e/") == []
    assert store.driver.list_directories(path + "none/") == []
    assert store.driver.list_directories(path + "top/") == []
