"""Writes to a disk that is full: an error that names the key, and all that was stored stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.mark.matrix("costly")
@pytest.mark.slow
def test_full_disk_keeps_what_was_stored(tmp_path):
    """In a mount namespace of its own, with a disk of 4 MiB."""
    namespace = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
    worker = [sys.executable, "-m", "tests.reliability.worker", "full-disk", str(tmp_path)]
    try:
        ended = subprocess.run(
            [*namespace, *worker], cwd=_ROOT, capture_output=True, text=True, timeout=200
        )
    except FileNotFoundError:
        pytest.skip("no unshare on this machine: a small disk cannot be mounted")
    forbidden = ("not permitted", "permission denied")
    if "mounted" not in ended.stdout and any(word in ended.stderr.lower() for word in forbidden):
        pytest.skip(f"a small disk must not be mounted here: {ended.stderr.strip()[-200:]}")
    assert (ended.returncode, ended.stdout) == (0, "mounted\ndone\n"), ended.stderr
    assert list(tmp_path.iterdir()) == []  # The disk was the worker's alone.
