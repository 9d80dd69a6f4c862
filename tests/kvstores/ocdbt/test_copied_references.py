"""Copies of ranges between databases: references to the values of another, read by TensorStore."""

import pytest
import tensorstore as ts

import gpustore
from gpustore.kvstores.columns import ReadRequest

VALUES = {"a": b"small", "b/c": bytes(range(256)) * 40, "b/d": b"x" * 5000, "e": b""}


def databases(root, base="", config=None):
    """A database below another one."""
    context = gpustore.Context({"file_io_sync": False})
    found = []
    for path in ("parent/", f"parent/{base}"):
        spec = {"driver": "ocdbt", "base": f"file://{root}/{path}"}
        if config is not None:
            spec["config"] = config
        found.append(gpustore.KvStore.open(spec, context=context).result())
    for key, value in VALUES.items():
        found[1][key] = value
    return found


def stored_nbytes(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("base", ["child/", "deep/er/"])
def test_values_of_a_database_below_are_referred_to(base, tmp_path):
    parent, child = databases(tmp_path, base)
    parent["old"] = b"stays"
    before = stored_nbytes(tmp_path)
    child.experimental_copy_range_to(parent / "new/").result()
    assert stored_nbytes(tmp_path) < before + 2000
    expected = {"new/" + key: value for key, value in VALUES.items()} | {"old": b"stays"}
    theirs = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{tmp_path}/parent/"}).result()
    for store in (parent, theirs):
        assert {key.decode(): store[key] for key in store.list().result()} == expected
    grand = gpustore.KvStore.open(f"file://{tmp_path}/|ocdbt:").result()
    (parent / "new/").experimental_copy_range_to(
        grand, gpustore.KvStore.KeyRange("b", "c")
    ).result()
    theirs = ts.KvStore.open(f"file://{tmp_path}/|ocdbt:").result()
    for store in (grand, theirs):
        assert {key: store[key] for key in store.list().result()} == {
            b"b/c": VALUES["b/c"],
            b"b/d": VALUES["b/d"],
        }


def test_references_that_tensorstore_makes_are_copied_on(tmp_path):
    spec = [{"driver": "ocdbt", "base": f"file://{tmp_path}/{path}"} for path in ("p/", "p/c/")]
    context = ts.Context()
    parent, child = (ts.KvStore.open(one, context=context).result() for one in spec)
    for key, value in VALUES.items():
        child[key] = value
    child.experimental_copy_range_to(parent).result()
    ours = gpustore.KvStore.open(spec[0]).result()
    ours.experimental_copy_range_to(ours / "again/").result()
    assert {key.decode(): parent[key] for key in parent.list().result()} == VALUES | {
        "again/" + key: value for key, value in VALUES.items()
    }


def test_other_databases_are_copied_by_value(tmp_path):
    parent, child = databases(tmp_path, "child/")
    parent.experimental_copy_range_to(child).result()
    parent["p"] = b"y" * 3000
    parent.experimental_copy_range_to(child).result()  # Its files lie outside of the child.
    for path in (tmp_path / "parent").rglob("*"):
        if path.is_file() and "child" not in path.parts:
            path.unlink()
    context = gpustore.Context()
    again = gpustore.KvStore.open(f"file://{tmp_path}/parent/child/|ocdbt:", context=context)
    assert again.result()["p"] == b"y" * 3000


def test_copies_are_one_version_and_missing_keys_are_left_out(tmp_path):
    parent, child = databases(tmp_path, "child/")
    parent["old"] = b"1"
    first = gpustore.ocdbt.dump(parent.base).result()["versions"]
    driver = parent.driver
    keys = [("a", "x"), ("none", "y"), ("b/d", "z")]
    assert driver.copy_from(child.driver, keys, None)
    assert len(gpustore.ocdbt.dump(parent.base).result()["versions"]) == len(first) + 1
    columns = driver.read_many(ReadRequest(["x", "y", "z"]))
    assert columns.value == [VALUES["a"], None, VALUES["b/d"]]


def test_versions_are_not_written(tmp_path):
    parent, child = databases(tmp_path, "child/")
    parent["k"] = b"1"
    old = gpustore.KvStore.open(f"file://{tmp_path}/parent/|ocdbt:@v1/").result()
    with pytest.raises(gpustore.MismatchError, match="Writing is not supported"):
        child.experimental_copy_range_to(old).result()
    with pytest.raises(gpustore.LimitError, match="path of"):
        child.driver._find(["b/d"], None)[0].moved(b"p" * 65530)
