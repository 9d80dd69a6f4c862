"""Groups: members, paths, attributes, consolidated metadata, and what zarr-python makes of them."""

import json
import multiprocessing
import pickle
import zlib
from concurrent.futures import ThreadPoolExecutor
from math import inf, isnan, nan

import numpy as np
import pytest
import zarr

import gpustore
from gpustore.errors import GpustoreError
from tests.matrix import each

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3], ids=["v2", "v3"])


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def zarr_format(request):
    return request.param


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "h.zarr")


@pytest.fixture
def root(place, zarr_format):
    return gpustore.open_group(
        place, create=True, zarr_format=zarr_format, attributes={"title": "t"}
    ).result()


def fill(root):
    """Two arrays and three groups."""
    raw = root.create_array("ct/raw", dtype="uint16", shape=[4, 6], attributes={"unit": "HU"})
    raw.result()[...] = 7
    root.create_array("ct/mask", dtype="bool", shape=[4]).result()
    root.create_group("empty", attributes={"n": [1, {"a": None}]}).result()
    root.create_group("ct/deep").result()
    return root


def files(place):
    from pathlib import Path

    return {str(path.relative_to(place)) for path in Path(place).rglob("*") if path.is_file()}


def test_members_of_every_kind(root, zarr_format):
    fill(root)
    assert root.zarr_format == zarr_format
    assert root.keys() == list(root) == ["ct", "empty"]
    assert len(root) == 2
    members = root.members(max_depth=None).result()
    assert {path: node.node_type for path, node in members.items()} == {
        "ct": "group",
        "empty": "group",
        "ct/deep": "group",
        "ct/mask": "array",
        "ct/raw": "array",
    }
    assert members == {} or list(members)[:2] == ["ct", "empty"]
    node = members["ct/raw"]
    assert (node.shape, node.dtype, node.chunk_shape) == ((4, 6), gpustore.uint16, (4, 6))
    assert node.attributes == {"unit": "HU"}
    assert node.metadata.shape == (4, 6)
    assert list(root["ct"].arrays().result()) == ["mask", "raw"]
    assert list(root["ct"].groups().result()) == ["deep"]
    assert [path for path, _ in root.walk(max_depth=0)] == ["ct", "empty"]
    assert root["ct"].path == "ct"
    assert root["ct/deep"].basename == "deep"
    assert root["ct/deep"].name == "/ct/deep"


@pytest.mark.parametrize("consolidated", [False, True])
def test_nodes_are_described_and_opened_by_path(root, consolidated):
    fill(root)
    if consolidated:
        root = root.consolidate().result()
    for group, paths in (
        (root, ["ct/raw", "none", "ct", "ct/raw", "/ct//deep"]),
        (root["ct"], ["raw", "x/y", "", "raw", "deep"]),
    ):
        raw, none, ct, again, deep = group.nodes(paths).result()
        assert none is None
        assert (raw.shape, again.path, ct.path, deep.path) == ((4, 6), "ct/raw", "ct", "ct/deep")
        assert np.array_equal(group.open(raw).result(), np.full((4, 6), 7))
        assert group.open(ct).result() == root["ct"]
        with pytest.raises(gpustore.InvalidKeyError):
            group.nodes([".."])
    assert root.nodes([]).result() == []


def test_a_node_that_cannot_be_read_is_described_with_its_error(root, zarr_format):
    fill(root)
    name = {2: ".zarray", 3: "zarr.json"}[zarr_format]
    root.kvstore[f"ct/raw/{name}"] = b"{"
    raw, mask = root.nodes(["ct/raw", "ct/mask"]).result()
    assert (raw.error.kind, mask.error) == ("metadata", None)
    with pytest.raises(gpustore.MetadataError, match=name):
        root.open(raw).result()


def test_zarr_python_reads_our_groups(root, place):
    fill(root)
    theirs = zarr.open_group(place, mode="r")
    assert dict(theirs.attrs) == {"title": "t"}
    assert sorted(theirs.keys()) == ["ct", "empty"]
    assert np.array_equal(theirs["ct/raw"][...], np.full((4, 6), 7))
    assert dict(theirs["ct/raw"].attrs) == {"unit": "HU"}
    assert dict(theirs["empty"].attrs) == {"n": [1, {"a": None}]}
    assert str(theirs.tree()).rstrip() == root.tree()
    root.consolidate().result()
    theirs = zarr.open_consolidated(place)
    assert str(theirs.tree()).rstrip() == root.tree()
    assert np.array_equal(theirs["ct/raw"][...], np.full((4, 6), 7))
    assert dict(theirs["empty"].attrs) == {"n": [1, {"a": None}]}


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_groups_of_zarr_python_are_read(place, zarr_format, consolidated):
    theirs = zarr.open_group(place, mode="w", zarr_format=zarr_format, attributes={"r": 1})
    array = theirs.create_array(
        "a/b/x", shape=(4, 4), chunks=(2, 3), dtype="i4", attributes={"k": "v", "inf": [-inf]}
    )
    array[...] = np.arange(16).reshape(4, 4)
    theirs.create_group("e", attributes={"nan": nan})
    if consolidated:
        zarr.consolidate_metadata(place)
    ours = gpustore.open_group(place).result()
    assert ours.is_consolidated == consolidated
    assert ours.zarr_format == zarr_format
    assert ours.tree() == str(zarr.open_group(place).tree()).rstrip()
    assert ours.attrs == {"r": 1}
    node = ours.members(max_depth=None).result()["a/b/x"]
    assert (node.shape, node.chunk_shape, node.dtype) == ((4, 4), (2, 3), gpustore.int32)
    store = ours["a/b/x"]
    assert np.array_equal(store.read().result(), np.arange(16).reshape(4, 4))
    assert store.attrs == {"k": "v", "inf": [-inf]}
    assert isnan(ours["e"].attrs["nan"])
    # NaN of others is kept, and the array opens, whatever changes.
    ours["e"].attrs["more"] = 2
    store.attrs["more"] = 3
    store.resize(exclusive_max=[5, 5]).result()
    again = gpustore.open(store.resolve().result().spec()).result()
    assert (again.shape, again.attrs) == ((5, 5), {"k": "v", "inf": [-inf], "more": 3})
    theirs = zarr.open_group(place, use_consolidated=False)
    assert isnan(theirs["e"].attrs["nan"])
    assert theirs["a/b/x"].attrs["inf"] == [-inf]


def test_paths_are_normalised(root):
    fill(root)
    for path in ("ct/raw", "/ct//raw/", "ct\\raw", "\\\\ct\\/raw"):
        assert root[path].shape == (4, 6)
        assert path in root
    for path in ("ct/../ct", ".", "ct/.", "ct\\..\\raw"):
        with pytest.raises(gpustore.InvalidKeyError, match="not allowed in a logical path"):
            root[path]
    document = r"\.zgroup" if root.zarr_format == 2 else "zarr.json"
    with pytest.raises(KeyError, match=document):
        root["ct/none"]
    assert "none" not in root
    assert 3 not in root


def test_paths_of_urls_make_groups_and_bare_paths_do_not(tmp_path, zarr_format):
    driver = f"zarr{zarr_format}"
    document = ".zgroup" if zarr_format == 2 else "zarr.json"
    url = f"file://{tmp_path}/a.zarr|{driver}:x\\y//z/"
    gpustore.open(url, create=True, dtype="uint8", shape=[2]).result()
    assert {document, f"x/{document}", f"x/y/{document}"} <= files(tmp_path / "a.zarr")
    assert gpustore.open_group(f"{tmp_path}/a.zarr").result().keys() == ["x"]
    inner = gpustore.open_group(f"file://{tmp_path}/a.zarr|{driver}:x/y").result()
    assert (inner.path, inner.keys()) == ("x/y", ["z"])
    gpustore.open(
        f"file://{tmp_path}/b.zarr/x/|{driver}:", create=True, dtype="uint8", shape=[2]
    ).result()
    assert all(name.startswith("x/") for name in files(tmp_path / "b.zarr"))
    with pytest.raises(gpustore.InvalidKeyError):
        gpustore.open(f"file://{tmp_path}/a.zarr|{driver}:x/../y")
    with pytest.raises(gpustore.InvalidKeyError, match="not allowed in a logical path"):
        gpustore.open(f"file://{tmp_path}/a.zarr|{driver}:x/./y")


def test_nothing_lies_below_an_array(root):
    fill(root)
    with pytest.raises(gpustore.MismatchError, match="is an array"):
        root.create_group("ct/raw/x").result()
    with pytest.raises(gpustore.MismatchError, match="is an array"):
        root.create_array("ct/raw/x", dtype="uint8", shape=[1]).result()
    with pytest.raises(gpustore.MismatchError, match="is an array; open it with"):
        gpustore.open_group(root.url + "ct/raw").result()


def test_creating_an_existing_array(root):
    fill(root)
    for path in ("ct", "ct/raw"):
        with pytest.raises(gpustore.AlreadyExistsError):
            root.create_group(path).result()
        with pytest.raises(gpustore.AlreadyExistsError):
            root.create_array(path, dtype="uint8", shape=[1]).result()
    assert root.require_group("ct").result().keys() == ["deep", "mask", "raw"]
    assert root.require_group("new/er", attributes={"a": 1}).result().attrs == {"a": 1}
    with pytest.raises(gpustore.MismatchError):
        root.require_group("ct/raw").result()
    kept = root.require_array("ct/raw", dtype="uint16", shape=[4, 6], attributes={"x": 1}).result()
    assert kept.attrs == {"unit": "HU"}
    assert root.require_array(
        "r", dtype="uint8", shape=[1], attributes={"x": 1}
    ).result().attrs == {"x": 1}
    with pytest.raises(gpustore.MismatchError):
        root.require_array("ct/raw", dtype="uint8", shape=[4, 6]).result()
    with pytest.raises(gpustore.MismatchError, match="is a group"):
        root.require_array("ct", dtype="uint8", shape=[4, 6]).result()
    made = root.create_array("ct", dtype="uint8", shape=[1], delete_existing=True).result()
    assert made.shape == (1,)
    assert "ct/raw" not in root


def test_delete(root, place):
    fill(root)
    before = files(place)
    del root["ct/raw"]
    assert root["ct"].keys() == ["deep", "mask"]
    assert {name for name in before if "ct/raw" not in name} == files(place)
    root.delete("ct").result()
    assert root.keys() == ["empty"]
    with pytest.raises(gpustore.NotFoundError):
        root.delete("ct").result()
    with pytest.raises(gpustore.MetadataError, match="cannot delete itself"):
        root.delete("/")


def test_open_modes(place, zarr_format):
    with pytest.raises(gpustore.NotFoundError, match="No group at"):
        gpustore.open_group(place).result()
    options = {"zarr_format": zarr_format, "create": True}
    made = gpustore.open_group(place, **options, attributes={"a": 1}).result()
    with pytest.raises(gpustore.AlreadyExistsError):
        gpustore.open_group(place, **options).result()
    again = gpustore.open_group(place, **options, open=True, attributes={"a": 2}).result()
    assert again.attrs == {"a": 1}
    assert again == made
    assert hash(again) == hash(made)
    made.create_group("x").result()
    empty = gpustore.open_group(place, **options, delete_existing=True).result()
    assert empty.attrs == {}
    assert empty.keys() == []
    with pytest.raises(gpustore.MismatchError, match=r"is Zarr v"):
        gpustore.open_group(place, create=True, zarr_format=5 - zarr_format).result()
    with pytest.raises(gpustore.MetadataError):
        gpustore.open_group(place, delete_existing=True, open=True)


def test_read_only(root, place):
    fill(root)
    safe = gpustore.open_group(place, read=True).result()
    assert not safe.writable
    refused = [
        lambda: safe.create_group("x").result(),
        lambda: safe.create_array("x", dtype="uint8", shape=[1]).result(),
        lambda: safe.delete("ct").result(),
        lambda: safe.consolidate().result(),
        lambda: safe.attrs.update(a=1).result(),
        lambda: safe["ct/raw"].attrs.update(a=1).result(),
        lambda: safe["ct/raw"].write(1).result(),
    ]
    for attempt in refused:
        with pytest.raises(gpustore.MetadataError, match="does not support writing"):
            attempt()


def test_the_same_place_in_every_form(root, place, zarr_format):
    fill(root)
    driver = f"zarr{zarr_format}"
    kvstore = {"driver": "file", "path": place}
    forms = [
        f"{place}|{driver}:ct",
        f"file://{place}/|{driver}:ct",
        {"driver": driver, "kvstore": kvstore, "path": "/ct"},
        gpustore.Spec(f"{place}|{driver}:ct"),
    ]
    for form in forms:
        group = gpustore.open_group(form).result()
        assert (group.path, group.keys()) == ("ct", ["deep", "mask", "raw"])
    bare = [place, kvstore, gpustore.KvStore.Spec(kvstore), gpustore.KvStore.open(kvstore).result()]
    for form in bare:
        assert gpustore.open_group(form, path="ct").result() == root["ct"]
    assert gpustore.open_group(root["ct"].url).result() == root["ct"]


@pytest.mark.parametrize("suffix", ["", "|zarr2:", "|zarr3:"])
def test_a_typo_in_the_path_of_a_group_is_a_missing_file(tmp_path, suffix):
    gpustore.open_group(tmp_path / "scan.zarr", create=True).result()
    for place in ("scn.zarr", "scan.zar/"):
        with pytest.raises(FileNotFoundError, match=r'; did you mean "scan\.zarr"\?$') as error:
            gpustore.open_group(f"{tmp_path}/{place}{suffix}").result()
        assert isinstance(error.value, gpustore.NotFoundError)


def test_members_as_those_of_a_mapping(root):
    fill(root)
    ct = root["ct"]
    assert ct._ipython_key_completions_() == ct.keys()
    ct.attrs.update({"a": 1, "b": 2}).result()
    assert ct.attrs._ipython_key_completions_() == ["a", "b"]
    items = dict(ct.items())
    assert list(items) == ct.keys()
    assert [str(one.url) for one in ct.values()] == [str(ct[name].url) for name in ct]
    assert items["deep"] == ct["deep"]
    np.testing.assert_array_equal(items["raw"], ct["raw"])


def test_a_tree_shows_itself(root):
    fill(root)
    tree = root.tree()
    assert repr(tree) == str(tree)


def test_pickle_and_repr(root, zarr_format):
    fill(root)
    group = pickle.loads(pickle.dumps(root["ct"]))
    assert group == root["ct"]
    assert group.path == "ct"
    assert repr(group) == f"<gpustore.Group at {group.url}>"
    assert group.url.endswith(f"|zarr{zarr_format}:ct")
    members = root.members(max_depth=None).result()
    assert repr(members["ct/raw"]) == '<Node "ct/raw" array (4, 6) uint16>'
    assert repr(members["ct"]) == '<Node "ct" group>'
    memory = gpustore.open_group("memory://a|zarr3:", create=True).result()
    with pytest.raises(gpustore.UnsupportedError):
        pickle.dumps(memory)
    with pytest.raises(TypeError, match="open_group"):
        gpustore.Group()


# ---- attributes


def test_attributes_of_groups_and_arrays_are_one_thing(root):
    fill(root)
    for owner in (root["ct"], root["ct/raw"]):
        attrs = owner.attrs
        attrs.put({"a": 1, "b": [1, 2]}).result()
        attrs["c"] = np.float32(0.5)
        attrs.update({"d": None}, e="x").result()
        del attrs["a"]
        expected = {"b": [1, 2], "c": 0.5, "d": None, "e": "x"}
        assert attrs == expected == attrs.asdict() == attrs.read().result()
        attrs["b"].append(3)  # A copy.
        assert owner.attrs["b"] == [1, 2]
        assert root[owner.path if isinstance(owner, gpustore.Group) else "ct/raw"].attrs == expected
        with pytest.raises(KeyError):
            del attrs["a"]
        for wrong in (float("nan"), object(), {1: 2}):
            with pytest.raises((GpustoreError, TypeError)):
                attrs["x"] = wrong
        assert owner.attrs == expected
        assert repr(attrs).startswith("Attributes({'b'")


def test_attributes_that_a_function_makes(root):
    group = root.create_group("counted", attributes={"n": 0, "list": [1]}).result()

    def counted(stored):
        stored["list"].append(2)  # It is the function's own.
        return {**stored, "n": np.int64(stored["n"] + 1)}

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: root["counted"].attrs.change(counted).result(), range(20)))
    assert root["counted"].attrs == {"n": 20, "list": [1] + [2] * 20}
    assert group.attrs == {"n": 0, "list": [1]}
    with pytest.raises(GpustoreError):
        group.attrs.change(lambda stored: {"n": float("nan")}).result()
    with pytest.raises(KeyError):
        group.attrs.change(lambda stored: {"n": stored["m"]}).result()
    assert root["counted"].attrs["n"] == 20


def test_attributes_of_others_survive(root, place, zarr_format):
    fill(root)
    name = f"{place}/ct/raw/{'.zattrs' if zarr_format == 2 else 'zarr.json'}"
    stale = root["ct/raw"]
    assert stale.attrs == {"unit": "HU"}
    other = root["ct/raw"]
    other.attrs["other"] = 1
    stale.attrs["mine"] = 2
    assert root["ct/raw"].attrs == {"unit": "HU", "other": 1, "mine": 2}
    # The array is the same one, with other attributes.
    assert stale.resize(exclusive_max=[8, 6]).result().shape == (8, 6)
    assert root["ct/raw"].attrs["other"] == 1
    if zarr_format == 3:
        with open(name) as file:
            document = json.load(file)
        document["vendor"] = {"must_understand": False, "x": 1}
        with open(name, "w") as file:
            json.dump(document, file)
        root["ct/raw"].attrs["more"] = 3
        with open(name) as file:
            changed = json.load(file)
        assert changed == {**document, "attributes": {**document["attributes"], "more": 3}}


def test_the_spec_of_an_array_follows_its_attributes(root):
    store = fill(root)["ct/raw"]
    store.attrs["unit"] = "mSv"
    assert gpustore.open(store.spec()).result().attrs == {"unit": "mSv"}
    assert pickle.loads(pickle.dumps(store[1])).attrs == {"unit": "mSv"}


def _count(url, name, n):
    group = gpustore.open_group(url).result()
    for i in range(n):
        group.attrs[f"{name}{i}"] = i


@pytest.mark.matrix("costly")
def test_two_processes_change_different_attributes(place):
    root = gpustore.open_group(f"{place}|zarr3:", create=True, attributes={"title": "t"}).result()
    url = root.url
    spawn = multiprocessing.get_context("spawn")
    other = spawn.Process(target=_count, args=(url, "a", 40))
    other.start()
    _count(url, "b", 40)
    other.join()
    assert other.exitcode == 0
    expected = {f"{name}{i}": i for name in "ab" for i in range(40)}
    assert root.attrs.read().result() == {"title": "t", **expected}


def test_arrays_without_attributes_say_so():
    with pytest.raises(gpustore.UnsupportedError, match="no attributes"):
        gpustore.array([1]).attrs  # noqa: B018


# ---- consolidated metadata


def consolidated_file(place, zarr_format):
    if zarr_format == 2:
        return (place / ".zmetadata").exists()
    return "consolidated_metadata" in json.loads((place / "zarr.json").read_bytes())


def test_consolidated_metadata_are_a_snapshot_until_something_is_written(
    root, tmp_path, zarr_format
):
    place = tmp_path / "h.zarr"
    fill(root)
    group = root.consolidate().result()
    assert group.is_consolidated
    assert consolidated_file(place, zarr_format)
    # Somebody who knows nothing of the root: stale from now on, and said to be so.
    gpustore.open(
        f"file://{place}/late/|zarr{zarr_format}:", create=True, dtype="bool", shape=[1]
    ).result()
    assert "late" not in group
    assert "late" in gpustore.open_group(str(place), use_consolidated=False).result()
    changes = [
        lambda g: g.create_group("n1/x"),
        lambda g: g["ct"].create_array("n2", dtype="bool", shape=[1]),
        lambda g: g["ct"].attrs.update(a=1),
        lambda g: g["ct/raw"].attrs.update(a=2),
        lambda g: g.delete("ct/mask"),
        lambda g: g["ct/raw"].resize(exclusive_max=[5, 6]),
        lambda g: gpustore.open(g.url + "n3", create=True, dtype="bool", shape=[1]),
        lambda g: gpustore.open(g.url + "n3").result().resize(exclusive_max=[2]),
    ]
    for change in changes:
        group = group.consolidate().result()
        assert consolidated_file(place, zarr_format)
        change(group).result()
        assert not consolidated_file(place, zarr_format)
        assert not group.resolve().result().is_consolidated
    assert "late" in group
    assert group["ct"].attrs == {"a": 1}
    with pytest.raises(gpustore.MismatchError, match="No consolidated metadata"):
        gpustore.open_group(str(place), use_consolidated=True).result()


def test_consolidated_metadata_that_are_wrong(root, tmp_path, zarr_format):
    fill(root).consolidate().result()
    place = tmp_path / "h.zarr"
    path = place / (".zmetadata" if zarr_format == 2 else "zarr.json")
    document = json.loads(path.read_bytes())
    inner = document if zarr_format == 2 else document["consolidated_metadata"]
    key = "ct/raw/.zarray" if zarr_format == 2 else "ct/raw"
    inner["metadata"][key] = [1]
    inner["metadata"]["../x" + ("/.zgroup" if zarr_format == 2 else "")] = {
        "zarr_format": zarr_format
    }
    path.write_text(json.dumps(document))
    group = gpustore.open_group(str(place)).result()
    members = group.members(max_depth=None).result()
    assert isinstance(members["ct/raw"].error, gpustore.MetadataError)
    assert members["ct/mask"].shape == (4,)
    with pytest.raises(gpustore.MetadataError, match="ct/raw"):
        group["ct/raw"]
    with pytest.raises(gpustore.InvalidKeyError):
        group["../x"]
    inner["metadata"] = 3
    path.write_text(json.dumps(document))
    with pytest.raises(gpustore.MetadataError, match="use_consolidated=False"):
        gpustore.open_group(str(place)).result()
    assert "ct" in gpustore.open_group(str(place), use_consolidated=False).result()


def counted(group):
    """The requests to read that a group makes from now on; it cannot list."""
    driver = group.kvstore.driver
    requests = []
    read_many = driver.read_many
    driver.read_many = lambda request: requests.append(request) or read_many(request)
    driver.list_directories = None
    return requests


def test_one_request_opens_a_consolidated_group(zarr_format):
    context = gpustore.Context()
    url = f"memory://a|zarr{zarr_format}:"
    fill(gpustore.open_group(url, create=True, context=context).result()).consolidate().result()
    group = gpustore.open_group(url, context=context).result()
    requests = counted(group)
    members = group.members(max_depth=None).result()
    assert {node.shape for node in members.values() if node.is_array} == {(4, 6), (4,)}
    # Arrays and groups are opened from it too, and attributes of arrays are in it.
    assert group["ct/raw"].shape == group["ct"]["raw"].shape == (4, 6)
    assert group["ct/raw"].attrs == {"unit": "HU"}
    assert group["ct"].require_array("raw", dtype="uint16").result().shape == (4, 6)
    with pytest.raises(gpustore.MismatchError, match="type"):
        group.require_array("ct/raw", dtype="int8").result()
    with pytest.raises(KeyError, match="ct/none"):
        group["ct/none"]
    assert requests == []
    assert np.array_equal(group["ct/raw"].read().result(), np.full((4, 6), 7))
    assert len(requests) == 1
    assert group["ct/raw"].resolve().result().shape == (4, 6)
    assert len(requests) == 2
    group.resolve().result()
    assert len(requests) == 3
    # Without them a member costs one request.
    plain = gpustore.open_group(url, context=context, use_consolidated=False).result()
    requests = counted(plain)
    assert plain["ct/raw"].attrs == {"unit": "HU"}
    assert len(requests) == 1


# ---- what is damaged


def test_a_corrupt_member_spoils_only_itself(root, tmp_path, zarr_format):
    fill(root)
    name = ".zarray" if zarr_format == 2 else "zarr.json"
    place = tmp_path / "h.zarr"
    damages = [b"{", b"[]", b'{"zarr_format": 4, "node_type": "array"}', b"\xff", b""]
    for i, damage in enumerate(damages):
        (place / "ct" / f"bad{i}").mkdir()
        (place / "ct" / f"bad{i}" / name).write_bytes(damage)
    members = root.members(max_depth=None).result()
    for i in range(len(damages)):
        node = members[f"ct/bad{i}"]
        assert node.node_type is None
        assert isinstance(node.error, gpustore.MetadataError)
        assert f"bad{i}" in str(node.error)
        with pytest.raises(gpustore.MetadataError):
            node.shape  # noqa: B018
        with pytest.raises(gpustore.MetadataError):
            root[f"ct/bad{i}"]
        assert "unreadable" in repr(node)
    assert np.array_equal(root["ct/raw"].read().result(), np.full((4, 6), 7))
    assert "bad0 (unreadable:" in root.tree()
    with pytest.raises(gpustore.MetadataError, match="bad"):
        root.consolidate().result()
    for i in range(len(damages)):
        del root[f"ct/bad{i}"]
    assert root["ct"].keys() == ["deep", "mask", "raw"]


def test_a_member_with_an_unknown_type_is_listed(root, tmp_path, zarr_format):
    fill(root)
    name, member = (".zarray", "dtype") if zarr_format == 2 else ("zarr.json", "data_type")
    path = tmp_path / "h.zarr" / "ct" / "raw" / name
    path.write_text(json.dumps({**json.loads(path.read_bytes()), member: "float7"}))
    node = root["ct"].members().result()["raw"]
    assert node.shape == (4, 6)
    with pytest.raises((gpustore.MetadataError, gpustore.UnsupportedError), match="float7"):
        node.dtype  # noqa: B018
    assert "raw (" in root.tree()
    assert "float7" in root.tree()


def test_extra_members_of_a_group_are_kept(root, tmp_path, zarr_format):
    name = ".zgroup" if zarr_format == 2 else "zarr.json"
    path = tmp_path / "h.zarr" / name
    document = {**json.loads(path.read_bytes()), "vendor": {"x": [1]}, "other": 3}
    path.write_text(json.dumps(document))
    group = gpustore.open_group(str(tmp_path / "h.zarr")).result()
    assert group.attrs == {"title": "t"}
    group.attrs["n"] = 1
    group.create_group("a/b").result()
    stored = json.loads(path.read_bytes())
    assert (stored["vendor"], stored["other"]) == ({"x": [1]}, 3)


def test_names_that_are_reserved(root, zarr_format):
    reserved = (
        [".zgroup", "a/.zattrs"] if zarr_format == 2 else ["zarr.json", "__x", "a/...", "..."]
    )
    for path in reserved:
        with pytest.raises(gpustore.InvalidKeyError, match="choose another"):
            root.create_group(path)
        with pytest.raises(gpustore.InvalidKeyError, match="choose another"):
            root.create_array(path, dtype="bool", shape=[1])
    assert root.keys() == []


@each(
    ("spec", "options"),
    [
        ("memory://a|zarr3:", {"zarr_format": 2}),
        ("memory://a|zarr3:", {"zarr_format": 4}),
        ("memory://a|json:", {}),
        ({"driver": "zarr3", "kvstore": "memory://a", "dtype": "uint8"}, {}),
        ({"driver": "zarr3"}, {}),
        ("memory://a|zarr3:", {"read": True, "create": True}),
        ("memory://a|zarr3:", {"create": True, "attributes": {"a": float("nan")}}),
        ("memory://a|zarr3:", {"open_mode": gpustore.OpenMode(open=True, assume_metadata=True)}),
    ],
)
def test_arguments_that_make_no_sense(spec, options):
    with pytest.raises(gpustore.MetadataError):
        gpustore.open_group(spec, **options).result()


def test_new_members_have_the_format_of_the_root(root, place, zarr_format):
    for options in ({}, {"open": True}, {"delete_existing": True}):
        made = gpustore.open_group(place, path="a/b", create=True, **options).result()
        assert made.zarr_format == zarr_format
        del root["a"]
    assert gpustore.open_group(place, create=True, delete_existing=True).result().zarr_format == 3


def test_operations_without_changes_keep_consolidated_metadata(root, tmp_path, zarr_format):
    group = fill(root).consolidate().result()
    group.require_group("ct").result()
    group.require_array("ct/raw", dtype="uint16", shape=[4, 6]).result()
    assert group.is_consolidated
    assert consolidated_file(tmp_path / "h.zarr", zarr_format)


def test_threads_make_the_same_ancestors_at_once(root):
    made = [root.create_group(f"a/b/c/{i}") for i in range(8)]
    made += [root.create_array(f"a/b/d/{i}", dtype="bool", shape=[1]) for i in range(8)]
    for future in made:
        future.result()
    names = [str(i) for i in range(8)]
    assert root["a/b/c"].keys() == root["a/b/d"].keys() == names


def test_documents_of_members_have_a_limit(root, place):
    fill(root)
    root["empty"].attrs["long"] = "x" * 5000
    small = {"limits": {"metadata_nbytes": 2000, "hierarchy_nbytes": 4000}}
    context = gpustore.Context(small)
    group = gpustore.open_group(place, context=context).result()
    members = group.members().result()
    assert isinstance(members["empty"].error, gpustore.LimitError)
    assert members["ct"].is_group
    context = gpustore.Context({"limits": {"metadata_nbytes": 2000}})
    group = gpustore.open_group(place, context=context).result()
    assert len(group.members().result()["empty"].attributes["long"]) == 5000


# ---- the examples of the v2 specification


def test_walk_through_of_a_single_array(tmp_path):
    """Zarr v2 specification, "Storing a single array", with manual decompression of a chunk."""
    place = tmp_path / "example.zarr"
    array = gpustore.open(
        {
            "driver": "zarr2",
            "kvstore": {"driver": "file", "path": str(place)},
            "metadata": {
                "shape": [20, 20],
                "chunks": [10, 10],
                "dtype": "<i4",
                "fill_value": 42,
                "compressor": {"id": "zlib", "level": 1},
            },
        },
        create=True,
    ).result()
    assert files(place) == {".zarray"}
    assert (
        json.loads((place / ".zarray").read_bytes()).items()
        >= {
            "chunks": [10, 10],
            "compressor": {"id": "zlib", "level": 1},
            "dtype": "<i4",
            "fill_value": 42,
            "filters": None,
            "order": "C",
            "shape": [20, 20],
            "zarr_format": 2,
        }.items()
    )
    array[0:10, 0:10] = 1
    assert files(place) == {".zarray", "0.0"}
    array[0:10, 10:20] = 2
    array[10:20, :] = 3
    assert files(place) == {".zarray", "0.0", "0.1", "1.0", "1.1"}
    chunk = np.frombuffer(zlib.decompress((place / "0.0").read_bytes()), dtype="<i4")
    assert np.array_equal(chunk, np.ones(100, "<i4"))
    array.attrs["foo"] = 42
    array.attrs["bar"] = "apples"
    array.attrs["baz"] = [1, 2, 3, 4]
    assert files(place) == {".zarray", ".zattrs", "0.0", "0.1", "1.0", "1.1"}
    assert (place / ".zattrs").read_text() == json.dumps(
        {"bar": "apples", "baz": [1, 2, 3, 4], "foo": 42}, indent=4
    )


def test_walk_through_of_a_hierarchy(tmp_path):
    """Zarr v2 specification, "Storing multiple arrays in a hierarchy"."""
    place = tmp_path / "group.zarr"
    root = gpustore.open_group(str(place), create=True, zarr_format=2).result()
    assert files(place) == {".zgroup"}
    assert (place / ".zgroup").read_text() == '{\n    "zarr_format": 2\n}'
    sub = root.create_group("foo").result()
    assert files(place) == {".zgroup", "foo/.zgroup"}
    array = sub.create_array(
        "bar", dtype="float64", shape=[20, 20], metadata={"chunks": [10, 10]}
    ).result()
    array[...] = 42
    array.attrs["comment"] = "answer to life, the universe and everything"
    assert files(place / "foo/bar") == {".zarray", ".zattrs", "0.0", "0.1", "1.0", "1.1"}
    assert files(place) - {f"foo/bar/{name}" for name in files(place / "foo/bar")} == {
        ".zgroup",
        "foo/.zgroup",
    }
    assert zarr.open_group(str(place), mode="r")["foo/bar"][3, 4] == 42


NAMED = gpustore.IndexDomain(labels=["y", "x"], shape=[3, 4])


@each(
    ("zarr_format", "properties"),
    [
        (2, {"domain": NAMED}),
        (2, {"shape": [3, 4], "dims": ("y", "x")}),
        (2, {"shape": [3, 4], "attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}}),
        (3, {"domain": NAMED}),
        (3, {"shape": [3, 4], "attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}}),
    ],
)
def test_names_of_dimensions_are_kept_as_the_format_has_them(zarr_format, properties):
    group = gpustore.open_group("memory://g/", create=True, zarr_format=zarr_format).result()
    group.create_array("a", dtype="uint8", **properties).result()
    store = group["a"]
    if zarr_format == 2:
        assert dict(store.attrs) == {"_ARRAY_DIMENSIONS": ["y", "x"]}
    else:
        assert (store.domain.labels, dict(store.attrs)) == (("y", "x"), {})


@each("names", [["y"] * 2, ["y", 3], "yx", []])
def test_what_are_no_names_of_dimensions_stays_an_attribute(names):
    group = gpustore.open_group("memory://g/", create=True).result()
    attributes = {"_ARRAY_DIMENSIONS": names}
    store = group.create_array("a", dtype="uint8", shape=[2, 2], attributes=attributes).result()
    assert dict(store.attrs) == attributes


def nested(depth):
    return {"n": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_attributes_that_could_not_be_read_again_are_refused(zarr_format):
    context = gpustore.Context()
    group = gpustore.open_group(
        "memory://deep/", create=True, zarr_format=zarr_format, context=context
    ).result()
    deepest = nested(59)
    group.attrs.put(deepest).result()
    group.create_group("inner", attributes=deepest).result()
    group.consolidate().result()
    assert gpustore.open_group("memory://deep/", context=context).result().attrs == deepest
    text = "Invalid attributes: values nested 61 deep, the limit is 60"
    for change in (
        lambda: group.attrs.put(nested(60)),
        lambda: group.attrs.change(lambda stored: nested(60)),
        lambda: group.create_group("other", attributes=nested(60)),
    ):
        with pytest.raises(gpustore.MetadataError, match=text):
            change().result()
    assert gpustore.open_group("memory://deep/", context=context).result().attrs == deepest
