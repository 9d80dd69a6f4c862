"""``gpustore copy`` of groups: what it makes, as gpustore and zarr-python read it."""

import json
from math import inf, isnan, nan

import numpy as np
import pytest
import zarr

import gpustore

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:Numcodecs codecs")

ATTRIBUTES = {"unit": "HU", "lowest": -inf}
VALUES = np.arange(24, dtype="u2").reshape(4, 6)
TIMES = np.arange(3).astype("M8[s]")


def make(path, zarr_format):
    """A hierarchy of zarr-python's, with attributes that are NaN and infinite."""
    root = zarr.open_group(path, mode="w", zarr_format=zarr_format, attributes={"r": [1], "n": nan})
    raw = root.create_array(
        "a/b/raw", shape=(4, 6), chunks=(2, 6), dtype="u2", fill_value=7, attributes=ATTRIBUTES
    )
    raw[...] = VALUES
    root.create_array("times", shape=(3,), chunks=(3,), dtype="M8[s]")[...] = TIMES
    root.create_group("empty", attributes={"x": {"y": None}})
    return path


def add_member(path):
    """A member that nobody knows, in the document of a group."""
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "vendor": {"must_understand": False}}))


def check(path, zarr_format, *, chunks=(2, 6)):
    for group in (gpustore.open_group(str(path)).result(), zarr.open_group(path, mode="r")):
        assert set(group["a"]["b"]) == {"raw"}
        assert set(group) == {"a", "empty", "times"}
        assert dict(group["empty"].attrs) == {"x": {"y": None}}
        assert group.attrs["r"] == [1]
        assert isnan(group.attrs["n"])
        assert dict(group["a/b/raw"].attrs) == ATTRIBUTES
    ours = gpustore.open_group(str(path)).result()
    assert ours.zarr_format == zarr_format
    raw = ours["a/b/raw"]
    np.testing.assert_array_equal(raw.read().result(), VALUES)
    assert (raw.fill_value, raw.chunk_layout.read_chunk.shape) == (7, chunks)
    np.testing.assert_array_equal(ours["times"].read().result(), TIMES)
    theirs = zarr.open_group(path, mode="r")
    np.testing.assert_array_equal(theirs["a/b/raw"][...], VALUES)
    np.testing.assert_array_equal(theirs["times"][...], TIMES)
    return ours


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (3, 2), (3, 3)])
def test_all_of_a_group_is_copied(gpustore_command, tmp_path, before, after):
    make(tmp_path / "a", before)
    code, out, err = gpustore_command(
        "copy", tmp_path / "a", tmp_path / "b", "--zarr-format", after, "--codec", "zstd:1"
    )
    assert (code, err) == (0, "")
    assert f"Zarr v{after} group" in out
    assert "arrays        2" in out
    copy = check(tmp_path / "b", after)
    assert not copy.is_consolidated


def test_part_of_a_hierarchy_and_urls(gpustore_command, tmp_path):
    make(tmp_path / "a", 3)
    source = f"file://{tmp_path}/a/|zarr3:a"
    target = f"file://{tmp_path}/c/|zarr2:"
    code, out, err = gpustore_command("copy", source, target, "--quiet")
    assert (code, out, err) == (0, "", "")
    copy = gpustore.open_group(f"{tmp_path}/c").result()
    assert copy.zarr_format == 2
    assert list(copy.members(max_depth=None).result()) == ["b", "b/raw"]
    np.testing.assert_array_equal(copy["b/raw"].read().result(), VALUES)


@pytest.mark.parametrize(("zarr_format", "name"), [(2, ".zgroup"), (3, "zarr.json")])
def test_unknown_members_are_kept(gpustore_command, tmp_path, zarr_format, name):
    make(tmp_path / "a", zarr_format)
    add_member(tmp_path / "a" / "a" / name)
    add_member(tmp_path / "a" / name)
    assert gpustore_command("copy", tmp_path / "a", tmp_path / "b")[0] == 0
    for path in ("", "a"):
        assert "vendor" in json.loads((tmp_path / "b" / path / name).read_text())
    assert "vendor" not in json.loads((tmp_path / "b" / "empty" / name).read_text())


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_are_written_anew(gpustore_command, tmp_path, zarr_format):
    make(tmp_path / "a", zarr_format)
    zarr.consolidate_metadata(tmp_path / "a")
    assert gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--codec", "none")[0] == 0
    assert check(tmp_path / "b", zarr_format).is_consolidated


def test_a_member_that_cannot_be_read_spoils_only_itself(gpustore_command, tmp_path):
    make(tmp_path / "a", 3)
    (tmp_path / "a" / "bad").mkdir()
    (tmp_path / "a" / "bad" / "zarr.json").write_text("{")
    path = tmp_path / "a" / "odd" / "zarr.json"
    path.parent.mkdir()
    document = json.loads((tmp_path / "a" / "times" / "zarr.json").read_text())
    path.write_text(json.dumps({**document, "data_type": "float7"}))
    code, out, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b")
    assert code == 1
    assert "lacks 2 of the members" in err
    assert "bad: " in err
    assert "float7" in err
    assert "arrays        2" in out
    check(tmp_path / "b", 3)


def test_options_are_for_every_array_or_for_none(gpustore_command, tmp_path):
    make(tmp_path / "a", 3)
    code, out, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--chunks", "2,2")
    assert (code, out) == (1, "")
    assert "times: --chunks has 2 extents, but the array has 1 dimensions" in err
    assert not (tmp_path / "b").exists()
    code, _, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--field", "x")
    assert (code, "--field names a field of an array" in err) == (1, True)
    source = tmp_path / "a" / "a" / "b"
    assert gpustore_command("copy", source, tmp_path / "b", "--chunks", "3,2")[0] == 0
    copy = gpustore.open_group(str(tmp_path / "b")).result()["raw"]
    assert copy.chunk_layout.read_chunk.shape == (3, 2)
    np.testing.assert_array_equal(copy.read().result(), VALUES)


def test_contents_of_the_target_are_safe(gpustore_command, tmp_path):
    make(tmp_path / "a", 2)
    array = zarr.create_array(tmp_path / "array", shape=(2,), dtype="u1")
    array[...] = 3
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    for name, option, text in [
        ("array", [], "holds other things than a group"),
        ("array", ["--overwrite"], "holds other things than a group"),
        ("other", ["--overwrite"], "holds other things than a group"),
        ("a/empty", ["--overwrite"], "overlaps the source"),
        ("a", ["--overwrite"], "overlaps the source"),
    ]:
        code, out, err = gpustore_command("copy", tmp_path / "a", tmp_path / name, *option)
        assert (code, out) == (1, "")
        assert text in err
    assert gpustore_command("copy", tmp_path / "a", tmp_path / "b")[0] == 0
    (tmp_path / "b" / "left").mkdir()
    code, _, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b")
    assert (code, "exists already: add --overwrite" in err) == (1, True)
    make(tmp_path / "c", 3)
    assert gpustore_command("copy", tmp_path / "c", tmp_path / "b", "--overwrite")[0] == 0
    check(tmp_path / "b", 3)
    assert not (tmp_path / "b" / "left").exists()
    check(tmp_path / "a", 2)
    assert (tmp_path / "other" / "thesis.tex").read_text() == "mine"
    assert array[:].tolist() == [3, 3]


def test_a_damaged_chunk_stops_the_copy_and_says_how_far_it_came(gpustore_command, tmp_path):
    make(tmp_path / "a", 3)
    (tmp_path / "a" / "times" / "c" / "0").write_bytes(b"damaged")
    code, _, err = gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--codec", "none")
    assert code == 1
    assert "times/c/0" in err
    assert "of the 2 arrays of the group were copied before" in err
    opened = gpustore.open_group(str(tmp_path / "b")).result()
    assert list(opened) == ["a", "empty", "times"]


def test_a_copy_is_of_the_version_of_ome_zarr_asked(gpustore_command, tmp_path):
    image = gpustore.ome.create(tmp_path / "a", shape=(8, 8), dtype="u1", axes="yx", version="0.6")
    gpustore_command("copy", tmp_path / "a", tmp_path / "b", "--ome-version", "0.4")
    copied = gpustore.ome.open(tmp_path / "b")
    assert (copied.version, copied.axes) == ("0.4", image.axes)
    code, _, err = gpustore_command(
        "copy", tmp_path / "a" / "0", tmp_path / "c", "--ome-version", "0.4"
    )
    assert code == 1
    assert "--ome-version is for groups, but the source is an array" in err
