"""``KvStore`` beside TensorStore's."""

import asyncio
import copy
import pickle

import numpy as np
import pytest
import tensorstore as ts

import gpustore
from gpustore.errors import (
    GpustoreError,
    InvalidKeyError,
    MetadataError,
    NotFoundError,
)
from gpustore.front.spec import Spec
from gpustore.kvstores import copied_values
from gpustore.kvstores.columns import ReadRequest, WriteRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.context import Context
from tests.matrix import each

LIBRARIES = (gpustore, ts)


@pytest.fixture(params=["memory", "file"])
def pair(request, tmp_path):
    """An empty store of each library."""
    stores = []
    for library, name in ((KvStore, "ours"), (ts.KvStore, "theirs")):
        json = {"driver": "memory"}
        if request.param == "file":
            json = {"driver": "file", "path": f"{tmp_path}/{name}/", "file_io_sync": False}
        stores.append(library.open(json).result())
    return stores


def outcome(call, *, text=True):
    """Return the result of a call, or its error in a form that both libraries share."""
    try:
        return call()
    except Exception as error:
        kinds = [kind for kind in (KeyError, ValueError, TypeError) if isinstance(error, kind)]
        kind = kinds[0].__name__ if kinds else type(error).__name__
        message = str(error) if text and isinstance(error, ValueError) else ""
        return kind, message


def fill(store):
    for key in ("a", "dir/x", "dir/y", "dis", "é"):
        store[key] = key.encode() * 3


# --------------------------------------------------------------------------- operations


@pytest.mark.parametrize(
    "byte_range",
    [
        slice(2, 3), slice(3, 2), slice(3, 3), slice(0, 20), slice(20, 30), slice(9, None),
        slice(10, None), slice(-3, None), slice(-30, None), slice(None, -3), slice(-5, 8),
        slice(0, 10, 2), slice(-3, -1), slice(None, 0), slice(None, None), slice(1.5, 2), 3,
        slice(np.int64(2), np.uint8(3)), slice("2", "3"),
    ],
    ids=str,
)  # fmt: skip
def test_byte_range_means_the_same(pair, byte_range):
    def read(store):
        store["dir/x"] = b"012345678"
        result = store.read("dir/x", byte_range=byte_range).result()
        return result.state, result.value

    ours, theirs = [outcome(lambda store=store: read(store)) for store in pair]
    assert ours == theirs


@pytest.mark.parametrize("bound", [0, 1.5, np.float32(1), np.int8(1), True, "1", b"1", [], 1j])
def test_staleness_bounds_are_numbers(pair, bound):
    def read(store):
        return store.read("x", staleness_bound=bound).result().state

    ours, theirs = [outcome(lambda store=store: read(store), text=False) for store in pair]
    assert ours == theirs


def test_generations_mean_the_same(pair):
    def operate(store):
        absent = b"\x02"
        results = [store.write("a", b"1", if_equal=absent).result().generation not in (b"", absent)]
        generation = store.read("a").result().stamp.generation

        def write(key, value, if_equal=None):
            written = store.write(key, value, if_equal=if_equal).result().generation
            results.append(written if written in (b"", absent) else "new")

        def read(key, **options):
            result = store.read(key, **options).result()
            seen = result.stamp.generation
            results.append((result.state, result.value, seen == absent, seen == generation))

        write("a", b"2", absent)
        write("a", b"2", generation + b"x")
        read("a", if_not_equal=generation)
        read("a", if_not_equal=absent)
        read("none", if_not_equal=absent)
        read("none", if_not_equal=generation)
        read("none", byte_range=slice(2, 5))
        write("a", b"2", generation)
        read("a", if_not_equal=generation)
        write("a", b"3", b"")
        write("none", None)
        write("none", None, absent)
        write("none", None, generation)
        write("a", None, generation)
        write("a", None)
        write("a", None)
        read("a")
        return results

    ours, theirs = map(operate, pair)
    assert ours == theirs


@pytest.mark.parametrize("low", ["", "a", "b", "dir/", "dir/x", "z"])
@pytest.mark.parametrize("high", ["", "dir/y", "dir0", "a"])
def test_ranges_mean_the_same(pair, low, high):
    if high and low > high:
        return  # TensorStore's memory store ends the process
    results = []
    for store, library in zip(pair, (KvStore, ts.KvStore), strict=True):
        fill(store)
        wanted = library.KeyRange(low, high)
        listed = sorted(store.list(wanted).result())
        stripped = sorted(store.list(wanted, strip_prefix_length=1).result())
        below = sorted((store / "dir").list().result())
        store.delete_range(wanted).result()
        results.append([listed, stripped, below, sorted(store.list().result())])
    assert results[0] == results[1]


def test_bound_without_bytes_is_an_error():
    with pytest.raises(InvalidKeyError, match="surrogate"):
        KvStore.KeyRange("a\ud800")
    wanted = KvStore.KeyRange()
    with pytest.raises(InvalidKeyError, match="surrogate"):
        wanted.exclusive_max = "a\ud800"


def test_inverted_range_is_empty(pair):
    ours = pair[0]
    fill(ours)
    inverted = KvStore.KeyRange("z", "a")
    assert inverted.empty
    assert ours.list(inverted).result() == []
    ours.delete_range(inverted).result()
    assert len(ours.list().result()) == 5


@each("key", ["a//b", "../x", "./a", "a/b/", "/a", "a\0b", "é/../\x01f", "x.__lock"])
def test_illegal_key_has_the_same_text(tmp_path, key):
    messages = []
    for library in (KvStore, ts.KvStore):
        store = library.open({"driver": "file", "path": f"{tmp_path}/"}).result()
        with pytest.raises(ValueError, match="Invalid key") as caught:
            store.write(key, b"1").result()
        messages.append(str(caught.value))
    assert messages[0].startswith(messages[1] + ": ")


def test_dict_operations(pair):
    for store in pair:
        fill(store)
        assert store["a"] == b"aaa"
        assert store[b"\xc3\xa9"] == "ééé".encode()
        assert "a" in store
        assert b"b" not in store
        store["a"] = "text"
        assert store["a"] == b"text"
        del store["a"]
        del store["a"]
        store["dis"] = None
        with pytest.raises(KeyError):
            store["a"]
        assert sorted(store.list().result()) == [b"dir/x", b"dir/y", b"\xc3\xa9"]
        with pytest.raises(TypeError):
            iter(store)
        for wrong in (3, None):
            with pytest.raises(TypeError):
                store[wrong]
        with pytest.raises(TypeError):
            store["a"] = 3


def test_missing_key_is_a_not_found_error_that_names_it(tmp_path):
    store = KvStore.open(f"{tmp_path}/").result()
    with pytest.raises(NotFoundError, match=r'^NOT_FOUND: local file ".*/x" does not exist$') as e:
        store["x"]
    assert isinstance(e.value, KeyError)


def test_value_is_copied_before_write_returns():
    store = KvStore.open("memory://").result()
    value = bytearray(b"abc")
    future = store.write("a", value)
    value[:] = b"xyz"
    future.result()
    assert store["a"] == b"abc"


def test_await_works_in_any_loop(pair):
    async def operate(store):
        await store.write("a", b"1")
        result = await store.read("a")
        return result.value, await store.list()

    assert [asyncio.run(operate(store)) for store in pair] == [(b"1", [b"a"])] * 2


def test_stamp_has_the_time_of_the_operation(pair):
    for store in pair:
        store["a"] = b"1"
    times = [store.read("a").result().stamp.time for store in pair]
    assert abs(times[0] - times[1]) < 10


def test_batches_add_the_path(pair):
    ours = pair[0] / "sub/"
    ours.write_many(WriteRequest(["a", "b"], [b"1", b"2"])).raise_first()
    columns = ours.read_many(ReadRequest(["b", "c"]))
    assert bytes(columns.value[0]) == b"2"
    assert ours.list().result() == [b"a", b"b"]
    assert ours.driver.read_many(ReadRequest([ours.path + "a"])).total == [1]
    assert ours.describe("a").endswith('sub/a"')


def test_copying_a_range(pair):
    ours = pair[0]
    fill(ours)
    target = KvStore.open("memory://t/").result()
    (ours / "dir/").experimental_copy_range_to(target, KvStore.KeyRange("x", "y")).result()
    assert target.list().result() == [b"x"]
    (ours / "dir/").experimental_copy_range_to(ours / "copy/").result()
    assert ours["copy/y"] == b"dir/y" * 3


@pytest.mark.parametrize("target", ["x.db|ocdbt:", "x.zip|zip:a/"])
def test_copies_are_few_writes(tmp_path, monkeypatch, target):
    monkeypatch.setattr(copied_values, "_NBYTES", 1000)
    source = KvStore.open(f"{tmp_path}/source/").result()
    values = {f"{i:03}": b"x" * (2000 if i == 50 else i) for i in range(100)}
    keys = list(values)
    source.write_many(WriteRequest(keys, list(values.values()))).raise_first()
    made = KvStore.open(f"{tmp_path}/{target}").result()
    writes = []
    write = type(made.driver).write_many
    monkeypatch.setattr(
        type(made.driver),
        "write_many",
        lambda self, request: writes.append(request.keys) or write(self, request),
    )
    source.experimental_copy_range_to(made, KvStore.KeyRange("010")).result()
    assert {key: made[key] for key in keys[10:]} == {key: values[key] for key in keys[10:]}
    assert len(made.list().result()) == 90
    # Batches end before they would be longer, and have one key at least.
    sizes = [sum(len(values[key[-3:]]) for key in batch) for batch in writes]
    assert [size for size in sizes if size > 1000] == [2000]
    assert len(writes) <= 2 + 2 * sum(sizes) // 1000


def test_a_key_that_cannot_be_read_ends_a_copy(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").symlink_to("nowhere")
    (tmp_path / "c").symlink_to("/")
    source, target = KvStore.open(f"{tmp_path}/").result(), KvStore.open("memory://").result()
    with pytest.raises(GpustoreError):
        source.experimental_copy_range_to(target).result()


# --------------------------------------------------------------------------- spec, url, repr

SPECS = [
    "memory://", "memory://abc", "memory://a%20b/c", "memory:///abc", "memory://a%00b",
    "file:///tmp/a b", "file:///tmp/%C3%A9", "file:///", "memory:", "memory://a?b",
    "memory://a#b", "", 3, None, [], {"path": "a"},
    {"driver": "memory", "path": "a", "foo": 1}, {"driver": "memory", "path": 3},
    {"driver": "nope"}, {"driver": "memory", "atomic": False}, {"driver": "memory", "atomic": 3},
    {"driver": "memory", "memory_key_value_store": {}},
    {"driver": "memory", "memory_key_value_store": "memory_key_value_store#a",
     "context": {"memory_key_value_store#a": {}}},
    {"driver": "memory", "context": {"memory_key_value_store": {"a": 1}}},
    {"driver": "memory", "path": "aé b\0"},
    {"driver": "file", "path": "/tmp/", "file_io_sync": False},
    {"driver": "file", "path": "/tmp/", "file_io_concurrency": {"limit": 2}},
    {"driver": "file", "path": "/tmp/", "file_io_locking": {"mode": "none"}},
    {"driver": "file", "path": "/a//b"}, {"driver": "file", "path": "/a/../b"},
    {"driver": "file", "path": "/a\0b"},
]  # fmt: skip


@each("json", SPECS)
def test_spec_is_parsed_and_printed_alike(json):
    def parse(library):
        spec = library.KvStore.Spec(json)
        again = library.KvStore.Spec(spec.to_json())
        assert again == spec
        assert pickle.loads(pickle.dumps(spec)) == spec
        return repr(spec), spec.to_json(), spec.url, spec.path, repr(spec / "x"), repr(spec + "x")

    class Ours:
        pass

    Ours.KvStore = KvStore
    ours, theirs = outcome(lambda: parse(Ours)), outcome(lambda: parse(ts))
    if theirs[0] == "ValueError":
        assert ours[0] == "ValueError"
        assert ours[1].startswith(theirs[1])
    else:
        assert ours == theirs


@pytest.mark.parametrize("url", ["nope://x", "MEMORY://x", "memory://a|nope:"])
def test_unknown_scheme_is_an_error(url):
    ours, theirs = outcome(lambda: KvStore.Spec(url)), outcome(lambda: ts.KvStore.Spec(url))
    assert ours[0] == theirs[0] == "ValueError"
    assert ours[1].startswith(theirs[1])


@pytest.mark.parametrize("driver", ["zarr3", "zarr", "neuroglancer-precomputed", "array"])
def test_a_tensorstore_driver_is_no_kvstore(driver):
    json = {"driver": driver, "path": "a"}
    assert outcome(lambda: KvStore.Spec(json)) == outcome(lambda: ts.KvStore.Spec(json))


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("flie://x", '; did you mean "file"?'),
        ("S3://x/y", '; did you mean "s3"'),
        ("memory://a|zib:", '; did you mean "zip"?'),
        ("memory://a|xyzzy:", "; known: auto, avif, bmp, cast, file, gs, http, https, jpeg,"),
        ("flie:x", 'did you mean "file"?; a path that begins so is written "./flie:x"'),
    ],
)
def test_unknown_schemes_are_told_apart_from_typos(url, hint):
    for name in ("fil", "zar3"):
        with pytest.raises(MetadataError, match=f'"{name}" is not a .*; did you mean "[fz]'):
            (KvStore.Spec if name == "fil" else Spec)({"driver": name, "kvstore": "memory://x"})
    for parse in (KvStore.Spec, Spec):
        with pytest.raises(MetadataError) as caught:
            parse(url)
        assert "unsupported URL scheme" in str(caught.value)
        assert hint in str(caught.value)


def test_defaults_can_be_printed():
    for json in ({"driver": "memory"}, {"driver": "file", "path": "/tmp/"}):
        ours = KvStore.Spec(json).to_json(include_defaults=True)
        assert ours == ts.KvStore.Spec(json).to_json(include_defaults=True)


@pytest.mark.parametrize(
    "json",
    [
        {"driver": "memory", "path": "abc/"},
        {"driver": "memory", "atomic": False, "memory_key_value_store": {}},
        {"driver": "memory", "memory_key_value_store": "memory_key_value_store#a",
         "context": {"memory_key_value_store#a": {}}},
    ],
    ids=str,
)  # fmt: skip
def test_opened_store_prints_alike(json):
    ours, theirs = KvStore.open(json).result(), ts.KvStore.open(json).result()
    assert repr(ours) == repr(theirs)
    assert repr(ours.spec()) == repr(theirs.spec())
    assert repr(ours.spec(unbind_context=True)) == repr(theirs.spec(unbind_context=True))
    assert (ours.url, ours.path, ours.base) == (theirs.url, theirs.path, theirs.base)


PRINTED = [
    {"driver": "file", "path": "/data/x/", "file_io_sync": False},
    {"driver": "file", "path": "/data/", "context": {"file_io_sync": False}},
    {"driver": "file", "path": "/data/", "context": {"file_io_concurrency#x": {"limit": 5}}}
    | {"file_io_concurrency": "file_io_concurrency#x"},
    {"driver": "memory", "path": "b/"},
    {"driver": "memory", "memory_key_value_store": "memory_key_value_store#a"}
    | {"context": {"memory_key_value_store#a": {}}},
    {"driver": "zip", "base": "file:///tmp/a.zip"},
    {"driver": "http", "base_url": "http://127.0.0.1:1"},
    {"driver": "s3", "bucket": "abc", "aws_credentials": {"type": "anonymous"}},
    {"driver": "gcs", "bucket": "abc"},
    {"driver": "kvstack", "layers": [{"base": "file:///tmp/a/"}]},
]


@each("spec", PRINTED)
def test_stores_and_specs_print_their_context_as_tensorstore_does(spec):
    def printed(library):
        store = library.KvStore.open(spec).result()
        bound = library.KvStore.Spec(spec)
        bound.update(context=library.Context())
        specs = [store.spec(**{name: True}) for name in ("unbind_context", "retain_context")]
        return list(map(repr, (store, bound, store.spec(), *specs)))

    assert printed(gpustore) == printed(ts)


def test_path_is_joined_alike(pair):
    def joined(store):
        results = []
        for base in ("", "a", "a/"):
            copied = store.copy()
            copied.path = base
            for part in ("", "b", "/b", b"b/"):
                results.append(((copied / part).path, (copied + part).path))
        with pytest.raises(TypeError):
            store / 3
        return results

    assert joined(pair[0]) == joined(pair[1])


def test_copies_have_their_own_path():
    store = KvStore.open("memory://a/").result()
    for other in (store.copy(), copy.copy(store), copy.deepcopy(store)):
        other["x"] = b"1"
        other.path = "b/"
        assert store.path == "a/"
        assert store["x"] == b"1"
    spec = KvStore.Spec("memory://a/")
    for other in (spec.copy(), copy.copy(spec), copy.deepcopy(spec), KvStore.Spec(spec)):
        other.path = "b/"
        assert spec.path == "a/"


def test_pickled_store_opens_the_same_files(tmp_path):
    store = KvStore.open({"driver": "file", "path": f"{tmp_path}/", "file_io_sync": False}).result()
    store["a"] = b"1"
    again = pickle.loads(pickle.dumps(store))
    assert again["a"] == b"1"
    assert repr(again) == repr(store)


def test_context_of_the_spec_comes_before_the_argument():
    context = Context({"memory_key_value_store": {}})
    first = KvStore.open("memory://", context=context).result()
    first["a"] = b"1"
    own = {"driver": "memory", "context": {"memory_key_value_store": {}}}
    assert "a" not in KvStore.open(own, context=context).result()
    assert "a" in KvStore.open({"driver": "memory", "context": {}}, context=context).result()


def test_errors_of_open_are_typed():
    with pytest.raises(MetadataError):
        KvStore.open({"driver": "nope"})
    with pytest.raises(TypeError):
        KvStore.open("memory://", context=3)
    for call in (
        lambda: KvStore.open("memory://", transaction=3),
        lambda: KvStore.open("memory://").result().with_transaction(3),
    ):
        with pytest.raises(TypeError, match="Invalid transaction"):
            call()
    assert issubclass(MetadataError, GpustoreError)


# --------------------------------------------------------------------------- small values


@each(
    "make",
    [
        lambda kv: kv.KeyRange(),
        lambda kv: kv.KeyRange("a", b"b"),
        lambda kv: kv.TimestampedStorageGeneration(),
        lambda kv: kv.TimestampedStorageGeneration(b"x", 3),
        lambda kv: kv.ReadResult(),
        lambda kv: kv.ReadResult("value", "x"),
        lambda kv: kv.ReadResult("foo"),
        lambda kv: kv.KeyRange(3),
    ],
    ids=range(8),
)
def test_small_values_print_and_copy_alike(make):
    def show(kv):
        value = make(kv)
        again = pickle.loads(pickle.dumps(value))
        return repr(value), repr(again), repr(copy.copy(value)), repr(copy.deepcopy(value))

    assert outcome(lambda: show(KvStore), text=False) == outcome(
        lambda: show(ts.KvStore), text=False
    )


def test_key_range_can_be_changed():
    wanted = KvStore.KeyRange("a")
    other = wanted.copy()
    other.inclusive_min = "b"
    other.exclusive_max = b"c"
    assert other == KvStore.KeyRange("b", "c")
    assert wanted == KvStore.KeyRange("a")
    assert wanted != other
    assert "b" in other
    assert "c" not in other


# ------------------------------------------------------- copies, and changes of specs


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_deep_copy_has_resources_of_its_own(library):
    store = library.KvStore.open("memory://a/").result()
    shallow, deep = copy.copy(store), copy.deepcopy(store)
    store["key"] = b"value"
    assert shallow["key"] == b"value"
    assert deep.list().result() == []
    assert deep.url == store.url


@pytest.mark.parametrize("library", LIBRARIES)
def test_ranges_and_targets_have_their_types(library):
    store = library.KvStore.open("memory://").result()
    with pytest.raises(TypeError):
        store.experimental_copy_range_to(None)
    with pytest.raises(TypeError):
        store.experimental_copy_range_to(store, "a")
    for bad in ("a", None):
        with pytest.raises(TypeError):
            store.delete_range(bad)
    with pytest.raises(TypeError):
        store.list("a")


def test_specs_change_their_context_as_in_tensorstore():
    found = []
    for library in LIBRARIES:
        spec = library.KvStore.Spec(
            {"driver": "memory", "path": "a/", "memory_key_value_store": "memory_key_value_store#a"}
        )
        context = library.Context({"memory_key_value_store#a": {}})
        bound = spec.copy()
        bound.update(context=context)
        library.KvStore.open(bound).result()["key"] = b"value"
        again = library.KvStore.open(spec, context=context).result().list().result()
        bound.update(context=library.Context({"memory_key_value_store#a": {}}))  # It is bound.
        texts = [library.KvStore.open(bound).result().list().result(), again]
        bound.update(unbind_context=False, strip_context=False)
        bound.update(unbind_context=True)
        texts += [bound.to_json(), library.KvStore.open(bound).result().list().result()]
        bound.update(strip_context=True)
        spec.update(context=context, unbind_context=True)
        texts += [bound.to_json(), spec.to_json()]
        with pytest.raises(TypeError):
            spec.update(context={})
        found.append(texts)
    assert found[0] == found[1]
