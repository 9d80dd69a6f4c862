"""``gpustore info`` of groups."""

import json

import numpy as np
import pytest
import zarr

from tests.matrix import each


@pytest.fixture(params=[2, 3])
def hierarchy(tmp_path, request):
    """A hierarchy that zarr-python wrote, with a member that cannot be read."""
    path = tmp_path / "h.zarr"
    root = zarr.open_group(str(path), mode="w", zarr_format=request.param)
    root.attrs["title"] = "a" * 100
    root.attrs["units"] = {"x": 1}
    inner = root.create_group("scans", attributes={"n": 3})
    array = inner.create_array("ct", shape=(8, 6), chunks=(4, 6), dtype="uint16")
    array[:] = np.arange(48).reshape(8, 6)
    root.create_array("bad", shape=(3,), chunks=(3,), dtype="uint8")
    document = {2: ".zarray", 3: "zarr.json"}[request.param]
    (path / "bad" / document).write_text("{")
    return path, request.param


def test_for_people(gpustore_command, hierarchy):
    path, zarr_format = hierarchy
    code, out, err = gpustore_command("info", path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == str(path)
    assert f"Zarr v{zarr_format} group" in lines[1]
    assert 'title: "aaa' in lines[2]
    assert lines[2].endswith("...")
    assert 'units: {"x": 1}' in lines[3]
    assert "1 array, 1 group, 1 that cannot be read" in lines[4]
    assert "consolidated" not in lines[4]
    assert "bad (unreadable: " in out
    assert lines[-1].endswith("ct (8, 6) uint16")


def test_for_programs(gpustore_command, hierarchy):
    path, zarr_format = hierarchy
    code, out, err = gpustore_command("info", path, "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["format"] == f"Zarr v{zarr_format} group"
    assert facts["consolidated"] is False
    assert facts["attributes"] == {"title": "a" * 100, "units": {"x": 1}}
    assert list(facts["members"]) == ["bad", "scans", "scans/ct"]
    assert "h.zarr/bad/" in facts["members"]["bad"]["error"]
    assert facts["members"]["scans"] == {"type": "group", "attributes": {"n": 3}}
    assert facts["members"]["scans/ct"] == {
        "type": "array",
        "shape": [8, 6],
        "dtype": {2: "<u2", 3: "uint16"}[zarr_format],
        "chunk": [4, 6],
        "attributes": {},
    }


def test_consolidated_metadata_and_other_chunk_grids(gpustore_command, tmp_path):
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[3, 4]]}}
    array = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [7],
        "data_type": "int8",
        "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "bytes"}],
        "fill_value": 0,
    }
    consolidated = {"kind": "inline", "must_understand": False, "metadata": {"a": array}}
    document = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": consolidated}
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    code, out, err = gpustore_command("info", tmp_path)
    assert (code, err) == (0, "")
    assert "1 array, 0 groups, known from consolidated metadata" in out
    assert "attributes  none" in out
    assert "a (7,) int8" in out
    facts = json.loads(gpustore_command("info", tmp_path, "--json")[1])
    assert facts["members"]["a"]["chunk"] is None


@each(
    ("files", "reason"),
    [
        ({".zgroup": {"zarr_format": 2}, ".zattrs": [1]}, '/.zattrs": Expected object'),
        (
            {"zarr.json": {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {}}},
            "Error parsing consolidated metadata",
        ),
        ({".zarray": {"zarr_format": 2}}, 'opening "zarr" driver: Error reading local file'),
        ({}, "gpustore: error: there is nothing at local file"),
    ],
)
@each("command", ["info", "copy"])
def test_damaged_group_says_why_it_is_none(gpustore_command, tmp_path, command, files, reason):
    place = tmp_path / "h.zarr"
    place.mkdir()
    for name, document in files.items():
        (place / name).write_text(json.dumps(document))
    words = [command, place] + [tmp_path / "copy.zarr"] * (command == "copy")
    code, out, err = gpustore_command(*words)
    assert (code, out) == (1, "")
    assert reason in err
