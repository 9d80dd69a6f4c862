"""Contract of every kvstore that can be written. A test module takes it over with two lines::

from tests.kvstores.contract import *

@pytest.fixture
def make_store(): return lambda: <a new, empty KvStore>
"""

# ruff: noqa: F403  the suite for reading is taken over by name

import threading

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

from gpustore.kvstores.base import prefix_end
from gpustore.kvstores.columns import ABSENT, ReadRequest, ReadState, WriteRequest
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores import read_contract
from tests.kvstores.read_contract import *
from tests.kvstores.read_contract import get
from tests.matrix import each, share

__all__ = [
    *read_contract.__all__,
    "generations_tell_writes_apart",
    "make_filled",
    "model_examples",
    "put",
    "store",
    "test_conditional_delete_needs_the_current_generation",
    "test_conditional_write_needs_the_current_generation",
    "test_delete_range_deletes_only_the_range",
    "test_deleting_a_missing_key_succeeds",
    "test_generation_changes_with_every_write",
    "test_matches_a_dict",
    "test_same_key_twice_in_a_batch_is_written_in_order",
    "test_threads_lose_no_conditional_increment",
    "test_written_value_is_read_back",
]


@pytest.fixture
def store(make_store):
    return make_store()


@pytest.fixture
def make_filled(make_store):
    def make(values):
        store = make_store()
        store.write_many(WriteRequest(list(values), list(values.values()))).raise_first()
        return store

    return make


@pytest.fixture
def generations_tell_writes_apart():
    """Whether writing the value that is there makes a new generation."""
    return True


def put(store, key, value, if_equal=b""):
    columns = store.write_many(WriteRequest([key], [value], [if_equal]))
    columns.raise_first()
    return columns.generation[0]


@each("nbytes", [0, 1, 4096, 300_001])
def test_written_value_is_read_back(store, nbytes):
    value = bytes(i % 251 for i in range(nbytes))
    generation = put(store, "a/b", memoryview(value))
    assert store.read_many(ReadRequest(["a/b"], staleness_bound=0)).generation == [generation]
    columns = store.read_many(ReadRequest(["a/b"]))
    assert columns.state == [ReadState.VALUE]
    assert columns.generation == [generation]
    assert columns.total == [nbytes]
    assert bytes(columns.value[0]) == value
    assert not columns.error


def test_generation_changes_with_every_write(store, generations_tell_writes_apart):
    generations = {put(store, "a", b"same") for _ in range(20)}
    assert len(generations) == (20 if generations_tell_writes_apart else 1)
    assert len({put(store, "a", b"%d" % i) for i in range(20)} - generations) == 20
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


def test_same_key_twice_in_a_batch_is_written_in_order(store):
    columns = store.write_many(
        WriteRequest(["a", "b", "a", "b"], [b"1", b"1", b"2", None], [b"", b"", ABSENT, b""])
    )
    assert columns.generation[2] == b""
    assert columns.generation[3] == ABSENT
    assert get(store, "a") == (ReadState.VALUE, b"1", columns.generation[0])
    assert get(store, "b")[0] is ReadState.MISSING


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
    tells_writes_apart = True
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
        assert generation not in (b"", ABSENT)
        same = key in self.model and self.model[key][0] == value
        if self.tells_writes_apart or not same:
            assert generation != self.generation_of(key)
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
    """Number of histories that the comparison with a dict tries."""
    return 200


@pytest.mark.matrix
@pytest.mark.slow
def test_matches_a_dict(make_store, model_examples, generations_tell_writes_apart):
    class Model(_Model):
        pass

    Model.make_store = staticmethod(make_store)
    Model.tells_writes_apart = generations_tell_writes_apart
    examples = share(model_examples)
    run_state_machine_as_test(
        Model, settings=settings(max_examples=examples, stateful_step_count=12)
    )
