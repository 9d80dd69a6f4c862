"""Specs that differ in the path of their kvstore mean what each means alone."""

import threading

import numpy as np
import pytest

import gpustore
from gpustore import Spec
from gpustore.errors import GpustoreError
from gpustore.front import spec_template
from tests.matrix import each


@pytest.fixture(autouse=True)
def forget():
    spec_template._templates.clear()


def outcome(json):
    try:
        spec = Spec(json)
        return str(spec), None if spec.kvstore is None else spec.url, spec.open_mode
    except (GpustoreError, TypeError) as error:
        return type(error), str(error)


FILE = {"driver": "file", "path": "/a"}
SPECS = {
    "plain": {"driver": "zarr3", "kvstore": FILE},
    "number": {"driver": "zarr3", "kvstore": FILE, "rank": 1},
    "wrong number": {"driver": "zarr3", "kvstore": FILE, "rank": True},
    "mode": {"driver": "zarr", "kvstore": FILE, "create": True},
    "metadata": {"driver": "zarr", "kvstore": FILE, "metadata": {"shape": (np.int64(3),)}},
    "path": {"driver": "zarr", "kvstore": FILE, "path": "b"},
    "context": {"driver": "zarr3", "kvstore": FILE, "context": {"cache_pool": {}}},
    "context below": {"driver": "zarr3", "kvstore": {**FILE, "context": {"cache_pool": {}}}},
    "bucket": {"driver": "zarr3", "kvstore": {"driver": "s3", "bucket": "abc", "path": "x"}},
    "http": {"driver": "zarr3", "kvstore": {"driver": "http", "base_url": "https://a.b/c"}},
    "zip": {"driver": "zarr3", "kvstore": {"driver": "zip", "base": FILE, "path": "x/"}},
    "memory": {"driver": "zarr3", "kvstore": {"driver": "memory", "path": "x"}},
    "auto": {"driver": "auto", "kvstore": FILE},
    "cast": {"driver": "cast", "dtype": "int8", "base": {"driver": "zarr3", "kvstore": FILE}},
    "unknown driver": {"driver": "x", "kvstore": FILE},
    "unknown kvstore": {"driver": "zarr3", "kvstore": {"driver": "x", "path": "a"}},
    "unknown member": {"driver": "zarr3", "kvstore": FILE, "x": 1},
    "unknown member below": {"driver": "zarr3", "kvstore": {**FILE, "x": 1}},
    "no name": {"driver": "zarr3", "kvstore": FILE, 1: 2},
    "object": {"driver": "zarr3", "kvstore": FILE, "rank": object},
    "kvstore": {"driver": "file", "path": "/a"},
    "url": {"driver": "zarr3", "kvstore": "file:///a"},
}
PATHS = (
    "/a",
    "/a/",
    "",
    "/",
    "a/b",
    "./a",
    "/a/../b",
    "a//b",
    "a\0",
    "/.a",
    "é",
    "\ud800",
    3,
    None,
)


@each("name", SPECS)
def test_what_is_remembered_of_one_path_is_right_for_others(name):
    json = SPECS[name]

    def at(path):
        kvstore = json.get("kvstore")
        return {**json, "kvstore": {**kvstore, "path": path}} if type(kvstore) is dict else json

    for path in PATHS:
        spec_template._templates.clear()
        alone = outcome(at(path))
        for first in ("/first", "/second"):
            outcome(at(first))
        assert outcome(at(path)) == alone, path
        assert outcome(at(path)) == alone, path


def test_number_of_templates_is_bounded_with_threads():
    def parse(first):
        for rank in range(33):
            for index in range(first, first + 5):
                store = {"driver": "s3", "bucket": f"bucket-{index}", "path": "a"}
                assert Spec({"driver": "zarr3", "rank": rank, "kvstore": store}).rank == rank

    threads = [threading.Thread(target=parse, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert 0 < len(spec_template._templates) <= 64 + len(threads)


def test_a_spec_may_be_a_subclass_of_dict_with_other_values():
    class Json(dict):
        def get(self, name, default=None):
            return "x"

    assert gpustore.Spec(Json(SPECS["plain"])) == Spec(SPECS["plain"])


KVSTORES = (
    *({"driver": "memory", "path": "a"}, {"driver": "memory", "path": "b/"}, "memory://c", None),
    *({"driver": "memory", "path": "../d"}, {"driver": "memory", "other": 1}, {"path": "e"}, {}),
    {"driver": "memory", "path": "f", "context": {"memory_key_value_store": {}}},
)
OTHERS = (
    *({}, {"dtype": "uint8"}, {"dtype": "uint"}, {"rank": 2}, {"rank": 2.0}, {"rank": True}),
    *({"path": "x"}, {"create": True}, {"open": 1}, {"field": "x"}, {"other": None}),
    *({"metadata": {"shape": [2]}}, {"metadata": {"shape": [2.0]}}, {"metadata": {"shape": 2}}),
    *({"schema": {"rank": 1}, "metadata": {"shape": [2, 3]}}, {"cache_pool": "cache_pool#a"}),
    *({"transform": {"input_rank": 1}}, {"context": {"cache_pool": {}}}, {"context": 1}),
    *({"recheck_cached_data": 1}, {"recheck_cached_data": True}, {"recheck_cached_data": "open"}),
)


def parsed(json):
    try:
        spec = Spec(json)
    except GpustoreError as error:
        return type(error), str(error)
    return repr(spec.to_json()), spec.open_mode, spec.schema, spec.transform


@each("driver", ["zarr2", "zarr3", "zarr", "auto", "json", "n5", 3, None])
def test_specs_in_other_kvstores_are_parsed_as_if_alone(driver):
    for other in OTHERS:
        specs = [{"driver": driver, "kvstore": kvstore, **other} for kvstore in KVSTORES]
        alone = []
        for one in specs:
            spec_template._templates.clear()
            alone.append(parsed(one))
        assert [parsed(one) for one in [*specs, *specs]] == [*alone, *alone]


def test_specs_that_share_what_they_say_change_alone():
    specs = [
        Spec({"driver": "zarr3", "kvstore": {"driver": "memory", "path": path}, "dtype": "int8"})
        for path in "abc"
    ]
    specs[0].update(shape=[3], create=True, context={"cache_pool": {}})
    specs[1].schema.update(rank=4)
    specs[1].to_json()["kvstore"]["path"] = "d"
    assert [spec.rank for spec in specs] == [1, None, None]
    assert [spec.kvstore.path for spec in specs] == ["a/", "b/", "c/"]
    assert specs[2].open_mode == gpustore.OpenMode(open=True)
