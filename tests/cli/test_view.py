"""``gpustore view``: slices, levels, contrast, PNG files."""

import numpy as np
import pytest
from PIL import Image

import gpustore
from gpustore.cli.selection import choose
from tests.matrix import each


def saved(path, data, **keywords):
    return gpustore.open(f"{path}|zarr3:", create=True, data=data, **keywords).result()


def pixels_of(path):
    return np.asarray(Image.open(path))


def test_a_png_is_the_slice_with_stretched_contrast(gpustore_command, tmp_path):
    volume = np.arange(4 * 10 * 20, dtype="uint16").reshape(4, 10, 20)
    saved(tmp_path / "a.zarr", volume, chunks=(1, 5, 5))
    png = tmp_path / "a.png"
    code, out, err = gpustore_command(
        "view", tmp_path / "a.zarr", "--png", png, "-i", "-1,2:8,::-1", "--range", "600,855"
    )
    assert (code, err) == (0, "")
    assert np.array_equal(pixels_of(png), (volume[-1, 2:8, ::-1] - 600).astype("uint8"))
    assert out.splitlines() == [
        f"{tmp_path / 'a.zarr'}  4 x 10 x 20 uint16",
        "slice 3,2:8,::-1 at 20 x 6 pixels, black 600, white 855",
        f"written to {png}",
    ]


def test_large_slices_are_read_with_a_stride(gpustore_command, tmp_path):
    plane = np.add.outer(np.arange(30), np.arange(100)).astype("uint16")
    saved(tmp_path / "a.zarr", plane, chunks=(1, 10))
    before = gpustore.statistics["chunks_planned"]
    gpustore_command("view", tmp_path / "a.zarr", "--png", tmp_path / "a.png", "--size", 10)
    assert pixels_of(tmp_path / "a.png").shape == (3, 10)
    assert gpustore.statistics["chunks_planned"] - before == 3 * 10


def test_an_image_shows_the_level_that_fits(gpustore_command, image):
    path, _ = image
    # Rows are twice as far apart as columns.
    for size, level, shape in ((80, "0", (80, 60)), (20, "1", (20, 15)), (10, "1", (10, 8))):
        png = path.parent / f"{size}.png"
        code, out, _ = gpustore_command("view", path, "--png", png, "--size", size)
        assert code == 0
        assert out.startswith(f"{path}/{level}  3 x ")
        assert pixels_of(png).shape == shape


def test_colours_stay(gpustore_command, tmp_path):
    colours = np.random.default_rng(0).integers(0, 255, (6, 8, 3), "uint8")
    saved(tmp_path / "c.zarr", colours)
    gpustore_command("view", tmp_path / "c.zarr", "--png", tmp_path / "c.png")
    assert np.array_equal(pixels_of(tmp_path / "c.png"), colours)
    _, out, _ = gpustore_command("view", tmp_path / "c.zarr", "-i", ":,:,1")
    assert "slice :,:,1 at" in out


def test_a_terminal_gets_half_blocks_in_true_colour(gpustore_command, tmp_path, monkeypatch):
    saved(tmp_path / "a.zarr", np.array([[0, 255], [255, 0]], dtype="uint8"))
    for name, value in {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    _, out, _ = gpustore_command("view", tmp_path / "a.zarr", "--size", 2, "--range", "0,255")
    assert "\x1b[38;2;0;0;0;48;2;255;255;255m▀" in out
    monkeypatch.setenv("NO_COLOR", "1")
    _, out, _ = gpustore_command("view", tmp_path / "a.zarr", "--size", 2)
    assert "▀" not in out


def test_without_colours_there_are_characters(gpustore_command, tmp_path):
    saved(tmp_path / "a.zarr", np.repeat([0, 100, 255], 4).astype("float32"))
    _, out, _ = gpustore_command("view", tmp_path / "a.zarr", "--size", 12, "--range", "0,255")
    assert out.splitlines()[0] == "    ----@@@@"


@each(
    ("data", "shown"),
    [
        (np.array([[np.nan, 1], [2, np.inf]]), "black 1.01, white 1.998"),
        (np.full((2, 2), 7), "black 6, white 7"),
        (np.array([[0, 1], [1, 0]], bool), "black 0, white 1"),
        (np.array([[3 + 4j, 0], [0, 0]]), "black 0, white 4.97"),
        (np.array([["2026-01-01", "NaT"]], "datetime64[D]"), "black"),
    ],
)
def test_all_numbers_are_shown(gpustore_command, tmp_path, data, shown):
    saved(tmp_path / "a.zarr", data)
    code, out, err = gpustore_command("view", tmp_path / "a.zarr")
    assert (code, err) == (0, "")
    assert shown in out


def test_what_is_no_picture(gpustore_command, tmp_path):
    saved(tmp_path / "a.zarr", np.zeros((2, 3, 4, 5), "uint8"))
    saved(tmp_path / "e.zarr", np.zeros((0, 3), "uint8"))
    group = gpustore.open_group(tmp_path / "g", create=True).result()
    group.create_array("x/y", dtype="int8", shape=[2]).result()
    saved(tmp_path / "s.zarr", np.array([b"a", b"b"], object), dtype="string")
    for arguments, message in {
        ("a.zarr", "-i", "0"): "3 dimensions of a picture's 2: give --index numbers for 1 more",
        ("a.zarr", "-i", "0,0,0,0,0"): "--index has 5 indices, but the array has 4 dimensions",
        ("a.zarr", "-i", "0,3"): "index 3 is outside dimension 1, which has 3 elements",
        ("a.zarr", "-i", "0,0,9:"): "the slice has no elements along dimension 2",
        ("e.zarr",): "the slice has no elements along dimension 0",
        ("g",): "is a group: name one of its arrays: x/y",
        ("s.zarr",): "cannot be shown as a picture",
        ("a.zarr", "--png", tmp_path / "a.jpg"): "--png writes PNG files, which",
    }.items():
        code, out, err = gpustore_command("view", tmp_path / arguments[0], *arguments[1:])
        assert (code, out) == (1, ""), arguments
        assert message in err
    assert gpustore_command("view", tmp_path / "a.zarr", "-i", "0,0,0,0")[1] == "0\n"
    for arguments in (("-i", "a"), ("-i", "1:2:0"), ("--range", "3,2"), ("--range", "3")):
        code, out, err = gpustore_command("view", tmp_path / "a.zarr", *arguments)
        assert (code, out) == (2, ""), arguments
        assert err.count("\n") == 1


def test_records_need_a_field(gpustore_command, tmp_path):
    zarr = pytest.importorskip("zarr")
    dtype = [("a", "<u2"), ("b", "u1")]
    records = zarr.create_array(tmp_path / "r", shape=(4, 4), dtype=dtype, zarr_format=2)
    records[:] = np.ones((4, 4), dtype)
    code, _, err = gpustore_command("view", tmp_path / "r")
    assert code == 1
    assert "holds records: choose one of their fields by --field: a, b" in err
    assert gpustore_command("view", tmp_path / "r", "--field", "b")[0] == 0


def test_the_middle_is_the_default():
    assert choose(None, (5, 8, 3, 4), "uint8") == [2, range(8), range(3), range(4)]
    assert choose(None, (5, 8, 3, 5), "uint8") == [2, 4, range(3), range(5)]
    assert choose(None, (7,), "uint8") == [range(7)]
