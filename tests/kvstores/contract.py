"""What every kvstore must do. A test module of a kvstore takes it over with two lines::

from tests.kvstores.contract import *

@pytest.fixture
def make_store(): return lambda: <a new, empty KvStore>
"""

import re
import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from gpustore.errors import LimitError, MismatchError
from gpustore.kvstore import KvStore
from gpustore.kvstores.base import (
    ABSENT,
    Arena,
    ReadRequest,
    ReadState,
    WriteRequest,
    prefix_end,
)

__all__ = [
    "get",
    "model_examples",
    "put",
    "store",
    "test_arena_holds_every_value_of_a_batch",
    "test_byte_range_inside_value_is_read",
    "test_byte_range_outside_value_is_an_error_that_names_the_key",
    "test_byte_ranges_may_be_numpy_columns",
    "test_conditional_delete_needs_the_current_generation",
    "test_conditional_read_skips_the_value",
    "test_conditional_write_needs_the_current_generation",
    "test_delete_range_deletes_only_the_range",
    "test_deleting_a_missing_key_succeeds",
    "test_failure_of_one_key_leaves_the_others",
    "test_generation_changes_with_every_write",
    "test_list_is_sorted_and_respects_the_range",
    "test_matches_a_dict",
    "test_missing_key_is_a_result",
    "test_same_key_twice_in_a_batch_is_written_in_order",
    "test_threads_lose_no_conditional_increment",
    "test_value_longer_than_allowed_is_an_error_that_names_the_key",
    "test_written_value_is_read_back",
]


@pytest.fixture
def store(make_store):
    return make_store()


def put(store, key, value, if_equal=b""):
    columns = store.write_many(WriteRequest([key], [value], [if_equal]))
    columns.raise_first()
    return columns.generation[0]


def get(store, key, **options):
    columns = store.read_many(ReadRequest([key], **options))
    columns.raise_first()
    value = columns.value[0]
    return columns.state[0], None if value is None else bytes(value), columns.generation[0]


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 300_001])
def test_written_value_is_read_back(store, nbytes):
    value = bytes(i % 251 for i in range(nbytes))
    generation = put(store, "a/b", memoryview(value))
    columns = store.read_many(ReadRequest(["a/b"]))
    assert columns.state == [ReadState.VALUE]
    assert columns.generation == [generation]
    assert columns.total == [nbytes]
    assert bytes(columns.value[0]) == value
    assert not columns.error


def test_missing_key_is_a_result(store):
    columns = store.read_many(ReadRequest(["a", "b/c"], start=[3, -2], stop=[5, None]))
    assert columns.state == [ReadState.MISSING] * 2
    assert columns.generation == [ABSENT] * 2
    assert columns.value == [None] * 2
    assert not columns.error


def test_generation_changes_with_every_write(store):
    generations = {put(store, "a", b"same") for _ in range(20)}
    assert len(generations) == 20
    assert not generations & {b"", ABSENT}
    assert get(store, "a")[2] == get(store, "a")[2]


def test_conditional_write_needs_the_current_generation(store):
    first = put(store, "a", b"1", ABSENT)
    assert first not in (b"", ABSENT)
    assert put(store, "a", b"2", ABSENT) == b""
    second = put(store, "a", b"2", first)
    assert put(store, "a", b"3", first) == b""
    assert put(store, "b", b"3", first) == b""
    assert get(store, "a") == (ReadState.VALUE, b"2", second)
    assert get(store, "b") == (ReadState.MISSING, None, ABSENT)


def test_conditional_delete_needs_the_current_generation(store):
    first = put(store, "a", b"1")
    second = put(store, "a", b"2")
    assert put(store, "a", None, first) == b""
    assert put(store, "a", None, ABSENT) == b""
    assert get(store, "a")[1] == b"2"
    assert put(store, "a", None, second) == ABSENT
    assert get(store, "a")[0] is ReadState.MISSING
    assert put(store, "a", None, second) == b""


def test_deleting_a_missing_key_succeeds(store):
    assert put(store, "a", None) == ABSENT
    assert put(store, "b/c", None, ABSENT) == ABSENT
    put(store, "a", b"1")
    assert put(store, "a", None) == ABSENT
    assert put(store, "a", None) == ABSENT


def test_conditional_read_skips_the_value(store):
    generation = put(store, "a", b"1")
    other = put(store, "b", b"1")
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


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 0), (0, 4), (2, 5), (0, 10), (10, 10), (10, None), (0, None), (-3, None), (-10, None)],
)
def test_byte_range_inside_value_is_read(store, start, stop):
    put(store, "a", b"0123456789")
    columns = store.read_many(ReadRequest(["a"], start=[start], stop=[stop]))
    columns.raise_first()
    assert bytes(columns.value[0]) == b"0123456789"[start:stop]
    assert columns.total == [10]


def test_byte_ranges_may_be_numpy_columns(store):
    store.write_many(WriteRequest(["a", "b"], [b"0123", b"4567"])).raise_first()
    columns = store.read_many(
        ReadRequest(["a", "b"], start=np.array([0, 2]), stop=np.array([2, 4]), into=Arena())
    )
    columns.raise_first()
    assert [bytes(value) for value in columns.value] == [b"01", b"67"]


@pytest.mark.parametrize(("start", "stop"), [(0, 11), (11, None), (20, 30), (-11, None)])
def test_byte_range_outside_value_is_an_error_that_names_the_key(store, start, stop):
    put(store, "a", b"0123456789")
    columns = store.read_many(ReadRequest(["a"], start=[start], stop=[stop]))
    end = "?" if stop is None else stop
    text = f"Requested byte range [{start}, {end}) is not valid for value of size 10"
    with pytest.raises(MismatchError, match=f"^OUT_OF_RANGE: {re.escape(text)}") as caught:
        columns.raise_first()
    assert caught.value.key.endswith("a")
    assert columns.state == [ReadState.UNSPECIFIED]


def test_value_longer_than_allowed_is_an_error_that_names_the_key(store):
    put(store, "a/b", b"0123456789")
    assert get(store, "a/b", max_nbytes=10)[1] == b"0123456789"
    assert get(store, "a/b", max_nbytes=3, start=[4], stop=[7])[1] == b"456"
    arena = Arena()
    columns = store.read_many(ReadRequest(["a/b"], max_nbytes=9, into=arena))
    with pytest.raises(LimitError, match='a/b" has 10 bytes, at most 9 are expected') as caught:
        columns.raise_first()
    assert caught.value.key.endswith("a/b")


def test_arena_holds_every_value_of_a_batch(store):
    keys = [f"k/{i}" for i in range(30)]
    values = [bytes([i]) * (i * 37) for i in range(30)]
    store.write_many(WriteRequest(keys, values)).raise_first()
    arena = Arena(256)
    for _ in range(3):
        columns = store.read_many(ReadRequest([*keys, "none"], into=arena))
        columns.raise_first()
        assert [bytes(value) for value in columns.value[:-1]] == values
        assert all(isinstance(value, memoryview) for value in columns.value[:-1])
        assert not any(value.readonly for value in columns.value[:-1])
        assert columns.value[-1] is None
        arena.reset()


def test_failure_of_one_key_leaves_the_others(store):
    store.write_many(WriteRequest(["a", "b"], [b"12", b"123"])).raise_first()
    columns = store.read_many(ReadRequest(["a", "b", "c"], start=[2, 2, 2], stop=[3, 3, 3]))
    assert columns.state == [ReadState.UNSPECIFIED, ReadState.VALUE, ReadState.MISSING]
    assert list(columns.error) == [0]
    assert bytes(columns.value[1]) == b"3"


def test_same_key_twice_in_a_batch_is_written_in_order(store):
    columns = store.write_many(
        WriteRequest(["a", "b", "a", "b"], [b"1", b"1", b"2", None], [b"", b"", ABSENT, b""])
    )
    assert columns.generation[2] == b""
    assert columns.generation[3] == ABSENT
    assert get(store, "a") == (ReadState.VALUE, b"1", columns.generation[0])
    assert get(store, "b")[0] is ReadState.MISSING


def test_list_is_sorted_and_respects_the_range(store):
    names = ["日本", "é", "b/b", "b/a/c", "a0", "a/b.c", "a/b", "a.b"]
    store.write_many(WriteRequest(names, [b"x"] * len(names))).raise_first()
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


def test_directories_are_listed_one_level_deep(store):
    names = ["a/b/c", "a/b/d", "a/x", "a.b/y", "日本/z", "top", "a/b/e/f"]
    store.write_many(WriteRequest(names, [b"x"] * len(names))).raise_first()
    path = store.path
    assert store.driver.list_directories(path) == ["a", "a.b", "日本"]
    assert store.driver.list_directories(path + "a/") == ["b"]
    assert store.driver.list_directories(path + "a/b/") == ["e"]
    assert store.driver.list_directories(path + "a/b/e/") == []
    assert store.driver.list_directories(path + "none/") == []
    assert store.driver.list_directories(path + "top/") == []


def test_delete_range_deletes_only_the_range(store):
    keys = ["a/b", "a/c", "a/d/e", "ab", "b/a", "b/b/c"]
    store.write_many(WriteRequest(keys, [b"x"] * len(keys))).raise_first()
    path = store.path
    assert store.driver.delete_range(path + "a/c", path + "ab") == 2
    assert store.list().result() == [b"a/b", b"ab", b"b/a", b"b/b/c"]
    store.delete_range(KvStore.KeyRange("x", "a")).result()
    store.delete_range(KvStore.KeyRange("c")).result()
    assert len(store.list().result()) == 4
    (store + "b/").delete_range(KvStore.KeyRange()).result()
    assert store.list().result() == [b"a/b", b"ab"]
    put(store, "b/b/c", b"again")
    store.delete_range(KvStore.KeyRange()).result()
    assert store.list().result() == []
    put(store, "a/b", b"again")
    assert store["a/b"] == b"again"


@pytest.mark.slow
def test_threads_lose_no_conditional_increment(make_store):
    store = make_store()
    put(store, "n", b"0")

    def increment():
        for _ in range(25):
            while True:
                _, value, generation = get(store, "n")
                if put(store, "n", b"%d" % (int(value) + 1), generation):
                    break

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store["n"] == b"100"


# --------------------------------------------------------------------------- against a dict

# No key is a directory of another, as a file system cannot store both.
KEYS = ["0", "1/0", "1/1", "1/2/0", "2.0", "é"]
VALUES = st.binary(max_size=8)


class _Model(RuleBasedStateMachine):
    """A kvstore must give what a dict gives."""

    make_store = None
    generations = Bundle("generations")

    def __init__(self):
        super().__init__()
        self.store = self.make_store()
        self.model = {}  # key -> (value, generation)

    def generation_of(self, key):
        return self.model[key][1] if key in self.model else ABSENT

    @rule(target=generations, key=st.sampled_from(KEYS), value=VALUES)
    def write(self, key, value):
        generation = put(self.store, key, value)
        assert generation not in (b"", ABSENT, self.generation_of(key))
        self.model[key] = value, generation
        return generation

    @rule(
        target=generations,
        key=st.sampled_from(KEYS),
        value=st.none() | VALUES,
        generation=generations | st.sampled_from([ABSENT, b""]),
        current=st.booleans(),
    )
    def write_if(self, key, value, generation, current):
        condition = self.generation_of(key) if current else generation
        result = put(self.store, key, value, condition)
        if condition not in (b"", self.generation_of(key)):
            assert result == b""
            return multiple()
        if value is None:
            assert result == ABSENT
            self.model.pop(key, None)
            return multiple()
        self.model[key] = value, result
        return result

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4), start=st.integers(-3, 3))
    def read(self, keys, start):
        columns = self.store.read_many(ReadRequest(keys, start=[start] * len(keys)))
        for i, key in enumerate(keys):
            if key not in self.model:
                assert columns.state[i] is ReadState.MISSING
                assert columns.generation[i] == ABSENT
                continue
            value, generation = self.model[key]
            assert columns.generation[i] == generation
            assert columns.total[i] == len(value)
            if abs(start) > len(value):
                assert columns.error[i].status == "OUT_OF_RANGE"
            else:
                assert bytes(columns.value[i]) == value[start:]

    @rule(key=st.sampled_from(KEYS), generation=consumes(generations))
    def read_if(self, key, generation):
        current = self.generation_of(key)
        state, _, seen = get(self.store, key, if_equal=[generation])
        assert seen == current
        assert (state is ReadState.VALUE) == (generation == current)

    @rule(low=st.sampled_from(["", *KEYS, "1/"]), high=st.sampled_from(["", *KEYS, "1/", "10"]))
    def delete_range(self, low, high):
        wanted = KvStore.KeyRange(low, high)
        self.store.delete_range(wanted).result()
        self.model = {k: v for k, v in self.model.items() if k not in wanted}

    @rule(prefix=st.sampled_from(["", "1", "1/", "1/2/0", "x"]))
    def list(self, prefix):
        low = self.store.path + prefix
        skip = len(self.store.path)
        keys = [key[skip:] for key in self.store.driver.list(low, prefix_end(low))]
        assert keys == sorted(key for key in self.model if key.startswith(prefix))

    @invariant()
    def contains_the_same(self):
        for key in KEYS[:2]:
            assert (key in self.store) == (key in self.model)


@pytest.fixture
def model_examples():
    """How many histories the comparison with a dict tries."""
    return 200


@pytest.mark.slow
def test_matches_a_dict(make_store, model_examples):
    class Model(_Model):
        pass

    Model.make_store = staticmethod(make_store)
    run_state_machine_as_test(
        Model, settings=settings(max_examples=model_examples, stateful_step_count=12, deadline=None)
    )
