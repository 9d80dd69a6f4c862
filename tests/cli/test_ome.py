"""OME-Zarr images that commands show."""

import json

import numpy as np
import pytest

import gpustore
from gpustore import ome
from gpustore.cli.ome import find_image, line_of, scale_text
from tests.kvstores.http.http_server import HttpServer
from tests.matrix import each
from tests.ome.files import image_attributes

AXES = [{"name": "c", "type": "channel"}, *({"name": n, "type": "space"} for n in "yx")]
SCALE = {"type": "scale", "scale": [1, 0.5, 2]}


@each("version", ["0.4", "0.5", "0.6"])
def test_an_image_in_one_line(version):
    image = find_image(image_attributes(version))
    assert line_of(image) == f"OME-Zarr {version}, axes czyx, 3 levels"
    assert scale_text(image, "1") == "z 2 µm, y 1 µm, x 1 µm"


def test_axes_without_units_have_their_steps():
    levels = [{"path": "0", "coordinateTransformations": [SCALE]}]
    image = find_image({"multiscales": [{"axes": AXES, "datasets": levels}]})
    assert scale_text(image, "0") == "y 0.5, x 2"
    assert line_of(image) == "OME-Zarr 0.4, axes cyx, 1 level"


@each(
    "attributes",
    [
        {},
        {"multiscales": []},
        {"multiscales": 3},
        {"multiscales": [{"axes": ["y"], "datasets": []}]},
        {"multiscales": [{"axes": AXES, "datasets": [{"path": "0"}]}]},
        {"ome": {"version": "0.6", "multiscales": [{"coordinateSystems": {}}]}},
        {"ome": {"version": "9", "multiscales": []}},
        {"ome": 3},
    ],
)
def test_other_forms_are_no_image(attributes):
    assert find_image(attributes) is None


@pytest.fixture
def cells(tmp_path):
    """Path of an image with channels, levels and labels."""
    path = tmp_path / "cells.zarr"
    values = np.zeros((2, 3, 400, 600), "uint16")
    values[0, 1, :200] = 1000
    values[1, 1, :, :300] = 500
    window = ome.Window(0, 1000, 0, 65535)
    channels = [
        ome.Channel("DAPI", "0000FF", window, active=True),
        ome.Channel("GFP", "00FF00", window, active=True),
    ]
    image = ome.write(path, values, axes="czyx", scale=(2, 0.5, 0.5), units="um",
                      channels=channels, name="cells")  # fmt: skip
    image.create_label("nuclei")
    return path


def test_info_shows_levels_channels_and_labels(gpustore_command, cells):
    code, out, err = gpustore_command("info", cells)
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "image OME-Zarr 0.5, axes czyx, 3 levels" in lines
    assert "level 0 2 x 3 x 400 x 600 uint16, z 2 µm, y 0.5 µm, x 0.5 µm, 2.88 MB" in lines
    assert "level 2 2 x 3 x 100 x 150 uint16, z 2 µm, y 2 µm, x 2 µm, 180 kB" in lines
    assert "channels DAPI, GFP" in lines
    assert "labels nuclei" in lines
    _, out, _ = gpustore_command("info", "--json", cells)
    found = json.loads(out)
    assert found["ome"] == "OME-Zarr 0.5, axes czyx, 3 levels"
    assert found["image"]["channels"] == "DAPI, GFP"


def test_info_of_a_server_that_lists_nothing(gpustore_command, cells):
    files = (path for path in cells.parent.rglob("*") if path.is_file())
    served = {str(path.relative_to(cells.parent)): path.read_bytes() for path in files}
    with HttpServer(served) as server:
        code, out, err = gpustore_command("info", f"{server.url}/cells.zarr/")
        assert (code, err) == (0, "")
        assert "labels    nuclei" in out
        code, _, err = gpustore_command("info", f"{server.url}/cells.zarr/labels/")
    assert code == 1
    assert "does not support listing" in err


def test_view_adds_the_channels_in_their_colours(gpustore_command, cells, tmp_path):
    image = pytest.importorskip("PIL.Image")
    code, out, err = gpustore_command("view", cells, "--png", tmp_path / "a.png", "--size", 300)
    assert (code, err) == (0, "")
    assert "cells.zarr/1  2 x 3 x 200 x 300 uint16" in out
    assert "slice :,1,:,: at 300 x 200 pixels, " in out
    assert "DAPI #0000FF 0 to 1000, GFP #00FF00 0 to 1000" in out
    pixels = np.asarray(image.open(tmp_path / "a.png"))
    assert pixels.shape == (200, 300, 3)
    assert pixels[10, 10].tolist() == [0, 128, 255]
    assert pixels[150, 10].tolist() == [0, 128, 0]
    assert pixels[10, 200].tolist() == [0, 0, 255]
    assert pixels[150, 200].tolist() == [0, 0, 0]
    _, out, _ = gpustore_command("view", cells, "--png", tmp_path / "b.png", "-i", "0,1")
    assert np.asarray(image.open(tmp_path / "b.png")).ndim == 2


def test_channels_that_are_not_active_are_left_out(gpustore_command, cells, tmp_path):
    image = pytest.importorskip("PIL.Image")
    group = gpustore.open_group(cells, write=True).result()
    attributes = group.attrs.asdict()
    attributes["ome"]["omero"]["channels"][0]["active"] = False
    group.attrs.update(attributes).result()
    gpustore_command("view", cells, "--png", tmp_path / "a.png")
    assert np.asarray(image.open(tmp_path / "a.png"))[..., 2].max() == 0
    attributes["ome"]["omero"]["channels"][1]["active"] = False
    group.attrs.update(attributes).result()
    gpustore_command("view", cells, "--png", tmp_path / "a.png")
    assert np.asarray(image.open(tmp_path / "a.png")).max() == 255


def test_info_of_an_image_without_one_of_its_levels(gpustore_command, cells):
    gpustore.open_group(cells).result().delete("0").result()
    code, out, _ = gpustore_command("info", cells)
    assert code == 0
    assert "0/zarr.json" in out
    assert "2 x 3 x 200 x 300 uint16" in out
    assert "DAPI, GFP" in out
