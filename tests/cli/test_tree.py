"""``gpustore tree``: groups, arrays, sizes."""

import json

import numpy as np
import pytest

import gpustore


@pytest.fixture(params=[2, 3])
def study(tmp_path, request):
    path = tmp_path / "study.zarr"
    root = gpustore.open_group(path, create=True, zarr_format=request.param).result()
    root.create_array(
        "ct/raw", data=np.arange(48, dtype="u2").reshape(8, 6), chunks=(4, 6)
    ).result()
    root.create_array("mask", dtype="bool", shape=(3,)).result()
    root.create_group("empty").result()
    (path / "bad").mkdir()
    (path / "bad" / {2: ".zarray", 3: "zarr.json"}[request.param]).write_text("{")
    return path


def test_for_people(gpustore_command, study):
    code, out, err = gpustore_command("tree", study)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith(f"{study}  Zarr v")
    assert lines[0].endswith(", 99 B")
    assert lines[1].startswith("├── bad  unreadable: ")
    assert lines[2:] == [
        "├── ct  96 B",
        "│   └── raw  8 x 6 uint16, chunk 4 x 6, 96 B",
        "├── empty",
        "└── mask  3 bool, 3 B",
    ]


def test_for_programs(gpustore_command, study):
    code, out, _ = gpustore_command("tree", study, "--json", "--stored", "--depth", 1)
    assert code == 0
    facts = json.loads(out)
    assert list(facts["members"]) == ["bad", "ct", "empty", "mask"]
    raw = facts["members"]["ct"]["members"]["raw"]
    on_disk = sum(p.stat().st_size for p in (study / "ct" / "raw").rglob("*") if p.is_file())
    assert raw == {
        "type": "array",
        "shape": [8, 6],
        "dtype": "uint16",
        "chunk": [4, 6],
        "is_sharded": False,
        "nbytes": 96,
        "stored_nbytes": on_disk,
    }
    total = sum(p.stat().st_size for p in study.rglob("*") if p.is_file())
    assert facts["stored_nbytes"] == total
    assert facts["members"]["bad"]["error"]


def test_depth_ends_the_tree(gpustore_command, study):
    _, out, _ = gpustore_command("tree", study, "--depth", 0)
    assert "ct" in out
    assert "raw" not in out


def test_an_image_shows_its_scales(gpustore_command, image):
    path, _ = image
    _, out, _ = gpustore_command("tree", path)
    assert out.splitlines() == [
        f"{path}  Zarr v3, OME-Zarr 0.5, axes zyx, 2 levels, 18.0 kB",
        "├── 0  3 x 40 x 60 uint16, 14.4 kB, y 0.5 µm, x 0.25 µm",
        "└── 1  3 x 20 x 30 uint16, 3.60 kB, y 1 µm, x 0.5 µm",
    ]


def test_an_array_is_a_tree_of_one_line(gpustore_command, tmp_path):
    path = tmp_path / "a.zarr"
    gpustore.open(
        f"{path}|zarr3:", create=True, dtype="int8", shape=(8, 8), chunks=(2, 2), shards=(4, 4)
    ).result()
    _, out, _ = gpustore_command("tree", path)
    assert out == f"{path}  8 x 8 int8, shard 4 x 4, 64 B\n"
    member = gpustore.open_group(tmp_path / "g", create=True).result()
    member.create_array("s", dtype="int8", shape=(8,), chunks=(2,), shards=(4,)).result()
    assert "s  8 int8, shard 4, 8 B" in gpustore_command("tree", tmp_path / "g")[1]


def test_stored_values_without_a_size_are_reported(gpustore_command, study):
    loop = study / "mask" / "loop"
    loop.symlink_to(loop)
    code, out, err = gpustore_command("tree", study, "--stored", "--json")
    assert code == 1
    assert json.loads(out)["stored_nbytes"]
    assert err.startswith("gpustore: not counted: ")
    assert "mask/loop" in err


def test_the_text_of_json_is_that_of_the_library(gpustore_command, study):
    _, out, _ = gpustore_command("tree", study, "--json")
    assert out == json.dumps(json.loads(out), indent=2) + "\n"


@pytest.mark.matrix("costly")
def test_groups_may_be_nested_deeper_than_calls_of_python(gpustore_command, tmp_path):
    depth = 1200
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    below = {"/".join("g" * n): group for n in range(1, depth + 1)}
    consolidated = {"kind": "inline", "must_understand": False, "metadata": below}
    document = {**group, "consolidated_metadata": consolidated}
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    root = gpustore.open_group(tmp_path).result()
    assert str(root.tree()).count("\n") == depth
    assert f"{depth + 1 - 40:,} more" in repr(root.info)
    assert root._repr_html_()
    code, out, err = gpustore_command("tree", tmp_path, "--json")
    assert (code, err, out.count('"type": "group"')) == (0, "", depth + 1)
    code, out, err = gpustore_command("tree", tmp_path)
    assert (code, err) == (0, "")
