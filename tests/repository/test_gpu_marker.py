"""A run of the tests for a GPU that ran none of them fails."""

import subprocess
import sys
from pathlib import Path

from tests import gpu

ROOT = Path(__file__).parents[2]


def test_a_gpu_run_in_which_no_test_ran_fails():
    test = "tests/device/test_protocol.py::test_codecs_say_how_they_want_their_streams"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", test]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (done.returncode == 0) == gpu.answers()
    assert ("no test ran on a GPU" in done.stdout) != gpu.answers()
