"""Hierarchies when something goes wrong: consolidated metadata are gone, or they are true."""

import pytest

import gpustore
from gpustore.errors import StoreIOError
from gpustore.hierarchy.nodes import Hierarchy
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.executor import shared
from gpustore.runtime.limits import DEFAULT_LIMITS
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.matrix import each


def set_attribute(hierarchy):
    node = hierarchy.read("a/x")
    hierarchy.attributes(node, shared(), writable=True).update(n=1).result()


CHANGES = {
    "create": lambda hierarchy: hierarchy.create_group("a/y/z", {"k": 2}),
    "delete": lambda hierarchy: hierarchy.delete("a/x"),
    "attribute": set_attribute,
    "consolidate": lambda hierarchy: hierarchy.consolidate(""),
}


def listed(driver, zarr_format, *, use_consolidated):
    """Return attributes by path, as a new reader sees them; None without consolidated metadata."""
    hierarchy = Hierarchy(driver, "", zarr_format, DEFAULT_LIMITS)
    hierarchy.open("", use_consolidated=None if use_consolidated else False)
    if use_consolidated and hierarchy.consolidated is None:
        return None
    return {node.path: dict(node.attributes) for node in hierarchy.walk("", None)}


@each("zarr_format", [2, 3])
@each("change", CHANGES)
@each("fault", [Fault.ERROR, Fault.LOST_REPLY])
@each("operation", ["read", "write", "delete_range"])
def test_a_change_that_fails_leaves_no_stale_metadata(zarr_format, change, fault, operation):
    injected = 0
    for skip in range(80):
        driver = KvStore.open({"driver": "memory"}).result().driver
        hierarchy = Hierarchy(driver, "", zarr_format, DEFAULT_LIMITS)
        hierarchy.create_group("a/x", {"k": 1})
        hierarchy.create_group("b", {})
        hierarchy.consolidate("")
        before = listed(driver, zarr_format, use_consolidated=False)
        rule = Rule(fault, operation, skip=skip)
        faulty = Hierarchy(FaultyKvStore(driver, [rule]), "", zarr_format, DEFAULT_LIMITS)
        try:
            CHANGES[change](faulty)
        except StoreIOError:
            assert rule.injected
        injected += rule.injected
        after = listed(driver, zarr_format, use_consolidated=False)
        told = listed(driver, zarr_format, use_consolidated=True)
        assert told in (None, after)
        # The rest is as it was.
        assert [after.get(path) for path in before if path != "a/x"] == [{}, {}]
        # Once more, without faults: it is done, or was.
        if change == "create":
            hierarchy.create_group("a/y/z", {"k": 2})
            assert hierarchy.read("a/y/z").is_group
        if not rule.injected:
            break
    assert not rule.injected
    assert injected or operation == "delete_range"


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_keys_that_cannot_be_those_of_nodes_lead_nowhere(zarr_format):
    """A database may have any keys: an empty part of one is not the group it is in, again."""
    context = gpustore.Context()
    url = "memory://db/|ocdbt:"
    driver = f"zarr{zarr_format}"
    group = gpustore.open_group(f"{url}|{driver}:", create=True, context=context).result()
    group.create_group("ok").result()
    store = gpustore.KvStore.open(url, context=context).result()
    name = ".zgroup" if zarr_format == 2 else "zarr.json"
    document = store[name]
    for path in ("/", "/a/", "ok//", "ok//b/", "../", "ok/../", "./", "..\\c/", "ok/d\\e/"):
        store[path + name] = document
    group = gpustore.open_group(f"{url}|{driver}:", context=context).result()
    assert list(group.members(max_depth=4).result()) == ["ok"]
