"""Damaged and hostile databases: typed errors with key and place, never absent keys."""

import struct
import tracemalloc

import google_crc32c
import numcodecs.zstd
import numpy as np
import pytest
import tensorstore as ts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpustore
from gpustore.errors import CorruptChunkError, LimitError
from gpustore.kvstores.columns import ReadRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.ocdbt.columns import Reader, encode_varint, encode_varints
from gpustore.kvstores.ocdbt.config import MAX_INLINE_NBYTES, Compression, Config
from gpustore.kvstores.ocdbt.envelope import (
    BTREE_NODE,
    MANIFEST,
    VERSION_NODE,
    open_body,
    seal,
)
from gpustore.kvstores.ocdbt.keys import Keys
from gpustore.kvstores.ocdbt.location import DataFile, Location
from gpustore.kvstores.ocdbt.manifest import Manifest
from gpustore.kvstores.ocdbt.node import Interior, Leaf, Totals, read_node
from gpustore.kvstores.ocdbt.rewrite import Changes, Rewrite
from gpustore.kvstores.ocdbt.version_tree import (
    Version,
    VersionNode,
    VersionSubtree,
    advance,
)
from tests.kvstores.ocdbt.tensorstore_ocdbt import Opened, TensorStoreDatabase, configs, histories
from tests.matrix import each

MAX_NBYTES = 1 << 20


@st.composite
def mutations(draw):
    """Mutations of bytes: the relative position, and the change."""
    kinds = st.sampled_from(["flip", "set", "delete", "insert", "cut", "double"])
    step = st.tuples(kinds, st.floats(0, 0.999), st.integers(0, 255))
    return draw(st.lists(step, min_size=1, max_size=4))


def mutated(data, steps):
    data = bytearray(data)
    for kind, place, byte in steps:
        at = int(place * len(data))
        if kind == "flip" and data:
            data[at] ^= 1 << byte % 8
        elif kind == "set" and data:
            data[at] = byte
        elif kind == "delete":
            del data[at : at + 1 + byte % 4]
        elif kind == "insert":
            data[at:at] = bytes([byte])
        elif kind == "cut":
            del data[len(data) - byte % 8 :]
        elif kind == "double":
            data[at:at] = data[at : at + 1 + byte % 16]
    return bytes(data)


def structures():
    """Bodies of all kinds of structures, by magic number; the same in each run."""
    ours = Opened()
    database = ours.store.driver._database
    config = Config(b"0123456789abcdef", "single", 100, 150, 1, Compression(None))
    found = []

    def write(magic, data):
        name = b"d/%032x" % (len(found) * 0x123456789ABCDEF)
        ours.base[name] = data
        found.append((magic, data[14:-4]))
        return Location(DataFile(b"", name), 0, len(data))

    manifest = Manifest(config, (), ())
    for i in range(9):
        latest = manifest.latest if manifest.versions else None
        value = Location(DataFile(b"v/" if i % 2 else b"", b"d/value%d" % i), i, 200)
        writes = [(b"a/%d" % i, b"1"), (b"b/%d" % i, value), (b"c" * 60 + b"%d" % i, b"")]
        rewrite = Rewrite(
            database, max_node_nbytes=150, level=None, write=lambda data: write(BTREE_NODE, data)
        )
        tree = rewrite.apply(latest, Changes(writes))
        version = Version(i + 1, tree.height, tree.root, tree.totals, 10**18 + i * 12345)
        versions, subtrees = advance(
            *(manifest.versions, manifest.subtrees, version, 1),
            read=lambda one: database.version_node(one, 1),
            write=lambda node: write(VERSION_NODE, node.encode(None)),
        )
        manifest = Manifest(config, versions, subtrees)
        if i % 4 == 0:
            write(MANIFEST, manifest.encode())
    return found


STRUCTURES = structures()
KINDS = {MANIFEST: None, BTREE_NODE: "btreenode", VERSION_NODE: "versionnode"}


def check_mutation(structure, steps):
    """Values that both accept mean the same; ours accepts nothing that TensorStore refuses."""
    magic, body = structure
    data = seal(magic, mutated(body, steps), None)
    key = b"manifest.ocdbt" if magic == MANIFEST else b"d/x"
    reference = None if magic == MANIFEST else f"{KINDS[magic]}::d/x:0:{len(data)}"
    base = TensorStoreDatabase(files={key: data}).base
    try:
        theirs = ts.ocdbt.dump(base, reference).result()
    except ValueError as error:
        theirs = error
    try:
        ours = gpustore.ocdbt.dump(Opened(files={key: data}).base, reference).result()
    except (CorruptChunkError, LimitError) as error:
        ours = error
    except gpustore.NotFoundError:
        # A configuration alone is no error yet: there are no numbered manifests.
        assert "Manifest not found" in str(theirs)
        return
    if not isinstance(ours, Exception):
        assert ours == theirs
        return
    assert ours.key == key.decode()
    assert isinstance(theirs, ValueError) or "would leave the database" in str(ours)


@settings(max_examples=60)
@given(st.sampled_from(STRUCTURES), mutations())
def test_mutated_structures_mean_the_same_to_tensorstore(structure, steps):
    check_mutation(structure, steps)


@pytest.mark.long
@settings(max_examples=1500, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(STRUCTURES), mutations())
def test_mutated_structures_mean_the_same_to_tensorstore_long(structure, steps):
    check_mutation(structure, steps)


def check_damage(config, steps, place, mutation):
    """Each key has its value, or an error."""
    ours = Opened({**config, "max_inline_value_bytes": 1 << 20})
    for step in steps:
        ours.apply(step)
    items = ours.items()
    files = ours.files
    names = sorted(files)
    name = names[int(place * len(names))]
    damaged = mutated(files[name], mutation)
    store = Opened(files={**files, name: damaged}).store
    keys = [key.decode() for key in items] + ["none"]
    columns = store.read_many(ReadRequest(keys))
    for i, key in enumerate(keys):
        if i in columns.error:
            assert isinstance(columns.error[i], (CorruptChunkError, LimitError))
            assert columns.error[i].key is not None
        else:
            value = columns.value[i]
            assert (None if value is None else bytes(value)) == items.get(key.encode())
    try:
        listed = store.list().result()
    except (CorruptChunkError, LimitError) as error:
        listed = error
    if isinstance(listed, Exception):
        assert listed.key is not None
    else:
        assert listed == list(items)


@settings(max_examples=20)
@given(configs, histories, st.floats(0, 0.999), mutations())
def test_damage_is_an_error_and_never_an_absent_key(config, steps, place, mutation):
    check_damage(config, steps, place, mutation)


@pytest.mark.long
@settings(max_examples=250, suppress_health_check=list(HealthCheck))
@given(configs, histories, st.floats(0, 0.999), mutations())
def test_damage_is_an_error_and_never_an_absent_key_long(config, steps, place, mutation):
    check_damage(config, steps, place, mutation)


def check_every_byte(made, kind, step):
    """Change each byte of all files once, and shorten each file to each length."""
    config = {"manifest_kind": kind, "max_decoded_node_bytes": 100, "version_tree_arity_log2": 1}
    database = made({**config, "max_inline_value_bytes": 1000, "compression": None})
    wanted = {}
    for i in range(4):
        database.apply({f"a/{i}": b"%d" % i, "b": b"%d" % i * 20})
        wanted[i + 2] = database.items()
    files = database.files
    for name, data in sorted(files.items()):
        for at in range(0, len(data), step):
            flipped = bytearray(data)
            flipped[at] ^= 1 << at % 8
            for damaged in (bytes(flipped), data[:at]):
                check_damaged({**files, name: damaged}, wanted)


def check_damaged(files, wanted):
    ours = Opened(files=files)
    for version, store in ((5, ours.store), (3, ours.open(version=3))):
        items = wanted[version]
        columns = store.read_many(ReadRequest([key.decode() for key in items]))
        for i, value in enumerate(items.values()):
            if i in columns.error:
                assert isinstance(columns.error[i], CorruptChunkError)
                assert columns.error[i].key is not None
            else:
                assert columns.value[i] == value
        try:
            listed = store.list().result()
        except CorruptChunkError as error:
            listed = error
        assert listed == sorted(items) or listed.key is not None


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("kind", ["single", "numbered"])
def test_every_seventeenth_byte_that_is_wrong_is_an_error(kind):
    check_every_byte(TensorStoreDatabase, kind, 17)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "step"), [("single", 1), ("numbered", 3)])
def test_every_byte_that_is_wrong_is_an_error(kind, step):
    check_every_byte(Opened, kind, step)


def test_stored_inline_limit_that_no_spec_can_ask_for_is_accepted_as_by_tensorstore():
    made = Opened({"max_inline_value_bytes": 100, "compression": None})
    made.apply({"a": b"1"})
    files = made.files
    data = files[b"manifest.ocdbt"]
    at = data.index(b"\0d\x80\x80\x80\x04", 14) + 1  # 100, and 8388608 behind it
    files[b"manifest.ocdbt"] = seal(MANIFEST, data[14:at] + b"\x80\x80d" + data[at + 1 : -4], None)
    ours, theirs = Opened(files=files), TensorStoreDatabase(files=files)
    assert ours.items() == theirs.items() == {b"a": b"1"}
    config = gpustore.ocdbt.dump(ours.base).result()["config"]
    assert config == ts.ocdbt.dump(theirs.base).result()["config"]
    assert config["max_inline_value_bytes"] == 100 << 14
    # No node may have longer values than these.
    values = {"b": b"v" * MAX_INLINE_NBYTES, "c": b"w" * (MAX_INLINE_NBYTES + 1)}
    ours.apply(values)
    items = TensorStoreDatabase(files=ours.files).items()
    assert items == ours.items() == {b"a": b"1", b"b": values["b"], b"c": values["c"]}


@each(
    ("height", "generations"),
    [
        *((1, some) for some in ([4, 8, 16], [4, 8, 20], [4, 20, 40], [20, 32], [16, 20])),
        *((2, some) for some in ([16, 64], [16, 80], [48, 64], [64, 80])),
    ],
)
def test_generations_of_a_version_node_are_those_it_may_have(height, generations):
    entries = tuple(
        VersionSubtree(generation, at("d/y", b"x"), 1, 10**18 + generation, height - 1)
        for generation in generations
    )
    data = VersionNode(2, height, entries).encode(None)
    outcomes = []
    for made, library in ((TensorStoreDatabase, ts), (Opened, gpustore)):
        base = made(files={b"d/x": data}).base
        try:
            shown = library.ocdbt.dump(base, f"versionnode::d/x:0:{len(data)}").result()
            outcomes.append([entry["generation_number"] for entry in shown["entries"]])
        except ValueError as error:
            outcomes.append(str(error).partition("node: ")[2])
    assert outcomes[0] == outcomes[1]


# --------------------------------------------------------------------------- envelope


def test_envelopes_are_checked_as_by_tensorstore():
    ours = Opened({"compression": None})
    ours.apply({"a": b"1"})
    good = ours.base["manifest.ocdbt"]
    trailing = seal(MANIFEST, good[14:-4] + b"x", None)
    for bad in (
        *(b"", b"xx", good[:-1], good + b"x", b"zzzz" + good[4:], trailing),
        good[:-1] + bytes([good[-1] ^ 1]),
        *(resealed(good, 12, 1), resealed(good, 13, 2), resealed(good, 30, 5)),
        *(resealed(good, 36, 0), resealed(good, 36, 17), resealed(good, 37, 5)),
    ):
        base = TensorStoreDatabase(files={b"manifest.ocdbt": bad})
        with pytest.raises(ValueError, match=r"."):
            base.store.read("a").result()
        with pytest.raises(CorruptChunkError) as caught:
            Opened(files={b"manifest.ocdbt": bad}).store["a"]
        assert caught.value.key == "manifest.ocdbt"
        assert 'Error decoding "manifest.ocdbt": Error decoding manifest: ' in str(caught.value)


def resealed(data, position, byte):
    body = data[:position] + bytes([byte]) + data[position + 1 : -4]
    return body + struct.pack("<I", google_crc32c.value(body))


def test_compressed_bodies_are_checked():
    body = numcodecs.zstd.compress(b"x" * 100, 0)

    def envelope(body):
        head = struct.pack(">I", MANIFEST) + struct.pack("<Q", 18 + len(body)) + b"\0\1"
        return head + body + struct.pack("<I", google_crc32c.value(head + body))

    assert open_body(envelope(body), MANIFEST, max_nbytes=100).remaining == 100
    with pytest.raises(LimitError, match="more than 99 bytes when decoded, which is the limit"):
        open_body(envelope(body), MANIFEST, max_nbytes=99)
    for bad in (b"", body[:-1], body + b"x", b"x" + body):
        with pytest.raises(CorruptChunkError, match="at byte 14"):
            open_body(envelope(bad), MANIFEST, max_nbytes=100)


def test_bombs_take_no_memory():
    # A gibibyte of zeros, keys that repeat one another, and counts without anything behind them.
    zeros = seal(BTREE_NODE, bytes(100 << 20), 0)
    count = 100_000
    keys = b"".join(
        (
            *(b"\0", b"\0", encode_varint(count)),
            encode_varints(np.arange(60_000, 60_000 + count - 1).clip(max=65_534)),
            *(encode_varint(60_000), b"\1" * (count - 1), b"k" * 60_000, b"a" * (count - 1)),
        )
    )
    huge = b"\0" + encode_varint(2**63)
    # Names of data files repeat one another as well.
    files = b"".join(
        (
            encode_varint(count),
            *(encode_varints(np.arange(60_000, 60_000 + count - 1).clip(max=65_534)),),
            *(encode_varint(60_000), b"\1" * (count - 1), bytes(count)),
            *(b"k" * 60_000, b"a" * (count - 1)),
        )
    )
    for data, kind in (
        (seal(BTREE_NODE, b"\0" + files + b"\0", 0), LimitError),
        (seal(BTREE_NODE, b"\0" + encode_varint(100_000) + bytes(400_000), 0), LimitError),
        (zeros, LimitError),
        (seal(BTREE_NODE, keys, 0), LimitError),
        (seal(BTREE_NODE, huge, None), CorruptChunkError),
        (seal(BTREE_NODE, b"\0\0" + encode_varint(1 << 20), None), CorruptChunkError),
        (seal(BTREE_NODE, b"\0\0" + encode_varint(2**32 - 1), None), CorruptChunkError),
    ):
        tracemalloc.start()
        try:
            with pytest.raises(kind):
                read_node(data, b"", max_nbytes=MAX_NBYTES)
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()


def fat_leaf(prefix, count):
    """Some kilobytes that become `count` mebibytes."""
    value = bytes(MAX_INLINE_NBYTES)
    return leaf(*((prefix + bytes([i]), value) for i in range(count)), level=0)


def limited(files):
    context = gpustore.Context({"limits": {"ocdbt_node_nbytes": 5 << 20}})
    base = gpustore.KvStore.open("memory://", context=context).result()
    for key, value in files.items():
        base[key] = value
    return gpustore.KvStore.open("memory://|ocdbt:", context=context).result()


def test_many_small_nodes_that_become_large_are_decoded_one_by_one():
    leaves = {f"d/{i:02}": fat_leaf(b"%02d" % i, 4) for i in range(30)}
    root = interior(
        1, *((b"%02d\0" % i, 0, at(name, data)) for i, (name, data) in enumerate(leaves.items()))
    )
    store = limited(database(root, 1, leaves))
    keys = [f"{i:02}\0" for i in range(30)]
    for operate in (
        lambda: len(store.list().result()) == 120,
        lambda: store.read_many(ReadRequest(keys, start=[0] * 30, stop=[1] * 30)).error == {},
        lambda: store.read_many(ReadRequest(["none"])).error == {},
        lambda: store.driver.list_directories("") == [],
    ):
        tracemalloc.start()
        try:
            assert operate()
            # The values of the batch, about one node at a time, and what decodes it.
            assert tracemalloc.get_traced_memory()[1] < 56 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.matrix("costly")
def test_tree_of_large_nodes_on_each_level_is_not_listed():
    node, files = leaf((b"\0", b"1")), {}
    location = at("d/0", node)
    files["d/0"] = node
    for height in range(1, 255):
        others = (
            (bytes([height]) * 60_000 + b"%02d" % i, 0, at(f"none/{height}/{i}", b"x"))
            for i in range(40)
        )
        node = interior(height, (b"\0", 0, location), *others, level=0)
        location = at(f"d/{height}", node)
        files[f"d/{height}"] = node
    store = limited(database(node, 254, files))
    assert store["\0"] == b"1"
    tracemalloc.start()
    try:
        with pytest.raises(LimitError, match="nodes that lead to this one have") as caught:
            store.list().result()
        assert caught.value.key.startswith("d/")
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()


def test_limit_says_how_to_raise_it():
    ours = Opened()
    ours.apply({f"k{i}": b"1" * 90 for i in range(100)})
    context = gpustore.Context({"limits": {"ocdbt_node_nbytes": 1000}})
    small = gpustore.KvStore.open("memory://", context=context).result()
    for key, value in ours.files.items():
        small[key] = value
    store = gpustore.KvStore.open("memory://|ocdbt:", context=context).result()
    with pytest.raises(LimitError, match="ocdbt_node_nbytes"):
        store["k1"]


# --------------------------------------------------------------------------- trees that lie


def leaf(*entries, level=None):
    keys = Keys.of([key for key, _ in entries])
    values = [value for _, value in entries]
    files = tuple(value.file for value in values if isinstance(value, Location))
    inline = [value for value in values if not isinstance(value, Location)]
    sizes = np.array([v.nbytes if isinstance(v, Location) else len(v) for v in values])
    file = np.array([files.index(v.file) if isinstance(v, Location) else -1 for v in values])
    offset, position = [], 0
    for value in values:
        if isinstance(value, Location):
            offset.append(value.offset)
        else:
            offset.append(position)
            position += len(value)
    one = Leaf(files, keys, sizes, file, np.array(offset), b"".join(inline))
    return one.compact().encode(level)


def interior(height, *entries, level=None):
    """Entries are key, what the child leaves out of it, and its location."""
    locations = [location for _, _, location in entries]
    files = tuple(location.file for location in locations)
    ones = np.ones(len(entries), np.uint64)
    return Interior(
        height,
        files,
        Keys.of([key for key, _, _ in entries]),
        np.array([nbytes for _, nbytes, _ in entries]),
        np.arange(len(entries)),
        np.array([location.offset for location in locations], np.uint64),
        np.array([location.nbytes for location in locations], np.uint64),
        *(ones, ones, ones),
    ).encode(level)


def at(name, data, offset=0):
    return Location(DataFile(b"", name.encode()), offset, len(data))


def database(root, height, files):
    """A database with this root, `files` beside it."""
    config = Opened().store.driver._committer._constraints.make("single")
    version = Version(1, height, at("d/root", root), Totals(1, 1, 0), 5)
    manifest = Manifest(config, (version,), ())
    files = {**files, "manifest.ocdbt": manifest.encode(), "d/root": root}
    return {key.encode(): value for key, value in files.items()}


ONE, TWO = leaf((b"1", b"v")), leaf((b"1", b"v"), (b"9", b"w"))
FAR = Location(DataFile(b"", b"d/one"), 10, 50_000)
LIES = {
    "wrong height": (ONE, 1, {}, "a1", "Expected height of 1 but received: 0"),
    "wrong height below": (
        interior(2, (b"a1", 1, at("d/one", ONE))),
        2,
        {"d/one": ONE},
        "a1",
        "Expected height of 1 but received: 0",
    ),
    "smaller key": (
        interior(1, (b"a2", 1, at("d/one", ONE))),
        1,
        {"d/one": ONE},
        "a2",
        'First key "1" is less than inclusive_min "2" specified by parent node',
    ),
    "overlap": (
        interior(1, (b"a1", 1, at("d/two", TWO)), (b"a5", 1, at("d/two", TWO))),
        1,
        {"d/two": TWO},
        "a1",
        'Last key "9" is not less than exclusive_max "5" specified by parent node',
    ),
    "missing node": (
        interior(1, (b"a1", 1, at("d/none", ONE))),
        1,
        {},
        "a1",
        "the data file does not exist",
    ),
    "node beyond the file": (
        interior(1, (b"a1", 1, FAR)),
        1,
        {"d/one": ONE},
        "a1",
        "Requested byte range [10, 50010) is not valid for value of size",
    ),
    "missing value": (leaf((b"a1", at("d/none", ONE))), 0, {}, "a1", "does not exist"),
    "value beyond the file": (
        leaf((b"a1", FAR)),
        0,
        {"d/one": ONE},
        "a1",
        "Requested byte range [10, 50010) is not valid for value of size",
    ),
    "path out of the database": (
        leaf((b"a1", at("../x", ONE))),
        0,
        {},
        "a1",
        'data_file[0]: path "../x" would leave the database',
    ),
    "absolute path": (leaf((b"a1", at("/x", ONE))), 0, {}, "a1", "would leave the database"),
}


@each("name", LIES)
def test_trees_that_lie_are_errors(name):
    root, height, files, key, text = LIES[name]
    ours = Opened(files=database(root, height, files))
    columns = ours.store.read_many(ReadRequest([key]))
    error = columns.error[0]
    assert isinstance(error, CorruptChunkError)
    assert text in str(error)
    assert "Byte range [" in str(error)
    assert error.key in ("d/root", "d/one", "d/two", "d/none")
    if "value" not in name:
        before = ours.files[b"manifest.ocdbt"]
        with pytest.raises(CorruptChunkError):
            ours.store.list().result()
        with pytest.raises(CorruptChunkError):
            ours.store[key] = b"new"
        assert ours.files[b"manifest.ocdbt"] == before


def test_cycles_end():
    # A node that has itself as its child cannot have the right height for both.
    root = interior(1, (b"a", 0, Location(DataFile(b"", b"d/root"), 0, 0)))
    root = interior(1, (b"a", 0, Location(DataFile(b"", b"d/root"), 0, len(root))))
    store = Opened(files=database(root, 1, {})).store
    with pytest.raises(CorruptChunkError, match="Expected height of 0 but received: 1"):
        store["a"]
    with pytest.raises(CorruptChunkError, match="The node is referred to twice in one tree"):
        store.list().result()


def test_nodes_that_share_their_children_are_not_walked_for_ever():
    # Each node has all bytes as keys, and the same child behind each: 255 ** 9 keys.
    node, files = leaf(*((bytes([i]), b"v") for i in range(1, 256))), {}
    for height in range(1, 9):
        name = f"d/{height}"
        files[name] = node
        location = at(name, node)
        # One byte of the key is the child's prefix; its own keys begin at the least one.
        entries = [(bytes([i]) + b"\1" * height, 1, location) for i in range(1, 256)]
        node = interior(height, *entries)
    store = Opened(files=database(node, 8, files)).store
    assert store["abcdefghi"] == b"v"
    for operate in (
        lambda: store.list().result(),
        lambda: store.driver.list_directories(""),
        lambda: store.list(KvStore.KeyRange("a", "c")).result(),
    ):
        with pytest.raises(CorruptChunkError, match="The node is referred to twice in one tree"):
            operate()
    assert store.list(KvStore.KeyRange("abcdefghi", "abcdefghj")).result() == [b"abcdefghi"]


def test_base_paths_of_nodes_apply_to_their_references():
    value = b"v" * 200
    below = leaf((b"a", Location(DataFile(b"", b"v/x"), 3, 100)))
    root = interior(1, (b"a", 0, Location(DataFile(b"sub/", b"d/y"), 0, len(below))))
    files = database(root, 1, {"sub/d/y": below, "sub/v/x": value})
    ours, theirs = Opened(files=files), TensorStoreDatabase(files=files)
    assert ours.store["a"] == theirs.store["a"] == value[3:103]
    ours.apply({"b": b"1" * 200})
    theirs = TensorStoreDatabase(files=ours.files)
    assert theirs.items() == ours.items() == {b"a": value[3:103], b"b": b"1" * 200}


def test_empty_value_in_no_file_is_empty():
    root = leaf((b"a", Location(DataFile(b"", b""), 0, 0)))
    ours = Opened(files=database(root, 0, {}))
    assert ours.store["a"] == b""
    ours.apply({"b": b"1"})
    assert ours.items() == {b"a": b"", b"b": b"1"}


def versioned(generation, commit_time):
    """A database whose only version has these numbers."""
    config = Opened().store.driver._committer._constraints.make("single")
    version = Version(generation, 0, at("d/root", ONE), Totals(1, 1, 0), commit_time)
    return {b"d/root": ONE, b"manifest.ocdbt": Manifest(config, (version,), ()).encode()}


def test_sums_that_cannot_be_stored_are_the_largest_that_can():
    value = Location(DataFile(b"", b"d/none"), 0, 2**63 - 1)
    root = leaf((b"a", value), (b"b", value), (b"c", value))
    ours = Opened(files=database(root, 0, {}))
    ours.store["d"] = b"1"
    assert ours.store["d"] == b"1"
    versions = TensorStoreDatabase(files=ours.files).versions
    assert versions[-1]["root"]["statistics"]["num_indirect_value_bytes"] == 2**64 - 1


def test_generations_beyond_the_largest_are_errors_as_in_tensorstore():
    largest = 2**60 + 2**4
    for generation in (largest, largest + 1, 2**64 - 1):
        files = versioned(generation, 5)
        for store in (Opened(files=files).store, TensorStoreDatabase(files=files).store):
            if generation == largest:
                assert store["1"] == b"v"
                continue
            with pytest.raises(
                ValueError, match=f"={generation} exceeds maximum {largest} for ver"
            ):
                store["1"]


@pytest.mark.parametrize("numbers", [(2**60 + 2**4, 5), (1, 2**64 - 1)])
def test_version_that_nothing_can_follow_stays(numbers):
    ours = Opened(files=versioned(*numbers))
    with pytest.raises(LimitError, match=f"No version can follow generation {numbers[0]} of "):
        ours.store["c"] = b"1"
    assert ours.items() == {b"1": b"v"}


def test_version_node_is_no_btree_node_in_the_cache_either():
    context = gpustore.Context({"cache_pool": {"total_bytes_limit": 1 << 20}})
    base = KvStore.open("memory://", context=context).result()
    config = Opened().store.driver._committer._constraints.make("single")
    old = Version(1, 0, at("d/root", ONE), Totals(1, 1, 0), 5)
    node = VersionNode(4, 0, (old,)).encode(None)
    # The root of the latest version is the node that holds the older ones.
    below = VersionNode(4, 1, (VersionSubtree(16, at("d/node", node), 16, 5, 0),)).encode(None)
    tree = VersionSubtree(16, at("d/tree", below), 16, 5, 1)
    latest = Version(17, 1, at("d/tree", below), Totals(1, 1, 0), 6)
    base["d/node"], base["d/tree"] = node, below
    base["manifest.ocdbt"] = Manifest(config, (latest,), (tree,)).encode()
    with pytest.raises(CorruptChunkError, match="Expected generation_number of 16"):
        KvStore.open("memory://|ocdbt:@v1/", context=context).result()["1"]
    with pytest.raises(CorruptChunkError, match="Expected to start with hex bytes"):
        KvStore.open("memory://|ocdbt:", context=context).result()["1"]


def test_path_that_is_no_text_is_an_error():
    with pytest.raises(gpustore.InvalidKeyError, match="a surrogate that stands for no byte"):
        KvStore.open({"driver": "ocdbt", "base": "memory://", "path": "\ud800"})


def test_numbered_manifest_that_is_none_is_an_error():
    ours = Opened({"manifest_kind": "numbered"})
    for i in range(3):
        ours.apply({f"k{i}": b"1"})
    files = ours.files
    for damaged in (
        {**files, b"manifest.%016x" % 9: files[b"manifest.%016x" % 3]},
        {**files, b"manifest.%016x" % 9: b""},
        {**files, b"manifest.%016x" % 4: Opened({"uuid": "0" * 32}).files.get(b"", b"x")},
    ):
        with pytest.raises(CorruptChunkError, match=r"manifest\.000000000000000") as caught:
            Opened(files=damaged).store["k0"]
        assert caught.value.key.startswith("manifest.0")
    # What is not named like one is none.
    other = {**files, b"manifest.0x": b"", b"manifest.%016X.__lock" % 255: b""}
    assert len(Opened(files=other).items()) == 3


# --------------------------------------------------------------------------- columns


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), max_size=60))
def test_varints_are_read_back(values):
    data = encode_varints(np.array(values, np.uint64))
    assert data == b"".join(map(encode_varint, values))
    reader = Reader(data)
    assert reader.varints64(len(values)).tolist() == values
    reader.finish()


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("bad", [b"\x80" * 10 + b"\1", b"\xff" * 9 + b"\x02", b"\xff" * 12])
def test_varints_of_more_than_64_bits_are_errors(count, bad):
    with pytest.raises(CorruptChunkError, match="Invalid varint"):
        Reader(b"\1" * (count - 1) + bad + b"\0" * 500).varints64(count)
    with pytest.raises(CorruptChunkError, match="Unexpected end of data"):
        Reader(b"\1" * (count - 1) + b"\x80").varints64(count)


_NAMES = (
    st.binary(max_size=6) | st.just(b"k" * 100) | st.text("ab\0\n€", max_size=3).map(str.encode)
)


@given(st.lists(_NAMES, min_size=1, unique=True).map(sorted))
def test_keys_are_found(keys):
    columns = Keys.of(keys)
    assert [columns[i] for i in range(-len(keys), len(keys))] == keys * 2
    assert columns.tolist() == keys
    for key in [*keys, b"", b"k", b"\xff" * 8]:
        for _ in range(2):
            assert columns.rank(key) == sum(one < key for one in keys)
            assert columns.find(key) == (keys.index(key) if key in keys else -1)
    assert columns.prefixed(b"ab").tolist() == [b"ab" + key for key in keys]
    for low, high in ((0, len(keys)), (1, len(keys)), (0, 1), (1, 1)):
        for prefix in (b"", b"p/", b"\xe2\x82", b"\0\n\x7f"):
            wanted = [prefix + key for key in keys[low:high]]
            assert columns.tolist_after(prefix, low, max(low, high)) == wanted
            text = columns.totext(prefix, low, max(low, high))
            assert text == [key.decode("utf-8", "surrogateescape") for key in wanted]
