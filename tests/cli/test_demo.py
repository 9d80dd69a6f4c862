"""``gpustore demo``: what it leaves, says and refuses."""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorstore
import zarr
from PIL import Image

from gpustore.cli import demo
from gpustore.cli.volume import make_volume, volume_shape

# A shell may have told its background jobs to ignore Ctrl-C.
CODE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from gpustore.cli.main import main
raise SystemExit(main())
"""
COMMAND = [sys.executable, "-c", CODE]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A demo run as from a shell: no terminal, no input."""
    folder = tmp_path_factory.mktemp("demo") / "with space"
    done = subprocess.run(
        [*COMMAND, "demo", str(folder), "--size", "3", "--seed", "5"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.fixture(scope="module")
def volume():
    return make_volume(volume_shape(3_000_000), 5, advance=lambda nbytes: None)


@pytest.mark.matrix("costly")
def test_demo_says_that_it_runs_without_the_native_core(tmp_path):
    done = subprocess.run(
        [*COMMAND, "demo", str(tmp_path / "demo"), "--size", "1"],
        env={**os.environ, "GPUSTORE_NATIVE": "0"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nWithout the native core: GPUSTORE_NATIVE is 0.\n" in done.stdout


@pytest.mark.matrix("costly")
def test_demo_reports_its_work_and_the_next_command(finished):
    folder, done = finished
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    rows = re.findall(
        r"^ ?(Zarr v\d.*?)  +([\d.]+ [kM]B)((?: +[\d.]+){4})", done.stdout, re.MULTILINE
    )
    assert [row[0] for row in rows] == [f.title for f in demo.FORMATS]
    assert all(float(number) > 0 for row in rows for number in row[2].split())
    assert "100 crops came back equal" in done.stdout
    assert f"Left in {folder}" in done.stdout
    last = done.stdout.rstrip().split("\n")[-1]
    assert last == f"Next: gpustore info '{folder}/{demo.FORMATS[-1].folder}'"


@pytest.mark.parametrize("number", [0, 1], ids=["blosc", "zstd"])
def test_other_programs_read_the_arrays_of_the_demo(finished, volume, number):
    folder = finished[0] / demo.FORMATS[number].folder
    spec = {
        "driver": demo.FORMATS[number].driver,
        "kvstore": {"driver": "file", "path": str(folder)},
    }
    assert np.array_equal(tensorstore.open(spec).result().read().result(), volume)
    assert np.array_equal(zarr.open_array(str(folder), mode="r")[...], volume)


def test_the_picture_shows_the_middle_slice(finished, volume):
    with Image.open(finished[0] / demo.PICTURE) as picture:
        shown = np.asarray(picture)
    plane = volume[len(volume) // 2].astype(float)
    assert shown.shape == plane.shape
    assert shown.dtype == np.uint8
    assert shown.min() == 0
    assert shown.max() == 255
    # Brighter stays brighter.
    order = np.argsort(plane, axis=None, kind="stable")
    assert (np.diff(shown.reshape(-1)[order].astype(int)) >= 0).all()


def test_demo_does_not_overwrite(finished, gpustore_command):
    folder, _ = finished
    before = sorted((p, p.stat().st_mtime_ns) for p in folder.rglob("*"))
    code, _, err = gpustore_command("demo", folder, "--size", "1")
    assert code == 1
    assert err.startswith("gpustore: error: ")
    assert "exists already" in err
    assert err.count("\n") == 1
    assert sorted((p, p.stat().st_mtime_ns) for p in folder.rglob("*")) == before


@pytest.mark.matrix("costly")
def test_demo_without_a_folder_makes_a_new_one(gpustore_command, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, out, err = gpustore_command("demo", "--size", "1")
    assert (code, err) == (0, "")
    (folder,) = tmp_path.iterdir()
    assert f"Left in {folder}" in out
    assert {p.name for p in folder.iterdir()} == {
        *(f.folder for f in demo.FORMATS),
        demo.PICTURE,
    }


def test_demo_refuses_a_file_as_folder(gpustore_command, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    code, _, err = gpustore_command("demo", file)
    assert code == 1
    assert err == f"gpustore: error: {file} is a file: name a folder\n"
    assert file.read_text() == "mine"


def test_demo_refuses_a_full_disk_before_it_begins(gpustore_command, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1_000_000})()
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    code, _, err = gpustore_command("demo", tmp_path)
    assert code == 1
    assert "1.00 MB free" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [["--size", "0"], ["--size", "many"], ["--seed", "-1"], ["a", "b"], ["--size", "1e9"]],
    ids=" ".join,
)
def test_demo_reports_wrong_usage_on_one_line(gpustore_command, arguments):
    code, out, err = gpustore_command("demo", *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("gpustore: error: ")
    assert err.count("\n") == 1


@pytest.mark.matrix("costly")
def test_ctrl_c_ends_with_one_line(tmp_path):
    # Unbuffered, so that the first line tells when the work has begun.
    process = subprocess.Popen(
        [*COMMAND, "demo", str(tmp_path), "--size", "2000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert "uint16 volume" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "gpustore: interrupted\n"
