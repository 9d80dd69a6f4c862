"""Tests of a GPU run with few packages; a run in which none of them ran fails."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import gpu

ROOT = Path(__file__).parents[2]

# Beside pytest and hypothesis no package is found that a machine with a GPU need not have.
_FEW = """
import sys
from importlib.machinery import PathFinder
FEW = {
    *("numpy", "numcodecs", "ml_dtypes", "google_crc32c", "isal", "zstandard", "cupy", "nvidia"),
    *("deflate", "cupy_backends", "cupyx", "typing_extensions", "deprecated", "wrapt"),
    *("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "hypothesis"),
    *("_hypothesis_globals", "_hypothesis_pytestplugin", "sortedcontainers", "attr", "attrs"),
}
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if path is None and name not in FEW:
            spec = PathFinder.find_spec(name)
            places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
            if "site-packages" in str(places):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refusing())
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""

FILES = {
    "tests/backends/cuda/test_arrays.py",
    "tests/backends/test_overruns.py",
    "tests/codec_chain/test_device_streams.py",
    "tests/codecs/blosc/test_device.py",
    "tests/device/test_command_list.py",
    "tests/device/test_protocol.py",
}


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-c", _FEW, "-q", "-m", "gpu", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.matrix("costly")
@pytest.mark.parametrize(
    "places",
    [
        pytest.param(sorted(FILES), id="their files"),
        pytest.param(["tests", "gpustore"], id="all files", marks=pytest.mark.long),
    ],
)
def test_few_packages_are_enough_to_collect_them(places):
    done = run("--collect-only", *places)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^(tests/\S+\.py)::test_\w+\[.*\bcuda\b.*\]$", done.stdout, re.MULTILINE)
    assert set(found) == FILES
    assert len(found) >= 240
    assert found.count("tests/backends/cuda/test_arrays.py") >= 70


@pytest.mark.matrix("costly")
def test_a_run_in_which_no_test_ran_fails():
    done = run("tests/device/test_protocol.py::test_codecs_say_how_they_want_their_streams")
    assert (done.returncode == 0) == gpu.answers()
    assert ("no test ran on a GPU" in done.stdout) != gpu.answers()
