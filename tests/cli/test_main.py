"""The entry point: help, version, failures."""

import io
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

import gpustore
from gpustore.cli.main import _COMMANDS, main
from tests.matrix import each

COMMAND = [sys.executable, "-c", "from gpustore.cli.main import main; raise SystemExit(main())"]


def test_version(gpustore_command):
    code, out, _ = gpustore_command("--version")
    assert (code, out) == (0, f"gpustore {gpustore.__version__}\n")


@each("command", [[], *([name] for name in _COMMANDS)])
def test_help(gpustore_command, command):
    code, out, err = gpustore_command(*command, "--help")
    assert (code, err) == (0, "")
    assert "usage: gpustore" in out


@pytest.mark.matrix("costly")
def test_help_imports_neither_numpy_nor_rich():
    code = "import sys\nfrom gpustore.cli.main import main\ntry: main(['--help'])\nfinally: "
    code += "assert not {'numpy', 'rich', 'gpustore.cli.screen'} & sys.modules.keys()"
    assert subprocess.run([sys.executable, "-c", code], timeout=200).returncode == 0


def test_typos_name_what_is_like_them(gpustore_command, tmp_path):
    code, out, err = gpustore_command("tre", "x")
    assert (code, out) == (2, "")
    assert err.startswith("gpustore: error: there is no command 'tre'; did you mean tree? (see ")
    code, out, err = gpustore_command("tree", "x", "--sotred")
    expected = "unrecognized arguments: --sotred (see `gpustore tree --help`)"
    assert (code, out, err) == (2, "", f"gpustore: error: {expected}\n")
    gpustore.open(f"{tmp_path}/study.zarr|zarr3:", create=True, dtype="int8", shape=[2]).result()
    code, out, err = gpustore_command("info", tmp_path / "stud.zarr")
    assert (code, out) == (1, "")
    place = tmp_path / "stud.zarr"
    assert err == (
        f'gpustore: error: there is nothing at local file "{place}"; did you mean "study.zarr"?\n'
    )


def test_other_encodings_show_trees_maps_and_names(tmp_path, monkeypatch):
    group = gpustore.open_group(tmp_path, create=True).result()
    for name in ("ä", "b"):
        group.create_array(name, dtype="int8", shape=[2], chunks=[1], data=[0, 1]).result()
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding="ascii"))
    assert [main(["tree", str(tmp_path)]), main(["chunks", str(tmp_path / "b")])] == [0, 0]
    lines = out.getvalue().decode("ascii").splitlines()
    assert lines[1].startswith("|-- b  2 int8")
    assert lines[2].startswith("`-- ?  2 int8")
    assert lines[-2:] == [". not stored   :=*# stored, by size", "0  .#"]


def test_a_closed_output_is_no_failure(tmp_path, monkeypatch):
    gpustore.save(tmp_path / "x", [1])
    monkeypatch.setattr("sys.stdout", None)  # As >&- leaves it.
    assert main(["info", str(tmp_path / "x")]) == 0


def test_warnings_are_one_line(tmp_path, monkeypatch):
    before, texts = warnings.formatwarning, []

    def copy(*_, **__):
        texts.append(warnings.formatwarning(UserWarning("a\nb"), UserWarning, "x.py", 1))

    monkeypatch.setattr("gpustore.copy", copy)
    np.save(tmp_path / "a.npy", [1, 2])
    assert main(["copy", str(tmp_path / "a.npy"), str(tmp_path / "b"), "--quiet"]) == 0
    assert texts == ["gpustore: warning: a b\n"]
    assert warnings.formatwarning is before


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["info"], ["--nonsense"]], ids=str)
def test_wrong_usage_is_one_line(gpustore_command, arguments):
    code, out, err = gpustore_command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("gpustore: error: ")
    assert err.count("\n") == 1


@pytest.mark.matrix("costly")
def test_a_reader_that_goes_away_is_not_reported():
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [*COMMAND, "--help"], stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=200
        )
    finally:
        os.close(write_end)
    assert done.stderr == ""
