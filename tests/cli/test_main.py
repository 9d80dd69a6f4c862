"""The entry point: help, version, failures."""

import os
import subprocess
import sys

import pytest

import gpustore

COMMAND = [sys.executable, "-c", "from gpustore.cli.main import main; raise SystemExit(main())"]


def test_version(gpustore_command):
    code, out, _ = gpustore_command("--version")
    assert (code, out) == (0, f"gpustore {gpustore.__version__}\n")


@pytest.mark.parametrize(
    "command", [[], ["demo"], ["info"], ["copy"], ["ls"], ["cat"], ["du"]], ids=str
)
def test_help(gpustore_command, command):
    code, out, err = gpustore_command(*command, "--help")
    assert (code, err) == (0, "")
    assert "usage: gpustore" in out


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
