"""The ocdbt kvstore: the contract, specs, and reading what TensorStore wrote."""

# ruff: noqa: F403  the shared suite is taken over by name

import pickle

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given, settings

import gpustore
from gpustore.errors import (
    CorruptChunkError,
    InvalidKeyError,
    MismatchError,
    NotFoundError,
    StoreIOError,
    UnsupportedError,
)
from gpustore.kvstores.columns import ReadRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.ocdbt.dump import dump as show
from tests.kvstores.contract import *
from tests.kvstores.faulty import Fault, Rule
from tests.kvstores.ocdbt.tensorstore_ocdbt import (
    Opened,
    TensorStoreDatabase,
    apply,
    configs,
    histories,
)
from tests.matrix import each


@pytest.fixture(params=["single", "numbered"])
def make_store(request):
    # Small nodes, so that trees have several levels.
    config = {"manifest_kind": request.param, "max_decoded_node_bytes": 100}
    return lambda: Opened({**config, "max_inline_value_bytes": 4}).store


def test_manifests_may_lie_elsewhere():
    members = {"base": "memory://db/", "manifest": "memory://manifests"}
    for kind in ("single", "numbered"):
        ours = Opened({"manifest_kind": kind, "max_inline_value_bytes": 0}, **members)
        ours.apply({"a": b"1", "b": b"2"})
        ours.apply({"b": None, "c": b"3"})
        names = {key.rpartition(b"/")[0].partition(b"/")[0] for key in ours.files}
        assert names == {b"db", b"manifests"}
        assert any(key.startswith(b"manifests/manifest.ocdbt") for key in ours.files)
        theirs = TensorStoreDatabase(files=ours.files, **members)
        assert theirs.items() == ours.items() == {b"a": b"1", b"c": b"3"}
        theirs.apply({"d": b"4"})
        again = Opened(files=theirs.files, **members)
        assert again.items() == {b"a": b"1", b"c": b"3", b"d": b"4"}
        spec = again.store.spec().to_json()
        assert spec["manifest"] == {"driver": "memory", "path": "manifests/"}
        reopened = KvStore.open(again.store.spec(retain_context=True)).result()
        assert reopened["d"] == b"4"


def test_stores_are_pickled_and_opened_again(tmp_path):
    store = KvStore.open(f"file://{tmp_path}/|ocdbt:a/").result()
    store["x"] = b"1"
    assert pickle.loads(pickle.dumps(store))["x"] == b"1"
    old = KvStore.open(f"file://{tmp_path}/|ocdbt:@v2/a/").result()
    store["x"] = b"2"
    again = pickle.loads(pickle.dumps(old))
    assert again["x"] == b"1"
    assert again.url == f"file://{tmp_path}/|ocdbt:@v2/a/"
    assert KvStore.open(store.spec()).result()["x"] == b"2"


def test_databases_in_archives_and_in_databases_are_read(tmp_path):
    url = f"file://{tmp_path}/x.zip|zip:db/|ocdbt:in/|ocdbt:a/"
    outer = Opened()
    outer.apply({"a/x": b"1" * 200, "a/y": b"2"})
    inner = KvStore.open(f"file://{tmp_path}/x.zip|zip:db/|ocdbt:in/").result()
    for key, value in outer.files.items():
        inner[key] = value
    store = KvStore.open(url).result()
    assert store.list().result() == [b"x", b"y"]
    assert store["x"] == b"1" * 200
    assert store.url == url
    store["z"] = b"3"
    assert KvStore.open(url).result()["z"] == b"3"


@pytest.fixture
def generations_tell_writes_apart():
    return False


@pytest.fixture
def model_examples():
    return 15


def check_history_of_tensorstore(config, steps):
    theirs = TensorStoreDatabase(config)
    model, wanted = {}, {}
    for step in steps:
        theirs.apply(step)
        model = apply(model, step)
        wanted[theirs.versions[-1]["generation_number"]] = model
    ours = Opened(files=theirs.files)
    assert ours.items() == model
    assert ours.store.list().result() == sorted(model)
    for generation, items in wanted.items():
        assert ours.items(version=generation) == items
    for version in theirs.versions:
        time = version["commit_time"]
        at = f"{ts_time(time)}Z"
        generation = version["generation_number"]
        assert ours.items(version=at) == ours.items(version=generation)
        if generation > 1:
            before = f"{ts_time(time - 1)}Z"
            assert ours.items(version=before) == ours.items(version=generation - 1)


def ts_time(nanoseconds):
    return str(np.datetime64(nanoseconds, "ns"))


@settings(max_examples=20)
@given(configs, histories)
def test_every_version_that_tensorstore_wrote_is_read(config, steps):
    check_history_of_tensorstore(config, steps)


@pytest.mark.long
@given(configs, histories)
def test_every_version_that_tensorstore_wrote_is_read_long(config, steps):
    check_history_of_tensorstore(config, steps)


def outcome(open_spec):
    try:
        return open_spec()
    except (ValueError, NotImplementedError) as error:
        return str(error)


PATHS = [
    *("", "a", "a/b c", "/a", "@v5/", "@v5", "@v5/key", "@v05/a", "%40v5/x", "key@v5", "a%40b"),
    *("@v18446744073709551615/", "@2024-01-02T03:04:05Z/", "@2030-01-02T03:04:05.120Z/k"),
    *("@v5/@v6/", "@v0/", "@vx/", "@v+5/", "@v18446744073709551616/", "@v5/x?y", "a#b"),
]


@each("path", PATHS)
def test_urls_mean_the_same_to_tensorstore(path):
    url = f"memory://x|ocdbt:{path}"
    ours = outcome(lambda: (KvStore.Spec(url).to_json(), KvStore.Spec(url).url))
    theirs = outcome(lambda: (ts.KvStore.Spec(url).to_json(), ts.KvStore.Spec(url).url))
    assert ours == theirs


@pytest.mark.parametrize("path", ["@5/", "@/", "@", "@2030-01-02/", "@2030-01-02T03:04:05+01:00/"])
def test_wrong_times_in_urls_are_told_as_by_tensorstore(path):
    url = f"memory://x|ocdbt:{path}"
    theirs = outcome(lambda: ts.KvStore.Spec(url))
    assert outcome(lambda: KvStore.Spec(url)).startswith(theirs)


CONFIGS = [
    *({}, {"uuid": "52F814903630b039346d555cb7b1baff"}, {"uuid": "52"}, {"uuid": 5}, 5),
    *({"manifest_kind": "single"}, {"manifest_kind": "numbered"}, {"manifest_kind": "foo"}),
    *({"max_inline_value_bytes": n} for n in (0, 3.0, 1 << 20, (1 << 20) + 1, -1)),
    *({"max_decoded_node_bytes": n} for n in (0, 2**32 - 1, 2**32)),
    *({"version_tree_arity_log2": n} for n in (0, 1, 16, 17)),
    *({"compression": None}, {"compression": {"id": "zstd"}}, {"compression": "zstd"}),
    *({"compression": {"id": "zstd", "level": n}} for n in (0, 5, 30, -5)),
    *({"compression": {"id": "gzip"}}, {"compression": {}}, {"foo": 1}),
]


@each("config", CONFIGS)
def test_configurations_are_parsed_as_by_tensorstore(config):
    spec = {"driver": "ocdbt", "base": "memory://", "config": config}
    ours = outcome(lambda: KvStore.Spec(spec).to_json())
    assert ours == outcome(lambda: ts.KvStore.Spec(spec).to_json())


MEMBERS = [
    {"value_data_prefix": "v/"},
    {"btree_node_data_prefix": "b"},
    {"version_tree_node_data_prefix": ""},
    {"value_data_prefix": "d/"},
    {"assume_config": True},
    {"assume_config": False},
    {"target_data_file_size": 0},
    {"target_data_file_size": 1000},
    {"target_data_file_size": -1},
    {"coordinator": 5},
    {"manifest": "memory://"},
    {"manifest": {"driver": "memory", "path": "x"}},
    {"path": "a", "version": 5},
    {"version": 5.0},
    {"version": 0},
    {"version": -1},
    {"version": None},
    {"version": True},
    {"version": "2030-01-02T03:04:05.1234567891Z"},
    *({"experimental_read_coalescing_threshold_bytes": n} for n in (0, 5.0, -1, 2**64 - 1, "1")),
    *({"experimental_read_coalescing_merged_bytes": n} for n in (0, 5, -1, 1.5, None)),
    *({"experimental_read_coalescing_interval": t} for t in ("1ms", "0s", "-1s", "inf", "1", 5)),
    {"cache_pool": {"total_bytes_limit": 5}},
    {"data_copy_concurrency": {"limit": 3}},
    {"foo": 1},
]


@each("members", MEMBERS)
def test_members_are_parsed_as_by_tensorstore(members):
    spec = {"driver": "ocdbt", "base": "memory://x", **members}
    ours = outcome(lambda: KvStore.Spec(spec).to_json())
    theirs = outcome(lambda: ts.KvStore.Spec(spec).to_json())
    assert ours == theirs or (isinstance(theirs, str) and ours.startswith(theirs))


@pytest.mark.parametrize(
    "version", ["v5", "5", "", "2030-01-02", "2030-01-02T03:04Z", "2030-01-02T03:04:05z"]
)
def test_wrong_versions_are_told_as_by_tensorstore(version):
    spec = {"driver": "ocdbt", "base": "memory://x", "version": version}
    ours = outcome(lambda: KvStore.Spec(spec))
    assert ours.startswith(outcome(lambda: ts.KvStore.Spec(spec)))


@pytest.mark.parametrize("version", ["1960-01-01T00:00:00Z", "2600-01-01T00:00:00Z"])
def test_times_beyond_64_bits_are_refused(version):
    spec = {"driver": "ocdbt", "base": "memory://x", "version": version}
    ours = outcome(lambda: KvStore.Spec(spec))
    assert ours == outcome(lambda: ts.KvStore.Spec(spec))


def test_defaults_are_shown_as_by_tensorstore():
    spec = {"driver": "ocdbt", "base": "memory://x"}
    theirs = ts.KvStore.Spec(spec).to_json(include_defaults=True)
    ours = KvStore.Spec(spec).to_json(include_defaults=True)
    assert ours.pop("limits") == "limits"
    assert ours == theirs
    assert KvStore.Spec({**spec, "coordinator": "ocdbt_coordinator"}) == KvStore.Spec(spec)


@pytest.mark.parametrize(
    "members",
    [
        {"coordinator": {"address": "localhost:1"}},
    ],
    ids=str,
)
def test_unsupported_options_are_refused_by_name(members):
    with pytest.raises(UnsupportedError, match=next(iter(members))):
        KvStore.open({"driver": "ocdbt", "base": "memory://", **members}).result()


@pytest.mark.parametrize("prefix", ["../", "/", "a//", "a/../b/", "./", "a\\b", "a\0", "\ud800"])
def test_data_files_outside_the_database_are_refused(prefix):
    with pytest.raises(InvalidKeyError, match="data files must stay in the database"):
        KvStore.Spec({"driver": "ocdbt", "base": "memory://", "value_data_prefix": prefix})


def test_separate_manifest_has_no_url():
    spec = KvStore.Spec({"driver": "ocdbt", "base": "memory://", "manifest": "memory://m/"})
    with pytest.raises(UnsupportedError, match="OCDBT URL syntax not supported with separate"):
        spec.url  # noqa: B018


WRONG_CONFIGS = [
    {"max_inline_value_bytes": 5},
    {"uuid": "0" * 32},
    {"manifest_kind": "numbered"},
    {"max_decoded_node_bytes": 5},
    {"version_tree_arity_log2": 5},
    {"compression": None},
    {"compression": {"id": "zstd", "level": 5}},
]


@pytest.mark.parametrize("config", WRONG_CONFIGS, ids=str)
def test_another_configuration_than_the_stored_one_is_refused(config):
    theirs = TensorStoreDatabase({"uuid": "5" * 32})
    theirs.store["a"] = b"1"
    ours = Opened(files=theirs.files)
    store = ours.open(config=config)
    text = outcome(lambda: theirs.open(config=config).read("a").result())
    with pytest.raises(MismatchError) as caught:
        store["a"]
    where = 'Error reading "a" in OCDBT database at "": '
    assert str(caught.value).replace(where, "") == text


def test_spec_has_the_configuration_once_it_is_known():
    theirs = TensorStoreDatabase()
    theirs.store["a"] = b"1"
    ours = Opened(files=theirs.files)
    assert "config" not in ours.store.spec().to_json()
    assert ours.store["a"] == b"1"
    assert ours.store.spec().to_json() == theirs.store.spec().to_json()
    assert ours.store.url == theirs.store.url == "memory://|ocdbt:"


def test_a_missing_database_is_empty():
    ours = Opened()
    assert ours.store.list().result() == []
    assert ours.store.read("a").result().state == "missing"
    assert ours.files == {}
    with pytest.raises(NotFoundError, match="generation_number=5 not present: there is no OCDBT"):
        ours.open(version=5)["a"]


def test_versions_that_are_not_there_are_named():
    theirs = TensorStoreDatabase()
    theirs.store["a"] = b"1"
    ours = Opened(files=theirs.files)
    with pytest.raises(NotFoundError, match="Version where generation_number=99 not present"):
        ours.open(version=99)["a"]
    with pytest.raises(NotFoundError, match=r"Version where commit_time<=2001-01-01T00:00:00\+"):
        ours.open(version="2001-01-01T00:00:00Z")["a"]
    assert "a" not in ours.open(version=1)


@pytest.mark.parametrize("version", [2, 99, "2200-01-02T03:04:05.5Z", "2001-01-01T00:00:00Z"])
def test_members_missing_from_a_version_are_described_as_by_tensorstore(tmp_path, version):
    spec = {"driver": "ocdbt", "base": f"file://{tmp_path}/", "path": "p/"}
    KvStore.open(spec).result()["a"] = b"1"
    array = {"driver": "zarr3", "kvstore": {**spec, "version": version}}
    theirs = outcome(lambda: ts.open(array).result()).partition(" [tensorstore_spec")[0]
    assert outcome(lambda: gpustore.open(array).result()) == theirs
    assert "of OCDBT database at local file" in theirs


def test_keys_that_are_too_long_are_refused():
    with pytest.raises(InvalidKeyError, match="length 65536 exceeds maximum length of 65535"):
        Opened().store.driver.check_key("x" * 65536)


@pytest.mark.matrix("costly")
def test_long_keys_are_exchanged_with_tensorstore():
    keys = ["x" * 65_535, "x" * 65_534, *("y" * 65_530 + f"{i:04}" for i in range(300))]
    config = {"max_decoded_node_bytes": 1 << 20}
    ours, theirs = Opened(config), TensorStoreDatabase(config)
    for database in (ours, theirs):
        database.apply(dict.fromkeys(keys, b"1"))
        database.apply({keys[7]: b"2", keys[1]: None})
    wanted = {key.encode(): b"1" for key in keys if key != keys[1]} | {keys[7].encode(): b"2"}
    assert TensorStoreDatabase(files=ours.files).items() == wanted
    assert Opened(files=theirs.files).items() == wanted
    assert ours.store.driver._version().root_height >= 1


def test_any_key_is_legal():
    keys = ["", "..", "a//b", "/a", "a/", "a\0b", "a\\b", "é", b"a\xff", b"\xfe"]
    theirs = TensorStoreDatabase()
    for key in keys:
        theirs.store[key] = b"1"
    ours = Opened(files=theirs.files)
    wanted = {key.encode() if isinstance(key, str) else key for key in keys}
    assert set(ours.store.list().result()) == wanted
    assert all(ours.store[key] == b"1" for key in keys)


@each("low", ["", "a", "a/0", "a/1", "a/15", "b", "zz"])
@each("high", ["", "a/1", "a/12", "a0", "b", "zz"])
def test_ranges_are_listed_in_trees_of_many_nodes(low, high, many):
    ours, keys = many
    wanted = [key for key in keys if low.encode() <= key and (not high or key < high.encode())]
    assert ours.store.list(KvStore.KeyRange(low, high)).result() == wanted


@pytest.fixture(scope="module")
def many():
    theirs = TensorStoreDatabase({"max_decoded_node_bytes": 150})
    keys = {f"{a}{i}".encode(): b"1" for a in ("a/", "ab/c/", "b", "") for i in range(40)}
    theirs.apply({key.decode(): value for key, value in keys.items()})
    return Opened(files=theirs.files), sorted(keys)


def test_directories_are_listed_in_trees_of_many_nodes():
    names = {
        f"{a}{b}{i}" for a in ("", "a/", "a/b/", "ab/c/d/", "é/") for b in "xy" for i in range(9)
    }
    names |= {f"deep/{i}/{j}" for i in range(20) for j in range(20)} | {"/x", "a//x", "b/", "a0/z"}
    ours = Opened({"max_decoded_node_bytes": 300})
    ours.apply(dict.fromkeys(names, b"1"))
    for prefix in ("", "a/", "a/b/", "ab/", "deep/", "deep/7/", "b/", "none/", "é/", "/"):
        below = [name[len(prefix) :] for name in names if name.startswith(prefix)]
        wanted = sorted({name.partition("/")[0] for name in below if "/" in name})
        assert ours.store.driver.list_directories(prefix) == wanted
    assert Opened().store.driver.list_directories("") == []


def test_nodes_are_read_once_if_they_are_cached(many):
    ours, keys = many
    store, base = ours.record(cache_pool={"total_bytes_limit": 10_000_000})
    assert store.read_many(ReadRequest([k.decode() for k in keys])).error == {}
    assert len(base.read) > 40
    base.read.clear()
    assert store[keys[7]] == b"1"
    assert len(store.list().result()) == len(keys)
    assert base.read == ["manifest.ocdbt"] * 2


def test_nodes_take_no_more_of_the_cache_than_it_has(many):
    ours, keys = many
    for limit in (10_000, 20_000):
        pool = {"total_bytes_limit": limit}
        store, base = ours.record(cache_pool=pool)
        cache = store.driver._database._cache
        for _ in range(2):
            base.read.clear()
            for key in keys:
                assert store[key] == b"1"
                assert cache.nbytes <= limit
        # Those above the leaves have been there, but not all leaves.
        nodes = sum(key.startswith("d/") for key in base.read)
        assert 0 < nodes < len(keys)
        assert cache.nbytes > limit / 2


def test_nothing_is_cached_by_default(many):
    ours, keys = many
    store, base = ours.record()
    for _ in range(2):
        base.read.clear()
        assert store[keys[7]] == b"1"
        assert len(base.read) > 3


def test_a_batch_costs_one_request_a_level(many):
    ours, keys = many
    store, base = ours.record()
    assert store.read_many(ReadRequest([k.decode() for k in keys])).error == {}
    requests = base.requests
    height = store.driver._version().root_height
    assert height > 1
    assert requests == 1 + height + 1  # The manifest, and each level.


def test_manifest_is_read_again_only_as_the_staleness_bound_says(many):
    ours, keys = many
    store, base = ours.record()
    store.read_many(ReadRequest([keys[0].decode()]))
    base.read.clear()
    store.read_many(ReadRequest([keys[0].decode()], staleness_bound=0.0)).raise_first()
    assert "manifest.ocdbt" not in base.read


def test_value_that_comes_short_is_an_error():
    ours = Opened()
    ours.apply({"a": b"1" * 200})
    store, base = ours.record([Rule(Fault.SHORT_READ, skip=2)])
    with pytest.raises(StoreIOError, match=r"received 100 bytes of \[0, 200\) of \"d/"):
        store["a"]
    assert base.rules[0].injected == 1
    reference = gpustore.ocdbt.dump(ours.base).result()["versions"][-1]["root"]["location"]
    (entry,) = gpustore.ocdbt.dump(ours.base, reference).result()["entries"]
    database = ours.record([Rule(Fault.SHORT_READ)])[0].driver._database
    with pytest.raises(CorruptChunkError, match=": received 100 bytes"):
        show(database, entry["indirect_value"])


def test_an_error_of_a_data_file_names_the_key_that_was_written():
    ours = Opened()
    ours.apply({"a": b"1"})
    store, _ = ours.record([Rule(Fault.ERROR, "write")])
    with pytest.raises(StoreIOError, match=r'^[A-Z: _]*Error writing "key" in OCDBT') as caught:
        store.write("key", b"1" * 200).result()
    assert caught.value.key == "key"


def test_missing_data_file_is_an_error_and_never_an_absent_key():
    theirs = TensorStoreDatabase()
    theirs.store["a"] = b"1" * 200
    theirs.store["b"] = b"2"
    nodes = [v["root"].get("location") for v in theirs.versions]
    node = nodes[-1].split(":")[2].encode()
    files = theirs.files
    for name in [key for key in files if key.startswith(b"d/")]:
        rest = {key: value for key, value in files.items() if key != name}
        store = Opened(files=rest).store
        columns = store.read_many(ReadRequest(["a", "b", "c"]))
        assert set(columns.error) == ({0, 1, 2} if name == node else {0})
        with pytest.raises(CorruptChunkError, match=r"NOT_FOUND: Error reading .* does not exist"):
            store["a"]
        with pytest.raises(CorruptChunkError, match=name.decode()):
            store["a"]
