"""Common parts of adapters, shown on one of the tests' own (:mod:`tests.kvstores.box`)."""

# ruff: noqa: F403, F405  the shared suite is taken over by name

import copy
import itertools
import pickle

import pytest
import tensorstore as ts

import gpustore
from gpustore.errors import InvalidKeyError, NotFoundError, StoreIOError
from gpustore.kvstores.base import Base
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.context import Context
from tests.kvstores.box import *
from tests.kvstores.contract import *
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.matrix import each

pytestmark = pytest.mark.usefixtures("registered")

_number = itertools.count()


@pytest.fixture(params=["memory", "file"])
def make_store(request, tmp_path):
    root = "memory://" if request.param == "memory" else f"file://{tmp_path}/"
    return lambda: KvStore.open(f"{root}{next(_number)}.box|box:").result()


@pytest.fixture
def model_examples(request):
    # Files take ten times as long, and have the same tests of their own.
    return 10 if "file" in request.node.callspec.id else 200


def as_theirs(value):
    """Return the spec of a box in the form of that of a zip file."""
    return value.replace("box", "zip")


def outcome(parse, value):
    """Return the result of `parse`, or the text of its error."""
    try:
        return parse(value)
    except ValueError as error:
        return str(error)


@each(
    "url",
    [
        *("file:///x.box|box", "file:///x.box|box:", "file:///x.box|box:a/b"),
        *("file:///x.box|box:/a/b", "file:///x y.box|box:a%20b", "file:///x|box:a%7Cb%2f"),
        *("memory://a/x.box|box:a|box:b", "memory://|box", "file:///x|box:a%40b:c"),
        *("file:///x|box://a", "file:///x|box:a?q", "file:///x|box:a#f", "file:///x|box:%zz"),
        *("box:///x", "box:x", "file:///x|file:///y", "file:///x|memory://", "file:///x|no:"),
        *("file:///x|BOX:", "file:///x|box:a|gzip:", "file:///x|zarr3:", "file:///x|box|json:"),
        *("file:///x|box:\xe9/\u65e5", "file:///x|box:%FF"),
    ],
)
def test_url_is_read_and_printed_as_by_tensorstore(url):
    ours, theirs = outcome(KvStore.Spec, url), outcome(ts.KvStore.Spec, as_theirs(url))
    if isinstance(theirs, str):
        assert as_theirs(ours).partition("; ")[0] == theirs
        return
    assert as_theirs(repr(ours)) == repr(theirs)
    assert as_theirs(ours.url) == theirs.url
    assert as_theirs(repr(ours.base)) == repr(theirs.base)
    assert KvStore.Spec(ours.url) == ours
    assert pickle.loads(pickle.dumps(ours)) == ours
    assert copy.copy(ours) == ours


@each(
    "url",
    [
        *("file:///x|box", "file:///x|box:a|zarr3:b", "file:///x|box:a/|zarr3:b", "box:x"),
        *("file:///x|box:a/|zarr3:", "file:///x|box:|box:a|zarr2", "file:///x|box:|zarr3:%40a"),
        *("file:///x|zarr3:|box:", "file:///x|zarr3:|zarr3:", "file:///x|file:///y", "zarr3:x"),
        *("file:///x|nonono:", "nonono:///x", "file:///x|array:", "file:///x|zarr:", "gcs://ab/x"),
        *("file:///x|auto:p", "file:///x|zarr3:a?q", "file:///x|box://a", "file:///x|box:%zz"),
        *("file:///x|auto", "file:///x|box|auto", "|box:", "file:///x|", "file:///x|auto:?q"),
    ],
)
def test_url_of_an_array_is_read_and_printed_as_by_tensorstore(url):
    ours, theirs = outcome(gpustore.Spec, url), outcome(ts.Spec, as_theirs(url))
    if isinstance(theirs, str):
        assert as_theirs(ours).partition("; ")[0] == theirs
        return
    assert as_theirs(str(ours)) == repr(theirs)
    assert as_theirs(ours.url) == theirs.url
    assert gpustore.Spec(ours.url) == ours


JSON = [
    {"driver": "box", "base": {"driver": "file", "path": "/x"}, "path": "a/"},
    {"driver": "box", "base": "file:///x|box:a"},
    {"driver": "box", "base": "file:///x", "cache_pool": {"total_bytes_limit": 5}},
    {"driver": "box", "base": "memory://x", "cache_pool": "cache_pool#a",
     "context": {"cache_pool#a": {"total_bytes_limit": 7}}},
    {"driver": "box"},
    {"driver": "box", "base": 5},
    {"driver": "box", "base": None},
    {"driver": "box", "base": ""},
    {"driver": "box", "base": {"driver": "xx"}},
    {"driver": "box", "base": {"driver": "file", "path": "/x", "more": 1}},
    {"driver": "box", "base": "file:///x", "more": 1},
    {"driver": "box", "base": "file:///x", "path": 5},
]  # fmt: skip


@each("json", JSON)
def test_json_is_read_and_printed_as_by_tensorstore(json):
    theirs_json = eval(as_theirs(repr(json)))
    ours, theirs = outcome(KvStore.Spec, json), outcome(ts.KvStore.Spec, theirs_json)
    if isinstance(theirs, str):
        assert as_theirs(ours).partition("; ")[0] == theirs
        return
    assert as_theirs(repr(ours)) == repr(theirs)
    assert as_theirs(repr(ours / "b")) == repr(theirs / "b")
    assert as_theirs(repr((ours / "b").base)) == repr((theirs / "b").base)
    assert as_theirs((ours + "b").url) == (theirs + "b").url
    assert pickle.loads(pickle.dumps(ours)) == ours


def test_members_of_its_own_are_kept():
    json = {"driver": "box", "base": "memory://x", "fanciness": 3, "path": "a"}
    spec = KvStore.Spec(json)
    assert spec.to_json() == {**json, "base": {"driver": "memory", "path": "x"}}
    assert KvStore.open(spec).result().driver.spec.fanciness == 3
    with_defaults = KvStore.Spec("memory://x|box:").to_json(include_defaults=True)
    assert with_defaults == {
        "driver": "box",
        "base": {
            "driver": "memory", "path": "x", "atomic": True, "context": {},
            "memory_key_value_store": "memory_key_value_store",
        },
        "cache_pool": "cache_pool",
        "context": {},
        "fanciness": 1,
        "path": "",
    }  # fmt: skip


def test_opened_store_has_a_base_and_prints_it():
    context = Context()
    store = KvStore.open("memory://x.box|box:a/", context=context).result()
    store["b"] = b"1"
    assert repr(store.base) == repr(KvStore.open("memory://x.box", context=context).result())
    assert store.base.base is None
    assert "x.box" in KvStore.open("memory://", context=context).result()
    assert store.url == "memory://x.box|box:a/"
    assert (store / "b").url == "memory://x.box|box:a/b"
    assert (store / "b").base.url == "memory://x.box"
    json = {
        "driver": "box",
        "base": {"driver": "memory", "path": "x.box"},
        "context": {"cache_pool": {}, "memory_key_value_store": {}},
        "path": "a/",
    }
    assert store.spec(unbind_context=True).to_json() == json
    del json["context"]
    assert store.spec().to_json() == json
    again = KvStore.open(store.spec(retain_context=True)).result()
    assert again["b"] == b"1"
    assert again.driver is store.driver
    below = KvStore.open(store.spec(retain_context=True).base).result()
    assert below.list().result() == [b""]
    with pytest.raises(AttributeError):
        store.base = None
    with pytest.raises(AttributeError):
        store.spec().base = None


def test_context_is_inherited_by_the_base_unless_it_has_its_own():
    outer = {"cache_pool": {"total_bytes_limit": 3}, "memory_key_value_store#a": {}}
    json = {
        "driver": "box",
        "base": {
            "driver": "box",
            "base": {"driver": "memory", "memory_key_value_store": "memory_key_value_store#a"},
            "context": {"cache_pool": {"total_bytes_limit": 9}},
        },
        "path": "a",
    }
    store = KvStore.open({**json, "context": outer}).result()
    limits = store.driver.resources["cache_pool"], store.base.driver.resources["cache_pool"]
    assert [limit.value.total_bytes_limit for limit in limits] == [3, 9]
    unbound = store.spec(unbind_context=True)
    assert unbound.to_json() == {**json, "context": outer}
    assert pickle.loads(pickle.dumps(store)).spec(unbind_context=True) == unbound
    assert store.spec().to_json() == {
        "driver": "box", "path": "a",
        "base": {"driver": "box", "base": {"driver": "memory"}},
    }  # fmt: skip


def test_pickled_store_opens_the_same_file(tmp_path):
    store = KvStore.open(f"file://{tmp_path}/x.box|box:a/").result()
    store["b"] = b"1"
    again = pickle.loads(pickle.dumps(store))
    assert again["b"] == b"1"
    assert again.url == store.url


def test_equal_specs_open_one_driver(tmp_path):
    context = Context()

    def opened(spec, context=context):
        return KvStore.open(spec, context=context).result().driver

    url = f"file://{tmp_path}/x|box:"
    driver = opened(url)
    assert opened(f"{url}a/b") is driver
    assert opened({"driver": "box", "base": f"file://{tmp_path}/x"}) is driver
    twice = opened(f"{url}|box:")
    assert opened(f"{url}|box:a") is twice is not driver
    others = [
        opened(f"file://{tmp_path}/y|box:"),
        opened({"driver": "box", "base": f"file://{tmp_path}/x", "fanciness": 2}),
        opened({"driver": "box", "base": f"file://{tmp_path}/x", "cache_pool": {}}),
        opened({"driver": "box", "base": {
            "driver": "file", "path": f"{tmp_path}/x", "file_io_sync": False}}),
        opened(url, Context()),
    ]  # fmt: skip
    assert len({id(other) for other in (driver, twice, *others)}) == 7
    assert opened(url).identity == others[-1].identity


def test_unused_driver_is_let_go():
    context = Context()
    first = KvStore.open("memory://x|box:", context=context).result()
    first.driver.opened = 2
    assert KvStore.open("memory://x|box:", context=context).result().driver.opened == 2
    del first
    assert KvStore.open("memory://x|box:", context=context).result().driver.opened == 1


def test_relative_bases_in_two_directories_are_two_stores(tmp_path, monkeypatch):
    context = Context()
    stores = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        stores.append(KvStore.open("x.box|box:", context=context).result())
    assert stores[0].driver is not stores[1].driver


@pytest.mark.parametrize(
    "url",
    [
        *("file:///x/../y|box:", "file:///x|box:../y", "file:///x|box:a/%2e%2e/b"),
        *("file:///x|box:a|box:..", "file:///x|box:a%5c..%5cb", "file:///x|box:|zarr3:../a"),
    ],
)
def test_path_that_leads_out_is_an_error(url):
    with pytest.raises(InvalidKeyError, match=r"Invalid key: .*\.\."):
        gpustore.Spec(url)
    if "zarr3" not in url:
        with pytest.raises(InvalidKeyError, match=r"Invalid key: .*\.\."):
            KvStore.Spec(url)


def test_base_that_leads_out_is_an_error():
    with pytest.raises(InvalidKeyError, match='Error parsing object member "base": Invalid file'):
        KvStore.Spec({"driver": "box", "base": {"driver": "file", "path": "/x/../y"}})


def test_messages_name_the_key_and_where_it_lies(tmp_path):
    store = KvStore.open(f"file://{tmp_path}/x.box|box:").result()
    store["a/b"] = b"1"
    assert store.describe("a/b") == f'"a/b" in local file "{tmp_path}/x.box"'
    with pytest.raises(NotFoundError, match=f'"none" in local file "{tmp_path}/x.box" does not'):
        store["none"]
    with pytest.raises(NotFoundError, match="is not a file"):
        KvStore.open(f"file://{tmp_path}/x.box/|box:").result()


@pytest.fixture
def watched(monkeypatch):
    """A store in memory, and a list: the first entry is called before the base is read, and so on.

    A read of a value is three reads of the base: of the head, of the index, of the value.
    """
    store = KvStore.open("memory://x|box:").result()
    base = store.driver.base.driver
    read_many, calls = base.read_many, []

    def read(request):
        if calls:
            calls.pop(0)()
        return read_many(request)

    monkeypatch.setattr(base, "read_many", read)
    return store, calls


def nothing():
    pass


def test_failure_of_the_base_is_one_of_the_key(make_filled):
    store = make_filled({"a": b"1", "b": b"2"})
    rules = [Rule(Fault.ERROR, skip=2)]
    base = Base(FaultyKvStore(store.driver.base.driver, rules), store.driver.base.path)
    faulty = KvStore(BoxKvStore(base, spec=store.driver.spec, resources={}))
    with pytest.raises(StoreIOError, match='Error reading "a" in ') as caught:
        faulty["a"]
    assert caught.value.key == base.path
    assert faulty["a"] == b"1"


def test_values_that_move_are_looked_for_again(watched):
    store, calls = watched
    store["a"] = b"1"
    store["b"] = b"2"
    calls[:] = [nothing, nothing, lambda: put(store, "a", b"333")]
    assert store["b"] == b"2"
    calls[:] = [nothing, nothing, lambda: put(store, "b", None)]
    assert "b" not in store
    assert not calls


def test_array_in_an_adapter_in_an_adapter(tmp_path):
    url = f"file://{tmp_path}/x.box|box:in/y.box|box:a|zarr3:"
    store = gpustore.open(url, create=True, dtype="uint16", shape=[4, 4]).result()
    store[1, :] = 7
    assert store.url == f"file://{tmp_path}/x.box|box:in/y.box|box:a/|zarr3:"
    for again in (url, store.url, store.spec(), store.spec(unbind_context=True)):
        assert gpustore.open(again).result()[:2, 0].read().result().tolist() == [0, 7]
    assert pickle.loads(pickle.dumps(store))[1, 1].read().result() == 7
    assert list(tmp_path.iterdir()) == [tmp_path / "x.box"]
    group = gpustore.open_group(f"file://{tmp_path}/g.box|box:", create=True).result()
    group.create_array("v", shape=[2], dtype="int8").result()[...] = 5
    group = gpustore.open_group(f"file://{tmp_path}/g.box|box:").result()
    assert group["v"][0].read().result() == 5
