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


def served(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return HttpServer({str(path.relative_to(folder)): path.read_bytes() for path in files})


def test_info_of_a_server_that_lists_nothing(gpustore_command, cells):
    with served(cells.parent) as server:
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


def test_indices_are_those_of_the_finest_level(gpustore_command, cells, tmp_path):
    """The level is chosen by the pixels of the part, and channels stay together."""
    _, out, _ = gpustore_command(
        "view", cells, "--png", tmp_path / "a.png", "-i", ":,1,100:300,100:300", "--size", 100
    )
    assert "cells.zarr/1  2 x 3 x 200 x 300 uint16" in out
    assert "slice :,1,50:150,50:150 at 100 x 100 pixels, DAPI #0000FF 0 to 1000, GFP" in out
    _, out, _ = gpustore_command(
        "view", cells, "--png", tmp_path / "b.png", "-i", "1,-1,::-4,100:300", "--size", 90
    )
    assert "cells.zarr/2  2 x 3 x 100 x 150 uint16" in out
    assert "slice 1,2,::-1,25:75 at 45 x 90 pixels" in out


def test_pixels_have_the_proportions_of_the_sample(gpustore_command, cells, tmp_path):
    image = pytest.importorskip("PIL.Image")
    code, out, _ = gpustore_command("view", cells, "--png", tmp_path / "a.png", "-i", ":,:,20")
    assert code == 0
    assert "slice :,:,20,: at 600 x 12 pixels" in out  # planes are four pixels apart
    pixels = np.asarray(image.open(tmp_path / "a.png"))
    assert pixels[4:8, 10].tolist() == [[0, 128, 255]] * 4
    assert pixels[[3, 8], 10].tolist() == [[0, 0, 0]] * 2


def test_windows_that_nobody_chose_show_the_image(gpustore_command, tmp_path):
    """The whole range of the type is what writers state; spots over noise are spots."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    values = rng.poisson(100, (2, 1, 200, 200)).astype("uint16")
    values[0, 0, 50:150, 50:150] = rng.poisson(2000, (100, 100))
    values[1, 0, 10, 10] = 5000
    ome.write(tmp_path / "a", values, axes="czyx", channels=("DAPI", "RFP"), levels=1)
    _, out, _ = gpustore_command("view", tmp_path / "a", "--png", tmp_path / "a.png")
    assert "RFP #00FF00 100 to 5000" in out
    pixels = np.asarray(image.open(tmp_path / "a.png"))
    assert pixels[60:140, 60:140, 2].mean() > 200
    assert pixels[..., 2][values[0, 0] < 200].mean() < 20
    assert pixels[..., 1].mean() < 1
    assert pixels[10, 10, 1] == 255


def test_labels_are_drawn_over_the_image(gpustore_command, cells, tmp_path):
    image = pytest.importorskip("PIL.Image")
    labels = np.zeros((3, 400, 600), "uint32")
    labels[1, 300:340, 400:500] = 7
    labels[1, 360:380, 400:500] = 8
    made = ome.open(cells).create_label("marked", colors={7: (255, 0, 10, 255)})
    made.write(labels)
    made.build_pyramid()
    _, out, _ = gpustore_command(
        "view", cells, "--labels", "marked", "--png", tmp_path / "a.png", "--size", 300
    )
    assert out.splitlines()[1].endswith("GFP #00FF00 0 to 1000, labels marked")
    pixels = np.asarray(image.open(tmp_path / "a.png"))
    assert pixels[150, 210].tolist() == [255, 0, 10]
    assert pixels[160, 220].tolist() == [89, 0, 4]
    assert pixels[185, 200].any()
    assert not pixels[175, 220].any()
    code, _, err = gpustore_command("view", cells, "--labels", "none", "--png", tmp_path / "a.png")
    assert code == 1
    assert "no label image 'none'; label images: nuclei, marked" in err
    gpustore_command("view", cells / "labels" / "marked", "--png", tmp_path / "b.png")
    pixels = np.asarray(image.open(tmp_path / "b.png"))
    assert pixels[310, 410].tolist() == [255, 0, 10]
    assert pixels[370, 410].any()
    code, _, err = gpustore_command("view", cells / "0", "--labels", "--png", tmp_path / "a.png")
    assert "--labels is for images in OME-Zarr" in err


@pytest.mark.matrix("costly")
@each("version", ["0.4", "0.5", "0.6"])
def test_info_of_plates_and_collections(gpustore_command, tmp_path, version):
    plate = ome.create_plate(
        tmp_path / "p", rows="AB", columns=range(1, 6), name="screen", version=version,
        acquisitions=[{"id": 3}, {"id": 4, "name": "later"}],
    )  # fmt: skip
    empty = gpustore_command("info", tmp_path / "p")[1]
    assert f"OME-Zarr {version}, 2 rows, 5 columns" in empty
    assert "none" in empty
    paths = [f"{row}/{column}/0" for row in "AB" for column in range(1, 6)]
    properties = {"shape": (2, 64, 32), "dtype": "uint16", "axes": "cyx", "units": "um"}
    plate.create_images([*paths, "A/1/1"], channels=("DAPI", "GFP"), levels=2, **properties)
    field = "2 x 64 x 32 uint16, y 1 µm, x 1 µm, 2 levels"
    layout = {"bioformats2raw.layout": 3}
    attributes = layout if version == "0.4" else {"ome": {"version": version, **layout}}
    gpustore.open_group(
        tmp_path / "c", create=True, zarr_format=2 if version == "0.4" else 3, attributes=attributes
    ).result()
    for number in "01":
        ome.create(tmp_path / "c" / number, version=version, **properties)
    with served(tmp_path) as server:
        for place in tmp_path, server.url:
            out = gpustore_command("info", f"{place}/p")[1]
            assert "screen" in out
            assert "3, later" in out
            assert "10: A/1, A/2, A/3, A/4, A/5, B/1, B/2, B/3, ..." in out
            assert f"A/1/0: {field}" in out
            assert "DAPI, GFP" in out
            out = gpustore_command("info", f"{place}/p/A/1")[1]
            assert f"OME-Zarr {version}, 2 fields" in out
            assert f"0: {field}" in out
            found = json.loads(gpustore_command("info", f"{place}/p", "--json")[1])
            assert found["plate"]["first image"] == f"A/1/0: {field}"
            out = gpustore_command("info", f"{place}/c")[1]
            assert "converted by bioformats2raw, 2 images" in out
            assert "0: 2 x 64 x 32 uint16, y 1 µm, x 1 µm, 1 level" in out


def test_a_plate_says_what_can_be_viewed(gpustore_command, tmp_path):
    ome.create_plate(tmp_path / "p", rows="A", columns="1")
    _, _, err = gpustore_command("view", tmp_path / "p", "--png", tmp_path / "a.png")
    assert "is a plate: name a field of it" in err


@each(
    "color",
    [
        {"label-value": "a", "rgba": [1, 2, 3, 4]},
        {"label-value": None, "rgba": [1, 2, 3, 4]},
        {"label-value": [1], "rgba": [1, 2, 3, 4]},
        {"label-value": 1, "rgba": ["x", 2, 3, 4]},
        {"label-value": 1, "rgba": [None, 2, 3, 4]},
        {"label-value": 1, "rgba": [4000, 2, 3, 4]},
        {"rgba": [1, 2, 3, 4]},
    ],
)
def test_colours_of_labels_that_are_damaged_are_left_out(gpustore_command, cells, tmp_path, color):
    image = pytest.importorskip("PIL.Image")
    path = cells / "labels" / "nuclei"
    ome.open(path).write(np.ones((3, 400, 600), "uint32"))
    pictures = []
    for colors in ([], [color]):
        group = gpustore.open_group(path, write=True).result()
        attributes = group.attrs.asdict()
        attributes["ome"]["image-label"]["colors"] = colors
        group.attrs.update(attributes).result()
        code, _, err = gpustore_command("view", path, "--png", tmp_path / "a.png", "--size", 30)
        assert (code, err) == (0, "")
        pictures.append(np.asarray(image.open(tmp_path / "a.png")))
    assert np.array_equal(*pictures)
