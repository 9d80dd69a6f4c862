"""Detecting the format of what lies at a path, with TensorStore as oracle where it can."""

import pickle
import re

import numpy as np
import pytest
import tensorstore as ts

import gpustore
from gpustore.errors import MetadataError, MismatchError, PathNotFoundError, StoreIOError
from tests.drivers.parity import LIBRARIES, agree, outcome
from tests.matrix import each


@pytest.fixture
def folder(tmp_path):
    """``v2`` and ``v3`` hold arrays, ``both`` two of them, ``none`` and ``file`` nothing."""
    for name, driver in (("v2", "zarr"), ("v3", "zarr3"), ("both", "zarr"), ("both", "zarr3")):
        spec = {"driver": driver, "kvstore": f"file://{tmp_path}/{name}/"}
        store = ts.open(spec, create=True, dtype="uint8", shape=[4]).result()
        store[...] = 5
    (tmp_path / "none").mkdir()
    (tmp_path / "file").write_text("{}")
    return tmp_path


NAMES = ("v2", "v3", "v2/", "both", "none", "missing", "file", "v3/zarr.json", "", "both/")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["{}|auto:", "{}", "json"])
def test_urls_and_specs_open_the_versions_of_tensorstore(folder, name, form):
    url = f"file://{folder}/{name}"
    spec = {"driver": "auto", "kvstore": url} if form == "json" else form.format(url)
    results = [
        outcome(lambda lib=library: lib.open(spec).result().spec().to_json()["driver"])
        for library in LIBRARIES
    ]
    assert agree(*results)


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_path_means_the_same(folder, name):
    """TensorStore takes no plain paths, so the oracle gets a URL."""
    results = [
        outcome(lambda s=spec: gpustore.open(s).result().spec().to_json()["driver"])
        for spec in (f"{folder}/{name}", f"file://{folder}/{name}")
    ]
    assert results[0] == results[1]
    if isinstance(results[0], str):
        store = gpustore.open(f"{folder}/{name}").result()
        assert store.read().result().tolist() == [5] * 4


def test_relative_paths_and_path_objects(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for path in ("v3", "./v3", "v3/", folder / "v3"):
        assert gpustore.open(path).result().read().result().tolist() == [5] * 4


def test_a_detected_array_names_its_format(folder):
    store = gpustore.open(f"{folder}/v3").result()
    spec = store.spec()
    assert spec.to_json()["driver"] == "zarr3"
    assert gpustore.open(spec).result().read().result().tolist() == [5] * 4
    assert pickle.loads(pickle.dumps(store)).spec() == spec
    assert store.url == f"file://{folder}/v3/|zarr3:"


def test_the_error_lists_the_formats_that_were_tried(folder):
    with pytest.raises(PathNotFoundError) as caught:
        gpustore.open(f"{folder}/none").result()
    assert str(caught.value) == (
        'FAILED_PRECONDITION: Error opening "auto" driver: Failed to detect format for local file '
        f'"{folder}/none": looked for "attributes.json", "info", ".zarray", "zarr.json", '
        '"manifest.ocdbt" in it and found none of them; there is nothing'
    )
    assert caught.value.key == f"{folder}/none"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["b.zarr/zarr.json", "a/x/y"], '"a/", "b.zarr/"'),
        ([f"{i}" for i in range(7)], '"0", "1", "2", "3", "4" and 2 more'),
    ],
)
def test_the_error_names_the_existing_contents(names, said):
    context = gpustore.Context()
    store = gpustore.KvStore.open("memory://here/", context=context).result()
    for name in names:
        store[name] = b""
    with pytest.raises(MismatchError, match=f"found none of them; there is {re.escape(said)}$"):
        gpustore.open("memory://here/", context=context).result()


def test_the_error_says_how_to_choose(folder):
    with pytest.raises(MismatchError, match=r"name one, e\.g\. \"\.\.\.\|zarr3:\""):
        gpustore.open(f"{folder}/both").result()
    for driver in ("zarr2", "zarr3"):
        store = gpustore.open(f"{folder}/both|{driver}:").result()
        assert store.read().result().tolist() == [5] * 4


@pytest.mark.parametrize(
    "constraints",
    [
        {"dtype": "uint8", "shape": [4]},
        {"dtype": "uint16"},
        {"rank": 2},
        {"shape": [5]},
        {"read": True},
        {"write": True},
        {"create": True},
        {"create": True, "open": True},
        {"create": True, "delete_existing": True},
    ],
)
@pytest.mark.parametrize("name", ["v2", "v3"])
def test_constraints_apply_to_the_detected_array(folder, name, constraints):
    url = f"file://{folder}/{name}|auto:"
    results = []
    for library in LIBRARIES:
        given = dict(constraints)
        if "dtype" in given:
            given["dtype"] = library.dtype(given["dtype"])
        results.append(outcome(lambda lib=library, g=given: lib.open(url, **g).result().mode))
    assert agree(*results)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"kvstore": "memory://a"},
        {"kvstore": "memory://a", "dtype": "uint8", "rank": 2},
        {"kvstore": "memory://a", "schema": {"rank": 2}},
        {"kvstore": "memory://a", "dtype": "uint8", "transform": {"input_shape": [3]}},
    ],
)
def test_specs_print_as_in_tensorstore(members):
    spec = {"driver": "auto", **members}
    results = [outcome(lambda lib=library: lib.Spec(dict(spec)).to_json()) for library in LIBRARIES]
    assert agree(*results)
    opened = [outcome(lambda lib=library: lib.open(dict(spec)).result()) for library in LIBRARIES]
    assert agree(*opened)


@pytest.mark.parametrize(("low", "size"), [(1, 2), (0, 4), (1, 9)])
def test_a_transform_is_handed_on(folder, low, size):
    transform = {"input_inclusive_min": [low], "input_shape": [size]}
    spec = {"driver": "auto", "kvstore": f"file://{folder}/v3", "transform": transform}
    results = [outcome(lambda lib=lib: lib.open(dict(spec)).result().domain) for lib in LIBRARIES]
    assert agree(*results)


@each(
    "members",
    [
        {"foo": 1},
        {"recheck_cached_data": True},
        {"create": True},
        {"open": True},
        {"cache_pool": 5},
        {"cache_pool": {"total_bytes_limit": 5}},
        {"cache_pool": "cache_pool"},
        {"cache_pool": "cache_pool#a", "context": {"cache_pool#a": {}}},
        {"memory_key_value_store": {}},
        {"data_copy_concurrency": {"limit": 2}, "dtype": "int8", "rank": 1},
        {"path": "x"},
        {"path": "/x"},
    ],
)
def test_other_members_are_context_resources(members):
    spec = {"driver": "auto", "kvstore": "memory://a", **members}
    assert agree(*(outcome(lambda lib=lib: lib.Spec(dict(spec)).to_json()) for lib in LIBRARIES))


def test_resources_are_for_the_detected_driver_and_not_its_kvstore():
    context = gpustore.Context()
    kvstore = {"driver": "memory", "path": "a/"}
    spec = {"driver": "zarr3", "kvstore": kvstore}
    gpustore.open(spec, create=True, dtype="int8", shape=[2], context=context).result()
    spec = {
        "driver": "auto",
        "kvstore": kvstore,
        "cache_pool": {"total_bytes_limit": 12345},
        "memory_key_value_store": {},
    }
    # Another memory would hold no array.
    store = gpustore.open(spec, context=context).result()
    unbound = store.spec(unbind_context=True).to_json()["context"]
    assert unbound["cache_pool"] == {"total_bytes_limit": 12345}
    named = {**spec, "cache_pool": "cache_pool#a"}
    context = gpustore.Context({"cache_pool#a": {"total_bytes_limit": 77}}, parent=context)
    unbound = gpustore.open(named, context=context).result().spec(unbind_context=True).to_json()
    assert unbound["context"]["cache_pool"] == {"total_bytes_limit": 77}


@pytest.mark.parametrize("driver", ["auto", "zarr2"])
@pytest.mark.parametrize("named", [False, True])
def test_the_opened_spec_and_its_pickle_say_both(tmp_path, driver, named):
    gpustore.open(f"{tmp_path}/a.zip|zip:q|zarr2:", create=True, dtype="int8", shape=[2]).result()
    pools = {"cache_pool#a": {"total_bytes_limit": 55}, "cache_pool#b": {"total_bytes_limit": 66}}
    mine, below = pools if named else pools.values()
    kvstore = {"driver": "zip", "base": f"file://{tmp_path}/a.zip", "path": "q/"}
    spec = {"driver": driver, "kvstore": kvstore, "cache_pool": mine, "context": pools}
    for given in (None, below):
        if given is not None:
            kvstore["cache_pool"] = given
        store = gpustore.open(spec).result()
        again = [
            gpustore.open(store.spec(unbind_context=True)).result(),
            gpustore.open(store.spec(retain_context=True).to_json()).result(),
            pickle.loads(pickle.dumps(store)),
            pickle.loads(pickle.dumps(gpustore.cast(store, "int16"))),
        ]
        for opened in (store, *again):
            array = opened if opened.base is None else opened.base
            of_array = array.spec(unbind_context=True).to_json()["context"]["cache_pool"]
            of_kvstore = array.kvstore.driver.resources["cache_pool"].to_json()
            assert of_array == {"total_bytes_limit": 55}
            assert of_kvstore == ({} if given is None else {"total_bytes_limit": 66})


def test_a_path_behind_the_scheme_is_refused():
    with pytest.raises(MetadataError, match="Path not supported"):
        gpustore.Spec("memory://a|auto:foo")


def test_memory_is_detected_too():
    context = gpustore.Context()
    spec = {"driver": "zarr3", "kvstore": "memory://a/"}
    store = gpustore.open(spec, create=True, dtype="int8", shape=[2], context=context).result()
    store[...] = 3
    again = gpustore.open("memory://a", context=context).result()
    assert np.array_equal(again.read().result(), [3, 3])


def test_a_folder_that_cannot_be_read_is_no_missing_format(tmp_path):
    # A loop of links is the failure that even root gets.
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises((StoreIOError, MismatchError, ValueError), match="loop") as caught:
        gpustore.open(f"{tmp_path}/loop").result()
    assert 'Error opening "auto" driver' in str(caught.value)
