"""The json driver against TensorStore's; pointers by themselves are in test_json_pointer."""

import json
import pickle

import numpy as np
import pytest

import gpustore
from gpustore.drivers.json import JsonDriver
from gpustore.errors import ConflictError, MetadataError, NotFoundError, StoreIOError
from gpustore.front.store import TensorStore
from tests.drivers.parity import LIBRARIES, agree, description, outcome
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.matrix import each

DOCUMENT = {"a": {"b": [1, 2.5, None]}, "text": "é", "list": [{"x": 1}], "n": None}


def opened(library, document, pointer):
    """A kvstore that holds `document` and a store of a part of it."""
    context = library.Context()
    kvstore = library.KvStore.open("memory://d.json", context=context).result()
    if document is not None:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        kvstore.write("", data).result()
    spec = {"driver": "json", "kvstore": "memory://d.json", "json_pointer": pointer}
    return kvstore, library.open(spec, context=context).result()


@each("pointer", ["", "/a", "/a/b/1", "/a/b/3", "/text", "/x", "/n", "/n/x"])
@each("document", [DOCUMENT, None, b"", b"garbage", b"[1", b"\xff", b"\xef\xbb\xbf1"])
def test_reading_is_as_in_tensorstore(document, pointer):
    results = []
    for library in LIBRARIES:
        _, store = opened(library, document, pointer)
        results.append(
            outcome(lambda s=store: json.dumps(s.read().result().item(), sort_keys=True))
        )
    if document == b"\xef\xbb\xbf1":
        # TensorStore skips a byte order mark, which RFC 8259 allows; ours is strict.
        assert "Invalid JSON" in results[0][1]
    else:
        assert agree(*results)


@each("pointer", ["", "/a", "/a/b/-", "/a/b/3", "/new/x/0", "/n/x", "/list/0/x"])
@each("document", [DOCUMENT, None, b"garbage"], ids=["some", "none", "broken"])
def test_writing_is_as_in_tensorstore(document, pointer):
    results = []
    for library in LIBRARIES:
        kvstore, store = opened(library, document, pointer)
        done = outcome(lambda s=store: s.write({"z": [1, "é"], "y": None}).result())
        results.append((done, bytes(kvstore.read("").result().value)))
    assert agree(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


SOURCES = (
    np.array([1, 2]),
    np.array([[5]]),
    np.array(5),
    np.float32(1.5),
    np.array({"a": 1}, object),
    np.array([{"a": 1}], object),
    np.array([{"a": 1}, 2], object),
    (1, 2),
    {"a": (1,)},
    [[5, 6]],
    [np.int8(3)],
    [],
    "x",
    None,
    True,
    2**64 - 1,
    -(2**63),
    1e300,
)


@each(
    ("source", "rank"),
    # TensorStore refuses arrays that are deeper than the domain, though it takes such lists.
    [(s, r) for s in SOURCES for r in range(3) if not r or np.ndim(s) <= r or isinstance(s, list)],
)
def test_sources_are_converted_as_in_tensorstore(source, rank):
    results = []
    for library in LIBRARIES:
        kvstore, store = opened(library, None, "")
        view = store[(None,) * rank].translate_to[(0,) * rank]
        done = outcome(lambda v=view: v.write(source).result())
        results.append((done, bytes(kvstore.read("").result().value)))
    assert results[0][1] == results[1][1]
    if isinstance(results[1][0], str):
        assert results[0][0] == results[1][0]
    else:
        # Bounds of new dimensions are implicit there: "[0*, 1*)".
        assert results[0][0][1] == results[1][0][1].replace("*", "")


@pytest.mark.parametrize(
    ("source", "kind"),
    [(object(), TypeError), (b"x", TypeError), ({1: 2}, TypeError), (float("nan"), MetadataError)],
)
def test_values_that_are_not_json_are_refused(source, kind):
    kvstore, store = opened(gpustore, DOCUMENT, "/a")
    before = kvstore.read("").result().value
    with pytest.raises(kind):
        store.write(source).result()
    assert kvstore.read("").result().value == before


@each(
    "members",
    [
        {},
        {"kvstore": "memory://x", "json_pointer": "a"},
        {"kvstore": "memory://x", "json_pointer": 3},
        {"kvstore": "memory://x", "dtype": "int8"},
        {"kvstore": "memory://x", "dtype": "json", "rank": 0},
        {"kvstore": "memory://x", "rank": 1},
        {"kvstore": "memory://x", "foo": 1},
        {"kvstore": "memory://x", "schema": {"rank": 1}},
        {"kvstore": "memory://x", "schema": {"domain": {"shape": []}}},
        {"kvstore": "memory://x", "schema": {"domain": {"shape": [1]}}},
        {"kvstore": "memory://x", "schema": {"fill_value": 1}},
        {"kvstore": "memory://x", "schema": {"codec": {"driver": "zarr3"}}},
        {"kvstore": "memory://x", "schema": {"chunk_layout": {"chunk": {"elements": 4}}}},
        {"kvstore": "memory://x", "create": True},
        {"kvstore": "memory://x", "create": True, "delete_existing": True},
        {"kvstore": "memory://x", "transform": {"input_shape": [3]}},
        {"kvstore": "memory://x/", "path": "y"},
    ],
)
def test_specs_are_parsed_as_in_tensorstore(members):
    spec = {"driver": "json", **members}
    results = [
        outcome(lambda library=library: library.open(dict(spec)).result().spec().to_json())
        for library in LIBRARIES
    ]
    assert agree(*results)


@pytest.mark.parametrize("pointer", ["", "/a/b", "/a b|#?%/é~0~1"])
def test_stores_describe_themselves_as_in_tensorstore(pointer):
    stores = [opened(library, DOCUMENT, pointer)[1] for library in LIBRARIES]
    assert description(stores[0]) == description(stores[1])
    urls = [store.url for store in stores]
    assert urls[0] == urls[1]
    assert gpustore.Spec(urls[0]).to_json()["kvstore"] == stores[0].spec().to_json()["kvstore"]
    assert gpustore.Spec(urls[0]).url == urls[0]


@pytest.mark.parametrize(
    "url", ["memory://x|json:a", "memory://x|json:/~2", "memory://x|json:/a|b:"]
)
def test_wrong_urls_are_refused_as_in_tensorstore(url):
    assert agree(*(outcome(lambda library=library: library.Spec(url)) for library in LIBRARIES))


def test_a_value_is_repeated_over_new_dimensions():
    _, store = opened(gpustore, DOCUMENT, "/a/b")
    found = store[None, None].read().result()
    assert found.shape == (1, 1)
    assert found[0, 0] == [1, 2.5, None]
    assert store[None][0:0].read().result().shape == (0,)
    store[None][0:0].write(5).result()
    assert store.read().result().item() == [1, 2.5, None]


def test_out_is_filled():
    _, store = opened(gpustore, DOCUMENT, "/a")
    out = np.empty((), object)
    assert store.read(out=out).result() is out
    assert out.item() == {"b": [1, 2.5, None]}
    for wrong in (np.empty(1, object), np.empty(()), [None]):
        with pytest.raises(TypeError, match="out must be an ndarray of objects"):
            store.read(out=wrong)


def test_it_cannot_be_resized():
    _, store = opened(gpustore, DOCUMENT, "")
    with pytest.raises(NotImplementedError, match="Resize not supported"):
        store.resize(exclusive_max=[]).result()
    assert store.resolve().result().spec() == store.spec()


def test_access_asked_for():
    spec = {"driver": "json", "kvstore": "memory://x"}
    read_only = gpustore.open(spec, read=True).result()
    with pytest.raises(ValueError, match="Destination does not support writing"):
        read_only.write(1)
    with pytest.raises(ValueError, match="Source does not support reading"):
        gpustore.open(spec, write=True).result().read()


def test_specs_survive_pickling(tmp_path):
    (tmp_path / "d.json").write_text('{"a": 1}')
    store = gpustore.open(f"file://{tmp_path}/d.json|json:/a").result()
    assert pickle.loads(pickle.dumps(store)).read().result().item() == 1
    assert pickle.loads(pickle.dumps(store.spec())) == store.spec()


# ---- other writers and failures


def faulty(pointer, *rules):
    """A store of a part of DOCUMENT in a kvstore where things go wrong."""
    kvstore, store = opened(gpustore, DOCUMENT, pointer)
    driver = store._driver
    wrapped = type(driver.kvstore)(FaultyKvStore(driver.kvstore.driver, rules), "d.json")
    parts = {name: getattr(driver, name) for name in JsonDriver.__dataclass_fields__}
    broken = JsonDriver(**{**parts, "kvstore": wrapped})
    return kvstore, TensorStore._of(broken, store._transform)


def test_changes_of_other_writers_are_kept():
    rule = Rule(Fault.STALE)
    kvstore, store = faulty("/mine", rule)
    rule.times = 0
    store.write(1).result()
    rule.times = 1
    store.write(2).result()
    assert rule.injected == 1, "the first attempt saw the document before the last write"
    assert json.loads(kvstore.read("").result().value) == {**DOCUMENT, "mine": 2}


def test_a_writer_that_is_never_fast_enough_gives_up(monkeypatch):
    monkeypatch.setattr("gpustore.drivers.json._ATTEMPTS", 5)
    rule = Rule(Fault.STALE, times=0)
    kvstore, store = faulty("/mine", rule)
    store.write(1).result()
    rule.times = 10
    with pytest.raises(ConflictError, match="another writer was faster 5 times") as caught:
        store.write(2).result()
    assert caught.value.key == "d.json"
    assert json.loads(kvstore.read("").result().value)["mine"] == 1


@pytest.mark.parametrize("operation", ["read", "write"])
def test_failures_of_the_kvstore_name_the_key(operation):
    kvstore, store = faulty("/a", Rule(Fault.ERROR, operation))
    before = kvstore.read("").result().value
    with pytest.raises(StoreIOError, match=f'injected failure to {operation} "d.json"') as caught:
        store.write(1).result()
    assert caught.value.key == "d.json"
    assert kvstore.read("").result().value == before


def test_a_missing_document_is_named():
    _, store = opened(gpustore, None, "/a")
    with pytest.raises(NotFoundError, match=r'Error reading "d\.json"') as caught:
        store.read().result()
    assert caught.value.key == "d.json"
    assert isinstance(caught.value, KeyError)
