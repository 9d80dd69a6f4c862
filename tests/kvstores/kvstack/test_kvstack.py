"""The kvstack kvstore against TensorStore's."""

# ruff: noqa: F403  the shared suite is taken over by name

import json
import pickle
from functools import partial

import numpy as np
import pytest
import tensorstore

import gpustore
from tests.drivers.parity import outcome
from tests.kvstores.contract import *
from tests.matrix import each

LIBRARIES = (gpustore, tensorstore)
LAYERS = [
    {"base": "memory://base/"},
    {"base": "memory://pre/", "prefix": "p/"},
    {"base": "memory://keep/", "prefix": "q/", "strip_prefix": 0},
    {"base": "memory://one", "exact": "one.json"},
    {"base": "memory://range/", "inclusive_min": "ra", "exclusive_max": "rd"},
]
KEYS = ("", "a", "one.json", "one.jsonx", "p", "p/", "p/x", "q/1", "ra", "rb", "rd", "z\u00e9")


@pytest.fixture
def make_store():
    layers = [
        {"base": "memory://base/"},
        {"base": "memory://other/a/", "prefix": "a/"},
        {"base": "memory://one", "exact": "b"},
    ]
    return lambda: opened(gpustore, layers)


def opened(library, layers, context=None):
    spec = {"driver": "kvstack", "layers": layers}
    return library.KvStore.open(spec, context=context).result()


@each(
    "layers",
    [
        [],
        5,
        [5],
        [{}],
        [{"base": "memory://a/", "prefix": "x", "exact": "y"}],
        [{"base": "memory://a/", "prefix": "x", "inclusive_min": "y"}],
        [{"base": "memory://a/", "exact": "x", "exclusive_max": "y"}],
        [{"base": "memory://a/", "prefix": "x", "strip_prefix": 2}],
        [{"base": "memory://a/", "exact": "x", "strip_prefix": 2}],
        [{"base": "memory://a/", "inclusive_min": "xa", "exclusive_max": "xb", "strip_prefix": 3}],
        [{"base": "memory://a/", "inclusive_min": "z", "exclusive_max": "a"}],
        [{"base": "memory://a/", "prefix": "x", "strip_prefix": -1}],
        [{"base": "memory://a/", "prefix": 3}],
        [{"base": "memory://a/", "foo": 3}],
        [{"base": "memory://a/", "prefix": ""}, {"base": "memory://b/", "exact": ""}],
        [{"base": "memory://a/", "inclusive_min": "ab", "exclusive_max": "ac"}],
        [{"base": "memory://a/", "inclusive_min": "ab", "exclusive_max": "ad"}],
        [{"base": "memory://a/", "inclusive_min": "ab", "exclusive_max": "ab\0"}],
        [{"base": "memory://a/", "inclusive_min": "a"}],
        [{"base": "memory://a/", "prefix": "\u00e9"}],
        [{"base": "memory://a/", "prefix": "abc", "strip_prefix": 2}],
        [{"base": "memory://a/"}, {"base": "memory://b/"}],
        [{"base": "memory://a/", "prefix": "b"}, {"base": "memory://b/", "exact": "bb"}],
        LAYERS,
    ],
)
def test_specs_are_parsed_and_divided_as_in_tensorstore(layers):
    def texts(library):
        spec = library.KvStore.Spec({"driver": "kvstack", "layers": layers})
        store = library.KvStore.open(spec).result()
        return [
            json.dumps(one.to_json(), sort_keys=True)
            for one in (spec, store.spec(), store.spec(unbind_context=True))
        ]

    ours, theirs = (outcome(partial(texts, library)) for library in LIBRARIES)
    assert ours == theirs


def filled(library):
    context = library.Context()
    store = opened(library, LAYERS, context)
    for key in KEYS[1:]:
        store[key] = key
    return store, library.KvStore.open("memory://", context=context).result()


def test_keys_lie_in_the_last_layer_that_has_them():
    found = []
    for library in LIBRARIES:
        store, memory = filled(library)
        listed = [store.list().result(), memory.list().result()]
        listed.append(store.list(library.KvStore.KeyRange("one.jsonx", "q/2")).result())
        values = [store[key] for key in KEYS[1:]]
        store.delete_range(library.KvStore.KeyRange("o", "q/2")).result()
        found.append((listed, values, store.list().result(), memory.list().result()))
    assert found[0] == found[1]


def test_lists_remove_prefixes():
    # TensorStore 0.1.86 removes them from the keys of the bases.
    store, _ = filled(gpustore)
    assert (store / "p").list().result() == [b"", b"/", b"/x"]
    only = gpustore.KvStore.KeyRange("p/", "p0")
    assert store.list(only, strip_prefix_length=2).result() == [b"", b"x"]
    sizes, errors = store.list_nbytes().result()
    assert sizes == {key: len(key.encode()) for key in sorted(KEYS[1:])}
    assert errors == {}


def test_keys_outside_of_all_layers_are_missing():
    for library in LIBRARIES:
        store = opened(library, LAYERS[1:2])
        assert "a" not in store
        read = store.read("a").result()
        assert (read.state, read.value, read.stamp.generation) == ("missing", b"", b"\x02")
        for value in (b"1", None):
            with pytest.raises(ValueError, match='Key not found in any layers: "a"'):
                store.write("a", value).result()
        store.delete_range(library.KvStore.KeyRange("a")).result()
        assert store.write("p/x", b"2", if_equal=b"\x02").result().generation != b""
        assert store.write("p/x", b"3", if_equal=b"\x02").result().generation == b""
        assert store["p/x"] == b"2"


def test_layers_have_resources_of_their_own():
    layers = [
        {"base": {"driver": "memory", "memory_key_value_store": "memory_key_value_store#a"}},
        {"base": "memory://", "prefix": "x"},
    ]
    texts = []
    for library in LIBRARIES:
        store = opened(library, layers, library.Context({"memory_key_value_store#a": {}}))
        store["1"], store["x1"] = b"1", b"2"
        assert store.list().result() == [b"1", b"x1"]
        texts.append(repr(store))
        assert repr(pickle.loads(pickle.dumps(store))) == repr(store)
    assert texts[0] == texts[1]


def test_arrays_lie_in_several_kvstores(tmp_path):
    layers = [
        {"base": f"file://{tmp_path}/metadata/"},
        {"base": f"file://{tmp_path}/chunks/", "prefix": "c/"},
    ]
    spec = {"driver": "zarr3", "kvstore": {"driver": "kvstack", "layers": layers}}
    store = gpustore.open(spec, create=True, dtype="uint16", shape=[6], chunk_layout=[2]).result()
    store.write(np.arange(6, dtype="uint16")).result()
    assert sorted(path.name for path in (tmp_path / "chunks").iterdir()) == ["0", "1", "2"]
    theirs = tensorstore.open(spec, open=True).result()
    assert np.array_equal(theirs.read().result(), store.read().result())
    assert sorted(theirs.kvstore.list().result()) == store.kvstore.list().result()
    again = gpustore.open(store.spec(), open=True).result()
    (tmp_path / "chunks" / "1").write_bytes(b"short")
    with pytest.raises(gpustore.CorruptChunkError, match="chunks/1"):
        again.read().result()


def test_a_transaction_stages_writes_of_several_layers():
    for library in LIBRARIES:
        store, memory = filled(library)
        before = sorted(memory.list().result())
        with library.Transaction() as transaction:
            view = store.with_transaction(transaction)
            view["p/new"], view["b"] = b"1", b"2"
            assert view["p/new"] == b"1"
            assert sorted(memory.list().result()) == before
            assert repr(view) == repr(store)
        assert sorted(memory.list().result()) == sorted([*before, b"base/b", b"pre/new"])


def test_a_kvstack_has_no_url():
    for library in LIBRARIES:
        with pytest.raises(NotImplementedError, match="URL representation not supported"):
            library.KvStore.Spec({"driver": "kvstack", "layers": LAYERS}).url  # noqa: B018
