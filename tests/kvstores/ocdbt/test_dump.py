"""``gpustore.ocdbt.dump`` gives what ``tensorstore.ocdbt.dump`` gives."""

import pytest
import tensorstore as ts
from hypothesis import given, settings

import gpustore
from gpustore.errors import CorruptChunkError, InvalidKeyError, MetadataError, NotFoundError
from gpustore.kvstores.ocdbt.location import DataFile, Location
from gpustore.kvstores.ocdbt.rewrite import Changes, Rewrite
from tests.kvstores.ocdbt.tensorstore_ocdbt import Opened, TensorStoreDatabase, configs, histories
from tests.matrix import each


def references(value):
    """All references in what dump returned."""
    if isinstance(value, dict):
        for name, member in value.items():
            if name in ("location", "indirect_value"):
                yield member
            else:
                yield from references(member)
    elif isinstance(value, list):
        for member in value:
            yield from references(member)


def check_dumps(ours, theirs):
    """Everything that can be reached is shown alike."""
    wanted = [None]
    seen = set()
    while wanted:
        node = wanted.pop()
        shown = gpustore.ocdbt.dump(ours.base, node).result()
        assert shown == ts.ocdbt.dump(theirs.base, node).result()
        found = set(references(shown)) - seen
        seen |= found
        wanted += found
    return seen


def check_history(config, steps, other_steps):
    ours = Opened(config)
    for step in steps:
        ours.apply(step)
    theirs = TensorStoreDatabase(files=ours.files)
    check_dumps(ours, theirs)
    for step in other_steps:
        theirs.apply(step)
    check_dumps(Opened(files=theirs.files), theirs)


@settings(max_examples=10)
@given(configs, histories, histories)
def test_everything_is_shown_as_by_tensorstore(config, steps, other_steps):
    check_history(config, steps, other_steps)


def test_all_kinds_of_things_are_shown():
    ours = Opened({"version_tree_arity_log2": 1, "max_decoded_node_bytes": 100})
    for i in range(10):
        ours.apply({f"a{i}": b"1", f"b{i}": b"2" * 200})
    seen = check_dumps(ours, TensorStoreDatabase(files=ours.files))
    assert {reference.partition(":")[0] for reference in seen} == {
        "value",
        "btreenode",
        "versionnode",
    }


def test_paths_in_references_are_encoded_as_by_tensorstore():
    relative = bytes(c for c in range(33, 127) if c not in b"\\/") + b"/\xc3\xa9 x"
    nodes = []
    rewrite = Rewrite(
        Opened().store.driver._database,
        max_node_nbytes=0,
        level=0,
        write=lambda data: add(nodes, data),
    )
    value = Location(DataFile(b"ba:s e/", relative), 3, 4)
    rewrite.apply(None, Changes([(b"k", value), (b"l", b"inline")]))
    files = {b"d/x": nodes[0], b"ba:s e/" + relative: b"0123456"}
    ours, theirs = Opened(files=files), TensorStoreDatabase(files=files)
    node = f"btreenode::d/x:0:{len(nodes[0])}"
    shown = gpustore.ocdbt.dump(ours.base, node).result()
    assert shown == ts.ocdbt.dump(theirs.base, node).result()
    (reference,) = references(shown)
    assert gpustore.ocdbt.dump(ours.base, reference).result() == b"3456"


def add(nodes, data):
    nodes.append(data)
    return Location(DataFile(b"", b"d/x"), 0, len(data))


WRONG = [
    *("", "bar", "btreenode:a:b", "btreenode::a:b:1", "btreenode::a::1", "btreenode::a:0"),
    *("btreenode::a:0:1:2", "btreenode::a:-1:1", "btreenode::a:18446744073709551616:1"),
    *("value::a:01:+1", "Value::a:0:1", "foo::a:0:1", ":::0:0", "btreenode:%zz:a:0:1"),
    *("btreenode::a:9223372036854775807:1",),
]


@each("node", WRONG)
def test_wrong_references_are_told_as_by_tensorstore(node):
    with pytest.raises(ValueError, match=r".") as theirs:
        ts.ocdbt.dump(TensorStoreDatabase().base, node).result()
    with pytest.raises(MetadataError) as ours:
        gpustore.ocdbt.dump(Opened().base, node).result()
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("path", ["..", "a/../b", "/a", "a//b", "%2e%2e/a", "a%00b", "a%5Cb"])
def test_references_do_not_lead_out(path):
    with pytest.raises(InvalidKeyError, match="it would leave the database"):
        gpustore.ocdbt.dump(Opened().base, f"value::{path}:0:1").result()


def test_missing_data_are_errors():
    base = Opened().base
    with pytest.raises(NotFoundError, match=r"^NOT_FOUND: Manifest not found: there is no OCDBT"):
        gpustore.ocdbt.dump(base).result()
    with pytest.raises(CorruptChunkError, match=r"^NOT_FOUND: Error reading Byte range"):
        gpustore.ocdbt.dump(base, "value::d/x:0:1").result()
    base[b"d/x"] = b"0123"
    with pytest.raises(CorruptChunkError, match=r"^OUT_OF_RANGE: Error reading Byte range"):
        gpustore.ocdbt.dump(base, "value::d/x:2:5").result()
    with pytest.raises(CorruptChunkError, match=r"Error decoding version tree node: Encoded le"):
        gpustore.ocdbt.dump(base, "versionnode::d/x:0:4").result()
    with pytest.raises(CorruptChunkError, match=r"Error decoding b-tree node: Encoded length \(4"):
        gpustore.ocdbt.dump(base, "btreenode::d/x:0:4").result()
    with pytest.raises(TypeError, match="base: expected a KvStore"):
        gpustore.ocdbt.dump("memory://")


def test_parts_of_tensorstores_module_that_are_absent_say_so():
    ocdbt = gpustore.ocdbt
    for call in (
        ocdbt.DistributedCoordinatorServer,
        lambda: ocdbt.undump_manifest({}),
        lambda: ocdbt.undump_version_tree_node({}, {}),
    ):
        with pytest.raises(gpustore.UnsupportedError):
            call()
